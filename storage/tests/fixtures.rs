//! Directories that format version 1 wrote, opened by this version for ever.
//!
//! `NARAD_WRITE_FIXTURES=1 cargo test -p narad-storage --test fixtures` writes those of a new version;
//! existing ones are never written again.

mod common;

use common::*;
use narad_core::copy::InstallMark;
use narad_core::ids::{MoveId, Offset, Origin, PartitionIndex, TopicId, WalId, WalSeq};
use narad_storage::{Log, Options, StageBuf, Staging, Wal, WalEntry, WalOptions, layout, offline};
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

fn small() -> Options {
    Options {
        segment_bytes: 8 << 10,
        extent_bytes: 8 << 10,
        ..options()
    }
}

fn wal_options() -> WalOptions {
    WalOptions {
        cap_bytes: 1 << 20,
        reroute_bytes: 0,
        log: small(),
    }
}

fn entry(n: u64) -> WalEntry {
    WalEntry {
        topic: TopicId(7),
        partition: PartitionIndex(n as u32),
        pinned: n == 2,
        record: record(n, 50),
    }
}

async fn write(root: &Path) {
    let log = Log::create(root, copy(1), &small()).await.unwrap();
    for n in 0..60 {
        let origin = Some(Origin {
            wal: WalId(3),
            seq: WalSeq(n + 1),
        });
        log.append(records(n, 1, 250), origin).await.unwrap();
    }
    log.set_frontier(Offset(21));
    log.close().await.unwrap();
    let (log, _) = Log::open(root, copy(1), &small()).await.unwrap();

    // A promoted copy with hidden records, at another place.
    let other = root.join("other");
    let mut staging = Staging::open_or_create(&other, key(), MoveId(9), &small())
        .await
        .unwrap();
    let mut capture = log.manifest();
    for s in &capture.segments {
        let bytes = std::fs::read(log.segment_path(s.id).unwrap()).unwrap();
        let bytes = StageBuf::copy_of(&bytes[..s.durable_len as usize]);
        staging.write(s.id, 0, bytes).await.unwrap();
    }
    capture.hwm = Offset(55);
    staging.sync().await.unwrap();
    let mark = InstallMark {
        move_id: MoveId(9),
        handoff_id: None,
    };
    staging.finish(&capture, mark, copy(2)).await.unwrap();
    staging.install(&other, copy(2)).await.unwrap();
    log.close().await.unwrap();

    let (wal, _) = Wal::open(&root.join("shards/0/wal"), &wal_options())
        .await
        .unwrap();
    wal.append((0..5).map(entry).collect()).await.unwrap();
    wal.done(&[WalSeq(1), WalSeq(2)]);
    wal.close().await.unwrap();
}

#[test]
fn version_1_is_readable() {
    let dir = Dir::new("fixture");
    run(&dir, |root| async move {
        if std::env::var_os("NARAD_WRITE_FIXTURES").is_some() && !fixture().exists() {
            write(&root.join("new")).await;
            copy_tree(&root.join("new"), &fixture());
        }
        let root = root.join("v1");
        copy_tree(&fixture(), &root);
        for at in [root.clone(), root.join("other")] {
            let report = offline::verify(&at).unwrap();
            assert!(report.is_clean() && !report.logs.is_empty(), "{report:?}");
        }
        let (log, report) = Log::open(&root, copy(1), &small()).await.unwrap();
        assert_eq!(
            (report.damage.len(), report.notes.len()),
            (0, 0),
            "{report:?}"
        );
        assert!(report.segments > 2);
        assert_eq!(
            (log.frontier(), log.mark(WalId(3))),
            (Offset(21), WalSeq(60))
        );
        expect_numbers(&log, 0..60, 250).await;

        let other = root.join("other");
        let found = layout::scan(&other).await.unwrap().copies;
        assert_eq!(found[0].install.unwrap().move_id, MoveId(9));
        let (log, _) = Log::open(&other, copy(2), &small()).await.unwrap();
        assert_eq!(
            (log.hwm(), log.end(), log.frontier()),
            (Offset(55), Offset(60), Offset(21))
        );
        expect_numbers(&log, 0..55, 250).await;

        let (wal, found) = Wal::open(&root.join("shards/0/wal"), &wal_options())
            .await
            .unwrap();
        assert_eq!(found.pending.records, 3);
        let left = wal.read(WalSeq(0), 10, 1 << 20).await.unwrap();
        let want: Vec<_> = (2..5).map(|n| (WalSeq(n + 1), entry(n))).collect();
        assert_eq!(left, want);
    });
}
