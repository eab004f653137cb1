//! The Cap'n Proto interfaces of Narad as Rust types.
//!
//! What this crate keeps true: the modules are generated at build time from `schema.cgr`, the
//! compiled form of the `.capnp` files beside it, so building needs no `capnp` binary; a test
//! compares the two where the binary exists. `README.md` tells how to change an interface.
//!
//! Generated items carry no comments; their meaning stands in the `.capnp` files.

/// Generated code: linted as what it is.
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[allow(
            missing_docs,
            unreachable_pub,
            unused_qualifications,
            rustdoc::all,
            clippy::all,
            clippy::pedantic,
            clippy::unimplemented
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
        }
    };
}

generated!(
    /// What both interfaces share: errors and their stable codes, records, partitions.
    common_capnp
);
generated!(
    /// The client interface: the bootstrap capability of every node's listener.
    client_capnp
);
generated!(
    /// The interface between nodes: Raft, metadata, dispatch and the move.
    peer_capnp
);
