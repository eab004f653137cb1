//! Batches that are written from the memory in which they are, between small ones that are copied together.
//!
//! What is shown: each is one request that begins and ends on a page; the log's digest is that of the file;
//! every mixture reads back from memory and from the disk; a power cut leaves all acked records and no
//! others; a reader does not keep more memory than it asked for.

mod common;

use common::power::{Dice, Event, Recorder, acked, image, store};
use common::*;
use narad_core::ids::Offset;
use narad_storage::{Batch, Log, Options, Record, StoredRecord, fault};
use std::fs;
use std::path::Path;

const PAGE: u64 = 4096;

fn roomy() -> Options {
    Options {
        segment_bytes: 1 << 20,
        extent_bytes: 256 << 10,
        ..options()
    }
}

/// One append of each kind at once, round by round: small ones before and behind, large ones that follow
/// each other, and one of a single large record. Returns how many records there are.
async fn work(log: &Log, rounds: u64, mut acked: impl FnMut(u64)) -> u64 {
    let mut next = log.next().0;
    for round in 0..rounds {
        let sizes: [(u64, usize); 5] = [
            (1 + round % 3, 300),
            (80, 1000),
            (90 + round, 1000),
            (2, 40),
            (1, 90_000),
        ];
        let mut appends = Vec::new();
        for (count, len) in sizes.into_iter().skip((round % 4) as usize) {
            appends.push(log.append(records(next, count, len), None));
            next += count;
        }
        let results = futures::future::join_all(appends).await;
        assert!(results.iter().all(Result::is_ok));
        acked(next);
    }
    next
}

async fn expect_all(log: &Log, end: u64) {
    let (got, skipped) = read_all(log).await;
    assert_eq!((got.len() as u64, skipped), (end, 0));
    for (offset, found) in got {
        assert_eq!(found, record(offset, found.value.len()));
    }
}

#[test]
fn every_mixture_reads_back_and_the_digest_is_that_of_the_file() {
    let dir = Dir::new("large");
    run(&dir, |root| async move {
        for (n, io_chunk_bytes) in [1 << 20, 64 << 10, 4096].into_iter().enumerate() {
            let root = root.join(n.to_string());
            let options = Options {
                io_chunk_bytes,
                ..roomy()
            };
            let log = Log::create(&root, copy(1), &options).await.unwrap();
            let end = work(&log, 12, |_| {}).await;
            expect_all(&log, end).await;
            let manifest = log.manifest();
            assert!(manifest.segments.len() > 2);
            for segment in &manifest.segments {
                let path = log.segment_path(segment.id).unwrap();
                let bytes = fs::read(path).unwrap();
                let bytes = &bytes[..segment.durable_len as usize];
                assert_eq!(crc32c::crc32c(bytes), segment.digest, "{segment:?}");
            }
            // As after a crash: nothing that the log knew is used.
            let crashed = root.join("crashed");
            copy_tree(&root.join("partitions"), &crashed.join("partitions"));
            let _ = fs::remove_file(crashed.join("partitions/t7-p3-e1/segments.list"));
            let (again, report) = Log::open(&crashed, copy(1), &options).await.unwrap();
            assert_eq!(report.damage, []);
            expect_all(&again, end).await;
            let digests = |log: &Log| {
                log.manifest()
                    .segments
                    .iter()
                    .map(|s| s.digest)
                    .collect::<Vec<_>>()
            };
            assert_eq!(digests(&again), digests(&log));
        }
    });
}

