//! What holds a drained node's removal back, and what of that does not pass by itself.
//!
//! What this file keeps true: a node leaves only with nothing owned, inbound, undispatched or
//! unsalvaged, alive (a dead one cannot have said so), with enough voters left and not as leader;
//! every reason that stands is listed, in the order in which an operator would meet them, and names
//! the other nodes that it is about.

use super::notes::Size;
use super::{Plan, PlanNote};
use crate::ids::NodeId;
use crate::meta::{MemberStatus, MetaState};
use alloc::collections::{BTreeMap, BTreeSet};
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

/// What a node's present process has told this leader about what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainTold {
    /// Records in its ingress WALs that are not delivered yet.
    pub undispatched: u64,
    /// How many of them were sent to a partition by name whose owner is dead, by that owner: they
    /// go nowhere else.
    pub waiting_for: BTreeMap<NodeId, u64>,
    /// Copies on its disk that it does not own.
    pub held_copies: u64,
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
    /// Rebalancing is paused, and drains with it.
    Paused,
    /// No other node has disk room for some of what it owns.
    NoRoom {
        /// For how many partitions.
        partitions: usize,
        /// Bytes of the largest of them.
        largest: u64,
        /// The node with the most room for one of them, and how much.
        roomiest: Option<(NodeId, u64)>,
    },
    /// So many partitions that it owns may go nowhere before old copies are reclaimed.
    NoPlace(usize),
    /// So many partitions that it owns wait for sizes or room to be told to the leader.
    SizesUntold(usize),
    /// Partitions are moving to it.
    Inbound(usize),
    /// Partitions are moving to it from a dead node.
    InboundFromDead {
        /// The source.
        node: NodeId,
        /// How many.
        moves: usize,
    },
    /// Copies of ended epochs are not reclaimed.
    EndedCopies(usize),
    /// It has not told yet what it holds, in this process and to this leader.
    Untold,
    /// Records in its ingress WALs are not delivered yet.
    Undispatched(u64),
    /// Records in its ingress WALs can be delivered to a dead node only.
    WaitingFor {
        /// The dead owner.
        node: NodeId,
        /// How many.
        records: u64,
    },
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
            Self::Paused => f.write_str("is not drained while rebalancing is paused: resume it"),
            Self::NoRoom {
                partitions,
                largest,
                roomiest,
            } => {
                write!(
                    f,
                    "has {partitions} partitions for which no other node has disk room: the largest \
                     needs {}",
                    Size(*largest)
                )?;
                if let Some((at, room)) = roomiest {
                    write!(f, ", the most room is {} on {at}", Size(*room))?;
                }
                f.write_str("; free some there, or add a node")
            }
            Self::NoPlace(n) => write!(
                f,
                "has {n} partitions of which every other node still keeps an old copy"
            ),
            Self::SizesUntold(n) => write!(
                f,
                "has {n} partitions that wait until sizes and disk room are told to the leader"
            ),
            Self::Inbound(n) => write!(f, "{n} partitions are moving to it"),
            Self::InboundFromDead { node, moves } => write!(
                f,
                "{moves} partitions are moving to it from {node}, which is dead: start {node} again, \
                 or give it up"
            ),
            Self::EndedCopies(n) => write!(f, "{n} old copies are not reclaimed yet"),
            Self::Untold => f.write_str("has not told yet what it holds"),
            Self::Undispatched(n) => write!(f, "{n} accepted records are not delivered yet"),
            Self::WaitingFor { node, records } => write!(
                f,
                "{records} accepted records wait for {node}, which is dead: start {node} again, or \
                 give it up"
            ),
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

/// Everything that holds the removal of `node` back; empty when it may go. `told` is what its present
/// process last told this leader, `None` when it has not; `plan` what is planned now, if it is to be
/// said why partitions stay.
#[must_use]
pub fn drain_status(
    state: &MetaState,
    node: &NodeId,
    told: Option<&DrainTold>,
    plan: Option<&Plan>,
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
        if state.rebalance_paused {
            holds.push(DrainHold::Paused);
        }
        let notes = plan.map_or(&[][..], |plan| &plan.notes);
        holds.extend(notes.iter().filter_map(|note| staying(node, note)));
    }
    let from_dead = inbound_from_dead(state, node);
    let living = holdings.inbound - from_dead.values().sum::<usize>();
    if living > 0 {
        holds.push(DrainHold::Inbound(living));
    }
    let from_dead = from_dead.into_iter();
    holds.extend(from_dead.map(|(node, moves)| DrainHold::InboundFromDead { node, moves }));
    if holdings.ended > 0 {
        holds.push(DrainHold::EndedCopies(holdings.ended));
    }
    match told {
        Some(told) => told_holds(state, told, &mut holds),
        None if member.status == MemberStatus::Alive => holds.push(DrainHold::Untold),
        None => {}
    }
    raft_holds(state, node, raft, &mut holds);
    holds
}

