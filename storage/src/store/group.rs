//! One group write: where its frames lie, and bringing them to the disk.
//!
//! What this file keeps true: every byte of the group is written, padding with zeros; each write begins
//! and ends on a block; a large batch is written from the memory in which it is, smaller ones are copied
//! together; a group of one write is durable with it, others have to be synced; when this returns, failed or not, no write of the group is under way.

use super::append::{Pending, Place, now_ms};
use super::state::Store;
use crate::aligned::{Aligned, Shared};
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::frame::{FrameHeader, frame_len};
use crate::format::segment::{SegmentHeader, SegmentIdent};
use crate::limits::{
    DIRECT_SLACK_SHARE, FRAME_HEADER_BYTES, GROUP_CHUNK_BYTES, PAGE_GROUP_BYTES,
    SEGMENT_HEADER_BYTES, TRIM_BLOCK_BYTES,
};
use futures::future::join_all;
use glommio::io::DmaBuffer;
use narad_core::ids::Offset;
use std::ops::Range;
use std::rc::Rc;

const ZEROS: [u8; TRIM_BLOCK_BYTES as usize] = [0; TRIM_BLOCK_BYTES as usize];

/// Where the frames of a group lie, counted from where the group begins.
pub(crate) struct Layout {
    runs: Vec<Run>,
    /// Bytes up to the end of the last frame's block: by so much the segment grows, whatever the group's
    /// size is, so that recovery finds the same length again.
    pub(crate) len: usize,
    /// Where the zeros behind it end.
    pub(crate) end: usize,
    /// Zeros in front that are there already.
    skipped: usize,
    /// Zeros that fill blocks and pages.
    padding: usize,
}

enum Run {
    /// Frames that are copied together, behind the segment's header where there is one.
    Copied {
        at: usize,
        len: usize,
        frames: Range<usize>,
    },
    /// One that is written from its own memory.
    Direct { at: usize, len: usize, frame: usize },
}

impl Run {
    const fn len(&self) -> usize {
        match self {
            Self::Copied { len, .. } | Self::Direct { len, .. } => *len,
        }
    }
}

impl Layout {
    /// A large group begins and ends on a page: a disk whose physical block is larger than its logical
    /// one takes several times as long for many bytes that begin in the middle of one. Below `filled`
    /// everything behind the last group is zeros.
    pub(crate) fn of(group: &[Pending], place: &Place, filled: u64, io_chunk_bytes: usize) -> Self {
        let block = place.file.block();
        let frames = group.iter().map(|p| frame_len(p.batch.payload_len()));
        let used: usize = frames.sum();
        let unit = match used < PAGE_GROUP_BYTES {
            true => block,
            false => TRIM_BLOCK_BYTES,
        };
        let mut laying = Laying {
            pos: place.pos,
            unit,
            at: 0,
            frames_end: 0,
            runs: Vec::with_capacity(1),
            open: None,
        };
        let head = if place.fresh.is_some() { block } else { 0 } as usize;
        if head > 0 {
            laying.open = Some((0, 0..0));
            laying.at = head;
        }
        let gap = (place.pos.next_multiple_of(unit) - place.pos) as usize;
        let skipped = if place.pos + gap as u64 <= filled {
            gap
        } else {
            0
        };
        if gap > 0 {
            // Behind frames that end in the middle of a page.
            laying.open = (skipped == 0).then_some((0, 0..0));
            laying.at = gap;
            laying.close();
        }
        let largest = io_chunk_bytes + io_chunk_bytes / DIRECT_SLACK_SHARE;
        for (frame, pending) in group.iter().enumerate() {
            let total = frame_len(pending.batch.payload_len());
            if pending.batch.is_aligned() && total <= largest {
                laying.direct(frame, total);
            } else {
                laying.copied(frame, total);
            }
        }
        let len = laying.frames_end.next_multiple_of(block as usize);
        laying.close();
        let written: usize = laying.runs.iter().map(Run::len).sum();
        Self {
            len,
            end: laying.at,
            skipped,
            padding: written - head - used,
            runs: laying.runs,
        }
    }
}

