//! What a produce and a consume on other partitions cost while eight partitions move at full speed.
//!
//! What this file keeps true: the same load on the same cluster, before and while; copies are not limited, and
//! the limit that was in force is told; the moves are waited for through the client interface, and what is
//! told of them is what their target says.

use super::{CONSUMERS, FlowArgs, consume};
use crate::produce::bars::slots;
use crate::rig::bench_cluster::Measured;
use crate::rig::callers::ProduceCaller;
use crate::rig::drive::{self, Slot, Until};
use crate::rig::{RigError, call, moves};
use crate::stop::Stop;
use narad_wire::client::MoveView;
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
    let looked = client.copy_limit(None).await;
    let usual = call("looking at the throttle", looked)?;
    let looked = client.pause_rebalance(None).await;
    let paused = call("looking at the controller", looked)?;
    let moved = at_full_speed(&cluster, &caller, stop).await;
    let back = client.copy_limit(Some(usual)).await;
    call("setting the throttle back", back)?;
    let back = client.pause_rebalance(Some(paused)).await;
    call("setting the controller back", back)?;
    let Moved {
        moves,
        seconds,
        during,
        limit,
    } = moved?;
    consumers.stopped.set(true);
    for task in tasks {
        task.await;
    }
    let bytes: u64 = moves.iter().map(|one| one.bytes_done).sum();
    let freezes: Vec<u64> = moves.iter().map(|one| one.freeze_us).collect();
    Ok(json!({
        "moves": moves.len(),
        "copies": mode(limit),
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

/// What came of the moves, and of the calls meanwhile.
struct Moved {
    moves: Vec<MoveView>,
    seconds: f64,
    during: Vec<Slot>,
    /// The limit on copies that was in force: bytes a second, and whether it was adaptive.
    limit: (u64, bool),
}

/// Moves everything without a limit, and without the planner, whose own moves would even out what the
/// orders do.
async fn at_full_speed(
    cluster: &Measured,
    caller: &Rc<ProduceCaller>,
    stop: &Stop,
) -> Result<Moved, RigError> {
    let client = cluster.client();
    let set = client.copy_limit(Some((0, false))).await;
    call("lifting the throttle", set)?;
    let set = client.pause_rebalance(Some(true)).await;
    call("pausing the controller", set)?;
    let ordered = moves::order(cluster, MOVING).await?;
    let (ended, waiter) = moves::watch(client, ordered);
    let watched = (cluster.cpu(), stop);
    let mut during = Vec::new();
    while !ended.get() {
        during.push(drive::open(caller, CONNECTIONS, CALLS_PER_S, PART, watched).await?);
    }
    let (moves, seconds) = waiter.await?;
    let looked = client.copy_limit(None).await;
    let limit = call("looking at the throttle", looked)?;
    Ok(Moved {
        moves,
        seconds,
        during,
        limit,
    })
}

/// A limit on copies, as `narad cluster throttle` names it.
fn mode((bytes_per_s, adaptive): (u64, bool)) -> String {
    match (bytes_per_s, adaptive) {
        (_, true) => "adaptive".into(),
        (0, false) => "unlimited".into(),
        (rate, false) => format!("{rate} B/s"),
    }
}
