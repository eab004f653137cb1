//! Who votes, and how a drained node leaves.
//!
//! What this file keeps true: one change of Raft's membership at a time, each decided anew; a
//! learner is promoted before a voter leaves; a drained node goes only when nothing holds it (core
//! says what does) and never while it leads.

use super::core::Core;
use crate::clock::mono_ms;
use crate::failpoint::{self, Removal};
use crate::limits;
use crate::raft::{MembershipError, RaftPeer};
use narad_core::ids::NodeId;
use narad_core::meta::{Command, MetaState, Reply};
use narad_core::planner::{DrainHold, Plan, RaftView, drain_status};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// The Raft group by node id.
pub(super) struct Group {
    pub(super) leader: NodeId,
    pub(super) voters: BTreeSet<NodeId>,
    pub(super) learners: BTreeSet<NodeId>,
    pub(super) min_voters: usize,
}

impl Group {
    pub(super) fn view(&self) -> RaftView<'_> {
        RaftView {
            leader: &self.leader,
            voters: &self.voters,
            learners: &self.learners,
            min_voters: self.min_voters,
        }
    }
}

/// One change that should be made to the group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Admit { id: NodeId, addr: String },
    Readdress { id: NodeId, addr: String },
    Promote(NodeId),
    Expel(NodeId),
}

impl Core {
    /// Raft's group as this node knows it.
    pub(super) fn group(&self) -> Group {
        let membership = self.raft.membership();
        let ids = |side: &std::collections::BTreeMap<String, RaftPeer>| {
            side.keys().map(|id| NodeId(id.clone())).collect()
        };
        Group {
            leader: self
                .raft
                .leader()
                .map_or_else(|| NodeId(String::new()), |(id, _)| NodeId(id)),
            voters: ids(&membership.voters),
            learners: ids(&membership.learners),
            min_voters: self.ctx.config.min_voters,
        }
    }

    /// Makes at most one change to the group and carries drained nodes off, on a confirmed state.
    pub(super) async fn tend_group(self: &Rc<Self>, state: &MetaState) {
        if let Some(change) = self.wanted_change(state) {
            if let Err(error) = self.make(&change).await {
                tracing::info!(?change, %error, "the change of Raft's membership is not made yet");
            }
            return;
        }
        for member in state.members.values().filter(|member| member.draining) {
            if self.leave(state, &member.id).await {
                return;
            }
        }
    }

    fn wanted_change(&self, state: &MetaState) -> Option<Change> {
        let membership = self.raft.membership();
        if membership.joint {
            // The leader is in the middle of one; it finishes by itself.
            return None;
        }
        for member in state.members.values() {
            let id = member.id.clone();
            let addr = member.addr.clone();
            match membership.peer(member.id.as_str()) {
                // A drained member that has left the group must not come back into it.
                None if !member.draining => return Some(Change::Admit { id, addr }),
                Some(peer) if peer.addr != addr => return Some(Change::Readdress { id, addr }),
                None | Some(_) => {}
            }
        }
        let known = membership.learners.keys().chain(membership.voters.keys());
        if let Some(gone) = known
            .map(|id| NodeId(id.clone()))
            .find(|id| state.removed.contains_key(id) && id != self.id())
        {
            return Some(Change::Expel(gone));
        }
        if membership.voters.len() < self.ctx.config.max_voters {
            return self
                .promotable(state, &membership.learners)
                .map(Change::Promote);
        }
        None
    }

    /// Whether a learner has caught up that should vote. Nothing but Raft's own progress tells of it.
    pub(super) fn may_promote_learner(&self) -> bool {
        let membership = self.raft.membership();
        !membership.joint
            && membership.voters.len() < self.ctx.config.max_voters
            && !membership.learners.is_empty()
            && self
                .promotable(&self.state(), &membership.learners)
                .is_some()
    }

    /// A learner that lives, stays, and has the log.
    fn promotable(
        &self,
        state: &MetaState,
        learners: &std::collections::BTreeMap<String, RaftPeer>,
    ) -> Option<NodeId> {
        learners.keys().map(|id| NodeId(id.clone())).find(|id| {
            state.can_receive(id)
                && self
                    .raft
                    .lag(id.as_str())
                    .is_some_and(|lag| lag <= limits::PROMOTE_LAG_MAX)
        })
    }

    async fn make(&self, change: &Change) -> Result<(), MembershipError> {
        let peer = |addr: &String| RaftPeer { addr: addr.clone() };
        match change {
            Change::Admit { id, addr } => self.raft.add_learner(id.as_str(), peer(addr)).await,
            Change::Readdress { id, addr } => self.raft.set_address(id.as_str(), peer(addr)).await,
            Change::Promote(id) => {
                self.raft.promote(id.as_str()).await?;
                tracing::info!(%id, "the learner votes now");
                Ok(())
            }
            Change::Expel(id) => self.expel(id).await,
        }?;
        self.replan.notify_one();
        Ok(())
    }

