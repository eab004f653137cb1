//! Random histories of two would-be leaders: no promotion is allowed while a lease runs.

use super::*;
use crate::testing::Rng;
use alloc::vec;
use alloc::vec::Vec;

/// Two would-be leaders; at any time at most one can be confirmed and can commit. Messages take
/// any time, deposed leaders go on answering what they may.
struct Cluster {
    rng: Rng,
    world: World,
    now: u64,
    leaders: [Liveness; 2],
    /// Which leader the quorum follows, since when.
    real: usize,
    since: u64,
    /// Rounds under way: leader, round, start.
    rounds: Vec<(usize, RoundId, u64)>,
    /// Beats under way: leader, arrives at, sent at, sender.
    beats: Vec<(usize, u64, u64, u64)>,
    waiting: alloc::collections::BTreeMap<(usize, BeatId), (u64, u64)>,
    proposals: Vec<(usize, NodeId, Command)>,
    leases: [u64; 4],
    next_beat: u64,
    promotions_allowed: u64,
    deaths: u64,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut cluster = Self {
            rng: Rng::new(seed),
            world: World::new(3),
            now: 1_000,
            leaders: [Liveness::new(T), Liveness::new(T)],
            real: 0,
            since: 1_000,
            rounds: vec![],
            beats: vec![],
            waiting: Default::default(),
            proposals: vec![],
            leases: [0; 4],
            next_beat: 0,
            promotions_allowed: 0,
            deaths: 0,
        };
        cluster.catch_up(0);
        cluster.catch_up(1);
        cluster.feed(0, LivenessInput::Leading { term: RaftTerm(1) });
        cluster
    }

    fn catch_up(&mut self, leader: usize) {
        let state = self.world.state.clone();
        self.feed(leader, LivenessInput::Applied(&state));
    }

    fn feed(&mut self, leader: usize, input: LivenessInput<'_>) {
        for effect in self.leaders[leader].step(MonoMs(self.now), input) {
            match effect {
                LivenessEffect::Answer { beat, lease_ms, .. } => {
                    let (sent, sender) = self.waiting.remove(&(leader, beat)).expect("waits");
                    // The sender takes it as early as it may: nothing checks R10 here.
                    let until = &mut self.leases[sender as usize];
                    if lease_ms > 0 {
                        *until = (*until).max(sent + lease_ms);
                    }
                }
                LivenessEffect::Refuse { beat, .. } => {
                    self.waiting.remove(&(leader, beat));
                }
                LivenessEffect::StartRound { round } => {
                    self.rounds.push((leader, round, self.now));
                }
                LivenessEffect::Propose { node, command } => {
                    self.proposals.push((leader, node, command));
                }
            }
        }
    }

    fn change_leader(&mut self) {
        let (old, new) = (self.real, 1 - self.real);
        self.real = new;
        self.since = self.now;
        // Whoever is elected has everything committed; the old one may not know yet.
        self.catch_up(new);
        let term = RaftTerm(self.now);
        self.feed(new, LivenessInput::Leading { term });
        if self.rng.chance(50) {
            self.feed(old, LivenessInput::Following);
        }
    }

    fn end_round(&mut self) {
        if self.rounds.is_empty() {
            return;
        }
        let at = self.rng.below(self.rounds.len());
        let (leader, round, started) = self.rounds.swap_remove(at);
        let confirmed = leader == self.real && started >= self.since && self.rng.chance(90);
        let commit = confirmed.then_some(self.world.state.applied);
        self.feed(leader, LivenessInput::Round { round, commit });
    }

    fn end_proposal(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        let at = self.rng.below(self.proposals.len());
        let (leader, id, command) = self.proposals.swap_remove(at);
        let logged = leader == self.real && self.rng.chance(80);
        if logged {
            let done = matches!(self.world.apply(&command), crate::meta::Reply::Done { .. });
            self.deaths += u64::from(done && matches!(command, Command::MarkDead { .. }));
        }
        let end = match (logged, self.rng.chance(80)) {
            (_, false) => ProposalEnd::Unknown,
            (true, true) => ProposalEnd::Logged(self.world.state.applied),
            (false, true) => ProposalEnd::NotProposed,
        };
        self.feed(leader, LivenessInput::Proposed { node: id, end });
    }

    fn step(&mut self, silent: u64) {
        self.now += self.rng.below(12) as u64;
        for sender in 1..=3 {
            if sender != silent && self.rng.chance(60) {
                let to = self.rng.below(2);
                let delay = self.rng.below(40) as u64;
                self.beats.push((to, self.now + delay, self.now, sender));
            }
        }
        while let Some(at) = self.beats.iter().position(|b| b.1 <= self.now) {
            let (to, _, sent, sender) = self.beats.swap_remove(at);
            self.next_beat += 1;
            let beat = BeatId(self.next_beat);
            self.waiting.insert((to, beat), (sent, sender));
            let incarnation = NodeIncarnation(sender * 100);
            let node = &node(sender);
            self.feed(
                to,
                LivenessInput::Beat {
                    beat,
                    node,
                    incarnation,
                },
            );
        }
        for leader in 0..2 {
            self.feed(leader, LivenessInput::Tick);
            if self.rng.chance(50) {
                self.catch_up(leader);
            }
        }
        for _ in 0..3 {
            self.end_round();
            self.end_proposal();
        }
        if self.rng.chance(1) && self.rng.chance(15) {
            self.change_leader();
        }
        self.check();
    }

    fn check(&mut self) {
        for owner in 1..=3 {
            let member = &self.world.state.members[&node(owner)];
            let (deaths, status) = (member.deaths, member.status);
            // Only what the real leader proposes commits, and only over the death that stands.
            let allowed = self.leaders[self.real]
                .may_promote(MonoMs(self.now), &node(owner), deaths)
                .is_ok();
            if allowed && status == MemberStatus::Dead {
                self.promotions_allowed += 1;
                assert!(
                    self.leases[owner as usize] + T.drift_ms < self.now,
                    "n{owner} holds a lease until {} at {}",
                    self.leases[owner as usize],
                    self.now
                );
            }
        }
    }
}

#[test]
fn no_promotion_is_allowed_while_any_lease_of_the_owner_runs() {
    let mut allowed = 0;
    let mut deaths = 0;
    for seed in 0..60 {
        let mut cluster = Cluster::new(seed);
        let mut silent = 0;
        for step in 0..3_000 {
            if step % 450 == 0 {
                silent = cluster.rng.below(4) as u64;
            }
            cluster.step(silent);
        }
        allowed += cluster.promotions_allowed;
        deaths += cluster.deaths;
    }
    assert!(allowed > 1_000 && deaths > 60, "{allowed} {deaths}");
}
