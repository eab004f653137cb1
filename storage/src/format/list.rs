//! `segments.list`: what is known of every sealed segment, of the active one up to a checkpoint, and
//! the re-dispatch marks up to there. Also the footer that a sealed segment carries: its sparse index.
//!
//! What this file keeps true: the list is replaced as a whole; it is believed as a whole or not at
//! all, and without it everything in it can be computed again from the segments.

use super::segment::Owner;
use super::{FormatError, put, u32_at, u64_at};
use crate::limits::{
    FORMAT_VERSION, MAX_FRAME_RECORDS, MAX_LIST_BYTES, MAX_MARKS, MAX_OFFSET, MAX_SEGMENT_SUM,
    MAX_SEGMENTS,
};
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, WalId, WalSeq, WallMs};
use std::collections::BTreeMap;

const LIST_MAGIC: &[u8; 8] = b"NARADLST";
const FOOTER_MAGIC: &[u8; 8] = b"NARADFTR";
const HEAD: usize = 64;
const ENTRY: usize = 96;
const MARK: usize = 24;
const FOOTER_HEAD: usize = 64;
const POINT: usize = 24;
const FLAG_ACTIVE: u32 = 1;

/// What a scan of a segment up to some length adds up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes from the start of the file.
    pub len: u64,
    /// CRC32C of those bytes.
    pub digest: u32,
    /// Offset after the last record in them.
    pub end: Offset,
    /// Readable records.
    pub records: u64,
    /// Offsets whose records are damaged or missing.
    pub missing: u64,
    /// Earliest time of a frame's first record; `u64::MAX` without records.
    pub first_time: WallMs,
    /// Latest time of any record.
    pub last_time: WallMs,
}

impl Totals {
    /// Nothing yet, of a segment that begins at `base`.
    #[must_use]
    pub const fn empty(base: Offset) -> Self {
        Self {
            len: 0,
            digest: 0,
            end: base,
            records: 0,
            missing: 0,
            first_time: WallMs(u64::MAX),
            last_time: WallMs(0),
        }
    }

    /// The numbers are some that a segment which begins at `base` can have.
    #[must_use]
    pub const fn possible(&self, base: Offset) -> bool {
        base.0 <= self.end.0
            && self.end.0 <= MAX_END
            && self.len <= MAX_SEGMENT_SUM
            && self.records <= MAX_SEGMENT_SUM
            && self.missing <= MAX_SEGMENT_SUM
    }
}

/// The highest end that a frame can have.
pub(crate) const MAX_END: u64 = MAX_OFFSET + MAX_FRAME_RECORDS as u64;

/// One segment in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// Which segment.
    pub id: SegmentId,
    /// Its sums up to its durable length.
    pub totals: Totals,
    /// Still written to: the file may hold more.
    pub active: bool,
}

/// Highest dispatched sequence by WAL, and the offset after the batch that set it (the age of a mark).
pub type Marks = BTreeMap<WalId, (WalSeq, Offset)>;

/// The whole list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentList {
    /// Whose list it is.
    pub owner: Owner,
    /// Epoch of the copy.
    pub epoch: Epoch,
    /// The segments in order.
    pub entries: Vec<ListEntry>,
    /// Marks of all frames in the listed bytes.
    pub marks: Marks,
}

/// Drops the marks that were not used for longest, down to the bound.
pub fn bound_marks(marks: &mut Marks) {
    while marks.len() > MAX_MARKS {
        let Some(oldest) = marks.iter().min_by_key(|(_, m)| m.1).map(|(wal, _)| *wal) else {
            return;
        };
        marks.remove(&oldest);
    }
}

