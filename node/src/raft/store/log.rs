//! The durable log: appending with group sync, reading, truncating, purging, vote and commit mark.
//!
//! Keeps true: an append is confirmed only after its bytes are synced; appends that arrive while a sync runs share the
//! next one; the first failed write or sync stops the log for good, and nothing is confirmed after it.

use super::error::StoreError;
use super::files::Closing;
use super::memory::{Batch, Encoded, Memory, Place, Record};
use super::recover::{Located, Recovered};
use super::segments::Segments;
use super::slots::SlotFile;
use crate::raft::limits::MAX_ENTRY_BYTES;
use crate::raft::types::{Entry, LogId, TypeConfig, Vote};
use openraft::storage::IOFlushed;
use std::cell::RefCell;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::sync::Mutex;

/// The files, used by one operation at a time.
struct Disk {
    segments: Segments,
    purged: SlotFile,
}

/// The file of the commit mark, and what it says.
struct Mark {
    file: SlotFile,
    written: Option<LogId>,
}

/// The durable log. A clone is another handle to the same log.
#[derive(Clone)]
pub struct LogStore {
    pub(super) memory: Rc<RefCell<Memory>>,
    disk: Rc<Mutex<Disk>>,
    /// Apart from `disk`, so that a vote never waits for a log that waits for room.
    vote: Rc<Mutex<SlotFile>>,
    /// Apart from `disk`, so that a commit mark never waits for a sync.
    committed: Rc<Mutex<Mark>>,
    closing: Closing,
    dir: Rc<PathBuf>,
}

impl LogStore {
    /// Takes over what recovery found and opens the files for writing.
    pub(super) async fn new(
        dir: &Path,
        found: Recovered,
        closing: Closing,
    ) -> Result<LogStore, StoreError> {
        let mut memory = Memory {
            purged: found.purged,
            vote: found.vote,
            committed: found.committed,
            ..Memory::default()
        };
        for Located {
            entry,
            segment,
            offset,
            len,
        } in found.entries
        {
            memory.cached_bytes += len as usize;
            let place = Some(Place { segment, offset });
            memory.records.push_back(Record {
                id: entry.log_id,
                json_len: len,
                place,
                entry: Some(entry),
            });
        }
        memory.cached_from = memory.first();
        memory.synced_next = memory.next();
        memory.evict();
        let disk = Disk {
            segments: Segments::open(dir, found.segments, closing.clone()).await?,
            purged: SlotFile::open(&dir.join("purged"), found.purged_sequence).await?,
        };
        let vote = SlotFile::open(&dir.join("vote"), found.vote_sequence).await?;
        let committed = Mark {
            file: SlotFile::open(&dir.join("committed"), found.committed_sequence).await?,
            written: found.committed,
        };
        Ok(LogStore {
            memory: Rc::new(RefCell::new(memory)),
            disk: Rc::new(Mutex::new(disk)),
            vote: Rc::new(Mutex::new(vote)),
            committed: Rc::new(Mutex::new(committed)),
            closing,
            dir: Rc::new(dir.to_owned()),
        })
    }

    /// The directory of the log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Term and index of the entry at `index`, if it is in the log or is the last that was purged.
    pub(in crate::raft) fn log_id_at(&self, index: u64) -> Option<LogId> {
        let mut memory = self.memory.borrow_mut();
        let purged = memory.purged.filter(|id| id.index == index);
        purged.or_else(|| memory.record(index).map(|record| record.id))
    }

