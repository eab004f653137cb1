//! The ingress WAL: entries wait until they are done, across crashes, within a bound.

mod common;

use common::*;
use narad_core::ids::{PartitionIndex, TopicId, WalSeq};
use narad_storage::fault::{self, Op, Probe};
use narad_storage::{AppendError, Wal, WalEntry, WalOptions};
use std::path::{Path, PathBuf};

fn entry(n: u64) -> WalEntry {
    WalEntry {
        topic: TopicId(n % 3),
        partition: PartitionIndex(n as u32 % 5),
        pinned: n.is_multiple_of(2),
        record: record(n, 300),
    }
}

fn entries(from: u64, count: u64) -> Vec<WalEntry> {
    (from..from + count).map(entry).collect()
}

fn small() -> WalOptions {
    WalOptions {
        cap_bytes: 256 << 10,
        reroute_bytes: 64 << 10,
        log: options(),
    }
}

async fn all(wal: &Wal) -> Vec<u64> {
    let read = wal.read(WalSeq(0), 10_000, 10 << 20).await.unwrap();
    for (seq, got) in &read {
        assert_eq!(*got, entry(seq.0 - 1));
    }
    read.iter().map(|(seq, _)| seq.0).collect()
}

fn seqs(range: impl IntoIterator<Item = u64>) -> Vec<WalSeq> {
    range.into_iter().map(WalSeq).collect()
}

fn crash(wal: &Wal, to: &Path) {
    copy_tree(&wal.dir(), to);
}

