//! Links what this package builds with its own versions of some functions of glommio's liburing; see
//! `runtime/hooks.rs` of the wire crate.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in [
        "io_uring_queue_init_params",
        "rust_io_uring_prep_timeout",
        "io_uring_wait_cqes",
    ] {
        println!("cargo:rustc-link-arg=-Wl,--wrap={name}");
    }
}
