//! openraft's own suite on the durable store, and what recovery makes of damaged directories. Real files.

use super::super::machine::{Machine, MachineAdaptor};
use super::super::runtime::GlommioRuntime;
use super::super::types::{Entry, LogId, MembershipView, Proposal, RaftNodeId, TypeConfig, Vote};
use super::{LogStore, StoreError};
use openraft::AsyncRuntime;
use openraft::RaftLogReader;
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log::{StoreBuilder, Suite};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh directory on the disk of the build, removed at the end.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .join("raft-tests");
        let path = base.join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Remembers what was applied.
#[derive(Default)]
struct Remember(Vec<Vec<u8>>);

impl Machine for Remember {
    fn apply(&mut self, _index: u64, _term: u64, proposal: &[u8]) -> Result<Vec<u8>, String> {
        self.0.push(proposal.to_vec());
        Ok(Vec::new())
    }
    fn membership_changed(&mut self, _membership: &MembershipView) {}
    fn applied(&mut self, _index: u64) {}
    fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).unwrap()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = serde_json::from_slice(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

struct Builder;

type Adaptor = MachineAdaptor<Remember>;

impl StoreBuilder<TypeConfig, LogStore, Adaptor, Dir> for Builder {
    async fn build(&self) -> Result<(Dir, LogStore, Adaptor), openraft::StorageError<TypeConfig>> {
        let dir = Dir::new("suite");
        let opened = super::open(&dir.0, "suite").await.unwrap();
        let machine = Rc::new(RefCell::new(Remember::default()));
        let progress = tokio::sync::watch::channel(None).0;
        let adaptor = MachineAdaptor::new(machine, opened.snapshot, progress);
        Ok((dir, opened.log, adaptor))
    }
}

#[test]
fn the_log_suite_of_openraft_passes_on_disk() {
    GlommioRuntime::run(async { Suite::test_all(Builder).await.unwrap() });
}

fn id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    Entry::new_normal(
        id(term, index),
        Proposal(vec![b'a' + (index % 26) as u8; bytes]),
    )
}

async fn open(dir: &Path) -> Result<LogStore, StoreError> {
    super::open(dir, "n1").await.map(|opened| opened.log)
}

/// A log with a vote and entries `0..count` of 100 bytes, each synced on its own.
pub(super) async fn filled(dir: &Path, count: u64) -> LogStore {
    let mut log = open(dir).await.unwrap();
    log.save_vote(&Vote::new(1, RaftNodeId::from("n1")))
        .await
        .unwrap();
    for index in 0..count {
        log.blocking_append([entry(1, index, 100)]).await.unwrap();
    }
    log
}

async fn indexes(log: &mut LogStore) -> Vec<u64> {
    let entries = log.try_get_log_entries(..).await.unwrap();
    entries.iter().map(|entry| entry.log_id.index).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "seg"));
    found.sort();
    found
}

/// Offsets of the frames in a segment.
fn frames(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let header = super::frame::SegmentHeader::decode(&bytes).unwrap();
    let mut found = Vec::new();
    super::frame::scan(&bytes, header, |at, _| found.push(at as u64));
    found
}

fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

#[test]
fn a_log_comes_back_with_its_vote_purge_and_commit_marks() {
    GlommioRuntime::run(async {
        let dir = Dir::new("reopen");
        let vote = Vote::new_committed(3, RaftNodeId::from("n1"));
        {
            let mut log = filled(&dir.0, 5).await;
            log.save_vote(&vote).await.unwrap();
            log.save_committed(Some(id(1, 3))).await.unwrap();
            log.close().await.unwrap();
        }
        let mut log = open(&dir.0).await.unwrap();
        assert_eq!(indexes(&mut log).await, [0, 1, 2, 3, 4]);
        assert_eq!(log.read_vote().await.unwrap(), Some(vote));
        assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 3)));
        assert_eq!(
            log.try_get_log_entries(2..3).await.unwrap(),
            [entry(1, 2, 100)]
        );
        log.blocking_append([entry(2, 5, 7)]).await.unwrap();
        drop(log);
        assert_eq!(
            indexes(&mut open(&dir.0).await.unwrap()).await,
            [0, 1, 2, 3, 4, 5]
        );
    });
}

