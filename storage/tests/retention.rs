//! Retention: what goes, by age and by size, what holds it back, and that nobody waits for it. And what a
//! consumer at the tail costs.

mod common;

use common::*;
use futures::future::{Either, select};
use narad_core::ids::{Offset, WallMs};
use narad_storage::{Age, Log, Options, StorageError};
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, UNIX_EPOCH};

/// Segments of a few records each.
fn small() -> Options {
    Options {
        segment_bytes: 8 << 10,
        extent_bytes: 8 << 10,
        ..options()
    }
}

const LEN: usize = 700;

async fn filled(root: &std::path::Path, count: u64) -> Log {
    let log = Log::create(root, copy(1), &small()).await.unwrap();
    for n in 0..count {
        log.append(records(n, 1, LEN), None).await.unwrap();
    }
    log
}

/// Everything before `min` is too old; no record of these tests has a time to come.
fn older(min: WallMs) -> Option<Age> {
    let now = WallMs(u64::MAX);
    Some(Age { min, now })
}

/// First offsets of the segments on the disk.
fn bases(log: &Log) -> Vec<u64> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = segment_files(log.dir());
    files
        .iter()
        .map(|p| name(p)[..20].parse().unwrap())
        .collect()
}

#[test]
fn what_is_too_old_goes_by_the_times_of_its_records_and_whole_segments_only() {
    let dir = Dir::new("retain-age");
    run(&dir, |root| async move {
        let log = filled(&root, 60).await;
        let before = bases(&log);
        assert!(before.len() > 4, "{before:?}");
        // Record n has the time 1,000,000 + n: nothing is older than the first.
        assert_eq!(log.retain(older(WallMs(1_000_000)), None).await.unwrap(), 0);
        // A segment stays while one record in it is young enough.
        let third = before[2];
        let min = WallMs(1_000_000 + third + 1);
        assert_eq!(log.retain(older(min), None).await.unwrap(), third);
        assert_eq!(
            (log.start(), bases(&log)),
            (Offset(third), before[2..].to_vec())
        );
        expect_numbers(&log, third..60, LEN).await;
        // The frontier is never in what went, and neither is anything after a restart.
        assert!(log.frontier() >= log.start());
        drop(log);
        let (log, report) = Log::open(&root, copy(1), &small()).await.unwrap();
        assert_eq!(
            (log.start(), report.damage.len()),
            (Offset(third), 0),
            "{report:?}"
        );
        expect_numbers(&log, third..60, LEN).await;
        // Also the segment that was written to last goes when all of it is too old; offsets go on.
        let gone = log.retain(older(WallMs(2_000_000)), None).await.unwrap();
        assert_eq!((gone, bases(&log)), (60 - third, vec![]));
        assert_eq!(
            log.append(records(60, 1, LEN), None).await.unwrap().base,
            Offset(60)
        );
        log.close().await.unwrap();
        let (log, _) = Log::open(&root, copy(1), &small()).await.unwrap();
        expect_numbers(&log, 60..61, LEN).await;
    });
}

#[test]
fn a_time_to_come_keeps_nothing_longer_than_its_file_is_old() {
    let dir = Dir::new("retain-ahead");
    run(&dir, |root| async move {
        let log = filled(&root, 20).await;
        // Some producer counts in µs: its record lies far ahead of the clock.
        let mut ahead = records(20, 1, LEN);
        ahead[0].time = WallMs(1_000_020_000);
        log.append(ahead, None).await.unwrap();
        for n in 21..60 {
            log.append(records(n, 1, LEN), None).await.unwrap();
        }
        let before = bases(&log);
        let odd = before.iter().rposition(|base| *base <= 20).unwrap();
        let next = before[odd + 1];
        assert!(odd > 0 && next < 59, "{before:?}");
        let age = Some(Age {
            min: WallMs(1_000_059),
            now: WallMs(1_000_100),
        });
        // Its file was written just now, later than that: it stays, and what stands behind it.
        assert_eq!(log.retain(age, None).await.unwrap(), before[odd]);
        let written = UNIX_EPOCH + Duration::from_millis(1_000_058);
        let file = std::fs::File::open(&segment_files(log.dir())[0]).unwrap();
        file.set_modified(written).unwrap();
        let gone = log.retain(age, None).await.unwrap();
        assert!(gone >= next - before[odd], "{gone} of {before:?}");
        expect_numbers(&log, log.start().0..60, LEN).await;
    });
}

