//! Laying out one group write in aligned buffers.
//!
//! What this file keeps true: every byte of the buffers is written, padding with zeros; the buffers
//! together are a whole number of blocks.

use super::append::{Pending, Place, now_ms};
use super::state::Store;
use crate::disk;
use crate::format::frame::{FrameHeader, frame_len};
use crate::format::segment::SegmentHeader;
use crate::limits::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use glommio::io::DmaBuffer;
use narad_core::ids::Offset;
use std::rc::Rc;

impl Store {
    /// Lays the group out: frames back to back, behind the segment header when the segment is new.
    pub(crate) fn encode(
        &self,
        group: &[Pending],
        place: &Place,
        len: usize,
        head: usize,
        durable: Offset,
    ) -> Written {
        let mut out = GroupBuffer::new(len, self.options.io_chunk_bytes);
        let id = place.fresh.unwrap_or_else(|| {
            let state = self.state.borrow();
            state.segments[state.segments.len() - 1].id
        });
        let ident = self.ident(id);
        let seed = ident.seed();
        if head > 0 {
            let header = SegmentHeader {
                ident,
                block: place.file.block() as u32,
                created_ms: now_ms(),
            };
            out.put(&header.encode());
            out.zeros(head - SEGMENT_HEADER_BYTES);
        }
        let mut positions = Vec::with_capacity(group.len());
        for pending in group {
            let at = out.at;
            positions.push(place.pos + at as u64);
            out.zeros(FRAME_HEADER_BYTES);
            for record in pending.records.iter() {
                record.encode(pending.first_time, &mut |bytes| out.put(bytes));
            }
            let payload_len = out.at - at - FRAME_HEADER_BYTES;
            assert!(payload_len == pending.payload_len, "encoded length differs");
            let header = FrameHeader {
                payload_len: payload_len as u32,
                payload_crc: out.crc(seed, at + FRAME_HEADER_BYTES, payload_len),
                record_count: pending.records.len() as u32,
                base: pending.base,
                durable_end: durable,
                first_time: pending.first_time,
                last_time: pending.last_time,
                origin: pending.origin,
            };
            out.patch(at, &header.encode(seed));
            out.zeros(frame_len(payload_len) - FRAME_HEADER_BYTES - payload_len);
        }
        let padding = len - out.at;
        out.zeros(padding);
        Written {
            chunks: out.chunks.into_iter().map(Rc::new).collect(),
            positions,
            padding,
            digest: 0,
        }
    }
}

/// One group in memory, as it goes to the disk.
pub(crate) struct Written {
    pub(crate) chunks: Vec<Rc<DmaBuffer>>,
    /// Where each frame begins in the file.
    pub(crate) positions: Vec<u64>,
    pub(crate) padding: usize,
    /// Digest of the segment with the group, once computed.
    pub(crate) digest: u32,
}

/// Aligned buffers that together hold one group.
struct GroupBuffer {
    chunks: Vec<DmaBuffer>,
    chunk_len: usize,
    at: usize,
}

impl GroupBuffer {
    fn new(len: usize, chunk_len: usize) -> Self {
        let mut chunks = Vec::new();
        let mut left = len;
        while left > 0 {
            chunks.push(disk::buffer(left.min(chunk_len)));
            left -= left.min(chunk_len);
        }
        Self {
            chunks,
            chunk_len,
            at: 0,
        }
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
            let chunk = &mut self.chunks[at / self.chunk_len].as_bytes_mut()[at % self.chunk_len..];
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
