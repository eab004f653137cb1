//! The leader's side of the heartbeats: who lives (the core's clock decides), and what every node
//! has told about itself.
//!
//! What this file keeps true: a beat counts only when a quorum round that began after its arrival
//! confirmed this leader; what was told to another leader, or by an earlier process, is forgotten.

use super::core::Core;
use crate::clock::mono_ms;
use crate::config::Timings;
use crate::limits;
use crate::messages::{Beat, BeatAnswer, ProposeError};
use narad_core::ids::{MonoMs, NodeId, NodeIncarnation, PartitionKey, RaftIndex};
use narad_core::liveness::{
    BeatId, Liveness, LivenessEffect, LivenessInput, PromoteHold, ProposalEnd, RoundId,
};
use narad_core::meta::{Command, MetaState};
use narad_core::planner::{Disks, DrainTold, Plan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use tokio::sync::oneshot;

/// What a node has told in its latest beat.
#[derive(Clone, Debug)]
pub(super) struct Told {
    incarnation: NodeIncarnation,
    /// Index of the metadata under which it counted what follows.
    pub(super) applied: RaftIndex,
    /// What holds it if it drains.
    pub(super) drain: DrainTold,
    pub(super) disk_free_bytes: u64,
    pub(super) disk_used_bytes: u64,
}

/// The leader's memory of beats; empty while this node follows.
#[derive(Default)]
pub(super) struct Beats {
    told: BTreeMap<NodeId, Told>,
    sizes: BTreeMap<PartitionKey, u64>,
    no_room: NoRoom,
    /// The index under which this leader saw first that a node is leaving.
    leaving: BTreeMap<NodeId, RaftIndex>,
    /// What the controller's last pass found, and over which metadata.
    found: Option<(RaftIndex, Rc<Plan>)>,
}

impl Beats {
    /// Leadership begins or ends: what was told before is nobody's business any more.
    pub(super) fn clear(&mut self) {
        self.told.clear();
        self.sizes.clear();
        self.leaving.clear();
        self.no_room = NoRoom::default();
        self.found = None;
    }

    /// Keeps what a pass found over a state.
    pub(super) fn keep(&mut self, applied: RaftIndex, plan: &Rc<Plan>) {
        self.found = Some((applied, plan.clone()));
    }

    /// What the last pass found, if it was over the same metadata and nobody has told for the first time since.
    /// Free bytes and sizes may be other ones by now: until the next tick the controller knows no better itself.
    pub(super) fn found(&self, applied: RaftIndex) -> Option<Rc<Plan>> {
        let (over, plan) = self.found.as_ref()?;
        (*over == applied).then(|| plan.clone())
    }

    /// As [`Beats::told`], for the question whether a drained node may go: of one that is leaving
    /// only what it counted when it knew that, because until then it took records in. One that is
    /// out of the Raft group already learns of nothing new; it was put out because it had told
    /// enough, unless its drain has been cancelled since.
    pub(super) fn told_for_removal(
        &mut self,
        id: &NodeId,
        state: &MetaState,
        in_group: bool,
    ) -> Option<Told> {
        let told = self.told(id, state).cloned();
        if !state.is_leaving(id) {
            self.leaving.remove(id);
            return told;
        }
        let seen = *self.leaving.entry(id.clone()).or_insert(state.applied);
        let changed = state.members.get(id)?.draining_changed;
        let since = if in_group { seen.max(changed) } else { changed };
        told.filter(|told| told.applied >= since)
    }

    /// What the registered process of a node has told this leader.
    pub(super) fn told(&self, id: &NodeId, state: &MetaState) -> Option<&Told> {
        let member = state.members.get(id)?;
        let told = self.told.get(id)?;
        (told.incarnation == member.incarnation).then_some(told)
    }

    /// What is known of the disks, for the planner.
    pub(super) fn known(&self) -> Known<'_> {
        let told = self.told.iter();
        Known {
            sizes: &self.sizes,
            free: told
                .map(|(id, told)| (id.clone(), told.disk_free_bytes))
                .collect(),
            full: self.no_room.now(mono_ms()),
        }
    }

    /// A log is made: it is empty, until its owner tells more.
    pub(super) fn made(&mut self, key: PartitionKey) {
        self.sizes.entry(key).or_insert(0);
        self.found = None;
    }

    /// A target gives a partition up because its disk has no room.
    pub(super) fn had_no_room(&mut self, key: PartitionKey, target: NodeId) {
        self.no_room.note(mono_ms(), key, target);
        self.found = None;
    }

    /// Bytes of partitions, as their owners told.
    pub(super) fn sizes(&self) -> &BTreeMap<PartitionKey, u64> {
        &self.sizes
    }

    /// Remembers what a node told, and says for what it is news.
    fn note(&mut self, beat: &Beat, state: &MetaState) -> News {
        self.told.retain(|id, _| state.members.contains_key(id));
        self.leaving.retain(|id, _| state.members.contains_key(id));
        self.sizes
            .retain(|key, _| state.topics.contains_key(&key.topic));
        let drain = DrainTold {
            undispatched: beat.undispatched,
            waiting_for: beat.waiting_for.iter().cloned().collect(),
            held_copies: u64::from(beat.held_copies),
        };
        let before = self.told.insert(
            beat.node.clone(),
            Told {
                incarnation: beat.incarnation,
                applied: beat.applied,
                drain: drain.clone(),
                disk_free_bytes: beat.disk_free_bytes,
                disk_used_bytes: beat.disk_used_bytes,
            },
        );
        let mut news = News {
            for_planner: before.is_none(),
            for_removal: before.is_none_or(|before| {
                before.incarnation != beat.incarnation
                    || before.drain != drain
                    || before.applied != beat.applied
            }),
        };
        let told = beat
            .partition_bytes
            .iter()
            .take(limits::BEAT_PARTITIONS_MAX);
        for &(key, bytes) in told {
            // Only its owner knows how large a partition is.
            if state.assignment(key).is_some_and(|a| a.owner == beat.node) {
                news.for_planner |= self.sizes.insert(key, bytes).is_none();
            }
        }
        if news.for_planner {
            self.found = None;
        }
        news
    }
}

