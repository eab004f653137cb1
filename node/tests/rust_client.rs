//! The Rust example against a cluster whose partitions move while it works.

#[path = "support/client.rs"]
mod client;
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own")]
#[path = "../../wire/examples/work_queue.rs"]
mod work_queue;

mod support;

use client::{three_nodes, with_client};
use narad_core::ids::PartitionIndex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::PATIENCE;

#[test]
fn the_example_does_every_job_while_partitions_move() {
    let (mut cluster, addrs) = three_nodes("rust-example");
    let ids: Vec<String> = cluster.nodes.iter().map(|node| node.id.clone()).collect();
    cluster.leader();
    let over = Arc::new(AtomicBool::new(false));
    let (to, ended) = (addrs.clone(), over.clone());
    // Moves a partition of the topic on and on, as soon as there is one.
    let mover = std::thread::spawn(move || {
        with_client(to, async move |client| {
            let mut ordered = 0_u32;
            while !ended.load(Ordering::SeqCst) {
                if let Ok(topic) = client.describe_topic("jobs").await {
                    let partition = &topic.partitions[ordered as usize % topic.partitions.len()];
                    let to = ids.iter().find(|id| **id != partition.owner).unwrap();
                    let index = PartitionIndex(partition.index);
                    ordered += u32::from(client.move_to("jobs", index, to).await.is_ok());
                }
                glommio::timer::sleep(Duration::from_millis(50)).await;
            }
            ordered
        })
    });
    with_client(addrs, async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            match work_queue::run(&client, "jobs").await {
                Ok(jobs) => break assert_eq!(jobs, 500),
                // Founders register one after the other.
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    });
    over.store(true, Ordering::SeqCst);
    let moves = mover.join().unwrap();
    assert!(moves > 0, "nothing moved");
}
