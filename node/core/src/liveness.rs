//! The leader's clock over the members: who is dead, who may hold a move lease, and when a copy of
//! a dead owner's partition may be promoted.
//!
//! What this file keeps true:
//! * a leader's clock begins with its term: silence before it is never counted, and no other
//!   leader's clock is compared with it;
//! * a lease is given only for a beat after whose arrival a quorum confirmed this leader, to the
//!   registered process of a living member, and never between the decision that a member is dead
//!   and the commit of its revival (R11);
//! * lease + drift < dead-after, so a member that is found dead has fenced itself before;
//! * a promotion is let through only after this very leader has heard nothing of the owner for the
//!   whole waiting time, a registration included (R6).

use crate::defaults;
use crate::ids::{DeathGeneration, MonoMs, NodeId, NodeIncarnation, RaftTerm};
use crate::meta::{Command, Member, MemberStatus, MetaState};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The times that the clock works with, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessTimes {
    /// Lease of an answered heartbeat, from its sending.
    pub lease_ms: u64,
    /// Drift allowed between two machines' clocks over a lease.
    pub drift_ms: u64,
    /// Silence after which a member is dead.
    pub dead_after_ms: u64,
    /// Silence after which a copy of its partitions may be promoted.
    pub force_promote_after_ms: u64,
}

impl Default for LivenessTimes {
    fn default() -> Self {
        Self {
            lease_ms: defaults::MOVE_LEASE_MS,
            drift_ms: defaults::CLOCK_DRIFT_MS,
            dead_after_ms: defaults::DEAD_AFTER_MS,
            force_promote_after_ms: defaults::FORCE_PROMOTE_AFTER_MS,
        }
    }
}

/// What a beat earns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeatVerdict {
    /// A lease of so many ms from the sending of the beat.
    Lease {
        /// How long.
        ms: u64,
    },
    /// Nothing: it was just found dead, which is not applied yet.
    Dying,
    /// Nothing yet: it is marked dead and answers again, so this command is to be proposed.
    Revive(Command),
    /// The metadata does not know this process: it has to register.
    Unregistered,
    /// This node does not lead (any more) in the term of the confirmation.
    NotLeading,
}

/// Why a promotion has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromoteWait {
    /// This node does not lead.
    NotLeading,
    /// The owner lives, or died another death than the one named: the command is pointless.
    NotThatDeath,
    /// The waiting time is not over.
    Silence {
        /// How long still, in ms.
        left_ms: u64,
    },
}

/// What the clock knows of one member.
#[derive(Clone, Copy, Debug)]
struct Heard {
    incarnation: NodeIncarnation,
    /// Latest sign of life, or when this leader began to wait for one.
    at: MonoMs,
    /// The death that was decided, by the count before it, until it is applied.
    dying: Option<DeathGeneration>,
}

/// The clock. It runs while this node leads.
#[derive(Clone, Debug)]
pub struct Liveness {
    times: LivenessTimes,
    leading: Option<RaftTerm>,
    heard: BTreeMap<NodeId, Heard>,
}

impl Liveness {
    /// A clock that stands.
    ///
    /// # Panics
    /// When the times do not keep their order; a configuration is checked before.
    #[must_use]
    pub fn new(times: LivenessTimes) -> Self {
        assert!(
            times.lease_ms + times.drift_ms < times.dead_after_ms
                && times.dead_after_ms < times.force_promote_after_ms,
            "an owner must have fenced itself before it counts as dead"
        );
        Self {
            times,
            leading: None,
            heard: BTreeMap::new(),
        }
    }

    /// This node begins to lead in `term`: every member is given its whole time anew.
    pub fn lead(&mut self, now: MonoMs, term: RaftTerm, state: &MetaState) {
        self.leading = Some(term);
        self.heard.clear();
        self.meet(now, state);
    }

    /// This node does not lead any more.
    pub fn follow(&mut self) {
        self.leading = None;
        self.heard.clear();
    }

    /// The term in which the clock runs.
    #[must_use]
    pub const fn leading(&self) -> Option<RaftTerm> {
        self.leading
    }

    /// A beat that arrived at `arrived`. A quorum round that began after its arrival has confirmed
    /// that this node leads in `term`, and `state` holds everything that was committed by then.
    pub fn beat(
        &mut self,
        arrived: MonoMs,
        term: RaftTerm,
        node: &NodeId,
        incarnation: NodeIncarnation,
        state: &MetaState,
    ) -> BeatVerdict {
        if self.leading != Some(term) {
            return BeatVerdict::NotLeading;
        }
        let Some(member) = state.members.get(node) else {
            return BeatVerdict::Unregistered;
        };
        if member.incarnation != incarnation {
            return BeatVerdict::Unregistered;
        }
        let heard = self.known(arrived, member);
        heard.at = heard.at.max(arrived);
        match member.status {
            MemberStatus::Dead => BeatVerdict::Revive(Command::MarkAlive {
                id: node.clone(),
                incarnation,
                deaths: member.deaths,
            }),
            MemberStatus::Alive if heard.dying.is_some() => BeatVerdict::Dying,
            MemberStatus::Alive => BeatVerdict::Lease {
                ms: self.times.lease_ms,
            },
        }
    }

