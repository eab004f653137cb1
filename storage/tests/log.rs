//! Appending, reading and reopening a partition log on a real disk.

mod common;

use common::*;
use narad_core::ids::{Offset, Origin, WalId, WalSeq, WallMs};
use narad_storage::Log;
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn what_was_acked_is_read_back_and_survives_reopening() {
    let dir = Dir::new("log-basic");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        assert_eq!(
            segment_files(log.dir()).len(),
            0,
            "no file before the first append"
        );
        for n in 0..200 {
            let at = log.append(records(n * 3, 3, 500), None).await.unwrap();
            assert_eq!(at.base, Offset(n * 3));
        }
        expect_numbers(&log, 0..600, 500).await;
        log.set_frontier(Offset(100));
        log.persist_meta().await.unwrap();
        assert!(log.manifest().segments.len() > 3);
        let manifest = log.manifest();
        log.close().await.unwrap();
        let (log, report) = Log::open(&root, copy(1), &options()).await.unwrap();
        assert_eq!(report.damage, []);
        assert_eq!(report.notes, Vec::<String>::new());
        assert_eq!(log.manifest(), manifest);
        assert_eq!((log.hwm(), log.frontier()), (Offset(600), Offset(100)));
        expect_numbers(&log, 0..600, 500).await;
        for s in &manifest.segments {
            for len in [s.durable_len, s.durable_len / 2 / 512 * 512, 512] {
                let digest = log.digest_prefix(s.id, len).await.unwrap();
                let bytes = std::fs::read(log.segment_path(s.id).unwrap()).unwrap();
                assert_eq!(digest, Some(crc32c::crc32c(&bytes[..len as usize])));
            }
        }
        log.append(records(600, 5, 500), None).await.unwrap();
        expect_numbers(&log, 0..605, 500).await;
    });
}

#[test]
fn concurrent_appends_share_writes_and_syncs() {
    let dir = Dir::new("log-group");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        log.append(records(0, 1, 100), None).await.unwrap();
        let before = log.stats();
        let appends = (1..65).map(|n| log.append(records(n, 1, 200), None));
        let done = futures::future::join_all(appends).await;
        assert!(done.iter().all(Result::is_ok));
        let after = log.stats();
        assert_eq!(after.appends - before.appends, 64);
        assert!(after.syncs - before.syncs <= 4, "{after:?}");
        assert_eq!(after.syncs, after.writes);
    });
}

#[test]
fn a_steady_append_is_one_write_and_one_sync_of_whole_blocks() {
    let dir = Dir::new("log-cost");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        log.append(records(0, 1, 100), None).await.unwrap();
        let before = log.stats();
        for n in 1..21 {
            log.append(records(n, 1, 100), None).await.unwrap();
        }
        let after = log.stats();
        assert_eq!(after.writes - before.writes, 20);
        assert_eq!(after.syncs - before.syncs, 20);
        assert_eq!(after.extents, before.extents);
        assert_eq!(after.written_bytes - before.written_bytes, 20 * 512);
        assert!(after.padding_bytes - before.padding_bytes < 20 * 512);
    });
}

#[test]
fn marks_survive_and_count_what_is_queued() {
    let dir = Dir::new("log-marks");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        let origin = |seq| {
            Some(Origin {
                wal: WalId(9),
                seq: WalSeq(seq),
            })
        };
        log.append(records(0, 1, 100), origin(4)).await.unwrap();
        let ticket = log.submit(records(1, 1, 100), origin(7)).unwrap();
        assert_eq!(log.mark(WalId(9)), WalSeq(7));
        assert_eq!(log.manifest().marks[0].seq, WalSeq(4));
        ticket.durable().await.unwrap();
        let crash = root.join("crash");
        copy_tree(&root.join("partitions"), &crash.join("partitions"));
        let (log, _) = Log::open(&crash, copy(1), &options()).await.unwrap();
        assert_eq!(log.mark(WalId(9)), WalSeq(7));
        assert_eq!(log.mark(WalId(8)), WalSeq(0));
    });
}

