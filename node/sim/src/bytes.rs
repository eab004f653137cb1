//! The bytes of the segment that is being written to when a process dies, and what the storage's own
//! recovery makes of them.
//!
//! What this file keeps true: bytes that were synced are whole; of the group that was on its way any
//! set of blocks may have reached the disk, and the others read as zeros or as what was in the block
//! in an earlier life. What survives is decided by the real verifier and the real rule for torn
//! tails, and by nothing here.

use crate::disk::{Copy, Record};
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, PartitionKey, WallMs};
use narad_storage::format::frame::{FrameHeader, frame_len};
use narad_storage::format::record::{self, Records};
use narad_storage::format::segment::{Owner, SegmentHeader, SegmentIdent};
use narad_storage::limits::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use narad_storage::scan::{FrameScanner, ScanEvent, torn_tail};

/// Logical block of the disk.
const BLOCK_BYTES: usize = 512;
/// Content of a record: its number, and enough behind it that frames straddle blocks.
const VALUE_BYTES: usize = 300;
/// Bit of a tear: lost blocks hold what was there before, not zeros.
const STALE: u8 = 0x80;

fn frame(ident: SegmentIdent, at: u64, durable: u64, record: Record, out: &mut Vec<u8>) {
    let mut value = vec![0xa5; VALUE_BYTES];
    value[..4].copy_from_slice(&record.to_le_bytes());
    let record = record::Record {
        time: WallMs(1),
        key: None,
        value,
    };
    let mut payload = Vec::new();
    record.encode(record.time, &mut |bytes| payload.extend_from_slice(bytes));
    let seed = ident.seed();
    let header = FrameHeader {
        payload_len: u32::try_from(payload.len()).expect("small"),
        payload_crc: crc32c::crc32c_append(seed, &payload),
        record_count: 1,
        base: Offset(at),
        durable_end: Offset(durable),
        first_time: record.time,
        last_time: record.time,
        origin: None,
    };
    let begin = out.len();
    out.extend_from_slice(&header.encode(seed));
    out.extend_from_slice(&payload);
    assert_eq!(header.encode(seed).len(), FRAME_HEADER_BYTES);
    out.resize(begin + frame_len(payload.len()), 0);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}

/// The segment as it was written: each synced record in a group of its own, then the group that was
/// on its way. Also where that begins.
fn image(ident: SegmentIdent, synced: &[Record], group: &[Record]) -> (Vec<u8>, usize) {
    let header = SegmentHeader {
        ident,
        block: u32::try_from(BLOCK_BYTES).expect("small"),
        created_ms: 1,
    };
    let mut out = header.encode().to_vec();
    assert!(out.len() == SEGMENT_HEADER_BYTES && out.len() <= BLOCK_BYTES);
    pad(&mut out);
    let mut at = ident.id.base.0;
    for record in synced {
        frame(ident, at, at, *record, &mut out);
        pad(&mut out);
        at += 1;
    }
    let (durable, begin) = (at, out.len());
    for record in group {
        frame(ident, at, durable, *record, &mut out);
        at += 1;
    }
    pad(&mut out);
    (out, begin)
}

/// What was in the blocks before: a segment of an earlier life of the same file.
fn stale(ident: SegmentIdent, len: usize) -> Vec<u8> {
    let id = SegmentId {
        epoch: Epoch(ident.id.epoch.0 + 1),
        ..ident.id
    };
    let old: Vec<Record> = (1_000_000..1_000_000 + 32).collect();
    let (mut bytes, _) = image(SegmentIdent { id, ..ident }, &[], &old);
    bytes.resize(len, 0);
    bytes
}

fn tear(ident: SegmentIdent, bytes: &mut [u8], begin: usize, blocks: u8) {
    let before = stale(ident, bytes.len());
    for (number, at) in (begin..bytes.len()).step_by(BLOCK_BYTES).enumerate() {
        if blocks >> (number % 8) & 1 == 1 {
            continue;
        }
        let block = at..at + BLOCK_BYTES;
        if blocks & STALE == 0 {
            bytes[block].fill(0);
        } else {
            bytes[block.clone()].copy_from_slice(&before[block]);
        }
    }
}

/// Opens the bytes as the storage does; `known` is a durable end from elsewhere.
fn recover(ident: SegmentIdent, bytes: &[u8], known: Offset) -> Vec<Record> {
    let mut scanner = FrameScanner::new(ident);
    let (mut frames, mut holes) = (Vec::new(), Vec::new());
    let mut sink = |event| match event {
        ScanEvent::Frame { pos, header, .. } => frames.push((pos, header)),
        ScanEvent::Hole(hole) => holes.push(hole),
        ScanEvent::Repeated { .. } => {}
    };
    scanner.feed(bytes, &mut sink).expect("one segment");
    scanner.finish(&mut sink);
    let durable = known.max(scanner.max_durable_end());
    let cut = torn_tail(&holes, durable).map(|hole| hole.before.len);
    frames.retain(|(pos, _)| cut.is_none_or(|at| *pos < at));
    let mut found = Vec::new();
    for (pos, header) in frames {
        let from = usize::try_from(pos).expect("small") + FRAME_HEADER_BYTES;
        let payload = &bytes[from..from + header.payload_len as usize];
        for record in Records::new(payload, header.first_time, header.record_count) {
            let number = record.value[..4].try_into().expect("four bytes");
            found.push(Record::from_le_bytes(number));
        }
    }
    found
}

/// What a recovered copy holds of its last segment when a crash has torn the group of `unsynced`
/// records.
#[must_use]
pub fn recovered(key: PartitionKey, copy: &Copy, unsynced: &[Record], blocks: u8) -> Vec<Record> {
    let none = (copy.start, Vec::new());
    let (base, synced) = copy.segments.0.last().unwrap_or(&none);
    let ident = SegmentIdent {
        owner: Owner::Partition(key),
        id: SegmentId {
            base: Offset(*base),
            epoch: Epoch(1),
        },
    };
    let (mut bytes, begin) = image(ident, synced, unsynced);
    tear(ident, &mut bytes, begin, blocks);
    recover(ident, &bytes, Offset(*base))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Segments;
    use narad_core::ids::{PartitionIndex, TopicId};

    #[test]
    fn whatever_of_a_group_reached_the_disk_a_prefix_of_it_survives_and_all_that_was_synced() {
        let key = PartitionKey {
            topic: TopicId(7),
            partition: PartitionIndex(0),
        };
        let mut partly = 0;
        for synced in 0..4_u32 {
            for more in 0..7_u32 {
                let all: Vec<Record> = (1..=synced + more).collect();
                let (old, new) = all.split_at(synced as usize);
                let segments = if old.is_empty() {
                    Segments::default()
                } else {
                    Segments(vec![(5, old.to_vec())])
                };
                let copy = Copy {
                    start: 5,
                    segments,
                    ..Copy::default()
                };
                for blocks in 0..=u8::MAX {
                    let found = recovered(key, &copy, new, blocks);
                    assert!(
                        found.len() >= old.len(),
                        "{blocks:#b} of {all:?}: {found:?}"
                    );
                    assert_eq!(found, all[..found.len()], "{blocks:#b} of {all:?}");
                    partly += u32::from(found.len() > old.len() && found.len() < all.len());
                }
                assert_eq!(recovered(key, &copy, new, u8::MAX), all);
                assert_eq!(recovered(key, &copy, new, 0), old);
            }
        }
        assert!(
            partly > 100,
            "groups were torn in their middle {partly} times"
        );
    }
}
