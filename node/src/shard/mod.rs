//! The data plane of one shard executor: its partitions, its ingress WAL and dispatcher, and the
//! owner's side of copy sessions.
//!
//! What this module keeps true: a partition is touched by its shard only, so freeze, append and
//! capture exclude each other without locks; everything acknowledged is durable; what this node
//! does not own any more is saved before it goes.

mod dead_letter;
mod deliver;
mod delivery;
pub(crate) mod direct;
mod dispatcher;
mod executor;
pub(crate) mod faults;
mod incoming;
mod ingress;
pub(crate) mod limits;
pub(crate) mod lookup;
mod open;
pub(crate) mod partition;
pub(crate) mod peers;
pub(crate) mod produce;
mod rate;
mod reconcile;
mod requests;
mod retire;
mod session;
#[expect(
    clippy::module_inception,
    reason = "the module is the data plane, the file its state"
)]
pub(crate) mod shard;
pub(crate) mod task;
mod ticks;
mod times;
mod unread;
mod unwritten;
mod upkeep;
mod wals;

pub use executor::{ShardError, run};
