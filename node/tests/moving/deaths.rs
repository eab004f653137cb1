//! The target dies at every step of a move, the source while it is copied: the move ends, nothing
//! acknowledged is lost, and the partition takes records again.

use crate::client::{three_nodes, topic, with_client};
use crate::stage::{
    PARTITIONS, Plan, TOPIC, begin, check_end, choose, names, order, partitions, produce,
    wait_moved,
};
use crate::support::wait_for;
use narad_wire::client::TopicSettingsView;
use std::collections::BTreeSet;

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