/// Why partitions of `node` stay, if that is what a note says.
fn staying(node: &NodeId, note: &PlanNote) -> Option<DrainHold> {
    match note {
        PlanNote::NoRoom {
            node: of,
            partitions,
            largest,
            roomiest,
        } if of == node => Some(DrainHold::NoRoom {
            partitions: *partitions,
            largest: *largest,
            roomiest: roomiest.clone(),
        }),
        PlanNote::NoPlace {
            node: of,
            partitions,
        } if of == node => Some(DrainHold::NoPlace(*partitions)),
        PlanNote::Untold {
            node: of,
            partitions,
        } if of == node => Some(DrainHold::SizesUntold(*partitions)),
        _ => None,
    }
}

/// Moves to `node` whose sources are dead (they cannot be taken back, rule R14), by source.
fn inbound_from_dead(state: &MetaState, node: &NodeId) -> BTreeMap<NodeId, usize> {
    let mut found = BTreeMap::new();
    for (_, assignment) in state.assignments() {
        let inbound = assignment.target.as_ref().is_some_and(|t| t.node == *node);
        if inbound && !state.is_alive(&assignment.owner) {
            *found.entry(assignment.owner.clone()).or_default() += 1;
        }
    }
    found
}

fn told_holds(state: &MetaState, told: &DrainTold, holds: &mut Vec<DrainHold>) {
    let waiting = told.waiting_for.iter();
    let waiting = waiting.filter(|(id, _)| state.members.contains_key(id) && !state.is_alive(id));
    let waiting: Vec<(&NodeId, &u64)> = waiting.collect();
    let stuck: u64 = waiting.iter().map(|(_, records)| **records).sum();
    if told.undispatched > stuck {
        holds.push(DrainHold::Undispatched(told.undispatched - stuck));
    }
    holds.extend(waiting.iter().map(|(node, records)| DrainHold::WaitingFor {
        node: (*node).clone(),
        records: **records,
    }));
    if told.held_copies > 0 {
        holds.push(DrainHold::HeldCopies(told.held_copies));
    }
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
    /// Alone it could leave, but others drain as well, and too few voters would be left.
    OtherDrains {
        /// The other draining voters.
        others: Vec<NodeId>,
        /// Voters that would be left, learners that can vote included.
        left: usize,
        /// Fewest to keep.
        min: usize,
    },
}

impl fmt::Display for DrainBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold(hold) => hold.fmt(f),
            Self::OtherDrains { others, left, min } => {
                write!(f, "MinVoters: {left} voters would be left without it and")?;
                for (at, id) in others.iter().enumerate() {
                    let join = if at == 0 { "" } else { "," };
                    write!(f, "{join} {id}")?;
                }
                write!(
                    f,
                    ", which drains too, and at least {min} must stay: add a node, or keep one of them"
                )
            }
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
            | Self::Paused
            | Self::NoRoom { .. }
            | Self::InboundFromDead { .. }
            | Self::WaitingFor { .. }
            | Self::MinVoters { .. }
            | Self::Quorum { .. } => true,
            Self::NotDraining
            | Self::Owned(_)
            | Self::NoPlace(_)
            | Self::SizesUntold(_)
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

/// What will keep the drain of `node` from ending as things are: of its `holds`, and of the drains of
/// other voters, each of which could leave alone.
#[must_use]
pub fn drain_blocks(
    state: &MetaState,
    node: &NodeId,
    holds: &[DrainHold],
    raft: RaftView<'_>,
) -> Vec<DrainBlock> {
    let staying = holds.iter().filter(|hold| hold.stays()).cloned();
    let mut blocks: Vec<DrainBlock> = staying.map(DrainBlock::Hold).collect();
    let told = |hold: &DrainHold| matches!(hold, DrainHold::MinVoters { .. });
    let drains = |id: &&NodeId| state.members.get(*id).is_some_and(|member| member.draining);
    let others = raft.voters.iter().filter(|id| *id != node).filter(drains);
    let others: Vec<NodeId> = others.cloned().collect();
    if others.is_empty() || !raft.voters.contains(node) || holds.iter().any(told) {
        return blocks;
    }
    let ready = raft.learners.iter().filter(|id| state.can_receive(id));
    let left = (raft.voters.len() + ready.count()).saturating_sub(others.len() + 1);
    if left < raft.min_voters {
        blocks.push(DrainBlock::OtherDrains {
            others,
            left,
            min: raft.min_voters,
        });
    }
    blocks
}
