//! Disk faults: a log that cannot keep its promise stops, says so, goes on reading, and loses nothing.

mod common;

use common::*;
use narad_core::ids::{MoveId, Offset};
use narad_storage::fault::{self, Op, Probe};
use narad_storage::{AppendError, Log, Options, StageBuf, StageError, Staging};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// Fails operations of one kind while armed.
struct Failing {
    armed: Rc<Cell<bool>>,
    hit: fn(&Op<'_>) -> Option<i32>,
}

impl Probe for Failing {
    fn before(&mut self, op: &Op<'_>) -> io::Result<()> {
        match (self.hit)(op) {
            Some(code) if self.armed.get() => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
}

fn fail_when(hit: fn(&Op<'_>) -> Option<i32>) -> Rc<Cell<bool>> {
    let armed = Rc::new(Cell::new(false));
    fault::set(Box::new(Failing {
        armed: armed.clone(),
        hit,
    }));
    armed
}

fn is_segment(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|e| e == "seg")
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn a_failed_write_or_sync_stops_the_log_and_hides_what_it_did_not_confirm() {
    let dir = Dir::new("fault-sync");
    run(&dir, |root| async move {
        let cases: [fn(&Op<'_>) -> Option<i32>; 2] = [
            |op| matches!(op, Op::Sync { path } if is_segment(path)).then_some(EIO),
            |op| matches!(op, Op::Write { path, .. } if is_segment(path)).then_some(EIO),
        ];
        for (case, hit) in cases.into_iter().enumerate() {
            let root = root.join(case.to_string());
            let armed = fail_when(hit);
            let log = Log::create(&root, copy(1), &options()).await.unwrap();
            for n in 0..10 {
                log.append(records(n, 1, 300), None).await.unwrap();
            }
            armed.set(true);
            let waiting = [10, 11, 12].map(|n| log.append(records(n, 1, 300), None));
            for result in futures::future::join_all(waiting).await {
                assert!(
                    matches!(result, Err(AppendError::Closed { .. })),
                    "{result:?}"
                );
            }
            armed.set(false);
            let refused = log.append(records(20, 1, 300), None).await;
            assert!(
                matches!(refused, Err(AppendError::Closed { .. })),
                "no retry on the same bytes"
            );
            assert!(log.failed().unwrap().contains("seg"), "{:?}", log.failed());
            log.settle().await;
            log.wait_past(Offset(100)).await;
            assert_eq!((log.hwm(), log.end()), (Offset(10), Offset(10)));
            assert_eq!(log.manifest().end(), Offset(10));
            expect_numbers(&log, 0..10, 300).await;
            log.close().await.unwrap();
            fault::clear();
            // What was not acked may be there or not, but never in part, and never invented.
            let (log, report) = Log::open(&root, copy(1), &options()).await.unwrap();
            assert_eq!(report.damage, []);
            let end = log.end().0;
            assert!((10..=13).contains(&end), "{end}");
            expect_numbers(&log, 0..end, 300).await;
            log.append(records(end, 1, 300), None).await.unwrap();
            expect_numbers(&log, 0..end + 1, 300).await;
        }
    });
}

#[test]
fn what_the_disk_refuses_for_good_is_read_around_and_a_disk_that_is_gone_has_lost_nothing() {
    let dir = Dir::new("fault-around");
    run(&dir, |root| async move {
        // The second page of a segment, and later all of it.
        const BAD: std::ops::Range<u64> = 4096..8192;
        let armed = fail_when(|op| match op {
            Op::Read { path, pos, len } if is_segment(path) => {
                (*pos < BAD.end && pos + *len as u64 > BAD.start).then_some(EIO)
            }
            _ => None,
        });
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        for n in 0..60 {
            log.append(records(n, 1, 700), None).await.unwrap();
        }
        log.close().await.unwrap();
        let (log, _) = Log::open(&root, copy(1), &options()).await.unwrap();
        armed.set(true);
        log.read(Offset(0), 100, 1 << 20).await.unwrap_err();
        let first = log.read_around(Offset(0), 1, 1 << 20).await.unwrap();
        assert_eq!((first.records.len(), first.skipped), (1, 0));
        // What this one has left out while it read ahead, others ask the disk for.
        log.read(Offset(1), 100, 1 << 20).await.unwrap_err();
        let on = log.read_on(Offset(1), 2, 1 << 20).await.unwrap();
        assert_eq!(on.records.len(), 2);
        armed.set(false);
        expect_numbers(&log, 0..60, 700).await;
        armed.set(true);
        let read = log.read_around(Offset(0), 100, 1 << 20).await.unwrap();
        let found: Vec<u64> = read.records.iter().map(|(at, _)| at.0).collect();
        let lost = 60 - found.len() as u64;
        assert!((1..=12).contains(&lost), "{found:?}");
        assert_eq!((read.skipped, read.next), (lost, Offset(60)));
        assert_eq!((found[0], found[found.len() - 1]), (0, 59));
        for (at, one) in &read.records {
            assert_eq!(one.to_record(), record(at.0, 700));
        }
        // Nothing at all is answered: that says nothing about one block.
        let armed = fail_when(|op| match op {
            Op::Read { path, .. } if is_segment(path) => Some(EIO),
            _ => None,
        });
        armed.set(true);
        log.read_around(Offset(0), 100, 1 << 20).await.unwrap_err();
        armed.set(false);
        expect_numbers(&log, 0..60, 700).await;
        fault::clear();
    });
}

#[test]
fn a_full_disk_is_refused_before_anything_is_written_and_room_brings_appends_back() {
    let dir = Dir::new("fault-full");
    run(&dir, |root| async move {
        let armed = fail_when(|op| matches!(op, Op::Allocate { .. }).then_some(ENOSPC));
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        armed.set(true);
        let refused = log.append(records(0, 1, 300), None).await;
        assert!(
            matches!(refused, Err(AppendError::Full { .. })),
            "{refused:?}"
        );
        armed.set(false);
        let mut n = 0;
        log.append(records(n, 1, 300), None).await.unwrap();
        n += 1;
        armed.set(true);
        let refused = loop {
            let appends = [
                log.append(records(n, 1, 900), None),
                log.append(records(n + 1, 1, 900), None),
            ];
            match futures::future::try_join_all(appends).await {
                Ok(_) => n += 2,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, AppendError::Full { .. }), "{refused:?}");
        assert_eq!(log.failed(), None);
        armed.set(false);
        let end = log.end().0;
        assert!(end == n || end == n + 1, "{end} {n}");
        log.append(records(end, 1, 900), None).await.unwrap();
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len() as u64, skipped), (end + 1, 0));
        fault::clear();
    });
}

struct LittleRoom(u64);

impl Probe for LittleRoom {
    fn available(&mut self, _: u64) -> u64 {
        self.0
    }
}

#[test]
fn the_reserve_is_kept_free() {
    let dir = Dir::new("fault-reserve");
    run(&dir, |root| async move {
        let options = Options {
            reserve_bytes: 100 << 20,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        fault::set(Box::new(LittleRoom(100 << 20)));
        let refused = log.append(records(0, 1, 300), None).await;
        let Err(AppendError::Full { available, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(available, 0);
        fault::set(Box::new(LittleRoom(110 << 20)));
        log.append(records(0, 1, 300), None).await.unwrap();
        fault::clear();
    });
}

#[test]
fn a_read_error_is_told_and_the_log_goes_on() {
    let dir = Dir::new("fault-read");
    run(&dir, |root| async move {
        let options = Options {
            cache_bytes: 0,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        for n in 0..10 {
            log.append(records(n, 1, 300), None).await.unwrap();
        }
        let armed = fail_when(|op| matches!(op, Op::Read { .. }).then_some(EIO));
        armed.set(true);
        let error = log.read(Offset(0), 10, 10_000).await.unwrap_err();
        assert!(error.to_string().contains("health"), "{error}");
        log.append(records(10, 1, 300), None).await.unwrap();
        armed.set(false);
        expect_numbers(&log, 0..11, 300).await;
        fault::clear();
    });
}

#[test]
fn meta_and_list_that_cannot_be_written_cost_no_record() {
    let dir = Dir::new("fault-meta");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &options()).await.unwrap();
        log.append(records(0, 1, 300), None).await.unwrap();
        log.set_frontier(Offset(1));
        let armed = fail_when(|op| match op {
            Op::Write { path, .. } if path.ends_with("meta") => Some(EIO),
            Op::Replace { .. } => Some(EIO),
            _ => None,
        });
        armed.set(true);
        log.persist_meta().await.unwrap_err();
        assert!(log.meta_dirty());
        for n in 1..300 {
            log.append(records(n, 1, 900), None).await.unwrap();
        }
        assert!(log.stats().segments > 2);
        armed.set(false);
        log.persist_meta().await.unwrap();
        fault::clear();
        copy_tree(&root.join("partitions"), &root.join("crash/partitions"));
        let (log, report) = Log::open(&root.join("crash"), copy(1), &options())
            .await
            .unwrap();
        assert_eq!(report.damage, []);
        assert_eq!((log.end(), log.frontier()), (Offset(300), Offset(1)));
    });
}

#[test]
fn too_much_at_once_is_refused_with_its_own_error() {
    let dir = Dir::new("fault-bounds");
    run(&dir, |root| async move {
        let options = Options {
            queue_bytes: 8 << 20,
            segment_bytes: 64 << 20,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        let large = log.append(records(0, 1, (1 << 20) + 1), None).await;
        assert!(
            matches!(
                large,
                Err(AppendError::TooLarge {
                    limit: 1_048_576,
                    ..
                })
            ),
            "{large:?}"
        );
        let batch = log.append(records(0, 5, 1_000_000), None).await;
        assert!(
            matches!(batch, Err(AppendError::TooLarge { .. })),
            "{batch:?}"
        );
        let mut tickets = Vec::new();
        let mut n = 0;
        let busy = loop {
            match log.submit(records(n, 4, 1_000_000), None) {
                Ok(ticket) => tickets.push(ticket),
                Err(error) => break error,
            }
            n += 4;
        };
        assert!(matches!(busy, AppendError::Busy { .. }), "{busy:?}");
        for ticket in tickets {
            ticket.durable().await.unwrap();
        }
        assert_eq!(log.end(), Offset(n));
        expect_numbers(&log, 0..n, 1_000_000).await;
    });
}

/// Counts writes to segments that were issued and have not ended; fails those that `hit` names.
struct UnderWay<F> {
    issued: Rc<Cell<u32>>,
    under_way: Rc<Cell<u32>>,
    hit: F,
}

impl<F: FnMut(u64, usize) -> bool> Probe for UnderWay<F> {
    fn before(&mut self, op: &Op<'_>) -> io::Result<()> {
        if let Op::Write { path, pos, bytes } = op
            && is_segment(path)
        {
            if (self.hit)(*pos, bytes.len()) {
                return Err(io::Error::from_raw_os_error(EIO));
            }
            self.issued.set(self.issued.get() + 1);
            self.under_way.set(self.under_way.get() + 1);
        }
        Ok(())
    }

    fn after(&mut self, op: &Op<'_>) {
        if matches!(op, Op::Write { path, .. } if is_segment(path)) {
            self.under_way.set(self.under_way.get() - 1);
        }
    }
}

/// Watches writes; returns the counts of issued ones and of those under way.
fn watch_writes(hit: impl FnMut(u64, usize) -> bool + 'static) -> (Rc<Cell<u32>>, Rc<Cell<u32>>) {
    let (issued, under_way) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    fault::set(Box::new(UnderWay {
        issued: issued.clone(),
        under_way: under_way.clone(),
        hit,
    }));
    (issued, under_way)
}

#[test]
fn a_group_of_which_one_write_failed_leaves_no_other_write_under_way() {
    let dir = Dir::new("fault-group");
    run(&dir, |root| async move {
        let options = Options {
            io_chunk_bytes: 4096,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        let (issued, under_way) = watch_writes(|pos, _| pos == 8192);
        let stopped = log.append(records(0, 1, 40_000), None).await;
        let left = under_way.get();
        assert!(
            matches!(stopped, Err(AppendError::Closed { .. })),
            "{stopped:?}"
        );
        assert!(issued.get() >= 2, "{}", issued.get());
        assert_eq!(left, 0, "of {}", issued.get());
        log.close().await.unwrap();
        fault::clear();
    });
}

#[test]
fn closing_a_failed_log_waits_for_the_zeros_on_their_way() {
    let dir = Dir::new("fault-fill");
    run(&dir, |root| async move {
        let options = Options {
            segment_bytes: 4 << 20,
            extent_bytes: 1 << 20,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        let fills = Rc::new(Cell::new(0_u32));
        let seen = fills.clone();
        let (_, under_way) = watch_writes(move |_, len| {
            let failing = seen.get() > 0;
            seen.set(seen.get() + u32::from(len > 64 << 10));
            failing
        });
        let mut n = 0;
        while fills.get() == 0 && n < 100 {
            log.append(records(n, 1, 300), None).await.unwrap();
            n += 1;
        }
        assert_eq!(fills.get(), 1, "zeros are written ahead of small appends");
        let stopped = log.append(records(n, 1, 300), None).await;
        assert!(
            matches!(stopped, Err(AppendError::Closed { .. })),
            "{stopped:?}"
        );
        log.close().await.unwrap();
        assert_eq!(under_way.get(), 0);
        fault::clear();
        let (log, report) = Log::open(&root, copy(1), &options).await.unwrap();
        assert_eq!(report.damage, []);
        log.append(records(n, 1, 300), None).await.unwrap();
        expect_numbers(&log, 0..n + 1, 300).await;
    });
}

/// A log's first segment and what it holds, and an empty staging for a copy of it.
async fn staging_of_a_log(root: &Path, options: &Options) -> (Log, Vec<u8>, Staging) {
    let log = Log::create(&root.join("a"), copy(1), options)
        .await
        .unwrap();
    for n in 0..100 {
        log.append(records(n, 1, 300), None).await.unwrap();
    }
    let segment = log.manifest().segments[0];
    let mut bytes = std::fs::read(log.segment_path(segment.id).unwrap()).unwrap();
    bytes.truncate(segment.durable_len as usize);
    let staging = Staging::open_or_create(&root.join("b"), key(), MoveId(40), options)
        .await
        .unwrap();
    (log, bytes, staging)
}

#[test]
fn a_copy_whose_disk_failed_has_no_write_under_way_once_its_sync_returned() {
    let dir = Dir::new("fault-stage");
    run(&dir, |root| async move {
        let (log, bytes, mut staging) = staging_of_a_log(&root, &options()).await;
        let id = log.manifest().segments[0].id;
        let (issued, under_way) = watch_writes(|pos, _| pos == 8192);
        let mut told = None;
        for (i, chunk) in bytes.chunks_exact(4096).take(6).enumerate() {
            let buffer = StageBuf::copy_of(chunk);
            if let Err(error) = staging.write(id, i as u64 * 4096, buffer).await {
                told.get_or_insert(error);
            }
        }
        // By a later write, when those before it have ended by then.
        let synced = staging.sync().await.unwrap_err();
        let left = under_way.get();
        let error = told.unwrap_or(synced);
        assert!(error.to_string().contains("health"), "{error}");
        assert!(issued.get() >= 2, "{}", issued.get());
        assert_eq!(left, 0, "of {}", issued.get());
        let error = staging.sync().await.unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        fault::clear();
        drop(staging);
        let again = Staging::open_or_create(&root.join("b"), key(), MoveId(40), &options())
            .await
            .unwrap();
        assert_eq!(again.progress(), []);
    });
}

#[test]
fn a_copy_keeps_the_reserve_free_and_goes_on_when_there_is_room() {
    let dir = Dir::new("fault-stage-reserve");
    run(&dir, |root| async move {
        let options = Options {
            reserve_bytes: 10 << 20,
            staging_reserve_bytes: 100 << 20,
            ..options()
        };
        let (log, bytes, mut staging) = staging_of_a_log(&root, &options).await;
        let id = log.manifest().segments[0].id;
        fault::set(Box::new(LittleRoom((100 << 20) + 4095)));
        staging.check_room(4095).await.unwrap();
        let whole = staging.check_room(8192).await;
        assert!(
            matches!(
                whole,
                Err(StageError::Full {
                    available: 4095,
                    ..
                })
            ),
            "{whole:?}"
        );
        let refused = staging
            .write(id, 0, StageBuf::copy_of(&bytes[..8192]))
            .await;
        let Err(StageError::Full { needed, available }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((needed, available), (8192, 4095));
        // Appends beside it find room all the same.
        log.append(records(1_000, 1, 300), None).await.unwrap();
        staging.sync().await.unwrap();
        fault::set(Box::new(LittleRoom(110 << 20)));
        staging
            .write(id, 0, StageBuf::copy_of(&bytes))
            .await
            .unwrap();
        staging.sync().await.unwrap();
        assert_eq!(staging.progress()[0].durable_len, bytes.len() as u64);
        fault::clear();
    });
}
