//! Reading records below the high-watermark: from memory at the tail, else in large pieces from disk.
//!
//! What this file keeps true: nothing at or above the high-watermark is returned; every frame from the
//! disk is checked before its records are; damaged records are skipped and counted, never returned; what the
//! disk refuses to read counts as damaged only where the caller says so.

use super::ahead::Stash;
use super::state::Store;
use crate::error::StorageError;
use crate::format::batch::{StoredRecord, release_neighbours};
use crate::limits::{OPEN_SEGMENTS, READ_AHEAD_BYTES};
use narad_core::copy::SegmentId;
use narad_core::ids::{Offset, WallMs};

/// Records read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBatch {
    /// The records with their offsets, ascending.
    pub records: Vec<(Offset, StoredRecord)>,
    /// Where to read on.
    pub next: Offset,
    /// Offsets below `next` whose records are damaged, missing or deleted.
    pub skipped: u64,
}

/// What becomes of what the disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is an error, whatever others have made of it: the disk is asked.
    Fails,
    /// It is an error, but what was passed over once is not asked for again.
    FailsAnew,
    /// It is passed over.
    PassedOver,
}

struct Want {
    refused: Refused,
    records: usize,
    bytes: usize,
    hwm: Offset,
}

impl ReadBatch {
    fn full(&self, want: &Want) -> bool {
        self.records.len() >= want.records || (want.bytes == 0 && !self.records.is_empty())
    }

    /// Takes one record; false when it does not fit any more.
    fn take(&mut self, offset: Offset, record: &StoredRecord, want: &mut Want) -> bool {
        let size = record.content_len() + 32;
        if self.records.len() >= want.records || (size > want.bytes && !self.records.is_empty()) {
            want.bytes = 0;
            return false;
        }
        self.skipped += offset.0 - self.next.0;
        self.records.push((offset, record.clone()));
        self.next = offset.plus(1);
        want.bytes = want.bytes.saturating_sub(size);
        true
    }
}

