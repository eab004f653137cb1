//! What makes one operating-system process out of the parts: signals, panics, executors on CPUs.
//!
//! What this module keeps true: a process is whole or gone. A panic anywhere ends it, an executor
//! that returns before it was asked to ends it, and a stop that takes too long ends it.

pub mod executors;
pub mod files;
pub mod notify;
pub mod panics;
pub mod signals;
