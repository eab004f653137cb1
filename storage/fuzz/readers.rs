//! What a fuzzer does with the readers of disk bytes: one function for each structure.
//!
//! What this file keeps true: every function takes any bytes; each is read as it is, and once more with
//! its checksums made right, so that harm also reaches what the checksums guard; a reader never panics,
//! never returns more than its input can hold, and what it returns is written and read back as it was.

use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, PartitionIndex, PartitionKey, TopicId, WallMs};
use narad_storage::format::frame::{FRAME_MAGIC, FrameHeader};
use narad_storage::format::list::{SegmentList, Totals, decode_footer, encode_footer, footer_len};
use narad_storage::format::meta::{self, Meta};
use narad_storage::format::record::{Record, Records};
use narad_storage::format::segment::{Owner, SegmentHeader, SegmentIdent};
use narad_storage::limits::{
    FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, MAX_MARKS, MAX_SEGMENTS, META_SLOT_BYTES,
    SEGMENT_HEADER_BYTES,
};
use narad_storage::{FrameScanner, ScanEvent, readers};

/// A reader under test.
pub(crate) type Target = fn(&[u8]);

/// All of them by the names of their corpora.
pub(crate) const TARGETS: [(&str, Target); 7] = [
    ("frame", frame),
    ("segment", segment),
    ("meta", meta_file),
    ("list", list),
    ("footer", footer),
    ("wal", wal),
    ("staged", staged),
];

