//! Records that cross nodes: through an ingress WAL, to a consumer of another node, and over the
//! death of either side.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{ask, drain, text, three_nodes, topic, value, with_client};
use narad_core::ids::{Offset, PartitionIndex};
use narad_wire::client::calls::ReplayRequest;
use narad_wire::client::{Client, Produced, TopicSettingsView};
use narad_wire::convert::{Record, check};
use narad_wire::error::ErrorCode;
use narad_wire::rpc;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::PATIENCE;

#[test]
fn any_node_takes_any_record_and_any_node_delivers_it() {
    let (mut cluster, addrs) = three_nodes("data-any-node");
    let to = addrs.clone();
    let wanted = with_client(addrs.clone(), async move |client| {
        topic(&client, "orders", 6, TopicSettingsView::default()).await;
        let owners: BTreeSet<String> = client
            .describe_topic("orders")
            .await
            .unwrap()
            .partitions
            .iter()
            .map(|p| p.owner.clone())
            .collect();
        assert!(owners.len() >= 2, "partitions on several nodes: {owners:?}");
        let mut wanted = BTreeSet::new();
        let (mut committed, mut accepted) = (0, 0);
        for (n, addr) in to.iter().enumerate() {
            let at = Client::new(vec![addr.clone()]);
            for partition in 0..6 {
                let name = format!("n{n}-p{partition}");
                let named = Some(PartitionIndex(partition));
                let results = at
                    .produce_once("orders", &[text(&name)], named)
                    .await
                    .unwrap();
                match results[0].as_ref().unwrap() {
                    Produced::Committed { partition: at, .. } => {
                        assert_eq!(at.0, partition, "a named partition is never changed");
                        committed += 1;
                    }
                    Produced::Accepted => accepted += 1,
                }
                wanted.insert(name);
            }
        }
        assert_eq!(committed + accepted, 18);
        assert!(committed > 0 && accepted > 0, "{committed} {accepted}");
        wanted
    });
    let (one, other) = (addrs[0].clone(), addrs[1].clone());
    let expected = wanted.clone();
    with_client(vec![one], async move |client| {
        let seen = drain(&client, "orders", &expected).await;
        assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), expected);
        // Each in the partition that its producer named, and only once.
        for partition in 0..6 {
            let batch = client
                .replay_once(
                    "orders",
                    ReplayRequest {
                        partition: PartitionIndex(partition),
                        from: Offset(0),
                        from_time: narad_core::ids::WallMs(0),
                        to: Offset(u64::MAX),
                        max_records: 100,
                        max_bytes: 1 << 20,
                    },
                )
                .await
                .unwrap();
            let values: Vec<String> = batch
                .records
                .iter()
                .map(|one| String::from_utf8(one.record.value.clone()).unwrap())
                .collect();
            assert_eq!(values.len(), 3, "{values:?}");
            assert!(
                values
                    .iter()
                    .all(|v| v.ends_with(&format!("-p{partition}")))
            );
        }
        // A parked consumer is woken by a record that another node's partition gets.
        let producer = Client::new(vec![other]);
        let parked = glommio::spawn_local(async move {
            client.consume_once("orders", ask(6, 60_000)).await.unwrap()
        });
        glommio::timer::sleep(Duration::from_millis(200)).await;
        for partition in 0..6 {
            producer
                .produce_once("orders", &[text("late")], Some(PartitionIndex(partition)))
                .await
                .unwrap()[0]
                .as_ref()
                .unwrap();
        }
        assert_eq!(value(&parked.await[0]), "late");
    });
    nobody_is_asked_for_what_is_here(&cluster, &addrs);
    cluster.nodes.iter_mut().for_each(|node| {
        assert!(node.stop().success(), "{}", node.log());
    });
}

