//! A short run of the fuzz targets: every file of the corpus, and random changes of each.
//!
//! `NARAD_FUZZ_ROUNDS=1000000 cargo test -p narad-storage --test fuzz` runs longer;
//! `NARAD_WRITE_CORPUS=1` writes the seeds of the corpus again, from files that this version makes.
//! `scripts/fuzz.sh` runs cargo-fuzz on the same functions.

mod common;
#[path = "../fuzz/readers.rs"]
mod readers;

use common::power::Dice;
use common::*;
use narad_core::copy::{InstallMark, SegmentId};
use narad_core::ids::{
    Epoch, HandoffId, MoveId, Offset, Origin, PartitionIndex, TopicId, WalId, WalSeq, WallMs,
};
use narad_storage::format::frame::{FrameHeader, frame_len};
use narad_storage::format::list::{IndexPoint, ListEntry, SegmentList, Totals, encode_footer};
use narad_storage::format::meta::Meta;
use narad_storage::format::segment::{Owner, SegmentHeader};
use narad_storage::{Record, WalEntry};
use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn rounds() -> u64 {
    let set = std::env::var("NARAD_FUZZ_ROUNDS").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(10_000)
}

/// Files of one target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(corpus().join(target))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|f| fs::read(f).unwrap()).collect()
}

/// One random change: bytes flipped, set to edge values, cut out, doubled, taken from another file.
fn change(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let mut at = |len: usize| dice.roll(len.max(1) as u64) as usize;
    let place = at(bytes.len());
    match at(7) {
        _ if bytes.is_empty() => bytes.extend_from_slice(other),
        0 => bytes[place] ^= 1 << at(8),
        1 => bytes[place] = at(256) as u8,
        2 => {
            // A number of one of the widths in use, with a value at an edge.
            let edges = [
                0,
                1,
                u64::MAX,
                u64::MAX >> 1,
                1 << 31,
                0xffff_ffff,
                0x1_0000,
            ];
            let value = edges[at(edges.len())].to_le_bytes();
            let width = [1, 2, 4, 8][at(4)];
            let place = place - place % width;
            let end = (place + width).min(bytes.len());
            bytes[place..end].copy_from_slice(&value[..end - place]);
        }
        3 => bytes.truncate(place),
        4 => {
            let end = place + at(bytes.len() - place);
            bytes.drain(place..end);
        }
        5 => {
            let end = (place + at(200)).min(bytes.len());
            let again = bytes[place..end].to_vec();
            bytes.splice(place..place, again);
        }
        _ => {
            let from = at(other.len());
            let part = &other[from..(from + at(200)).min(other.len())];
            let end = (place + part.len()).min(bytes.len());
            bytes[place..end].copy_from_slice(&part[..end - place]);
        }
    }
    bytes.truncate(64 << 10);
}

fn fuzz(name: &str) {
    let (_, target) = readers::TARGETS.iter().find(|(n, _)| *n == name).unwrap();
    let seeds = seeds(name);
    assert!(seeds.len() >= 3, "the corpus of {name} is there");
    let mut dice = Dice(0x5eed_0000 + name.len() as u64);
    for seed in &seeds {
        target(seed);
    }
    for round in 0..rounds() {
        let mut bytes = seeds[dice.roll(seeds.len() as u64) as usize].clone();
        let other = &seeds[dice.roll(seeds.len() as u64) as usize];
        for _ in 0..=dice.roll(4) {
            change(&mut bytes, other, &mut dice);
        }
        let tried = std::panic::catch_unwind(|| target(&bytes));
        if tried.is_err() {
            let kept = std::env::temp_dir().join(format!("narad-fuzz-{name}-{round}"));
            fs::write(&kept, &bytes).unwrap();
            panic!(
                "{name} fails in round {round}; the bytes are in {}: add them to {}",
                kept.display(),
                corpus().join(name).display()
            );
        }
    }
}

#[test]
fn frames() {
    fuzz("frame");
}

#[test]
fn segments() {
    fuzz("segment");
}

