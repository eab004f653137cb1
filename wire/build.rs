//! Links what this package builds with its own versions of some functions of glommio's liburing; see
//! `runtime/hooks.rs` of the wire crate.

#[path = "link.rs"]
mod link;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=link.rs");
    link::replace_functions("rustc-link-arg");
}
