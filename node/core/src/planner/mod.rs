//! The controller's policy: which partitions should move where.
//!
//! What this module keeps true: a plan is a pure function of the state (and of sizes and free
//! space as last told), so it may be recomputed at any moment. It has the fewest moves that bring
//! every living, non-draining member to the floor or the ceiling of its share, as far as old copies
//! and disk room allow: a draining node is emptied wherever there is room, be it above a ceiling. A
//! partition in flight counts at its target and is not touched; every step lowers the distance to
//! balance, so recomputing reaches a fixpoint and never oscillates. Preferences (child off its
//! parent's node, topics spread, fewest bytes) choose among equally short plans and never lengthen one.

mod choose;
mod drain;
mod notes;
mod view;

#[cfg(test)]
mod tests;

pub use drain::{DrainBlock, DrainHold, DrainTold, RaftView, drain_blocks, drain_status};
pub use notes::{PlanNote, Size, manual_target_dead};

use crate::defaults::{MAX_IN_FLIGHT_MOVES, MAX_MOVES_IN, MAX_MOVES_OUT};
use crate::ids::{Epoch, HandoffId, MoveId, NodeId, PartitionKey, RaftIndex};
use crate::meta::{Command, MetaState, Refusal};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use view::View;

/// How many moves may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// In the whole cluster.
    pub max_in_flight: usize,
    /// Into one node.
    pub max_in: usize,
    /// Out of one node.
    pub max_out: usize,
}

impl Default for PlanLimits {
    fn default() -> Self {
        Self {
            max_in_flight: MAX_IN_FLIGHT_MOVES,
            max_in: MAX_MOVES_IN,
            max_out: MAX_MOVES_OUT,
        }
    }
}

impl PlanLimits {
    /// No limits: to show a whole plan, not to carry it out.
    pub const NONE: Self = Self {
        max_in_flight: usize::MAX,
        max_in: usize::MAX,
        max_out: usize::MAX,
    };
}

/// Most steps that one pass works out, however large the imbalance: the pass runs on the control
/// core between heartbeats. What is beyond is planned when these have moved.
pub const PLAN_STEPS_MAX: usize = 4_096;

/// Why a partition should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveReason {
    /// The target of its running move died or drains.
    Retarget,
    /// Its owner drains.
    Drain,
    /// Its owner holds more than its share.
    Balance,
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retarget => "the former target cannot receive any more",
            Self::Drain => "the owner is being drained",
            Self::Balance => "the owner holds more than its share",
        })
    }
}

/// One target to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// The partition.
    pub key: PartitionKey,
    /// Its owner.
    pub owner: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The running move that this one replaces.
    pub replaces: Option<MoveId>,
    /// `applied` of the state that was planned on.
    pub seen: RaftIndex,
    /// Where it should go.
    pub target: NodeId,
    /// Why.
    pub reason: MoveReason,
}

impl PlannedMove {
    /// The command that carries the step out.
    #[must_use]
    pub fn command(&self) -> Command {
        Command::SetTarget {
            key: self.key,
            owner: self.owner.clone(),
            epoch: self.epoch,
            replaces: self.replaces,
            seen: self.seen,
            target: self.target.clone(),
            manual: false,
        }
    }
}

/// What is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelWhat {
    /// The permission to freeze; the move goes on or is re-planned in a later pass.
    Handoff(HandoffId),
    /// The move: nothing better is planned for the partition.
    Move(MoveId),
}

/// Why something is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The owner is dead, so nobody finishes the handoff.
    OwnerDead,
    /// The target is dead.
    TargetDead,
    /// The target drains.
    TargetDraining,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnerDead => "the owner is dead",
            Self::TargetDead => "the target is dead",
            Self::TargetDraining => "the target is being drained",
        })
    }
}

/// One handoff or move to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCancel {
    /// The partition.
    pub key: PartitionKey,
    /// What.
    pub what: CancelWhat,
    /// Why.
    pub reason: CancelReason,
}

impl PlannedCancel {
    /// The command that carries it out.
    #[must_use]
    pub const fn command(&self) -> Command {
        let key = self.key;
        match self.what {
            CancelWhat::Handoff(handoff_id) => Command::CancelHandoff { key, handoff_id },
            CancelWhat::Move(move_id) => Command::ClearTarget {
                key,
                move_id,
                no_room: false,
            },
        }
    }
}

/// What the controller should do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Targets to set now, within the limits.
    pub steps: Vec<PlannedMove>,
    /// Handoffs and moves to take back now.
    pub cancels: Vec<PlannedCancel>,
    /// Steps worked out that wait for a slot, in the order in which they will get one.
    pub later: Vec<PlannedMove>,
    /// Partitions that have to move beyond what was worked out.
    pub more: usize,
    /// Their bytes, as far as they are known.
    pub more_bytes: u64,
    /// What holds things up, or why there is nothing to do.
    pub notes: Vec<PlanNote>,
}

