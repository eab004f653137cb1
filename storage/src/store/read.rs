//! Reading records below the high-watermark: from memory at the tail, else in large pieces from disk.
//!
//! What this file keeps true: nothing at or above the high-watermark is returned; every frame from the
//! disk is checked before its records are; damaged records are skipped and counted, never returned.

use super::state::Store;
use crate::disk::DiskFile;
use crate::error::StorageError;
use crate::format::frame::{FRAME_MAGIC, FrameHeader};
use crate::format::record::{Record, Records};
use crate::format::{u32_at, u64_at};
use crate::limits::{
    FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, IO_DEPTH, OPEN_SEGMENTS, READ_AHEAD_BYTES,
    TRIM_BLOCK_BYTES,
};
use narad_core::copy::SegmentId;
use narad_core::ids::{Offset, WallMs};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Records read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBatch {
    /// The records with their offsets, ascending.
    pub records: Vec<(Offset, Arc<Record>)>,
    /// Where to read on.
    pub next: Offset,
    /// Offsets below `next` whose records are damaged, missing or deleted.
    pub skipped: u64,
}

/// Decoded read-ahead of one reader: frames from `frames[0]` on, then the file from `pos`.
#[derive(Debug)]
pub(crate) struct Stash {
    segment: SegmentId,
    frames: VecDeque<(Offset, Arc<Record>)>,
    /// Next offset that is not in `frames`.
    next: Offset,
    /// Position of the next frame in the file.
    pos: u64,
    /// Bytes of records in `frames`.
    bytes: usize,
}

struct Want {
    records: usize,
    bytes: usize,
    hwm: Offset,
}

impl ReadBatch {
    fn full(&self, want: &Want) -> bool {
        self.records.len() >= want.records || (want.bytes == 0 && !self.records.is_empty())
    }