/// A layout that is being made.
struct Laying {
    pos: u64,
    unit: u64,
    at: usize,
    frames_end: usize,
    runs: Vec<Run>,
    /// A run of copied frames that goes on.
    open: Option<(usize, Range<usize>)>,
}

impl Laying {
    fn copied(&mut self, frame: usize, total: usize) {
        let (_, frames) = self.open.get_or_insert((self.at, frame..frame));
        if frames.start == frames.end {
            frames.start = frame;
        }
        frames.end = frame + 1;
        self.at += total;
        self.frames_end = self.at;
    }

    fn direct(&mut self, frame: usize, total: usize) {
        self.close();
        let at = self.at;
        self.at += total;
        self.frames_end = self.at;
        self.align();
        let len = self.at - at;
        self.runs.push(Run::Direct { at, len, frame });
    }

    /// Ends the run that goes on.
    fn close(&mut self) {
        self.align();
        if let Some((at, frames)) = self.open.take() {
            let len = self.at - at;
            self.runs.push(Run::Copied { at, len, frames });
        }
    }

    fn align(&mut self) {
        let end = self.pos + self.at as u64;
        self.at = (end.next_multiple_of(self.unit) - self.pos) as usize;
    }
}

/// One group that is on the disk.
pub(crate) struct Written {
    /// It is durable already; otherwise the file has to be synced.
    pub(crate) durable: bool,
    /// Bytes by which the segment grows.
    pub(crate) len: u64,
    /// Bytes behind where the group began up to which there is nothing but zeros behind it.
    pub(crate) end: u64,
    /// Bytes that were written.
    pub(crate) bytes: u64,
    /// Where each frame begins in the file.
    pub(crate) positions: Vec<u64>,
    pub(crate) padding: usize,
    /// Digest of the segment with the group.
    pub(crate) digest: u32,
}

impl Store {
    /// Lays the group out and writes it. Not synced. `before` is the digest of the segment up to here.
    pub(crate) async fn write_frames(
        &self,
        group: &mut [Pending],
        place: &Place,
        layout: Layout,
        durable: Offset,
        before: u32,
    ) -> Result<Written, StorageError> {
        let id = place.fresh.unwrap_or_else(|| {
            let state = self.state.borrow();
            state.segments[state.segments.len() - 1].id
        });
        let mut writing = Writing {
            file: place.file.clone(),
            pos: place.pos,
            ident: self.ident(id),
            durable,
            chunk_bytes: self.options.io_chunk_bytes.min(GROUP_CHUNK_BYTES),
            len: layout.len,
            digest: crc32c::crc32c_append(before, &ZEROS[..layout.skipped]),
            positions: Vec::with_capacity(group.len()),
            held: Vec::new(),
            held_at: 0,
            held_len: 0,
            writes: Vec::new(),
            chunks: Vec::new(),
        };
        for run in &layout.runs {
            match run {
                Run::Copied { at, len, frames } => {
                    let head = place.fresh.is_some() && *at == 0;
                    writing
                        .copied((*at, *len), &group[frames.clone()], head)
                        .await;
                }
                Run::Direct { at, len, frame } => {
                    writing.direct((*at, *len), (*frame, &mut group[*frame]));
                }
            }
        }
        let (durable, digest, positions) = writing.finish(group).await?;
        Ok(Written {
            durable,
            len: layout.len as u64,
            end: layout.end as u64,
            bytes: layout.runs.iter().map(|run| run.len() as u64).sum(),
            positions,
            padding: layout.padding,
            digest,
        })
    }
}

/// What is to be written at a position of the file.
enum Piece {
    Chunk(Rc<DmaBuffer>),
    /// The memory of the batch with this number in the group.
    Frame(usize, Shared),
}

impl Piece {
    fn buffer(&self) -> Rc<DmaBuffer> {
        match self {
            Self::Chunk(chunk) => chunk.clone(),
            Self::Frame(_, shared) => shared.buffer(),
        }
    }
}

