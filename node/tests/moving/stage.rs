//! The stage on which moves are played: clusters, a topic, the planned move, and its end.
//!
//! What this file keeps true: what was acknowledged is remembered by name and looked for at the end;
//! every wait has a generous bound.
#![allow(dead_code, reason = "each test uses its own part")]

use crate::client::{drain, text, three_nodes, topic, with_client};
use crate::support::{Cluster, Node, PATIENCE, wait_for};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Client, PartitionView, Produced, TopicSettingsView};
use narad_wire::convert::Record;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub(crate) const TOPIC: &str = "moving";
/// Bytes of one record of the copies that are to take a while.
pub(crate) const RECORD_BYTES: usize = 4_096;

/// In a cluster of three one partition more than nodes: one node owns two, and gives one of them away without anything
/// being planned because of it.
pub(crate) const PARTITIONS: u32 = 4;

pub(crate) async fn partitions(client: &Client) -> Vec<PartitionView> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.describe_topic(TOPIC).await {
            Ok(topic) => return topic.partitions,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        glommio::timer::sleep(Duration::from_millis(100)).await;
    }
}

/// Orders a move until it is taken: a leader may be changing, or an old copy still be there.
pub(crate) async fn order(client: &Client, partition: u32, to: &str) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = client.move_to(TOPIC, PartitionIndex(partition), to).await {
        let now = partitions(client).await[partition as usize].clone();
        if now.target == to || now.owner == to {
            return;
        }
        assert!(Instant::now() < until, "{error}");
        glommio::timer::sleep(Duration::from_millis(200)).await;
    }
}

/// Produces records to one partition and adds what was acknowledged to `acked`.
pub(crate) async fn produce(
    client: &Client,
    partition: u32,
    names: Vec<String>,
    acked: &mut BTreeSet<String>,
) {
    let until = Instant::now() + PATIENCE;
    let records: Vec<Record> = names.iter().map(|name| text(name)).collect();
    loop {
        match client
            .produce_once(TOPIC, &records, Some(PartitionIndex(partition)))
            .await
        {
            Ok(results) if results.iter().all(Result::is_ok) => break,
            Ok(results) => assert!(Instant::now() < until, "{results:?}"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        glommio::timer::sleep(Duration::from_millis(100)).await;
    }
    acked.extend(names);
}

pub(crate) fn names(tag: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|n| {
            let head = format!("{tag}-{n}-");
            let fill = "x".repeat(RECORD_BYTES - head.len());
            head + &fill
        })
        .collect()
}

/// Who gives which partition to whom.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) partition: u32,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) epoch: u64,
}

pub(crate) fn choose(cluster: &mut Cluster, parts: &[PartitionView]) -> Plan {
    let leader = cluster.leader();
    let owned = |id: &str| parts.iter().filter(|p| p.owner == id).count();
    let ids: Vec<String> = cluster.nodes.iter().map(|n| n.id.clone()).collect();
    let from = ids
        .iter()
        .find(|id| owned(id) == 2)
        .expect("one owns two")
        .clone();
    // Not the leader, where that is possible: a leader's death is another test.
    let to = ids
        .iter()
        .filter(|id| **id != from)
        .max_by_key(|id| **id != leader);
    let part = parts
        .iter()
        .find(|p| p.owner == from)
        .expect("it owns some");
    Plan {
        partition: part.index,
        to: to.expect("three nodes").clone(),
        epoch: part.epoch,
        from,
    }
}