#[test]
fn what_is_too_much_goes_from_the_front_and_a_pin_holds_it() {
    let dir = Dir::new("retain-size");
    run(&dir, |root| async move {
        let log = filled(&root, 60).await;
        let before = bases(&log);
        let max = 24 << 10;
        let pin = log.pin(Offset(before[1]));
        let higher = log.pin(Offset(before[3]));
        // Only what is below every pin goes, however much there is.
        assert_eq!(log.retain(None, Some(max)).await.unwrap(), before[1]);
        drop(higher);
        assert_eq!(log.retain(None, Some(max)).await.unwrap(), 0);
        drop(pin);
        assert!(log.retain(None, Some(max)).await.unwrap() > 0);
        assert!(log.stats().bytes <= max, "{:?}", log.stats());
        // Not more than necessary: with the segment before, it was too much.
        assert!(log.stats().bytes + (8 << 10) > max, "{:?}", log.stats());
        let start = log.start().0;
        expect_numbers(&log, start..60, LEN).await;
        assert!(bases(&log).iter().all(|base| *base >= start));
    });
}

#[test]
fn appends_do_not_wait_for_what_is_being_deleted() {
    let dir = Dir::new("retain-wait");
    run(&dir, |root| async move {
        let log = filled(&root, 600).await;
        let before = bases(&log).len();
        assert!(before > 50, "{before}");
        let mut retaining = pin!(log.retain(None, Some(0)));
        for n in 600..603 {
            match select(&mut retaining, pin!(log.append(records(n, 1, LEN), None))).await {
                Either::Left(_) => panic!("all was deleted before append {n} came to its end"),
                Either::Right((appended, _)) => drop(appended.unwrap()),
            }
        }
        // Deleting was under way, or had not begun, when they were acked.
        let left = bases(&log).len();
        assert!(left > 1, "{left} of {before}");
        assert!(retaining.await.unwrap() > 0);
        assert!(bases(&log).len() <= 2, "{:?}", bases(&log));
    });
}

#[test]
fn a_consumer_at_the_tail_reads_no_disk() {
    let dir = Dir::new("tail");
    run(&dir, |root| async move {
        let log = filled(&root, 0).await;
        for n in 0..200 {
            log.append(records(n, 1, LEN), None).await.unwrap();
            let batch = log.read(Offset(n), 10, 1 << 20).await.unwrap();
            assert_eq!(batch.records.len(), 1);
        }
        assert_eq!(log.stats().reads, 0);
        // One that is far behind does, and memory stays within its bound.
        let batch = log.read(Offset(0), 10, 1 << 20).await.unwrap();
        assert_eq!(batch.records.len(), 10);
        assert!(log.stats().reads > 0);
    });
}

/// Bytes of one of few large records.
const LARGE: usize = 1_000_000;

/// Segments large enough that their space goes back in several steps.
async fn large(root: &std::path::Path) -> Log {
    let options = Options {
        segment_bytes: 24 << 20,
        extent_bytes: 24 << 20,
        ..options()
    };
    let log = Log::create(root, copy(1), &options).await.unwrap();
    for n in 0..56 {
        log.append(records(n, 1, LARGE), None).await.unwrap();
    }
    log
}

/// Lengths that files with such a name have while `work` goes on, in order and without repetition: looked at whenever
/// it has come to a point at which it waits.
async fn lengths_while<T>(
    dir: &std::path::Path,
    wanted: impl Fn(&str) -> bool,
    work: impl Future<Output = T>,
) -> (Vec<u64>, T) {
    let mut lengths: Vec<u64> = Vec::new();
    let mut work = pin!(work);
    let done = poll_fn(|cx| {
        let polled = work.as_mut().poll(cx);
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let len = entry.metadata().map_or(0, |meta| meta.len());
            if wanted(entry.file_name().to_str().unwrap()) && lengths.last() != Some(&len) {
                lengths.push(len);
            }
        }
        polled
    });
    let done = done.await;
    (lengths, done)
}

#[test]
fn a_large_segment_gives_its_space_back_in_steps_and_not_under_its_name() {
    let dir = Dir::new("retain-steps");
    run(&dir, |root| async move {
        let log = large(&root).await;
        assert_eq!(bases(&log).len(), 3);
        let max = 26 << 20;
        let rest = |name: &str| name.ends_with(".tmp");
        let (lengths, gone) = lengths_while(log.dir(), rest, log.retain(None, Some(max))).await;
        assert!(gone.unwrap() > 0);
        // Two segments one behind the other: each gets shorter, and neither in one step.
        let falls = lengths.windows(2).filter(|w| w[1] < w[0]).count();
        assert!(falls >= 4, "{lengths:?}");
        assert_eq!(
            std::fs::read_dir(log.dir()).unwrap().count(),
            3,
            "segment, meta, list"
        );
        let start = log.start().0;
        expect_numbers(&log, start..56, LARGE).await;
    });
}

#[test]
fn a_rest_that_a_crash_left_is_removed_and_is_no_damage() {
    let dir = Dir::new("retain-rest");
    run(&dir, |root| async move {
        let log = filled(&root, 60).await;
        let first = segment_files(log.dir()).remove(0);
        let third = bases(&log)[2];
        log.retain(older(WallMs(1_000_000 + third + 1)), None)
            .await
            .unwrap();
        let rest = first.with_extension("gone.tmp");
        std::fs::write(&rest, [0x55; 100]).unwrap();
        drop(log);
        let (log, report) = Log::open(&root, copy(1), &small()).await.unwrap();
        assert!(report.damage.is_empty() && !rest.exists(), "{report:?}");
        expect_numbers(&log, third..60, LEN).await;
    });
}

