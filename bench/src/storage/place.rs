//! The directory of a run: partitions in it, and making sure that it goes away.
//!
//! What this file keeps true: nothing outside a directory that the run has made is touched.

use narad_core::ids::{CopyId, Epoch, PartitionIndex, PartitionKey, TopicId, WallMs};
use narad_storage::{Log, Options, Record, StorageError};
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

/// A directory of this run; removed when dropped.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    next: Cell<u32>,
}

impl Place {
    /// Makes one below `parent`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(parent: &Path) -> io::Result<Self> {
        let dir = parent.join(format!("narad-bench-storage-{}", std::process::id()));
        std::fs::create_dir_all(parent)?;
        std::fs::create_dir(&dir)?;
        Ok(Self {
            dir,
            next: Cell::new(0),
        })
    }

    /// Its path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An identity that no other log of this run has.
    #[must_use]
    pub fn copy(&self) -> CopyId {
        self.next.set(self.next.get() + 1);
        CopyId {
            key: PartitionKey {
                topic: TopicId(1),
                partition: PartitionIndex(self.next.get()),
            },
            epoch: Epoch(1),
        }
    }

    /// A new log.
    ///
    /// # Errors
    /// The disk's.
    pub async fn log(&self, options: &Options) -> Result<Log, StorageError> {
        Log::create(&self.dir, self.copy(), options).await
    }

    /// Removes a partition with its log, so that the next measurement has the room.
    ///
    /// # Errors
    /// The disk's.
    pub async fn remove(&self, log: Log) -> Result<(), StorageError> {
        let copy = log.copy();
        log.close().await?;
        narad_storage::layout::delete_copy(&self.dir, copy).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("narad-bench: {} stays: {error}", self.dir.display());
        }
    }
}

/// `count` records of `len` bytes, no two alike.
#[must_use]
pub fn records(seed: u64, count: usize, len: usize) -> Vec<Record> {
    (0..count as u64)
        .map(|n| {
            let mut value = vec![0; len];
            let mut state = (seed << 20 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for part in value.chunks_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
            }
            Record {
                time: WallMs(1_700_000_000_000 + n),
                key: None,
                value,
            }
        })
        .collect()
}