/// The memory of batches that were written; `None` when it did not come back.
type Back = Vec<(usize, Option<Aligned>)>;

/// Writes what lies behind one another from `pos` on.
async fn write(
    file: Rc<DiskFile>,
    pieces: Vec<Piece>,
    pos: u64,
    durably: bool,
) -> Result<Back, StorageError> {
    let buffers: Vec<_> = pieces.iter().map(Piece::buffer).collect();
    let written = match <[_; 1]>::try_from(buffers) {
        Ok([one]) if durably => file.write_durably(one, pos).await,
        Ok([one]) => file.write(one, pos).await,
        Err(several) => file.write_together(&several, pos, durably).await,
    };
    written?;
    let frames = pieces.into_iter().filter_map(|piece| match piece {
        Piece::Frame(frame, shared) => Some((frame, shared.back())),
        Piece::Chunk(_) => None,
    });
    Ok(frames.collect())
}

/// A group on its way to the disk.
struct Writing {
    file: Rc<DiskFile>,
    pos: u64,
    ident: SegmentIdent,
    durable: Offset,
    chunk_bytes: usize,
    /// Of the group: what is behind it is not in the digest.
    len: usize,
    digest: u32,
    positions: Vec<u64>,
    /// Pieces that are not on their way yet, and where the first begins: the more there are behind one another, the fewer
    /// requests.
    held: Vec<Piece>,
    held_at: u64,
    held_len: u64,
    writes: Vec<glommio::Task<Result<Back, StorageError>>>,
    /// To be used again.
    chunks: Vec<Rc<DmaBuffer>>,
}

impl Writing {
    fn header(&self, pending: &Pending) -> [u8; FRAME_HEADER_BYTES] {
        let seed = self.ident.seed();
        let batch = &pending.batch;
        FrameHeader {
            payload_len: batch.payload_len() as u32,
            payload_crc: batch.crc(seed),
            record_count: batch.len() as u32,
            base: pending.base,
            durable_end: self.durable,
            first_time: batch.first_time(),
            last_time: batch.last_time(),
            origin: pending.origin,
        }
        .encode(seed)
    }

    fn send(&mut self, pieces: Vec<Piece>, pos: u64) {
        let write = write(self.file.clone(), pieces, pos, false);
        self.writes.push(glommio::spawn_local(write));
    }

    /// Keeps this piece for later; what was kept and is not right in front of it is sent.
    fn hold(&mut self, piece: Piece, pos: u64) {
        if self.held.is_empty() || self.held_at + self.held_len != pos {
            let before = std::mem::take(&mut self.held);
            if !before.is_empty() {
                self.send(before, self.held_at);
            }
            (self.held_at, self.held_len) = (pos, 0);
        }
        self.held_len += piece.buffer().len() as u64;
        self.held.push(piece);
    }

    fn direct(&mut self, (at, len): (usize, usize), (frame, pending): (usize, &mut Pending)) {
        let pos = self.pos + at as u64;
        self.positions.push(pos);
        let header = self.header(pending);
        let counted = len.min(self.len - at);
        let behind = counted - FRAME_HEADER_BYTES - pending.batch.payload_len();
        self.digest = crc32c::crc32c_append(self.digest, &header);
        self.digest = pending.batch.crc(self.digest);
        self.digest = crc32c::crc32c_append(self.digest, &ZEROS[..behind]);
        let aligned = pending.batch.take_frame(&header, len);
        self.hold(Piece::Frame(frame, aligned.share()), pos);
    }

