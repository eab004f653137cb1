//! Targets that leave in the middle of a move: their slots are given up and planned anew.

use crate::client::{drain, with_client};
use crate::stage::{TOPIC, begin_with, check_end, order_planned, partitions};
use crate::support::PATIENCE;
use std::time::{Duration, Instant};

#[test]
fn a_target_that_is_drained_off_gives_its_slot_up_and_leaves_with_nothing() {
    let (mut cluster, addrs, mut plan, acked) = begin_with("target-drained", 4, &[], 10);
    // The partition goes to a node that is drained off while it still copies.
    let slow = addrs.clone();
    with_client(slow, async move |client| {
        client.throttle(Some(1 << 20)).await.expect("a limit");
    });
    order_planned(&addrs, &plan);
    let leaving = plan.to.clone();
    let asked = leaving.clone();
    with_client(addrs.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.decommission(&asked, false, false).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    let alive: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != leaving);
        stay.map(|node| node.addr()).collect()
    };
    let (index, gone) = (plan.partition as usize, leaving.clone());
    with_client(alive.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let part = partitions(&client).await[index].clone();
            if part.target != gone && part.owner != gone {
                break;
            }
            assert!(Instant::now() < until, "still bound for {gone}: {part:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        client.throttle(Some(0)).await.expect("no limit");
    });
    let end = cluster.node(&leaving).wait_end();
    assert!(end.success(), "{}", cluster.node(&leaving).log());
    // It has left; whatever it had is elsewhere, and the partition moves on like any other.
    let parts = with_client(alive.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let parts = partitions(&client).await;
            if parts.iter().all(|part| part.target.is_empty()) {
                return parts;
            }
            assert!(Instant::now() < until, "{parts:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(parts.iter().all(|part| part.owner != leaving), "{parts:?}");
    let part = &parts[plan.partition as usize];
    let other = cluster
        .nodes
        .iter()
        .map(|node| node.id.clone())
        .find(|id| *id != leaving && *id != part.owner)
        .expect("three are left");
    (plan.from, plan.to, plan.epoch) = (part.owner.clone(), other, part.epoch);
    order_planned(&alive, &plan);
    check_end(&mut cluster, &alive, &plan, acked);
}

#[test]
fn a_target_that_dies_in_the_middle_gives_its_slot_up_to_another() {
    let (mut cluster, addrs, plan, acked) = begin_with("target-gone", 4, &[], 10);
    let (leaving, index) = (plan.from.clone(), plan.partition as usize);
    // Drained off, so that the controller chooses who takes the partition.
    let target = with_client(addrs.clone(), async move |client| {
        client.throttle(Some(1 << 20)).await.expect("a limit");
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.decommission(&leaving, false, false).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        loop {
            let part = partitions(&client).await[index].clone();
            if !part.target.is_empty() {
                return part.target;
            }
            assert!(Instant::now() < until, "nobody is to take it: {part:?}");
            glommio::timer::sleep(Duration::from_millis(50)).await;
        }
    });
    cluster.node(&target).kill();
    let alive: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != target);
        stay.map(|node| node.addr()).collect()
    };
    let (gone, from) = (target.clone(), plan.from.clone());
    with_client(alive, async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let part = partitions(&client).await[index].clone();
            let another = !part.target.is_empty() && part.target != gone;
            if another || (part.owner != from && part.owner != gone) {
                break;
            }
            assert!(
                Instant::now() < until,
                "a dead target keeps its slot: {part:?}"
            );
            glommio::timer::sleep(Duration::from_millis(200)).await;
        }
        client.throttle(Some(0)).await.expect("no limit");
    });
    cluster.node(&target).start();
    cluster.node(&target).wait_ready();
    let end = cluster.node(&plan.from).wait_end();
    assert!(end.success(), "{}", cluster.node(&plan.from).log());
    let stay: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != plan.from);
        stay.map(|node| node.addr()).collect()
    };
    with_client(stay, async move |client| {
        drain(&client, TOPIC, &acked).await;
        let parts = partitions(&client).await;
        assert!(
            parts.iter().all(|part| part.owner != plan.from),
            "{parts:?}"
        );
    });
}