/// For what a beat is news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct News {
    /// For the removal of its sender.
    for_removal: bool,
    /// For the planner: until now it did not know this node's room, or the size of a partition.
    for_planner: bool,
}

/// What is known of the disks.
pub(super) struct Known<'a> {
    sizes: &'a BTreeMap<PartitionKey, u64>,
    free: BTreeMap<NodeId, u64>,
    full: BTreeSet<(PartitionKey, NodeId)>,
}

impl Known<'_> {
    pub(super) fn disks(&self) -> Disks<'_> {
        Disks {
            sizes: self.sizes,
            free: &self.free,
            full: &self.full,
        }
    }
}

/// Targets that gave a partition up for want of room, and when; bounded in time and number.
#[derive(Default)]
struct NoRoom(VecDeque<(MonoMs, PartitionKey, NodeId)>);

impl NoRoom {
    fn note(&mut self, now: MonoMs, key: PartitionKey, target: NodeId) {
        self.0
            .retain(|(_, other, at)| (other, at) != (&key, &target));
        if self.0.len() >= limits::NO_ROOM_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, key, target));
    }

    fn now(&self, now: MonoMs) -> BTreeSet<(PartitionKey, NodeId)> {
        let since = now.0.saturating_sub(limits::NO_ROOM_MS);
        let recent = self.0.iter().filter(|(at, ..)| at.0 >= since);
        recent
            .map(|(_, key, target)| (*key, target.clone()))
            .collect()
    }
}

/// The core's clock with what waits for it.
pub(super) struct Clock {
    machine: Liveness,
    waiting: BTreeMap<BeatId, oneshot::Sender<Result<BeatAnswer, ProposeError>>>,
    next_beat: u64,
}

impl Clock {
    pub(super) fn new(timings: &Timings) -> Self {
        Self {
            machine: Liveness::new(narad_core::liveness::Timings {
                heartbeat_ms: timings.heartbeat_ms,
                lease_ms: timings.move_lease_ms,
                drift_ms: timings.clock_drift_ms,
                dead_after_ms: timings.dead_after_ms,
                force_promote_after_ms: timings.force_promote_after_ms,
            }),
            waiting: BTreeMap::new(),
            next_beat: 1,
        }
    }

