//! The leader's clocks: who is alive, who gets a lease, when a copy may be promoted.
//!
//! What this file keeps true:
//! - a heartbeat is answered only after a quorum round that *started after it arrived* confirmed
//!   this leader, and after everything committed before that round is applied here; so no lease
//!   comes from a deposed leader or over a death that it has not seen;
//! - a member that is marked dead, or whose death is being proposed, gets no lease before it is
//!   marked alive again (R11);
//! - silence is counted on this leader's own clock alone, from the later of its election and the
//!   last heartbeat of the registered process; a gap in its own confirmation (a stall, a lost
//!   quorum) starts the clocks anew, because then it was itself that heard nothing;
//! - lease + drift < dead-after < force-promote-after, so every lease of a silent owner has run
//!   out long before anyone may promote its partitions.

mod types;

pub use types::{
    BEATS_WAITING_MAX, BeatId, LivenessEffect, LivenessInput, PromoteHold, ProposalEnd, RoundId,
    Timings,
};

use crate::ids::{DeathGeneration, MonoMs, NodeId, NodeIncarnation, RaftIndex, RaftTerm};
use crate::meta::{Command, MemberStatus, MetaState};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// One member as the leader's clock sees it.
#[derive(Clone, Debug, Hash)]
struct Watched {
    incarnation: NodeIncarnation,
    status: MemberStatus,
    deaths: DeathGeneration,
    heard: MonoMs,
    /// A death is proposed and not settled: no lease.
    dying: bool,
    /// The death's fate is known once this index is applied here.
    settles_at: Option<RaftIndex>,
    /// A proposal for it is under way.
    proposing: bool,
}

#[derive(Clone, Debug, Hash)]
struct Waiting {
    beat: BeatId,
    node: NodeId,
    incarnation: NodeIncarnation,
}

#[derive(Clone, Debug, Hash)]
struct Leadership {
    term: RaftTerm,
    /// Beats for which no round has started yet.
    fresh: Vec<Waiting>,
    /// The round under way, when it started, and the beats that it confirms.
    round: Option<(RoundId, MonoMs, Vec<Waiting>)>,
    /// Beats that are confirmed up to this index, which is not applied here yet.
    confirmed: Vec<(RaftIndex, Waiting)>,
    /// A round has failed; the next one waits for a tick.
    resting: bool,
    /// When the latest round that succeeded had started; at first when it was elected.
    confirmed_at: MonoMs,
}

/// See the file's description.
#[derive(Clone, Debug, Hash)]
pub struct Liveness {
    timings: Timings,
    applied: RaftIndex,
    members: BTreeMap<NodeId, Watched>,
    leading: Option<Leadership>,
    next_round: u64,
}

impl Liveness {
    /// A machine of a node that does not lead yet.
    ///
    /// # Panics
    /// When `timings` are not [ordered](Timings::are_ordered).
    #[must_use]
    pub fn new(timings: Timings) -> Self {
        assert!(timings.are_ordered(), "{timings:?} fence nothing");
        Self {
            timings,
            applied: RaftIndex(0),
            members: BTreeMap::new(),
            leading: None,
            next_round: 1,
        }
    }

    /// Steps the machine.
    #[must_use]
    pub fn step(&mut self, now: MonoMs, input: LivenessInput<'_>) -> Vec<LivenessEffect> {
        let mut effects = Vec::new();
        match input {
            LivenessInput::Leading { term } => self.lead(now, term, &mut effects),
            LivenessInput::Following => self.follow(&mut effects),
            LivenessInput::Applied(state) => self.apply(now, state),
            LivenessInput::Beat {
                beat,
                node,
                incarnation,
            } => self.beat(now, beat, node, incarnation, &mut effects),
            LivenessInput::Round { round, commit } => self.round_ended(now, round, commit),
            LivenessInput::Proposed { node, end } => self.proposed(&node, end),
            LivenessInput::Tick => self.tick(now, &mut effects),
        }
        self.answer(&mut effects);
        self.start_round(now, false, &mut effects);
        effects
    }

