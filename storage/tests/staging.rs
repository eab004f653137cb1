//! The target side of a move: staging a live log, resuming, finishing, installing, rolling back.

mod common;

use common::*;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{HandoffId, MoveId, Offset, Origin, WalId, WalSeq};
use narad_core::moves::target::Told;
use narad_storage::layout;
use narad_storage::{
    Log, StageBuf, StageError, Staging, StorageError, installed_manifest, roll_back_install,
};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MOVE: MoveId = MoveId(40);

fn mark() -> InstallMark {
    InstallMark {
        move_id: MOVE,
        handoff_id: Some(HandoffId(41)),
    }
}

fn bytes_of(log: &Log, id: SegmentId, from: u64, to: u64) -> Vec<u8> {
    let file = std::fs::File::open(log.segment_path(id).unwrap()).unwrap();
    let mut bytes = vec![0; (to - from) as usize];
    file.read_exact_at(&mut bytes, from).unwrap();
    bytes
}

fn staged_len(staging: &Staging, id: SegmentId) -> u64 {
    let found = staging.progress().into_iter().find(|s| s.id == id);
    found.map_or(0, |s| s.durable_len)
}

/// Copies what the manifest names and is not staged, in chunks of `chunk` bytes.
async fn pass(log: &Log, staging: &mut Staging, manifest: &Manifest, chunk: usize) {
    for s in &manifest.segments {
        let mut at = staged_len(staging, s.id);
        while at < s.durable_len {
            let to = (at + chunk as u64).min(s.durable_len);
            let bytes = bytes_of(log, s.id, at, to);
            staging
                .write(s.id, at, StageBuf::copy_of(&bytes))
                .await
                .unwrap();
            at = to;
        }
    }
}

async fn source(root: &Path, count: u64) -> Log {
    let log = Log::create(root, copy(1), &options()).await.unwrap();
    for n in 0..count {
        let origin = n.is_multiple_of(5).then_some(Origin {
            wal: WalId(9),
            seq: WalSeq(n + 1),
        });
        log.append(records(n, 1, 400), origin).await.unwrap();
    }
    log
}

async fn open_staging(root: &Path) -> Staging {
    Staging::open_or_create(root, key(), MOVE, &options())
        .await
        .unwrap()
}

#[test]
fn a_live_log_is_copied_finished_installed_and_opened_as_it_was() {
    for chunk in [1 << 20, 4096, 700] {
        let dir = Dir::new("stage-live");
        run(&dir, move |root| async move {
            let (a, b) = (root.join("a"), root.join("b"));
            let log = source(&a, 500).await;
            log.set_frontier(Offset(77));
            let mut staging = open_staging(&b).await;
            for round in 0..4 {
                let manifest = log.manifest();
                log.append(records(500 + round * 20, 20, 400), None)
                    .await
                    .unwrap();
                pass(&log, &mut staging, &manifest, chunk).await;
                staging.sync().await.unwrap();
            }
            staging.prepare_install(copy(2), &b).await.unwrap();
            log.settle().await;
            let capture = log.manifest();
            pass(&log, &mut staging, &capture, chunk).await;
            staging.finish(&capture, mark(), copy(2)).await.unwrap();
            staging.install(&b, copy(2)).await.unwrap();

            let found = layout::scan(&b).await.unwrap();
            assert_eq!(found.copies.len(), 1);
            assert_eq!(found.copies[0].install, Some(mark()));
            let (new, report) = Log::open(&b, copy(2), &options()).await.unwrap();
            assert_eq!(
                (report.scanned_segments, report.bytes_read),
                (0, 0),
                "{report:?}"
            );
            assert_eq!((new.hwm(), new.frontier()), (Offset(580), Offset(77)));
            assert_eq!(new.mark(WalId(9)), WalSeq(496));
            let theirs: Vec<_> = capture
                .segments
                .iter()
                .map(|s| (s.id, s.durable_len, s.digest, s.end))
                .collect();
            let ours: Vec<_> = new
                .manifest()
                .segments
                .iter()
                .map(|s| (s.id, s.durable_len, s.digest, s.end))
                .collect();
            assert_eq!(ours, theirs);
            expect_numbers(&new, 0..580, 400).await;
            new.clear_install_mark().await.unwrap();
            new.append(records(580, 10, 400), None).await.unwrap();
            expect_numbers(&new, 0..590, 400).await;
            let epochs: Vec<_> = new
                .manifest()
                .segments
                .iter()
                .map(|s| s.id.epoch.0)
                .collect();
            assert_eq!((epochs[0], epochs[epochs.len() - 1]), (1, 2));
            new.close().await.unwrap();
            let (new, report) = Log::open(&b, copy(2), &options()).await.unwrap();
            assert_eq!(report.damage, []);
            assert_eq!(new.install_mark(), None);
            expect_numbers(&new, 0..590, 400).await;
        });
    }
}

