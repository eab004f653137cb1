//! What opening a log makes of every kind of damage: nothing valid is cut, nothing invented is shown.

mod common;

use common::*;
use narad_core::ids::{Offset, Origin, WalId, WalSeq};
use narad_storage::{Log, Options, RecoveryReport, StorageError, offline};
use std::fs;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 512;

/// A log of `count` records of one block each, as a crash leaves it; its one segment file.
async fn crashed(root: &Path, count: u64) -> PathBuf {
    let live = root.join("live");
    let log = Log::create(&live, copy(1), &big()).await.unwrap();
    for n in 0..count {
        log.append(records(n, 1, 300), None).await.unwrap();
    }
    copy_tree(&live.join("partitions"), &root.join("partitions"));
    let files = segment_files(&root.join("partitions/t7-p3-e1"));
    assert_eq!(files.len(), 1);
    files[0].clone()
}

fn big() -> Options {
    Options {
        segment_bytes: 1 << 20,
        cache_bytes: 0,
        ..options()
    }
}

/// Position of the frame with record `n` in [`crashed`]: behind the header, one block each.
const fn at(n: u64) -> u64 {
    BLOCK * (n + 1)
}

async fn open(root: &Path) -> (Log, RecoveryReport) {
    Log::open(root, copy(1), &big()).await.unwrap()
}

/// Appends, and opens once more: what recovery left must be a sound log again.
async fn goes_on(root: &Path, log: Log, next: u64, skipped: u64) {
    assert_eq!(log.end(), Offset(next));
    log.append(records(next, 3, 300), None).await.unwrap();
    let (got, lost) = read_all(&log).await;
    assert_eq!(lost, skipped);
    assert_eq!(got.len() as u64 + skipped, next + 3);
    for (offset, found) in &got {
        assert_eq!(*found, record(*offset, 300));
    }
    log.close().await.unwrap();
    let (log, report) = open(root).await;
    assert_eq!(report.cut, None);
    assert_eq!(read_all(&log).await, (got, skipped));
    let checked = offline::verify(root).unwrap();
    assert_eq!(checked.logs[0].end, next + 3);
    assert_eq!(checked.logs[0].torn_bytes, 0);
    assert_eq!(checked.is_clean(), skipped == 0, "{checked:?}");
}

#[test]
fn a_crash_at_rest_loses_nothing() {
    let dir = Dir::new("rec-rest");
    run(&dir, |root| async move {
        crashed(&root, 20).await;
        let (log, report) = open(&root).await;
        assert_eq!((report.cut, report.damage.len()), (None, 0));
        goes_on(&root, log, 20, 0).await;
    });
}

#[test]
fn a_torn_tail_is_cut_wherever_it_is_torn() {
    let dir = Dir::new("rec-torn");
    run(&dir, |root| async move {
        for (case, keep) in [1, 71, 72, 100, 300].into_iter().enumerate() {
            let root = root.join(case.to_string());
            let file = crashed(&root, 20).await;
            // Only a part of the last frame reached the disk.
            patch(&file, at(19) + keep, &vec![0; (BLOCK - keep) as usize]);
            let checked = offline::verify(&root).unwrap();
            assert!(
                checked.is_clean() && checked.logs[0].torn_bytes > 0,
                "{checked:?}"
            );
            let (log, report) = open(&root).await;
            assert_eq!(report.damage, []);
            assert_eq!(report.cut.map(|c| c.end), Some(Offset(19)));
            assert!(
                fs::read(&file).unwrap()[at(19) as usize..]
                    .iter()
                    .all(|b| *b == 0)
            );
            goes_on(&root, log, 19, 0).await;
        }
    });
}