    /// The deaths to propose now. A decided death is told again until it is applied.
    pub fn silent(&mut self, now: MonoMs, state: &MetaState) -> Vec<Command> {
        if self.leading.is_none() {
            return Vec::new();
        }
        self.meet(now, state);
        let dead_after_ms = self.times.dead_after_ms;
        let mut deaths = Vec::new();
        for member in state.members.values() {
            let heard = self.known(now, member);
            let decided = heard.dying.is_some() || now.since(heard.at) >= dead_after_ms;
            if member.status == MemberStatus::Dead || !decided {
                continue;
            }
            heard.dying = Some(member.deaths);
            deaths.push(Command::MarkDead {
                id: member.id.clone(),
                incarnation: member.incarnation,
                deaths: member.deaths,
            });
        }
        deaths
    }

    /// Whether a forced promotion over this death of `owner` may be proposed now.
    ///
    /// # Errors
    /// [`PromoteWait`]: it was not proposed.
    pub fn may_promote(
        &mut self,
        now: MonoMs,
        owner: &NodeId,
        deaths: DeathGeneration,
        state: &MetaState,
    ) -> Result<(), PromoteWait> {
        if self.leading.is_none() {
            return Err(PromoteWait::NotLeading);
        }
        let member = state
            .members
            .get(owner)
            .filter(|m| m.status == MemberStatus::Dead && m.deaths == deaths)
            .ok_or(PromoteWait::NotThatDeath)?;
        let silence = now.since(self.known(now, member).at);
        let left_ms = self.times.force_promote_after_ms.saturating_sub(silence);
        if left_ms > 0 {
            return Err(PromoteWait::Silence { left_ms });
        }
        Ok(())
    }

    /// Begins to wait for members that are new, and forgets those that are gone.
    fn meet(&mut self, now: MonoMs, state: &MetaState) {
        self.heard.retain(|id, _| state.members.contains_key(id));
        for member in state.members.values() {
            self.known(now, member);
        }
    }

