//! The few file operations that every part of the store needs, without blocking the executor.

use super::error::StoreError;
use crate::raft::limits::{FULL_DISK_PAUSE, FULL_DISK_TRIES};
use glommio::io::{BufferedFile, Directory};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// Set once the node is going down: nothing waits for disk space any more.
pub(super) type Closing = Rc<Cell<bool>>;

/// Whether a failed operation can succeed once there is room, because nothing that was durable depends on it.
fn disk_is_full(error: &StoreError) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error, StoreError::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
}

/// Repeats `operation`, which must be one that can be begun anew, while the disk is full.
pub(super) async fn wait_for_room<T, F>(
    closing: &Closing,
    mut operation: F,
) -> Result<T, StoreError>
where
    F: AsyncFnMut() -> Result<T, StoreError>,
{
    for attempt in 0..FULL_DISK_TRIES {
        match operation().await {
            Err(error) if disk_is_full(&error) && !closing.get() => {
                if attempt % 20 == 0 {
                    tracing::error!(%error, "the disk is full: Raft waits for room; free some space");
                }
                glommio::timer::sleep(FULL_DISK_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
    operation().await
}

/// Syncs a directory.
pub(super) async fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let open = Directory::open(dir)
        .await
        .map_err(StoreError::io(dir, "open the directory"))?;
    open.sync()
        .await
        .map_err(StoreError::io(dir, "sync the directory"))?;
    open.close()
        .await
        .map_err(StoreError::io(dir, "close the directory"))
}

/// Writes all of `bytes` at `at`.
pub(super) async fn write_all(
    file: &BufferedFile,
    path: &Path,
    mut bytes: Vec<u8>,
    mut at: u64,
) -> Result<(), StoreError> {
    while !bytes.is_empty() {
        let len = bytes.len();
        let rest = bytes.clone();
        let written = file
            .write_at(bytes, at)
            .await
            .map_err(StoreError::io(path, "write"))?;
        if written == 0 {
            return Err(StoreError::io(path, "write")(io::Error::from(
                io::ErrorKind::WriteZero,
            )));
        }
        assert!(written <= len, "the kernel wrote more than it was given");
        at += written as u64;
        bytes = rest[written..].to_vec();
    }
    Ok(())
}