#[test]
fn staging_resumes_where_it_was_saved_and_drops_the_rest() {
    let dir = Dir::new("stage-resume");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 400).await;
        let manifest = log.manifest();
        let told = Told {
            move_id: MOVE,
            manifest: Manifest {
                segments: vec![],
                ..manifest.clone()
            },
        };
        let mut staging = open_staging(&b).await;
        staging.set_told(told.clone());
        let half = Manifest {
            segments: manifest.segments[..2].to_vec(),
            ..manifest.clone()
        };
        pass(&log, &mut staging, &half, 10_000).await;
        staging.sync().await.unwrap();
        let saved = staging.progress();
        pass(&log, &mut staging, &manifest, 10_000).await;
        // Waiting for what is under way makes nothing durable.
        staging.settle().await;
        drop(staging);
        let mut staging = open_staging(&b).await;
        assert_eq!(staging.progress(), saved);
        assert_eq!(staging.told(), Some(&told));
        // A place in the middle of a frame is no place to resume from.
        let next = manifest.segments[2];
        let bytes = bytes_of(&log, next.id, 0, 5000);
        staging
            .write(next.id, 0, StageBuf::copy_of(&bytes))
            .await
            .unwrap();
        staging.sync().await.unwrap();
        drop(staging);
        let mut staging = open_staging(&b).await;
        let resumed = staging.progress()[2];
        assert!(
            resumed.durable_len > 0 && resumed.durable_len <= 5000,
            "{resumed:?}"
        );
        let digest = log
            .digest_prefix(next.id, resumed.durable_len)
            .await
            .unwrap();
        assert_eq!(digest, Some(resumed.digest));
        pass(&log, &mut staging, &manifest, 10_000).await;
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        expect_numbers(&new, 0..400, 400).await;
    });
}

#[test]
fn a_copy_that_differs_is_never_finished() {
    let dir = Dir::new("stage-differs");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 200).await;
        let manifest = log.manifest();
        let mut staging = open_staging(&b).await;
        pass(&log, &mut staging, &manifest, 1 << 20).await;
        let mut wrong = manifest.clone();
        wrong.segments[1].digest ^= 1;
        let refused = staging.finish(&wrong, mark(), copy(2)).await;
        assert!(
            matches!(refused, Err(StageError::Mismatch { .. })),
            "{refused:?}"
        );
        let mut longer = manifest.clone();
        longer.segments.last_mut().unwrap().durable_len += 512;
        let refused = staging.finish(&longer, mark(), copy(2)).await;
        assert!(
            matches!(refused, Err(StageError::Mismatch { .. })),
            "{refused:?}"
        );
        let mut higher = manifest.clone();
        higher.hwm = Offset(201);
        let refused = staging.finish(&higher, mark(), copy(2)).await;
        assert!(
            matches!(refused, Err(StageError::Short { .. })),
            "{refused:?}"
        );
        let refused = staging.install(&b, copy(2)).await;
        assert!(
            matches!(refused, Err(StageError::NotFinished { .. })),
            "{refused:?}"
        );
        assert_eq!(layout::scan(&b).await.unwrap().copies, []);
    });
}

#[test]
fn bytes_changed_on_the_wire_are_refused_and_the_segment_goes_on() {
    let dir = Dir::new("stage-wire");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 100).await;
        let manifest = log.manifest();
        let s = manifest.segments[0];
        let mut staging = open_staging(&b).await;
        let good = bytes_of(&log, s.id, 0, 8192);
        staging
            .write(s.id, 0, StageBuf::copy_of(&good))
            .await
            .unwrap();
        let mut bad = bytes_of(&log, s.id, 8192, 16384);
        bad[3000] ^= 4;
        let refused = staging.write(s.id, 8192, StageBuf::copy_of(&bad)).await;
        assert!(
            matches!(refused, Err(StageError::BadBytes { .. })),
            "{refused:?}"
        );
        let at = staged_len(&staging, s.id);
        assert!(at <= 8192 && at > 0);
        let refused = staging
            .write(s.id, at + 512, StageBuf::copy_of(&good))
            .await;
        assert!(matches!(refused, Err(StageError::NotContiguous { .. })));
        pass(&log, &mut staging, &manifest, 8192).await;
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        expect_numbers(&new, 0..100, 400).await;
    });
}

