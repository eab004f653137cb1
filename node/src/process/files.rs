//! How many files this process may open.
//!
//! What this file keeps true: a node uses all that the system grants it, within reason; a shell's low default
//! does not decide how many partitions a node serves.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// More than this is of no use, and some systems grant a thousand million.
const MOST: u64 = 1 << 20;
/// What every system grants, where it does not say.
const USUAL: u64 = 1_024;

/// Files that may be open.
#[must_use]
pub fn allowed() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| soft)
}

/// Raises the soft limit to the hard one.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let wanted = hard.min(MOST);
    if soft < wanted
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        tracing::warn!(%error, soft, hard, "the limit of open files stays as it is");
    }
}
