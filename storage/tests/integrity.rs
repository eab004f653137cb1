//! What a move keeps true about bytes: frozen work is that of the tail, a source that changed below a
//! copied prefix is found, damage moves as it is and is never hidden by a promotion.

mod common;

use common::*;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{Epoch, HandoffId, MoveId, NodeId, RaftIndex};
use narad_core::meta::{Assignment, MoveTarget};
use narad_core::moves::target::{TargetEffect, TargetInput, TargetMove};
use narad_storage::fault::{self, Op, Probe};
use narad_storage::{Log, StageBuf, StageError, Staging};
use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

const MOVE: MoveId = MoveId(40);

fn mark(handoff: Option<u64>) -> InstallMark {
    InstallMark {
        move_id: MOVE,
        handoff_id: handoff.map(HandoffId),
    }
}

fn bytes_of(log: &Log, id: SegmentId, from: u64, to: u64) -> Vec<u8> {
    let file = std::fs::File::open(log.segment_path(id).unwrap()).unwrap();
    let mut bytes = vec![0; (to - from) as usize];
    file.read_exact_at(&mut bytes, from).unwrap();
    bytes
}

/// Copies what the manifest names and is not staged; how many bytes that were. Bytes that are refused
/// are asked for once more: should they be the same again, it is the source that has them so.
async fn pass(log: &Log, staging: &mut Staging, manifest: &Manifest) -> u64 {
    let have = |staging: &Staging, id| {
        let staged = staging.progress().into_iter().find(|have| have.id == id);
        staged.map_or(0, |have| have.durable_len)
    };
    let mut copied = 0;
    for s in &manifest.segments {
        let begin = have(staging, s.id);
        let mut refused = 0;
        while have(staging, s.id) < s.durable_len {
            let at = have(staging, s.id);
            let bytes = bytes_of(log, s.id, at, s.durable_len);
            let chunk = StageBuf::copy_of(&bytes);
            match staging.write(s.id, at, chunk).await {
                Ok(_) => {}
                Err(StageError::BadBytes { .. }) if refused == 0 => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        copied += s.durable_len - begin;
    }
    copied
}

async fn source(root: &Path, count: u64) -> Log {
    let log = Log::create(root, copy(1), &options()).await.unwrap();
    for n in 0..count {
        log.append(records(n, 1, 400), None).await.unwrap();
    }
    log
}

async fn open_staging(root: &Path) -> Staging {
    Staging::open_or_create(root, key(), MOVE, &options())
        .await
        .unwrap()
}

/// Counts the bytes that are read.
struct Reads(Rc<Cell<u64>>);

impl Probe for Reads {
    fn after(&mut self, op: &Op<'_>) {
        if let Op::Read { len, .. } = op {
            self.0.set(self.0.get() + *len as u64);
        }
    }
}

/// Moves a log of `count` records whose tail of ten is copied in the freeze. Bytes read from the
/// freeze on until the new owner takes a record, bytes of the tail, and of the whole.
async fn frozen_reads(root: &Path, count: u64) -> (u64, u64, u64) {
    let (a, b) = (root.join("a"), root.join("b"));
    let log = source(&a, count).await;
    let mut staging = open_staging(&b).await;
    pass(&log, &mut staging, &log.manifest()).await;
    staging.sync().await.unwrap();
    staging.prepare_install(copy(2), &b).await.unwrap();
    for n in count..count + 10 {
        log.append(records(n, 1, 400), None).await.unwrap();
    }
    let read = Rc::new(Cell::new(0));
    fault::set(Box::new(Reads(read.clone())));
    let capture = log.manifest();
    let tail = pass(&log, &mut staging, &capture).await;
    staging
        .finish(&capture, mark(Some(41)), copy(2))
        .await
        .unwrap();
    staging.install(&b, copy(2)).await.unwrap();
    let (new, report) = Log::open(&b, copy(2), &options()).await.unwrap();
    new.append(records(count + 10, 1, 400), None).await.unwrap();
    fault::clear();
    assert_eq!(report.damage, []);
    expect_numbers(&new, 0..count + 11, 400).await;
    // The source sends the tail from its disk; the test reads it past the probe.
    (read.get() + tail, tail, capture.total_bytes())
}

#[test]
fn frozen_work_is_that_of_the_tail_and_not_of_the_partition() {
    let dir = Dir::new("frozen-work");
    run(&dir, |root| async move {
        let (small, tail, whole) = frozen_reads(&root.join("small"), 200).await;
        let (large, large_tail, large_whole) = frozen_reads(&root.join("large"), 3_000).await;
        assert!(large_whole > 10 * whole, "{large_whole} and {whole}");
        assert_eq!(tail, large_tail);
        assert!(
            small <= tail + (1 << 20),
            "{small} read for a tail of {tail}"
        );
        assert!(
            large <= tail + (1 << 20),
            "{large} read for a tail of {tail}"
        );
        // Fifteen times the partition, and not one segment's bytes more.
        assert!(large <= small + (64 << 10), "{large} against {small}");
    });
}

fn view() -> Assignment {
    Assignment {
        owner: NodeId("a".into()),
        epoch: Epoch(1),
        target: Some(MoveTarget {
            node: NodeId("b".into()),
            move_id: MOVE,
            handoff: None,
            manual: false,
        }),
        opened: true,
        ended: vec![],
        changed: RaftIndex(MOVE.0),
        born: Epoch(1),
    }
}

fn worker(staged: Vec<SegmentState>) -> TargetMove {
    let index = RaftIndex(MOVE.0);
    let mut worker = TargetMove::new(NodeId("b".into()), key(), MOVE, index, &view());
    wanted(&mut worker, TargetInput::Start);
    wanted(&mut worker, TargetInput::LocalClear);
    let told = None;
    wanted(&mut worker, TargetInput::StagingReady { staged, told });
    worker
}

fn wanted(worker: &mut TargetMove, input: TargetInput) -> TargetEffect {
    let effects = worker.step(input).into_iter();
    let mut wanted = effects.filter(|effect| !matches!(effect, TargetEffect::Report(_)));
    wanted.next().expect("it wants something")
}

/// Damages a byte of the first segment of a closed log, and opens it again.
async fn changed(root: &Path, log: Log, at: u64) -> Log {
    let first = log.manifest().segments[0];
    let path = log.segment_path(first.id).unwrap();
    log.close().await.unwrap();
    patch(&path, at, &[0xee; 40]);
    std::fs::remove_file(path.with_file_name("segments.list")).unwrap();
    let (log, report) = Log::open(root, copy(1), &options()).await.unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    log
}

#[test]
fn a_source_that_changed_below_a_copied_prefix_is_found_and_copied_again() {
    let dir = Dir::new("source-changed");
    run(&dir, |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = source(&a, 200).await;
        let mut staging = open_staging(&b).await;
        pass(&log, &mut staging, &log.manifest()).await;
        staging.sync().await.unwrap();
        let before = staging.progress();
        let first = before[0];
        let good = bytes_of(&log, first.id, 0, first.durable_len);
        let log = changed(&a, log, 9_000).await;
        for n in 200..220 {
            log.append(records(n, 1, 400), None).await.unwrap();
        }
        let manifest = log.manifest();
        // The decisions, over what the two disks really say: first a target that starts again.
        let mut fresh = worker(before.clone());
        let opened = |manifest: &Manifest| TargetInput::SourceOpened {
            manifest: manifest.clone(),
            write_bytes_per_s: 0,
        };
        let next = wanted(&mut fresh, opened(&manifest));
        assert_eq!(
            next,
            TargetEffect::SetAside {
                decayed: vec![first.id]
            },
            "not the source's bytes any more"
        );
        // Then one that had compared before: the next pass brings lengths at which digests differ.
        let refused = staging.finish(&manifest, mark(Some(41)), copy(2)).await;
        assert!(refused.is_err(), "such a copy is never finished");
        // What was copied while it was whole is the only good copy of it now.
        let kept = staging.keep_for_operator(&b, &[first.id]).await.unwrap();
        let bytes = std::fs::read(&kept[0]).unwrap();
        assert!(kept.len() == 1 && bytes[..good.len()] == good);
        staging.reset().await.unwrap();
        let whole = pass(&log, &mut staging, &manifest).await;
        assert_eq!(whole, manifest.total_bytes(), "copied again from the start");
        let damaged = staging.keep_for_operator(&b, &[first.id]).await.unwrap();
        assert!(damaged.is_empty(), "damage is no good copy: {damaged:?}");
        staging
            .finish(&manifest, mark(Some(41)), copy(2))
            .await
            .unwrap();
        staging.install(&b, copy(2)).await.unwrap();
        let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
        assert_eq!(read_all(&new).await, read_all(&log).await);
    });
}

/// Promotes a copy of a log with a damaged frame at `at`; what the source and the new owner show.
async fn promoted_with_damage(root: &Path, at: u64) {
    let (a, b) = (root.join("a"), root.join("b"));
    let log = changed(&a, source(&a, 120).await, at).await;
    let (want, skipped) = read_all(&log).await;
    assert!(skipped > 0 && (want.len() as u64) + skipped == 120);
    let told = log.manifest();
    let mut staging = open_staging(&b).await;
    pass(&log, &mut staging, &told).await;
    staging.sync().await.unwrap();
    assert_eq!(staging.damaged_records(), skipped, "the copy knows of it");
    drop(log);
    // The owner is gone: what it had told, over what is staged.
    let capture = Manifest {
        segments: staging.progress(),
        ..told.clone()
    };
    staging.finish(&capture, mark(None), copy(2)).await.unwrap();
    staging.install(&b, copy(2)).await.unwrap();
    let (new, _) = Log::open(&b, copy(2), &options()).await.unwrap();
    assert_eq!(new.hwm(), told.hwm, "the place of what is lost is kept");
    assert_eq!(read_all(&new).await, (want, skipped));
    // Reading every byte of it reports the damage, as it did at the source.
    let scrubbed = new.close().await;
    scrubbed.unwrap();
    let list = narad_storage::layout::partition_dir(&b, copy(2)).join("segments.list");
    std::fs::remove_file(list).unwrap();
    let (_, report) = Log::open(&b, copy(2), &options()).await.unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
}

#[test]
fn damage_at_the_source_is_never_hidden_by_a_promotion() {
    let dir = Dir::new("promoted-damage");
    run(&dir, |root| async move {
        promoted_with_damage(&root.join("middle"), 9_000).await;
    });
}
