//! Raft as a committed log: proposals that are applied, late, repeated or lost, and leaders.
//!
//! What this file keeps true: the log has one order; a proposal is applied only while somebody leads
//! with a quorum; every guard is the real one of the metadata machine. Rules of the metadata are
//! switched off by changing the command, or the state for the moment of its application.

use super::{Version, World};
use crate::action::How;
use crate::disk::Copy;
use crate::hash::Hash128;
use crate::mutation::Mutation;
use narad_core::ids::{HandoffId, Offset, RaftIndex};
use narad_core::meta::{Command, EpochEnd, MemberStatus, MetaState, Reply};
use narad_core::moves::target::ProposeOutcome;
use std::sync::Arc;

impl World {
    /// Whether a node takes part in Raft now.
    #[must_use]
    pub fn in_quorum(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        node.up && !node.cut && !node.mute && !node.removed
    }

    /// Whether somebody leads with a quorum.
    #[must_use]
    pub fn has_leader(&self) -> bool {
        let voters = self.nodes.iter().filter(|node| !node.removed).count();
        let there = (0..self.nodes.len()).filter(|n| self.in_quorum(*n)).count();
        let leads = !self.setup.deaths || self.in_quorum(self.leader);
        leads && there > voters / 2
    }

    /// Whether a proposal or a barrier of `n` gets to the leader.
    #[must_use]
    pub fn to_leader(&self, n: usize) -> bool {
        self.in_quorum(n) && self.has_leader()
    }

    /// A proposal of `n`.
    pub(crate) fn propose(&mut self, n: usize, command: Command, how: How) -> ProposeOutcome {
        if !self.to_leader(n) || matches!(how, How::Lost | How::Fail) || !self.waited(&command) {
            return ProposeOutcome::NotProposed;
        }
        self.commands = self.commands.saturating_sub(1);
        if how == How::Late {
            self.pool.push(command);
            return ProposeOutcome::Unknown;
        }
        if how == How::Twice {
            self.pool.push(command.clone());
        }
        match self.commit(&command) {
            _ if how == How::NoReply => ProposeOutcome::Unknown,
            Reply::Done { index } => ProposeOutcome::Done { index },
            Reply::Refused { refusal } => ProposeOutcome::Refused(refusal),
        }
    }

    /// A forced promotion is proposed only by a leader that has itself waited.
    fn waited(&mut self, command: &Command) -> bool {
        let Command::ForcePromote { owner, deaths, .. } = command else {
            return true;
        };
        let leader = self.leader;
        self.catch_up(leader);
        let deaths = match self.last().members.get(owner) {
            Some(member) if self.off(Mutation::R6) => member.deaths,
            _ => *deaths,
        };
        let liveness = &self.nodes[leader].liveness;
        liveness.may_promote(self.now, owner, deaths).is_ok()
    }

    /// Puts a command into the log and applies it.
    pub(crate) fn commit(&mut self, command: &Command) -> Reply {
        let before = self.versions.last().expect("never empty").state.clone();
        let mut state = MetaState::clone(&before);
        let index = RaftIndex(state.applied.0 + 1);
        let reply = self.apply(&mut state, index, command);
        let digest = Hash128::of(&state);
        self.versions.push(Arc::new(Version {
            state: Arc::new(state),
            digest,
        }));
        self.last_command = Some(command.clone());
        self.committed(&before, command, &reply);
        reply
    }

    fn apply(&self, state: &mut MetaState, index: RaftIndex, command: &Command) -> Reply {
        let Some(mutation) = self.setup.mutation else {
            return state.apply(index, command);
        };
        let command = self.bent(state, command.clone(), mutation);
        match (mutation, &command) {
            (Mutation::R14, Command::SetTarget { owner, .. }) => {
                revived(state, owner, |s| s.apply(index, &command))
            }
            (Mutation::R14, Command::ClearTarget { key, .. }) => {
                let owner = state.assignment(*key).map(|a| a.owner.clone());
                match owner {
                    Some(owner) => revived(state, &owner, |s| s.apply(index, &command)),
                    None => state.apply(index, &command),
                }
            }
            (Mutation::R1, Command::SetTarget { key, target, .. }) => {
                let mut hidden = Vec::new();
                change(state, *key, |a| {
                    hidden = a.ended.clone();
                    a.ended.retain(|e| e.owner != *target);
                });
                let reply = state.apply(index, &command);
                change(state, *key, |a| a.ended = hidden);
                reply
            }
            (Mutation::R5, Command::BeginHandoff { key, move_id, .. }) => {
                let mut held = None;
                change(state, *key, |a| {
                    held = a.target.as_mut().and_then(|t| t.handoff.take());
                });
                let mut reply = state.apply(index, &command);
                // Its id is the move's, not the log index: one that repeats.
                if let Reply::Done { index } = &mut reply {
                    held = Some(HandoffId(move_id.0));
                    *index = RaftIndex(move_id.0);
                }
                change(state, *key, |a| {
                    if let Some(target) = &mut a.target {
                        target.handoff = held;
                    }
                });
                reply
            }
            (Mutation::PromoteWithoutGate, Command::ForcePromote { key, .. }) => {
                let reply = state.apply(index, &command);
                let told = self.ghost.told.get(&self.number_of(*key)).copied();
                if let (Reply::Done { .. }, Some(told)) = (&reply, told) {
                    change(state, *key, |a| {
                        if let Some(ended) = a.ended.last_mut() {
                            let told_hwm = Offset(told);
                            ended.end = EpochEnd::Promoted { told_hwm };
                        }
                    });
                }
                reply
            }
            (
                Mutation::R7,
                Command::CompleteMove { key, .. } | Command::ForcePromote { key, .. },
            ) => {
                let reply = state.apply(index, &command);
                change(state, *key, |a| {
                    let old = a.ended.len().saturating_sub(1);
                    a.ended.drain(..old);
                });
                reply
            }
            _ => state.apply(index, &command),
        }
    }