    /// What is known of a member; a process that registered since is new.
    fn known(&mut self, now: MonoMs, member: &Member) -> &mut Heard {
        let fresh = Heard {
            incarnation: member.incarnation,
            at: now,
            dying: None,
        };
        let heard = self.heard.entry(member.id.clone()).or_insert(fresh);
        if heard.incarnation != member.incarnation {
            *heard = fresh;
        }
        // The decided death is applied, or another one was.
        if heard.dying.is_some_and(|deaths| deaths != member.deaths) {
            heard.dying = None;
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RaftIndex;
    use crate::meta::Reply;
    use alloc::string::String;

    const TERM: RaftTerm = RaftTerm(3);

    struct World {
        state: MetaState,
        index: u64,
        clock: Liveness,
    }

    impl World {
        fn new(nodes: &[&str]) -> Self {
            let mut world = Self {
                state: MetaState::default(),
                index: 0,
                clock: Liveness::new(LivenessTimes::default()),
            };
            for node in nodes {
                world.register(node, 1);
            }
            let state = world.state.clone();
            world.clock.lead(MonoMs(0), TERM, &state);
            world
        }

        fn apply(&mut self, command: &Command) -> Reply {
            self.index += 1;
            self.state.apply(RaftIndex(self.index), command)
        }

        fn register(&mut self, node: &str, incarnation: u64) {
            let command = Command::Register {
                id: id(node),
                addr: "h:1".into(),
                bulk_addr: "h:2".into(),
                http_addr: String::new(),
                incarnation: NodeIncarnation(incarnation),
                disk: 5,
                shards: 1,
                version: "1".into(),
            };
            assert!(matches!(self.apply(&command), Reply::Done { .. }));
        }

        fn beat(&mut self, at: u64, node: &str, incarnation: u64) -> BeatVerdict {
            let incarnation = NodeIncarnation(incarnation);
            self.clock
                .beat(MonoMs(at), TERM, &id(node), incarnation, &self.state)
        }

        fn silent(&mut self, at: u64) -> Vec<Command> {
            self.clock.silent(MonoMs(at), &self.state)
        }
    }

    fn id(node: &str) -> NodeId {
        NodeId(node.into())
    }

    fn dead(commands: &[Command]) -> Vec<&str> {
        let ids = commands.iter().map(|command| match command {
            Command::MarkDead { id, .. } => id.as_str(),
            other => panic!("not a death: {other:?}"),
        });
        ids.collect()
    }

    const LEASE: BeatVerdict = BeatVerdict::Lease {
        ms: defaults::MOVE_LEASE_MS,
    };

    #[test]
    fn silence_kills_after_the_whole_time_and_a_beat_begins_it_anew() {
        let mut world = World::new(&["a", "b"]);
        assert_eq!(world.beat(5_000, "a", 1), LEASE);
        assert!(world.silent(14_999).is_empty());
        assert_eq!(dead(&world.silent(15_000)), ["b"]);
        assert_eq!(dead(&world.silent(20_000)), ["a", "b"]);
    }

    #[test]
    fn nobody_gets_a_lease_between_the_decision_and_the_revival() {
        let mut world = World::new(&["a"]);
        let deaths = world.silent(15_000);
        // The beat comes before the death is applied.
        assert_eq!(world.beat(15_001, "a", 1), BeatVerdict::Dying);
        // The decision stands, and is told again until it is applied.
        assert_eq!(world.silent(15_500), deaths);
        world.apply(&deaths[0]);
        let BeatVerdict::Revive(revive) = world.beat(16_000, "a", 1) else {
            panic!("a dead member that beats is revived");
        };
        assert!(matches!(world.beat(16_500, "a", 1), BeatVerdict::Revive(_)));
        world.apply(&revive);
        assert_eq!(world.beat(17_000, "a", 1), LEASE);
        assert!(world.silent(17_500).is_empty());
    }

    #[test]
    fn another_process_than_the_registered_one_is_told_to_register() {
        let mut world = World::new(&["a"]);
        assert_eq!(world.beat(1, "a", 2), BeatVerdict::Unregistered);
        assert_eq!(world.beat(1, "x", 1), BeatVerdict::Unregistered);
        // Neither counts as a sign of life.
        assert_eq!(dead(&world.silent(15_000)), ["a"]);
    }

    #[test]
    fn a_new_leader_counts_from_its_own_beginning() {
        let mut world = World::new(&["a"]);
        let state = world.state.clone();
        world.clock.follow();
        assert!(world.silent(60_000).is_empty());
        assert_eq!(world.beat(60_000, "a", 1), BeatVerdict::NotLeading);
        world.clock.lead(MonoMs(60_000), RaftTerm(4), &state);
        assert!(world.silent(74_999).is_empty());
        // A confirmation of an earlier term earns nothing.
        assert_eq!(world.beat(61_000, "a", 1), BeatVerdict::NotLeading);
        assert_eq!(dead(&world.silent(75_000)), ["a"]);
    }

    #[test]
    fn a_registration_is_a_sign_of_life() {
        let mut world = World::new(&["a"]);
        assert!(world.silent(14_000).is_empty());
        world.register("a", 2);
        assert!(world.silent(16_000).is_empty());
        assert_eq!(dead(&world.silent(31_000)), ["a"]);
    }

    #[test]
    fn a_promotion_waits_for_the_whole_silence_of_that_death() {
        let mut world = World::new(&["a"]);
        let state = world.state.clone();
        let promote = |world: &mut World, at, deaths| {
            let state = world.state.clone();
            world
                .clock
                .may_promote(MonoMs(at), &id("a"), DeathGeneration(deaths), &state)
        };
        assert_eq!(
            promote(&mut world, 200_000, 0),
            Err(PromoteWait::NotThatDeath)
        );
        let deaths = world.silent(15_000);
        world.apply(&deaths[0]);
        assert_eq!(
            promote(&mut world, 119_000, 1),
            Err(PromoteWait::Silence { left_ms: 1_000 })
        );
        assert_eq!(promote(&mut world, 120_000, 1), Ok(()));
        assert_eq!(
            promote(&mut world, 120_000, 2),
            Err(PromoteWait::NotThatDeath)
        );
        // It answers once: the time begins anew, although it is still marked dead.
        assert!(matches!(
            world.beat(121_000, "a", 1),
            BeatVerdict::Revive(_)
        ));
        assert_eq!(
            promote(&mut world, 122_000, 1),
            Err(PromoteWait::Silence { left_ms: 119_000 })
        );
        world.clock.follow();
        assert_eq!(
            promote(&mut world, 900_000, 1),
            Err(PromoteWait::NotLeading)
        );
        world.clock.lead(MonoMs(900_000), RaftTerm(9), &state);
        assert_eq!(
            promote(&mut world, 900_000, 1),
            Err(PromoteWait::Silence { left_ms: 120_000 })
        );
    }
}
