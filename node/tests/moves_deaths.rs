//! Moves under deaths, on real processes: the target dies at every step, the source while it is
//! copied; the move ends, nothing acknowledged is lost, and the partition takes records again.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{drain, text, three_nodes, topic, with_client};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Client, PartitionView, Produced, TopicSettingsView};
use narad_wire::convert::Record;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::{Cluster, PATIENCE, wait_for};

const TOPIC: &str = "moving";
/// Bytes of one record of the copies that are to take a while.
const RECORD_BYTES: usize = 4_096;

/// One partition more than nodes: one node owns two, and gives one of them away without anything
/// being planned because of it.
const PARTITIONS: u32 = 4;

async fn partitions(client: &Client) -> Vec<PartitionView> {
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
async fn order(client: &Client, partition: u32, to: &str) {
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
async fn produce(
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

fn names(tag: &str, count: usize) -> Vec<String> {
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
struct Plan {
    partition: u32,
    from: String,
    to: String,
    epoch: u64,
}

fn choose(cluster: &mut Cluster, parts: &[PartitionView]) -> Plan {
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

fn wait_moved(client_addrs: &[String], plan: &Plan) {
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
fn begin(name: &str, count: usize) -> (Cluster, Vec<String>, Plan, BTreeSet<String>) {
    let (mut cluster, addrs) = three_nodes(name);
    let (parts, acked) = with_client(addrs.clone(), async move |client| {
        topic(&client, TOPIC, PARTITIONS, TopicSettingsView::default()).await;
        let mut acked = BTreeSet::new();
        for partition in 0..PARTITIONS {
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

/// The move has ended: the partition takes records at its new owner, and everything is there.
fn check_end(cluster: &mut Cluster, addrs: &[String], plan: &Plan, mut acked: BTreeSet<String>) {
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

/// The target dies right before `step`, is started again, and the move ends all the same.
fn target_dies(step: &str) {
    let (mut cluster, addrs, plan, mut acked) = begin(&format!("target-dies-{step}"), 2);
    let target = cluster.node(&plan.to);
    assert!(target.stop().success());
    target
        .next_env
        .push(("NARAD_DIE_BEFORE".into(), step.into()));
    target.start();
    target.wait_ready();
    let ordered = plan.clone();
    with_client(addrs.clone(), async move |client| {
        order(&client, ordered.partition, &ordered.to).await;
    });
    let end = cluster.node(&plan.to).wait_end();
    assert!(!end.success(), "it died at {step}");
    // Meanwhile produce goes on, also into this very partition.
    let during = plan.clone();
    let more = with_client(addrs.clone(), async move |client| {
        let mut more = BTreeSet::new();
        produce(&client, during.partition, names("during", 50), &mut more).await;
        more
    });
    acked.extend(more);
    cluster.node(&plan.to).start();
    cluster.node(&plan.to).wait_ready();
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn a_target_that_dies_while_it_copies_goes_on() {
    target_dies("pass");
}

#[test]
fn a_target_that_dies_under_the_freeze_leaves_no_freeze_behind() {
    target_dies("drain");
}

#[test]
fn a_target_that_dies_before_its_install_goes_on() {
    target_dies("install");
}

#[test]
fn a_target_that_dies_with_an_installed_copy_asks_what_became_of_it() {
    target_dies("flip");
}

#[test]
fn a_target_that_dies_after_the_flip_serves_when_it_is_back() {
    target_dies("serve");
}

#[test]
fn a_source_that_dies_while_it_is_copied_is_copied_on_when_it_is_back() {
    let (mut cluster, addrs, plan, acked) = begin("source-dies", 20);
    let ordered = plan.clone();
    with_client(addrs.clone(), async move |client| {
        // Slow enough to be killed in the middle; the limit goes when the source is back.
        client
            .throttle(Some(1 << 20))
            .await
            .expect("a limit is set");
        order(&client, ordered.partition, &ordered.to).await;
    });
    let to = plan.to.clone();
    wait_for("some of it is copied", || {
        let view = cluster.node(&to).get("/v1/cluster/moves")?;
        let moves = view["moves"].as_array()?;
        let running = moves.iter().find(|m| m["partition"] == plan.partition)?;
        (running["bytes_done"].as_u64()? > 0).then_some(())
    });
    cluster.node(&plan.from).kill();
    cluster.node(&plan.from).start();
    cluster.node(&plan.from).wait_ready();
    with_client(addrs.clone(), async move |client| {
        client.throttle(Some(0)).await.expect("the limit is lifted");
    });
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn never_opened_and_empty_partitions_move_there_and_back() {
    let (mut cluster, addrs) = three_nodes("empty-moves");
    let parts = with_client(addrs.clone(), async move |client| {
        topic(&client, TOPIC, PARTITIONS, TopicSettingsView::default()).await;
        partitions(&client).await
    });
    let plan = choose(&mut cluster, &parts);
    let (there, index) = (plan.clone(), plan.partition);
    with_client(addrs.clone(), async move |client| {
        order(&client, index, &there.to).await
    });
    wait_moved(&addrs, &plan);
    // It was opened by the flip and is empty now; and it goes back to where it came from.
    let back = Plan {
        from: plan.to.clone(),
        to: plan.from.clone(),
        epoch: plan.epoch + 1,
        ..plan
    };
    let home = back.to.clone();
    with_client(addrs.clone(), async move |client| {
        order(&client, index, &home).await
    });
    check_end(&mut cluster, &addrs, &back, BTreeSet::new());
}