#[test]
fn a_large_batch_is_one_request_on_pages() {
    let dir = Dir::new("large-requests");
    run(&dir, |root| async move {
        let options = Options {
            segment_bytes: 64 << 20,
            extent_bytes: 8 << 20,
            ..options()
        };
        let log = Log::create(&root, copy(1), &options).await.unwrap();
        let mut next = 0;
        let mut append = async |count: u64| {
            log.append(records(next, count, 1000), None).await.unwrap();
            next += count;
        };
        // The segment's header is written with the first.
        append(1).await;
        let events = Recorder::start(&root);
        for _ in 0..4 {
            append(1000).await;
        }
        append(3).await;
        append(1000).await;
        fault::clear();
        let events = events.events.borrow().clone();
        let writes: Vec<(u64, u64)> = events
            .iter()
            .filter_map(|event| match event {
                Event::Write(path, pos, bytes) if path.extension().is_some_and(|e| e == "seg") => {
                    Some((*pos, bytes.len() as u64))
                }
                _ => None,
            })
            .collect();
        let large: Vec<_> = writes.iter().filter(|(_, len)| *len > 900_000).collect();
        assert_eq!(large.len(), 5, "{writes:?}");
        assert!(
            large
                .iter()
                .all(|(pos, len)| pos % PAGE == 0 && len % PAGE == 0)
        );
        // Zeros up to the page where small ones came before, and the small one itself.
        assert!(writes.len() <= 5 + 3, "{writes:?}");
        let read = log.stats().read_bytes;
        expect_all(&log, next).await;
        assert!(log.stats().read_bytes > read, "more than memory keeps");
    });
}

#[test]
fn a_power_cut_between_large_and_small_batches_loses_nothing_acked() {
    let dir = Dir::new("large-power");
    run(&dir, |root| async move {
        let live = root.join("live");
        let log = Log::create(&live, copy(1), &roomy()).await.unwrap();
        let events = Recorder::start(&live);
        let sent = work(&log, 8, |count| events.acked(count)).await;
        fault::clear();
        let recorded = events.events.borrow().clone();
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for n in 0..80 {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let at = root.join(format!("image-{n}"));
            store(&image(&recorded[..cut], &mut dice), &live, &at);
            check(
                &at,
                acked(&recorded[..cut]),
                sent,
                &format!("image {n}, cut at {cut}"),
            )
            .await;
            let _ = fs::remove_dir_all(&at);
        }
    });
}

async fn check(at: &Path, acked: u64, sent: u64, what: &str) {
    fs::create_dir_all(at.join("partitions/t7-p3-e1")).unwrap();
    let (log, report) = Log::open(at, copy(1), &roomy()).await.unwrap();
    assert_eq!(report.damage, [], "{what}: {report:?}");
    let end = log.end().0;
    assert!(
        acked <= end && end <= sent,
        "{what}: {acked} <= {end} <= {sent}"
    );
    expect_all(&log, end).await;
    // It goes on where it is, with either kind.
    let end = work(&log, 2, |_| {}).await;
    expect_all(&log, end).await;
}

#[test]
fn a_batch_is_its_records_whatever_its_size() {
    for (count, len) in [
        (0, 0),
        (1, 10),
        (1, 100_000),
        (3, 0),
        (700, 100),
        (130, 1000),
        (2000, 1000),
    ] {
        let all = records(0, count, len);
        let mut grown = Batch::default();
        let mut roomy = Batch::with_capacity(1, 70_000);
        for record in &all {
            grown.push(record.as_ref());
            roomy.push(record.as_ref());
        }
        let made = Batch::from(all.clone());
        for batch in [&grown, &roomy, &made] {
            assert_eq!(batch.to_records(), all);
            assert_eq!(batch.payload(), made.payload());
            assert_eq!(batch.len(), all.len());
            assert_eq!(
                batch.content_len(),
                all.iter().map(Record::content_len).sum::<usize>()
            );
            assert_eq!(
                batch.largest(),
                all.iter().map(Record::content_len).max().unwrap_or(0)
            );
            for (index, record) in all.iter().enumerate() {
                assert_eq!(batch.get(index), Some(record.as_ref()));
            }
            assert_eq!(batch.get(all.len()), None);
        }
    }
}

#[test]
fn a_reader_of_few_records_does_not_keep_their_neighbours() {
    let dir = Dir::new("large-neighbours");
    run(&dir, |root| async move {
        let log = Log::create(&root, copy(1), &roomy()).await.unwrap();
        log.append(records(0, 900, 1000), None).await.unwrap();
        let few = log.read(Offset(450), 2, 1 << 20).await.unwrap();
        let many = log.read(Offset(0), 900, 2 << 20).await.unwrap();
        let held = |record: &StoredRecord| record.held_bytes();
        assert!(few.records.iter().all(|(_, record)| held(record) < 10_000));
        assert!(
            many.records
                .iter()
                .all(|(_, record)| held(record) > 900_000)
        );
        assert_eq!(few.records[1].1, many.records[451].1);
    });
}
