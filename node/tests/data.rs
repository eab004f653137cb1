//! Produce, consume, leases and replay over Cap'n Proto at one node: on a real process, disk and
//! sockets.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{ask, drain, leases, one_node, text, topic, value, with_client};
use narad_core::ids::{Offset, PartitionIndex, WallMs};
use narad_wire::client::calls::{ReplayRequest, Settle};
use narad_wire::client::{Client, ClientOptions, Produced, TopicSettingsView};
use narad_wire::convert::Record;
use narad_wire::error::ErrorCode;
use narad_wire::runtime::Glommio;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{PATIENCE, wait_for};

#[test]
fn what_is_produced_is_consumed_once_acked_and_replayed() {
    let (_cluster, addrs) = one_node("data-basic", &["--shards=2"]);
    with_client(addrs, async |client| {
        topic(&client, "orders", 4, TopicSettingsView::default()).await;
        let mut wanted = BTreeSet::new();
        let mut at = BTreeMap::new();
        for batch in 0..10 {
            let records: Vec<Record> = (0..50)
                .map(|n| text(&format!("v{batch}-{n}")).key(format!("k{n}").into_bytes()))
                .collect();
            let results = client
                .produce_once("orders", &records, None)
                .await
                .expect("a produce");
            assert_eq!(results.len(), records.len());
            for (n, result) in results.iter().enumerate() {
                let name = format!("v{batch}-{n}");
                match result.as_ref().expect("taken") {
                    Produced::Committed { partition, offset } => {
                        at.insert((*partition, *offset), name.clone());
                    }
                    Produced::Accepted => panic!("the only node owns every partition"),
                }
                wanted.insert(name);
            }
        }
        let seen = drain(&client, "orders", &wanted).await;
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        let rest = client.consume_once("orders", ask(10, 0)).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");

        let mut replayed = BTreeMap::new();
        for partition in (0..4).map(PartitionIndex) {
            let mut from = Offset(0);
            loop {
                let batch = client
                    .replay_once(
                        "orders",
                        ReplayRequest {
                            partition,
                            from,
                            from_time: narad_core::ids::WallMs(0),
                            to: Offset(u64::MAX),
                            max_records: 7,
                            max_bytes: 1 << 20,
                        },
                    )
                    .await
                    .expect("a replay");
                for one in &batch.records {
                    let value = String::from_utf8(one.record.value.clone()).unwrap();
                    replayed.insert((partition, one.offset), value);
                }
                if batch.is_done(Offset(u64::MAX)) {
                    break;
                }
                from = batch.next;
            }
        }
        assert_eq!(replayed, at, "every record is where its produce said");
        let described = client.describe_topic("orders").await.unwrap();
        assert!(described.partitions.iter().all(|p| p.known));
        let acked: u64 = described.partitions.iter().map(|p| p.frontier).sum();
        assert_eq!(acked, wanted.len() as u64);
    });
}

