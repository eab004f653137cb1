//! A directory goes to disks with other blocks: what was written in blocks of 512 bytes is read and
//! appended to on a disk with blocks of 4096, and back.

mod common;
#[path = "common/small_disk.rs"]
mod small_disk;

use common::*;
use narad_core::ids::{Offset, PartitionIndex, TopicId};
use narad_storage::{Log, Options, Wal, WalEntry, WalOptions, offline};
use std::path::Path;

const LEN: usize = 300;

fn small() -> Options {
    Options {
        segment_bytes: 48 << 10,
        extent_bytes: 16 << 10,
        ..options()
    }
}

fn wal_options() -> WalOptions {
    WalOptions {
        cap_bytes: 4 << 20,
        reroute_bytes: 0,
        log: small(),
    }
}

fn entry(n: u64) -> WalEntry {
    WalEntry {
        topic: TopicId(1),
        partition: PartitionIndex(2),
        pinned: false,
        record: record(n, LEN),
    }
}

/// Opens what is there, reads it, and goes on in groups of odd sizes; the process dies at the end.
async fn go_on(root: &Path, from: u64, to: u64) {
    let (log, report) = Log::open(root, copy(1), &small()).await.unwrap();
    assert_eq!((report.damage.len(), report.cut), (0, None), "{report:?}");
    expect_numbers(&log, 0..from, LEN).await;
    let (wal, found) = Wal::open(&root.join("wal"), &wal_options()).await.unwrap();
    assert_eq!(
        (found.report.damage.len(), found.pending.records),
        (0, from)
    );
    for n in from..to {
        log.append(records(n, 1, LEN), None).await.unwrap();
        wal.append(vec![entry(n)]).await.unwrap();
    }
    log.set_frontier(Offset(to / 2));
    log.persist_meta().await.unwrap();
    expect_numbers(&log, 0..to, LEN).await;
    log.settle().await;
    // Read from the disk as well: the digests of whole segments are what the files hold.
    let report = log.scrub(u64::MAX).await.unwrap();
    assert_eq!(report.changed, []);
}

#[test]
fn a_directory_goes_to_a_disk_with_larger_blocks_and_back() {
    let dir = Dir::new("other-disks");
    let (image, at) = (dir.path().join("image"), dir.path().join("disk"));
    let Some(_mount) = small_disk::disk_with_blocks(&image, &at, 64 << 20, 4096) else {
        return;
    };
    run(&dir, move |root| async move {
        narad_storage::prepare_executor(&at).await.unwrap();
        let mut here = root.join("0");
        std::fs::create_dir_all(here.join("wal")).unwrap();
        drop(Log::create(&here, copy(1), &small()).await.unwrap());
        let mut written = 0;
        for step in 1..=4u64 {
            let to = written + 17 + step * 8;
            go_on(&here, written, to).await;
            written = to;
            // By turns on the small disk and on the one of the build.
            let next = [root.clone(), at.clone()][(step % 2) as usize].join(step.to_string());
            copy_tree(&here, &next);
            here = next;
        }
        go_on(&here, written, written + 1).await;
        for partition in [here.join("partitions/t7-p3-e1"), here.join("wal")] {
            let report = offline::verify(&partition).unwrap();
            assert!(report.is_clean(), "{report:?}");
        }
    });
}
