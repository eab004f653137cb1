//! What the build scripts of this project tell the linker; see `runtime/hooks.rs` of this crate.

/// Asks for these functions of glommio's liburing to be replaced in what `instruction` of Cargo speaks of.
pub(crate) fn replace_functions(instruction: &str) {
    for name in [
        "io_uring_queue_init_params",
        "rust_io_uring_prep_timeout",
        "io_uring_wait_cqes",
    ] {
        println!("cargo:{instruction}=-Wl,--wrap={name}");
    }
}
