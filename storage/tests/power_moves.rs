//! Power cuts at the target of a move: whatever a disk could hold after a cut during staging, finish,
//! install or its taking back is one copy of the partition, in one place, with everything it was told to
//! be durable, and the move can go on from it.

mod common;

use common::power::{Dice, Recorder, acked, image, images, store};
use common::*;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{HandoffId, MoveId, Offset, Origin, WalId, WalSeq};
use narad_storage::{Log, Options, StageBuf, Staging, fault, layout, roll_back_install};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MOVE: MoveId = MoveId(40);
const RECORDS: u64 = 90;
const LEN: usize = 400;

/// What the live run has been told to be durable, in this order.
const STAGED: u64 = 1;
const FINISHED: u64 = 2;
const INSTALLED: u64 = 3;
const TAKING_BACK: u64 = 4;
const TAKEN_BACK: u64 = 5;

fn small() -> Options {
    Options {
        segment_bytes: 16 << 10,
        extent_bytes: 8 << 10,
        ..options()
    }
}

fn mark() -> InstallMark {
    InstallMark {
        move_id: MOVE,
        handoff_id: Some(HandoffId(41)),
    }
}

fn bytes_of(log: &Log, id: SegmentId, from: u64, to: u64) -> Vec<u8> {
    let file = fs::File::open(log.segment_path(id).unwrap()).unwrap();
    let mut bytes = vec![0; (to - from) as usize];
    file.read_exact_at(&mut bytes, from).unwrap();
    bytes
}

/// Copies what the manifest names and is not staged.
async fn pass(log: &Log, staging: &mut Staging, manifest: &Manifest) {
    for s in &manifest.segments {
        let found = staging.progress().into_iter().find(|p| p.id == s.id);
        let mut at = found.map_or(0, |p| p.durable_len);
        while at < s.durable_len {
            let to = (at + 4096).min(s.durable_len);
            let bytes = StageBuf::copy_of(&bytes_of(log, s.id, at, to));
            staging.write(s.id, at, bytes).await.unwrap();
            at = to;
        }
    }
}

async fn source(root: &Path) -> Log {
    let log = Log::create(root, copy(1), &small()).await.unwrap();
    for n in 0..RECORDS {
        let origin = n.is_multiple_of(5).then_some(Origin {
            wal: WalId(9),
            seq: WalSeq(n + 1),
        });
        log.append(records(n, 1, LEN), origin).await.unwrap();
    }
    log.set_frontier(Offset(33));
    log
}

async fn staging_at(root: &Path) -> Staging {
    Staging::open_or_create(root, key(), MOVE, &small())
        .await
        .unwrap()
}

/// One move into `live`, with an install that is taken back at the end. Returns what was staged at the
/// first sync.
async fn move_into(
    live: &Path,
    log: &Log,
    capture: &Manifest,
    told: &Recorder,
) -> Vec<SegmentState> {
    let mut staging = staging_at(live).await;
    // The first segments only: a move that is under way.
    let early = Manifest {
        segments: capture.segments[..2].to_vec(),
        ..capture.clone()
    };
    pass(log, &mut staging, &early).await;
    staging.sync().await.unwrap();
    told.acked(STAGED);
    let synced = staging.progress();
    staging.prepare_install(copy(2), live).await.unwrap();
    pass(log, &mut staging, capture).await;
    staging.finish(capture, mark(), copy(2)).await.unwrap();
    told.acked(FINISHED);
    staging.install(live, copy(2)).await.unwrap();
    told.acked(INSTALLED);
    // The flip is refused for good.
    let (installed, _) = Log::open(live, copy(2), &small()).await.unwrap();
    installed.close().await.unwrap();
    told.acked(TAKING_BACK);
    roll_back_install(live, copy(2), MOVE).await.unwrap();
    told.acked(TAKEN_BACK);
    synced
}

