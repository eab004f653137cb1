//! One partition that takes nothing for ten seconds: nobody else waits for it.
//!
//! What this file keeps true: what others are served is compared by count with what they were served
//! before, in as many steps of the same length; nothing is said about how long anything takes.

use crate::client::{text, with_client};
use crate::stage::{
    Plan, TOPIC, begin_with, check_end, order_planned, partitions, prepare_target, wait_stopped,
};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Client, Produced};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::Duration;

/// Nothing runs out while the target stands still.
const PATIENT: [(&str, &str); 3] = [
    ("--freeze-ttl-ms", "120000"),
    ("--dead-after-ms", "120000"),
    ("--force-promote-after-ms", "240000"),
];
/// Steps of one window, and the pause behind each: ten seconds at least.
const STEPS: usize = 300;
const PAUSE: Duration = Duration::from_millis(34);

/// What one window came to.
#[derive(Debug)]
struct Window {
    /// Records that were visible in the frozen partition at its end and not at its beginning.
    frozen: u64,
    /// The same of another partition of the same owner, which records reach through a WAL.
    beside: u64,
    /// The same of a partition of the node that takes the records.
    own: u64,
    /// What was acknowledged.
    acked: BTreeSet<String>,
}

/// Which partitions are watched.
#[derive(Clone, Copy)]
struct Watched {
    frozen: u32,
    beside: u32,
    own: u32,
}

async fn window(client: &Client, watched: Watched, tag: &str) -> Window {
    let before = partitions(client).await;
    let mut acked = BTreeSet::new();
    for step in 0..STEPS {
        for partition in [watched.frozen, watched.beside, watched.own] {
            let name = format!("{tag}-{partition}-{step}");
            let named = Some(PartitionIndex(partition));
            let results = client.produce_once(TOPIC, &[text(&name)], named).await;
            let placed = results.expect("a produce never fails because of a move");
            let placed = *placed[0].as_ref().expect("nor is a record refused");
            match placed {
                Produced::Committed { partition: at, .. } => assert_eq!(at.0, partition),
                Produced::Accepted => assert_ne!(partition, watched.own),
            }
            acked.insert(name);
        }
        glommio::timer::sleep(PAUSE).await;
    }
    let after = partitions(client).await;
    let grown = |index: u32| after[index as usize].hwm - before[index as usize].hwm;
    Window {
        frozen: grown(watched.frozen),
        beside: grown(watched.beside),
        own: grown(watched.own),
        acked,
    }
}

#[test]
fn a_partition_that_is_frozen_for_ten_seconds_delays_no_other() {
    let (mut cluster, addrs, plan, mut acked) = begin_with("frozen-ten-s", 3, &PATIENT, 1);
    prepare_target(&mut cluster, &plan, "NARAD_STOP_BEFORE", "flip");
    let third = cluster
        .nodes
        .iter()
        .find(|node| node.id != plan.from && node.id != plan.to)
        .expect("three nodes");
    let (at, id) = (vec![third.addr()], third.id.clone());
    let watched = {
        let plan: Plan = plan.clone();
        with_client(at.clone(), async move |client| {
            let parts = partitions(&client).await;
            let of = |owner: &str| {
                let mut found = parts.iter().filter(|p| p.owner == owner);
                let other = found.find(|p| p.index != plan.partition);
                other.expect("every node owns another one").index
            };
            Watched {
                frozen: plan.partition,
                beside: of(&plan.from),
                own: of(&id),
            }
        })
    };
    let to = at.clone();
    let before = with_client(at.clone(), async move |_| {
        window(&Client::new(to), watched, "before").await
    });
    order_planned(&addrs, &plan);
    wait_stopped(cluster.node(&plan.to));
    let to = at.clone();
    let during = with_client(at, async move |_| {
        window(&Client::new(to), watched, "during").await
    });
    cluster.node(&plan.to).signal(Signal::SIGCONT);

    assert_eq!(during.frozen, 0, "it took records while it was frozen");
    assert_eq!(during.own, STEPS as u64);
    assert!(
        before.beside >= STEPS as u64 * 9 / 10,
        "only {} of {STEPS} arrived even with nothing frozen",
        before.beside
    );
    // A tenth may be under way at the end of a window, in either.
    assert!(
        during.beside * 10 >= before.beside * 9,
        "{} arrived beside a frozen partition, {} before",
        during.beside,
        before.beside
    );
    acked.extend(before.acked);
    acked.extend(during.acked);
    // The flip comes, and with it everything that waited.
    check_end(&mut cluster, &addrs, &plan, acked);
}