#[test]
fn a_reader_of_a_segment_that_goes_reads_on() {
    let dir = Dir::new("retain-reader");
    run(&dir, |root| async move {
        let log = large(&root).await;
        let mut reading = pin!(log.read(Offset(0), 1, 1 << 20));
        // It has asked the disk, and no answer has come.
        assert!(futures::poll!(&mut reading).is_pending());
        let (read, retained) = futures::join!(reading, log.retain(None, Some(26 << 20)));
        assert!(retained.unwrap() > 0);
        let read = read.unwrap();
        assert!(
            read.records
                .iter()
                .all(|(at, one)| one.to_record() == record(at.0, LARGE)),
            "a record is whole or is not told"
        );
    });
}

#[test]
fn a_deleted_copy_gives_its_space_back_in_steps() {
    let dir = Dir::new("delete-steps");
    run(&dir, |root| async move {
        let log = large(&root).await;
        let first = segment_files(log.dir()).remove(0);
        let name = first.file_name().unwrap().to_str().unwrap().to_owned();
        log.close().await.unwrap();
        let grave = root.join("deleting").join("t7-p3-e1");
        let work = narad_storage::layout::delete_copy(&root, copy(1));
        let (lengths, done) = lengths_while(&grave, |one| one == name, work).await;
        done.unwrap();
        assert!(
            lengths.len() >= 3 && lengths.is_sorted_by(|a, b| a > b),
            "{lengths:?}"
        );
        assert!(!grave.exists());
    });
}

#[test]
fn a_scrub_says_and_writes_nothing_about_a_log_that_was_closed() {
    let dir = Dir::new("ret-scrub-closed");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        for n in 0..300 {
            log.append(records(n, 1, 900), None).await.unwrap();
        }
        // A second at that rate, or several.
        let reading = log.clone();
        let scrub = glommio::spawn_local(async move { reading.scrub(128 << 10).await });
        glommio::timer::sleep(Duration::from_millis(5)).await;
        log.close().await.unwrap();
        // Its files are on their way out, as they are when a copy is removed.
        let place = narad_storage::layout::partition_dir(&root, copy(1));
        let list = std::fs::read(place.join("segments.list")).unwrap();
        for file in segment_files(&place) {
            let file = std::fs::OpenOptions::new().write(true).open(file);
            file.unwrap().set_len(0).unwrap();
        }
        let outcome = scrub.await;
        assert!(
            matches!(outcome, Err(StorageError::Closed { .. })),
            "{outcome:?}"
        );
        assert_eq!(std::fs::read(place.join("segments.list")).unwrap(), list);
    });
}

#[test]
fn a_log_that_was_closed_lets_nothing_go() {
    let dir = Dir::new("ret-closed");
    run(&dir, |root| async move {
        let log = filled(&root, 60).await;
        // One that has begun is waited for; one that comes later finds the log closed.
        let first = log.clone();
        let first = glommio::spawn_local(async move { first.retain(None, Some(16 << 10)).await });
        let (late, old) = (log.clone(), log.clone());
        let closed = glommio::spawn_local(async move { log.close().await });
        glommio::timer::sleep(Duration::ZERO).await;
        let late = glommio::spawn_local(async move { late.retain(None, Some(0)).await });
        closed.await.unwrap();
        let place = narad_storage::layout::partition_dir(&root, copy(1));
        let files = segment_files(&place).len();
        let list = std::fs::read(place.join("segments.list")).unwrap();
        let (again, _) = Log::open(&root, copy(1), &small()).await.unwrap();
        let start = again.start();
        // What is durable is the new log's alone.
        let meta = std::fs::read(place.join("meta")).unwrap();
        let outcome = old.persist_meta().await;
        assert!(
            matches!(outcome, Err(StorageError::Closed { .. })),
            "{outcome:?}"
        );
        assert_eq!(std::fs::read(place.join("meta")).unwrap(), meta);
        let outcome = late.await;
        assert!(
            matches!(outcome, Err(StorageError::Closed { .. })),
            "{outcome:?}"
        );
        // Told before the close, or refused by it: either way it says what is so.
        match first.await {
            Ok(gone) => assert_eq!(gone, start.0),
            Err(error) => assert!(matches!(error, StorageError::Closed { .. }), "{error}"),
        }
        assert_eq!(segment_files(&place).len(), files);
        assert_eq!(std::fs::read(place.join("segments.list")).unwrap(), list);
        expect_numbers(&again, start.0..60, LEN).await;
    });
}
