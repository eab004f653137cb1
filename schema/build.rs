//! Generates the Rust modules from `schema.cgr`.
//!
//! What it keeps true: the build reads nothing but the checked-in request, so it works without a
//! `capnp` binary and gives the same code everywhere.

fn main() {
    println!("cargo:rerun-if-changed=schema.cgr");
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let request = std::fs::File::open("schema.cgr")
        .expect("schema.cgr is beside build.rs; schema/README.md tells how to make it");
    capnpc::codegen::CodeGenerationCommand::new()
        .output_directory(std::path::PathBuf::from(out))
        .run(request)
        .expect("schema.cgr is a CodeGeneratorRequest");
}
