//! Segments that do not follow one another: offsets that no segment has, and offsets that two have.

mod common;

use common::*;
use narad_core::ids::Offset;
use narad_storage::{Log, Options};
use std::fs;

const LEN: usize = 700;

fn small() -> Options {
    Options {
        segment_bytes: 8 << 10,
        extent_bytes: 8 << 10,
        ..options()
    }
}

#[test]
fn offsets_that_no_segment_has_are_told_also_without_a_list() {
    let dir = Dir::new("order-gap");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &small()).await.unwrap();
        for n in 0..40 {
            log.append(records(n, 1, LEN), None).await.unwrap();
        }
        let files = segment_files(log.dir());
        let base = |n: usize| files[n].file_name().unwrap().to_str().unwrap()[..20].parse::<u64>();
        let (from, until) = (base(1).unwrap(), base(2).unwrap());
        let list = log.dir().join("segments.list");
        log.close().await.unwrap();
        fs::remove_file(&files[1]).unwrap();
        fs::remove_file(list).unwrap();
        for _ in 0..2 {
            // The second time it is in the list.
            let (log, report) = Log::open(&root, copy(1), &small()).await.unwrap();
            let (got, skipped) = read_all(&log).await;
            let numbers: Vec<u64> = got.iter().map(|(n, _)| *n).collect();
            let wanted: Vec<u64> = (0..from).chain(until..40).collect();
            assert_eq!((numbers, skipped), (wanted, until - from), "{report:?}");
            assert_eq!(log.stats().missing, until - from);
            log.close().await.unwrap();
        }
    });
}

#[test]
fn of_offsets_that_two_segments_have_the_later_segment_counts() {
    let dir = Dir::new("order-overlap");
    run(&dir, |root| async move {
        let big = options();
        // One whose epoch 1 ended at offset 30, and one where it ended at 10 and epoch 2 went on.
        let long = root.join("long");
        let log = Log::create(&long, copy(1), &big).await.unwrap();
        log.append(records(0, 30, LEN), None).await.unwrap();
        log.close().await.unwrap();
        let short = root.join("short");
        let log = Log::create(&short, copy(1), &big).await.unwrap();
        log.append(records(0, 10, LEN), None).await.unwrap();
        log.close().await.unwrap();
        let partitions = short.join("partitions");
        fs::rename(partitions.join("t7-p3-e1"), partitions.join("t7-p3-e2")).unwrap();
        let (log, _) = Log::open(&short, copy(2), &big).await.unwrap();
        let later: Vec<_> = records(10, 5, LEN + 1);
        log.append(later, None).await.unwrap();
        let second = segment_files(log.dir()).pop().unwrap();
        log.close().await.unwrap();

        let dir = long.join("partitions");
        fs::rename(dir.join("t7-p3-e1"), dir.join("t7-p3-e2")).unwrap();
        let dir = dir.join("t7-p3-e2");
        fs::copy(&second, dir.join(second.file_name().unwrap())).unwrap();
        fs::remove_file(dir.join("meta")).unwrap();
        let (log, report) = Log::open(&long, copy(2), &big).await.unwrap();
        assert!(
            report.notes.iter().any(|n| n.contains("next segment")),
            "{report:?}"
        );
        assert_eq!(
            (report.damage.len(), log.end()),
            (0, Offset(15)),
            "{report:?}"
        );
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len(), skipped), (15, 0));
        for (n, found) in got {
            assert_eq!(found, record(n, if n < 10 { LEN } else { LEN + 1 }), "{n}");
        }
        // Appends go on behind the later one.
        assert_eq!(
            log.append(records(15, 1, LEN), None).await.unwrap().base,
            Offset(15)
        );
    });
}