impl SegmentList {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let len = HEAD + self.entries.len() * ENTRY + self.marks.len() * MARK + 4;
        let mut bytes = vec![0; len];
        put(&mut bytes, 0, LIST_MAGIC);
        put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut bytes, 12, &(self.entries.len() as u32).to_le_bytes());
        self.owner.encode(&mut bytes, 16);
        put(&mut bytes, 32, &self.epoch.0.to_le_bytes());
        put(&mut bytes, 40, &(self.marks.len() as u32).to_le_bytes());
        let mut at = HEAD;
        for entry in &self.entries {
            let t = &entry.totals;
            let words = [
                entry.id.base.0,
                entry.id.epoch.0,
                t.len,
                t.end.0,
                t.records,
                t.missing,
                t.first_time.0,
                t.last_time.0,
            ];
            for (i, word) in words.iter().enumerate() {
                put(&mut bytes, at + 8 * i, &word.to_le_bytes());
            }
            put(&mut bytes, at + 64, &t.digest.to_le_bytes());
            let flags = if entry.active { FLAG_ACTIVE } else { 0 };
            put(&mut bytes, at + 68, &flags.to_le_bytes());
            at += ENTRY;
        }
        for (wal, (seq, end)) in &self.marks {
            put(&mut bytes, at, &wal.0.to_le_bytes());
            put(&mut bytes, at + 8, &seq.0.to_le_bytes());
            put(&mut bytes, at + 16, &end.0.to_le_bytes());
            at += MARK;
        }
        let crc = crc32c::crc32c(&bytes[..at]);
        put(&mut bytes, at, &crc.to_le_bytes());
        bytes
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a whole list that this version knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < HEAD + 4 || bytes.len() > MAX_LIST_BYTES || &bytes[..8] != LIST_MAGIC {
            return Err(FormatError::Damaged("no segment list"));
        }
        let (count, marks) = (u32_at(bytes, 12) as usize, u32_at(bytes, 40) as usize);
        let known = count <= MAX_SEGMENTS && marks <= MAX_MARKS;
        // A list that was written in whole blocks is followed by zeros.
        let crc_at = if known {
            HEAD + count * ENTRY + marks * MARK
        } else {
            bytes.len() - 4
        };
        let rest = bytes.get(crc_at + 4..);
        if rest.is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
            return Err(FormatError::Damaged("segment list has a wrong length"));
        }
        if crc32c::crc32c(&bytes[..crc_at]) != u32_at(bytes, crc_at) {
            return Err(FormatError::Damaged("segment list has a wrong checksum"));
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(FormatError::Newer(version));
        }
        if !known {
            return Err(FormatError::Damaged("segment list has a wrong length"));
        }
        let entries: Vec<_> = (0..count)
            .map(|i| decode_entry(&bytes[HEAD + i * ENTRY..]))
            .collect();
        if entries.iter().any(|e| !e.totals.possible(e.id.base)) {
            return Err(FormatError::Damaged("segment list has impossible numbers"));
        }
        let marks_at = HEAD + count * ENTRY;
        let marks = (0..marks)
            .map(|i| {
                let at = marks_at + i * MARK;
                let mark = (
                    WalSeq(u64_at(bytes, at + 8)),
                    Offset(u64_at(bytes, at + 16)),
                );
                (WalId(u64_at(bytes, at)), mark)
            })
            .collect();
        Ok(Self {
            owner: Owner::decode(bytes, 16).ok_or(FormatError::Damaged("unknown kind of list"))?,
            epoch: Epoch(u64_at(bytes, 32)),
            entries,
            marks,
        })
    }
}

fn decode_entry(bytes: &[u8]) -> ListEntry {
    let word = |i: usize| u64_at(bytes, 8 * i);
    ListEntry {
        id: SegmentId {
            base: Offset(word(0)),
            epoch: Epoch(word(1)),
        },
        totals: Totals {
            len: word(2),
            digest: u32_at(bytes, 64),
            end: Offset(word(3)),
            records: word(4),
            missing: word(5),
            first_time: WallMs(word(6)),
            last_time: WallMs(word(7)),
        },
        active: u32_at(bytes, 68) & FLAG_ACTIVE != 0,
    }
}

/// One entry of a sparse index: a frame that begins at `pos`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexPoint {
    /// Offset of the frame's first record.
    pub base: Offset,
    /// Position of the frame in the file.
    pub pos: u64,
    /// Latest time of any record before this frame in the segment.
    pub time_before: WallMs,
}

