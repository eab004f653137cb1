//! Tests of the leader's clocks: each rule by a case, the promise by random histories.

mod cluster;

use super::*;
use crate::meta::tests::*;

const T: Timings = Timings {
    heartbeat_ms: 10,
    lease_ms: 60,
    drift_ms: 10,
    dead_after_ms: 150,
    force_promote_after_ms: 1_200,
};

struct Leader {
    live: Liveness,
    world: World,
    now: u64,
    beats: u64,
}

impl Leader {
    fn new(nodes: u64) -> Self {
        let mut leader = Self {
            live: Liveness::new(T),
            world: World::new(nodes),
            now: 1_000,
            beats: 0,
        };
        leader.applied();
        assert!(
            leader
                .step(LivenessInput::Leading { term: RaftTerm(3) })
                .is_empty()
        );
        leader
    }

    fn step(&mut self, input: LivenessInput<'_>) -> Vec<LivenessEffect> {
        self.live.step(MonoMs(self.now), input)
    }

    fn applied(&mut self) -> Vec<LivenessEffect> {
        let state = self.world.state.clone();
        self.step(LivenessInput::Applied(&state))
    }

    fn beat(&mut self, number: u64) -> Vec<LivenessEffect> {
        let incarnation = self.world.state.members[&node(number)].incarnation;
        self.beats += 1;
        let beat = BeatId(self.beats);
        self.step(LivenessInput::Beat {
            beat,
            node: &node(number),
            incarnation,
        })
    }

    fn confirm(&mut self, effects: &[LivenessEffect]) -> Vec<LivenessEffect> {
        let [LivenessEffect::StartRound { round }] = effects else {
            panic!("no round in {effects:?}");
        };
        let commit = Some(self.world.state.applied);
        self.step(LivenessInput::Round {
            round: *round,
            commit,
        })
    }

    /// A beat, confirmed at once: the lease that it gets.
    fn heard(&mut self, number: u64) -> u64 {
        let effects = self.beat(number);
        let effects = self.confirm(&effects);
        let lease = effects.iter().find_map(|e| match e {
            LivenessEffect::Answer { lease_ms, .. } => Some(*lease_ms),
            _ => None,
        });
        lease.expect("answered")
    }

    fn tick(&mut self) -> Vec<LivenessEffect> {
        self.step(LivenessInput::Tick)
    }

