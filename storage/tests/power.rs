//! Power cuts: every image that a disk could hold after a cut recovers to a log with every acked record
//! and none that was not sent.

mod common;

use common::power::{Dice, Recorder, acked, everything, files_of, image, images, moved, store};
use common::*;
use narad_core::ids::{Offset, PartitionIndex, TopicId, WalSeq};
use narad_storage::{Log, Options, Wal, WalEntry, WalOptions, fault};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn small() -> Options {
    Options {
        segment_bytes: 24 << 10,
        extent_bytes: 8 << 10,
        cache_bytes: 0,
        ..options()
    }
}

/// Works on a log for a while: groups of different sizes, meta, retention of nothing, sealing.
async fn work(root: &Path, events: &Recorder, from: u64, rounds: u64) -> u64 {
    let mut next = from;
    let (log, _) = Log::open(root, copy(1), &small()).await.unwrap();
    for round in 0..rounds {
        let group = 1 + (round * 7) % 5;
        let appends: Vec<_> = (0..group)
            .map(|i| {
                log.append(
                    records(next + i, 1, 200 + (round as usize * 137) % 900),
                    None,
                )
            })
            .collect();
        let results = futures::future::join_all(appends).await;
        assert!(results.iter().all(Result::is_ok));
        next += group;
        events.acked(next);
        if round % 4 == 3 {
            log.set_frontier(Offset(next / 2));
            log.persist_meta().await.unwrap();
        }
    }
    next
}

async fn check(at: &Path, acked: u64, sent: u64, what: &str) -> Log {
    fs::create_dir_all(at.join("partitions/t7-p3-e1")).unwrap();
    let (log, report) = Log::open(at, copy(1), &small()).await.unwrap();
    assert_eq!(report.damage, [], "{what}: {report:?}");
    let (end, hwm) = (log.end().0, log.hwm().0);
    assert!(
        acked <= end && end <= sent,
        "{what}: {acked} <= {end} <= {sent}: {report:?}"
    );
    assert_eq!(end, hwm, "{what}");
    let (got, skipped) = read_all(&log).await;
    assert_eq!((got.len() as u64, skipped), (end, 0), "{what}: {report:?}");
    for (offset, found) in got {
        assert_eq!(found, record(offset, found.value.len()), "{what}");
    }
    log
}

#[test]
fn every_image_after_a_cut_recovers_with_all_acked_and_nothing_invented() {
    images_recover(0x9e37_79b9_7f4a_7c15);
}

/// The same with other dice, beside it.
#[test]
fn more_images_recover() {
    images_recover(0x2545_f491_4f6c_dd1d);
}

fn images_recover(seed: u64) {
    let images = images(1000);
    let dir = Dir::new("power");
    run(&dir, move |root| async move {
        let live = root.join("live");
        let log = Log::create(&live, copy(1), &small()).await.unwrap();
        drop(log);
        let events = Recorder::start(&live);
        let sent = work(&live, &events, 0, 24).await;
        fault::clear();
        let recorded = events.events.borrow().clone();
        let mut dice = Dice::new(seed);
        for n in 0..images {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let files = image(&recorded[..cut], &mut dice);
            let at = root.join(format!("image-{n}"));
            store(&files, &live, &at);
            let acked = acked(&recorded[..cut]);
            let log = check(&at, acked, sent, &format!("image {n}, cut at {cut}")).await;
            // Now and then the power goes again while the recovered log works.
            if n % 16 == 0 {
                let end = log.end().0;
                drop(log);
                let before = at.join("before");
                copy_tree(&at.join("partitions"), &before.join("partitions"));
                let mut all = files_of(&before.join("partitions/t7-p3-e1"));
                let again = Recorder::start(&before);
                let sent = work(&before, &again, end, 3).await;
                fault::clear();
                let second = again.events.borrow().clone();
                let cut = dice.roll(second.len() as u64 + 1) as usize;
                all.extend(second[..cut].iter().cloned());
                let files = image(&all, &mut dice);
                let twice = at.join("twice");
                store(&files, &before, &twice);
                let least = common::power::acked(&second[..cut]).max(end);
                check(
                    &twice,
                    least,
                    sent,
                    &format!("image {n}, second cut at {cut}"),
                )
                .await;
            }
            // The list may just be written in the background.
            let _ = fs::remove_dir_all(&at);
        }
    });
}

