//! What this node does while it leads, and what it shows about Raft at any time.
//!
//! What this file keeps true: a leader's clocks begin anew with its term; when leadership is lost,
//! everything that only a leader may do ends, and nothing of it is remembered.

use super::core::Core;
use super::{ControlError, controller};
use crate::metrics::{Direction, DirectionLabel};
use crate::raft::RaftRole;
use narad_core::ids::RaftTerm;
use narad_core::liveness::LivenessInput;
use narad_core::meta::{MemberStatus, MetaState};
use narad_wire::bulk::BulkServer;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Follows Raft for as long as it runs.
pub(super) fn start(core: Rc<Core>, bulk: Arc<BulkServer>) {
    follow_metadata(core.clone());
    tick(core.clone(), bulk);
    glommio::spawn_local(async move {
        let mut watch = core.raft.watch();
        let mut leading = None;
        loop {
            let status = watch.status();
            if let Some(reason) = status.fatal.clone() {
                let newer = core.raft.machine().borrow().unreadable().map(str::to_owned);
                core.fail(newer.map_or(ControlError::Stopped(reason), ControlError::Newer));
                return;
            }
            let leads = (status.role == RaftRole::Leader).then_some(status.term);
            if leads != leading {
                leading = leads;
                match leads {
                    Some(term) => begin(&core, term),
                    None => {
                        tracing::info!(term = status.term, "this node follows");
                        core.beats.borrow_mut().clear();
                        core.step(LivenessInput::Following);
                    }
                }
            }
            show(&core, status.term, leads.is_some());
            if leads.is_some() && core.may_promote_learner() {
                core.replan.notify_one();
            }
            if !watch.changed().await {
                return;
            }
        }
    })
    .detach();
}

fn begin(core: &Rc<Core>, term: u64) {
    tracing::info!(term, "this node leads");
    core.beats.borrow_mut().clear();
    core.step(LivenessInput::Applied(&core.state()));
    core.step(LivenessInput::Leading {
        term: RaftTerm(term),
    });
    let core = core.clone();
    glommio::spawn_local(async move { controller::run(&core, term).await }).detach();
}

/// Lets the clock see that time passes, and keeps the counters of the bulk channel.
fn tick(core: Rc<Core>, bulk: Arc<BulkServer>) {
    let every = Duration::from_millis((core.ctx.config.timings.heartbeat_ms / 2).max(10));
    glommio::spawn_local(async move {
        let mut stop = core.ctx.stop.clone();
        let label = DirectionLabel {
            direction: Direction::Out,
        };
        let copied = core.ctx.metrics.copied_bytes.get_or_create_owned(&label);
        let mut counted = 0;
        while !*stop.borrow_and_update() {
            glommio::timer::sleep(every).await;
            let sent = bulk.stats().sent_bytes;
            copied.inc_by(sent - counted);
            counted = sent;
            if core.leads() {
                core.step(LivenessInput::Tick);
            }
        }
    })
    .detach();
}

fn show(core: &Core, term: u64, leads: bool) {
    let metrics = &core.ctx.metrics;
    metrics.term.set(i64::try_from(term).unwrap_or(i64::MAX));
    metrics.leader.set(i64::from(leads));
}

/// Keeps the gauges that follow from the metadata.
fn follow_metadata(core: Rc<Core>) {
    glommio::spawn_local(async move {
        let mut meta = core.ctx.meta.clone();
        loop {
            let state = meta.borrow_and_update().clone();
            core.step(LivenessInput::Applied(&state));
            count(&core, &state);
            if let Some(cluster) = state.cluster {
                core.remember(cluster).await;
            }
            if meta.changed().await.is_err() {
                return;
            }
        }
    })
    .detach();
}

fn count(core: &Core, state: &MetaState) {
    let metrics = &core.ctx.metrics;
    let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics
        .applied_index
        .set(i64::try_from(state.applied.0).unwrap_or(i64::MAX));
    let alive = state
        .members
        .values()
        .filter(|member| member.status == MemberStatus::Alive)
        .count();
    metrics.members_alive.set(gauge(alive));
    metrics.members_dead.set(gauge(state.members.len() - alive));
    let holdings = state.holdings().remove(core.id()).unwrap_or_default();
    metrics.owned_partitions.set(gauge(holdings.owned));
    for (direction, moves) in [
        (Direction::In, holdings.inbound),
        (Direction::Out, holdings.outbound),
    ] {
        metrics
            .moves_running
            .get_or_create(&DirectionLabel { direction })
            .set(gauge(moves));
    }
    let removed = state.removed.contains_key(core.id());
    if removed && !state.members.contains_key(core.id()) {
        let id = core.id().to_string();
        core.fail(if state.forgotten.contains(core.id()) {
            ControlError::Forgotten(id)
        } else {
            ControlError::Removed(id)
        });
    }
}
