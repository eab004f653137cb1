//! The frame: one write unit of a segment, N records behind one header.
//!
//! What this file keeps true: a header is accepted only with its own CRC right, so its length can be
//! trusted even when the payload is damaged; both CRCs are seeded with the segment's identity.

use super::{put, u16_at, u32_at, u64_at};
use crate::limits::{
    FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, MAX_FRAME_PAYLOAD_BYTES, MAX_FRAME_RECORDS, MAX_OFFSET,
};
use narad_core::ids::{Offset, Origin, WalId, WalSeq, WallMs};

/// First four bytes of a frame.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"NRF1");

const FLAG_ORIGIN: u16 = 1;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of records behind the header.
    pub payload_len: u32,
    /// CRC32C of the payload, seeded with the segment's identity.
    pub payload_crc: u32,
    /// Records in the payload, at least one.
    pub record_count: u32,
    /// Offset of the first record.
    pub base: Offset,
    /// First offset that was not known to be durable when this frame was written.
    pub durable_end: Offset,
    /// Time of the first record.
    pub first_time: WallMs,
    /// Latest time of any record in the frame.
    pub last_time: WallMs,
    /// Where a dispatched batch came from.
    pub origin: Option<Origin>,
}

impl FrameHeader {
    /// Offset after the last record.
    #[must_use]
    pub const fn end(&self) -> Offset {
        Offset(self.base.0 + self.record_count as u64)
    }

    /// Bytes that the frame takes in the file, with its padding to the frame alignment.
    #[must_use]
    pub const fn total_len(&self) -> u64 {
        frame_len(self.payload_len as usize) as u64
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self, seed: u32) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        put(&mut bytes, 0, &FRAME_MAGIC.to_le_bytes());
        put(&mut bytes, 8, &self.payload_len.to_le_bytes());
        put(&mut bytes, 12, &self.payload_crc.to_le_bytes());
        put(&mut bytes, 16, &self.record_count.to_le_bytes());
        put(&mut bytes, 24, &self.base.0.to_le_bytes());
        put(&mut bytes, 32, &self.durable_end.0.to_le_bytes());
        put(&mut bytes, 40, &self.first_time.0.to_le_bytes());
        put(&mut bytes, 48, &self.last_time.0.to_le_bytes());
        if let Some(origin) = self.origin {
            put(&mut bytes, 20, &FLAG_ORIGIN.to_le_bytes());
            put(&mut bytes, 56, &origin.wal.0.to_le_bytes());
            put(&mut bytes, 64, &origin.seq.0.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(seed, &bytes[8..]);
        put(&mut bytes, 4, &crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` unless it is one of the segment with this seed.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        if bytes.len() < FRAME_HEADER_BYTES || u32_at(bytes, 0) != FRAME_MAGIC {
            return None;
        }
        let bytes = &bytes[..FRAME_HEADER_BYTES];
        if crc32c::crc32c_append(seed, &bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        let header = Self {
            payload_len: u32_at(bytes, 8),
            payload_crc: u32_at(bytes, 12),
            record_count: u32_at(bytes, 16),
            base: Offset(u64_at(bytes, 24)),
            durable_end: Offset(u64_at(bytes, 32)),
            first_time: WallMs(u64_at(bytes, 40)),
            last_time: WallMs(u64_at(bytes, 48)),
            origin: (u16_at(bytes, 20) & FLAG_ORIGIN != 0).then(|| Origin {
                wal: WalId(u64_at(bytes, 56)),
                seq: WalSeq(u64_at(bytes, 64)),
            }),
        };
        let sane = (1..=MAX_FRAME_RECORDS as u32).contains(&header.record_count)
            && header.payload_len as usize <= MAX_FRAME_PAYLOAD_BYTES
            && header.base.0 <= MAX_OFFSET
            && header.durable_end <= header.base;
        sane.then_some(header)
    }
}

/// Bytes that a frame with this payload takes in the file.
#[must_use]
pub const fn frame_len(payload_len: usize) -> usize {
    (FRAME_HEADER_BYTES + payload_len).next_multiple_of(FRAME_ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_bound_to_its_segment_and_no_flipped_bit_passes() {
        let header = FrameHeader {
            payload_len: 10,
            payload_crc: 77,
            record_count: 2,
            base: Offset(50),
            durable_end: Offset(48),
            first_time: WallMs(1),
            last_time: WallMs(2),
            origin: Some(Origin {
                wal: WalId(3),
                seq: WalSeq(4),
            }),
        };
        let bytes = header.encode(9);
        assert_eq!(FrameHeader::decode(&bytes, 9), Some(header));
        assert_eq!(FrameHeader::decode(&bytes, 10), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&bad, 9), None, "bit {bit}");
        }
    }
}