#[test]
fn nothing_acked_is_lost_when_the_process_is_killed_while_it_is_written_to() {
    let (mut cluster, addrs) = one_node("data-kill", &["--shards=2"]);
    with_client(addrs.clone(), async |client| {
        topic(&client, "orders", 3, TopicSettingsView::default()).await;
    });
    for round in 0..3 {
        let killed = Arc::new(AtomicBool::new(false));
        let seen_kill = killed.clone();
        let to = addrs.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let producer = std::thread::spawn(move || {
            with_client(to.clone(), async move |_| {
                // Not long after the kill it knows that nobody answers.
                let mut options = ClientOptions::new(to);
                options.deadline = Duration::from_secs(3);
                let client = Client::with(Glommio, options);
                let mut acked = BTreeSet::new();
                for n in 0.. {
                    let records: Vec<Record> = (0..20)
                        .map(|i| text(&format!("r{round}-{n}-{i}")))
                        .collect();
                    match client.produce_once("orders", &records, None).await {
                        Ok(results) => {
                            for (i, result) in results.iter().enumerate() {
                                if result.is_ok() {
                                    acked.insert(format!("r{round}-{n}-{i}"));
                                }
                            }
                            let _ = tell.send(acked.len());
                        }
                        Err(_) => {
                            if seen_kill.load(Ordering::SeqCst) {
                                break;
                            }
                        }
                    }
                }
                acked
            })
        });
        while told.recv_timeout(PATIENCE).expect("the producer works") < 500 {}
        cluster.nodes[0].kill();
        killed.store(true, Ordering::SeqCst);
        let acked = producer.join().expect("the producer ends");
        assert!(acked.len() >= 500);
        cluster.nodes[0].start();
        cluster.nodes[0].wait_ready();
        with_client(addrs.clone(), async move |client| {
            drain(&client, "orders", &acked).await;
        });
    }
    // What was sent and never acknowledged may be there too.
    with_client(addrs.clone(), async |client| {
        loop {
            let got = client.consume_once("orders", ask(500, 0)).await.unwrap();
            if got.is_empty() {
                break;
            }
            let acked = client
                .settle_once("orders", &leases(&got), Settle::Ack)
                .await;
            acked.unwrap();
        }
    });
    // What was acked stays acked: over a kill as soon as the node says that all frontiers are written, and
    // over an orderly stop.
    wait_for("every frontier is on the disk", || {
        let text = cluster.nodes[0].http("GET", "/metrics")?.1;
        let written = text
            .lines()
            .any(|line| line == "narad_unwritten_frontiers 0");
        written.then_some(())
    });
    cluster.nodes[0].kill();
    for _ in 0..2 {
        cluster.nodes[0].start();
        cluster.nodes[0].wait_ready();
        with_client(addrs.clone(), async |client| {
            let described = client.describe_topic("orders").await.unwrap();
            assert!(
                described
                    .partitions
                    .iter()
                    .all(|p| p.known && p.frontier == p.hwm),
                "{described:?}"
            );
            let again = client.consume_once("orders", ask(500, 0)).await.unwrap();
            assert!(again.is_empty(), "{again:?}");
        });
        assert!(
            cluster.nodes[0].stop().success(),
            "{}",
            cluster.nodes[0].log()
        );
    }
}

#[test]
fn a_parked_consumer_wakes_for_a_record_and_leases_end_as_they_should() {
    let (_cluster, addrs) = one_node("data-leases", &["--shards=2"]);
    let to = addrs.clone();
    with_client(addrs, async move |client| {
        topic(&client, "jobs", 2, TopicSettingsView::default()).await;
        let parked = std::thread::spawn(move || {
            with_client(to, async |client| {
                let got = client.consume_once("jobs", ask(1, 60_000)).await.unwrap();
                (value(&got[0]), got[0].lease)
            })
        });
        // Produced while the other one is parked, or just before: it gets it either way.
        glommio::timer::sleep(Duration::from_millis(300)).await;
        client
            .produce_once("jobs", &[text("wake")], None)
            .await
            .unwrap()[0]
            .as_ref()
            .unwrap();
        let (woken, lease) = glommio::executor()
            .spawn_blocking(move || parked.join().expect("it wakes"))
            .await;
        assert_eq!(woken, "wake");

        // Given back: delivered again, counted, under another proof.
        let back = Settle::Nack { delay_ms: 0 };
        let given = client.settle_once("jobs", &[lease], back).await.unwrap();
        given[0].as_ref().expect("it was leased");
        let again = client.consume_once("jobs", ask(1, 30_000)).await.unwrap();
        assert_eq!((again[0].deliveries, value(&again[0])), (2, "wake".into()));
        let stale = client
            .settle_once("jobs", &[lease], Settle::Ack)
            .await
            .unwrap();
        assert_eq!(stale[0].as_ref().unwrap_err().code, ErrorCode::StaleLease);

        // Not acked in time: delivered again by itself.
        let short = Settle::Extend { visibility_ms: 200 };
        let extended = client
            .settle_once("jobs", &leases(&again), short)
            .await
            .unwrap();
        extended[0].as_ref().expect("it was leased");
        let third = client.consume_once("jobs", ask(1, 30_000)).await.unwrap();
        assert_eq!((third[0].deliveries, value(&third[0])), (3, "wake".into()));
        let late = client
            .settle_once("jobs", &leases(&again), Settle::Ack)
            .await
            .unwrap();
        assert_eq!(late[0].as_ref().unwrap_err().code, ErrorCode::StaleLease);
        let done = client
            .settle_once("jobs", &leases(&third), Settle::Ack)
            .await
            .unwrap();
        done[0].as_ref().expect("acked");
        let rest = client.consume_once("jobs", ask(1, 0)).await.unwrap();
        assert!(rest.is_empty());
    });
}