impl Plan {
    /// Nothing is to be done and nothing waits.
    #[must_use]
    pub const fn is_balanced(&self) -> bool {
        self.steps.is_empty() && self.cancels.is_empty() && self.later.is_empty()
    }
}

/// What the nodes have told about their disks.
#[derive(Clone, Copy, Debug)]
pub struct Disks<'a> {
    /// Bytes of partitions, as their owners told. One that has a log and is not in it is not placed
    /// until its owner has told.
    pub sizes: &'a BTreeMap<PartitionKey, u64>,
    /// Free bytes of nodes, as they told, of which copies leave [`STAGING_RESERVE_BYTES`]. A node
    /// that is not in it is given nothing until it has told.
    ///
    /// [`STAGING_RESERVE_BYTES`]: crate::defaults::STAGING_RESERVE_BYTES
    pub free: &'a BTreeMap<NodeId, u64>,
    /// Targets that had no room for a partition, whatever was told of them: not tried again.
    pub full: &'a BTreeSet<(PartitionKey, NodeId)>,
}

/// Plans over `state`, with what is known of the disks; without it every partition fits everywhere.
/// The target looks at its own disk again before it copies anything.
#[must_use]
pub fn plan(state: &MetaState, disks: Option<Disks<'_>>, limits: PlanLimits) -> Plan {
    let most = limits
        .max_in_flight
        .saturating_mul(8)
        .clamp(64, PLAN_STEPS_MAX);
    plan_up_to(state, disks, limits, most)
}

/// As [`plan`], worked out up to `most` steps (and [`PLAN_STEPS_MAX`]): to show what comes later.
#[must_use]
pub fn plan_up_to(
    state: &MetaState,
    disks: Option<Disks<'_>>,
    limits: PlanLimits,
    most: usize,
) -> Plan {
    let mut view = View::new(state, disks);
    let mut plan = Plan::default();
    let chosen = if state.rebalance_paused {
        view.note(PlanNote::Paused);
        Vec::new()
    } else {
        let chosen = choose::choose(&mut view, most.min(PLAN_STEPS_MAX));
        (plan.more, plan.more_bytes) = chosen.more;
        chosen.steps
    };
    view.cancels(&chosen, &mut plan.cancels);
    let moving = view.slots.active;
    emit(&mut view, chosen, limits, &mut plan);
    if !plan.later.is_empty() {
        view.note(PlanNote::Waiting {
            steps: plan.later.len(),
        });
    }
    if plan.more > 0 {
        view.note(PlanNote::More {
            partitions: plan.more,
        });
    }
    plan.notes = view.into_notes();
    if plan.is_balanced() && plan.notes.is_empty() {
        plan.notes.push(PlanNote::Balanced { moving });
    }
    plan
}

/// Why `target` cannot take `key` although it may: it has told that it has no room. `None` also when it,
/// or the partition's owner, has told nothing: the target finds out when it looks at its own disk.
#[must_use]
pub fn no_room(
    state: &MetaState,
    disks: Disks<'_>,
    key: PartitionKey,
    target: &NodeId,
) -> Option<Refusal> {
    let assignment = state.assignment(key)?;
    if assignment
        .target
        .as_ref()
        .is_some_and(|t| t.node == *target)
    {
        // What it has copied already needs no room any more.
        return None;
    }
    let view = View::new(state, Some(disks));
    let (needed, room) = (view.bytes(key, assignment)?, view.room(target)?);
    (needed > room).then_some(Refusal::NoRoom { needed, room })
}

/// The whole plan as it would be if `node` were draining, without limits: for a dry run.
#[must_use]
pub fn plan_drained(state: &MetaState, node: &NodeId, disks: Option<Disks<'_>>) -> Plan {
    let mut state = state.clone();
    if let Some(member) = state.members.get_mut(node) {
        Arc::make_mut(member).draining = true;
    }
    plan(&state, disks, PlanLimits::NONE)
}

/// Lets through as many steps as there are slots; re-targets first, then drains, then balance.
fn emit(view: &mut View<'_>, mut chosen: Vec<view::Step>, limits: PlanLimits, plan: &mut Plan) {
    chosen.sort_by_key(|step| step.reason);
    for step in chosen {
        let slots = &mut view.slots;
        let free = !step.item.withheld
            && slots.active < limits.max_in_flight
            && slots.inbound[step.target] < limits.max_in
            && slots.outbound[step.item.owner] < limits.max_out;
        if free {
            slots.active += 1;
            slots.inbound[step.target] += 1;
            slots.outbound[step.item.owner] += 1;
        }
        let steps = if free {
            &mut plan.steps
        } else {
            &mut plan.later
        };
        steps.push(PlannedMove {
            key: step.item.key,
            owner: view.nodes[step.item.owner].clone(),
            epoch: step.item.epoch,
            replaces: step.item.replaces,
            seen: view.applied,
            target: view.nodes[step.target].clone(),
            reason: step.reason,
        });
    }
}