#[test]
fn a_group_of_which_only_later_frames_survived_is_cut_for_good() {
    let dir = Dir::new("rec-group");
    run(&dir, |root| async move {
        let live = root.join("live");
        let log = Log::create(&live, copy(1), &big()).await.unwrap();
        log.append(records(0, 1, 300), None).await.unwrap();
        let group: Vec<_> = (1..9)
            .map(|n| log.append(records(n, 1, 1000), None))
            .collect();
        // The first is written alone, the others wait together.
        futures::future::join_all(group).await;
        copy_tree(&live.join("partitions"), &root.join("partitions"));
        let file = segment_files(&root.join("partitions/t7-p3-e1"))[0].clone();
        let bytes = fs::read(&file).unwrap();
        let frames: Vec<_> = (0..bytes.len() - 8)
            .step_by(8)
            .filter(|i| &bytes[*i..*i + 4] == b"NRF1")
            .collect();
        assert_eq!(frames.len(), 9);
        patch(&file, frames[2] as u64, &[0; 500]);
        let (log, report) = open(&root).await;
        assert_eq!(report.damage, []);
        assert_eq!(report.cut.map(|c| c.end), Some(Offset(2)));
        let (got, _) = read_all(&log).await;
        assert_eq!(got.len(), 2);
        // The frames behind the hole cannot come back behind new ones.
        log.append(records(2, 1, 1000), None).await.unwrap();
        copy_tree(&root.join("partitions"), &root.join("again/partitions"));
        let (log, report) = Log::open(&root.join("again"), copy(1), &big())
            .await
            .unwrap();
        assert_eq!((report.cut, log.end()), (None, Offset(3)));
    });
}

#[test]
fn a_flipped_bit_in_the_middle_costs_its_frame_only() {
    let dir = Dir::new("rec-flip");
    run(&dir, |root| async move {
        for (case, byte) in [0, 5, 20, 30, 71, 72, 90, 250].into_iter().enumerate() {
            let root = root.join(case.to_string());
            let file = crashed(&root, 20).await;
            let old = fs::read(&file).unwrap()[(at(7) + byte) as usize];
            patch(&file, at(7) + byte, &[old ^ 0x10]);
            let (log, report) = open(&root).await;
            assert_eq!(report.cut, None, "byte {byte}");
            assert_eq!(report.damage.len(), 1, "byte {byte}: {report:?}");
            assert_eq!(report.damage[0].from, Offset(7));
            assert_eq!(log.stats().missing, 1);
            goes_on(&root, log, 20, 1).await;
        }
    });
}

#[test]
fn damage_to_the_last_acked_frame_is_not_taken_for_a_torn_tail() {
    let dir = Dir::new("rec-last");
    run(&dir, |root| async move {
        let live = root.join("live");
        let log = Log::create(&live, copy(1), &big()).await.unwrap();
        for n in 0..10 {
            log.append(records(n, 1, 300), None).await.unwrap();
        }
        log.persist_meta().await.unwrap();
        copy_tree(&live.join("partitions"), &root.join("partitions"));
        let file = segment_files(&root.join("partitions/t7-p3-e1"))[0].clone();
        patch(&file, at(9) + 100, &[0xff; 4]);
        let (log, report) = open(&root).await;
        assert_eq!(report.cut, None);
        assert!(!report.damage.is_empty());
        goes_on(&root, log, 10, 1).await;
        let bytes = fs::read(&file).unwrap();
        assert_eq!(
            bytes[at(9) as usize + 100],
            0xff,
            "damage stays where it is"
        );
    });
}

#[test]
fn a_damaged_segment_header_costs_nothing() {
    let dir = Dir::new("rec-header");
    run(&dir, |root| async move {
        let file = crashed(&root, 10).await;
        patch(&file, 0, &[0xff; 64]);
        let (log, report) = open(&root).await;
        assert!(
            report.notes.iter().any(|n| n.contains("header")),
            "{report:?}"
        );
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len(), skipped), (10, 0));
    });
}

#[test]
fn garbage_and_stale_frames_behind_the_end_are_never_shown() {
    let dir = Dir::new("rec-stale");
    run(&dir, |root| async move {
        let file = crashed(&root, 20).await;
        let bytes = fs::read(&file).unwrap();
        // Frames of another segment, as a reused block may hold them.
        let other = root.join("other");
        let log = Log::create(&other, copy(2), &big()).await.unwrap();
        for n in 0..21 {
            log.append(records(n, 1, 300), None).await.unwrap();
        }
        let theirs = fs::read(&segment_files(log.dir())[0]).unwrap();
        patch(&file, at(20), &theirs[at(20) as usize..at(21) as usize]);
        let (log, report) = open(&root).await;
        assert_eq!(report.cut.map(|c| c.end), Some(Offset(20)));
        assert_eq!(report.damage, []);
        log.close().await.unwrap();
        // A frame of this very segment, a second time.
        patch(&file, at(20), &bytes[at(3) as usize..at(4) as usize]);
        let (log, report) = open(&root).await;
        assert!(
            report.notes.iter().any(|n| n.contains("repeat")),
            "{report:?}"
        );
        assert_eq!(log.end(), Offset(20));
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len(), skipped), (20, 0));
    });
}

