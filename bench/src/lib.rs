//! Measures and checks a running cluster from outside, as any client sees it.
//!
//! What this crate keeps true: it imports nothing of the node; figures come from histograms of every
//! sample; a run that loses a record fails.

pub mod check;
pub mod copy;
mod cpu;
pub mod flow;
pub mod freeze;
pub mod ledger;
pub mod limits;
pub mod lines;
pub mod load;
pub mod node;
pub mod plot;
pub mod produce;
mod raw;
pub mod replay;
pub mod report;
pub mod rig;
pub mod servers;
pub mod stop;
pub mod storage;
pub mod throttle;
pub mod units;