    /// Whether this leader may propose a forced promotion over the owner's death `deaths`: asked
    /// at the leader just before it proposes, whoever wants the promotion.
    ///
    /// # Errors
    /// [`PromoteHold`] says why not.
    pub fn may_promote(
        &self,
        now: MonoMs,
        owner: &NodeId,
        deaths: DeathGeneration,
    ) -> Result<(), PromoteHold> {
        if self.leading.is_none() {
            return Err(PromoteHold::NotLeading);
        }
        let Some(owner) = self.members.get(owner) else {
            return Err(PromoteHold::NotDead);
        };
        if owner.status != MemberStatus::Dead || owner.deaths != deaths {
            return Err(PromoteHold::NotDead);
        }
        let silent = now.since(owner.heard);
        if silent < self.timings.force_promote_after_ms {
            let left_ms = self.timings.force_promote_after_ms - silent;
            return Err(PromoteHold::Wait { left_ms });
        }
        Ok(())
    }

    /// The same machine on another clock, see [`MonoMs::rebased`].
    #[must_use]
    pub fn rebased(&self, now: MonoMs) -> Self {
        let mut machine = self.clone();
        machine.next_round = 0;
        for member in machine.members.values_mut() {
            member.heard = member.heard.rebased(now);
        }
        if let Some(leading) = &mut machine.leading {
            leading.confirmed_at = leading.confirmed_at.rebased(now);
            if let Some((round, started, _)) = &mut leading.round {
                (*round, *started) = (RoundId(0), started.rebased(now));
            }
        }
        machine
    }

    /// How long this leader has not heard a member, in ms; `None` when it does not lead or does
    /// not know it.
    #[must_use]
    pub fn silent_ms(&self, now: MonoMs, node: &NodeId) -> Option<u64> {
        self.leading.as_ref()?;
        Some(now.since(self.members.get(node)?.heard))
    }

    fn lead(&mut self, now: MonoMs, term: RaftTerm, effects: &mut Vec<LivenessEffect>) {
        self.follow(effects);
        self.clocks_anew(now);
        for member in self.members.values_mut() {
            member.dying = false;
            member.settles_at = None;
            member.proposing = false;
        }
        self.leading = Some(Leadership {
            term,
            fresh: Vec::new(),
            round: None,
            confirmed: Vec::new(),
            resting: false,
            confirmed_at: now,
        });
    }

    fn follow(&mut self, effects: &mut Vec<LivenessEffect>) {
        let Some(leading) = self.leading.take() else {
            return;
        };
        let in_round = leading.round.into_iter().flat_map(|(_, _, beats)| beats);
        let confirmed = leading.confirmed.into_iter().map(|(_, beat)| beat);
        for waiting in leading.fresh.into_iter().chain(in_round).chain(confirmed) {
            effects.push(LivenessEffect::Refuse {
                beat: waiting.beat,
                busy: false,
            });
        }
    }

    fn clocks_anew(&mut self, now: MonoMs) {
        for member in self.members.values_mut() {
            member.heard = member.heard.max(now);
        }
    }

    fn apply(&mut self, now: MonoMs, state: &MetaState) {
        if state.applied < self.applied {
            // Told late: what was known already stands.
            return;
        }
        self.applied = state.applied;
        self.members.retain(|id, _| state.members.contains_key(id));
        for (id, member) in &state.members {
            let watched = self.members.entry(id.clone()).or_insert(Watched {
                incarnation: member.incarnation,
                status: member.status,
                deaths: member.deaths,
                heard: now,
                dying: false,
                settles_at: None,
                proposing: false,
            });
            if watched.incarnation != member.incarnation {
                // Another process: it has just been heard of, and no death of the former one is
                // on its way to it any more.
                watched.incarnation = member.incarnation;
                watched.heard = now;
                watched.dying = false;
            }
            let settled = watched
                .settles_at
                .take_if(|index| *index <= self.applied)
                .is_some();
            if settled || watched.deaths != member.deaths {
                watched.dying = false;
                watched.settles_at = None;
            }
            watched.status = member.status;
            watched.deaths = member.deaths;
        }
    }

    fn beat(
        &mut self,
        now: MonoMs,
        beat: BeatId,
        node: &NodeId,
        incarnation: NodeIncarnation,
        effects: &mut Vec<LivenessEffect>,
    ) {
        let waiting = self.beats_waiting();
        let Some(leading) = self.leading.as_mut() else {
            effects.push(LivenessEffect::Refuse { beat, busy: false });
            return;
        };
        if waiting >= BEATS_WAITING_MAX {
            effects.push(LivenessEffect::Refuse { beat, busy: true });
            return;
        }
        // Heard at its arrival, confirmed or not: that can only put a death off.
        if let Some(member) = self.members.get_mut(node)
            && member.incarnation == incarnation
        {
            member.heard = member.heard.max(now);
        }
        leading.fresh.push(Waiting {
            beat,
            node: node.clone(),
            incarnation,
        });
    }