    /// Copies frames together. What is full goes to the disk while the rest is laid out.
    async fn copied(&mut self, (at, len): (usize, usize), group: &[Pending], head: bool) {
        let mut out = Chunks::new(len, self.chunk_bytes);
        let pos = self.pos + at as u64;
        if head {
            let block = self.file.block();
            let header = SegmentHeader {
                ident: self.ident,
                block: block as u32,
                created_ms: now_ms(),
            };
            out.put(&header.encode());
            out.zeros(block as usize - SEGMENT_HEADER_BYTES);
        }
        for pending in group {
            self.positions.push(pos + out.at as u64);
            let payload = pending.batch.payload();
            out.put(&self.header(pending));
            for part in payload.chunks(out.chunk_len) {
                out.put(part);
                if self.send_full(&mut out, pos) {
                    disk::submit().await;
                }
            }
            out.zeros(frame_len(payload.len()) - FRAME_HEADER_BYTES - payload.len());
        }
        out.zeros(len - out.at);
        self.send_full(&mut out, pos);
        let mut counted = len.min(self.len - at);
        for chunk in out.chunks {
            let bytes = &chunk.as_bytes()[..chunk.len().min(counted)];
            self.digest = crc32c::crc32c_append(self.digest, bytes);
            counted -= bytes.len();
            self.chunks.push(chunk);
        }
    }

    /// Sends every chunk that is full now, and says whether a write began.
    fn send_full(&mut self, out: &mut Chunks, pos: u64) -> bool {
        let before = self.writes.len();
        while out.sent < out.chunks.len() && out.end_of(out.sent) <= out.at {
            let at = pos + (out.sent * out.chunk_len) as u64;
            let piece = Piece::Chunk(out.chunks[out.sent].clone());
            match out.chunks.len() {
                1 => self.hold(piece, at),
                _ => self.send(vec![piece], at),
            }
            out.sent += 1;
        }
        self.writes.len() > before
    }

    /// Waits for all of it. Returns whether it is durable, the digest up to the group's end, and where the
    /// frames lie.
    async fn finish(self, group: &mut [Pending]) -> Result<(bool, u32, Vec<u64>), StorageError> {
        // Several writes that are each durable would be as many syncs.
        let durable = self.writes.is_empty() && !self.held.is_empty();
        let last = match self.held.is_empty() {
            true => Ok(Vec::new()),
            false => write(self.file.clone(), self.held, self.held_at, durable).await,
        };
        // Also behind one that failed all have ended before it is told: the log is reopened, and written
        // to the same bytes, after that.
        let mut ended = join_all(self.writes).await;
        ended.push(last);
        self.chunks.into_iter().for_each(disk::recycle);
        for back in ended {
            for (frame, aligned) in back? {
                if let Some(aligned) = aligned {
                    group[frame].batch.put_back(aligned);
                }
            }
        }
        Ok((durable, self.digest, self.positions))
    }
}

/// Aligned buffers that together hold frames that are copied.
struct Chunks {
    chunks: Vec<Rc<DmaBuffer>>,
    chunk_len: usize,
    at: usize,
    /// So many are on their way and do not change any more.
    sent: usize,
}

impl Chunks {
    fn new(len: usize, about: usize) -> Self {
        // Equal pieces: a small one at the end would be a request of its own.
        let chunk_len = len
            .div_ceil((len / about).max(1))
            .next_multiple_of(TRIM_BLOCK_BYTES as usize);
        let mut chunks = Vec::new();
        let mut left = len;
        while left > 0 {
            chunks.push(Rc::new(disk::write_buffer(left.min(chunk_len))));
            left -= left.min(chunk_len);
        }
        Self {
            chunks,
            chunk_len,
            at: 0,
            sent: 0,
        }
    }

    fn end_of(&self, chunk: usize) -> usize {
        chunk * self.chunk_len + self.chunks[chunk].len()
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let chunk = Rc::get_mut(&mut self.chunks[self.at / self.chunk_len])
                .expect("a chunk that was sent does not change");
            let chunk = &mut chunk.as_bytes_mut()[self.at % self.chunk_len..];
            let len = bytes.len().min(chunk.len());
            chunk[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            self.at += len;
        }
    }

    fn zeros(&mut self, mut len: usize) {
        while len > 0 {
            let part = len.min(ZEROS.len());
            self.put(&ZEROS[..part]);
            len -= part;
        }
    }
}
