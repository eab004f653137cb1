//! The controller and the operator.
//!
//! What this file keeps true: what is planned is what the real planner plans on the newest version
//! (a barrier comes first); a drained node is removed only when the real rule holds nothing back.

use super::World;
use crate::action::{How, Left};
use crate::disk::Record;
use narad_core::ids::NodeId;
use narad_core::meta::{Command, MetaState};
use narad_core::planner::{DrainTold, PlanLimits, RaftView, drain_status, plan};
use std::collections::BTreeSet;

/// What the real planner wants, as commands.
#[must_use]
pub(super) fn planned(state: &MetaState) -> Vec<Command> {
    let plan = plan(state, None, PlanLimits::default());
    let cancels = plan.cancels.iter().map(|cancel| cancel.command());
    cancels
        .chain(plan.steps.iter().map(|step| step.command()))
        .collect()
}

impl World {
    /// One pass of the controller.
    pub(crate) fn plan_pass(&mut self, how: How) {
        if !self.has_leader() {
            return;
        }
        let leader = self.leader;
        for command in planned(&self.last().clone()) {
            self.propose(leader, command, how);
        }
    }

    /// A new leader whose state machine lags plans on it: the guards are evaluated at apply, so what
    /// is out of date can only fail.
    pub(crate) fn stale_plan(&mut self, n: usize) {
        let stale = self.state_of(n).state.clone();
        for command in planned(&stale) {
            self.propose(n, command, How::Ok);
        }
    }

    /// Whether the controller would do something.
    #[must_use]
    pub fn plan_wanted(&self) -> bool {
        self.has_leader() && !planned(self.last()).is_empty()
    }

    /// An operator's move.
    pub(crate) fn move_to(&mut self, p: usize, n: usize) {
        let Some(view) = self.view(p).cloned() else {
            return;
        };
        let command = Command::SetTarget {
            key: self.keys[p],
            owner: view.owner,
            epoch: view.epoch,
            replaces: view.target.map(|t| t.move_id),
            seen: self.last().applied,
            target: self.nodes[n].id.clone(),
            manual: false,
        };
        self.commands = self.commands.saturating_sub(1);
        self.commit(&command);
    }

    pub(crate) fn cancel_move(&mut self, p: usize) {
        let key = self.keys[p];
        let Some(target) = self.view(p).and_then(|a| a.target.clone()) else {
            return;
        };
        let command = match target.handoff {
            Some(handoff_id) => Command::CancelHandoff { key, handoff_id },
            None => Command::ClearTarget {
                key,
                move_id: target.move_id,
                no_room: false,
            },
        };
        self.commands = self.commands.saturating_sub(1);
        self.commit(&command);
    }

    pub(crate) fn drain(&mut self, n: usize) {
        let id = self.nodes[n].id.clone();
        let Some(draining) = self.last().members.get(&id).map(|m| m.draining) else {
            return;
        };
        self.commands = self.commands.saturating_sub(1);
        self.commit(&Command::SetDraining {
            id,
            draining: !draining,
        });
    }

    /// Whether nothing holds a drained node back.
    #[must_use]
    pub fn removable(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        if node.removed || !self.has_leader() || !node.up || !node.confirmed {
            return false;
        }
        let voters: BTreeSet<NodeId> = self
            .nodes
            .iter()
            .filter(|node| !node.removed)
            .map(|node| node.id.clone())
            .collect();
        let raft = RaftView {
            leader: &self.nodes[self.leader].id,
            voters: &voters,
            learners: &BTreeSet::new(),
            min_voters: 2,
        };
        let held = node
            .parts
            .iter()
            .map(|part| part.copies.len())
            .sum::<usize>();
        let (wal, held) = (node.wal.len() as u64, held as u64);
        let told = DrainTold {
            undispatched: wal,
            held_copies: held,
            ..DrainTold::default()
        };
        drain_status(self.last(), &node.id, Some(&told), None, raft).is_empty()
    }

    pub(crate) fn remove(&mut self, n: usize) {
        if self.removable(n) {
            let id = self.nodes[n].id.clone();
            let drain = self.last().members[&id].draining_changed;
            self.commit(&Command::RemoveMember { id, drain });
            // The process of a removed node stops.
            self.crash(n, Left::All);
        }
    }

    /// Whether an operator may give a node up: it is dead, and the first.
    #[must_use]
    pub fn may_give_up(&self, n: usize) -> bool {
        let gone = self.nodes.iter().any(|node| node.removed);
        !gone && self.has_leader() && self.marked_dead(n)
    }

    pub(crate) fn give_up(&mut self, n: usize) {
        if !self.may_give_up(n) {
            return;
        }
        let id = self.nodes[n].id.clone();
        let deaths = self.last().members[&id].deaths;
        self.commands = self.commands.saturating_sub(1);
        self.commit(&Command::ForgetMember { id, deaths });
        // It hears of it when it comes back, and does nothing any more but hand over.
        if self.nodes[n].removed {
            self.crash(n, Left::Nothing);
        }
    }

    /// Who takes what a node hands over that was given up; none when there is nothing to do.
    #[must_use]
    pub fn taker(&self, n: usize) -> Option<usize> {
        let node = &self.nodes[n];
        let holds = !node.wal.is_empty() || node.parts.iter().any(|part| !part.copies.is_empty());
        let gone = self.last().forgotten.contains(&node.id);
        let takes = |to: &usize| self.to_leader(*to) && self.nodes[*to].confirmed;
        (0..self.nodes.len()).find(takes).filter(|_| holds && gone)
    }

    /// Everything that no consumer has acked, as any client would produce it.
    pub(crate) fn hand_over(&mut self, n: usize) {
        let Some(to) = self.taker(n) else { return };
        self.catch_up(to);
        for entry in std::mem::take(&mut self.node(n).wal) {
            self.produce_again(to, entry.p, &[entry.record], entry.pinned);
        }
        for p in 0..self.keys.len() {
            for copy in std::mem::take(&mut self.part(n, p).copies).into_values() {
                let records: Vec<_> = copy.shown_from(copy.frontier.max(copy.start)).collect();
                self.produce_again(to, p, &records, true);
            }
        }
    }

    fn produce_again(&mut self, to: usize, p: usize, records: &[Record], pinned: bool) {
        if self.view(p).is_some() {
            self.wal_append(to, p, records, pinned);
        }
    }
}
