//! The `narad` node: a thin shell around [`narad_core`] that feeds its decisions with time, disk
//! and network, and carries out what they say.
//!
//! What this crate keeps true: executors share nothing but the values in [`NodeContext`] and ask
//! each other over bounded channels; a decision that a promise rests on is made in the core crate.
//!
//! [`NodeContext`]: context::NodeContext

#[cfg(test)]
narad_wire::runtime_hooks!();

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod context;
pub mod control;
pub mod data_dir;
mod failpoint;
pub mod limits;
pub mod messages;
pub mod metrics;
pub mod mover;
pub mod pace;
pub mod process;
pub mod raft;
mod rpc;
pub mod salvage;
pub mod serve;
pub mod shard;