/// The segment that the bytes are taken for.
pub(crate) fn ident() -> SegmentIdent {
    SegmentIdent {
        owner: Owner::Partition(PartitionKey {
            topic: TopicId(7),
            partition: PartitionIndex(3),
        }),
        id: SegmentId {
            base: Offset(10),
            epoch: Epoch(1),
        },
    }
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Bytes with the checksum over everything before `at` written there.
fn sealed(bytes: &[u8], seed: u32, at: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let crc = crc32c::crc32c_append(seed, &out[..at]);
    put(&mut out, at, crc);
    out
}

/// One frame: its header and the records in it.
pub(crate) fn frame(bytes: &[u8]) {
    let seed = ident().seed();
    one_frame(bytes, seed);
    if bytes.len() >= FRAME_HEADER_BYTES {
        let mut right = bytes.to_vec();
        put(&mut right, 0, FRAME_MAGIC);
        let crc = crc32c::crc32c_append(seed, &right[8..FRAME_HEADER_BYTES]);
        put(&mut right, 4, crc);
        one_frame(&right, seed);
    }
}

fn one_frame(bytes: &[u8], seed: u32) {
    let Some(header) = FrameHeader::decode(bytes, seed) else {
        return;
    };
    assert_eq!(
        FrameHeader::decode(&header.encode(seed), seed),
        Some(header)
    );
    assert!(header.end() > header.base && header.durable_end <= header.base);
    assert!(header.total_len() >= FRAME_HEADER_BYTES as u64);
    let payload = &bytes[FRAME_HEADER_BYTES..];
    let payload = &payload[..payload.len().min(header.payload_len as usize)];
    let (mut count, mut content) = (0, 0);
    for record in Records::new(payload, header.first_time, header.record_count) {
        count += 1;
        content += record.key.map_or(0, <[u8]>::len) + record.value.len();
        let owned = record.to_record();
        let mut again = Vec::new();
        owned.encode(header.first_time, &mut |b| again.extend_from_slice(b));
        assert_eq!(again.len(), owned.encoded_len(header.first_time));
        let read = Records::new(&again, header.first_time, 1).next();
        assert_eq!(read, Some(record));
    }
    assert!(count <= header.record_count && content <= payload.len());
}

/// A whole segment: header, frames, and what is between them.
pub(crate) fn segment(bytes: &[u8]) {
    let _ = SegmentHeader::decode(bytes);
    scanned(bytes);
    scanned(&with_right_frames(bytes));
    if bytes.len() >= SEGMENT_HEADER_BYTES {
        let right = sealed(bytes, 0, SEGMENT_HEADER_BYTES - 4);
        if let Ok(header) = SegmentHeader::decode(&right) {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }
        scanned(&right);
    }
}

/// Every frame that the bytes contain gets right checksums.
fn with_right_frames(bytes: &[u8]) -> Vec<u8> {
    let seed = ident().seed();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at + FRAME_HEADER_BYTES <= out.len() {
        if out[at..at + 4] == FRAME_MAGIC.to_le_bytes() {
            let len = u32::from_le_bytes([out[at + 8], out[at + 9], out[at + 10], out[at + 11]]);
            let from = at + FRAME_HEADER_BYTES;
            if let Some(end) = from.checked_add(len as usize).filter(|e| *e <= out.len()) {
                let crc = crc32c::crc32c_append(seed, &out[from..end]);
                put(&mut out, at + 12, crc);
            }
            let crc = crc32c::crc32c_append(seed, &out[at + 8..from]);
            put(&mut out, at + 4, crc);
        }
        at += FRAME_ALIGN_BYTES;
    }
    out
}

/// Frames come in order, inside the bytes, and the same however the bytes are cut into pieces.
fn scanned(bytes: &[u8]) {
    let whole = scan(bytes, bytes.len().max(1));
    for piece in [1 + bytes.len() / 7, 512, 97] {
        assert_eq!(scan(bytes, piece), whole, "in pieces of {piece}");
    }
    let Some((events, scanner_end)) = whole else {
        return;
    };
    let (mut pos, mut next) = (0, Offset(0));
    for event in events {
        if let ScanEvent::Frame {
            pos: at, header, ..
        } = event
        {
            assert!(at >= pos && header.base >= next, "frames overlap");
            pos = at + header.total_len();
            next = header.end();
            assert!(
                at + (FRAME_HEADER_BYTES as u64) + u64::from(header.payload_len)
                    <= bytes.len() as u64
            );
        }
    }
    assert!(scanner_end >= next);
}

fn scan(bytes: &[u8], piece: usize) -> Option<(Vec<ScanEvent>, Offset)> {
    let mut scanner = FrameScanner::new(ident());
    let mut events = Vec::new();
    for part in bytes.chunks(piece) {
        scanner.feed(part, &mut |e| events.push(e)).ok()?;
    }
    scanner.finish(&mut |e| events.push(e));
    assert_eq!(scanner.fed(), bytes.len() as u64);
    assert_eq!(scanner.digest(), crc32c::crc32c(bytes));
    Some((events, scanner.end()))
}

/// The meta file with its two slots.
pub(crate) fn meta_file(bytes: &[u8]) {
    one_meta(bytes);
    let mut right = bytes.to_vec();
    for slot in right.chunks_exact_mut(META_SLOT_BYTES) {
        let crc = crc32c::crc32c(&slot[..META_SLOT_BYTES - 4]);
        put(slot, META_SLOT_BYTES - 4, crc);
    }
    one_meta(&right);
}

fn one_meta(bytes: &[u8]) {
    let Ok(file) = meta::decode_file(bytes) else {
        return;
    };
    assert!(file.damaged <= 2);
    if let Some(newest) = file.newest {
        assert!(newest.slot() < 2);
        assert_eq!(Meta::decode(&newest.encode()), Ok(newest));
    }
}

/// The segment list.
pub(crate) fn list(bytes: &[u8]) {
    one_list(bytes);
    if bytes.len() >= 4 {
        one_list(&sealed(bytes, 0, bytes.len() - 4));
    }
}

fn one_list(bytes: &[u8]) {
    if let Ok(list) = SegmentList::decode(bytes) {
        assert!(list.entries.len() <= MAX_SEGMENTS && list.marks.len() <= MAX_MARKS);
        assert_eq!(SegmentList::decode(&list.encode()).as_ref(), Ok(&list));
        for entry in &list.entries {
            resumed(entry.id, entry.totals);
        }
    }
}

/// A scan goes on from any saved place, over bytes that belong there and over others.
fn resumed(id: SegmentId, done: Totals) {
    let ident = SegmentIdent { id, ..ident() };
    let header = FrameHeader {
        payload_len: 0,
        payload_crc: ident.seed(),
        record_count: 3,
        base: Offset(done.end.0.wrapping_add(1) & (u64::MAX >> 1)),
        durable_end: Offset(0),
        first_time: WallMs(1),
        last_time: WallMs(1),
        origin: None,
    };
    let mut scanner = FrameScanner::resume(ident, done);
    let fed = [&header.encode(ident.seed())[..], &[0x5a; 24]].concat();
    let sink = &mut |_| {};
    if scanner.feed(&fed, sink).is_ok() {
        scanner.finish(sink);
        assert_eq!(scanner.fed(), done.len + fed.len() as u64);
        assert!(scanner.end() >= done.end || done.len == 0);
    }
}

/// The footer of a sealed segment.
pub(crate) fn footer(bytes: &[u8]) {
    let seed = ident().seed();
    let Some(len) = footer_len(bytes) else {
        assert_eq!(decode_footer(bytes, seed, 4096), None);
        return;
    };
    one_footer(bytes, seed);
    if (4..=bytes.len()).contains(&len) {
        one_footer(&sealed(bytes, seed, len - 4), seed);
    }
}

fn one_footer(bytes: &[u8], seed: u32) {
    let durable_len = u64::from_le_bytes(bytes[16..24].try_into().unwrap_or_default());
    if let Some(points) = decode_footer(bytes, seed, durable_len) {
        assert!(points.len() * 24 <= bytes.len());
        let again = encode_footer(seed, durable_len, &points);
        assert_eq!(decode_footer(&again, seed, durable_len), Some(points));
    }
}

/// The identity file of a WAL, and an entry in its log: the key holds where the record is to go.
pub(crate) fn wal(bytes: &[u8]) {
    one_identity(bytes);
    if bytes.len() >= 4 {
        one_identity(&sealed(bytes, 0, bytes.len() - 4));
    }
    let (key, value) = bytes.split_at(bytes.len() / 2);
    let record = Record {
        time: WallMs(7),
        key: Some(key.to_vec()),
        value: value.to_vec(),
    };
    if let Some(entry) = readers::wal_entry(&record) {
        assert!(entry.record.content_len() <= bytes.len());
        let again = readers::wal_record(&entry);
        assert_eq!(readers::wal_entry(&again), Some(entry));
    }
}

fn one_identity(bytes: &[u8]) {
    if let Ok(id) = readers::wal_identity(bytes) {
        assert_eq!(
            readers::wal_identity(&readers::wal_identity_bytes(id)),
            Ok(id)
        );
    }
}

/// What is saved of a copy in progress.
pub(crate) fn staged(bytes: &[u8]) {
    let Ok((segments, marks, again)) = readers::staged(bytes) else {
        return;
    };
    assert!(segments.len() <= bytes.len() && marks.len() <= bytes.len());
    for (id, totals) in &segments {
        resumed(*id, *totals);
    }
    let read = readers::staged(&again).expect("what was written is read");
    assert_eq!((&read.0, &read.1), (&segments, &marks));
}