    /// The command as a machine without the rule would read it.
    fn bent(&self, state: &MetaState, mut command: Command, mutation: Mutation) -> Command {
        match (mutation, &mut command) {
            (
                Mutation::FlipWithoutHandoffId,
                Command::CompleteMove {
                    key, handoff_id, ..
                },
            )
            | (Mutation::R5, Command::CancelHandoff { key, handoff_id }) => {
                let target = state.assignment(*key).and_then(|a| a.target.as_ref());
                if let Some(recorded) = target.and_then(|t| t.handoff) {
                    *handoff_id = recorded;
                }
            }
            (
                Mutation::PromoteWithoutGate,
                Command::ForcePromote {
                    staged_hwm,
                    told_hwm,
                    ..
                },
            ) => *told_hwm = (*told_hwm).min(*staged_hwm),
            (Mutation::R6, Command::ForcePromote { owner, deaths, .. }) => {
                if let Some(member) = state.members.get(owner) {
                    *deaths = member.deaths;
                }
            }
            (
                Mutation::R9,
                Command::ForcePromote {
                    staged_hwm,
                    told_hwm,
                    ..
                },
            ) => *told_hwm = *staged_hwm,
            (
                Mutation::R9,
                Command::CompleteMove {
                    handoff_id,
                    captured_end,
                    ..
                },
            ) => {
                if let Some(capture) = self.ghost.captures.get(handoff_id) {
                    *captured_end = capture.hwm;
                }
            }
            _ => {}
        }
        command
    }

    fn committed(&mut self, before: &MetaState, command: &Command, reply: &Reply) {
        self.check_metadata(before);
        if matches!(reply, Reply::Refused { .. }) {
            return;
        }
        match command {
            Command::CompleteMove {
                key, handoff_id, ..
            } => {
                self.count.flips += 1;
                let p = self.number_of(*key);
                self.check_flip(p, Some(*handoff_id));
            }
            Command::ForcePromote { key, .. } => {
                self.count.promotions += 1;
                let p = self.number_of(*key);
                self.check_flip(p, None);
            }
            Command::CancelHandoff { .. } => self.count.cancels += 1,
            Command::CreateTopic { .. } => {
                let topic = self.last().topic_id_at(self.last().applied);
                self.add_topic(topic);
            }
            Command::RemoveMember { id, .. } => {
                self.count.removals += 1;
                let n = self.index_of(id);
                self.check_removed(n);
                self.node(n).removed = true;
            }
            Command::ForgetMember { id, .. } => {
                self.count.given_up += 1;
                let n = self.index_of(id);
                self.node(n).removed = true;
                self.ghost().given_up = true;
            }
            _ => {}
        }
    }

    /// Versions that everybody has applied are forgotten.
    pub(crate) fn prune(&mut self) {
        let needed = self
            .nodes
            .iter()
            .filter(|n| !n.removed)
            .map(|node| node.applied.0)
            .min();
        let first = self.versions[0].state.applied.0;
        let drop = needed.map_or(0, |needed| needed.saturating_sub(first));
        let drop = usize::try_from(drop).expect("small");
        if drop > 0 {
            self.versions.drain(..drop);
        }
    }

    /// The salvage point that the log has of an ended epoch.
    #[must_use]
    pub fn salvage_from(end: EpochEnd, copy: &Copy) -> u64 {
        narad_core::copies::salvage_point(end, Offset(copy.frontier)).0
    }
}

fn change(
    state: &mut MetaState,
    key: narad_core::ids::PartitionKey,
    change: impl FnOnce(&mut narad_core::meta::Assignment),
) {
    if let Some(topic) = state.topics.get_mut(&key.topic)
        && let Some(assignment) = Arc::make_mut(topic)
            .partitions
            .get_mut(key.partition.0 as usize)
    {
        change(assignment);
    }
}

/// Applies while the node counts as living.
fn revived<T>(
    state: &mut MetaState,
    node: &narad_core::ids::NodeId,
    apply: impl FnOnce(&mut MetaState) -> T,
) -> T {
    let was = state.members.get(node).map(|member| member.status);
    let set = |state: &mut MetaState, status: MemberStatus| {
        if let Some(member) = state.members.get_mut(node) {
            Arc::make_mut(member).status = status;
        }
    };
    set(state, MemberStatus::Alive);
    let result = apply(state);
    if let Some(was) = was {
        set(state, was);
    }
    result
}
