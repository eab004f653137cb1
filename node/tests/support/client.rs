//! A client for tests, on an executor of its own, and the clusters that most tests want.
//!
//! What this file keeps true: records of tests are text; whatever waits has a generous bound.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use crate::support::{Cluster, PATIENCE};
use glommio::{LocalExecutorBuilder, Placement};
use narad_wire::client::calls::{ConsumeRequest, Settle};
use narad_wire::client::{Client, Delivery, Lease, TopicSettingsView};
use narad_wire::convert::Record;
use narad_wire::error::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::{Duration, Instant};

/// Runs a client on an executor of its own.
pub fn with_client<T: Send + 'static, F: Future<Output = T> + 'static>(
    addrs: Vec<String>,
    work: impl FnOnce(Client) -> F + Send + 'static,
) -> T {
    LocalExecutorBuilder::new(Placement::Unbound)
        .spawn(move || async move { work(Client::new(addrs)).await })
        .expect("an executor starts")
        .join()
        .expect("the work ends")
}

pub fn one_node(name: &str, more: &[&str]) -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::founders(name, 1, more);
    cluster.start_all();
    cluster.wait_ready();
    let addrs = vec![cluster.nodes[0].addr()];
    (cluster, addrs)
}

pub fn three_nodes(name: &str) -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::founders(name, 3, &["--shards=2"]);
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    let addrs = cluster.nodes.iter().map(|node| node.addr()).collect();
    (cluster, addrs)
}

pub async fn topic(client: &Client, name: &str, partitions: u32, settings: TopicSettingsView) {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.create_topic(name, partitions, None, &settings).await {
            Ok(topic) => {
                assert_eq!(topic.partitions.len(), partitions as usize);
                return;
            }
            Err(error) if error.code() == Some(ErrorCode::TopicExists) => return,
            // Founders register one after the other.
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        glommio::timer::sleep(Duration::from_millis(100)).await;
    }
}

pub fn text(value: &str) -> Record {
    Record::new(value.as_bytes().to_vec())
}

pub fn ask(max_records: u32, wait_ms: u32) -> ConsumeRequest {
    ConsumeRequest {
        max_records,
        max_bytes: 1 << 20,
        wait_ms,
        visibility_ms: 0,
        local_only: false,
    }
}

pub fn leases(got: &[Delivery]) -> Vec<Lease> {
    got.iter().map(|one| one.lease).collect()
}

pub fn value(delivery: &Delivery) -> String {
    String::from_utf8(delivery.record.value.clone()).expect("the tests write text")
}

/// Consumes and acks until `wanted` are all seen; gives back how often each was.
pub async fn drain(
    client: &Client,
    topic: &str,
    wanted: &BTreeSet<String>,
) -> BTreeMap<String, usize> {
    let until = Instant::now() + PATIENCE;
    let mut seen = BTreeMap::new();
    while !wanted.iter().all(|one| seen.contains_key(one)) {
        let left: Vec<_> = wanted
            .iter()
            .filter(|one| !seen.contains_key(*one))
            .take(5)
            .collect();
        assert!(Instant::now() < until, "not delivered: {left:?}");
        let got = match client.consume_once(topic, ask(500, 1_000)).await {
            Ok(got) => got,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                continue;
            }
        };
        for one in &got {
            *seen.entry(value(one)).or_insert(0) += 1;
        }
        if !got.is_empty() {
            // A stale lease only means that the record comes again.
            let _ = client.settle_once(topic, &leases(&got), Settle::Ack).await;
        }
    }
    seen
}
