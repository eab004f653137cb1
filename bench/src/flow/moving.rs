//! What a produce and a consume on other partitions cost while eight partitions move at full speed.
//!
//! What this file keeps true: the same load on the same cluster, before and while; the moves are waited
//! for through the client interface, and what is told of them is what their target says.

use super::{CONSUMERS, FlowArgs, consume};
use crate::produce::bars::slots;
use crate::rig::bench_cluster::Measured;
use crate::rig::callers::ProduceCaller;
use crate::rig::drive::{self, Until};
use crate::rig::{RigError, call, moves};
use crate::stop::Stop;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// The topic whose partitions move.
const MOVING: &str = "narad-bench-moving";
/// How many.
const PARTITIONS: u32 = 8;
/// The topic whose times are taken.
const CALM: &str = "narad-bench-calm";
/// Calls a second on it: far from what a node can do.
const CALLS_PER_S: f64 = 1_000.0;
/// Connections that they come over.
const CONNECTIONS: usize = 16;
/// How long the times are taken before the moves.
const BEFORE: Duration = Duration::from_secs(4);
/// One part of the time during which things move.
const PART: Duration = Duration::from_secs(1);

/// Starts two nodes, fills, moves and measures.
///
/// # Errors
/// [`RigError`].
pub async fn measure(args: &FlowArgs, stop: &Stop) -> Result<Value, RigError> {
    let cluster = Measured::start(&args.cluster, 2).await?;
    let client = cluster.client();
    eprintln!("measuring: others while {PARTITIONS} partitions move");
    cluster.fresh(MOVING, PARTITIONS).await?;
    cluster.fresh(CALM, 4).await?;
    let shape = (1, 512 << 10);
    let filler = ProduceCaller::connect(cluster.servers(), 8, MOVING, shape).await;
    let filler = Rc::new(call("connecting", filler)?);
    let calls = args.moving * u64::from(PARTITIONS) / (512 << 10);
    drive::closed(&filler, 8, Until::Calls(calls), cluster.cpu(), stop).await?;

    let shape = (1, 1 << 10);
    let caller = ProduceCaller::connect(cluster.servers(), CONNECTIONS, CALM, shape).await;
    let caller = Rc::new(call("connecting", caller)?);
    let (before_consumers, tasks) = consume(cluster.servers(), CALM).await?;
    let watched = (cluster.cpu(), stop);
    let before = drive::open(&caller, CONNECTIONS, CALLS_PER_S, BEFORE, watched).await?;
    before_consumers.stopped.set(true);
    for task in tasks {
        task.await;
    }

    let (consumers, tasks) = consume(cluster.servers(), CALM).await?;
    // The planner's own moves would even out what the orders do.
    call(
        "pausing the controller",
        client.pause_rebalance(Some(true)).await,
    )?;
    let ordered = moves::order(&cluster, MOVING).await?;
    let (moved, waiter) = moves::watch(client, ordered);
    let mut during = Vec::new();
    while !moved.get() {
        during.push(drive::open(&caller, CONNECTIONS, CALLS_PER_S, PART, watched).await?);
    }
    let (moves, seconds) = waiter.await?;
    consumers.stopped.set(true);
    for task in tasks {
        task.await;
    }
    let bytes: u64 = moves.iter().map(|one| one.bytes_done).sum();
    let freezes: Vec<u64> = moves.iter().map(|one| one.freeze_us).collect();
    Ok(json!({
        "moves": moves.len(),
        "bytes": bytes,
        "bytes_per_s": bytes as f64 / seconds,
        "freeze_us": freezes,
        "calls_per_s": CALLS_PER_S,
        "consumers": CONSUMERS,
        "produce_before": slots(&[before]),
        "produce_while_moving": slots(&during),
        "consume_before": before_consumers.times(),
        "consume_while_moving": consumers.times(),
    }))
}
