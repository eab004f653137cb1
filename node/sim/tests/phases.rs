//! Every disturbance at every phase of a move, and every pair of them.
//!
//! What this file keeps true: whatever disturbs a move wherever, and whatever comes on top of it a
//! few steps later, no promise is broken and the move ends.

use narad_sim::action::{Action, How, Left, Span};
use narad_sim::play::{At, Play, stage};
use narad_sim::setup::Setup;

const PHASES: [At; 9] = [
    At::Open,
    At::Pass,
    At::Refresh,
    At::Begin,
    At::Freeze,
    At::Drain,
    At::Install,
    At::Flip,
    At::Serve,
];

/// Disturbances; what is not possible at a moment is left out.
fn disturbances() -> Vec<Vec<Action>> {
    let mut all = vec![
        vec![Action::CancelMove(0)],
        vec![Action::CancelMove(0), Action::CancelMove(0)],
        vec![Action::MoveTo(0, 2)],
        vec![Action::DeleteTopic],
        vec![Action::DeleteTopic, Action::CreateTopic],
        vec![Action::Drain(1)],
        vec![Action::Drain(0)],
        vec![Action::Advance(Span::Ttl), Action::Tick(0, 0, How::Ok)],
        vec![Action::Advance(Span::Ttl), Action::Tick(0, 0, How::Late)],
        vec![Action::Redo, Action::Commit(0)],
        vec![Action::Produce(0, 0)],
        vec![
            Action::Produce(0, 0),
            Action::SyncFails(0, 0),
            Action::Reopen(0, 0),
        ],
    ];
    for how in [
        How::Lost,
        How::NoReply,
        How::Twice,
        How::Late,
        How::Half,
        How::Corrupt,
    ] {
        all.push(vec![Action::Work(1, 0, how)]);
    }
    for how in [How::Fail, How::FailDone] {
        all.push(vec![Action::Work(1, 0, how)]);
    }
    for n in 0..3 {
        let back = [Action::Restart(n), Action::Confirm(n)];
        let away = [Action::Advance(Span::Ttl), Action::Advance(Span::Ttl)];
        for left in [Left::Nothing, Left::All, Left::Torn(3)] {
            all.push([&[Action::Crash(n, left)][..], &back].concat());
        }
        all.push([&[Action::Crash(n, Left::Nothing)][..], &away, &back].concat());
        all.push(vec![Action::Cut(n)]);
        all.push([&[Action::Cut(n)][..], &away].concat());
        all.push(vec![Action::Mute(n), Action::Advance(Span::Lease)]);
        all.push(vec![Action::Elect(n), Action::StepDown(2)]);
    }
    all
}

fn setup(preload: u32, segment: u64) -> Setup {
    Setup {
        preload,
        segment,
        ..stage()
    }
}

fn disturb(play: &mut Play, actions: &[Action]) {
    for action in actions {
        play.may(*action);
        for n in 0..play.world.nodes.len() {
            play.apply(n);
        }
    }
}

/// Plays to a phase, disturbs, goes on a little, disturbs again, and ends.
fn disturbed(
    setup: &Setup,
    at: At,
    one: &[Action],
    steps: usize,
    two: &[Action],
) -> Option<String> {
    let mut play = Play::new(setup.clone());
    play.until(1, at);
    disturb(&mut play, one);
    play.go_on(1, steps);
    disturb(&mut play, two);
    let (violation, _, actions) = play.end();
    violation.map(|violation| format!("{violation} after {actions:?}"))
}

#[test]
fn a_disk_that_fails_once_under_the_staging_costs_a_try_and_not_the_move() {
    for at in [At::Prepare, At::Finish] {
        for left in [0, 2] {
            let mut play = Play::new(setup(4, 2));
            play.until(1, at).act(Action::Work(1, 0, How::Fail));
            for _ in 0..left {
                play.may(Action::Produce(0, 0)).may(Action::Ack(0, 0));
            }
            let (violation, world, actions) = play.end();
            assert!(
                violation.is_none(),
                "{at:?}: {violation:?} after {actions:?}"
            );
            assert_eq!(world.count.flips, 1, "{at:?}");
        }
    }
}

