//! The Cap'n Proto servers of a node: the interface that clients use and the one between nodes,
//! on every shard's listener.
//!
//! What this module keeps true: nothing is decided here; a call is checked, handed to the shard or
//! the control core, and answered; no call ends the connection, whatever it asks; what must not be
//! cut in half by a caller that goes away runs in a task of its own.

mod cluster;
mod connection;
mod consume;
pub(crate) mod control;
mod copies;
mod gate;
mod handed;
mod hedge;
mod leases;
mod moves;
mod node;
mod peer;
mod polls;
mod produce;
mod refusal;
mod reply;
mod topics;

pub(crate) use connection::listen;
