//! The bytes of a log segment, without any I/O: header, frames, and what a scan of them finds.
//!
//! Keeps true: a frame's checksum is seeded with its segment's random id, so bytes of another life of the same block never
//! pass; each frame tells how far the file was durable when it was written, so a hole below that mark is known to be corruption.

use crate::raft::limits::MAX_ENTRY_BYTES;

/// First bytes of a segment.
pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"NRDRAFTL";
/// Format version of segments written here.
pub(super) const SEGMENT_VERSION: u32 = 1;
/// Bytes of a segment's header.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes before a frame's payload.
pub(super) const FRAME_HEADER_BYTES: usize = 24;
/// Frames start at multiples of this, so that a scan can find the next one behind a hole.
pub(super) const FRAME_ALIGN: usize = 8;

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Index of its first entry.
    pub(super) first_index: u64,
    /// Random id, the seed of its frames' checksums.
    pub(super) segment_id: u64,
}

/// Why a header was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// Not a complete header.
    Damaged(&'static str),
    /// A later format.
    Newer(u32),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl SegmentHeader {
    /// The header's bytes.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_index.to_le_bytes());
        out[24..32].copy_from_slice(&self.segment_id.to_le_bytes());
        let crc = header_crc(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header. The version is looked at before the checksum, so that a later format is recognised as such.
    pub(super) fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        if bytes.len() < HEADER_BYTES {
            return Err(HeaderError::Damaged("shorter than a segment header"));
        }
        if bytes[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Damaged("no segment magic"));
        }
        let version = u32_at(bytes, 8);
        if version > SEGMENT_VERSION {
            return Err(HeaderError::Newer(version));
        }
        if u32_at(bytes, 12) != header_crc(&bytes[..HEADER_BYTES]) {
            return Err(HeaderError::Damaged(
                "the segment header's checksum is wrong",
            ));
        }
        Ok(SegmentHeader {
            first_index: u64_at(bytes, 16),
            segment_id: u64_at(bytes, 24),
        })
    }
}

pub(super) fn header_crc(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..HEADER_BYTES])
}

pub(super) fn frame_crc(segment_id: u64, len: u32, marks: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(
        crc32c::crc32c(&segment_id.to_le_bytes()),
        &len.to_le_bytes(),
    );
    crc32c::crc32c_append(crc32c::crc32c_append(crc, marks), payload)
}

/// Bytes that a payload of `len` bytes takes in a segment.
pub(super) fn frame_bytes(len: usize) -> usize {
    (FRAME_HEADER_BYTES + len).next_multiple_of(FRAME_ALIGN)
}

/// Appends one frame to `out`. `durable_end` is the segment's synced length at this moment.
pub(super) fn push_frame(
    out: &mut Vec<u8>,
    segment_id: u64,
    index: u64,
    durable_end: u64,
    payload: &[u8],
) {
    let len = u32::try_from(payload.len()).expect("entries are bounded");
    let start = out.len();
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&durable_end.to_le_bytes());
    let crc = frame_crc(
        segment_id,
        len,
        &out[start + 8..start + FRAME_HEADER_BYTES],
        payload,
    );
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(payload);
    out.resize(start + frame_bytes(payload.len()), 0);
}

/// One frame that checked out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The entry's index.
    pub(super) index: u64,
    /// Durable length of the segment when this frame was written.
    pub(super) durable_end: u64,
    /// The entry's JSON.
    pub(super) payload: &'a [u8],
}

/// The frame at `at`, if one is there and checks out.
pub(super) fn frame_at(bytes: &[u8], at: usize, segment_id: u64) -> Option<Frame<'_>> {
    let rest = bytes.get(at..)?;
    if rest.len() < FRAME_HEADER_BYTES {
        return None;
    }
    let len = u32_at(rest, 0);
    if len == 0 || len as usize > MAX_ENTRY_BYTES {
        return None;
    }
    let payload = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + len as usize)?;
    let marks = &rest[8..FRAME_HEADER_BYTES];
    (frame_crc(segment_id, len, marks, payload) == u32_at(rest, 4)).then(|| Frame {
        index: u64_at(rest, 8),
        durable_end: u64_at(rest, 16),
        payload,
    })
}

