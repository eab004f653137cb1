//! From the flip on: lost answers, refusals, roll-backs, restarts, ends.

use super::*;

#[test]
fn a_lost_answer_to_the_flip_is_asked_for_until_it_is_known() {
    let mut w = Worker::flipping();
    assert_eq!(
        w.one(TargetInput::Proposed(ProposeOutcome::Unknown)),
        TargetEffect::QueryBarrier
    );
    for _ in 0..50 {
        assert!(matches!(
            w.one(TargetInput::Barrier(None)),
            TargetEffect::Wait { .. }
        ));
        assert_eq!(w.one(TargetInput::Timer), TargetEffect::QueryBarrier);
    }
    assert_eq!(
        w.one(confirmed(Some(flipped()))),
        TargetEffect::Serve { copy: next() }
    );
}

#[test]
fn a_flip_that_is_still_open_is_proposed_again() {
    let mut w = Worker::flipping();
    w.one(TargetInput::Proposed(ProposeOutcome::Unknown));
    w.one(confirmed(Some(view(Some(20)))));
    assert!(matches!(
        w.one(TargetInput::Timer),
        TargetEffect::Propose(Command::CompleteMove { .. })
    ));
}

#[test]
fn a_refused_flip_goes_back_into_staging_and_keeps_the_target() {
    let mut w = Worker::flipping();
    w.one(TargetInput::Proposed(ProposeOutcome::Refused(
        Refusal::OtherHandoff { current: None },
    )));
    assert_eq!(
        w.one(confirmed(Some(view(None)))),
        TargetEffect::RollBack { copy: next() }
    );
    assert!(matches!(
        w.one(TargetInput::RolledBack),
        TargetEffect::Wait { .. }
    ));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenStaging);
    assert_eq!(w.ready(104), TargetEffect::OpenSource);
    assert_eq!(
        w.opened(110),
        TargetEffect::CheckPrefixes {
            staged: staged(104)
        }
    );
}

#[test]
fn a_duplicate_of_an_applied_flip_is_recognised_as_success() {
    let mut w = Worker::flipping();
    w.one(TargetInput::Proposed(ProposeOutcome::Refused(
        Refusal::NotOwner {
            owner: node("b"),
            epoch: Epoch(5),
        },
    )));
    assert_eq!(
        w.one(confirmed(Some(flipped()))),
        TargetEffect::Serve { copy: next() }
    );
}

#[test]
fn a_move_that_is_replaced_stops_its_copy_and_ends() {
    let mut w = Worker::begun();
    w.opened(100);
    let mut other = view(None);
    other.target = None;
    assert_eq!(w.applied(11, Some(other)), vec![TargetEffect::Interrupt]);
    assert_eq!(w.one(TargetInput::Interrupted), TargetEffect::CloseSource);
    assert_eq!(
        w.one(TargetInput::SourceClosed),
        TargetEffect::Done {
            outcome: MoveOutcome::Superseded
        }
    );
}

#[test]
fn a_deleted_topic_takes_the_installed_copy_back_and_ends() {
    let mut w = Worker::flipping();
    assert_eq!(w.applied(30, None), vec![], "the flip's answer comes first");
    w.one(TargetInput::Proposed(ProposeOutcome::Unknown));
    assert_eq!(
        w.one(confirmed(None)),
        TargetEffect::RollBack { copy: next() }
    );
    assert_eq!(w.one(TargetInput::RolledBack), TargetEffect::CloseSource);
    assert_eq!(
        w.one(TargetInput::SourceClosed),
        TargetEffect::Done {
            outcome: MoveOutcome::TopicGone
        }
    );
}

#[test]
fn a_start_with_an_installed_copy_asks_before_anything_else() {
    let found = FoundInstalled {
        copy: next(),
        mark: InstallMark {
            move_id: MoveId(10),
            handoff_id: Some(HandoffId(20)),
        },
        end: Offset(104),
        hwm: Offset(104),
    };
    let make = || {
        Worker(TargetMove::found_installed(
            node("b"),
            found,
            RaftIndex(20),
            Some(&view(Some(20))),
        ))
    };
    let mut w = make();
    assert_eq!(w.one(TargetInput::Start), TargetEffect::QueryBarrier);
    assert_eq!(
        w.one(confirmed(Some(flipped()))),
        TargetEffect::Serve { copy: next() }
    );
    let mut w = make();
    w.one(TargetInput::Start);
    w.one(confirmed(Some(view(Some(20)))));
    assert_eq!(
        w.one(TargetInput::Timer),
        TargetEffect::Propose(Command::CompleteMove {
            key: key(),
            owner: node("a"),
            target: node("b"),
            move_id: MoveId(10),
            handoff_id: HandoffId(20),
            captured_end: Offset(104),
        })
    );
    let mut w = make();
    w.one(TargetInput::Start);
    assert_eq!(
        w.one(confirmed(Some(view(None)))),
        TargetEffect::RollBack { copy: next() }
    );
}

#[test]
fn a_start_under_a_recorded_handoff_cancels_it_first() {
    let mut w = Worker(TargetMove::new(
        node("b"),
        key(),
        MoveId(10),
        RaftIndex(20),
        &view(Some(20)),
    ));
    assert_eq!(
        w.one(TargetInput::Start),
        TargetEffect::Propose(Command::CancelHandoff {
            key: key(),
            handoff_id: HandoffId(20)
        })
    );
    assert_eq!(w.done(21), TargetEffect::CheckLocal);
}

#[test]
fn a_freeze_without_a_tail_is_one_call_to_the_source_and_one_raft_entry() {
    let mut w = Worker::freezing();
    let mut effect = w.one(TargetInput::Frozen {
        capture: source(100),
    });
    let (mut entries, mut local) = (0, 0);
    loop {
        effect = match effect {
            TargetEffect::CopyRanges { ranges, .. } => {
                assert_eq!(ranges, [], "nothing is left to copy");
                w.copied(100)
            }
            TargetEffect::FinishStaging { .. } => {
                local += 1;
                w.one(TargetInput::Finished)
            }
            TargetEffect::Install { .. } => {
                local += 1;
                w.one(TargetInput::Installed)
            }
            TargetEffect::Propose(Command::CompleteMove { .. }) => {
                entries += 1;
                w.done(21)
            }
            TargetEffect::Serve { .. } => break,
            other => panic!("not a part of a freeze: {other:?}"),
        };
    }
    assert_eq!((entries, local), (1, 2));
}