#[test]
fn metas() {
    fuzz("meta");
}

#[test]
fn lists() {
    fuzz("list");
}

#[test]
fn footers() {
    fuzz("footer");
}

#[test]
fn wals() {
    fuzz("wal");
}

#[test]
fn staged_manifests() {
    fuzz("staged");
}

/// The functions notice what they are made to notice: a frame that lies about its length is looked at.
#[test]
fn harm_behind_a_checksum_is_reached() {
    let seed = readers::ident().seed();
    let mut bytes = frame_bytes(10, 10, 3, 40, None);
    bytes[16] = 0xff;
    assert_eq!(FrameHeader::decode(&bytes, seed), None);
    // With the checksum made right by the target, 255 records are announced and three are there.
    readers::frame(&bytes);
    let at = crc32c::crc32c_append(seed, &bytes[8..72]);
    bytes[4..8].copy_from_slice(&at.to_le_bytes());
    assert_eq!(
        FrameHeader::decode(&bytes, seed).map(|h| h.record_count),
        Some(255)
    );
}

fn frame_bytes(base: u64, durable: u64, count: u64, len: usize, origin: Option<Origin>) -> Vec<u8> {
    let seed = readers::ident().seed();
    let batch = records(base, count, len);
    let mut payload = Vec::new();
    for record in &batch {
        record.encode(batch[0].time, &mut |b| payload.extend_from_slice(b));
    }
    let header = FrameHeader {
        payload_len: payload.len() as u32,
        payload_crc: crc32c::crc32c_append(seed, &payload),
        record_count: count as u32,
        base: Offset(base),
        durable_end: Offset(durable),
        first_time: batch[0].time,
        last_time: batch[batch.len() - 1].time,
        origin,
    };
    let mut out = header.encode(seed).to_vec();
    out.extend_from_slice(&payload);
    out.resize(frame_len(payload.len()), 0);
    out
}

fn segment_bytes(block: usize, groups: &[&[(u64, usize)]]) -> Vec<u8> {
    let header = SegmentHeader {
        ident: readers::ident(),
        block: block as u32,
        created_ms: 1_700_000_000_000,
    };
    let mut out = header.encode().to_vec();
    let mut base = 10;
    for group in groups {
        let durable = base;
        out.resize(out.len().next_multiple_of(block), 0);
        for (count, len) in *group {
            out.extend(frame_bytes(base, durable, *count, *len, None));
            base += count;
        }
    }
    out.resize(out.len().next_multiple_of(block), 0);
    out
}

fn lists_of(segments: u64, marks: u64) -> Vec<u8> {
    let entry = |n: u64| ListEntry {
        id: SegmentId {
            base: Offset(n * 100),
            epoch: Epoch(1 + n / 2),
        },
        totals: Totals {
            len: 4096 * (n + 1),
            digest: 0x1234_5678,
            end: Offset(n * 100 + 100),
            records: 99,
            missing: 1,
            first_time: WallMs(1_000_000),
            last_time: WallMs(1_000_100),
        },
        active: n + 1 == segments,
    };
    SegmentList {
        owner: Owner::Partition(key()),
        epoch: Epoch(9),
        entries: (0..segments).map(entry).collect(),
        marks: (0..marks)
            .map(|n| (WalId(n + 1), (WalSeq(n * 3), Offset(n))))
            .collect(),
    }
    .encode()
}

fn metas_of(generation: u64, full: bool) -> Vec<u8> {
    Meta {
        owner: Owner::Partition(key()),
        epoch: Epoch(3),
        generation,
        start: Offset(4),
        hwm: Offset(9),
        durable_end: Offset(12),
        frontier: Offset(5),
        fence: full.then_some((Offset(9), Offset(12))),
        install: full.then_some(InstallMark {
            move_id: MoveId(6),
            handoff_id: Some(HandoffId(7)),
        }),
    }
    .encode()
}

