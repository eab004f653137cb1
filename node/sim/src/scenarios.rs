//! The hard cases by name.
//!
//! What this file keeps true: with every rule on each of them keeps every promise to its end; each
//! rule that one is about is needed in it.

use crate::action::{Action, How, Left, Span};
use crate::mutation::Mutation;
use crate::play::{At, Play, Scenario};

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "flip committed, its reply lost",
        about: &[Mutation::UnknownIsRejected],
        script: |play| {
            play.until(1, At::Flip)
                .act(Action::Work(1, 0, How::NoReply));
            if play.world.setup.mutation.is_some() {
                play.until(1, At::RollBack).act(Action::Work(1, 0, How::Ok));
            }
            play.apply(0);
        },
    },
    Scenario {
        name: "installed, the flip under way, and the target starts again",
        about: &[Mutation::R3],
        script: |play| {
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Late));
            play.act(Action::Crash(1, Left::Nothing))
                .act(Action::Restart(1))
                .act(Action::Confirm(1));
            if play.can(Action::Reclaim(1, 0, How::Ok)) {
                play.act(Action::Reclaim(1, 0, How::Ok));
            }
            play.act(Action::Commit(0));
        },
    },
    Scenario {
        name: "an append in flight while the owner is promoted over",
        about: &[Mutation::NoLeaseBeforeAck, Mutation::R8],
        script: |play| {
            play.until(1, At::Refresh).act(Action::Produce(0, 0)).die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
            play.act(Action::Ack(0, 0));
        },
    },
    Scenario {
        name: "the copy does not reach what the dead owner had told",
        about: &[Mutation::PromoteWithoutGate],
        script: |play| {
            play.append(0);
            play.until(1, At::Pass);
            play.die(0);
            if play.world.setup.mutation.is_some() {
                play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
                play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
            }
        },
    },
    Scenario {
        name: "moved back, and the deletion of the first copy comes again",
        about: &[Mutation::R2],
        script: |play| {
            play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
            play.apply(0)
                .act(Action::Salvage(0, 0))
                .act(Action::Reclaim(0, 0, How::Ok));
            play.act(Action::MoveTo(0, 0)).apply(0).apply(1);
            play.until(0, At::Serve).act(Action::DeleteAgain(0, 0));
        },
    },
    Scenario {
        name: "moved back before the old copy's own records are saved",
        about: &[Mutation::R1],
        script: |play| {
            play.until(1, At::Refresh).append(0).die(0);
            play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
            play.act(Action::Heal(0)).act(Action::Advance(Span::Lease));
            if play.can(Action::MoveTo(0, 0)) {
                play.act(Action::MoveTo(0, 0));
            }
            play.apply(0).apply(1);
            if play.world.setup.mutation.is_some() {
                play.until(0, At::Flip).act(Action::Work(0, 0, How::Ok));
            }
        },
    },
    Scenario {
        name: "a late promotion of an earlier death",
        about: &[Mutation::R6],
        script: |play| {
            play.until(1, At::Refresh).die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Late));
            play.act(Action::Heal(0))
                .act(Action::Advance(Span::Lease))
                .apply(0)
                .apply(1);
            play.until(1, At::RollBack).act(Action::Work(1, 0, How::Ok));
            play.append(0);
            play.die(0).act(Action::Commit(0));
        },
    },
    Scenario {
        name: "promoted over twice: both old owners come back",
        about: &[Mutation::R7],
        script: |play| {
            play.until(1, At::Refresh).append(0).die(0);
            play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
            play.act(Action::Heal(0)).act(Action::Advance(Span::Lease));
            play.act(Action::MoveTo(0, 2)).apply(1).apply(2);
            play.act(Action::Advance(Span::Second));
            play.until(2, At::Refresh).append(1).die(1);
            play.until(2, At::Serve).act(Action::Work(2, 0, How::Ok));
        },
    },
    Scenario {
        name: "a record that is acked after it was copied as hidden, then a promotion",
        about: &[Mutation::R9],
        script: |play| {
            play.act(Action::Produce(0, 0)).act(Action::Written(0, 0));
            play.until(1, At::Refresh).act(Action::Ack(0, 0));
            play.die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
        },
    },
    Scenario {
        name: "a hidden tail is moved and stays hidden",
        about: &[Mutation::R9],
        script: |play| {
            play.act(Action::Produce(0, 0)).act(Action::SyncFails(0, 0));
            play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
            play.apply(0);
            play.act(Action::Salvage(0, 0));
        },
    },
    Scenario {
        name: "an old owner that lags gets a heartbeat's answer",
        about: &[Mutation::R10],
        script: |play| {
            play.until(1, At::Refresh).die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
            play.act(Action::Heal(0)).act(Action::Advance(Span::Lease));
            if play.world.may_append(0, 0) {
                play.append(0);
            }
        },
    },
    Scenario {
        name: "a dead node's heartbeat is answered before its revival",
        about: &[Mutation::R11],
        script: |play| {
            play.until(1, At::Refresh).die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Late));
            play.act(Action::Heal(0)).apply(0);
            play.act(Action::Beat(0, 2, How::Late));
            if play.world.may_append(0, 0) {
                play.act(Action::Produce(0, 0))
                    .act(Action::Commit(0))
                    .act(Action::Ack(0, 0));
            }
        },
    },
    Scenario {
        name: "told in an earlier move, the owner dies before this one reaches it",
        about: &[Mutation::R12],
        script: |play| {
            play.until(1, At::Refresh)
                .act(Action::CancelMove(0))
                .apply(0)
                .apply(1);
            play.act(Action::Work(1, 0, How::Lost));
            if play.can(Action::Work(1, 0, How::Ok)) {
                play.act(Action::Work(1, 0, How::Ok));
            }
            play.act(Action::Cut(0)).act(Action::MoveTo(0, 1)).apply(1);
            play.until(1, At::Open).waited_out();
            if play.world.setup.mutation.is_some() {
                play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
            }
            play.append(0);
        },
    },
    Scenario {
        name: "an owner that forgot its session is promoted over",
        about: &[Mutation::R13],
        script: |play| {
            play.until(1, At::Refresh)
                .act(Action::Crash(0, Left::Nothing))
                .act(Action::Restart(0));
            play.act(Action::Confirm(0)).apply(0).apply(1).die(0);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
            if play.world.may_append(0, 0) {
                play.append(0);
            }
        },
    },
    Scenario {
        name: "another target while the owner is dead",
        about: &[Mutation::R14],
        script: |play| {
            play.until(1, At::Refresh).act(Action::Cut(0));
            play.act(Action::Advance(Span::Ttl))
                .act(Action::Advance(Span::Ttl));
            play.act(Action::MoveTo(0, 2)).apply(1).apply(2);
            play.absent = Some(0);
        },
    },
    Scenario {
        name: "staged in another history",
        about: &[Mutation::R4],
        script: |play| {
            // Node 1 stages a hidden record that the promotion of node 2 does not have.
            play.act(Action::MoveTo(0, 2)).apply(0).apply(1).apply(2);
            play.until(2, At::Refresh);
            play.act(Action::Produce(0, 0)).act(Action::Written(0, 0));
            play.act(Action::MoveTo(0, 1)).apply(0).apply(1).apply(2);
            play.until(1, At::Refresh);
            play.act(Action::MoveTo(0, 2)).apply(0).apply(1).apply(2);
            play.until(2, At::Pass).die(0);
            play.until(2, At::Serve)
                .act(Action::Work(2, 0, How::Ok))
                .append(2);
            play.act(Action::MoveTo(0, 1)).apply(1).apply(2);
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
        },
    },
    Scenario {
        name: "the leader is the owner and is cut off",
        about: &[Mutation::DeposedLeaderAnswers],
        script: |play| {
            play.act(Action::Elect(0))
                .apply(1)
                .apply(2)
                .act(Action::StepDown(2));
            play.until(1, At::Refresh)
                .act(Action::Cut(0))
                .act(Action::Elect(2));
            play.apply(1).apply(2).waited_out();
            play.act(Action::Beat(0, 0, How::Ok));
            play.until(1, At::Flip).act(Action::Work(1, 0, How::Ok));
            if play.world.may_append(0, 0) {
                play.append(0);
            }
        },
    },
];

/// Plays one; what it broke.
#[must_use]
pub fn play(
    scenario: &Scenario,
    mutation: Option<Mutation>,
) -> (Option<crate::check::Violation>, usize) {
    let setup = crate::setup::Setup {
        mutation,
        ..crate::play::stage()
    };
    let mut play = Play::new(setup);
    (scenario.script)(&mut play);
    let (violation, _, actions) = play.end();
    (violation, actions.len())
}
