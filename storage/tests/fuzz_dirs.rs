//! Whole directories with random harm in any of their files: opening, reading, appending, checking and
//! describing them ends with a result, and what is read is what was written.
//!
//! `NARAD_FUZZ_ROUNDS=100000 cargo test -p narad-storage --test fuzz_dirs` runs longer.

mod common;

use common::power::Dice;
use common::*;
use futures::FutureExt as _;
use narad_core::ids::{MoveId, Offset, WalSeq};
use narad_storage::{Log, Options, Record, Staging, Wal, WalOptions, offline};
use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

const LEN: usize = 250;
const WRITTEN: u64 = 60;

fn rounds(usual: u64) -> u64 {
    let set = std::env::var("NARAD_FUZZ_ROUNDS").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn small() -> Options {
    Options {
        segment_bytes: 8 << 10,
        extent_bytes: 8 << 10,
        ..options()
    }
}

/// Files by their paths below the fixture.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn tree(below: &str) -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let mut found = Tree::new();
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = Path::new(below).join(entry.file_name());
        found.insert(path, fs::read(entry.path()).unwrap());
    }
    found
}

fn store(tree: &Tree, root: &Path) {
    for (path, bytes) in tree {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// One random change of one file; whether its checksum was made right again.
fn harm(tree: &mut Tree, dice: &mut Dice) -> bool {
    let mut at = |len: usize| dice.roll(len.max(1) as u64) as usize;
    let names: Vec<PathBuf> = tree.keys().cloned().collect();
    let name = &names[at(names.len())];
    let other = tree[&names[at(names.len())]].clone();
    let bytes = tree.get_mut(name).expect("it is there");
    // Most of what decides is at the beginning.
    let near = [bytes.len(), bytes.len().min(256)][at(2)];
    let place = at(near);
    match at(9) {
        0 => drop(tree.remove(name)),
        1 => *bytes = other,
        2 => bytes.truncate(place),
        3 => bytes.resize(bytes.len() + at(10_000), [0, 0xa5][at(2)]),
        4 if !bytes.is_empty() => {
            let end = (place + at(2_000)).min(bytes.len());
            bytes[place..end].fill([0, 0xff][at(2)]);
        }
        5 | 6 if !bytes.is_empty() => {
            let edges = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 62, 0xffff_ffff];
            let value = edges[at(edges.len())].to_le_bytes();
            let width = [4, 8][at(2)];
            let place = place - place % width;
            let end = (place + width).min(bytes.len());
            bytes[place..end].copy_from_slice(&value[..end - place]);
            return with_right_checksum(name, bytes);
        }
        _ if !bytes.is_empty() => bytes[place] ^= 1 << at(8),
        _ => {}
    }
    false
}

fn with_right_checksum(name: &Path, bytes: &mut [u8]) -> bool {
    let crc_at = match name.file_name().and_then(|n| n.to_str()) {
        Some("segments.list" | "identity") if bytes.len() >= 4 => bytes.len() - 4,
        Some("meta") if bytes.len() >= 4096 => 4092,
        // It has none.
        Some("staged.json") => return true,
        _ => return false,
    };
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    true
}

/// A few batches from the start on.
async fn some(log: &Log) -> Vec<(u64, Record)> {
    let (mut out, mut next) = (Vec::new(), log.start());
    for _ in 0..20 {
        let Ok(batch) = log.read(next, 100, 50_000).await else {
            break;
        };
        if batch.next == next {
            break;
        }
        next = batch.next;
        out.extend(batch.records.iter().map(|(o, r)| (o.0, r.to_record())));
    }
    out
}

async fn use_log(root: PathBuf, forged: bool) -> bool {
    let Ok((log, _)) = Log::open(&root, copy(1), &small()).await else {
        return false;
    };
    let read = some(&log).await;
    // What a checksum vouches for is believed: a list that lies may hide records, but not make any.
    for (offset, found) in &read {
        assert!(*offset < WRITTEN, "offset {offset} was never written");
        assert_eq!(*found, record(*offset, LEN), "offset {offset}");
    }
    let _ = log.offset_at(narad_core::ids::WallMs(1_000_030)).await;
    let stats = log.stats();
    assert!(forged || stats.records <= WRITTEN, "{stats:?}");
    if let Ok(at) = log.append(records(WRITTEN, 2, LEN), None).await {
        assert_eq!(at.end, at.base.plus(2));
        let last = log.read(at.base, 2, 50_000).await.unwrap();
        let hidden = log.fence().is_some();
        assert!(hidden || last.records.len() == 2, "{last:?} from {at:?}");
    }
    let _ = log.scrub(u64::MAX).await;
    let _ = log.retain(None, Some(4096)).await;
    let _ = log.close().await;
    true
}

async fn use_wal(dir: PathBuf) -> bool {
    let options = WalOptions {
        cap_bytes: 1 << 20,
        reroute_bytes: 0,
        log: small(),
    };
    let Ok((wal, _)) = Wal::open(&dir, &options).await else {
        return false;
    };
    let read = wal.read(WalSeq(0), 100, 1 << 20).await;
    if let Some((seq, entry)) = read.ok().and_then(|read| read.into_iter().next()) {
        wal.done(&[seq]);
        let _ = wal.append(vec![entry]).await;
    }
    let _ = wal.pending();
    let _ = wal.close().await;
    true
}

async fn use_staging(root: PathBuf) -> bool {
    let Ok(staging) = Staging::open_or_create(&root, key(), MoveId(9), &small()).await else {
        return false;
    };
    let progress = staging.progress();
    let _ = (staging.damaged_records(), staging.told());
    drop(staging);
    for state in progress {
        assert!(state.durable_len <= 1 << 20, "{state:?}");
        assert!(state.end >= Offset(0));
    }
    true
}

/// Runs `attempt` on directories with harm, each in `below` of a root of its own.
fn fuzz<F>(name: &'static str, below: &'static str, count: u64, to: &'static str, attempt: F)
where
    F: AsyncFn(PathBuf, bool) -> bool + Send + 'static,
{
    let dir = Dir::new(name);
    run(&dir, move |root| async move {
        let good = tree(below);
        assert!(good.len() >= 4, "{:?}", good.keys());
        let mut dice = Dice(0x5eed_0003 + name.len() as u64);
        let (mut opened, mut refused) = (0, 0);
        for round in 0..count {
            let mut bad = Tree::new();
            for (path, bytes) in &good {
                let path = path.strip_prefix(below).expect("below it");
                bad.insert(Path::new(to).join(path), bytes.clone());
            }
            let mut forged = false;
            for _ in 0..=dice.roll(3) {
                forged |= harm(&mut bad, &mut dice);
                if bad.is_empty() {
                    break;
                }
            }
            let at = root.join(round.to_string());
            fs::create_dir_all(at.join(to)).unwrap();
            store(&bad, &at);
            let looked = std::panic::catch_unwind(|| {
                let _ = offline::verify(&at);
                for path in bad.keys() {
                    let _ = offline::dump(&at.join(path), &mut std::io::sink());
                }
            });
            let used = AssertUnwindSafe(attempt(at.clone(), forged))
                .catch_unwind()
                .await;
            let (Ok(()), Ok(one)) = (&looked, &used) else {
                // Used since, so it is written again, as it was.
                let kept = root.join("kept");
                store(&bad, &kept);
                panic!(
                    "{name}, round {round}: the directory is in {}",
                    kept.display()
                );
            };
            match one {
                true => opened += 1,
                false => refused += 1,
            }
            let _ = fs::remove_dir_all(&at);
        }
        assert!(opened > count / 4, "{opened} opened, {refused} refused");
    });
}

#[test]
fn a_log_with_any_harm_is_opened_or_refused_and_invents_nothing() {
    let at = "partitions/t7-p3-e1";
    fuzz(
        "fuzz-log",
        at,
        rounds(400),
        at,
        async |root: PathBuf, forged| use_log(root, forged).await,
    );
}

#[test]
fn a_wal_with_any_harm_is_opened_or_refused() {
    let at = "shards/0/wal";
    fuzz("fuzz-wal", at, rounds(400), at, async |root: PathBuf, _| {
        use_wal(root.join("shards/0/wal")).await
    });
}

#[test]
fn a_copy_in_progress_with_any_harm_is_resumed_or_refused() {
    let (from, to) = ("other/partitions/t7-p3-e2", "staging/t7-p3-m9");
    fuzz(
        "fuzz-staging",
        from,
        rounds(200),
        to,
        async |root: PathBuf, _| use_staging(root).await,
    );
}