/// Where a scan ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanEnd {
    /// Only zeros follow.
    Clean,
    /// Something that is no frame follows, and nothing shows that it ever was durable.
    Torn,
    /// The bytes at the end were durable: a later frame says so.
    Hole {
        /// Offset of the later frame.
        witness: usize,
    },
}

/// Calls `each` with the offset and the frame of every entry in order, from the header on.
/// Returns the offset behind the last good frame and what follows there.
pub(super) fn scan(
    bytes: &[u8],
    header: SegmentHeader,
    mut each: impl FnMut(usize, Frame<'_>),
) -> (usize, ScanEnd) {
    let mut at = HEADER_BYTES;
    let mut index = Some(header.first_index);
    while let Some(frame) =
        frame_at(bytes, at, header.segment_id).filter(|frame| Some(frame.index) == index)
    {
        let next = at + frame_bytes(frame.payload.len());
        each(at, frame);
        at = next;
        index = index.and_then(|index| index.checked_add(1));
    }
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.iter().all(|byte| *byte == 0) {
        return (at, ScanEnd::Clean);
    }
    let mut probe = at + FRAME_ALIGN;
    while probe < bytes.len() {
        if let Some(frame) = frame_at(bytes, probe, header.segment_id)
            && frame.durable_end > at as u64
        {
            return (at, ScanEnd::Hole { witness: probe });
        }
        probe += FRAME_ALIGN;
    }
    (at, ScanEnd::Torn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        first_index: 5,
        segment_id: 0xfeed,
    };

    /// Three frames; the first two synced together, the third written after that sync.
    fn segment() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = HEADER.encode().to_vec();
        let first = bytes.len();
        push_frame(&mut bytes, HEADER.segment_id, 5, first as u64, b"one");
        let second = bytes.len();
        push_frame(&mut bytes, HEADER.segment_id, 6, first as u64, b"twotwo");
        let third = bytes.len();
        push_frame(&mut bytes, HEADER.segment_id, 7, third as u64, b"three");
        bytes.resize(bytes.len() + 64, 0);
        (bytes, [first, second, third])
    }

    fn indexes(bytes: &[u8]) -> (Vec<u64>, usize, ScanEnd) {
        let mut found = Vec::new();
        let (at, end) = scan(bytes, HEADER, |_, frame| found.push(frame.index));
        (found, at, end)
    }

    #[test]
    fn whole_segments_scan_clean() {
        let (bytes, _) = segment();
        let (found, _, end) = indexes(&bytes);
        assert_eq!((found, end), (vec![5, 6, 7], ScanEnd::Clean));
    }

    #[test]
    fn damage_in_the_last_frame_is_a_torn_tail() {
        let (mut bytes, at) = segment();
        bytes[at[2] + FRAME_HEADER_BYTES] ^= 1;
        assert_eq!(indexes(&bytes), (vec![5, 6], at[2], ScanEnd::Torn));
    }

    #[test]
    fn damage_below_a_durable_mark_is_a_hole() {
        let (mut bytes, at) = segment();
        bytes[at[1] + FRAME_HEADER_BYTES] ^= 1;
        assert_eq!(
            indexes(&bytes),
            (vec![5], at[1], ScanEnd::Hole { witness: at[2] })
        );
    }

    #[test]
    fn a_group_that_reached_the_disk_out_of_order_is_torn_not_corrupt() {
        let (mut bytes, at) = segment();
        let end = at[2];
        bytes.truncate(end);
        bytes[at[0] + FRAME_HEADER_BYTES] ^= 1;
        assert_eq!(indexes(&bytes), (vec![], at[0], ScanEnd::Torn));
    }

    #[test]
    fn frames_of_another_segment_do_not_pass() {
        let (bytes, at) = segment();
        assert!(frame_at(&bytes, at[0], HEADER.segment_id + 1).is_none());
    }

    #[test]
    fn headers_round_trip_and_newer_ones_are_named() {
        let mut bytes = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(HEADER));
        bytes[20] ^= 1;
        assert!(matches!(
            SegmentHeader::decode(&bytes),
            Err(HeaderError::Damaged(_))
        ));
        bytes[8..12].copy_from_slice(&9u32.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Newer(9)));
    }
}