    /// For how long this leader has not heard a member, in ms.
    pub(super) fn silent_ms(&self, now: MonoMs, node: &NodeId) -> Option<u64> {
        self.machine.silent_ms(now, node)
    }
}

impl Core {
    /// Takes a heartbeat of any node, this one included.
    pub(super) async fn take_beat(self: &Rc<Self>, beat: Beat) -> Result<BeatAnswer, ProposeError> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut clock = self.clock.borrow_mut();
            let id = BeatId(clock.next_beat);
            clock.next_beat += 1;
            clock.waiting.insert(id, answer);
            id
        };
        self.step(LivenessInput::Beat {
            beat: id,
            node: &beat.node,
            incarnation: beat.incarnation,
        });
        let answer = answered.await.unwrap_or_else(|_| {
            Err(ProposeError::Unavailable {
                reason: "the node is shutting down".into(),
            })
        })?;
        if answer.registered {
            let state = self.state();
            let news = self.beats.borrow_mut().note(&beat, &state);
            let drains = || state.members.get(&beat.node).is_some_and(|m| m.draining);
            // It may be all that its removal, or a move, waits for.
            if news.for_planner || (news.for_removal && drains()) {
                self.replan.notify_one();
            }
        }
        Ok(answer)
    }

    /// Feeds the clock and does what it says.
    pub(super) fn step(self: &Rc<Self>, input: LivenessInput<'_>) {
        let effects = self.clock.borrow_mut().machine.step(mono_ms(), input);
        for effect in effects {
            match effect {
                LivenessEffect::Answer {
                    beat,
                    commit,
                    lease_ms,
                    term,
                    registered,
                } => self.answer(
                    beat,
                    Ok(BeatAnswer {
                        commit,
                        lease_ms: u32::try_from(lease_ms).unwrap_or(u32::MAX),
                        term,
                        registered,
                    }),
                ),
                LivenessEffect::Refuse { beat, busy: true } => self.answer(
                    beat,
                    Err(ProposeError::Unavailable {
                        reason: "too many heartbeats wait for a quorum".into(),
                    }),
                ),
                LivenessEffect::Refuse { beat, busy: false } => self.answer(
                    beat,
                    Err(ProposeError::NotLeader {
                        leader: self.leader(),
                    }),
                ),
                LivenessEffect::StartRound { round } => {
                    let core = self.clone();
                    glommio::spawn_local(async move { core.run_round(round).await }).detach();
                }
                LivenessEffect::Propose { node, command } => {
                    let core = self.clone();
                    glommio::spawn_local(async move { core.propose_life(node, command).await })
                        .detach();
                }
            }
        }
    }

    fn answer(&self, beat: BeatId, answer: Result<BeatAnswer, ProposeError>) {
        if let Some(waiting) = self.clock.borrow_mut().waiting.remove(&beat) {
            // Its sender may have given up.
            let _ = waiting.send(answer);
        }
    }

    /// A quorum round that begins now.
    async fn run_round(self: &Rc<Self>, round: RoundId) {
        let term = self.raft.term();
        let confirmed = self.raft.read_barrier().await;
        // Leading in one term before and after: the round was of that term.
        let commit = match confirmed {
            Ok(_) if self.leads() && self.raft.term() == term => {
                // Entries of Raft itself change no metadata, so the last command that is applied
                // here stands for everything that the round covers.
                let state = self.state();
                self.step(LivenessInput::Applied(&state));
                Some(state.applied)
            }
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(%error, "a quorum round failed");
                None
            }
        };
        self.step(LivenessInput::Round { round, commit });
    }

    /// Proposes a death or a revival.
    async fn propose_life(self: &Rc<Self>, node: NodeId, command: Command) {
        let end = match self.propose_here(&command).await {
            Ok((index, reply)) => {
                tracing::info!(?command, %index, ?reply, "a member's life");
                let state = self.state();
                self.step(LivenessInput::Applied(&state));
                ProposalEnd::Logged(index)
            }
            Err(error) => {
                tracing::info!(?command, %error, "a member's life");
                match error {
                    ProposeError::Unknown { .. } => ProposalEnd::Unknown,
                    ProposeError::Unavailable { .. } | ProposeError::NotLeader { .. } => {
                        ProposalEnd::NotProposed
                    }
                }
            }
        };
        self.step(LivenessInput::Proposed { node, end });
    }

    /// Whether this leader may propose a command: it must itself have waited out the silence
    /// before a promotion.
    pub(super) fn may_propose(self: &Rc<Self>, command: &Command) -> Result<(), ProposeError> {
        let Command::ForcePromote { owner, deaths, .. } = command else {
            return Ok(());
        };
        self.step(LivenessInput::Applied(&self.state()));
        let held = self
            .clock
            .borrow()
            .machine
            .may_promote(mono_ms(), owner, *deaths);
        match held {
            Ok(()) => Ok(()),
            // The state machine refuses it, with the reason that the target acts upon.
            Err(PromoteHold::NotDead) => Ok(()),
            Err(PromoteHold::NotLeading) => Err(ProposeError::NotLeader {
                leader: self.leader(),
            }),
            Err(hold @ PromoteHold::Wait { .. }) => Err(ProposeError::Unavailable {
                reason: hold.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{PartitionIndex, TopicId};

    fn key(partition: u32) -> PartitionKey {
        PartitionKey {
            topic: TopicId(1),
            partition: PartitionIndex(partition),
        }
    }

    #[test]
    fn what_a_pass_found_is_shown_until_something_new_is_known() {
        let mut state = MetaState::default();
        let n1 = NodeId("n1".into());
        let register = Command::Register {
            id: n1.clone(),
            addr: "n1:1".into(),
            bulk_addr: "n1:2".into(),
            http_addr: String::new(),
            incarnation: NodeIncarnation(1),
            disk: 1,
            shards: 1,
            version: "1".into(),
        };
        state.apply(RaftIndex(1), &register);
        let beat = |disk_free_bytes| Beat {
            node: n1.clone(),
            incarnation: NodeIncarnation(1),
            applied: RaftIndex(7),
            undispatched: 0,
            held_copies: 0,
            disk_free_bytes,
            disk_used_bytes: 0,
            partition_bytes: Vec::new(),
            cluster: None,
            waiting_for: Vec::new(),
        };
        let plan = Rc::new(Plan::default());
        let mut beats = Beats::default();
        let news: [fn(&mut Beats); 3] = [
            Beats::clear,
            |beats| beats.made(key(1)),
            |beats| beats.had_no_room(key(1), NodeId("n1".into())),
        ];
        for news in news {
            beats.keep(RaftIndex(7), &plan);
            assert!(beats.found(RaftIndex(7)).is_some());
            assert!(beats.found(RaftIndex(8)).is_none(), "of newer metadata");
            news(&mut beats);
            assert!(beats.found(RaftIndex(7)).is_none());
        }
        beats.keep(RaftIndex(7), &plan);
        beats.note(&beat(1 << 30), &state);
        let heard = "its room was not known";
        assert!(beats.found(RaftIndex(7)).is_none(), "{heard}");
        beats.keep(RaftIndex(7), &plan);
        beats.note(&beat(1 << 29), &state);
        assert!(beats.found(RaftIndex(7)).is_some(), "a pass at the latest");
    }

    #[test]
    fn a_target_without_room_is_remembered_for_a_while_and_not_without_a_bound() {
        let n1 = NodeId("n1".into());
        let mut full = NoRoom::default();
        full.note(MonoMs(1_000), key(1), n1.clone());
        full.note(MonoMs(1_000), key(2), n1.clone());
        let end = MonoMs(1_000 + limits::NO_ROOM_MS);
        assert_eq!(full.now(end).len(), 2);
        // Again: from then on.
        full.note(MonoMs(1_001), key(2), n1.clone());
        let later = MonoMs(end.0 + 1);
        assert_eq!(full.now(later), [(key(2), n1.clone())].into());
        for partition in 0..3_000 {
            full.note(later, key(partition), n1.clone());
        }
        let now = full.now(later);
        assert_eq!(now.len(), limits::NO_ROOM_MAX);
        assert!(now.contains(&(key(2_999), n1)), "the newest stay");
    }
}