/// The real copy is what was captured.
async fn check_copy(at: &Path, capture: &Manifest, what: &str) {
    let (log, report) = Log::open(at, copy(2), &small()).await.unwrap();
    assert_eq!((&report.damage[..], report.cut), (&[][..], None), "{what}");
    assert_eq!(log.install_mark(), Some(mark()), "{what}");
    let (hwm, frontier) = (log.hwm(), log.frontier());
    assert_eq!((hwm, frontier), (capture.hwm, capture.frontier), "{what}");
    assert_eq!(log.mark(WalId(9)), WalSeq(RECORDS - 4), "{what}");
    expect_numbers(&log, 0..RECORDS, LEN).await;
    log.append(records(RECORDS, 3, LEN), None).await.unwrap();
    expect_numbers(&log, 0..RECORDS + 3, LEN).await;
}

/// What is staged is a prefix of the source, and the move ends from here.
async fn go_on(at: &Path, log: &Log, capture: &Manifest, least: &[SegmentState], what: &str) {
    let mut staging = staging_at(at).await;
    let found = staging.progress();
    for want in least {
        let have = found.iter().find(|s| s.id == want.id);
        assert!(
            have.is_some_and(|h| h.durable_len >= want.durable_len),
            "{what}: {want:?} was durable; {have:?}"
        );
    }
    for s in &found {
        let theirs = log.digest_prefix(s.id, s.durable_len).await.unwrap();
        assert_eq!(theirs, Some(s.digest), "{what}: {s:?}");
    }
    pass(log, &mut staging, capture).await;
    staging.prepare_install(copy(2), at).await.unwrap();
    staging.finish(capture, mark(), copy(2)).await.unwrap();
    staging.install(at, copy(2)).await.unwrap();
    check_copy(at, capture, what).await;
}

#[test]
fn a_copy_is_whole_and_in_one_place_wherever_the_power_goes() {
    let images = images(400);
    let dir = Dir::new("power-move");
    run(&dir, move |root| async move {
        let log = source(&root.join("source")).await;
        log.settle().await;
        let capture = log.manifest();
        assert!(capture.segments.len() > 2, "{capture:?}");
        let live = root.join("live");
        fs::create_dir_all(&live).unwrap();
        let events = Recorder::start(&live);
        let synced = move_into(&live, &log, &capture, &events).await;
        fault::clear();
        let recorded = events.events.borrow().clone();
        let mut dice = Dice::new(0x6a09_e667_f3bc_c908);
        let (mut real, mut staged) = (0, 0);
        for n in 0..images {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let told = acked(&recorded[..cut]);
            let at = root.join(format!("image-{n}"));
            fs::create_dir_all(&at).unwrap();
            store(&image(&recorded[..cut], &mut dice), &live, &at);
            let what = format!("image {n}, cut at {cut} of {}, told {told}", recorded.len());
            let found = layout::scan(&at).await.unwrap();
            let (copies, stagings) = (found.copies.len(), found.stagings.len());
            assert!(copies + stagings <= 1, "{what}: {found:?}");
            match told {
                INSTALLED => assert_eq!(copies, 1, "{what}: {found:?}"),
                STAGED | TAKEN_BACK => assert_eq!(stagings, 1, "{what}: {found:?}"),
                FINISHED | TAKING_BACK => assert_eq!(copies + stagings, 1, "{what}: {found:?}"),
                _ => assert_eq!(copies, 0, "{what}: {found:?}"),
            }
            if copies == 1 {
                real += 1;
                check_copy(&at, &capture, &what).await;
            } else {
                staged += 1;
                let least: &[SegmentState] = match told {
                    0 => &[],
                    TAKING_BACK | TAKEN_BACK => &capture.segments,
                    _ => &synced,
                };
                go_on(&at, &log, &capture, least, &what).await;
            }
            let _ = fs::remove_dir_all(&at);
        }
        // The dice have found both outcomes.
        assert!(
            real > images / 20 && staged > images / 20,
            "{real} {staged}"
        );
    });
}