#[test]
fn an_empty_segment_is_removed_and_made_again() {
    let dir = Dir::new("rec-empty");
    run(&dir, |root| async move {
        for (case, bytes) in [vec![], vec![0; 8192]].into_iter().enumerate() {
            let root = root.join(case.to_string());
            let log = Log::create(&root, copy(1), &big()).await.unwrap();
            let file = log.dir().join("00000000000000000000-1.seg");
            fs::write(&file, bytes).unwrap();
            let (log, _) = open(&root).await;
            assert!(!file.exists());
            assert_eq!(log.end(), Offset(0));
            log.append(records(0, 5, 300), None).await.unwrap();
            expect_numbers(&log, 0..5, 300).await;
        }
    });
}

async fn many_segments(root: &Path, count: u64) -> Log {
    let log = Log::create(root, copy(1), &options()).await.unwrap();
    for n in 0..count {
        let origin = Some(Origin {
            wal: WalId(5),
            seq: WalSeq(n + 1),
        });
        log.append(records(n, 1, 900), origin).await.unwrap();
    }
    log.set_frontier(Offset(33));
    log.persist_meta().await.unwrap();
    log
}

#[test]
fn list_meta_and_slots_may_be_missing_or_torn() {
    let dir = Dir::new("rec-files");
    run(&dir, |root| async move {
        let log = many_segments(&root.join("live"), 200).await;
        log.set_frontier(Offset(44));
        log.persist_meta().await.unwrap();
        log.close().await.unwrap();
        type Harm = fn(&Path);
        let cases: [(&str, Harm, u64); 6] = [
            (
                "no list",
                |d| fs::remove_file(d.join("segments.list")).unwrap(),
                44,
            ),
            (
                "torn list",
                |d| patch(&d.join("segments.list"), 100, &[1; 8]),
                44,
            ),
            ("no meta", |d| fs::remove_file(d.join("meta")).unwrap(), 0),
            (
                "no footers",
                |d| {
                    for file in segment_files(d) {
                        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
                        let len = file.metadata().unwrap().len();
                        file.set_len(len - 512).unwrap();
                    }
                },
                44,
            ),
            (
                "torn slot",
                |d| {
                    // Generations 1, 2, 3: the newest is in the second slot.
                    patch(&d.join("meta"), 4096 + 512, &[9; 512]);
                },
                44,
            ),
            (
                "torn other slot",
                |d| patch(&d.join("meta"), 0, &[9; 512]),
                44,
            ),
        ];
        for (name, harm, frontier) in cases {
            let at = root.join(name.replace(' ', "-"));
            copy_tree(&root.join("live/partitions"), &at.join("partitions"));
            harm(&at.join("partitions/t7-p3-e1"));
            let (log, report) = Log::open(&at, copy(1), &options()).await.unwrap();
            assert_eq!(report.damage, [], "{name}");
            assert_eq!((log.end(), log.hwm()), (Offset(200), Offset(200)), "{name}");
            assert_eq!(log.frontier(), Offset(frontier), "{name}");
            assert_eq!(log.mark(WalId(5)), WalSeq(200), "{name}");
            expect_numbers(&log, 0..200, 900).await;
            log.append(records(200, 1, 900), None).await.unwrap();
            expect_numbers(&log, 0..201, 900).await;
        }
    });
}

#[test]
fn a_missing_segment_is_reported_and_skipped() {
    let dir = Dir::new("rec-gap");
    run(&dir, |root| async move {
        let log = many_segments(&root, 200).await;
        let gone = log.manifest().segments[1];
        let path = log.segment_path(gone.id).unwrap();
        log.close().await.unwrap();
        fs::remove_file(path).unwrap();
        let (log, report) = Log::open(&root, copy(1), &options()).await.unwrap();
        assert!(
            report
                .damage
                .iter()
                .any(|d| d.from == gone.id.base && d.until == gone.end)
        );
        let (got, skipped) = read_all(&log).await;
        assert_eq!(skipped, gone.end.0 - gone.id.base.0);
        assert_eq!(got.len() as u64 + skipped, 200);
        assert!(!offline::verify(&root).unwrap().is_clean());
    });
}

