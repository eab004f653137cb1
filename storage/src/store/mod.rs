//! The segmented log under partitions and WALs: state, group commit, recovery, reading.
//!
//! What this module keeps true: all of it runs on one executor, so state changes between two awaits
//! are atomic; no borrow of the state is held across an await. What is visible is durable.

pub(crate) mod ahead;
pub(crate) mod append;
mod around;
pub(crate) mod cache;
pub(crate) mod fill;
pub(crate) mod group;
pub(crate) mod index;
pub(crate) mod keep;
pub(crate) mod meta;
pub(crate) mod opening;
pub(crate) mod read;
pub(crate) mod recover;
pub(crate) mod repair;
pub(crate) mod scrub;
mod space;
pub(crate) mod state;
pub(crate) mod wait;

pub(crate) use state::Store;