#[test]
fn what_was_leased_for_a_consumer_that_is_gone_is_delivered_to_another_at_once() {
    let (_cluster, addrs) = one_node("data-gone", &["--shards=2"]);
    let to = addrs.clone();
    with_client(addrs, async move |client| {
        // Longer than any test waits: nothing comes back by its timeout.
        let settings = TopicSettingsView {
            visibility_ms: 600_000,
            ..TopicSettingsView::default()
        };
        topic(&client, "jobs", 2, settings).await;
        for round in 0..3 {
            for _ in 0..4 {
                let to = to.clone();
                let parked = std::thread::spawn(move || {
                    with_client(to, async |client| {
                        let parked = client.consume_once("jobs", ask(1, 60_000));
                        let gone = glommio::timer::sleep(Duration::from_millis(300));
                        let (parked, gone) = (std::pin::pin!(parked), std::pin::pin!(gone));
                        // Its executor, and with it the connection, ends here.
                        futures::future::select(parked, gone).await;
                    });
                });
                glommio::executor()
                    .spawn_blocking(move || parked.join().expect("it gives up"))
                    .await;
            }
            let name = format!("j{round}");
            let placed = client.produce_once("jobs", &[text(&name)], None).await;
            placed.unwrap()[0].as_ref().unwrap();
            let until = Instant::now() + PATIENCE;
            loop {
                assert!(
                    Instant::now() < until,
                    "{name} stays with a consumer that is gone"
                );
                let got = client.consume_once("jobs", ask(1, 1_000)).await.unwrap();
                if let Some(one) = got.first() {
                    assert_eq!(value(one), name);
                    let acked = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
                    acked.unwrap()[0].as_ref().unwrap();
                    break;
                }
            }
        }
    });
}

#[test]
fn a_deleted_topic_leaves_nothing_and_the_same_name_begins_anew() {
    let (cluster, addrs) = one_node("data-delete", &["--shards=2"]);
    let partitions = cluster.nodes[0].dir.join("partitions");
    with_client(addrs, async move |client| {
        let count = || std::fs::read_dir(&partitions).map_or(0, Iterator::count);
        for round in 0..2 {
            topic(&client, "orders", 4, TopicSettingsView::default()).await;
            let none = client.consume_once("orders", ask(10, 0)).await.unwrap();
            assert!(none.is_empty(), "{none:?}");
            let records: Vec<Record> = (0..40)
                .map(|n| text("old").key(format!("k{round}-{n}").into_bytes()))
                .collect();
            for result in client.produce_once("orders", &records, None).await.unwrap() {
                result.unwrap();
            }
            assert!(count() > 1);
            client.delete_topic("orders").await.expect("deleted");
            let until = Instant::now() + PATIENCE;
            while count() > 0 {
                assert!(Instant::now() < until, "{} copies stay", count());
                glommio::timer::sleep(Duration::from_millis(50)).await;
            }
        }
    });
}