#[test]
fn foreign_and_newer_files_are_refused_and_unknown_ones_left_alone() {
    let dir = Dir::new("rec-foreign");
    run(&dir, |root| async move {
        let file = crashed(&root, 5).await;
        fs::write(file.with_file_name("notes.txt"), "mine").unwrap();
        let (log, report) = open(&root).await;
        assert!(report.notes.iter().any(|n| n.contains("notes.txt")));
        drop(log);
        assert!(file.with_file_name("notes.txt").exists());
        // The same directory under another topic's name.
        let other = root.join("o");
        copy_tree(
            &root.join("partitions/t7-p3-e1"),
            &other.join("partitions/t8-p3-e1"),
        );
        let mut id = copy(1);
        id.key.topic.0 = 8;
        let refused = Log::open(&other, id, &big()).await;
        assert!(
            matches!(refused, Err(StorageError::Foreign { .. })),
            "{refused:?}"
        );
        let newer = root.join("n");
        copy_tree(&root.join("partitions"), &newer.join("partitions"));
        let dir = newer.join("partitions/t7-p3-e1");
        let _ = fs::remove_file(dir.join("segments.list"));
        let file = &segment_files(&dir)[0];
        let mut header = fs::read(file).unwrap();
        header[8] = 2;
        patch(file, 8, &[2]);
        patch(file, 60, &crc32c::crc32c(&header[..60]).to_le_bytes());
        let refused = Log::open(&newer, copy(1), &big()).await;
        assert!(
            matches!(refused, Err(StorageError::NewerVersion { found: 2, .. })),
            "{refused:?}"
        );
        let missing = Log::open(&root, copy(9), &big()).await;
        assert!(matches!(missing, Err(StorageError::NoSuchCopy { .. })));
    });
}

#[test]
fn opening_reads_the_active_segment_only() {
    let dir = Dir::new("rec-bound");
    run(&dir, |root| async move {
        let mut reads = Vec::new();
        for (name, count) in [("few", 130), ("many", 2000)] {
            let live = root.join(name).join("live");
            let log = many_segments(&live, count).await;
            let sealed = log.stats().segments as u64 - 1;
            // Until the list names what was sealed.
            while fs::read(log.dir().join("segments.list")).map_or(0, |b| b.len() as u64)
                < 64 + 96 * sealed
            {
                glommio::timer::sleep(std::time::Duration::from_millis(5)).await;
            }
            let crash = root.join(name).join("crash");
            copy_tree(&live.join("partitions"), &crash.join("partitions"));
            let (log, report) = Log::open(&crash, copy(1), &options()).await.unwrap();
            assert_eq!(log.end(), Offset(count));
            assert_eq!(report.scanned_segments, 1);
            assert_eq!(report.segments as u64, sealed + 1);
            assert!(
                report.bytes_read <= options().segment_bytes + 4096,
                "{report:?}"
            );
            reads.push(report.scanned_segments);
            // A clean close leaves nothing to read.
            log.close().await.unwrap();
            let (_, report) = Log::open(&crash, copy(1), &options()).await.unwrap();
            assert!(report.bytes_read <= 4096, "{report:?}");
        }
        assert_eq!(reads[0], reads[1]);
    });
}