#[test]
fn what_a_restart_has_shown_survives_a_power_cut() {
    let dir = Dir::new("power-restart");
    run(&dir, |root| async move {
        let live = root.join("live");
        drop(Log::create(&live, copy(1), &small()).await.unwrap());
        let events = Recorder::start(&live);
        let sent = work(&live, &events, 0, 24).await;
        fault::clear();
        let recorded = events.events.borrow().clone();
        let mut dice = Dice::new(0x0f0f_1e1e_2d2d_3c3d);
        for n in 0..images(300) {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let dead = root.join(format!("dead-{n}"));
            fs::create_dir_all(dead.join("partitions/t7-p3-e1")).unwrap();
            store(&everything(&recorded[..cut]), &live, &dead);
            let after = Recorder::start(&dead);
            let (log, _) = Log::open(&dead, copy(1), &small()).await.unwrap();
            fault::clear();
            let seen = log.hwm().0;
            let mut all = moved(&recorded[..cut], &live, &dead);
            all.extend(after.events.borrow().iter().cloned());
            let at = root.join(format!("image-{n}"));
            store(&image(&all, &mut dice), &dead, &at);
            check(&at, seen, sent, &format!("image {n}, killed at {cut}")).await;
            let _ = fs::remove_dir_all(&at);
            let _ = fs::remove_dir_all(&dead);
        }
    });
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
        topic: TopicId(1),
        partition: PartitionIndex(n as u32),
        pinned: false,
        record: record(n, 300),
    }
}

#[test]
fn a_wal_keeps_what_was_acked_and_is_not_done() {
    let dir = Dir::new("power-wal");
    run(&dir, |root| async move {
        let live = root.join("live");
        fs::create_dir_all(&live).unwrap();
        let recorder = Recorder::start(&live);
        let (wal, _) = Wal::open(&live, &wal_options()).await.unwrap();
        let mut sent = 0;
        // By number of events: what was reported done up to then.
        let mut done: Vec<(usize, u64)> = Vec::new();
        for round in 0..40u64 {
            let count = 1 + round % 6;
            wal.append((sent..sent + count).map(entry).collect())
                .await
                .unwrap();
            sent += count;
            recorder.acked(sent);
            // Every third entry is never delivered.
            let seqs: Vec<_> = (sent - count..sent)
                .filter(|n| n % 3 != 0)
                .map(|n| WalSeq(n + 1))
                .collect();
            done.extend(
                seqs.iter()
                    .map(|s| (recorder.events.borrow().len(), s.0 - 1)),
            );
            wal.done(&seqs);
            if round % 5 == 4 {
                wal.checkpoint().await.unwrap();
            }
        }
        fault::clear();
        let recorded = recorder.events.borrow().clone();
        let mut dice = Dice::new(0x1234_5678_9abc_def1);
        for n in 0..images(400) {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let files = image(&recorded[..cut], &mut dice);
            let at = root.join(format!("image-{n}"));
            fs::create_dir_all(&at).unwrap();
            store(&files, &live, &at);
            let (wal, found) = Wal::open(&at, &wal_options()).await.unwrap();
            assert!(
                found.report.damage.is_empty(),
                "image {n} at {cut}: {found:?}"
            );
            let acked = acked(&recorded[..cut]);
            let gone: BTreeSet<u64> = done
                .iter()
                .filter(|(at, _)| *at <= cut)
                .map(|(_, n)| *n)
                .collect();
            let read = wal.read(WalSeq(0), 10_000, 10 << 20).await.unwrap();
            let got: BTreeSet<u64> = read.iter().map(|(s, _)| s.0 - 1).collect();
            for (seq, found) in &read {
                assert_eq!(*found, entry(seq.0 - 1), "image {n} at {cut}");
            }
            for want in (0..acked).filter(|n| !gone.contains(n)) {
                assert!(got.contains(&want), "image {n} at {cut}: {want} is lost");
            }
            assert!(got.iter().all(|n| *n < sent), "image {n} at {cut}");
            // Sequences of acked entries are not given out again.
            let next = wal.append(vec![entry(0)]).await.unwrap();
            assert!(next.0 > acked, "image {n} at {cut}");
            let _ = fs::remove_dir_all(&at);
        }
    });
}
