//! What a fuzzer does with the reader of a log segment, here and in `node/fuzz`.
//!
//! Keeps true: any bytes are read as they are, and once more with their checksums made right, so that harm also reaches what
//! the checksums guard; the reader never panics, and what it returns lies inside the bytes, in order, and is written again as it was.

use super::frame::{
    FRAME_ALIGN, FRAME_HEADER_BYTES, HEADER_BYTES, ScanEnd, SegmentHeader, frame_bytes, frame_crc,
    header_crc, push_frame, scan,
};

/// Reads a segment.
pub(super) fn segment(bytes: &[u8]) {
    one(bytes);
    if bytes.len() >= HEADER_BYTES {
        one(&with_right_checksums(bytes));
    }
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The header, and everything that can be taken for a frame where one is expected, gets a right checksum.
fn with_right_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let crc = header_crc(&out[..HEADER_BYTES]);
    put(&mut out, 12, crc);
    let word = |out: &[u8], at: usize| {
        out[at..]
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b))
    };
    let (first_index, id) = (word(&out, 16), word(&out, 24));
    let (mut at, mut index) = (HEADER_BYTES, first_index);
    while at + FRAME_HEADER_BYTES <= out.len() {
        let len = word(&out, at) as u32;
        let from = at + FRAME_HEADER_BYTES;
        let Some(payload) = out.get(from..from.saturating_add(len as usize)) else {
            at += FRAME_ALIGN;
            continue;
        };
        if len == 0 {
            at += FRAME_ALIGN;
            continue;
        }
        let payload = payload.to_vec();
        out[at + 8..at + 16].copy_from_slice(&index.to_le_bytes());
        let crc = frame_crc(id, len, &out[at + 8..from], &payload);
        put(&mut out, at + 4, crc);
        at += frame_bytes(payload.len());
        index = index.wrapping_add(1);
    }
    out
}

fn one(bytes: &[u8]) {
    let Ok(header) = SegmentHeader::decode(bytes) else {
        return;
    };
    assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    let mut behind = HEADER_BYTES;
    let mut next = Some(header.first_index);
    let (end, how) = scan(bytes, header, |at, frame| {
        assert_eq!((at, Some(frame.index)), (behind, next));
        next = frame.index.checked_add(1);
        let mut again = Vec::new();
        push_frame(
            &mut again,
            header.segment_id,
            frame.index,
            frame.durable_end,
            frame.payload,
        );
        // The padding behind a payload is in no checksum, and may be cut off at the end.
        let whole = FRAME_HEADER_BYTES + frame.payload.len();
        assert_eq!(bytes.get(at..at + whole), Some(&again[..whole]));
        behind = at + again.len();
    });
    assert_eq!(end, behind);
    match how {
        ScanEnd::Clean => assert!(bytes.iter().skip(end).all(|b| *b == 0)),
        ScanEnd::Torn => assert!(end < bytes.len()),
        ScanEnd::Hole { witness } => assert!(end < witness && witness < bytes.len()),
    }
}
