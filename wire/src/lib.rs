//! How Narad's processes talk: Cap'n Proto RPC between clients and nodes and among nodes, the bulk
//! channel that carries a partition's bytes during a move, and the Rust client.
//!
//! What this crate keeps true: bytes of a peer never panic; every call has a deadline and three
//! outcomes (done, refused, unknown); what must hold on any executor is generic over futures'
//! `AsyncRead` and `AsyncWrite`, and only thin parts know glommio.

#[cfg(test)]
crate::runtime_hooks!();

pub mod bulk;
pub mod client;
pub mod convert;
pub mod error;
pub mod limits;
pub mod pool;
pub mod rpc;
pub mod runtime;
pub mod view;