#[test]
fn a_torn_tail_is_cut_and_its_place_is_used_again() {
    GlommioRuntime::run(async {
        let dir = Dir::new("torn");
        drop(filled(&dir.0, 4).await);
        let segment = segments(&dir.0).remove(0);
        let last = *frames(&segment).last().unwrap();
        flip(&segment, last + 40);
        let mut log = open(&dir.0).await.unwrap();
        assert_eq!(indexes(&mut log).await, [0, 1, 2]);
        log.blocking_append([entry(2, 3, 5)]).await.unwrap();
        drop(log);
        let mut log = open(&dir.0).await.unwrap();
        assert_eq!(
            log.try_get_log_entries(3..).await.unwrap(),
            [entry(2, 3, 5)]
        );
    });
}

#[test]
fn a_tail_cut_in_the_middle_of_a_frame_is_torn_at_every_length() {
    GlommioRuntime::run(async {
        let dir = Dir::new("lengths");
        drop(filled(&dir.0, 3).await);
        let segment = segments(&dir.0).remove(0);
        let whole = fs::read(&segment).unwrap();
        let last = *frames(&segment).last().unwrap() as usize;
        for len in (last + 1..last + 130).step_by(13) {
            fs::write(&segment, &whole[..len]).unwrap();
            assert_eq!(
                indexes(&mut open(&dir.0).await.unwrap()).await,
                [0, 1],
                "{len}"
            );
        }
    });
}

#[test]
fn damage_below_the_durable_end_refuses_to_start_and_changes_nothing() {
    GlommioRuntime::run(async {
        let dir = Dir::new("corrupt");
        drop(filled(&dir.0, 4).await);
        let segment = segments(&dir.0).remove(0);
        let damaged = frames(&segment)[1];
        flip(&segment, damaged + 30);
        let before = fs::read(&segment).unwrap();
        let Err(error) = open(&dir.0).await else {
            panic!("it started")
        };
        assert!(
            matches!(error, StoreError::Corrupt { offset, .. } if offset == damaged),
            "{error}"
        );
        assert!(error.to_string().contains("join it again"), "{error}");
        assert_eq!(fs::read(&segment).unwrap(), before);
    });
}

#[test]
fn a_log_shorter_than_its_commit_mark_refuses_to_start() {
    GlommioRuntime::run(async {
        let dir = Dir::new("short");
        let mut log = filled(&dir.0, 4).await;
        log.save_committed(Some(id(1, 3))).await.unwrap();
        log.close().await.unwrap();
        drop(log);
        let segment = segments(&dir.0).remove(0);
        flip(&segment, *frames(&segment).last().unwrap() + 30);
        assert!(matches!(
            open(&dir.0).await,
            Err(StoreError::Corrupt { .. })
        ));
    });
}

#[test]
fn the_commit_mark_never_runs_ahead_of_what_is_synced() {
    GlommioRuntime::run(async {
        let dir = Dir::new("mark");
        let mut log = filled(&dir.0, 2).await;
        log.append([entry(1, 2, 10)], openraft::storage::IOFlushed::noop())
            .await
            .unwrap();
        log.save_committed(Some(id(1, 2))).await.unwrap();
        assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 1)));
        log.flush().await.unwrap();
        log.save_committed(Some(id(1, 2))).await.unwrap();
        assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 2)));
    });
}

#[test]
fn truncated_entries_never_come_back() {
    GlommioRuntime::run(async {
        let dir = Dir::new("truncate");
        let mut log = filled(&dir.0, 6).await;
        log.truncate_after(Some(id(1, 2))).await.unwrap();
        assert_eq!(indexes(&mut log).await, [0, 1, 2]);
        // As long as the one that was there: were the old bytes still behind it, entry 4 would follow.
        log.blocking_append([entry(1, 3, 100)]).await.unwrap();
        drop(log);
        assert_eq!(
            indexes(&mut open(&dir.0).await.unwrap()).await,
            [0, 1, 2, 3]
        );
    });
}