/// A consumer whose own node gets what it waits for leaves no poll behind at the others with each call.
fn nobody_is_asked_for_what_is_here(cluster: &support::Cluster, addrs: &[String]) {
    const ROUNDS: u64 = 50;
    let asked = || -> u64 {
        let calls = |node: &support::Node| -> u64 {
            let text = node.http("GET", "/metrics").expect("it answers").1;
            let of = |line: &&str| line.starts_with("narad_calls_total{call=\"Consume\"");
            let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
            text.lines().filter(of).filter_map(count).sum()
        };
        cluster.nodes[1..].iter().map(calls).sum()
    };
    let before = asked();
    with_client(vec![addrs[0].clone()], async move |client| {
        topic(&client, "near", 6, TopicSettingsView::default()).await;
        let me = client.info().await.unwrap().id;
        let near = client.describe_topic("near").await.unwrap();
        let own = near.partitions.iter().find(|p| p.owner == me);
        let own = Some(PartitionIndex(own.expect("this node owns one").index));
        let client = std::rc::Rc::new(client);
        for round in 0..ROUNDS {
            let waits = client.clone();
            let parked = glommio::spawn_local(async move {
                waits.consume_once("near", ask(1, 60_000)).await.unwrap()
            });
            glommio::timer::sleep(Duration::from_millis(5)).await;
            let name = format!("near-{round}");
            let produced = client.produce_once("near", &[text(&name)], own).await;
            produced.unwrap()[0].as_ref().unwrap();
            assert_eq!(value(&parked.await[0]), name);
        }
    });
    let more = asked() - before;
    assert!(
        more < ROUNDS,
        "{more} polls for {ROUNDS} records that were here"
    );
}

#[test]
fn records_for_a_stopped_owner_wait_in_the_wal_and_arrive_when_it_is_back() {
    let (mut cluster, addrs) = three_nodes("data-wal");
    let to = addrs.clone();
    let owner = with_client(addrs.clone(), async move |client| {
        topic(&client, "orders", 3, TopicSettingsView::default()).await;
        let described = client.describe_topic("orders").await.unwrap();
        let first = Client::new(vec![to[0].clone()]);
        let me = first.info().await.unwrap().id;
        let other = described.partitions.iter().find(|p| p.owner != me);
        let other = other.expect("another node owns one");
        (other.owner.clone(), other.index)
    });
    let (owner, partition) = owner;
    cluster.node(&owner).kill();
    let at = vec![addrs[0].clone()];
    let wanted = with_client(at.clone(), async move |client| {
        let mut wanted = BTreeSet::new();
        let servers = client
            .servers()
            .iter()
            .map(|server| server.to_string())
            .collect::<Vec<_>>();
        for n in 0..100 {
            // A connection each: the kernel spreads them over the shards, and their WALs.
            let client = Client::new(servers.clone());
            let name = format!("w{n}");
            let named = Some(PartitionIndex(partition));
            let results = client
                .produce_once("orders", &[text(&name)], named)
                .await
                .unwrap();
            assert_eq!(*results[0].as_ref().unwrap(), Produced::Accepted);
            wanted.insert(name);
        }
        wanted
    });
    // The node that took them is killed as well: they are on its disk. It comes back with fewer
    // shards, so one of them adopts the other's WAL.
    let first = cluster.nodes[0].id.clone();
    cluster.node(&first).kill();
    // The one that is left knows of no such topic, and cannot know whether there is one.
    let alone = cluster.nodes.iter_mut().find_map(|node| {
        let left = node.runs();
        left.then(|| node.addr())
    });
    with_client(alone.into_iter().collect(), async |client| {
        let addr = client.servers()[0].to_string();
        let node = rpc::connect(&addr, PATIENCE).await.expect("it listens");
        let mut request = node.produce_request();
        request.get().set_topic("nowhere");
        request.get().init_records(1).get(0).set_value(b"x");
        let refused = rpc::call(PATIENCE, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())
        });
        let refused = refused.await.expect_err("nobody knows the topic");
        assert_eq!(refused.code(), Some(ErrorCode::Unavailable), "{refused}");
    });
    cluster.node(&first).set("--shards", "1");
    cluster.node(&first).start();
    cluster.node(&owner).start();
    cluster.wait_ready();
    with_client(at, async move |client| {
        let seen = drain(&client, "orders", &wanted).await;
        assert!(seen.len() >= wanted.len());
    });
    let log = cluster.node(&first).log();
    assert!(log.contains("is adopted"), "{log}");
}