#[test]
fn opening_reads_the_same_bytes_behind_one_and_behind_a_hundred_sealed_segments() {
    let dir = Dir::new("rec-same");
    run(&dir, |root| async move {
        let mut reports = Vec::new();
        for sealed in [1, 100] {
            let live = root.join(sealed.to_string()).join("live");
            let log = Log::create(&live, copy(1), &options()).await.unwrap();
            let (mut n, mut active) = (0, 0);
            while log.stats().segments <= sealed || active < 20 {
                let before = log.stats().segments;
                log.append(records(n, 1, 1000), None).await.unwrap();
                n += 1;
                active += 1;
                if log.stats().segments > before {
                    active = 1;
                    // The list names what was sealed before the new segment has more than one page.
                    let named = 64 + 96 * before;
                    while before > 0
                        && fs::read(log.dir().join("segments.list")).map_or(0, |b| b.len()) < named
                    {
                        glommio::timer::sleep(std::time::Duration::from_millis(2)).await;
                    }
                }
            }
            let crash = root.join(sealed.to_string()).join("crash");
            copy_tree(&live.join("partitions"), &crash.join("partitions"));
            let (log, report) = Log::open(&crash, copy(1), &options()).await.unwrap();
            assert_eq!((log.end(), report.segments), (Offset(n), sealed + 1));
            assert!(report.bytes_read > 0, "{report:?}");
            reports.push((report.bytes_read, report.scanned_segments));
        }
        assert_eq!(reports[0], reports[1]);
    });
}

#[test]
fn a_new_epoch_seals_what_the_old_one_wrote() {
    let dir = Dir::new("rec-epoch");
    run(&dir, |root| async move {
        let file = crashed(&root, 10).await;
        let next = root.join("partitions/t7-p3-e2");
        fs::rename(file.parent().unwrap(), &next).unwrap();
        let (log, _) = Log::open(&root, copy(2), &big()).await.unwrap();
        assert!(log.manifest().segments.iter().all(|s| s.sealed));
        log.append(records(10, 2, 300), None).await.unwrap();
        let segments = log.manifest().segments;
        assert_eq!(segments.len(), 2);
        assert_eq!(
            (segments[1].id.base, segments[1].id.epoch.0),
            (Offset(10), 2)
        );
        expect_numbers(&log, 0..12, 300).await;
        let older = Log::open(&root, copy(1), &big()).await;
        assert!(matches!(older, Err(StorageError::NoSuchCopy { .. })));
    });
}

#[test]
fn dump_and_verify_tell_what_is_there() {
    let dir = Dir::new("rec-dump");
    run(&dir, |root| async move {
        let log = many_segments(&root, 100).await;
        let path = log.segment_path(log.manifest().segments[0].id).unwrap();
        let home = log.dir().to_path_buf();
        log.close().await.unwrap();
        let report = offline::verify(&root).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.logs.len(), report.logs[0].records), (1, 100));
        assert_eq!(report.logs[0].frontier, 33);
        let mut text = Vec::new();
        for file in [path, home.join("meta"), home.join("segments.list")] {
            offline::dump(&file, &mut text).unwrap();
        }
        let other = root.join("notes.txt");
        std::fs::write(&other, "of somebody else").unwrap();
        let error = offline::dump(&other, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no segment"), "{error}");
        let text = String::from_utf8(text).unwrap();
        for want in ["record 7 ", "frontier", "sealed", "WAL 0000000000000005"] {
            assert!(text.contains(want), "{want}");
        }
    });
}

#[test]
fn a_scrub_meets_decay_first_and_describes_it() {
    let dir = Dir::new("rec-scrub");
    run(&dir, |root| async move {
        let log = many_segments(&root, 300).await;
        let clean = log.scrub(1 << 30).await.unwrap();
        assert_eq!((clean.changed.len(), clean.damage.len()), (0, 0));
        assert_eq!(clean.segments, log.stats().segments - 1);
        let bad = log.manifest().segments[1];
        patch(&log.segment_path(bad.id).unwrap(), 9000, &[0xdd; 8]);
        let found = log.scrub(1 << 30).await.unwrap();
        assert_eq!(
            (found.changed.as_slice(), found.damage.len()),
            (&[bad.id][..], 1),
            "{found:?}"
        );
        assert_eq!(log.stats().missing, 1);
        let bytes = fs::read(log.segment_path(bad.id).unwrap()).unwrap();
        let now = log.manifest().segments[1];
        assert_eq!(
            now.digest,
            crc32c::crc32c(&bytes[..now.durable_len as usize])
        );
        assert_eq!(log.scrub(1 << 30).await.unwrap().changed, []);
        log.close().await.unwrap();
        let (log, _) = Log::open(&root, copy(1), &options()).await.unwrap();
        assert_eq!(log.manifest().segments[1], now);
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len(), skipped), (299, 1));
    });
}
