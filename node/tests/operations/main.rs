//! What an operator does and meets: founding on disks that were lost, forgetting a node, a lost
//! quorum, pausing, watching. On real processes.

#[path = "../support/mod.rs"]
mod support;

mod founding;