    /// Heartbeats that wait for their answer here.
    #[must_use]
    pub fn beats_waiting(&self) -> usize {
        self.leading.as_ref().map_or(0, |leading| {
            let in_round = leading
                .round
                .as_ref()
                .map_or(0, |(_, _, beats)| beats.len());
            leading.fresh.len() + in_round + leading.confirmed.len()
        })
    }

    fn start_round(&mut self, now: MonoMs, anyhow: bool, effects: &mut Vec<LivenessEffect>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        let wanted = anyhow || !leading.fresh.is_empty();
        if leading.round.is_some() || leading.resting || !wanted {
            return;
        }
        let round = RoundId(self.next_round);
        self.next_round += 1;
        let beats = core::mem::take(&mut leading.fresh);
        leading.round = Some((round, now, beats));
        effects.push(LivenessEffect::StartRound { round });
    }

    fn round_ended(&mut self, now: MonoMs, round: RoundId, commit: Option<RaftIndex>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        let Some((_, started, beats)) = leading.round.take_if(|(id, ..)| *id == round) else {
            return;
        };
        let Some(commit) = commit else {
            // Unconfirmed: the same beats wait for the next round.
            leading.fresh.splice(0..0, beats);
            leading.resting = true;
            return;
        };
        let gap = started.since(leading.confirmed_at) > self.timings.lease_ms;
        leading.confirmed_at = started;
        leading
            .confirmed
            .extend(beats.into_iter().map(|beat| (commit, beat)));
        if gap {
            self.clocks_anew(now);
        }
    }

    fn proposed(&mut self, node: &NodeId, end: ProposalEnd) {
        let applied = self.applied;
        let Some(member) = self.members.get_mut(node) else {
            return;
        };
        member.proposing = false;
        match end {
            ProposalEnd::Logged(index) if index > applied => {
                member.settles_at = member.dying.then_some(index);
            }
            ProposalEnd::Logged(_) | ProposalEnd::NotProposed => member.dying = false,
            // It may still come, so no lease until a repetition has settled it.
            ProposalEnd::Unknown => {}
        }
    }

    fn tick(&mut self, now: MonoMs, effects: &mut Vec<LivenessEffect>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        leading.resting = false;
        // Its own silence, not theirs, when it was not confirmed lately.
        let unconfirmed_ms = now.since(leading.confirmed_at);
        let confirmed = unconfirmed_ms <= self.timings.lease_ms;
        let idle = unconfirmed_ms >= self.timings.heartbeat_ms;
        for (id, member) in &mut self.members {
            let silent = now.since(member.heard) >= self.timings.dead_after_ms;
            let dies = member.status == MemberStatus::Alive && (silent || member.dying);
            let settling = member.proposing || member.settles_at.is_some();
            if !confirmed || settling || !dies {
                continue;
            }
            member.dying = true;
            member.proposing = true;
            effects.push(LivenessEffect::Propose {
                node: id.clone(),
                command: Command::MarkDead {
                    id: id.clone(),
                    incarnation: member.incarnation,
                    deaths: member.deaths,
                },
            });
        }
        self.start_round(now, idle, effects);
    }

    /// Answers what is confirmed and applied.
    fn answer(&mut self, effects: &mut Vec<LivenessEffect>) {
        let Some(leading) = self.leading.as_mut() else {
            return;
        };
        let applied = self.applied;
        let (ready, later): (Vec<_>, Vec<_>) = core::mem::take(&mut leading.confirmed)
            .into_iter()
            .partition(|(commit, _)| *commit <= applied);
        leading.confirmed = later;
        for (commit, waiting) in ready {
            let member = self
                .members
                .get_mut(&waiting.node)
                .filter(|member| member.incarnation == waiting.incarnation);
            let registered = member.is_some();
            let mut lease_ms = 0;
            if let Some(member) = member {
                if member.status == MemberStatus::Alive && !member.dying {
                    lease_ms = self.timings.lease_ms;
                } else if member.status == MemberStatus::Dead && !member.proposing {
                    member.proposing = true;
                    effects.push(LivenessEffect::Propose {
                        node: waiting.node.clone(),
                        command: Command::MarkAlive {
                            id: waiting.node.clone(),
                            incarnation: member.incarnation,
                            deaths: member.deaths,
                        },
                    });
                }
            }
            effects.push(LivenessEffect::Answer {
                beat: waiting.beat,
                commit,
                lease_ms,
                term: leading.term,
                registered,
            });
        }
    }
}

#[cfg(test)]
mod tests;
