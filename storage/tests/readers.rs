//! Readers of disk bytes meet anything: random bytes, and real files with random harm. They never panic,
//! never invent a record, and a scanner says the same however its input is cut into pieces.

mod common;

use common::*;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset};
use narad_storage::format::frame::{FrameHeader, frame_len};
use narad_storage::format::list::{SegmentList, Totals, decode_footer};
use narad_storage::format::meta;
use narad_storage::format::segment::{Owner, SegmentHeader, SegmentIdent};
use narad_storage::{FrameScanner, ScanEvent};
use proptest::prelude::*;

fn ident() -> SegmentIdent {
    SegmentIdent {
        owner: Owner::Partition(key()),
        id: SegmentId {
            base: Offset(10),
            epoch: Epoch(1),
        },
    }
}

/// A segment with frames of these numbers of records, each in a block of its own or sharing one.
fn segment(frames: &[(u8, u16, bool)]) -> Vec<u8> {
    let seed = ident().seed();
    let header = SegmentHeader {
        ident: ident(),
        block: 512,
        created_ms: 1,
    };
    let mut out = header.encode().to_vec();
    out.resize(512, 0);
    let mut base = 10;
    let mut durable = 10;
    for (count, len, fresh) in frames {
        if *fresh {
            out.resize(out.len().next_multiple_of(512), 0);
            durable = base;
        }
        let batch = records(base, u64::from(*count), (*len).into());
        let mut payload = Vec::new();
        for record in &batch {
            record.encode(batch[0].time, &mut |b| payload.extend_from_slice(b));
        }
        let header = FrameHeader {
            payload_len: payload.len() as u32,
            payload_crc: crc32c::crc32c_append(seed, &payload),
            record_count: u32::from(*count),
            base: Offset(base),
            durable_end: Offset(durable),
            first_time: batch[0].time,
            last_time: batch[batch.len() - 1].time,
            origin: None,
        };
        let end = out.len() + frame_len(payload.len());
        out.extend_from_slice(&header.encode(seed));
        out.extend_from_slice(&payload);
        out.resize(end, 0);
        base += u64::from(*count);
    }
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn scan(bytes: &[u8], pieces: &[usize]) -> (Vec<ScanEvent>, Totals, u32) {
    let mut events = Vec::new();
    let mut scanner = FrameScanner::new(ident());
    let mut rest = bytes;
    let mut sizes = pieces.iter().cycle();
    while !rest.is_empty() {
        let size = sizes
            .next()
            .map_or(rest.len(), |s| (*s).max(1))
            .min(rest.len());
        if scanner
            .feed(&rest[..size], &mut |e| events.push(e))
            .is_err()
        {
            break;
        }
        rest = &rest[size..];
    }
    scanner.finish(&mut |e| events.push(e));
    (events, *scanner.edge(), scanner.digest())
}

fn frames() -> impl Strategy<Value = Vec<(u8, u16, bool)>> {
    prop::collection::vec((1u8..4, 0u16..700, any::<bool>()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_do_not_matter_and_an_intact_segment_has_no_holes(
        frames in frames(), pieces in prop::collection::vec(1usize..900, 1..6)) {
        let bytes = segment(&frames);
        let whole = scan(&bytes, &[]);
        prop_assert_eq!(&scan(&bytes, &pieces), &whole);
        prop_assert_eq!(whole.0.len(), frames.len());
        let count: u64 = frames.iter().map(|f| u64::from(f.0)).sum();
        prop_assert_eq!((whole.1.records, whole.1.missing), (count, 0));
        prop_assert_eq!(whole.2, crc32c::crc32c(&bytes));
    }

    #[test]
    fn harm_costs_what_it_hits_and_invents_nothing(
        frames in frames(),
        harm in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..40)), 1..4),
        pieces in prop::collection::vec(1usize..900, 1..6)) {
        let good = segment(&frames);
        let mut bad = good.clone();
        for (at, with) in &harm {
            let at = at.index(bad.len());
            for (i, byte) in with.iter().enumerate().take(good.len() - at) {
                bad[at + i] = *byte;
            }
        }
        let (before, ..) = scan(&good, &[]);
        let (after, totals, _) = scan(&bad, &[]);
        prop_assert_eq!(&scan(&bad, &pieces).0, &after);
        let place = |e: &ScanEvent| match e {
            ScanEvent::Frame { pos, header, .. } => Some((*pos, *header)),
            _ => None,
        };
        let known: Vec<_> = before.iter().filter_map(place).collect();
        let seen: Vec<_> = after.iter().filter_map(place).collect();
        for frame in &seen {
            prop_assert!(known.contains(frame), "invented {:?}", frame);
        }
        for (pos, header) in &known {
            let range = *pos as usize..(*pos + header.total_len()) as usize;
            // Padding between frames is nobody's; a frame is its header and payload.
            if good[range.clone()] == bad[range] {
                prop_assert!(seen.contains(&(*pos, *header)), "lost an intact frame at {}", pos);
            }
        }
        prop_assert!(totals.end.0 >= 10);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), with_magic in 0usize..6) {
        let mut bytes = bytes;
        let magics: [&[u8]; 6] = [b"NARADSEG", b"NARADLST", b"NARADMET", b"NARADFTR", b"NRF1", b""];
        let magic = magics[with_magic];
        if bytes.len() >= magic.len() {
            bytes[..magic.len()].copy_from_slice(magic);
        }
        let _ = SegmentHeader::decode(&bytes);
        let _ = FrameHeader::decode(&bytes, 1);
        let _ = SegmentList::decode(&bytes);
        let _ = meta::decode_file(&bytes);
        let _ = decode_footer(&bytes, 1, 2);
        scan(&bytes, &[100]);
    }
}
