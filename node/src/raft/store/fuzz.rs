//! Raft directories whose bytes are wrong in random ways: a short run of the fuzz target on its corpus, and recovery of
//! whole directories.
//!
//! `NARAD_FUZZ_ROUNDS=1000000 cargo test -p narad --lib fuzz` runs longer; `scripts/fuzz.sh` runs cargo-fuzz on the same
//! function; `NARAD_WRITE_CORPUS=1` writes the seeds of the corpus again.

use super::frame::{SegmentHeader, push_frame};
use super::frame_checks;
use super::recover;
use super::tests::{Dir, filled};
use crate::raft::runtime::GlommioRuntime;
use openraft::AsyncRuntime;
use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/raft")
}

fn rounds(usual: u64) -> u64 {
    let set = std::env::var("NARAD_FUZZ_ROUNDS").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(usual)
}

/// Small deterministic random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// One random change: a bit, a byte, a number at an edge, a cut, a piece taken out or doubled.
fn change(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let place = dice.roll(bytes.len());
    match dice.roll(6) {
        0 => bytes[place] ^= 1 << dice.roll(8),
        1 => bytes[place] = dice.roll(256) as u8,
        2 => {
            let edges = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 31, 0xffff_ffff];
            let value = edges[dice.roll(edges.len())].to_le_bytes();
            let width = [4, 8][dice.roll(2)];
            let place = place - place % width;
            let end = (place + width).min(bytes.len());
            bytes[place..end].copy_from_slice(&value[..end - place]);
        }
        3 => bytes.truncate(place),
        4 => {
            let end = place + dice.roll(bytes.len() - place);
            bytes.drain(place..end);
        }
        _ => {
            let end = (place + dice.roll(200)).min(bytes.len());
            let again = bytes[place..end].to_vec();
            bytes.splice(place..place, again);
        }
    }
}

fn segment_bytes(first_index: u64, groups: &[&[usize]], zeros: usize) -> Vec<u8> {
    let header = SegmentHeader {
        first_index,
        segment_id: 0xfeed,
    };
    let mut out = header.encode().to_vec();
    let mut index = first_index;
    for group in groups {
        let durable = out.len() as u64;
        for len in *group {
            push_frame(&mut out, 0xfeed, index, durable, &vec![b'{'; *len]);
            index += 1;
        }
    }
    out.resize(out.len() + zeros, 0);
    out
}

#[test]
fn any_bytes_of_a_log_segment_are_read_without_harm() {
    let seeds = [
        ("empty", segment_bytes(5, &[], 512)),
        (
            "groups",
            segment_bytes(5, &[&[1, 30], &[200], &[9, 9, 9]], 64),
        ),
        ("last-index", segment_bytes(u64::MAX - 1, &[&[8]], 8)),
    ];
    for (name, bytes) in seeds {
        let file = corpus().join(name);
        if std::env::var_os("NARAD_WRITE_CORPUS").is_some() {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&file, &bytes).unwrap();
        }
        assert_eq!(fs::read(&file).ok(), Some(bytes), "{}", file.display());
    }
    let mut files: Vec<PathBuf> = fs::read_dir(corpus())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|f| fs::read(f).unwrap()).collect();
    seeds.iter().for_each(|seed| frame_checks::segment(seed));
    let mut dice = Dice(0x5eed_0001);
    for round in 0..rounds(20_000) {
        let mut bytes = seeds[dice.roll(seeds.len())].clone();
        for _ in 0..=dice.roll(4) {
            change(&mut bytes, &mut dice);
        }
        bytes.truncate(64 << 10);
        if std::panic::catch_unwind(|| frame_checks::segment(&bytes)).is_err() {
            let kept = std::env::temp_dir().join(format!("narad-fuzz-raft-{round}"));
            fs::write(&kept, &bytes).unwrap();
            let (kept, corpus) = (kept.display(), corpus());
            panic!(
                "round {round}: the bytes are in {kept}: add them to {}",
                corpus.display()
            );
        }
    }
}

/// Recovery of a directory with harm in any of its files ends with a log or with an error, and a second one says the same.
#[test]
fn a_directory_with_any_harm_is_recovered_or_refused() {
    let good = Dir::new("fuzz-good");
    let path = good.0.clone();
    GlommioRuntime::run(async move {
        drop(filled(&path, 12).await);
    });
    let files: Vec<(String, Vec<u8>)> = fs::read_dir(&good.0)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| {
            let mut bytes = fs::read(e.path()).unwrap();
            // Behind the frames a segment is zeros.
            bytes.truncate(8192);
            (e.file_name().into_string().unwrap(), bytes)
        })
        .collect();
    assert!(files.len() >= 3, "{files:?}");
    let mut dice = Dice(0x5eed_0002);
    let (mut opened, mut refused) = (0, 0);
    let bad = Dir::new("fuzz-bad");
    for round in 0..rounds(1_500) {
        let mut changed = files.clone();
        for _ in 0..=dice.roll(3) {
            let n = changed.len();
            change(&mut changed[dice.roll(n)].1, &mut dice);
        }
        let dir = bad.0.join(round.to_string());
        fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in &changed {
            fs::write(dir.join(name), bytes).unwrap();
        }
        let outcome = || {
            let found = recover::recover(&dir, "n1");
            found.map(|f| f.entries.len()).map_err(|e| e.to_string())
        };
        let first = outcome();
        assert_eq!(outcome(), first, "round {round}");
        match first {
            Ok(entries) => {
                assert!(entries <= 12, "round {round}: {entries} entries");
                opened += 1;
            }
            Err(_) => refused += 1,
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    assert!(opened > 0 && refused > 0, "{opened} {refused}");
}
