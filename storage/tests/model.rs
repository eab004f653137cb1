//! Random sequences of everything that happens to a log, against a list in memory.

mod common;

use common::*;
use narad_core::ids::{Offset, WallMs};
use narad_storage::{Log, Options, Record};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Append(u8, u16),
    Group(u8, u16),
    Frontier(u8),
    Close,
    Crash,
    /// A crash that also tears what is behind the durable bytes.
    CrashTorn(u16),
    Trim,
    Retain(u16),
    Read(u16, u8, u16),
    At(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..5, 0u16..2000).prop_map(|(n, len)| Step::Append(n, len)),
        3 => (2u8..9, 0u16..2000).prop_map(|(n, len)| Step::Group(n, len)),
        1 => any::<u8>().prop_map(Step::Frontier),
        1 => Just(Step::Close),
        1 => Just(Step::Crash),
        1 => any::<u16>().prop_map(Step::CrashTorn),
        1 => Just(Step::Trim),
        1 => any::<u16>().prop_map(Step::Retain),
        2 => (any::<u16>(), 1u8..20, 1u16..9000).prop_map(|(a, b, c)| Step::Read(a, b, c)),
        1 => any::<u16>().prop_map(Step::At),
    ]
}

fn settings(cache_bytes: usize) -> Options {
    Options {
        segment_bytes: 16 << 10,
        extent_bytes: 8 << 10,
        cache_bytes,
        ..options()
    }
}

async fn play(root: std::path::PathBuf, steps: Vec<Step>, cache: usize) {
    let set = settings(cache);
    let mut home = root.join("0");
    let mut log = Log::create(&home, copy(1), &set).await.unwrap();
    let mut model: Vec<Record> = Vec::new();
    let (mut start, mut frontier, mut saved) = (0u64, 0u64, 0u64);
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Append(count, len) => {
                let batch = records(model.len() as u64, u64::from(count), len.into());
                let at = log.append(batch.clone(), None).await.unwrap();
                assert_eq!(at.base, Offset(model.len() as u64));
                model.extend(batch);
            }
            Step::Group(count, len) => {
                let base = model.len() as u64;
                let batches: Vec<_> = (0..u64::from(count))
                    .map(|i| records(base + i, 1, len.into()))
                    .collect();
                let appends = batches.iter().map(|b| log.append(b.clone(), None));
                for done in futures::future::join_all(appends).await {
                    done.unwrap();
                }
                model.extend(batches.into_iter().flatten());
            }
            Step::Frontier(part) => {
                frontier = frontier.max(model.len() as u64 * u64::from(part) / 255);
                log.set_frontier(Offset(frontier));
                log.persist_meta().await.unwrap();
                saved = frontier;
            }
            Step::Close => {
                log.close().await.unwrap();
                log = Log::open(&home, copy(1), &set).await.unwrap().0;
                saved = frontier;
            }
            Step::Crash | Step::CrashTorn(_) => {
                let next = root.join((number + 1).to_string());
                copy_tree(&home.join("partitions"), &next.join("partitions"));
                if let Step::CrashTorn(seed) = step
                    && let Some(active) = log.manifest().segments.last().filter(|s| !s.sealed)
                {
                    let path = log.segment_path(active.id).unwrap();
                    let path = next.join(path.strip_prefix(&home).unwrap());
                    let junk = vec![seed as u8 | 1; 8 * (usize::from(seed) % 90 + 1)];
                    patch(&path, active.durable_len, &junk);
                }
                home = next;
                let (back, report) = Log::open(&home, copy(1), &set).await.unwrap();
                assert_eq!(report.damage, []);
                log = back;
                frontier = saved;
            }
            Step::Trim => log.trim().await.unwrap(),
            Step::Retain(kib) => {
                log.retain(None, Some(u64::from(kib % 128) << 10))
                    .await
                    .unwrap();
                assert!(log.start().0 >= start);
                start = log.start().0;
                frontier = frontier.max(start);
                saved = saved.max(start).max(log.frontier().0);
            }
            Step::Read(from, count, bytes) => {
                let from = u64::from(from) % (model.len() as u64 + 1);
                let batch = log
                    .read(Offset(from), count.into(), bytes.into())
                    .await
                    .unwrap();
                let first = from.max(start);
                if first < model.len() as u64 {
                    assert!(!batch.records.is_empty());
                }
                assert!(batch.records.len() <= count.into());
                for (i, (offset, got)) in batch.records.iter().enumerate() {
                    assert_eq!(offset.0, first + i as u64);
                    assert_eq!(got.to_record(), model[offset.0 as usize]);
                }
                let size: usize = batch.records.iter().map(|(_, r)| r.content_len()).sum();
                assert!(batch.records.len() == 1 || size <= bytes.into());
            }
            Step::At(n) => {
                let n = u64::from(n) % (model.len() as u64 + 1);
                let at = log.offset_at(WallMs(1_000_000 + n)).await.unwrap();
                assert_eq!(at, Offset(n.max(start)));
            }
        }
        assert_eq!(log.hwm(), Offset(model.len() as u64));
        assert_eq!(log.frontier(), Offset(frontier.max(log.start().0)));
    }
    let (got, _) = read_all(&log).await;
    let want: Vec<_> = (start..)
        .zip(model[start as usize..].iter().cloned())
        .collect();
    assert_eq!(got, want);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_behaves_as_a_list(steps in prop::collection::vec(step(), 1..60), cached in any::<bool>()) {
        let dir = Dir::new("model");
        let cache = if cached { 8 << 10 } else { 0 };
        run(&dir, move |root| play(root, steps, cache));
    }
}
