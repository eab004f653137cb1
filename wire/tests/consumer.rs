//! The consumer and replay against a small cluster over loopback, with moves and deaths.
//!
//! What this file keeps true: every record comes, whatever happens to its owner; a lease that a
//! move left behind is no error; what was fetched in vain is given back; a slow application is not
//! handed leases that have ended.

mod common;

use common::{Cluster, OnClock, TOPIC, client, client_on, run, until, value};
use narad_core::ids::{Offset, PartitionIndex};
use narad_wire::client::{ConsumerOptions, Delivery, Record, Settled};
use narad_wire::error::ErrorCode;
use narad_wire::runtime::Glommio;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

async fn collect(
    consumer: &mut narad_wire::client::Consumer<Glommio>,
    want: usize,
) -> (Vec<Delivery>, HashSet<Vec<u8>>) {
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    while seen.len() < want {
        let batch = consumer.next().await.unwrap();
        assert!(!batch.is_empty());
        seen.extend(batch.iter().map(|d| d.record.value.clone()));
        all.extend(batch);
    }
    (all, seen)
}

fn consumer_options() -> ConsumerOptions {
    ConsumerOptions {
        max_records: 20,
        wait_ms: 200,
        ..ConsumerOptions::default()
    }
}

#[test]
fn a_consumer_polls_every_owner_and_settles_where_it_leased() {
    run(async {
        let cluster = Cluster::start(3, 6);
        for n in 0..300 {
            cluster.put(n % 6, Record::new(value(n)));
        }
        let client = client(&cluster, &[0]);
        let mut consumer = client.consumer(TOPIC, consumer_options());
        let (all, _) = collect(&mut consumer, 300).await;
        assert_eq!(all.len(), 300, "each once");
        let nodes: HashSet<_> = all.iter().map(|d| d.node.clone()).collect();
        assert_eq!(nodes.len(), 3);
        let (first, rest) = all.split_at(10);
        let again = consumer.nack(first, 0).await;
        assert_eq!(again, vec![Settled::Done; 10]);
        let kept = consumer.extend(rest, 60_000).await;
        assert_eq!(kept, vec![Settled::Done; 290]);
        let acked = consumer.ack(rest).await;
        assert_eq!(acked, vec![Settled::Done; 290]);
        let (back, _) = collect(&mut consumer, 10).await;
        assert_eq!(back.len(), 10);
        assert_eq!(consumer.ack(first).await, vec![Settled::Stale; 10]);
        assert_eq!(consumer.ack(&back).await, vec![Settled::Done; 10]);
        assert_eq!(cluster.unacked(), 0);
    });
}

#[test]
fn a_consumer_goes_through_moves_and_deaths_without_an_error() {
    run(async {
        let cluster = Cluster::start(3, 3);
        for n in 0..30 {
            cluster.put(n % 3, Record::new(value(n)));
        }
        let client = client(&cluster, &[0, 1, 2]);
        let mut consumer = client.consumer(TOPIC, consumer_options());
        let (leased, _) = collect(&mut consumer, 30).await;
        // Everything of n2 moves to n0 and n2 dies: its leases stay behind.
        cluster.move_to(2, 0);
        cluster.kill(2).await;
        let settled = consumer.ack(&leased).await;
        let done = settled.iter().filter(|s| **s == Settled::Done).count();
        assert_eq!(done, 20, "{settled:?}");
        for n in 30..60 {
            cluster.put(n % 3, Record::new(value(n)));
        }
        let mut left: HashSet<Vec<u8>> = (30..60).map(value).collect();
        left.extend(
            leased
                .iter()
                .filter(|d| d.lease.partition.0 == 2)
                .map(|d| d.record.value.clone()),
        );
        while !left.is_empty() {
            let batch = consumer.next().await.unwrap();
            for delivery in &batch {
                left.remove(&delivery.record.value);
            }
            consumer.ack(&batch).await;
        }
        until("every record to be acked", || cluster.unacked() == 0).await;
    });
}

#[test]
fn an_owner_that_cannot_be_reached_is_asked_through_others() {
    run(async {
        let cluster = Cluster::start(2, 2);
        let client = client(&cluster, &[0]);
        // n1 owns partition 1; nothing listens at its address any more.
        cluster.kill(1).await;
        for n in 0..20 {
            cluster.put(n % 2, Record::new(value(n)));
        }
        let mut consumer = client.consumer(TOPIC, consumer_options());
        let (all, _) = collect(&mut consumer, 20).await;
        assert!(all.iter().all(|d| *d.node == *cluster.addr(0)));
    });
}

#[test]
fn closing_gives_back_what_was_fetched_and_not_handed_out() {
    run(async {
        let cluster = Cluster::start(2, 2);
        for n in 0..200 {
            cluster.put(n % 2, Record::new(value(n)));
        }
        let client = client(&cluster, &[0]);
        let mut consumer = client.consumer(TOPIC, consumer_options());
        let taken = consumer.next().await.unwrap();
        consumer.ack(&taken).await;
        let leased = || -> usize {
            let partitions = cluster.partitions.borrow();
            partitions.iter().map(|p| p.leases.len()).sum()
        };
        until("a batch to wait", || leased() > 0).await;
        consumer.close().await;
        until("every lease to be given back", || leased() == 0).await;
        assert_eq!(cluster.unacked(), 200 - taken.len());
        let calls = cluster.calls(0, "consume") + cluster.calls(1, "consume");
        glommio::timer::sleep(Duration::from_millis(300)).await;
        let after = cluster.calls(0, "consume") + cluster.calls(1, "consume");
        assert_eq!(after, calls, "polling has ended");
    });
}

