//! The checked-in `schema.cgr` says the same as the `.capnp` files beside it.
//!
//! What it keeps true: an interface cannot be edited without its generated code following. The
//! Rust code is compared, not the request's bytes, because versions of the `capnp` compiler lay
//! the request out differently. Needs the `capnp` binary; without it the test says so and passes,
//! and CI, which installs it, is where it counts (`NARAD_REQUIRE_CAPNP=1` makes its lack a failure).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FILES: [&str; 3] = ["common.capnp", "client.capnp", "peer.capnp"];

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Rust modules by file name, as generated from one request.
fn generate(request: &[u8], out: &Path) -> BTreeMap<String, String> {
    std::fs::create_dir_all(out).expect("target directory is writable");
    capnpc::codegen::CodeGenerationCommand::new()
        .output_directory(out)
        .run(request)
        .expect("a CodeGeneratorRequest");
    FILES
        .iter()
        .map(|file| {
            let name = file.replace(".capnp", "_capnp.rs");
            let text = std::fs::read_to_string(out.join(&name)).expect("module was generated");
            (name, text)
        })
        .collect()
}

#[test]
fn checked_in_request_matches_the_interface_files() {
    let compiled = Command::new("capnp")
        .current_dir(crate_dir())
        .args(["compile", "-o-"])
        .args(FILES)
        .env("PWD", crate_dir())
        .stderr(Stdio::inherit())
        .output();
    let compiled = match compiled {
        Ok(output) => {
            assert!(
                output.status.success(),
                "capnp refuses the interface files: {}",
                output.status
            );
            output.stdout
        }
        Err(error) => {
            assert!(
                std::env::var_os("NARAD_REQUIRE_CAPNP").is_none(),
                "no capnp binary: {error}; install the package capnproto"
            );
            eprintln!("skipped: no capnp binary ({error})");
            return;
        }
    };
    let checked_in = std::fs::read(crate_dir().join("schema.cgr")).expect("schema.cgr is there");
    let tmp = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let ours = generate(&checked_in, &tmp.join("checked-in"));
    let theirs = generate(&compiled, &tmp.join("compiled"));
    for (name, text) in &ours {
        assert!(
            theirs[name] == *text,
            "{name} is stale: run the command in schema/README.md and check schema.cgr in"
        );
    }
}

#[test]
fn error_codes_keep_their_numbers() {
    use narad_schema::common_capnp::ErrorCode as C;
    let stable = [
        (C::Ok, 0),
        (C::Invalid, 1),
        (C::UnknownTopic, 2),
        (C::UnknownPartition, 3),
        (C::TopicExists, 4),
        (C::TooLarge, 5),
        (C::Busy, 6),
        (C::DiskFull, 7),
        (C::NotOwner, 8),
        (C::Frozen, 9),
        (C::Closed, 10),
        (C::StaleLease, 11),
        (C::NotLeader, 12),
        (C::UnknownOutcome, 13),
        (C::Unavailable, 14),
        (C::Refused, 15),
        (C::Timeout, 16),
        (C::NotMember, 17),
        (C::Unsupported, 18),
        (C::Internal, 19),
        (C::Dead, 20),
        (C::ShuttingDown, 21),
        (C::Corrupt, 22),
    ];
    for (code, number) in stable {
        assert_eq!(u16::from(code), number, "{code:?}");
    }
}