/// Bytes of a footer: the sparse index of one sealed segment. It stands behind the segment's durable
/// length, belongs to this node alone and is never copied.
#[must_use]
pub fn encode_footer(seed: u32, durable_len: u64, points: &[IndexPoint]) -> Vec<u8> {
    let mut bytes = vec![0; FOOTER_HEAD + points.len() * POINT + 4];
    put(&mut bytes, 0, FOOTER_MAGIC);
    put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut bytes, 12, &(points.len() as u32).to_le_bytes());
    put(&mut bytes, 16, &durable_len.to_le_bytes());
    let mut at = FOOTER_HEAD;
    for point in points {
        put(&mut bytes, at, &point.base.0.to_le_bytes());
        put(&mut bytes, at + 8, &point.pos.to_le_bytes());
        put(&mut bytes, at + 16, &point.time_before.0.to_le_bytes());
        at += POINT;
    }
    let crc = crc32c::crc32c_append(seed, &bytes[..at]);
    put(&mut bytes, at, &crc.to_le_bytes());
    bytes
}

/// Length of the footer that begins with these bytes, if one does.
#[must_use]
pub fn footer_len(head: &[u8]) -> Option<usize> {
    if head.len() < FOOTER_HEAD || &head[..8] != FOOTER_MAGIC {
        return None;
    }
    (u32_at(head, 12) as usize)
        .checked_mul(POINT)?
        .checked_add(FOOTER_HEAD + 4)
}

/// Reads a footer; `None` when it is missing, damaged or of another segment or length, in which case
/// the index is made again from the segment.
#[must_use]
pub fn decode_footer(bytes: &[u8], seed: u32, durable_len: u64) -> Option<Vec<IndexPoint>> {
    if bytes.len() < FOOTER_HEAD + 4 || &bytes[..8] != FOOTER_MAGIC {
        return None;
    }
    let count = u32_at(bytes, 12) as usize;
    let crc_at = FOOTER_HEAD + count.checked_mul(POINT)?;
    if u32_at(bytes, 8) > FORMAT_VERSION
        || bytes.len() < crc_at.checked_add(4)?
        || u64_at(bytes, 16) != durable_len
        || crc32c::crc32c_append(seed, &bytes[..crc_at]) != u32_at(bytes, crc_at)
    {
        return None;
    }
    Some(
        (0..count)
            .map(|i| {
                let at = FOOTER_HEAD + i * POINT;
                IndexPoint {
                    base: Offset(u64_at(bytes, at)),
                    pos: u64_at(bytes, at + 8),
                    time_before: WallMs(u64_at(bytes, at + 16)),
                }
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{PartitionIndex, PartitionKey, TopicId};

    #[test]
    fn list_and_footer_round_trip_and_no_flipped_bit_passes() {
        let list = SegmentList {
            owner: Owner::Partition(PartitionKey {
                topic: TopicId(1),
                partition: PartitionIndex(2),
            }),
            epoch: Epoch(3),
            entries: vec![ListEntry {
                id: SegmentId {
                    base: Offset(4),
                    epoch: Epoch(3),
                },
                totals: Totals {
                    len: 4096,
                    digest: 5,
                    end: Offset(6),
                    ..Totals::empty(Offset(4))
                },
                active: true,
            }],
            marks: [(WalId(1), (WalSeq(2), Offset(3)))].into(),
        };
        let bytes = list.encode();
        assert_eq!(SegmentList::decode(&bytes), Ok(list));
        let points = [IndexPoint {
            base: Offset(1),
            pos: 512,
            time_before: WallMs(3),
        }];
        let footer = encode_footer(7, 4096, &points);
        assert_eq!(
            decode_footer(&footer, 7, 4096).as_deref(),
            Some(&points[..])
        );
        assert_eq!(decode_footer(&footer, 8, 4096), None);
        assert_eq!(decode_footer(&footer, 7, 8192), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentList::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