#[test]
fn an_owner_that_only_its_target_reaches_is_promoted_over_whatever_the_phase() {
    for at in [
        At::Open,
        At::Pass,
        At::Refresh,
        At::Prepare,
        At::Begin,
        At::Freeze,
    ] {
        let mut play = Play::new(setup(4, 2));
        // In this move it was reached.
        if at == At::Open {
            play.until(1, At::Refresh)
                .act(Action::Work(1, 0, How::Lost));
        }
        play.until(1, at).act(Action::Mute(0)).waited_out();
        play.absent = Some(0);
        let (violation, world, actions) = play.end();
        assert!(
            violation.is_none(),
            "{at:?}: {violation:?} after {actions:?}"
        );
        let moved = world.count.promotions + world.count.flips;
        assert_eq!(moved, 1, "{at:?} after {actions:?}");
    }
}

#[test]
fn an_owner_that_is_given_up_at_any_phase_loses_no_acked_record_in_the_end() {
    let phases = [&PHASES[..], &[At::Prepare, At::Finish]].concat();
    for at in phases {
        // With the third node drained the heir is the target; it hears of it before its next step, or after.
        for (drained, first) in [(false, true), (true, true), (true, false)] {
            let mut play = Play::new(setup(4, 2));
            play.until(1, at).act(Action::Cut(0));
            for span in [Span::Ttl, Span::Ttl] {
                play.act(Action::Advance(span));
            }
            if drained {
                play.act(Action::Drain(2));
            }
            play.act(Action::GiveUp(0));
            if first {
                play.apply(1);
            }
            play.go_on(1, 4);
            let owner = play.world.view(0).map(|view| view.owner.clone());
            assert!(!drained || owner == Some(play.world.nodes[1].id.clone()));
            let (violation, _, actions) = play.end();
            assert!(
                violation.is_none(),
                "{at:?}: {violation:?} after {actions:?}"
            );
        }
    }
}

#[test]
fn every_disturbance_at_every_phase() {
    let mut played = 0;
    for (preload, segment) in [(1, 1_000), (4, 2)] {
        let setup = setup(preload, segment);
        for at in PHASES {
            for one in disturbances() {
                if let Some(why) = disturbed(&setup, at, &one, 0, &[]) {
                    panic!("{at:?}, {one:?}: {why}");
                }
                played += 1;
            }
        }
    }
    println!("{played} disturbed moves");
}

#[test]
fn every_pair_of_disturbances() {
    let mut played = 0;
    let setup = setup(1, 1_000);
    for at in PHASES {
        for one in disturbances() {
            for two in disturbances() {
                for steps in [0, 2, 5] {
                    if let Some(why) = disturbed(&setup, at, &one, steps, &two) {
                        panic!("{at:?}, {one:?}, {steps} steps, {two:?}: {why}");
                    }
                    played += 1;
                }
            }
        }
    }
    println!("{played} moves disturbed twice");
}

#[test]
fn a_partition_that_was_never_opened_moves() {
    let setup = setup(0, 1_000);
    let mut play = Play::new(setup);
    play.act(Action::Mark(0, 0, How::Ok));
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!(world.count.flips, 1);
}

#[test]
fn what_retention_took_is_not_copied_and_what_was_staged_of_it_is_dropped() {
    let mut play = Play::new(setup(4, 1));
    play.until(1, At::Refresh)
        .act(Action::CancelMove(0))
        .apply(0)
        .apply(1);
    play.go_on(1, 3)
        .act(Action::Retain(0, 0))
        .act(Action::Retain(0, 0));
    play.act(Action::MoveTo(0, 1)).apply(0).apply(1);
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    let copies = &world.nodes[1].parts[0].copies;
    let copy = copies.values().next().expect("moved");
    assert_eq!((copy.start, copy.end()), (2, 4));
}

