//! One group write: laid out in aligned buffers, and on its way to the disk while the rest is laid out.
//!
//! What this file keeps true: every byte of the buffers is written, padding with zeros; the buffers
//! together are a whole number of blocks; a buffer is sent when nothing in it can change any more; when
//! this returns, failed or not, no write of the group is under way.

use super::append::{Pending, Place, now_ms};
use super::cache::CachedFrame;
use super::state::Store;
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::frame::{FrameHeader, frame_len};
use crate::format::segment::SegmentHeader;
use crate::limits::{
    CRC_STEP_BYTES, FRAME_HEADER_BYTES, GROUP_CHUNK_BYTES, SEGMENT_HEADER_BYTES, TRIM_BLOCK_BYTES,
};
use futures::future::join_all;
use glommio::io::DmaBuffer;
use narad_core::ids::Offset;
use std::rc::Rc;

impl Store {
    /// Lays the group out, frames back to back behind the segment header when the segment is new, and
    /// writes it. Not synced. `before` is the digest of the segment up to here.
    pub(crate) async fn write_frames(
        &self,
        group: &[Pending],
        place: &Place,
        len: usize,
        durable: Offset,
        before: u32,
    ) -> Result<Written, StorageError> {
        let id = place.fresh.unwrap_or_else(|| {
            let state = self.state.borrow();
            state.segments[state.segments.len() - 1].id
        });
        let ident = self.ident(id);
        let largest = self.options.io_chunk_bytes.min(GROUP_CHUNK_BYTES);
        let mut out = GroupBuffer::new(place, len, largest);
        if place.fresh.is_some() {
            let header = SegmentHeader {
                ident,
                block: place.file.block() as u32,
                created_ms: now_ms(),
            };
            out.put(&header.encode());
            out.zeros(place.file.block() as usize - SEGMENT_HEADER_BYTES);
        }
        let mut positions = Vec::with_capacity(group.len());
        for pending in group {
            positions.push(place.pos + out.at as u64);
            out.frame(pending, ident.seed(), durable).await;
        }
        let padding = len - out.at;
        out.zeros(padding);
        // Freed while the disk works.
        let spent = self.state.borrow_mut().cache.take_spent();
        let digest = out.finish(before, spent).await?;
        Ok(Written {
            len: len as u64,
            positions,
            padding,
            digest,
        })
    }
}

/// One group that is on the disk, not yet durable.
pub(crate) struct Written {
    pub(crate) len: u64,
    /// Where each frame begins in the file.
    pub(crate) positions: Vec<u64>,
    pub(crate) padding: usize,
    /// Digest of the segment with the group.
    pub(crate) digest: u32,
}

type Write = glommio::Task<Result<(), StorageError>>;

/// Aligned buffers that together hold one group.
struct GroupBuffer {
    file: Rc<DiskFile>,
    pos: u64,
    chunks: Vec<Rc<DmaBuffer>>,
    chunk_len: usize,
    at: usize,
    /// Chunks before this one were sent, except the one that a frame's header held back.
    looked: usize,
    sent: Vec<bool>,
    writes: Vec<Write>,
}

impl GroupBuffer {
    fn new(place: &Place, len: usize, about: usize) -> Self {
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
            file: place.file.clone(),
            pos: place.pos,
            sent: vec![false; chunks.len()],
            chunks,
            chunk_len,
            at: 0,
            looked: 0,
            writes: Vec::new(),
        }
    }

    /// Adds a frame. What is full goes to the disk meanwhile; the chunk with the header, which holds the
    /// checksum of all that follows, stays until the end.
    async fn frame(&mut self, pending: &Pending, seed: u32, durable: Offset) {
        let head = self.at;
        let body = head + FRAME_HEADER_BYTES;
        self.zeros(FRAME_HEADER_BYTES);
        let (mut crc, mut crc_at) = (seed, body);
        for record in pending.records.iter() {
            record.encode(pending.first_time, &mut |bytes| self.put(bytes));
            if self.at - crc_at >= CRC_STEP_BYTES {
                // Soon after it was copied, while the processor has it at hand.
                crc = self.crc(crc, crc_at, self.at - crc_at);
                crc_at = self.at;
                if self.send_full(head / self.chunk_len) {
                    disk::submit().await;
                }
            }
        }
        let payload_len = self.at - body;
        assert!(payload_len == pending.payload_len, "encoded length differs");
        let header = FrameHeader {
            payload_len: payload_len as u32,
            payload_crc: self.crc(crc, crc_at, self.at - crc_at),
            record_count: pending.records.len() as u32,
            base: pending.base,
            durable_end: durable,
            first_time: pending.first_time,
            last_time: pending.last_time,
            origin: pending.origin,
        };
        self.patch(head, &header.encode(seed));
        self.zeros(frame_len(payload_len) - FRAME_HEADER_BYTES - payload_len);
    }

    /// Sends every full chunk but `held`, and says whether there was one.
    fn send_full(&mut self, held: usize) -> bool {
        let full = self.at / self.chunk_len;
        let before = self.writes.len();
        for i in (self.looked..full).filter(|i| *i != held) {
            self.send(i);
        }
        self.looked = full;
        self.writes.len() > before
    }

    fn send(&mut self, i: usize) {
        self.sent[i] = true;
        let (file, buffer) = (self.file.clone(), self.chunks[i].clone());
        let pos = self.pos + (i * self.chunk_len) as u64;
        self.writes.push(glommio::spawn_local(async move {
            file.write(buffer, pos).await
        }));
    }

    /// Sends the rest and waits for all of it. Returns the digest of the segment up to the group's end.
    async fn finish(mut self, before: u32, spent: Vec<CachedFrame>) -> Result<u32, StorageError> {
        if self.chunks.len() == 1 {
            // No other write could be waited for, and the digest of so little takes no time.
            let digest = self.digest(before);
            self.file.write(self.chunks[0].clone(), self.pos).await?;
            return Ok(digest);
        }
        for i in 0..self.chunks.len() {
            if !self.sent[i] {
                self.send(i);
            }
        }
        disk::submit().await;
        let digest = self.digest(before);
        drop(spent);
        // Also behind one that failed all have ended before it is told: the log is reopened, and written
        // to the same bytes, after that.
        let ended = join_all(self.writes).await;
        self.chunks.into_iter().for_each(disk::recycle);
        ended.into_iter().collect::<Result<(), _>>()?;
        Ok(digest)
    }

    fn digest(&self, before: u32) -> u32 {
        let chunks = self.chunks.iter();
        chunks.fold(before, |crc, c| crc32c::crc32c_append(crc, c.as_bytes()))
    }

    fn put(&mut self, bytes: &[u8]) {
        self.patch(self.at, bytes);
        self.at += bytes.len();
    }

    fn zeros(&mut self, mut len: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while len > 0 {
            let part = len.min(ZEROS.len());
            self.put(&ZEROS[..part]);
            len -= part;
        }
    }

    fn patch(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let chunk = Rc::get_mut(&mut self.chunks[at / self.chunk_len])
                .expect("a chunk that was sent does not change");
            let chunk = &mut chunk.as_bytes_mut()[at % self.chunk_len..];
            let len = bytes.len().min(chunk.len());
            chunk[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            at += len;
        }
    }

    fn crc(&self, mut crc: u32, mut at: usize, mut len: usize) -> u32 {
        while len > 0 {
            let chunk = &self.chunks[at / self.chunk_len].as_bytes()[at % self.chunk_len..];
            let part = len.min(chunk.len());
            crc = crc32c::crc32c_append(crc, &chunk[..part]);
            at += part;
            len -= part;
        }
        crc
    }
}