#[test]
fn what_nobody_waits_for_any_more_is_told_when_it_is_durable() {
    let dir = Dir::new("told");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        let told = Rc::new(Cell::new(0));
        let (tell, told_of) = (told.clone(), log.clone());
        log.on_durable(move |bytes| {
            assert!(told_of.hwm() > Offset(0), "it can be read by then");
            tell.set(tell.get() + bytes);
        });
        let ticket = log.submit(records(0, 2, 300), None).unwrap();
        drop(ticket);
        log.settle().await;
        assert_eq!(told.get(), content(&records(0, 2, 300)));
        log.append(records(2, 1, 300), None).await.unwrap();
        assert_eq!(told.get(), content(&records(0, 3, 300)));
        // It holds the log.
        log.on_durable(|_| ());
    });
}

fn content(records: &[narad_storage::Record]) -> u64 {
    records.iter().map(|one| one.content_len() as u64).sum()
}

#[test]
fn times_are_found_and_waiters_wake() {
    let dir = Dir::new("log-time");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        for n in 0..300 {
            log.append(records(n, 1, 900), None).await.unwrap();
        }
        for n in [0, 1, 57, 150, 299] {
            let at = log.offset_at(WallMs(1_000_000 + n)).await.unwrap();
            assert_eq!(at, Offset(n));
        }
        assert_eq!(log.offset_at(WallMs(0)).await.unwrap(), Offset(0));
        assert_eq!(log.offset_at(WallMs(u64::MAX)).await.unwrap(), Offset(300));
        let waiter = log.clone();
        let wait = glommio::spawn_local(async move {
            waiter.wait_past(Offset(300)).await;
            waiter.hwm()
        });
        log.append(records(300, 1, 10), None).await.unwrap();
        assert_eq!(log.hwm(), Offset(301));
        let woken = wait.detach();
        log.append(records(301, 1, 10), None).await.unwrap();
        assert!(woken.await.unwrap() > Offset(300));
    });
}

#[test]
fn zeros_ahead_of_small_appends_never_touch_records() {
    let dir = Dir::new("log-fill");
    run(&dir, |root| async move {
        let options = narad_storage::Options {
            segment_bytes: 3 << 20,
            extent_bytes: 1 << 20,
            cache_bytes: 0,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        let mut n = 0;
        // Small groups let zeros be written ahead, then a large one runs into them.
        for round in 0..40 {
            for _ in 0..40 {
                log.append(records(n, 1, 300), None).await.unwrap();
                n += 1;
            }
            let large = 30 * (round % 3);
            log.append(records(n, large, 20_000), None).await.unwrap();
            n += large;
            if round % 10 == 9 {
                log.trim().await.unwrap();
            }
        }
        assert!(log.stats().filled_bytes > 0, "{:?}", log.stats());
        assert!(log.stats().segments > 2);
        copy_tree(&root.join("partitions"), &root.join("crash/partitions"));
        let (back, report) = Log::open(&root.join("crash"), copy(1), &options)
            .await
            .unwrap();
        assert_eq!((report.damage.len(), report.cut), (0, None));
        for log in [log, back] {
            let (got, skipped) = read_all(&log).await;
            assert_eq!((got.len() as u64, skipped), (n, 0));
            for (offset, found) in got {
                assert_eq!(found, record(offset, found.value.len()));
            }
        }
    });
}

#[test]
fn a_meta_file_is_described_also_while_its_second_slot_alone_was_written() {
    let dir = Dir::new("dump-meta");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        log.append(records(0, 3, 100), None).await.unwrap();
        log.set_frontier(Offset(2));
        log.persist_meta().await.unwrap();
        let file = log.dir().join("meta");
        assert_eq!(std::fs::read(&file).unwrap()[..8], [0; 8]);
        let mut out = Vec::new();
        narad_storage::offline::dump(&file, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("slot 1: Meta") && text.contains("frontier"),
            "{text}"
        );
    });
}