    /// Takes one record; false when it does not fit any more.
    fn take(&mut self, offset: Offset, record: &Arc<Record>, want: &mut Want) -> bool {
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
        let mut batch = ReadBatch::default();
        let mut want = {
            let state = self.state.borrow();
            batch.next = from.max(state.start);
            batch.skipped = batch.next.0 - from.0;
            Want {
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
            for (i, record) in frame.records.iter().enumerate().skip(skip) {
                let offset = frame.base.plus(i as u64);
                if offset >= want.hwm || !batch.take(offset, record, want) {
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
        let mut stash = match self.take_stash(id, batch.next) {
            Some(stash) => stash,
            None => {
                self.ensure_index(id).await?;
                Stash {
                    segment: id,
                    frames: VecDeque::new(),
                    next: batch.next,
                    pos: self.locate(id, batch.next),
                    bytes: 0,
                }
            }
        };
        loop {
            while let Some((offset, record)) = stash.frames.front() {
                if *offset >= bound {
                    break;
                }
                if *offset >= batch.next && !batch.take(*offset, record, want) {
                    break;
                }
                if let Some((_, record)) = stash.frames.pop_front() {
                    stash.bytes -= record.content_len();
                }
            }
            if batch.full(want) || batch.next >= bound || !stash.frames.is_empty() {
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
            self.fill(&file, &mut stash, len, end).await?;
        }
        self.keep_stash(stash);
        Ok(())
    }

    fn take_stash(&self, id: SegmentId, next: Offset) -> Option<Stash> {
        let mut state = self.state.borrow_mut();
        let at = state.stashes.iter().position(|s| {
            s.segment == id
                && s.frames.front().map_or(s.next, |(o, _)| *o) <= next
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

    /// Reads and decodes the next piece of the file.
    async fn fill(
        &self,
        file: &Rc<DiskFile>,
        stash: &mut Stash,
        len: u64,
        end: Offset,
    ) -> Result<(), StorageError> {
        let seed = self.ident(stash.segment).seed();
        let begin = stash.pos - stash.pos % TRIM_BLOCK_BYTES;
        let mut want = self.options.io_chunk_bytes as u64;
        loop {
            let upto = (begin + want).min(len.next_multiple_of(TRIM_BLOCK_BYTES));
            let bytes = self.read_range(file, begin, upto).await?;
            let usable = bytes.len().min((len - begin) as usize);
            let mut at = (stash.pos - begin) as usize;
            let last = begin + usable as u64 >= len;
            let mut short = None;
            while at < usable && stash.next < end {
                match frame_at(&bytes[at..usable], seed) {
                    Step::Skip(n) => at += n,
                    Step::More(_) if last => at = usable,
                    Step::More(n) => {
                        short = Some(n as u64);
                        break;
                    }
                    Step::Bad(n) => at += n,
                    Step::Frame(header, body) => {
                        stash.decode(&header, &bytes[at + body.start..at + body.end], end);
                        at += header.total_len() as usize;
                    }
                }
            }
            let progressed = begin + at as u64 > stash.pos;
            stash.pos = begin + at as u64;
            match short {
                // One frame is longer than the piece: read it whole.
                Some(n) if !progressed => {
                    want = (stash.pos - begin + n).next_multiple_of(TRIM_BLOCK_BYTES);
                }
                _ => return Ok(()),
            }
        }
    }

    async fn read_range(
        &self,
        file: &Rc<DiskFile>,
        begin: u64,
        upto: u64,
    ) -> Result<Vec<u8>, StorageError> {
        use futures::StreamExt as _;
        let chunk = self.options.io_chunk_bytes as u64;
        // Smaller requests in parallel keep the disk busier than one large one.
        let piece = (chunk / IO_DEPTH as u64).next_multiple_of(TRIM_BLOCK_BYTES);
        let mut reads = futures::stream::iter((begin..upto).step_by(piece as usize))
            .map(|pos| file.read(pos, (upto - pos).min(piece) as usize))
            .buffered(IO_DEPTH);
        let mut out = Vec::with_capacity((upto - begin) as usize);
        let mut count = 0;
        while let Some(bytes) = reads.next().await {
            out.extend_from_slice(&bytes?);
            count += 1;
        }
        let mut state = self.state.borrow_mut();
        state.work.reads += count;
        state.work.read_bytes += out.len() as u64;
        Ok(out)
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
            if let Some((offset, _)) = batch.records.iter().find(|(_, r)| r.time >= time) {
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

impl Stash {
    fn decode(&mut self, header: &FrameHeader, payload: &[u8], end: Offset) {
        if header.end() <= self.next {
            return;
        }
        let records = Records::new(payload, header.first_time, header.record_count);
        for (i, record) in records.enumerate() {
            let offset = header.base.plus(i as u64);
            if offset >= self.next && offset < end {
                let record = Arc::new(record.to_record());
                self.bytes += record.content_len();
                self.frames.push_back((offset, record));
            }
        }
        self.next = header.end().min(end);
    }
}

enum Step {
    /// No frame in the next bytes.
    Skip(usize),
    /// The frame needs so many bytes in all.
    More(usize),
    /// A frame of this length whose records are damaged.
    Bad(usize),
    Frame(FrameHeader, std::ops::Range<usize>),
}

fn frame_at(bytes: &[u8], seed: u32) -> Step {
    if bytes.len() < FRAME_ALIGN_BYTES {
        return Step::Skip(bytes.len());
    }
    let blank = bytes
        .chunks_exact(FRAME_ALIGN_BYTES)
        .take_while(|w| u64_at(w, 0) == 0)
        .count();
    if blank > 0 {
        return Step::Skip(blank * FRAME_ALIGN_BYTES);
    }
    if u32_at(bytes, 0) != FRAME_MAGIC {
        return Step::Skip(FRAME_ALIGN_BYTES);
    }
    if bytes.len() < FRAME_HEADER_BYTES {
        return Step::More(FRAME_HEADER_BYTES);
    }
    let Some(header) = FrameHeader::decode(bytes, seed) else {
        return Step::Skip(FRAME_ALIGN_BYTES);
    };
    let total = header.total_len() as usize;
    if bytes.len() < total {
        return Step::More(total);
    }
    let body = FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.payload_len as usize;
    if crc32c::crc32c_append(seed, &bytes[body.clone()]) != header.payload_crc {
        return Step::Bad(total);
    }
    Step::Frame(header, body)
}
