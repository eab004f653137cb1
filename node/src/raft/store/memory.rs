//! The log in memory: which entries there are, where they are on disk, and the newest of them decoded.
//!
//! Keeps true: an entry is decoded in memory until it is on disk, and afterwards only while the cache has room. Nothing
//! here awaits, so nothing is seen half changed.

use super::error::StoreError;
use crate::raft::limits::ENTRY_CACHE_BYTES;
use crate::raft::types::{Entry, LogId, TypeConfig, Vote};
use openraft::storage::IOFlushed;
use std::collections::VecDeque;

/// Where an entry is on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// One entry of the log.
pub(super) struct Record {
    pub(super) id: LogId,
    pub(super) json_len: u32,
    /// `None` until it is synced.
    pub(super) place: Option<Place>,
    /// Decoded, while the cache has room or it is not yet on disk.
    pub(super) entry: Option<Entry>,
}

/// An entry's index and its JSON.
pub(super) type Encoded = (u64, Vec<u8>);

/// Entries of one append that wait for the next sync.
pub(super) struct Batch {
    pub(super) entries: Vec<Encoded>,
    pub(super) done: IOFlushed<TypeConfig>,
}

/// The log in memory. Nothing here awaits.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) records: VecDeque<Record>,
    pub(super) purged: Option<LogId>,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    /// Somebody writes the commit mark, and will write the newest.
    pub(super) marking: bool,
    pub(super) waiting: Vec<Batch>,
    pub(super) flusher_runs: bool,
    pub(super) cached_bytes: usize,
    /// First index whose entry may still be cached.
    pub(super) cached_from: u64,
    /// Everything below this index is synced.
    pub(super) synced_next: u64,
    pub(super) stopped: Option<String>,
}

impl Memory {
    pub(super) fn first(&self) -> u64 {
        self.records
            .front()
            .map_or_else(|| self.next(), |record| record.id.index)
    }

    pub(super) fn next(&self) -> u64 {
        let after_purge = self.purged.as_ref().map_or(0, |id| id.index + 1);
        self.records
            .back()
            .map_or(after_purge, |record| record.id.index + 1)
    }

    pub(super) fn record(&mut self, index: u64) -> Option<&mut Record> {
        let at = index.checked_sub(self.first())?;
        self.records.get_mut(usize::try_from(at).ok()?)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.stopped
            .clone()
            .map_or(Ok(()), |why| Err(StoreError::Stopped(why)))
    }

    /// Drops decoded entries, oldest first, until the cache fits.
    pub(super) fn evict(&mut self) {
        while self.cached_bytes > ENTRY_CACHE_BYTES && self.cached_from < self.next() {
            let index = self.cached_from.max(self.first());
            let Some(record) = self.record(index).filter(|record| record.place.is_some()) else {
                return;
            };
            let freed = if record.entry.take().is_some() {
                record.json_len as usize
            } else {
                0
            };
            self.cached_bytes -= freed;
            self.cached_from = index + 1;
        }
    }

    pub(super) fn forget(&mut self, record: &Record) {
        if record.entry.is_some() {
            self.cached_bytes -= record.json_len as usize;
        }
    }
}
