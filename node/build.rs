//! Links the program with its own way of making rings; see `runtime/rings.rs` of the wire crate.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--wrap=io_uring_queue_init_params");
}