#[test]
fn a_target_that_starts_again_does_not_copy_again_what_it_has() {
    let mut play = Play::new(setup(4, 1));
    play.until(1, At::Refresh).append(0).append(0);
    play.act(Action::Crash(1, Left::Nothing))
        .act(Action::Restart(1))
        .act(Action::Confirm(1));
    play.until(1, At::Pass);
    let worker = play.world.nodes[1].parts[0]
        .worker
        .as_ref()
        .expect("goes on");
    let narad_core::moves::target::TargetEffect::CopyRanges { ranges, .. } =
        worker.pending.as_ref().expect("copies")
    else {
        panic!("not a pass");
    };
    assert_eq!(ranges.len(), 2, "only the two new segments of six");
    assert_eq!(play.end().0, None);
}

#[test]
fn a_restarted_owner_stays_frozen_until_the_flip_is_applied() {
    let mut play = Play::new(setup(2, 1_000));
    play.until(1, At::Flip);
    play.act(Action::Crash(0, Left::Nothing))
        .act(Action::Restart(0))
        .act(Action::Confirm(0));
    assert!(!play.world.may_append(0, 0));
    play.act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!(world.count.flips, 1);
}

#[test]
fn a_draining_target_and_the_controller_do_not_take_turns() {
    let mut play = Play::new(setup(1, 1_000));
    play.until(1, At::Begin)
        .act(Action::Drain(1))
        .apply(0)
        .apply(1);
    // The permission to freeze would be cancelled by the next pass of the controller.
    play.go_on(1, 4);
    let target = play.world.view(0).and_then(|view| view.target.clone());
    assert_eq!(target.and_then(|target| target.handoff), None);
    assert_eq!(play.end().0, None);
}

#[test]
fn a_target_whose_disk_is_full_gives_its_slot_up() {
    let mut play = Play::new(setup(2, 1_000));
    for _ in 0..7 {
        play.until(1, At::Pass)
            .act(Action::Work(1, 0, How::NoRoom))
            .apply(0);
        if play.can(Action::Work(1, 0, How::Ok)) {
            break;
        }
    }
    play.act(Action::Work(1, 0, How::Ok)).apply(0).apply(1);
    let target = play.world.view(0).and_then(|view| view.target.clone());
    assert_eq!(target, None, "the slot is free");
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!(world.count.flips, 0);
}

#[test]
fn a_partition_that_retention_has_emptied_moves() {
    let mut play = Play::new(Setup {
        moves: Vec::new(),
        ..setup(4, 1)
    });
    for _ in 0..3 {
        play.act(Action::Retain(0, 0));
    }
    // The last one is sealed by the next append, and goes as well.
    play.append(0).act(Action::Retain(0, 0));
    play.act(Action::MoveTo(0, 1)).apply(0).apply(1);
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    let copy = world.nodes[1].parts[0].copies.values().next();
    assert_eq!(copy.map(|copy| copy.start), Some(4));
}

#[test]
fn nothing_that_is_being_copied_is_taken_by_retention() {
    let mut play = Play::new(setup(4, 1));
    play.until(1, At::Pass);
    assert!(!play.can(Action::Retain(0, 0)), "the session holds it");
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    assert_eq!(play.end().0, None);
}

#[test]
fn a_freeze_whose_time_passes_is_cancelled_the_source_grows_and_the_move_tries_again() {
    let mut play = Play::new(setup(2, 1_000));
    play.until(1, At::Flip);
    play.act(Action::Advance(Span::Ttl))
        .act(Action::Tick(0, 0, How::Ok))
        .apply(0);
    play.append(0).append(0);
    // It is refused, taken back, and the next capture has what the source took since.
    play.act(Action::Work(1, 0, How::Ok));
    play.until(1, At::RollBack).act(Action::Work(1, 0, How::Ok));
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!((world.count.flips, world.count.rollbacks), (1, 1));
    let copy = world.nodes[1].parts[0].copies.values().next();
    assert_eq!(copy.map(narad_sim::disk::Copy::end), Some(4));
}

