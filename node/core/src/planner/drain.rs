//! What holds a drained node's removal back, and what of that does not pass by itself.
//!
//! What this file keeps true: a node leaves only with nothing owned, inbound, undispatched or
//! unsalvaged, alive (a dead one cannot have said so), with enough voters left and not as leader;
//! every reason that stands is listed, in the order in which an operator would meet them.

use super::{Plan, PlanNote};
use crate::ids::NodeId;
use crate::meta::{MemberStatus, MetaState};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;

/// The Raft group as the leader sees it.
#[derive(Clone, Copy, Debug)]
pub struct RaftView<'a> {
    /// Who leads.
    pub leader: &'a NodeId,
    /// Who votes.
    pub voters: &'a BTreeSet<NodeId>,
    /// Who only learns.
    pub learners: &'a BTreeSet<NodeId>,
    /// Fewest voters to keep.
    pub min_voters: usize,
}

/// One reason why a node cannot be removed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainHold {
    /// It is not a member.
    NotMember,
    /// It is not draining.
    NotDraining,
    /// It is dead: what its ingress WALs and old copies hold is unknown.
    Dead,
    /// No other member can take its partitions.
    NoReceiver,
    /// It owns partitions.
    Owned(usize),
    /// Partitions are moving to it.
    Inbound(usize),
    /// Copies of ended epochs are not reclaimed.
    EndedCopies(usize),
    /// It has not told yet what it holds, in this process and to this leader.
    Untold,
    /// Records in its ingress WALs are not delivered yet.
    Undispatched(u64),
    /// Copies on its disk are not salvaged or reclaimed yet.
    HeldCopies(u64),
    /// It leads; leadership must move away first.
    Leader,
    /// A learner must be made a voter first.
    LearnerFirst(NodeId),
    /// It votes, and too few voters would be left.
    MinVoters {
        /// Voters now, it included.
        voters: usize,
        /// Fewest to keep.
        min: usize,
    },
    /// So many other voters are dead that the rest would have no quorum.
    Quorum {
        /// Living voters that would be left.
        alive: usize,
        /// How many a quorum would need.
        needed: usize,
    },
}

impl fmt::Display for DrainHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMember => f.write_str("not a member"),
            Self::NotDraining => f.write_str("not draining"),
            Self::Dead => {
                f.write_str("dead: start it again, so that it can hand over what is on its disk")
            }
            Self::NoReceiver => f.write_str(
                "no other living member takes partitions: start a node or cancel a decommission",
            ),
            Self::Owned(n) => write!(f, "owns {n} partitions"),
            Self::Inbound(n) => write!(f, "{n} partitions are moving to it"),
            Self::EndedCopies(n) => write!(f, "{n} old copies are not reclaimed yet"),
            Self::Untold => f.write_str("has not told yet what it holds"),
            Self::Undispatched(n) => write!(f, "{n} accepted records are not delivered yet"),
            Self::HeldCopies(n) => write!(f, "{n} copies on its disk are not salvaged yet"),
            Self::Leader => f.write_str("leads; leadership is being moved away"),
            Self::LearnerFirst(id) => write!(f, "learner {id} is being made a voter first"),
            Self::MinVoters { voters, min } => write!(
                f,
                "MinVoters: {} voters would be left, and at least {min} must stay: add a node",
                voters - 1
            ),
            Self::Quorum { alive, needed } => write!(
                f,
                "{alive} living voters would be left of the {needed} that a quorum needs: start \
                 the dead ones"
            ),
        }
    }
}

/// Everything that holds the removal of `node` back; empty when it may go. `undispatched` and
/// `held` are the records in its ingress WALs and the copies on its disk that it does not own, as
/// its present process last told this leader; `None` when it has not.
#[must_use]
pub fn drain_status(
    state: &MetaState,
    node: &NodeId,
    undispatched: Option<u64>,
    held: Option<u64>,
    raft: RaftView<'_>,
) -> Vec<DrainHold> {
    let Some(member) = state.members.get(node) else {
        return [DrainHold::NotMember].into();
    };
    let mut holds = Vec::new();
    if !member.draining {
        holds.push(DrainHold::NotDraining);
    }
    if member.status == MemberStatus::Dead {
        holds.push(DrainHold::Dead);
    }
    let holdings = state.holdings().remove(node).unwrap_or_default();
    if holdings.owned > 0 {
        let others = state.members.keys().filter(|id| *id != node);
        if !others.into_iter().any(|id| state.can_receive(id)) {
            holds.push(DrainHold::NoReceiver);
        }
        holds.push(DrainHold::Owned(holdings.owned));
    }
    if holdings.inbound > 0 {
        holds.push(DrainHold::Inbound(holdings.inbound));
    }
    if holdings.ended > 0 {
        holds.push(DrainHold::EndedCopies(holdings.ended));
    }
    match (undispatched, held) {
        (Some(undispatched), Some(held)) => {
            if undispatched > 0 {
                holds.push(DrainHold::Undispatched(undispatched));
            }
            if held > 0 {
                holds.push(DrainHold::HeldCopies(held));
            }
        }
        _ if member.status == MemberStatus::Alive => holds.push(DrainHold::Untold),
        _ => {}
    }
    raft_holds(state, node, raft, &mut holds);
    holds
}

