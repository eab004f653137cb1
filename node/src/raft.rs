//! Raft for the control core: openraft on glommio, durable on disk, carrying opaque bytes.
//!
//! Keeps true: what a proposal means is known to the [`machine::Machine`] behind it alone; how peers are reached, to
//! the [`network::RaftTransport`] alone. Everything here runs on one executor.

pub mod limits;
pub mod machine;
pub mod members;
pub mod network;
pub mod node;
pub mod receive;
pub mod rescue;
pub mod runtime;
pub mod status;
pub mod store;
mod text;
pub mod types;
pub mod wire;

pub use machine::{Machine, Unfit};
pub use members::{MembershipError, TransferError};
pub use network::{RaftTransport, TransportError};
pub use node::{
    BarrierError, InitError, LeaderAt, ProposeError, RaftNode, RaftOptions, StartError,
};
pub use receive::RaftHandleError;
pub use status::{RaftRole, RaftStatus, RaftWatch};
pub use types::{MembershipView, RaftPeer};
pub use wire::{RaftMessage, RaftMessageKind};