#[test]
fn damage_that_the_source_has_moves_as_it_is() {
    let dir = Dir::new("stage-damage");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 120).await;
        let first = log.manifest().segments[0];
        let path = log.segment_path(first.id).unwrap();
        log.close().await.unwrap();
        patch(&path, 9000, &[0xee; 40]);
        // Without the list the segment is read again, as a scrub would, and has a new digest.
        std::fs::remove_file(path.with_file_name("segments.list")).unwrap();
        let (log, report) = Log::open(&a, copy(1), &options()).await.unwrap();
        assert_eq!(report.damage.len(), 1, "{report:?}");
        let (want, skipped) = read_all(&log).await;
        assert_eq!(skipped, 1);
        let manifest = log.manifest();
        let mut staging = open_staging(&b).await;
        let s = manifest.segments[0];
        let all = bytes_of(&log, s.id, 0, s.durable_len);
        let refused = staging.write(s.id, 0, StageBuf::copy_of(&all)).await;
        assert!(
            matches!(refused, Err(StageError::BadBytes { .. })),
            "{refused:?}"
        );
        pass(&log, &mut staging, &manifest, 1 << 20).await;
        assert_eq!(staging.damaged_records(), 1);
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        assert_eq!(read_all(&new).await, (want, 1));
    });
}