/// Every batch that is within the bounds that a node tells is taken, whichever way it goes.
#[test]
fn the_largest_batches_are_taken_directly_and_through_the_wal() {
    let (_cluster, addrs) = three_nodes("data-large-batches");
    let to = addrs.clone();
    with_client(addrs, async move |client| {
        topic(&client, "large", 1, TopicSettingsView::default()).await;
        let named = Some(PartitionIndex(0));
        let batches = [
            vec![Record::new(vec![7; 1 << 20]); 4],
            vec![Record::new(vec![9; 408]); 10_000],
        ];
        let (mut committed, mut accepted, mut sent) = (0, 0, 0);
        for addr in &to {
            let at = Client::new(vec![addr.clone()]);
            for batch in &batches {
                let results = at.produce_once("large", batch, named).await.unwrap();
                sent += batch.len() as u64;
                let mut next = None;
                for result in results {
                    match result.unwrap() {
                        Produced::Committed { offset, .. } => {
                            // In the order in which they were sent.
                            assert!(next.is_none_or(|next| next <= offset));
                            next = Some(offset);
                            committed += 1;
                        }
                        Produced::Accepted => accepted += 1,
                    }
                }
            }
        }
        assert!(committed > 0 && accepted > 0, "{committed} {accepted}");
        assert_eq!(committed + accepted, sent);
        let until = Instant::now() + support::PATIENCE;
        loop {
            let view = client.describe_topic("large").await.unwrap();
            if view.partitions[0].hwm == sent {
                return;
            }
            assert!(Instant::now() < until, "{:?} of {sent}", view.partitions[0]);
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// A node that is drained off takes records to its end, and none of them ends with it.
#[test]
fn what_a_leaving_node_acknowledges_is_kept_by_the_others() {
    let (mut cluster, addrs) = three_nodes("data-leaving");
    with_client(addrs.clone(), async |client| {
        topic(&client, "leave", 6, TopicSettingsView::default()).await;
    });
    let join = format!("--join={}", addrs[0]);
    let fourth = cluster.add("n4", &[&join, "--shards=2"]);
    cluster.nodes[fourth].start();
    cluster.nodes[fourth].wait_ready();
    let at = cluster.nodes[fourth].addr();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let producer = std::thread::spawn(move || {
        with_client(vec![at.clone()], async move |_| {
            let node = Client::new(vec![at]);
            let mut acked = BTreeSet::new();
            for n in 0.. {
                if stopped.try_recv().is_ok() {
                    break;
                }
                let name = format!("r{n}");
                let named = Some(PartitionIndex(n % 6));
                // What is not acked is not asked for.
                if let Ok(results) = node.produce_once("leave", &[text(&name)], named).await
                    && results[0].is_ok()
                {
                    acked.insert(name);
                }
                glommio::timer::sleep(Duration::from_millis(2)).await;
            }
            acked
        })
    });
    let (status, body) = cluster.nodes[0]
        .http("POST", "/v1/cluster/members/n4/decommission")
        .unwrap();
    assert_eq!(status, 202, "{body}");
    let status = cluster.nodes[fourth].wait_end();
    assert!(status.success(), "a completed decommission is no failure");
    stop.send(()).unwrap();
    let acked = producer.join().unwrap();
    assert!(!acked.is_empty());
    with_client(addrs, async move |client| {
        let seen = drain(&client, "leave", &acked).await;
        assert!(acked.iter().all(|name| seen.contains_key(name)));
    });
}
