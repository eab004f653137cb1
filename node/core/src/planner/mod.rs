//! The controller's policy: which partitions should move where.
//!
//! What this module keeps true: a plan is a pure function of the state (and of sizes and free
//! space as last told), so it may be recomputed at any moment. It has the fewest moves that bring
//! every living, non-draining member to the floor or the ceiling of its share; a partition in
//! flight counts at its target and is not touched; every step lowers the distance to balance, so
//! recomputing reaches a fixpoint and never oscillates. Preferences (child off its parent's node,
//! topics spread, fewest bytes) choose among equally short plans and never lengthen one.

mod choose;
mod drain;
mod view;

#[cfg(test)]
mod tests;

pub use drain::{DrainBlock, DrainHold, RaftView, drain_blocks, drain_status};

use crate::defaults::{MAX_IN_FLIGHT_MOVES, MAX_MOVES_IN, MAX_MOVES_OUT};
use crate::ids::{Epoch, HandoffId, MoveId, NodeId, PartitionKey, RaftIndex};
use crate::meta::{Command, MetaState};
use alloc::collections::BTreeMap;
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
            CancelWhat::Move(move_id) => Command::ClearTarget { key, move_id },
        }
    }
}

/// What an operator should know about a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanNote {
    /// The operator has paused rebalancing: no target is set.
    Paused,
    /// No member is alive and not draining.
    NoReceiver,
    /// Partitions stay on a dead node: their data is on its disk alone.
    OwnerDead {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
    },
    /// Moves wait for a dead source to come back, or for their target to promote its copy.
    SourceDead {
        /// The source.
        node: NodeId,
        /// How many moves.
        moves: usize,
    },
    /// An operator's own move waits for its dead target.
    ManualTargetDead {
        /// The partition.
        key: PartitionKey,
        /// The target.
        target: NodeId,
    },
    /// Further steps wait until running moves end.
    Waiting {
        /// How many.
        steps: usize,
    },
    /// Partitions that should leave a node but fit nowhere now: every node with a free share still
    /// keeps an old copy of them or lacks disk room.
    NoPlace {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
    },
}

impl fmt::Display for PlanNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("rebalancing is paused; no move is started"),
            Self::NoReceiver => f.write_str(
                "no member is alive and not draining; start a node or cancel a decommission",
            ),
            Self::OwnerDead { node, partitions } => write!(
                f,
                "{partitions} partitions stay on {node}, which is dead: their data is on its disk \
                 alone; start it again"
            ),
            Self::SourceDead { node, moves } => write!(
                f,
                "{moves} moves wait for their source {node}, which is dead, or for their target to \
                 promote a complete copy"
            ),
            Self::ManualTargetDead { key, target } => write!(
                f,
                "the manual move of {key} waits for its target {target}, which is dead; start it \
                 or cancel the move"
            ),
            Self::Waiting { steps } => write!(f, "{steps} more moves wait for running ones to end"),
            Self::NoPlace { node, partitions } => write!(
                f,
                "{partitions} partitions of {node} fit nowhere now: the other nodes lack disk room \
                 or still keep an old copy"
            ),
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
    /// Steps worked out that wait for a slot.
    pub waiting: usize,
    /// What holds things up.
    pub notes: Vec<PlanNote>,
}

impl Plan {
    /// Nothing is to be done and nothing waits.
    #[must_use]
    pub const fn is_balanced(&self) -> bool {
        self.steps.is_empty() && self.cancels.is_empty() && self.waiting == 0
    }
}

/// Plans over `state`. `sizes` are the bytes of partitions and `disk_free` the free bytes of nodes
/// as last told; what is missing there counts as empty, respectively as roomy (the target checks
/// its own disk again when it opens the session).
#[must_use]
pub fn plan(
    state: &MetaState,
    sizes: &BTreeMap<PartitionKey, u64>,
    disk_free: &BTreeMap<NodeId, u64>,
    limits: PlanLimits,
) -> Plan {
    let mut view = View::new(state, sizes, disk_free);
    let most = limits
        .max_in_flight
        .saturating_mul(8)
        .clamp(64, PLAN_STEPS_MAX);
    let chosen = if state.rebalance_paused {
        view.note(PlanNote::Paused);
        Vec::new()
    } else {
        choose::choose(&mut view, most)
    };
    let mut plan = Plan::default();
    view.cancels(&chosen, &mut plan.cancels);
    emit(&mut view, chosen, limits, &mut plan);
    if plan.waiting > 0 {
        view.note(PlanNote::Waiting {
            steps: plan.waiting,
        });
    }
    plan.notes = view.into_notes();
    plan
}

/// The whole plan as it would be if `node` were draining, without limits: for a dry run.
#[must_use]
pub fn plan_drained(
    state: &MetaState,
    node: &NodeId,
    sizes: &BTreeMap<PartitionKey, u64>,
    disk_free: &BTreeMap<NodeId, u64>,
) -> Plan {
    let mut state = state.clone();
    if let Some(member) = state.members.get_mut(node) {
        Arc::make_mut(member).draining = true;
    }
    plan(&state, sizes, disk_free, PlanLimits::NONE)
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
        if !free {
            plan.waiting += 1;
            continue;
        }
        slots.active += 1;
        slots.inbound[step.target] += 1;
        slots.outbound[step.item.owner] += 1;
        plan.steps.push(PlannedMove {
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
