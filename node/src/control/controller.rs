//! The controller: on the leader it keeps the cluster as it should be, one pass at a time.
//!
//! What this file keeps true: a pass begins with a barrier, so a new leader never plans on an old
//! state; what is proposed names that state, so a change in between refuses it; passes never
//! overlap; a pass follows every change of the metadata, and a tick catches what was missed.

use super::core::Core;
use crate::limits;
use futures::future::{Either, select};
use narad_core::copies::has_log;
use narad_core::ids::ClusterId;
use narad_core::meta::{Command, MetaState, Refusal, Reply};
use narad_core::planner::{self, Plan, PlanLimits};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Runs passes for as long as this node leads, beginning at once.
pub(super) async fn run(core: &Rc<Core>, term: u64) {
    let tick = Duration::from_millis(core.ctx.config.timings.planner_tick_ms);
    let mut meta = core.ctx.meta.clone();
    while core.leads() && core.raft.term() == term {
        meta.mark_unchanged();
        let again = pass(core).await;
        if again {
            // Something was changed that no version of the metadata tells about.
            continue;
        }
        let changed = pin!(async {
            if meta.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        let woken = pin!(core.replan.notified());
        let slept = pin!(glommio::timer::sleep(tick));
        match select(select(changed, woken), slept).await {
            Either::Left(_) => {}
            // Nothing told of whatever there is to do, so this is counted.
            Either::Right(_) => {
                core.ctx.metrics.controller_ticks.inc();
            }
        }
    }
}

/// One pass. True when another should follow at once.
async fn pass(core: &Rc<Core>) -> bool {
    if let Err(error) = core.raft.read_barrier().await {
        tracing::debug!(%error, "no pass: the state cannot be confirmed");
        glommio::timer::sleep(Duration::from_millis(limits::RETRY_MAX_MS)).await;
        return false;
    }
    core.ctx.metrics.controller_passes.inc();
    let state = core.state();
    if state.cluster.is_none() {
        identify(core).await;
    }
    let group = core.tend_group(&state);
    group.await;
    let plan = Rc::new(core.plan(&state));
    core.beats.borrow_mut().keep(state.applied, &plan);
    if plan.cancels.is_empty() && plan.steps.is_empty() {
        return false;
    }
    carry_out(core, &plan).await;
    false
}

/// Gives the cluster its identity: at its founding, or when it is older than identities are.
async fn identify(core: &Rc<Core>) {
    let noted = core.ctx.cluster.get();
    let cluster = noted.unwrap_or_else(|| ClusterId(rand::random::<u64>().max(1)));
    let outcome = tell(core, Command::IdentifyCluster { cluster }).await;
    tracing::info!(
        cluster = format!("{:016x}", cluster.0),
        outcome,
        "the cluster gets its identity"
    );
}

async fn carry_out(core: &Rc<Core>, plan: &Plan) {
    for cancel in plan.cancels.iter().take(limits::CONTROLLER_BATCH) {
        let done = tell(core, cancel.command()).await;
        tracing::info!(partition = %cancel.key, what = ?cancel.what, reason = %cancel.reason, outcome = done, "taken back");
    }
    for step in plan.steps.iter().take(limits::CONTROLLER_BATCH) {
        let done = tell(core, step.command()).await;
        if done == DONE {
            core.ctx.metrics.planned_moves.inc();
        }
        tracing::info!(
            partition = %step.key,
            from = %step.owner,
            to = %step.target,
            reason = %step.reason,
            outcome = done,
            "move planned"
        );
    }
}

const DONE: &str = "done";

async fn tell(core: &Rc<Core>, command: Command) -> String {
    match core.propose_here(&command).await {
        Ok((_, Reply::Done { .. })) => DONE.into(),
        Ok((_, Reply::Refused { refusal })) => format!("refused: {refusal}"),
        Err(error) => error.to_string(),
    }
}

impl Core {
    fn plan_limits(&self) -> PlanLimits {
        let moves = &self.ctx.config.moves;
        PlanLimits {
            max_in_flight: moves.max_in_flight,
            max_in: moves.max_in,
            max_out: moves.max_out,
        }
    }

    /// What should be done over `state`, with what the nodes have told this leader.
    pub(super) fn plan(&self, state: &MetaState) -> Plan {
        let beats = self.beats.borrow();
        let known = beats.known();
        planner::plan(state, Some(known.disks()), self.plan_limits())
    }

    /// The same with all that comes later, as far as it is shown.
    pub(super) fn plan_shown(&self, state: &MetaState) -> Plan {
        let beats = self.beats.borrow();
        let known = beats.known();
        let bounds = self.plan_limits();
        planner::plan_up_to(state, Some(known.disks()), bounds, limits::PLAN_STEPS_MAX)
    }

    /// [`Core::plan`] for those who ask again and again: what the last pass found, as long as it is of `state`.
    pub(super) fn plan_found(&self, state: &MetaState) -> Rc<Plan> {
        let found = self.beats.borrow().found(state.applied);
        found.unwrap_or_else(|| Rc::new(self.plan(state)))
    }

    /// The whole plan as if `node` were draining.
    pub(super) fn plan_drained(&self, state: &MetaState, node: &narad_core::ids::NodeId) -> Plan {
        let beats = self.beats.borrow();
        let known = beats.known();
        planner::plan_drained(state, node, Some(known.disks()))
    }

    /// Why the target of an operator's move has no room for it, as far as is known.
    pub(super) fn refuses_room(&self, command: &Command) -> Option<Refusal> {
        let Command::SetTarget {
            key,
            target,
            manual: true,
            ..
        } = command
        else {
            return None;
        };
        let state = self.state();
        let beats = self.beats.borrow();
        let known = beats.known();
        planner::no_room(&state, known.disks(), *key, target)
    }

    /// Remembers what a command tells about disks, before the pass that it brings about: a target that
    /// gives up for want of room, or a log that is made.
    pub(super) fn note_room(&self, command: &Command) {
        let state = self.state();
        let mut beats = self.beats.borrow_mut();
        match command {
            Command::ClearTarget {
                key,
                move_id,
                no_room: true,
            } => {
                let assignment = state.assignment(*key);
                let target = assignment.and_then(|assignment| assignment.target.as_ref());
                if let Some(target) = target.filter(|target| target.move_id == *move_id) {
                    beats.had_no_room(*key, target.node.clone());
                }
            }
            Command::MarkOpened { key, .. }
                if state.assignment(*key).is_some_and(|a| !has_log(a)) =>
            {
                beats.made(*key);
            }
            _ => {}
        }
    }
}