#[test]
fn what_is_not_done_waits_across_a_crash() {
    let dir = Dir::new("wal-crash");
    run(&dir, |root| async move {
        let (wal, found) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        assert_eq!(found.pending.records, 0);
        assert_eq!(wal.append(entries(0, 50)).await.unwrap(), WalSeq(1));
        assert_eq!(wal.append(entries(50, 10)).await.unwrap(), WalSeq(51));
        assert_eq!(all(&wal).await, (1..61).collect::<Vec<_>>());
        wal.done(&seqs(1..21));
        wal.done(&seqs([30, 32]));
        let left: Vec<_> = (21..61).filter(|s| ![30, 32].contains(s)).collect();
        assert_eq!(all(&wal).await, left);
        assert_eq!(wal.pending().records, 38);
        assert_eq!(wal.pending().oldest, Some(WalSeq(21)));
        crash(&wal, &root.join("before"));
        wal.checkpoint().await.unwrap();
        crash(&wal, &root.join("after"));
        let (before, _) = Wal::open(&root.join("before"), &small()).await.unwrap();
        assert_eq!(before.id(), wal.id());
        assert_eq!(all(&before).await, (1..61).collect::<Vec<_>>());
        let (after, _) = Wal::open(&root.join("after"), &small()).await.unwrap();
        assert_eq!(all(&after).await, (21..61).collect::<Vec<_>>());
        assert_eq!(after.append(entries(60, 1)).await.unwrap(), WalSeq(61));
        assert_eq!(after.read(WalSeq(40), 3, 1 << 20).await.unwrap().len(), 3);
        assert_eq!(after.read(WalSeq(40), 30, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn finished_segments_go_wherever_they_stand_and_sequences_are_never_used_again() {
    let dir = Dir::new("wal-segments");
    run(&dir, |root| async move {
        let (wal, _) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        for n in 0..60 {
            wal.append(entries(n * 10, 10)).await.unwrap();
        }
        let files = segment_files(&wal.dir()).len();
        assert!(files >= 3, "{files}");
        // One entry cannot be delivered; everything else is.
        wal.done(&seqs((1..601).filter(|s| *s != 5)));
        wal.checkpoint().await.unwrap();
        assert_eq!(all(&wal).await, [5]);
        let left = segment_files(&wal.dir()).len();
        assert!(left <= 2, "{left}");
        crash(&wal, &root.join("crash"));
        let (back, found) = Wal::open(&root.join("crash"), &small()).await.unwrap();
        assert!(found.report.damage.is_empty(), "{found:?}");
        let waiting = all(&back).await;
        assert!(waiting.contains(&5));
        wal.done(&seqs([5]));
        wal.checkpoint().await.unwrap();
        assert_eq!(wal.pending().records, 0);
        wal.close().await.unwrap();
        let (wal, _) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        assert_eq!(all(&wal).await, [0; 0]);
        assert_eq!(wal.append(entries(600, 1)).await.unwrap(), WalSeq(601));
        assert_eq!(all(&wal).await, [601]);
    });
}

#[test]
fn the_cap_holds_and_room_comes_back() {
    let dir = Dir::new("wal-cap");
    run(&dir, |root| async move {
        let (wal, _) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        let mut n = 0;
        let full = loop {
            match wal.append(entries(n, 10)).await {
                Ok(_) => n += 10,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, AppendError::Full { .. }), "{full}");
        assert!(wal.pending().disk_bytes <= small().cap_bytes);
        wal.done(&seqs(1..n + 1));
        wal.checkpoint().await.unwrap();
        assert_eq!(wal.append(entries(n, 10)).await.unwrap(), WalSeq(n + 1));
        assert_eq!(all(&wal).await.len(), 10);
    });
}

#[test]
fn one_entry_that_waits_makes_the_wal_forget_no_delivery() {
    const BATCH: u64 = 1 << 16;
    let dir = Dir::new("wal-long");
    run(&dir, |root| async move {
        let options = WalOptions {
            cap_bytes: 16 << 20,
            ..small()
        };
        let (wal, _) = Wal::open(&root.join("wal"), &options).await.unwrap();
        let tiny = |n| WalEntry {
            record: record(n, 1),
            ..entry(0)
        };
        // More than fit in the WAL at once, and more than a million above the one that waits.
        for batch in 0..17 {
            let from = batch * BATCH;
            let entries: Vec<_> = (from..from + BATCH).map(tiny).collect();
            for part in entries.chunks(BATCH as usize / 2) {
                wal.append(part.to_vec()).await.unwrap();
            }
            wal.done(&seqs((from + 1..from + BATCH + 1).filter(|s| *s != 5)));
            wal.checkpoint().await.unwrap();
        }
        let pending = wal.pending();
        assert_eq!((pending.records, pending.oldest), (1, Some(WalSeq(5))));
        assert!(segment_files(&wal.dir()).len() <= 2);
        let left = wal.read(WalSeq(0), 10, 1 << 20).await.unwrap();
        assert_eq!(left, [(WalSeq(5), tiny(4))]);
        wal.done(&seqs([5]));
        assert_eq!(wal.pending().records, 0);
    });
}

#[test]
fn a_full_wal_has_room_for_its_own_records_on_their_way_to_another_partition() {
    let dir = Dir::new("wal-reroute");
    run(&dir, |root| async move {
        let options = small();
        let (wal, _) = Wal::open(&root.join("wal"), &options).await.unwrap();
        let mut n = 0;
        while wal.append(entries(n, 10)).await.is_ok() {
            n += 10;
        }
        // Nothing can be delivered: every entry goes elsewhere once, oldest first.
        for from in (0..n).step_by(10) {
            let first = wal.append_rerouted(entries(n + from, 10)).await.unwrap();
            assert_eq!(first, WalSeq(n + from + 1));
            wal.done(&seqs(from + 1..from + 11));
            wal.checkpoint().await.unwrap();
        }
        assert_eq!(all(&wal).await, (n + 1..2 * n + 1).collect::<Vec<_>>());
        let most = options.cap_bytes + options.reroute_bytes;
        let full = loop {
            match wal.append_rerouted(entries(2 * n, 10)).await {
                Ok(_) => assert!(wal.pending().disk_bytes <= most),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, AppendError::Full { .. }), "{full}");
    });
}

#[test]
fn damage_costs_the_damaged_entries_only() {
    let dir = Dir::new("wal-damage");
    run(&dir, |root| async move {
        let (wal, _) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        for n in 0..20 {
            wal.append(entries(n, 1)).await.unwrap();
        }
        wal.close().await.unwrap();
        let file = segment_files(&root.join("wal"))[0].clone();
        patch(&file, 512 * 5 + 100, &[0xaa; 16]);
        let (wal, _) = Wal::open(&root.join("wal"), &small()).await.unwrap();
        let got = all(&wal).await;
        assert_eq!(got.len(), 19);
        assert_eq!(wal.pending().lost, 1);
        wal.done(&seqs(got));
        assert_eq!(wal.pending().records, 0);
    });
}

/// Where in a segment the damage is.
const DAMAGED_AT: u64 = 512 * 5 + 100;
/// Entries in it.
const COUNT: u64 = 300;

/// A WAL with several sealed segments, one of which has a damaged entry: its file, and what was there.
async fn damaged(root: &Path) -> (Wal, PathBuf, Vec<u8>) {
    let dir = root.join("shards/0/wal");
    std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
    let (wal, _) = Wal::open(&dir, &small()).await.unwrap();
    for n in 0..COUNT {
        wal.append(entries(n, 1)).await.unwrap();
    }
    wal.close().await.unwrap();
    let files = segment_files(&dir);
    assert!(files.len() > 2, "{files:?}");
    let at = DAMAGED_AT as usize;
    let right = std::fs::read(&files[1]).unwrap()[at..at + 16].to_vec();
    patch(&files[1], DAMAGED_AT, &[0xaa; 16]);
    let (wal, _) = Wal::open(&dir, &small()).await.unwrap();
    (wal, files[1].clone(), right)
}

#[test]
fn a_segment_that_has_lost_entries_is_kept_for_the_operator() {
    let dir = Dir::new("wal-kept");
    run(&dir, |root| async move {
        let (mut wal, _, _) = damaged(&root).await;
        let path = wal.dir();
        let got = all(&wal).await;
        assert_eq!((got.len(), wal.pending().lost), (COUNT as usize - 1, 1));
        // The checkpoint passes over what is lost, and the process starts again before the rest is done.
        let (most, rest) = got.split_at(200);
        wal.done(&seqs(most.to_vec()));
        wal.close().await.unwrap();
        wal = Wal::open(&path, &small()).await.unwrap().0;
        wal.done(&seqs(rest.to_vec()));
        wal.close().await.unwrap();
        let kept = segment_files(&path.join("damaged"));
        assert_eq!(kept.len(), 1, "{kept:?}");
        let report = narad_storage::offline::verify(&root).unwrap();
        let damage: Vec<_> = report.logs.iter().flat_map(|log| &log.problems).collect();
        assert!(
            damage.len() == 1 && damage[0].contains("damaged"),
            "{damage:?}"
        );
        // And the WAL goes on.
        let (wal, recovery) = Wal::open(&path, &small()).await.unwrap();
        assert_eq!(recovery.pending.records, 0);
        wal.append(entries(COUNT, 1)).await.unwrap();
        assert_eq!(all(&wal).await, [COUNT + 1]);
    });
}

/// Puts the right bytes back once the file was read.
struct Misread {
    file: PathBuf,
    right: Vec<u8>,
}

impl Probe for Misread {
    fn after(&mut self, op: &Op<'_>) {
        if matches!(op, Op::Read { path, .. } if *path == self.file) {
            patch(&self.file, DAMAGED_AT, &self.right);
        }
    }
}

#[test]
fn what_the_disk_misreads_once_is_not_lost() {
    let dir = Dir::new("wal-misread");
    run(&dir, |root| async move {
        let (wal, file, right) = damaged(&root).await;
        fault::set(Box::new(Misread { file, right }));
        let got = all(&wal).await;
        fault::clear();
        assert_eq!((got.len(), wal.pending().lost), (COUNT as usize, 0));
    });
}