pub(crate) fn wait_moved(client_addrs: &[String], plan: &Plan) {
    let plan = plan.clone();
    with_client(client_addrs.to_vec(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = partitions(&client).await[plan.partition as usize].clone();
            if now.owner == plan.to && now.epoch == plan.epoch + 1 && now.target.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "not moved: {now:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// Starts three nodes with something in every partition, and plans a move.
pub(crate) fn begin(name: &str, count: usize) -> (Cluster, Vec<String>, Plan, BTreeSet<String>) {
    let (cluster, addrs) = three_nodes(name);
    filled(cluster, addrs, count)
}

/// The same in a cluster whose nodes have these arguments as well.
pub(crate) fn begin_with(
    name: &str,
    nodes: usize,
    more: &[(&str, &str)],
    count: usize,
) -> (Cluster, Vec<String>, Plan, BTreeSet<String>) {
    let mut cluster = Cluster::founders(name, nodes, &[]);
    for node in &mut cluster.nodes {
        for (flag, value) in more {
            node.set(flag, value);
        }
    }
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    let addrs = cluster.nodes.iter().map(|node| node.addr()).collect();
    filled(cluster, addrs, count)
}

/// Puts something into every partition of a running cluster, and plans a move.
pub(crate) fn filled(
    mut cluster: Cluster,
    addrs: Vec<String>,
    count: usize,
) -> (Cluster, Vec<String>, Plan, BTreeSet<String>) {
    let count_of_parts = u32::try_from(cluster.nodes.len()).expect("few") + 1;
    let (parts, acked) = with_client(addrs.clone(), async move |client| {
        topic(&client, TOPIC, count_of_parts, TopicSettingsView::default()).await;
        let mut acked = BTreeSet::new();
        for partition in 0..count_of_parts {
            for batch in 0..count {
                let tag = format!("first-{partition}-{batch}");
                produce(&client, partition, names(&tag, 100), &mut acked).await;
            }
        }
        (partitions(&client).await, acked)
    });
    let plan = choose(&mut cluster, &parts);
    (cluster, addrs, plan, acked)
}

/// Starts the target again so that it does `what` to itself at `step` of its next move, once.
pub(crate) fn prepare_target(cluster: &mut Cluster, plan: &Plan, what: &str, step: &str) {
    let target = cluster.node(&plan.to);
    assert!(target.stop().success());
    target.next_env.push((what.into(), step.into()));
    target.start();
    target.wait_ready();
}

/// Waits until the process has stopped itself.
pub(crate) fn wait_stopped(node: &Node) {
    let path = format!("/proc/{}/stat", node.pid());
    wait_for(&format!("{} stands still", node.id), || {
        let stat = std::fs::read_to_string(&path).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        (state == 'T').then_some(())
    });
}

/// Orders the planned move.
pub(crate) fn order_planned(addrs: &[String], plan: &Plan) {
    let ordered = plan.clone();
    with_client(addrs.to_vec(), async move |client| {
        order(&client, ordered.partition, &ordered.to).await;
    });
}

/// Produces one record to the planned partition at `node` alone: taken by its log, or by a WAL.
/// `None` while neither takes it, or nobody knows.
pub(crate) fn produce_at(node: &Node, plan: &Plan, name: &str) -> Option<Produced> {
    let (addrs, name) = (vec![node.addr()], name.to_owned());
    let named = Some(PartitionIndex(plan.partition));
    with_client(addrs, async move |client| {
        let results = client
            .produce_once(TOPIC, &[text(&name)], named)
            .await
            .ok()?;
        results.into_iter().next()?.ok()
    })
}

/// Waits until a record for the planned partition is taken by the log at `node`; its names are
/// added to what was acknowledged.
pub(crate) fn wait_open(node: &Node, plan: &Plan, tag: &str, acked: &mut BTreeSet<String>) {
    let mut n = 0;
    wait_for(&format!("{} takes records", node.id), || {
        n += 1;
        let name = format!("{tag}-{n}");
        let taken = produce_at(node, plan, &name)?;
        acked.insert(name);
        matches!(taken, Produced::Committed { .. }).then_some(())
    });
}

/// Numbers behind `field=` in the lines of a log that hold `what`.
pub(crate) fn logged(log: &str, what: &str, field: &str) -> Vec<u64> {
    let field = format!("{field}=");
    let lines = log.lines().filter(|line| line.contains(what));
    lines
        .filter_map(|line| {
            let plain: String = plain(line);
            let (_, rest) = plain.split_once(&field)?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect()
}

/// A line without the colours of a terminal.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut skip = false;
    for c in line.chars() {
        skip |= c == '\u{1b}';
        if !skip {
            out.push(c);
        }
        skip &= c != 'm';
    }
    out
}

/// The move has ended: the partition takes records at its new owner, and everything is there.
pub(crate) fn check_end(
    cluster: &mut Cluster,
    addrs: &[String],
    plan: &Plan,
    mut acked: BTreeSet<String>,
) {
    wait_moved(addrs, plan);
    let owner = vec![cluster.node(&plan.to).addr()];
    let named = Some(PartitionIndex(plan.partition));
    with_client(owner, async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            // Taken by the log, not by the new owner's ingress WAL: the freeze is over.
            let committed = client.produce_once(TOPIC, &[text("last")], named).await;
            if let Ok(results) = &committed
                && matches!(results[..], [Ok(Produced::Committed { .. })])
            {
                break;
            }
            assert!(Instant::now() < until, "never open again: {committed:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    acked.insert("last".into());
    with_client(addrs.to_vec(), async move |client| {
        drain(&client, TOPIC, &acked).await;
    });
}