    /// Ticks, letting the tick's own round succeed; what was proposed.
    fn proposals(&mut self) -> Vec<Command> {
        let mut effects = self.tick();
        let round = effects
            .iter()
            .position(|e| matches!(e, LivenessEffect::StartRound { .. }));
        if let Some(at) = round {
            let start = effects.remove(at);
            effects.extend(self.confirm(&[start]));
        }
        effects
            .into_iter()
            .map(|e| match e {
                LivenessEffect::Propose { command, .. } => command,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// Time passes in steps, with everybody but `silent` beating.
    fn pass(&mut self, ms: u64, silent: u64) -> Vec<Command> {
        let end = self.now + ms;
        let mut proposed = Vec::new();
        while self.now < end {
            self.now += 10;
            for number in 1..=self.world.state.members.len() as u64 {
                if number != silent {
                    self.heard(number);
                }
            }
            proposed.extend(self.proposals());
        }
        proposed
    }

    fn carry_out(&mut self, command: &Command) {
        let number = match command {
            Command::MarkDead { id, .. } | Command::MarkAlive { id, .. } => id.clone(),
            other => panic!("{other:?}"),
        };
        self.world.done(command.clone());
        let end = ProposalEnd::Logged(self.world.state.applied);
        self.step(LivenessInput::Proposed { node: number, end });
        self.applied();
    }
}

#[test]
fn a_beat_is_answered_by_a_round_that_started_after_it() {
    let mut l = Leader::new(2);
    let first = l.beat(1);
    let second = l.beat(2);
    assert!(second.is_empty(), "the round under way is too old for it");
    let effects = l.confirm(&first);
    assert!(matches!(
        effects[..],
        [
            LivenessEffect::Answer {
                beat: BeatId(1),
                lease_ms: 60,
                registered: true,
                term: RaftTerm(3),
                ..
            },
            LivenessEffect::StartRound { .. }
        ]
    ));
    let effects = l.confirm(&effects[1..]);
    assert!(matches!(
        effects[..],
        [LivenessEffect::Answer {
            beat: BeatId(2),
            ..
        }]
    ));
}

#[test]
fn r10_an_answer_waits_until_its_commit_index_is_applied_here() {
    let mut l = Leader::new(2);
    let effects = l.beat(1);
    let [LivenessEffect::StartRound { round }] = effects[..] else {
        panic!("{effects:?}");
    };
    let ahead = RaftIndex(l.world.state.applied.0 + 1);
    let commit = Some(ahead);
    assert!(l.step(LivenessInput::Round { round, commit }).is_empty());
    // What was committed before the round is the member's death.
    l.world.kill(1);
    let effects = l.applied();
    assert!(effects.iter().any(
        |e| matches!(e, LivenessEffect::Answer { commit, lease_ms: 0, .. } if *commit == ahead)
    ));
}

#[test]
fn a_failed_round_answers_nobody_and_rests_until_a_tick() {
    let mut l = Leader::new(2);
    let effects = l.beat(1);
    let [LivenessEffect::StartRound { round }] = effects[..] else {
        panic!("{effects:?}");
    };
    assert!(
        l.step(LivenessInput::Round {
            round,
            commit: None
        })
        .is_empty()
    );
    assert!(l.beat(2).is_empty());
    let effects = l.tick();
    let effects = l.confirm(&effects);
    assert_eq!(effects.len(), 2, "both are answered");
    // A late end of the failed round changes nothing.
    let commit = Some(RaftIndex(0));
    assert!(l.step(LivenessInput::Round { round, commit }).is_empty());
}

#[test]
fn silence_is_a_death_and_a_beat_a_revival() {
    let mut l = Leader::new(3);
    assert!(l.pass(140, 2).is_empty());
    let deaths = l.pass(10, 2);
    assert_eq!(deaths, [mark_dead(&l.world.state, 2)]);
    assert!(l.pass(50, 2).is_empty(), "proposed once");
    assert_eq!(l.heard(2), 0, "no lease while its death is under way");
    l.carry_out(&deaths[0]);
    // R11: the answer comes with no lease, the revival is proposed.
    let effects = l.beat(2);
    let effects = l.confirm(&effects);
    let [
        LivenessEffect::Propose { command, .. },
        LivenessEffect::Answer {
            lease_ms: 0,
            registered: true,
            ..
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(l.heard(2), 0, "not before it is committed");
    l.carry_out(&command.clone());
    assert_eq!(l.heard(2), 60);
}

#[test]
fn a_death_of_unknown_fate_is_repeated_and_gives_no_lease_meanwhile() {
    let mut l = Leader::new(3);
    let deaths = l.pass(150, 2);
    assert_eq!(deaths.len(), 1);
    let id = node(2);
    let end = ProposalEnd::Unknown;
    l.step(LivenessInput::Proposed {
        node: id.clone(),
        end,
    });
    assert_eq!(l.heard(2), 0);
    assert_eq!(l.proposals(), deaths, "the same command again");
    let end = ProposalEnd::NotProposed;
    l.step(LivenessInput::Proposed {
        node: id.clone(),
        end,
    });
    assert_eq!(l.heard(2), 60);
    // In the log but not applied here yet: still none.
    let deaths = l.pass(150, 2);
    assert_eq!(deaths.len(), 1);
    let end = ProposalEnd::Logged(RaftIndex(l.world.state.applied.0 + 1));
    l.step(LivenessInput::Proposed { node: id, end });
    assert_eq!(l.heard(2), 0);
    assert!(l.proposals().is_empty());
    l.world.done(deaths[0].clone());
    l.applied();
    assert_eq!(l.heard(2), 0, "dead");
}

#[test]
fn strangers_and_former_processes_are_told_to_register() {
    let mut l = Leader::new(2);
    for (id, incarnation) in [(node(9), 1), (node(1), 99)] {
        let effects = l.step(LivenessInput::Beat {
            beat: BeatId(77),
            node: &id,
            incarnation: NodeIncarnation(incarnation),
        });
        let effects = l.confirm(&effects);
        assert!(matches!(
            effects[..],
            [LivenessEffect::Answer {
                lease_ms: 0,
                registered: false,
                ..
            }]
        ));
    }
    // Nor do they keep the registered process alive.
    for _ in 0..15 {
        l.now += 10;
        l.heard(1);
        let effects = l.step(LivenessInput::Beat {
            beat: BeatId(78),
            node: &node(2),
            incarnation: NodeIncarnation(99),
        });
        l.confirm(&effects);
    }
    assert_eq!(l.proposals().len(), 1);
}

#[test]
fn a_new_leader_starts_its_clocks_anew() {
    let mut l = Leader::new(2);
    l.pass(140, 2);
    l.step(LivenessInput::Leading { term: RaftTerm(4) });
    assert!(l.pass(140, 2).is_empty());
    assert_eq!(l.pass(10, 2).len(), 1);
}

#[test]
fn a_leader_that_was_not_confirmed_blames_nobody() {
    // Stalled or without a quorum for long: nobody is declared dead at the first round after it.
    let mut l = Leader::new(3);
    l.heard(1);
    l.now += 10_000;
    let effects = l.tick();
    assert!(matches!(effects[..], [LivenessEffect::StartRound { .. }]));
    assert!(l.confirm(&effects).is_empty());
    assert!(l.proposals().is_empty());
    assert_eq!(l.pass(150, 2).len(), 1, "from then on it counts");
    // The same when it has never been confirmed since its election.
    let mut l = Leader::new(3);
    l.now += 10_000;
    assert!(l.proposals().is_empty());
    assert!(l.proposals().is_empty());
}

#[test]
fn a_promotion_waits_for_this_leaders_own_clock() {
    let mut l = Leader::new(2);
    let owner = node(2);
    let now = |l: &Leader| MonoMs(l.now);
    let deaths = l.pass(150, 2);
    let d = DeathGeneration(1);
    assert_eq!(
        l.live.may_promote(now(&l), &owner, d),
        Err(PromoteHold::NotDead)
    );
    l.carry_out(&deaths[0]);
    l.pass(1_040, 2);
    assert_eq!(
        l.live.may_promote(now(&l), &owner, d),
        Err(PromoteHold::Wait { left_ms: 10 })
    );
    assert_eq!(
        l.live.may_promote(now(&l), &owner, DeathGeneration(2)),
        Err(PromoteHold::NotDead)
    );
    l.pass(10, 2);
    assert_eq!(l.live.may_promote(now(&l), &owner, d), Ok(()));
    // Another leader has not waited.
    l.step(LivenessInput::Leading { term: RaftTerm(4) });
    assert!(matches!(
        l.live.may_promote(now(&l), &owner, d),
        Err(PromoteHold::Wait { left_ms: 1_200 })
    ));
    l.step(LivenessInput::Following);
    assert_eq!(
        l.live.may_promote(now(&l), &owner, d),
        Err(PromoteHold::NotLeading)
    );
    // A beat of the owner starts it anew.
    l.step(LivenessInput::Leading { term: RaftTerm(5) });
    l.pass(1_200, 2);
    assert_eq!(l.live.may_promote(now(&l), &owner, d), Ok(()));
    l.heard(2);
    assert!(l.live.may_promote(now(&l), &owner, d).is_err());
}

#[test]
fn who_does_not_lead_refuses_and_drops_what_waited() {
    let mut l = Leader::new(2);
    l.beat(1);
    l.beat(2);
    let effects = l.step(LivenessInput::Following);
    assert_eq!(effects.len(), 2);
    assert!(matches!(
        l.beat(1)[..],
        [LivenessEffect::Refuse { busy: false, .. }]
    ));
    assert!(l.tick().is_empty());
}

#[test]
fn waiting_beats_are_bounded() {
    let mut l = Leader::new(1);
    for _ in 0..BEATS_WAITING_MAX {
        l.beat(1);
    }
    assert!(matches!(
        l.beat(1)[..],
        [LivenessEffect::Refuse { busy: true, .. }]
    ));
}

#[test]
#[should_panic(expected = "fence nothing")]
fn timings_out_of_order_are_refused() {
    let _ = Liveness::new(Timings { lease_ms: 145, ..T });
}