fn raft_holds(state: &MetaState, node: &NodeId, raft: RaftView<'_>, holds: &mut Vec<DrainHold>) {
    if raft.leader == node {
        holds.push(DrainHold::Leader);
    }
    if !raft.voters.contains(node) {
        return;
    }
    if raft.voters.len() <= raft.min_voters {
        match raft.learners.iter().find(|id| state.can_receive(id)) {
            Some(learner) => holds.push(DrainHold::LearnerFirst(learner.clone())),
            None => holds.push(DrainHold::MinVoters {
                voters: raft.voters.len(),
                min: raft.min_voters,
            }),
        }
        return;
    }
    let left = raft.voters.iter().filter(|id| *id != node);
    let alive = left.filter(|id| state.is_alive(id)).count();
    let needed = (raft.voters.len() - 1) / 2 + 1;
    if alive < needed {
        holds.push(DrainHold::Quorum { alive, needed });
    }
}

/// What keeps a drain from ending until somebody does something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainBlock {
    /// A hold that stays.
    Hold(DrainHold),
    /// The other nodes' disks have no room for so many of its partitions.
    NoRoom(usize),
    /// Rebalancing is paused, and drains with it.
    Paused,
}

impl fmt::Display for DrainBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold(hold) => hold.fmt(f),
            Self::NoRoom(n) => write!(
                f,
                "has {n} partitions for which no other node has disk room: free some there, or add a node"
            ),
            Self::Paused => f.write_str("is not drained while rebalancing is paused: resume it"),
        }
    }
}

impl DrainHold {
    /// Whether it stands until somebody does something; the others pass by themselves.
    #[must_use]
    pub const fn stays(&self) -> bool {
        match self {
            Self::NotMember
            | Self::Dead
            | Self::NoReceiver
            | Self::MinVoters { .. }
            | Self::Quorum { .. } => true,
            Self::NotDraining
            | Self::Owned(_)
            | Self::Inbound(_)
            | Self::EndedCopies(_)
            | Self::Untold
            | Self::Undispatched(_)
            | Self::HeldCopies(_)
            | Self::Leader
            | Self::LearnerFirst(_) => false,
        }
    }
}

/// What will keep the drain of `node` from ending as things are: of its `holds`, and of the whole `plan`
/// of its drain. `roomy` is that plan as if every disk had room; it is only asked for when something
/// fits nowhere, which passes by itself unless room is what is missing.
#[must_use]
pub fn drain_blocks(
    node: &NodeId,
    holds: &[DrainHold],
    plan: &Plan,
    roomy: impl FnOnce() -> Plan,
) -> Vec<DrainBlock> {
    let homeless = |plan: &Plan| {
        let of = plan.notes.iter().map(|note| match note {
            PlanNote::NoPlace {
                node: at,
                partitions,
            } if at == node => *partitions,
            _ => 0,
        });
        of.sum::<usize>()
    };
    let owns = holds.iter().any(|hold| matches!(hold, DrainHold::Owned(_)));
    let staying = holds.iter().filter(|hold| hold.stays()).cloned();
    let mut blocks: Vec<DrainBlock> = staying.map(DrainBlock::Hold).collect();
    if owns && plan.notes.contains(&PlanNote::Paused) {
        blocks.push(DrainBlock::Paused);
    }
    let now = homeless(plan);
    if now > 0 {
        let missing = now.saturating_sub(homeless(&roomy()));
        if missing > 0 {
            blocks.push(DrainBlock::NoRoom(missing));
        }
    }
    blocks
}