#[test]
fn segments_roll_and_purging_removes_whole_ones() {
    GlommioRuntime::run(async {
        let dir = Dir::new("roll");
        let mut log = filled(&dir.0, 0).await;
        for index in 0..60 {
            log.append(
                [entry(1, index, 200_000)],
                openraft::storage::IOFlushed::noop(),
            )
            .await
            .unwrap();
        }
        log.flush().await.unwrap();
        assert_eq!(segments(&dir.0).len(), 3);
        // Half of it has left the cache: it is read from disk.
        assert_eq!(
            log.try_get_log_entries(0..1).await.unwrap(),
            [entry(1, 0, 200_000)]
        );
        let few = log.limited_get_log_entries(0, 60).await.unwrap();
        assert_eq!(few.len(), 4, "bounded by bytes");
        log.purge(id(1, 45)).await.unwrap();
        assert_eq!(segments(&dir.0).len(), 1);
        assert_eq!(indexes(&mut log).await, (46..60).collect::<Vec<_>>());
        log.truncate_after(Some(id(1, 46))).await.unwrap();
        log.purge(id(1, 46)).await.unwrap();
        assert_eq!(segments(&dir.0).len(), 0);
        log.blocking_append([entry(2, 47, 10)]).await.unwrap();
        assert_eq!(indexes(&mut log).await, [47]);
    });
}

#[test]
fn a_purge_without_a_snapshot_behind_it_refuses_to_start() {
    GlommioRuntime::run(async {
        let dir = Dir::new("unbacked");
        let mut log = filled(&dir.0, 4).await;
        log.purge(id(1, 2)).await.unwrap();
        drop(log);
        assert!(matches!(
            open(&dir.0).await,
            Err(StoreError::Corrupt { .. })
        ));
    });
}

#[test]
fn a_vote_survives_the_loss_of_either_slot_but_not_of_both() {
    GlommioRuntime::run(async {
        let dir = Dir::new("vote");
        let vote = Vote::new(9, RaftNodeId::from("n2"));
        filled(&dir.0, 3).await.save_vote(&vote).await.unwrap();
        let path = dir.0.join("vote");
        for slot in [0, 4096] {
            flip(&path, slot + 40);
            assert_eq!(
                open(&dir.0).await.unwrap().read_vote().await.unwrap(),
                Some(vote.clone())
            );
            flip(&path, slot + 40);
        }
        flip(&path, 40);
        flip(&path, 4096 + 40);
        assert!(matches!(
            open(&dir.0).await,
            Err(StoreError::Corrupt { .. })
        ));
        fs::remove_file(&path).unwrap();
        assert!(
            matches!(open(&dir.0).await, Err(StoreError::Corrupt { .. })),
            "a log without a vote"
        );
    });
}

#[test]
fn another_nodes_directory_and_newer_formats_are_refused() {
    GlommioRuntime::run(async {
        let dir = Dir::new("refuse");
        drop(filled(&dir.0, 2).await);
        let Err(error) = super::open(&dir.0, "n2").await else {
            panic!("it started")
        };
        assert!(
            matches!(&error, StoreError::WrongNode { found, .. } if found == "n1"),
            "{error}"
        );
        let segment = segments(&dir.0).remove(0);
        let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
        file.write_all_at(&7u32.to_le_bytes(), 8).unwrap();
        let Err(error) = open(&dir.0).await else {
            panic!("it started")
        };
        assert!(
            matches!(
                error,
                StoreError::NewerFormat {
                    found: 7,
                    supported: 1,
                    ..
                }
            ),
            "{error}"
        );
    });
}

#[test]
fn a_segment_that_was_being_created_is_no_damage() {
    GlommioRuntime::run(async {
        let dir = Dir::new("created");
        drop(filled(&dir.0, 2).await);
        fs::write(super::recover::segment_path(&dir.0, 2), vec![0; 8192]).unwrap();
        let mut log = open(&dir.0).await.unwrap();
        assert_eq!(indexes(&mut log).await, [0, 1]);
        log.blocking_append([entry(1, 2, 10)]).await.unwrap();
        drop(log);
        assert_eq!(indexes(&mut open(&dir.0).await.unwrap()).await, [0, 1, 2]);
    });
}

#[test]
fn a_missing_segment_is_noticed() {
    GlommioRuntime::run(async {
        let dir = Dir::new("missing");
        let mut log = filled(&dir.0, 0).await;
        for index in 0..60 {
            log.append(
                [entry(1, index, 200_000)],
                openraft::storage::IOFlushed::noop(),
            )
            .await
            .unwrap();
        }
        log.flush().await.unwrap();
        drop(log);
        for gone in 0..2 {
            let path = segments(&dir.0).remove(gone);
            let bytes = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            assert!(
                matches!(open(&dir.0).await, Err(StoreError::Corrupt { .. })),
                "segment {gone}"
            );
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(indexes(&mut open(&dir.0).await.unwrap()).await.len(), 60);
    });
}
