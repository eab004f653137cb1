//! Reading a segment forwards: pieces are requested before they are wanted, and decoded one at a time.
//!
//! What this file keeps true: bytes behind the durable length are never looked at; every frame is
//! checked; damaged frames are left out, the next intact one is found again; what one reader has read
//! ahead is bounded by [`READ_WINDOW_BYTES`], and what all readers of an executor have by
//! [`EXECUTOR_READ_AHEAD_BYTES`].

use super::around;
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::batch::{Batch, StoredRecord};
use crate::format::frame::{FRAME_MAGIC, FrameHeader};
use crate::format::{u32_at, u64_at};
use crate::limits::{
    EXECUTOR_READ_AHEAD_BYTES, FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, IO_DEPTH, READ_WINDOW_BYTES,
    TRIM_BLOCK_BYTES,
};
use glommio::io::ReadResult;
use narad_core::copy::SegmentId;
use narad_core::ids::Offset;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A piece of the file that was requested.
#[derive(Debug)]
struct Piece {
    at: u64,
    read: glommio::Task<Result<ReadResult, StorageError>>,
    bytes: Ahead,
}

thread_local! {
    static AHEAD_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that were requested and not decoded yet, counted for the whole executor.
#[derive(Debug)]
struct Ahead(u64);

impl Ahead {
    fn new(bytes: u64) -> Self {
        AHEAD_BYTES.set(AHEAD_BYTES.get() + bytes);
        Self(bytes)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let _ = AHEAD_BYTES.try_with(|a| a.set(a.get().saturating_sub(self.0)));
    }
}

/// One reader of one segment: decoded records, then bytes of a frame that is not whole yet, then
/// pieces that are on their way.
#[derive(Debug)]
pub(crate) struct Stash {
    pub(crate) segment: SegmentId,
    seed: u32,
    pub(crate) records: VecDeque<(Offset, StoredRecord)>,
    /// Next offset that is not in `records`.
    pub(crate) next: Offset,
    /// Position of the next frame in the file.
    pub(crate) pos: u64,
    /// Bytes of contents in `records`.
    pub(crate) bytes: usize,
    /// Something that the disk refused was read around, and may be left out.
    pub(crate) passed_over: bool,
    partial: Vec<u8>,
    /// Bytes that `partial` must have before it can be looked at again.
    need: usize,
    pieces: VecDeque<Piece>,
    requested: u64,
    /// Bytes that may be on their way; a reader that goes on gets more.
    window: u64,
}

impl Stash {
    pub(crate) const fn new(segment: SegmentId, seed: u32, next: Offset, pos: u64) -> Self {
        Self {
            segment,
            seed,
            records: VecDeque::new(),
            next,
            pos,
            bytes: 0,
            passed_over: false,
            partial: Vec::new(),
            need: 0,
            pieces: VecDeque::new(),
            requested: 0,
            window: 0,
        }
    }

    /// Takes the next piece of the file, whose durable length is `len` and whose records end at `end`,
    /// and decodes it; what the disk refuses of it is left out where `around` says so. Returns how many
    /// bytes were read.
    pub(crate) async fn advance(
        &mut self,
        file: &Rc<DiskFile>,
        (len, end): (u64, Offset),
        largest: u64,
        around: bool,
    ) -> Result<usize, StorageError> {
        let at = self.pos + self.partial.len() as u64;
        let goes_on = self.window > 0;
        if self.pieces.is_empty() {
            self.request(file, at, len, largest);
        }
        let Some(piece) = self.pieces.pop_front() else {
            self.stop_at(len);
            return Ok(0);
        };
        let begin = piece.at;
        let (read, blocks);
        let bytes: &[u8] = match piece.read.await {
            Ok(whole) => {
                read = whole;
                &read
            }
            Err(error) => {
                self.pieces.clear();
                if !around {
                    return Err(error);
                }
                blocks = around::read_blocks(file, begin, piece.bytes.0, error).await?;
                self.passed_over = true;
                &blocks
            }
        };
        let upto = bytes.len().min((len - begin) as usize);
        let skip = (at - begin) as usize;
        if skip >= upto {
            // The file is shorter than it should be: what is missing is skipped.
            self.stop_at(len);
            return Ok(bytes.len());
        }
        if goes_on && self.request(file, begin + upto as u64, len, largest) {
            // They are on their way while this one is decoded, also if all that were under way have ended at once.
            disk::submit().await;
        }
        self.decode(&bytes[skip..upto], begin + upto as u64 >= len, end);
        if self.pos + self.partial.len() as u64 >= len {
            self.stop_at(self.pos);
        }
        Ok(bytes.len())
    }

    /// Keeps requests ahead of `at`: a small one first, then more and larger ones. Says whether it made
    /// one.
    fn request(&mut self, file: &Rc<DiskFile>, at: u64, len: u64, largest: u64) -> bool {
        let first = (largest / IO_DEPTH as u64).next_multiple_of(TRIM_BLOCK_BYTES);
        if self.pieces.is_empty() {
            self.requested = at - at % TRIM_BLOCK_BYTES;
        }
        self.window = match AHEAD_BYTES.get() < EXECUTOR_READ_AHEAD_BYTES {
            true => (2 * self.window).clamp(first, READ_WINDOW_BYTES.max(first)),
            false => first,
        };
        let piece = (self.window / IO_DEPTH as u64)
            .next_multiple_of(TRIM_BLOCK_BYTES)
            .clamp(first, largest);
        let end = len.next_multiple_of(TRIM_BLOCK_BYTES);
        let before = self.requested;
        while self.requested < end
            && (self.pieces.is_empty() || self.requested + piece <= at + self.window)
        {
            let (pos, file) = (self.requested, file.clone());
            let want = piece.min(end - pos);
            self.pieces.push_back(Piece {
                at: pos,
                read: glommio::spawn_local(async move { file.read(pos, want as usize).await }),
                bytes: Ahead::new(want),
            });
            self.requested += want;
        }
        self.requested > before
    }

    /// Nothing more is to be had up to here; the next request starts afresh.
    fn stop_at(&mut self, pos: u64) {
        self.pos = pos;
        self.partial.clear();
        self.need = 0;
        self.pieces.clear();
    }

    fn decode(&mut self, mut rest: &[u8], last: bool, end: Offset) {
        // First the frame that began in an earlier piece.
        while !self.partial.is_empty() {
            let take = self.need.saturating_sub(self.partial.len()).min(rest.len());
            self.partial.extend_from_slice(&rest[..take]);
            rest = &rest[take..];
            if self.partial.len() < self.need && !(last && rest.is_empty()) {
                return;
            }
            let partial = std::mem::take(&mut self.partial);
            let used = self.frames(&partial, last && rest.is_empty(), end);
            self.partial = partial[used..].to_vec();
        }
        let used = self.frames(rest, last, end);
        self.partial = rest[used..].to_vec();
    }

    /// Decodes whole frames; returns how many bytes it used. Where more bytes are needed for the next
    /// frame, `need` says how many in all.
    fn frames(&mut self, bytes: &[u8], last: bool, end: Offset) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match frame_at(&bytes[at..], self.seed) {
                Step::Skip(n) | Step::Bad(n) => at += n,
                Step::More(_) if last => at = bytes.len(),
                Step::More(n) => {
                    self.need = n;
                    break;
                }
                Step::Frame(header, body) => {
                    self.take(&header, &bytes[at + body.start..at + body.end], end);
                    at += header.total_len() as usize;
                }
            }
        }
        self.pos += at as u64;
        at
    }

    fn take(&mut self, header: &FrameHeader, payload: &[u8], end: Offset) {
        if header.end() <= self.next {
            return;
        }
        let batch = Batch::decode(payload, header.first_time, header.record_count);
        let batch = Arc::new(batch);
        for i in 0..batch.len() {
            let offset = header.base.plus(i as u64);
            if offset >= self.next
                && offset < end
                && let Some(record) = StoredRecord::new(&batch, i)
            {
                self.bytes += record.content_len();
                self.records.push_back((offset, record));
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
        return Step::More(FRAME_ALIGN_BYTES);
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
