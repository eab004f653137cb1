//! The node's side of the heartbeats: who it is and what it holds goes to the leader, a lease for
//! the moving partitions comes back.
//!
//! What this file keeps true: a lease counts from the sending of the beat that earned it, and only
//! once the commit index that came with it is applied here (R10; the core's lease machine decides);
//! a slow answer or a slow shard never delays the next beat.

use super::core::Core;
use crate::clock::mono_ms;
use crate::limits;
use crate::messages::{Beat, BeatAnswer, ShardRequest, ShardSummary};
use narad_core::defaults::MEMBERS_MAX;
use narad_core::ids::{MonoMs, NodeId, RaftIndex};
use narad_core::moves::MoveLease;
use narad_wire::error::{ErrorCode, WireError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// What the shards said last.
type Summaries = Rc<RefCell<Vec<ShardSummary>>>;
type Lease = Rc<RefCell<MoveLease>>;

/// Sends heartbeats for as long as the process runs.
pub(super) fn start(core: Rc<Core>) {
    let lease: Lease = Rc::default();
    follow_applied(core.clone(), lease.clone());
    let summaries: Summaries = Rc::new(RefCell::new(vec![
        ShardSummary::default();
        core.ctx.shards.len()
    ]));
    for shard in 0..core.ctx.shards.len() {
        follow_shard(core.clone(), shard, summaries.clone());
    }
    glommio::spawn_local(async move {
        let every = Duration::from_millis(core.ctx.config.timings.heartbeat_ms);
        let in_flight = Arc::new(Semaphore::new(limits::BEATS_IN_FLIGHT));
        // Nobody waits for what a process that is not registered has to say.
        let mut registered = core.registered.subscribe();
        loop {
            if registered.wait_for(|is| *is).await.is_err() {
                return;
            }
            if let Ok(permit) = in_flight.clone().try_acquire_owned() {
                let (core, lease, summaries) = (core.clone(), lease.clone(), summaries.clone());
                glommio::spawn_local(async move {
                    beat_once(&core, &lease, &summaries).await;
                    drop(permit);
                })
                .detach();
            } else {
                core.ctx.metrics.heartbeats_failed.inc();
            }
            glommio::timer::sleep(every).await;
        }
    })
    .detach();
}

/// Tells the lease machine what is applied here, after it was published to the shards.
fn follow_applied(core: Rc<Core>, lease: Lease) {
    glommio::spawn_local(async move {
        let mut watch = core.raft.watch();
        loop {
            apply_to(&core, &lease);
            if !watch.changed().await {
                return;
            }
        }
    })
    .detach();
}

fn apply_to(core: &Core, lease: &Lease) {
    if let Some(applied) = core.raft.last_applied() {
        let mut lease = lease.borrow_mut();
        lease.applied(RaftIndex(applied));
        core.ctx.lease.extend(lease.until());
    }
}

/// Keeps the latest summary of one shard; a shard that does not answer keeps its last one.
fn follow_shard(core: Rc<Core>, shard: usize, summaries: Summaries) {
    glommio::spawn_local(async move {
        let every = Duration::from_millis(core.ctx.config.timings.heartbeat_ms);
        loop {
            let asked = core.ctx.shards[shard].ask(|answer| ShardRequest::Summary { answer });
            let Ok(summary) = asked.await else { return };
            summaries.borrow_mut()[shard] = summary;
            publish(&core, &summaries.borrow());
            glommio::timer::sleep(every).await;
        }
    })
    .detach();
}

fn publish(core: &Core, summaries: &[ShardSummary]) {
    let metrics = &core.ctx.metrics;
    let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    metrics
        .undispatched_records
        .set(gauge(summaries.iter().map(|s| s.undispatched).sum()));
    metrics
        .held_copies
        .set(summaries.iter().map(|s| i64::from(s.held_copies)).sum());
}

fn collect(core: &Core, summaries: &[ShardSummary]) -> Beat {
    let (disk_free_bytes, disk_used_bytes) = disk(core);
    let mut partition_bytes: Vec<_> = summaries
        .iter()
        .flat_map(|summary| summary.partition_bytes.iter().copied())
        .collect();
    if partition_bytes.len() > limits::BEAT_PARTITIONS_MAX {
        // The others have their turn in the next ones.
        let first = core.told_from.get() % partition_bytes.len();
        core.told_from.set(first + limits::BEAT_PARTITIONS_MAX);
        partition_bytes.rotate_left(first);
        partition_bytes.truncate(limits::BEAT_PARTITIONS_MAX);
    }
    let mut waiting_for: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (owner, records) in summaries.iter().flat_map(|summary| &summary.waiting_for) {
        *waiting_for.entry(owner.clone()).or_default() += records;
    }
    // What the shards said holds for the metadata that they said it under, not for what has been
    // applied since.
    let applied = summaries
        .iter()
        .map(|summary| summary.applied)
        .fold(core.state().applied, RaftIndex::min);
    Beat {
        node: core.id().clone(),
        incarnation: core.ctx.incarnation,
        applied,
        undispatched: summaries.iter().map(|s| s.undispatched).sum(),
        held_copies: summaries.iter().map(|s| s.held_copies).sum(),
        disk_free_bytes,
        disk_used_bytes,
        partition_bytes,
        cluster: core.ctx.cluster(),
        waiting_for: waiting_for.into_iter().take(MEMBERS_MAX).collect(),
    }
}

/// Free and used bytes of the file system that holds the data.
fn disk(core: &Core) -> (u64, u64) {
    match nix::sys::statvfs::statvfs(&core.ctx.config.data_dir) {
        Ok(stat) => {
            let unit = stat.fragment_size();
            let used = stat.blocks().saturating_sub(stat.blocks_free());
            (stat.blocks_available() * unit, used * unit)
        }
        Err(error) => {
            tracing::warn!(%error, "the disk cannot be asked for its free space");
            (0, 0)
        }
    }
}

async fn beat_once(core: &Rc<Core>, lease: &Lease, summaries: &Summaries) {
    let beat = collect(core, &summaries.borrow());
    let sent = mono_ms();
    match send(core, beat).await {
        Ok(answer) => take_answer(core, lease, sent, answer),
        Err(reason) => {
            core.ctx.metrics.heartbeats_failed.inc();
            tracing::debug!(reason, "no leader answered this heartbeat");
        }
    }
}

fn take_answer(core: &Rc<Core>, lease: &Lease, sent: MonoMs, answer: BeatAnswer) {
    if !answer.registered {
        core.registered.send_replace(false);
        return;
    }
    if answer.lease_ms == 0 {
        return;
    }
    let until = sent.plus_ms(u64::from(answer.lease_ms));
    lease.borrow_mut().renewed(until, answer.commit);
    apply_to(core, lease);
}

/// To the leader, following one redirection.
async fn send(core: &Rc<Core>, beat: Beat) -> Result<BeatAnswer, String> {
    let (mut leader, mut addr) = core.leader().ok_or("no leader is known")?;
    for _ in 0..2 {
        if leader == *core.id() {
            return core
                .take_beat(beat)
                .await
                .map_err(|error| error.to_string());
        }
        match core.call_heartbeat(&leader, &addr, &beat).await {
            Ok(answer) => return Ok(answer),
            // Removed, most likely: the registration finds out.
            Err(WireError::Fault(fault)) if fault.code == ErrorCode::NotMember => {
                core.registered.send_replace(false);
                return Err(fault.to_string());
            }
            Err(WireError::Fault(fault)) if !fault.node.is_empty() && fault.node != addr => {
                let Some(told) = core.member_at(&fault.node) else {
                    return Err(fault.to_string());
                };
                (leader, addr) = told;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("leadership is changing".into())
}
