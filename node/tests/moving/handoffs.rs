//! Handoffs that go wrong: an answer that is lost, a freeze that outlives its time, a source that
//! starts again under it, orders that come in the middle.

use crate::client::{drain, topic, with_client};
use crate::stage::{
    PARTITIONS, Plan, TOPIC, begin, begin_with, check_end, order_planned, partitions,
    prepare_target, produce, produce_at, wait_moved, wait_open, wait_stopped,
};
use crate::support::{Cluster, PATIENCE, wait_for};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Produced, TopicSettingsView};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time that nothing in a test of a handoff is to run out of by itself.
const PATIENT: [(&str, &str); 3] = [
    ("--freeze-ttl-ms", "120000"),
    ("--dead-after-ms", "120000"),
    ("--force-promote-after-ms", "240000"),
];

#[test]
fn a_flip_whose_answer_is_lost_is_found_to_have_taken_effect() {
    let (mut cluster, addrs, plan, acked) = begin("lost-flip-reply", 2);
    prepare_target(&mut cluster, &plan, "NARAD_LOSE_REPLY", "flip");
    order_planned(&addrs, &plan);
    check_end(&mut cluster, &addrs, &plan, acked);
    let log = cluster.node(&plan.to).log();
    assert!(
        log.contains("this answer is thrown away on purpose"),
        "{log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_freeze_that_outlives_its_time_is_cancelled_the_source_grows_and_the_move_tries_again() {
    let (mut cluster, addrs, plan, mut acked) = begin("freeze-ttl", 2);
    prepare_target(&mut cluster, &plan, "NARAD_STOP_BEFORE", "flip");
    order_planned(&addrs, &plan);
    wait_stopped(cluster.node(&plan.to));
    // Frozen and captured; only the cancelled handoff opens the source again.
    wait_open(cluster.node(&plan.from), &plan, "grown", &mut acked);
    let source = cluster.node(&plan.from);
    for n in 0..20 {
        let name = format!("behind-{n}");
        let taken = produce_at(source, &plan, &name).expect("the source is open");
        assert!(matches!(taken, Produced::Committed { .. }), "{taken:?}");
        acked.insert(name);
    }
    cluster.node(&plan.to).signal(Signal::SIGCONT);
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn a_source_that_starts_again_between_capture_and_flip_stays_frozen() {
    let (mut cluster, addrs, plan, mut acked) = begin_with("source-restart", 3, &PATIENT, 2);
    prepare_target(&mut cluster, &plan, "NARAD_STOP_BEFORE", "flip");
    order_planned(&addrs, &plan);
    wait_stopped(cluster.node(&plan.to));
    let source = cluster.node(&plan.from);
    source.kill();
    source.start();
    source.wait_ready();
    // Nobody has opened it since: what is sent to it is kept in the WAL, not put behind the capture.
    for n in 0..20 {
        let name = format!("frozen-{n}");
        let taken = produce_at(source, &plan, &name).expect("kept for the partition");
        assert_eq!(taken, Produced::Accepted, "taken behind the capture");
        acked.insert(name);
    }
    cluster.node(&plan.to).signal(Signal::SIGCONT);
    check_end(&mut cluster, &addrs, &plan, acked);
}

/// Stops the target before `step`, cancels the move, lets the target go on.
fn cancelled_before(cluster: &mut Cluster, addrs: &[String], plan: &Plan, step: &str) {
    prepare_target(cluster, plan, "NARAD_STOP_BEFORE", step);
    order_planned(addrs, plan);
    wait_stopped(cluster.node(&plan.to));
    let alive: Vec<String> = addrs
        .iter()
        .filter(|addr| **addr != cluster.node(&plan.to).addr())
        .cloned()
        .collect();
    let named = PartitionIndex(plan.partition);
    with_client(alive, async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let target = partitions(&client).await[named.0 as usize].target.clone();
            if target.is_empty() {
                break;
            }
            // A handoff may be in the way for a moment; a flip may have come first.
            let _ = client.cancel_move(TOPIC, named).await;
            assert!(Instant::now() < until, "before {target} could be cancelled");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    cluster.node(&plan.to).signal(Signal::SIGCONT);
}

#[test]
fn a_move_is_cancelled_at_every_step_and_costs_nothing_but_the_copy() {
    let (mut cluster, addrs, plan, mut acked) = begin("cancels", 1);
    for step in [
        "pass", "begin", "freeze", "drain", "finish", "install", "flip",
    ] {
        cancelled_before(&mut cluster, &addrs, &plan, step);
        let source = cluster.node(&plan.from);
        wait_open(source, &plan, &format!("after-{step}"), &mut acked);
        let part = with_client(addrs.clone(), async move |client| {
            partitions(&client).await[plan.partition as usize].clone()
        });
        assert_eq!(
            (&part.owner, part.epoch),
            (&plan.from, plan.epoch),
            "{step}"
        );
        let plain = plan.clone();
        let dir = cluster.dir.join(&plan.to).join("partitions");
        wait_for("nothing is left installed", || {
            let installed = format!("-p{}-e{}", plain.partition, plain.epoch + 1);
            let names = std::fs::read_dir(&dir).ok()?;
            let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            (!names.any(|name| name.ends_with(&installed))).then_some(())
        });
    }
    // Too late: the flip has been applied, and a cancel changes nothing any more.
    cancelled_before(&mut cluster, &addrs, &plan, "serve");
    wait_moved(&addrs, &plan);
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn a_topic_that_is_deleted_and_made_again_during_its_move_shares_nothing_with_the_old_one() {
    let (mut cluster, addrs, plan, _) = begin("topic-again", 1);
    prepare_target(&mut cluster, &plan, "NARAD_STOP_BEFORE", "flip");
    order_planned(&addrs, &plan);
    wait_stopped(cluster.node(&plan.to));
    let alive: Vec<String> = addrs
        .iter()
        .filter(|addr| **addr != cluster.node(&plan.to).addr())
        .cloned()
        .collect();
    with_client(alive, async move |client| {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.delete_topic(TOPIC).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        topic(&client, TOPIC, PARTITIONS, TopicSettingsView::default()).await;
    });
    cluster.node(&plan.to).signal(Signal::SIGCONT);
    cluster.node(&plan.to).wait_ready();
    let seen = with_client(addrs, async move |client| {
        let mut acked = BTreeSet::new();
        for partition in 0..PARTITIONS {
            let name = format!("new-{partition}");
            produce(&client, partition, vec![name], &mut acked).await;
        }
        drain(&client, TOPIC, &acked).await
    });
    let strange: Vec<_> = seen
        .keys()
        .filter(|name| !name.starts_with("new-"))
        .collect();
    assert!(strange.is_empty(), "of the old topic: {strange:?}");
    // And nothing of the old one stays on a disk: one directory a partition that was opened.
    for node in &cluster.nodes {
        let dir = node.dir.join("partitions");
        wait_for("the old copies go", || {
            let names = std::fs::read_dir(&dir).ok()?;
            let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let topics: BTreeSet<String> = names
                .filter_map(|name| Some(name.split_once("-p")?.0.to_owned()))
                .collect();
            (topics.len() <= 1).then_some(())
        });
    }
}