#[test]
fn no_staging_or_install_beside_a_real_copy() {
    let dir = Dir::new("stage-r1");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 10).await;
        let refused = Staging::open_or_create(&a, key(), MOVE, &options()).await;
        assert!(matches!(refused, Err(StageError::RealCopyExists { copy: c }) if c == copy(1)));
        let mut staging = open_staging(&b).await;
        let manifest = log.manifest();
        pass(&log, &mut staging, &manifest, 4096).await;
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        Log::create(&b, copy(1), &options()).await.unwrap();
        let refused = staging.install(&b, copy(2)).await;
        assert!(
            matches!(refused, Err(StageError::RealCopyExists { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn an_install_is_rolled_back_into_staging_with_everything_it_holds() {
    let dir = Dir::new("stage-rollback");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 150).await;
        let mut staging = open_staging(&b).await;
        let manifest = log.manifest();
        pass(&log, &mut staging, &manifest, 4096).await;
        let staged = staging.progress();
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        // What the source had told is in the copy, for whoever did not hear it.
        let told = installed_manifest(&b, copy(2), MOVE).await.unwrap();
        let segments = vec![];
        assert_eq!(
            told,
            Some(Manifest {
                segments,
                ..manifest
            })
        );
        let other = installed_manifest(&b, copy(2), MoveId(39)).await.unwrap();
        assert_eq!(other, None);
        let refused = roll_back_install(&b, copy(2), MoveId(39)).await;
        assert!(matches!(refused, Err(StorageError::Damaged { .. })));
        roll_back_install(&b, copy(2), MOVE).await.unwrap();
        roll_back_install(&b, copy(2), MOVE).await.unwrap();
        assert_eq!(layout::scan(&b).await.unwrap().copies, []);
        let mut staging = open_staging(&b).await;
        assert_eq!(staging.progress(), staged);
        // The source went on meanwhile; another move takes the bytes over.
        drop(staging);
        log.append(records(150, 10, 400), None).await.unwrap();
        staging = Staging::open_or_adopt(&b, key(), MoveId(50), &options())
            .await
            .unwrap();
        assert_eq!(staging.progress(), staged);
        let manifest = log.manifest();
        pass(&log, &mut staging, &manifest, 4096).await;
        staging.finish(&manifest, mark(), copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        expect_numbers(&new, 0..160, 400).await;
    });
}

#[test]
fn hidden_records_stay_hidden_until_an_append_passes_them_also_after_a_second_move() {
    let dir = Dir::new("stage-hidden");
    run(&dir, |root| async move {
        let (a, b, c) = (root.join("a"), root.join("b"), root.join("c"));
        let log = source(&a, 60).await;
        let mut staging = open_staging(&b).await;
        let manifest = log.manifest();
        pass(&log, &mut staging, &manifest, 4096).await;
        // A promotion: the source had told 50 as its high-watermark.
        let origin = |seq| Origin {
            wal: WalId(9),
            seq: WalSeq(seq),
        };
        assert_eq!(manifest.marks, [origin(56)]);
        let capture = Manifest {
            hwm: Offset(50),
            frontier: Offset(20),
            marks: vec![origin(46)],
            ..manifest
        };
        let promoted = InstallMark {
            move_id: MOVE,
            handoff_id: None,
        };
        staging.finish(&capture, promoted, copy(2)).await.unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        for _ in 0..2 {
            let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
            assert_eq!(
                (new.hwm(), new.end(), new.frontier()),
                (Offset(50), Offset(60), Offset(20))
            );
            expect_numbers(&new, 0..50, 400).await;
            // What is hidden is dispatched again, and is no duplicate then.
            assert_eq!(new.mark(WalId(9)), WalSeq(46));
            new.close().await.unwrap();
        }
        // Moved on while still hidden.
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        let manifest = new.manifest();
        assert_eq!(manifest.fence, Some((Offset(50), Offset(60))));
        let mut staging = open_staging(&c).await;
        pass(&new, &mut staging, &manifest, 4096).await;
        staging.finish(&manifest, mark(), copy(3)).await.unwrap();
        staging.install(&c, copy(3)).await.unwrap();
        let (third, _) = Log::open(&c, copy(3), &options()).await.unwrap();
        assert_eq!((third.hwm(), third.end()), (Offset(50), Offset(60)));
        third.append(records(60, 1, 400), None).await.unwrap();
        assert_eq!((third.hwm(), third.fence()), (Offset(61), None));
        expect_numbers(&third, 0..61, 400).await;
        let crash = root.join("crash");
        copy_tree(&c.join("partitions"), &crash.join("partitions"));
        let (third, _) = Log::open(&crash, copy(3), &options()).await.unwrap();
        assert_eq!(third.hwm(), Offset(61));
    });
}

#[test]
fn an_empty_partition_and_a_trimmed_one_move_too() {
    let dir = Dir::new("stage-empty");
    run(&dir, |root| async move {
        let (a, b, c) = (root.join("a"), root.join("b"), root.join("c"));
        let log = Log::create(&a, copy(1), &options()).await.unwrap();
        let mut staging = open_staging(&b).await;
        staging
            .finish(&log.manifest(), mark(), copy(2))
            .await
            .unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (log, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        assert_eq!((log.hwm(), log.start()), (Offset(0), Offset(0)));
        for n in 0..400 {
            log.append(records(n, 1, 400), None).await.unwrap();
        }
        let mut staging = open_staging(&c).await;
        pass(&log, &mut staging, &log.manifest(), 4096).await;
        assert!(log.retain(None, Some(100 << 10)).await.unwrap() > 0);
        let capture = log.manifest();
        let refused = staging.finish(&capture, mark(), copy(3)).await;
        assert!(matches!(refused, Err(StageError::Mismatch { .. })));
        let ids: Vec<_> = capture.segments.iter().map(|s| s.id).collect();
        staging.keep(&ids).await.unwrap();
        staging.finish(&capture, mark(), copy(3)).await.unwrap();
        staging.install(&c, copy(3)).await.unwrap();
        let (new, _) = Log::open(&c, copy(3), &options()).await.unwrap();
        assert_eq!(new.start(), log.start());
        expect_numbers(&new, new.start().0..400, 400).await;
    });
}

#[test]
fn staging_is_cut_reset_and_set_aside() {
    let dir = Dir::new("stage-cut");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 200).await;
        let manifest = log.manifest();
        let mut staging = open_staging(&b).await;
        pass(&log, &mut staging, &manifest, 4096).await;
        let cut = SegmentState {
            durable_len: 20 * 1024,
            ..manifest.segments[0]
        };
        staging.truncate_to(&[cut]).await.unwrap();
        let left = staging.progress();
        assert_eq!(left.len(), 1);
        let len = left[0].durable_len;
        assert_eq!(
            log.digest_prefix(cut.id, len).await.unwrap(),
            Some(left[0].digest)
        );
        pass(&log, &mut staging, &manifest, 4096).await;
        assert_eq!(staging.progress().len(), manifest.segments.len());
        staging.reset().await.unwrap();
        assert_eq!(staging.progress(), []);
        pass(&log, &mut staging, &manifest, 4096).await;
        staging.sync().await.unwrap();
        let aside = staging.set_aside(&b).await.unwrap();
        assert_eq!(segment_files(&aside).len(), manifest.segments.len());
        assert_eq!(open_staging(&b).await.progress(), []);
        assert_eq!(layout::scan(&b).await.unwrap().asides, [aside]);
        layout::delete_asides(&b, key()).await.unwrap();
        assert_eq!(layout::scan(&b).await.unwrap().asides.len(), 0);
    });
}