#[test]
fn an_isolated_owner_is_fenced_before_it_is_promoted_over_and_its_tail_comes_back() {
    let mut play = Play::new(setup(2, 1_000));
    play.until(1, At::Refresh).append(0);
    play.act(Action::Cut(0)).act(Action::Advance(Span::Lease));
    assert!(!play.world.may_append(0, 0), "its lease has run out");
    assert!(!play.world.marked_dead(0), "and nobody calls it dead yet");
    play.waited_out();
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!(world.count.promotions, 1);
    let copy = world.nodes[1].parts[0].copies.values().next();
    assert!(copy.is_some_and(|copy| copy.segments.iter().count() == 3));
}

#[test]
fn a_target_that_dies_or_drains_is_replaced_by_the_controller() {
    let four = || Setup {
        nodes: 4,
        partitions: 5,
        moves: Vec::new(),
        allow: narad_sim::setup::Allow {
            plan: true,
            drain: vec![0, 1, 2, 3],
            crash: vec![0, 1, 2, 3],
            ..stage().allow
        },
        ..setup(1, 1_000)
    };
    for dies in [true, false] {
        let mut play = Play::new(four());
        // Drained off, so that the controller chooses who takes its partitions.
        play.act(Action::Drain(0)).act(Action::Plan(How::Ok));
        let target = |play: &Play| play.world.view(0).and_then(|view| view.target.clone());
        let first = target(&play).expect("planned").node;
        let n = play.world.index_of(&first);
        for node in 0..4 {
            play.apply(node);
        }
        if dies {
            play.act(Action::Crash(n, Left::Nothing));
            play.act(Action::Advance(Span::Ttl))
                .act(Action::Advance(Span::Ttl));
        } else {
            play.act(Action::Drain(n));
        }
        play.may(Action::Plan(How::Ok)).may(Action::Plan(How::Ok));
        let next = target(&play).map(|target| target.node);
        assert!(next.as_ref() != Some(&first), "{first} keeps its slot");
        assert!(next.is_some(), "somebody else takes it");
        assert_eq!(play.end().0, None);
    }
}

#[test]
fn a_leader_that_lags_plans_and_destroys_nothing() {
    let mut play = Play::new(Setup {
        nodes: 4,
        partitions: 5,
        moves: Vec::new(),
        allow: narad_sim::setup::Allow {
            plan: true,
            drain: vec![0, 1, 2, 3],
            ..stage().allow
        },
        ..setup(1, 1_000)
    });
    // A drain that is planned, carried out and taken back, while node 3 applies nothing of it.
    play.act(Action::Drain(0));
    play.act(Action::Apply(3));
    play.act(Action::Plan(How::Ok)).act(Action::Drain(0));
    let before = play.world.last().clone();
    play.act(Action::StalePlan(3));
    let after = play.world.last();
    assert_eq!(
        after.topics, before.topics,
        "what is out of date is refused"
    );
    assert_eq!(play.end().0, None);
}

#[test]
fn a_partition_written_as_fast_as_it_is_copied_ends_bounded() {
    let mut play = Play::new(Setup {
        record_bytes: 20 << 20,
        ..setup(2, 1_000)
    });
    let mut passes = 0;
    let stall = loop {
        play.until(1, At::Pass).append(0);
        play.act(Action::Work(1, 0, How::Ok));
        passes += 1;
        assert!(passes <= 20, "it goes on for ever");
        play.go_on(1, 1);
        let worker = play.world.nodes[1].parts[0].worker.as_ref();
        let progress = worker.expect("runs").machine.progress();
        if let Some(stall) = progress.stall {
            break stall;
        }
    };
    println!("not converged after {passes} passes: {stall:?}");
    play.until(1, At::Serve).act(Action::Work(1, 0, How::Ok));
    let (violation, world, _) = play.end();
    assert_eq!(violation, None);
    assert_eq!(world.count.flips, 1);
}