/// The most that a record went out.
fn most_deliveries(cluster: &Cluster) -> u32 {
    let partitions = cluster.partitions.borrow();
    let delivered = partitions.iter().flat_map(|p| p.delivered.iter());
    delivered.copied().max().unwrap_or(0)
}

/// Works `records` off, one after the other; each takes `each` of the cluster's time.
async fn work(nodes: usize, records: usize, each: Duration) -> Rc<Cluster> {
    let cluster = Cluster::start(nodes, 2 * nodes);
    for n in 0..records {
        cluster.put(n % (2 * nodes), Record::new(value(n)));
    }
    let clock = OnClock::new(&cluster);
    let client = client_on(clock.clone(), &cluster, &[0]);
    let mut consumer = client.consumer(TOPIC, ConsumerOptions::default());
    while cluster.unacked() > 0 {
        let batch = consumer.next().await.unwrap();
        for delivery in &batch {
            clock.pass(each);
            let settled = consumer.ack(std::slice::from_ref(delivery)).await;
            assert_eq!(settled, [Settled::Done], "of {} records", batch.len());
        }
        // Whoever polls has time for it.
        glommio::timer::sleep(Duration::from_millis(5)).await;
    }
    consumer.close().await;
    cluster
}

#[test]
fn a_slow_application_gets_each_record_once_under_a_lease_that_lasts() {
    run(async {
        for (nodes, records, each_ms) in [(3, 3_000, 20), (3, 300, 400), (5, 40, 9_000)] {
            let cluster = work(nodes, records, Duration::from_millis(each_ms)).await;
            assert_eq!(most_deliveries(&cluster), 1, "{each_ms} ms a record");
        }
    });
}

/// An application that was quick is away for a while: how many times leases were extended, and how
/// often a record went out at most. Nothing that it is handed afterwards has ended.
async fn away(time: Duration) -> (u64, u32) {
    let cluster = Cluster::start(3, 3);
    for n in 0..600 {
        cluster.put(n % 3, Record::new(value(n)));
    }
    let clock = OnClock::new(&cluster);
    let client = client_on(clock.clone(), &cluster, &[0]);
    let mut consumer = client.consumer(TOPIC, ConsumerOptions::default());
    let mut batches = 0;
    while cluster.unacked() > 0 {
        let batch = consumer.next().await.unwrap();
        assert_eq!(consumer.ack(&batch).await, vec![Settled::Done; batch.len()]);
        batches += 1;
        if batches == 5 {
            until("a batch of each node to wait", || {
                let partitions = cluster.partitions.borrow();
                partitions.iter().all(|p| !p.leases.is_empty())
            })
            .await;
            // The answers are on their way, in this thread.
            for _ in 0..20 {
                glommio::timer::sleep(Duration::from_millis(2)).await;
            }
            clock.pass(time);
        }
    }
    let extended = (0..3).map(|n| cluster.calls(n, "extend")).sum();
    (extended, most_deliveries(&cluster))
}

#[test]
fn what_waited_for_long_gets_its_leases_anew_or_is_left_to_others() {
    run(async {
        assert_eq!(away(Duration::from_secs(1)).await, (0, 1));
        let (extended, deliveries) = away(Duration::from_secs(20)).await;
        assert!(extended >= 3, "{extended} calls for three nodes' leases");
        assert_eq!(deliveries, 1);
        let (_, deliveries) = away(Duration::from_secs(40)).await;
        assert_eq!(deliveries, 2);
    });
}

#[test]
fn an_idle_consumer_parks_instead_of_asking_in_a_loop() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let client = client(&cluster, &[0]);
        let mut consumer = client.consumer(TOPIC, consumer_options());
        glommio::timer::sleep(Duration::from_millis(1_000)).await;
        let calls = cluster.calls(0, "consume");
        assert!(
            (1..=8).contains(&calls),
            "{calls} polls of 200 ms in a second"
        );
        cluster.put(0, Record::new(value(1)));
        assert_eq!(consumer.next().await.unwrap().len(), 1);
        let mut nowhere = client.consumer("nope", consumer_options());
        let error = nowhere.next().await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::UnknownTopic));
    });
}

#[test]
fn a_replay_is_complete_across_a_move() {
    run(async {
        let cluster = Cluster::start(2, 1);
        for n in 0..95 {
            cluster.put(0, Record::new(value(n)));
        }
        let client = client(&cluster, &[0, 1]);
        let mut replay = client.replay(TOPIC, PartitionIndex(0), Offset(5), None);
        let mut got = Vec::new();
        while let Some(batch) = replay.next().await.unwrap() {
            got.extend(
                batch
                    .records
                    .into_iter()
                    .map(|r| (r.offset.0, r.record.value)),
            );
            if got.len() == 40 {
                cluster.move_to(0, 1);
            }
        }
        let want: Vec<_> = (5..95).map(|n| (n as u64, value(n))).collect();
        assert_eq!(got, want);
        assert_eq!((replay.position(), replay.skipped()), (Offset(95), 0));
        let mut some = client.replay(TOPIC, PartitionIndex(0), Offset(10), Some(Offset(15)));
        assert_eq!(some.next().await.unwrap().unwrap().records.len(), 5);
        assert!(some.next().await.unwrap().is_none());
        let mut none = client.replay(TOPIC, PartitionIndex(0), Offset(95), None);
        assert!(none.next().await.unwrap().is_none());
    });
}