    /// Waits until everything appended so far is on disk, or the log has stopped.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let mut disk = self.disk.lock().await;
        self.flush_locked(&mut disk).await
    }

    /// Writes what waits, without waiting for room, and ends the use of the log.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.closing.set(true);
        self.flush().await?;
        self.write_mark().await
    }

    /// Writes and syncs the waiting batches, group by group, and confirms them.
    async fn flush_locked(&self, disk: &mut Disk) -> Result<(), StoreError> {
        loop {
            let batches = {
                let mut memory = self.memory.borrow_mut();
                memory.check()?;
                std::mem::take(&mut memory.waiting)
            };
            if batches.is_empty() {
                return Ok(());
            }
            let written = disk
                .segments
                .append(batches.iter().flat_map(|batch| &batch.entries))
                .await;
            self.confirm(batches, written)?;
        }
    }

    fn confirm(
        &self,
        batches: Vec<Batch>,
        written: Result<Vec<(u64, Place)>, StoreError>,
    ) -> Result<(), StoreError> {
        let places = match written {
            Ok(places) => places,
            Err(error) => {
                let why = error.to_string();
                self.stop(&why);
                for batch in batches {
                    batch.done.io_completed(Err(io::Error::other(why.clone())));
                }
                return Err(error);
            }
        };
        {
            let mut memory = self.memory.borrow_mut();
            for (index, place) in places {
                memory.synced_next = index + 1;
                memory
                    .record(index)
                    .expect("only synced entries are removed")
                    .place = Some(place);
            }
            memory.evict();
        }
        for batch in batches {
            batch.done.io_completed(Ok(()));
        }
        Ok(())
    }

    /// Nothing is written from now on, and everything that waits fails.
    fn stop(&self, why: &str) {
        tracing::error!(why, dir = %self.dir.display(), "the Raft log stops: a write or sync failed");
        let waiting = {
            let mut memory = self.memory.borrow_mut();
            memory.stopped.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut memory.waiting)
        };
        for batch in waiting {
            batch
                .done
                .io_completed(Err(io::Error::other(why.to_owned())));
        }
    }

    /// Passes a result on, and stops the log if it is a failure.
    fn or_stop<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.stop(&error.to_string());
        }
        result
    }

    fn start_flusher(&self) {
        if std::mem::replace(&mut self.memory.borrow_mut().flusher_runs, true) {
            return;
        }
        let log = self.clone();
        glommio::spawn_local(async move {
            loop {
                // The failure is in every batch's confirmation already.
                let outcome = log.flush().await;
                let mut memory = log.memory.borrow_mut();
                if outcome.is_err() || memory.waiting.is_empty() {
                    memory.flusher_runs = false;
                    return;
                }
            }
        })
        .detach();
    }

    /// The entries in `range` that exist, at least one (if there is one) and no more than `max_bytes` of JSON.
    pub(super) async fn entries(
        &self,
        range: impl RangeBounds<u64>,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut index = from.max(self.memory.borrow().first());
        while index < to {
            let (entry, len, place) = {
                let mut memory = self.memory.borrow_mut();
                let Some(record) = memory.record(index) else {
                    break;
                };
                (record.entry.clone(), record.json_len as usize, record.place)
            };
            bytes += len;
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push(match (entry, place) {
                (Some(entry), _) => entry,
                (None, Some(place)) => match self.read_entry(index, place, len).await? {
                    Some(entry) => entry,
                    // Purged meanwhile: start over behind the purge mark.
                    None => {
                        found.clear();
                        bytes = 0;
                        index = self.memory.borrow().first();
                        continue;
                    }
                },
                (None, None) => unreachable!("an entry is in memory until it is on disk"),
            });
            index += 1;
        }
        Ok(found)
    }

    /// `None` if the entry was removed before it could be read.
    async fn read_entry(
        &self,
        index: u64,
        place: Place,
        len: usize,
    ) -> Result<Option<Entry>, StoreError> {
        let reader = self.disk.lock().await.segments.reader(place.segment);
        let Some(reader) = reader else {
            return Ok(None);
        };
        let json = reader.read(index, place, len).await?;
        let entry = serde_json::from_slice(&json);
        entry.map(Some).map_err(|error| {
            StoreError::corrupt(
                reader.path(),
                place.offset,
                format!("the entry does not parse: {error}"),
            )
        })
    }

    /// The entries as records and as JSON, once they are known to fit and to follow what is there.
    fn prepare(
        &self,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Result<(Vec<Record>, Vec<Encoded>), StoreError> {
        let memory = self.memory.borrow();
        memory.check()?;
        let mut next = (!memory.records.is_empty()).then(|| memory.next());
        let (mut records, mut jsons) = (Vec::new(), Vec::new());
        for entry in entries {
            let json = serde_json::to_vec(&entry).expect("plain data serialises");
            let id = entry.log_id;
            if json.len() > MAX_ENTRY_BYTES {
                let (bytes, max) = (json.len() as u64, MAX_ENTRY_BYTES as u64);
                return Err(StoreError::TooLarge {
                    path: self.dir.to_path_buf(),
                    what: "a log entry",
                    bytes,
                    max,
                });
            }
            if let Some(wanted) = next.filter(|wanted| *wanted != id.index) {
                return Err(StoreError::Hole {
                    last: wanted - 1,
                    got: id.index,
                });
            }
            next = Some(id.index + 1);
            records.push(Record {
                id,
                json_len: json.len() as u32,
                place: None,
                entry: Some(entry),
            });
            jsons.push((id.index, json));
        }
        Ok((records, jsons))
    }

    /// On an error nothing was appended.
    pub(super) fn append_entries(
        &self,
        entries: impl IntoIterator<Item = Entry>,
        done: IOFlushed<TypeConfig>,
    ) -> Result<(), StoreError> {
        let (records, entries) = self.prepare(entries)?;
        let Some(first) = records.first().map(|record| record.id.index) else {
            done.io_completed(Ok(()));
            return Ok(());
        };
        {
            let mut memory = self.memory.borrow_mut();
            if memory.records.is_empty() {
                memory.cached_from = first;
                memory.synced_next = first;
            }
            memory.cached_bytes += records
                .iter()
                .map(|record| record.json_len as usize)
                .sum::<usize>();
            memory.records.extend(records);
            memory.waiting.push(Batch { entries, done });
        }
        self.start_flusher();
        Ok(())
    }

    pub(super) async fn truncate(&self, keep: Option<LogId>) -> Result<(), StoreError> {
        let from = keep.map_or(0, |id| id.index + 1);
        let mut disk = self.disk.lock().await;
        self.flush_locked(&mut disk).await?;
        let place = {
            let mut memory = self.memory.borrow_mut();
            let from = from.max(memory.first());
            let Some(place) = memory.record(from).and_then(|record| record.place) else {
                return Ok(());
            };
            while memory
                .records
                .back()
                .is_some_and(|record| record.id.index >= from)
            {
                let record = memory.records.pop_back().expect("just seen");
                memory.forget(&record);
            }
            memory.synced_next = memory.synced_next.min(from);
            memory.cached_from = memory.cached_from.min(from);
            place
        };
        let cut = disk.segments.cut(place).await;
        self.or_stop(cut)
    }

    pub(super) async fn purge_to(&self, upto: LogId) -> Result<(), StoreError> {
        let mut disk = self.disk.lock().await;
        self.flush_locked(&mut disk).await?;
        if self
            .memory
            .borrow()
            .purged
            .as_ref()
            .is_some_and(|purged| purged.index >= upto.index)
        {
            return Ok(());
        }
        // The mark first: segments behind it may then be there or not.
        let marked = disk.purged.save_synced(&upto).await;
        self.or_stop(marked)?;
        let keep_from = upto.index + 1;
        let empty = {
            let mut memory = self.memory.borrow_mut();
            while memory
                .records
                .front()
                .is_some_and(|record| record.id.index < keep_from)
            {
                let record = memory.records.pop_front().expect("just seen");
                memory.forget(&record);
            }
            memory.purged = Some(upto);
            memory.cached_from = memory.cached_from.max(keep_from);
            memory.synced_next = memory.synced_next.max(keep_from);
            memory.records.is_empty()
        };
        let removed = disk.segments.remove_below(keep_from, empty).await;
        self.or_stop(removed)
    }

    pub(super) async fn save_vote_synced(&self, vote: &Vote) -> Result<(), StoreError> {
        let mut file = self.vote.lock().await;
        self.memory.borrow().check()?;
        let saved = file.save_synced(vote).await;
        self.or_stop(saved)?;
        self.memory.borrow_mut().vote = Some(vote.clone());
        Ok(())
    }

    /// Saves the commit mark, but never past what is synced here: so the mark proves a shorter log corrupt. Nothing
    /// waits for the file: it holds a hint, and what is committed is applied meanwhile.
    pub(super) fn save_commit_mark(&self, committed: Option<LogId>) -> Result<(), StoreError> {
        let Some(mut id) = committed else {
            return Ok(());
        };
        {
            let mut memory = self.memory.borrow_mut();
            memory.check()?;
            let synced_next = memory.synced_next;
            if id.index >= synced_next {
                match synced_next
                    .checked_sub(1)
                    .and_then(|last| memory.record(last))
                {
                    Some(record) => id = record.id,
                    None => return Ok(()),
                }
            }
            if memory
                .committed
                .as_ref()
                .is_some_and(|known| known.index >= id.index)
            {
                return Ok(());
            }
            memory.committed = Some(id);
            if std::mem::replace(&mut memory.marking, true) {
                return Ok(());
            }
        }
        let log = self.clone();
        glommio::spawn_local(async move {
            // A failure has stopped the log, which the next call says.
            let _ = log.write_mark().await;
            log.memory.borrow_mut().marking = false;
        })
        .detach();
        Ok(())
    }

    /// Writes the newest commit mark, and those that come meanwhile.
    async fn write_mark(&self) -> Result<(), StoreError> {
        let mut mark = self.committed.lock().await;
        loop {
            let newest = self.memory.borrow().committed;
            let Some(id) = newest.filter(|_| newest != mark.written) else {
                return Ok(());
            };
            let saved = mark.file.save_hint(&id).await;
            self.or_stop(saved)?;
            mark.written = newest;
        }
    }
}