    async fn expel(&self, id: &NodeId) -> Result<(), MembershipError> {
        if self.raft.membership().voters.contains_key(id.as_str()) {
            self.raft.remove_voter(id.as_str()).await
        } else {
            self.raft.remove_learner(id.as_str()).await
        }
    }

    /// What holds the removal of a node back, in this leader's view; with a plan also why partitions stay.
    pub(super) fn holds(
        &self,
        state: &MetaState,
        id: &NodeId,
        plan: Option<&Plan>,
    ) -> Vec<DrainHold> {
        let in_group = self.raft.membership().contains(id.as_str());
        let told = self
            .beats
            .borrow_mut()
            .told_for_removal(id, state, in_group);
        let told = told.as_ref().map(|told| &told.drain);
        drain_status(state, id, told, plan, self.group().view())
    }

    /// Removes a drained node when nothing holds it. True when something was changed.
    async fn leave(self: &Rc<Self>, state: &MetaState, id: &NodeId) -> bool {
        let holds = self.holds(state, id, None);
        let solvable =
            |hold: &DrainHold| matches!(hold, DrainHold::Leader | DrainHold::LearnerFirst(_));
        if !holds.iter().all(solvable) {
            return false;
        }
        // What this controller can do about it, the voter first: the leader that hands over could
        // not promote it any more.
        let learner = holds.iter().find_map(|hold| match hold {
            DrainHold::LearnerFirst(learner) => Some(learner),
            _ => None,
        });
        if let Some(learner) = learner {
            return self.promote_for(learner, id).await;
        }
        if !holds.is_empty() {
            return self.give_leadership_away(id).await;
        }
        failpoint::before_removal(Removal::Expel);
        if self.raft.membership().contains(id.as_str())
            && let Err(error) = self.expel(id).await
        {
            tracing::warn!(%id, %error, "the drained node is not out of Raft's membership yet");
            return false;
        }
        // The change of the membership took its time: the drain may have been cancelled meanwhile.
        let state = self.state();
        let Some(member) = state.members.get(id) else {
            return true;
        };
        if !self.holds(&state, id, None).is_empty() {
            return true;
        }
        let remove = Command::RemoveMember {
            id: id.clone(),
            drain: member.draining_changed,
        };
        failpoint::before_removal(Removal::Remove);
        match self.propose_here(&remove).await {
            Ok((index, Reply::Done { .. })) => {
                tracing::info!(%id, %index, "the drained node has left the cluster");
                self.replan.notify_one();
                true
            }
            Ok((_, Reply::Refused { refusal })) => {
                tracing::info!(%id, %refusal, "the drained node stays a member");
                true
            }
            Err(error) => {
                tracing::warn!(%id, %error, "whether the drained node has left is seen in the next pass");
                true
            }
        }
    }

    /// Promotes a learner so that a voter can leave.
    async fn promote_for(&self, learner: &NodeId, leaving: &NodeId) -> bool {
        match self.raft.promote(learner.as_str()).await {
            Ok(()) => {
                tracing::info!(%learner, %leaving, "the learner votes now, so that a voter can leave");
                self.replan.notify_one();
                true
            }
            Err(error) => {
                tracing::info!(%learner, %leaving, %error, "the learner does not vote yet");
                false
            }
        }
    }

    /// The drained node leads (this one): another voter takes over and finishes.
    async fn give_leadership_away(&self, leaving: &NodeId) -> bool {
        let Some(to) = self.next_leader(Some(leaving)) else {
            return false;
        };
        let limit = Duration::from_millis(limits::HAND_OVER_MS);
        failpoint::before_removal(Removal::Transfer);
        match self.raft.transfer_leader(to.as_str(), limit).await {
            Ok(()) => {
                tracing::info!(%leaving, %to, "leadership has been moved off the drained node");
                true
            }
            Err(error) => {
                tracing::warn!(%leaving, %to, %error, "leadership has not moved yet");
                false
            }
        }
    }

    /// The voter that should lead next: heard of lately, not draining where there is such a one, and
    /// the furthest ahead.
    pub(super) fn next_leader(&self, leaving: Option<&NodeId>) -> Option<NodeId> {
        let state = self.state();
        let now = mono_ms();
        // A death is found out late; one beat may be lost.
        let lately_ms = self.ctx.config.timings.heartbeat_ms * 2;
        let clock = self.clock.borrow();
        let voters = self.raft.membership().voters;
        voters
            .keys()
            .map(|id| NodeId(id.clone()))
            .filter(|id| id != self.id() && Some(id) != leaving && state.is_alive(id))
            .filter(|id| clock.silent_ms(now, id).is_some_and(|ms| ms <= lately_ms))
            .min_by_key(|id| {
                let lag = self.raft.lag(id.as_str()).unwrap_or(u64::MAX);
                (!state.can_receive(id), lag)
            })
    }
}
