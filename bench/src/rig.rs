//! What `produce`, `flow` and `throttle` are made of: ways to send calls, clocks, and the two measures, the bare
//! echo and the bare disk.
//!
//! What this module keeps true: both sides of a comparison are driven by the same code, over as many
//! connections, with the same number of calls at a time.

pub mod bench_cluster;
pub mod callers;
pub mod cpu;
pub mod disk;
pub mod drive;
pub mod echo;
pub mod moves;
pub mod place;

use crate::node::NodeError;
use narad_wire::error::WireError;

/// Why a run has no figures.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The nodes.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The echo process.
    #[error("the echo process: {0}")]
    Echo(std::io::Error),
    /// The raw disk.
    #[error("the raw disk: {0}; --dir names another one")]
    Disk(#[from] std::io::Error),
    /// A call.
    #[error("{what}: {error}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: WireError,
    },
    /// Calls of a measurement failed.
    #[error("{failed} of {calls} calls failed, the last one with: {last}")]
    Calls {
        /// Calls that failed.
        failed: u64,
        /// All calls.
        calls: u64,
        /// The last failure.
        last: String,
    },
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
    /// By a signal.
    #[error("stopped by a signal")]
    Stopped,
}

/// Names what was tried.
///
/// # Errors
/// [`RigError::Call`].
pub fn call<T>(what: &'static str, result: Result<T, WireError>) -> Result<T, RigError> {
    result.map_err(|error| RigError::Call { what, error })
}
