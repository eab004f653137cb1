//! Which outside crate may be used where, and that the decisions name no clock, socket or file.
//!
//! What this file keeps true: Raft stays in the node, Cap'n Proto in schema, wire and node, the
//! executor out of the core and the schema; nothing of `narad-core` reaches the machine, whatever
//! another crate that it is compiled with would allow.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crates that only these directories may use. What is not listed is free for all but the core.
const KEPT_TO: [(&str, &[&str]); 10] = [
    ("openraft", &["node"]),
    ("openraft-rt", &["node"]),
    ("httparse", &["node"]),
    ("prometheus-client", &["node"]),
    ("clap_complete", &["node"]),
    // bench answers calls itself: the bare echo that produce is measured against.
    ("capnp", &["schema", "wire", "node", "bench"]),
    ("capnp-rpc", &["wire", "node", "bench"]),
    ("capnpc", &["schema"]),
    ("zerocopy", &["storage"]),
    ("glommio", &["storage", "wire", "node", "bench"]),
];

/// What would let a decision depend on the machine.
const FORBIDDEN_NAMES: [&str; 8] = [
    "std::",
    "extern crate std",
    "Instant",
    "SystemTime",
    "thread_rng",
    "unsafe ",
    "println!",
    "dbg!",
];

fn root() -> PathBuf {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    core.ancestors().nth(2).expect("the workspace").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The crates that a manifest names in tables whose name ends so.
fn named(manifest: &str, tables: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = tables.iter().any(|wanted| {
                table == *wanted
                    || (table.starts_with("target.") && table.ends_with(&format!(".{wanted}")))
            });
            if let Some((table, name)) = table.rsplit_once('.')
                && tables.contains(&table)
            {
                names.insert(name.to_owned());
            }
        } else if inside && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

fn members() -> Vec<String> {
    let manifest = read(&root().join("Cargo.toml"));
    let line = manifest
        .lines()
        .find(|line| line.starts_with("members"))
        .expect("members on one line");
    line.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn outside_crates_stay_where_they_belong() {
    let members = members();
    assert!(members.len() >= 7, "{members:?}");
    let mut met = 0;
    for member in &members {
        let manifest = read(&root().join(member).join("Cargo.toml"));
        let used = named(&manifest, &["dependencies", "build-dependencies"]);
        for (name, places) in KEPT_TO {
            if used.contains(name) {
                met += 1;
                assert!(
                    places.contains(&member.as_str()),
                    "{member} must not use {name}"
                );
            }
        }
    }
    assert!(
        met >= KEPT_TO.len(),
        "only {met} of the crates are met: is the table out of date?"
    );
}

#[test]
fn the_core_depends_on_serde_alone() {
    let manifest = read(&root().join("node/core/Cargo.toml"));
    let used = named(&manifest, &["dependencies", "build-dependencies"]);
    assert_eq!(used, BTreeSet::from(["serde".to_owned()]));
}

#[test]
fn the_reader_of_manifests_sees_every_form() {
    let manifest = "[dependencies]\na = \"1\"\nb.workspace = true\n# c = 1\n[dependencies.d]\n\
                    path = \"x\"\n[target.'cfg(unix)'.dependencies]\ne = \"1\"\n[features]\nf = []\n";
    let expected = ["a", "b", "d", "e"].map(str::to_owned);
    assert_eq!(named(manifest, &["dependencies"]), BTreeSet::from(expected));
}

#[test]
fn the_core_names_no_clock_socket_or_file() {
    let source = root().join("node/core/src");
    let library = read(&source.join("lib.rs"));
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(
            library.lines().any(|line| line == attribute),
            "{attribute} is missing"
        );
    }
    let mut files = 0;
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files += 1;
                check(&path);
            }
        }
    }
    assert!(files > 20, "only {files} files were looked at");
}

/// Comments may say what they like, and tests may print.
fn check(path: &Path) {
    let name = path.to_string_lossy();
    let of_tests =
        name.contains("/tests/") || name.ends_with("tests.rs") || name.contains("/explore");
    let text = read(path);
    let product = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    for (number, line) in product.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let found = FORBIDDEN_NAMES.iter().find(|name| code.contains(**name));
        if let Some(found) = found
            && !of_tests
        {
            panic!(
                "{}:{}: the core may not name {found:?}",
                path.display(),
                number + 1
            );
        }
    }
}
