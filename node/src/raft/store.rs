//! The durable half of Raft, in one directory: log, vote, commit mark, purge mark and snapshot.
//!
//! Keeps true: what Raft was told is durable survives power loss; what was never durable may vanish at
//! start-up; and bytes that were durable and cannot be read are an error that stops the node, never a silent cut.
//! The formats are described in `node/docs/raft-log.md`.

mod adaptor;
pub mod error;
mod files;
pub mod frame;
#[cfg(test)]
mod frame_checks;
#[cfg(test)]
mod fuzz;
pub mod log;
mod memory;
pub mod recover;
mod segments;
pub mod slots;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub use error::StoreError;
pub use log::LogStore;
pub use snapshot::SnapshotFile;

use super::limits::MAX_NODE_ID_BYTES;
use std::path::{Path, PathBuf};

/// Everything that was found in a Raft directory, ready for use.
pub struct Opened {
    /// Log, vote, commit mark and purge mark.
    pub log: LogStore,
    /// The snapshot file.
    pub snapshot: SnapshotFile,
}

/// Opens (creating it where needed) the Raft directory of node `node_id`.
///
/// Recovery runs on the executor's blocking thread. Errors say what is wrong with which file and what to do.
pub async fn open(dir: &Path, node_id: &str) -> Result<Opened, StoreError> {
    if node_id.is_empty() || node_id.len() > MAX_NODE_ID_BYTES {
        return Err(StoreError::BadNodeId {
            bytes: node_id.len(),
        });
    }
    let (path, id): (PathBuf, String) = (dir.to_owned(), node_id.to_owned());
    let found = glommio::executor()
        .spawn_blocking(move || recover::recover(&path, &id))
        .await?;
    let closing = files::Closing::default();
    let snapshot = SnapshotFile::new(dir, found.snapshot.clone(), closing.clone());
    let log = LogStore::new(dir, found, closing).await?;
    Ok(Opened { log, snapshot })
}