fn footers_of(points: u64) -> Vec<u8> {
    let points: Vec<_> = (0..points)
        .map(|n| IndexPoint {
            base: Offset(10 + n * 64),
            pos: 512 + (n * 65_536),
            time_before: WallMs(1_000_000 + n),
        })
        .collect();
    encode_footer(readers::ident().seed(), 4096 * 50, &points)
}

fn identity_of(id: u64) -> Vec<u8> {
    narad_storage::readers::wal_identity_bytes(WalId(id))
}

/// As the target takes it: the key, then as many bytes of the value.
fn entry_of(key: Option<Vec<u8>>) -> Vec<u8> {
    let entry = WalEntry {
        topic: TopicId(5),
        partition: PartitionIndex(6),
        pinned: key.is_some(),
        record: Record {
            key,
            ..record(1, 20)
        },
    };
    let record = narad_storage::readers::wal_record(&entry);
    let key = record.key.unwrap_or_default();
    let value = vec![b'v'; key.len()];
    [key, value].concat()
}

fn staged_of(segments: u64) -> Vec<u8> {
    let one = |n: u64| {
        format!(
            "{{\"base\":{},\"epoch\":1,\"len\":4096,\"digest\":7,\"end\":{},\"records\":9,\"missing\":1,\
             \"first_time_ms\":5,\"last_time_ms\":6}}",
            n * 10,
            n * 10 + 10
        )
    };
    let segments: Vec<String> = (0..segments).map(one).collect();
    let segments = segments.join(",");
    format!("{{\"version\":1,\"segments\":[{segments}],\"marks\":[[3,4,5],[6,7,8]],\"told\":null}}")
        .into_bytes()
}

/// Writes the seeds. What a fuzzer or a failure added is left alone.
#[test]
fn the_corpus_can_be_made_again() {
    let origin = Some(Origin {
        wal: WalId(5),
        seq: WalSeq(77),
    });
    let seeds: Vec<(&str, &str, Vec<u8>)> = vec![
        ("frame", "one", frame_bytes(10, 10, 1, 0, None)),
        ("frame", "many", frame_bytes(1000, 990, 40, 60, None)),
        ("frame", "with-origin", frame_bytes(7, 3, 3, 500, origin)),
        ("segment", "empty", segment_bytes(512, &[])),
        (
            "segment",
            "groups",
            segment_bytes(512, &[&[(1, 30), (3, 200)], &[(2, 700)], &[(9, 5)]]),
        ),
        (
            "segment",
            "large-block",
            segment_bytes(4096, &[&[(4, 300)], &[(1, 6000)]]),
        ),
        ("meta", "one-slot", metas_of(0, true)),
        (
            "meta",
            "two-slots",
            [metas_of(4, false), metas_of(5, true)].concat(),
        ),
        (
            "meta",
            "torn",
            [&metas_of(4, true)[..], &metas_of(5, true)[..2048]].concat(),
        ),
        ("list", "empty", lists_of(0, 0)),
        ("list", "segments", lists_of(5, 0)),
        ("list", "marks", lists_of(2, 20)),
        ("footer", "empty", footers_of(0)),
        ("footer", "one", footers_of(1)),
        ("footer", "many", footers_of(100)),
        ("wal", "identity", identity_of(77)),
        ("wal", "entry", entry_of(None)),
        ("wal", "entry-with-key", entry_of(Some(b"key".to_vec()))),
        (
            "staged",
            "empty",
            b"{\"version\":1,\"segments\":[],\"marks\":[]}".to_vec(),
        ),
        ("staged", "segments", staged_of(3)),
        (
            "staged",
            "newer",
            b"{\"version\":9,\"segments\":[],\"marks\":[]}".to_vec(),
        ),
    ];
    let write = std::env::var_os("NARAD_WRITE_CORPUS").is_some();
    for (target, name, bytes) in seeds {
        let file = corpus().join(target).join(name);
        if write {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &bytes).unwrap();
        }
        // Seeds are files of this version's format: they differ only when the format does.
        assert_eq!(fs::read(&file).ok(), Some(bytes), "{}", file.display());
    }
}
