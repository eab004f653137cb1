//! Identity and header of a segment file, and its name.
//!
//! What this file keeps true: a segment's identity follows from its directory and file name as well
//! as from its header, so frames stay verifiable when the header is damaged; the identity seeds every
//! CRC of the segment.

use super::{FormatError, put, u32_at, u64_at};
use crate::limits::{FORMAT_VERSION, MAX_OFFSET, MAX_SEGMENTS, SEGMENT_HEADER_BYTES};
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, PartitionIndex, PartitionKey, TopicId, WalId};
use std::fmt;

const MAGIC: &[u8; 8] = b"NARADSEG";
const _: () = assert!(MAX_SEGMENTS > 1);

/// What a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The log of a partition.
    Partition(PartitionKey),
    /// An ingress WAL.
    Wal(WalId),
}

impl Owner {
    const fn parts(self) -> (u32, u64, u32) {
        match self {
            Self::Partition(key) => (1, key.topic.0, key.partition.0),
            Self::Wal(id) => (2, id.0, 0),
        }
    }

    const fn from_parts(kind: u32, topic: u64, partition: u32) -> Option<Self> {
        match kind {
            1 => Some(Self::Partition(PartitionKey {
                topic: TopicId(topic),
                partition: PartitionIndex(partition),
            })),
            2 => Some(Self::Wal(WalId(topic))),
            _ => None,
        }
    }

    pub(crate) fn encode(self, bytes: &mut [u8], at: usize) {
        let (kind, topic, partition) = self.parts();
        put(bytes, at, &topic.to_le_bytes());
        put(bytes, at + 8, &partition.to_le_bytes());
        put(bytes, at + 12, &kind.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8], at: usize) -> Option<Self> {
        Self::from_parts(
            u32_at(bytes, at + 12),
            u64_at(bytes, at),
            u32_at(bytes, at + 8),
        )
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(key) => write!(f, "partition {key}"),
            Self::Wal(id) => write!(f, "ingress WAL {id:016x}", id = id.0),
        }
    }
}

/// Identity of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdent {
    /// What it belongs to.
    pub owner: Owner,
    /// Its name.
    pub id: SegmentId,
}

impl SegmentIdent {
    /// Start value of every CRC in the segment.
    #[must_use]
    pub fn seed(&self) -> u32 {
        let mut bytes = [0; 40];
        put(&mut bytes, 0, MAGIC);
        self.owner.encode(&mut bytes, 8);
        put(&mut bytes, 24, &self.id.epoch.0.to_le_bytes());
        put(&mut bytes, 32, &self.id.base.0.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

impl fmt::Display for SegmentIdent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "segment {} of epoch {} of {}",
            self.id.base, self.id.epoch, self.owner
        )
    }
}

/// Header of a segment file: the first [`SEGMENT_HEADER_BYTES`] bytes, padded to a whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Whose segment it is.
    pub ident: SegmentIdent,
    /// Logical block of the disk on which it was made, in bytes.
    pub block: u32,
    /// When it was made, milliseconds since the Unix epoch. For people only.
    pub created_ms: u64,
}

impl SegmentHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut bytes, 12, &self.block.to_le_bytes());
        self.ident.owner.encode(&mut bytes, 16);
        put(&mut bytes, 32, &self.ident.id.epoch.0.to_le_bytes());
        put(&mut bytes, 40, &self.ident.id.base.0.to_le_bytes());
        put(&mut bytes, 48, &self.created_ms.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a header that this version knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < SEGMENT_HEADER_BYTES || &bytes[..8] != MAGIC {
            return Err(FormatError::Damaged("no segment header"));
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(FormatError::Damaged("segment header has a wrong checksum"));
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(FormatError::Newer(version));
        }
        let owner =
            Owner::decode(bytes, 16).ok_or(FormatError::Damaged("unknown kind of segment"))?;
        Ok(Self {
            ident: SegmentIdent {
                owner,
                id: SegmentId {
                    epoch: Epoch(u64_at(bytes, 32)),
                    base: Offset(u64_at(bytes, 40)),
                },
            },
            block: u32_at(bytes, 12),
            created_ms: u64_at(bytes, 48),
        })
    }
}

/// Name of a segment's file.
#[must_use]
pub fn file_name(id: SegmentId) -> String {
    format!("{:020}-{}.seg", id.base.0, id.epoch.0)
}

/// Reads a segment's file name; `None` when it is not one.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<SegmentId> {
    let (base, epoch) = name.strip_suffix(".seg")?.split_once('-')?;
    let id = SegmentId {
        base: Offset(base.parse().ok()?),
        epoch: Epoch(epoch.parse().ok()?),
    };
    (file_name(id) == name && id.base.0 <= MAX_OFFSET).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            ident: SegmentIdent {
                owner: Owner::Partition(PartitionKey {
                    topic: TopicId(7),
                    partition: PartitionIndex(3),
                }),
                id: SegmentId {
                    base: Offset(99),
                    epoch: Epoch(2),
                },
            },
            block: 512,
            created_ms: 5,
        }
    }

    #[test]
    fn a_header_survives_the_round_trip_and_no_flipped_bit_passes() {
        let bytes = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn names_round_trip_and_look_alikes_are_refused() {
        let id = header().ident.id;
        assert_eq!(parse_file_name(&file_name(id)), Some(id));
        for bad in [
            "1-2.seg",
            "00000000000000000099-02.seg",
            "x.seg",
            "00000000000000000099-2.tmp",
            "18446744073709551615-2.seg",
        ] {
            assert_eq!(parse_file_name(bad), None, "{bad}");
        }
    }
}
