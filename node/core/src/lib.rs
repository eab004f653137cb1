//! Every decision of a Narad node, and none of its I/O.
//!
//! What this crate keeps true: nothing in it can name a clock, a socket or a file. Time and
//! randomness are passed in; each machine is stepped with a closed input enum and answers with a
//! closed effect enum, so that the node, the simulator and the model checks run the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod copies;
pub mod copy;
pub mod defaults;
pub mod dispatch;
pub mod founding;
pub mod ids;
pub mod leases;
pub mod liveness;
pub mod meta;
pub mod moves;
pub mod planner;
pub mod routing;
pub mod throttle;

#[cfg(test)]
mod testing;