#[test]
fn a_record_that_is_delivered_too_often_goes_to_the_dead_letter_topic() {
    let (_cluster, addrs) = one_node("data-dead-letter", &[]);
    with_client(addrs, async |client| {
        topic(&client, "dead", 1, TopicSettingsView::default()).await;
        let settings = TopicSettingsView {
            max_deliveries: 2,
            dead_letter: "dead".into(),
            ..TopicSettingsView::default()
        };
        topic(&client, "jobs", 1, settings).await;
        let record = text("poison").key(b"k".to_vec());
        client.produce_once("jobs", &[record], None).await.unwrap();
        for deliveries in 1..=2 {
            let got = client.consume_once("jobs", ask(1, 30_000)).await.unwrap();
            assert_eq!(got[0].deliveries, deliveries);
            let back = Settle::Nack { delay_ms: 0 };
            client
                .settle_once("jobs", &leases(&got), back)
                .await
                .unwrap();
        }
        let none = client.consume_once("jobs", ask(1, 0)).await.unwrap();
        assert!(none.is_empty(), "{none:?}");
        let dead = client.consume_once("dead", ask(1, 30_000)).await.unwrap();
        assert_eq!(value(&dead[0]), "poison");
        assert_eq!(dead[0].record.key.as_deref(), Some(b"k".as_slice()));
    });
}

#[test]
fn what_cannot_be_served_is_refused_with_a_code_and_a_hint() {
    let (_cluster, addrs) = one_node("data-refusals", &[]);
    with_client(addrs, async |client| {
        let settings = TopicSettingsView {
            max_record_bytes: 1_000,
            retention_ms: 7 * 86_400_000,
            ..TopicSettingsView::default()
        };
        topic(&client, "orders", 2, settings).await;
        let again = client
            .create_topic("orders", 2, None, &TopicSettingsView::default())
            .await
            .unwrap_err();
        assert_eq!(again.code(), Some(ErrorCode::TopicExists));

        let unknown = client
            .produce_once("nowhere", &[text("x")], None)
            .await
            .unwrap_err();
        assert_eq!(unknown.code(), Some(ErrorCode::UnknownTopic));
        assert!(!unknown.fault().unwrap().hint.is_empty());
        let unknown = client.consume_once("nowhere", ask(1, 0)).await.unwrap_err();
        assert_eq!(unknown.code(), Some(ErrorCode::UnknownTopic));

        let partition = Some(PartitionIndex(2));
        let unknown = client
            .produce_once("orders", &[text("x")], partition)
            .await
            .unwrap_err();
        assert_eq!(unknown.code(), Some(ErrorCode::UnknownPartition));

        // One record over the limit does not take the others with it.
        let mixed = [text("small"), Record::new(vec![7; 1_001]), text("too")];
        let results = client.produce_once("orders", &mixed, None).await.unwrap();
        results[0].as_ref().unwrap();
        assert_eq!(results[1].as_ref().unwrap_err().code, ErrorCode::TooLarge);
        results[2].as_ref().unwrap();

        // Neither does one whose time is in s or in µs: retention would go by it.
        let timed = |time: u64| Record {
            time: WallMs(time),
            ..text("timed")
        };
        let times = [1_790_000_000, 1_790_000_000_000_000, 0].map(timed);
        for named in [None, Some(PartitionIndex(0))] {
            let results = client.produce_once("orders", &times, named).await.unwrap();
            for wrong in &results[..2] {
                let fault = wrong.as_ref().unwrap_err();
                assert_eq!(fault.code, ErrorCode::Invalid, "{fault}");
            }
            results[2].as_ref().unwrap();
        }

        let many: Vec<Record> = (0..10_001).map(|_| text("x")).collect();
        let large = client
            .produce_once("orders", &many, None)
            .await
            .unwrap_err();
        assert_eq!(large.code(), Some(ErrorCode::TooLarge));
        // The connection has survived all of it.
        client.info().await.expect("an answer");

        client.delete_topic("orders").await.expect("deleted");
        let gone = client.describe_topic("orders").await.unwrap_err();
        assert_eq!(gone.code(), Some(ErrorCode::UnknownTopic));
    });
}