impl Store {
    /// Reads from `from` on; see [`crate::Log::read`].
    pub(crate) async fn read(
        &self,
        from: Offset,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<ReadBatch, StorageError> {
        self.read_as(from, max_records, max_bytes, Refused::Fails)
            .await
    }

    /// As [`Self::read`], for what the disk refuses.
    pub(crate) async fn read_as(
        &self,
        from: Offset,
        max_records: usize,
        max_bytes: usize,
        refused: Refused,
    ) -> Result<ReadBatch, StorageError> {
        let mut batch = ReadBatch::default();
        let mut want = {
            let state = self.state.borrow();
            batch.next = from.max(state.start);
            batch.skipped = batch.next.0 - from.0;
            Want {
                refused,
                records: max_records,
                bytes: max_bytes.max(1),
                hwm: state.hwm(),
            }
        };
        while batch.next < want.hwm && !batch.full(&want) {
            if self.serve_cached(&mut batch, &mut want) {
                break;
            }
            self.serve_stored(&mut batch, &mut want).await?;
        }
        release_neighbours(&mut batch.records);
        Ok(batch)
    }

    /// Serves from memory; false when the next offset is not there.
    fn serve_cached(&self, batch: &mut ReadBatch, want: &mut Want) -> bool {
        let state = self.state.borrow();
        let Some(frames) = state.cache.from(batch.next) else {
            return false;
        };
        for frame in frames {
            let skip = batch.next.0.saturating_sub(frame.base.0) as usize;
            for i in skip..frame.batch.len() {
                let offset = frame.base.plus(i as u64);
                let record = StoredRecord::new(&frame.batch, i);
                let fits = |record| offset < want.hwm && batch.take(offset, &record, want);
                if !record.is_some_and(fits) {
                    return true;
                }
            }
        }
        true
    }

    async fn serve_stored(
        &self,
        batch: &mut ReadBatch,
        want: &mut Want,
    ) -> Result<(), StorageError> {
        let segment = {
            let state = self.state.borrow();
            let at = state
                .segments
                .partition_point(|s| s.totals.end <= batch.next);
            state
                .segments
                .get(at)
                .map(|s| (s.id, s.totals.end, s.totals.len))
        };
        let Some((id, end, len)) = segment else {
            // Known to have existed, but no file holds it.
            skip_to(batch, want.hwm);
            return Ok(());
        };
        let bound = end.min(want.hwm);
        skip_to(batch, id.base.min(bound));
        if batch.next >= bound {
            return Ok(());
        }
        let around = want.refused == Refused::PassedOver;
        let mut stash = match self.take_stash(id, batch.next, want.refused) {
            Some(stash) => stash,
            None => {
                match self.ensure_index(id).await {
                    // From further in front, then: the index is to be had from the refused part only.
                    Err(error) if !around => return Err(error),
                    Err(_) | Ok(()) => {}
                }
                let pos = self.locate(id, batch.next);
                Stash::new(id, self.ident(id).seed(), batch.next, pos)
            }
        };
        loop {
            while let Some((offset, record)) = stash.records.front() {
                if *offset >= bound {
                    break;
                }
                if *offset >= batch.next && !batch.take(*offset, record, want) {
                    break;
                }
                if let Some((_, record)) = stash.records.pop_front() {
                    stash.bytes -= record.content_len();
                }
            }
            if batch.full(want) || batch.next >= bound || !stash.records.is_empty() {
                break;
            }
            if stash.pos >= len || stash.next >= end {
                skip_to(batch, bound);
                break;
            }
            let Some(file) = self.file_of(id).await? else {
                skip_to(batch, bound);
                return Ok(());
            };
            let largest = self.options.io_chunk_bytes as u64;
            let advance = stash.advance(&file, (len, end), largest, around);
            let read = advance.await?;
            let mut state = self.state.borrow_mut();
            state.work.reads += 1;
            state.work.read_bytes += read as u64;
        }
        self.keep_stash(stash);
        Ok(())
    }

    /// Lets go of what was read ahead, so that the disk is asked again.
    pub(crate) fn drop_stashes(&self) {
        self.state.borrow_mut().stashes.clear();
    }

    fn take_stash(&self, id: SegmentId, next: Offset, refused: Refused) -> Option<Stash> {
        let mut state = self.state.borrow_mut();
        let at = state.stashes.iter().position(|s| {
            s.segment == id
                && (!s.passed_over || refused != Refused::Fails)
                && s.records.front().map_or(s.next, |(o, _)| *o) <= next
                && next <= s.next
        })?;
        Some(state.stashes.remove(at))
    }

    fn keep_stash(&self, stash: Stash) {
        let mut state = self.state.borrow_mut();
        state.stashes.push(stash);
        let mut bytes: usize = state.stashes.iter().map(|s| s.bytes).sum();
        while state.stashes.len() > OPEN_SEGMENTS || bytes > 2 * READ_AHEAD_BYTES {
            bytes -= state.stashes.remove(0).bytes;
        }
    }

    /// First visible offset whose record is at or after `time`; the high-watermark when there is none.
    pub(crate) async fn offset_at(&self, time: WallMs) -> Result<Offset, StorageError> {
        let (candidate, start, hwm) = {
            let state = self.state.borrow();
            let segment = state
                .segments
                .iter()
                .find(|s| s.totals.end > state.start && s.totals.last_time >= time);
            (segment.map(|s| s.id), state.start, state.hwm())
        };
        let Some(id) = candidate else {
            return Ok(hwm);
        };
        self.ensure_index(id).await?;
        let mut next = self.locate_time(id, time).max(start);
        while next < hwm {
            let batch = self.read(next, 1024, READ_AHEAD_BYTES).await?;
            if let Some((offset, _)) = batch.records.iter().find(|(_, r)| r.get().time >= time) {
                return Ok(*offset);
            }
            next = batch.next;
        }
        Ok(hwm)
    }
}

fn skip_to(batch: &mut ReadBatch, offset: Offset) {
    if offset > batch.next {
        batch.skipped += offset.0 - batch.next.0;
        batch.next = offset;
    }
}
