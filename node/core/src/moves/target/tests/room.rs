//! A target whose disk is full gives its slot up.

use super::super::steps::ROOM_TRIES;
use super::*;

/// Runs into the full disk once; what the worker wants then.
fn full(w: &mut Worker) -> TargetEffect {
    let copy = w.opened(100);
    assert!(matches!(copy, TargetEffect::CopyRanges { .. }), "{copy:?}");
    w.one(TargetInput::NoRoom {
        staged: vec![],
        why: "full".into(),
    })
}

/// A worker that has run into it as often as it may.
fn given_up() -> Worker {
    let mut w = Worker::begun();
    for _ in 0..ROOM_TRIES {
        let wait = full(&mut w);
        assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
        assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    }
    let clear = TargetEffect::Propose(Command::ClearTarget {
        key: key(),
        move_id: MoveId(10),
        no_room: true,
    });
    assert_eq!(full(&mut w), clear);
    w
}

#[test]
fn a_disk_that_stays_full_ends_the_move() {
    let mut w = given_up();
    assert_eq!(w.done(11), TargetEffect::CloseSource);
    let outcome = MoveOutcome::NoRoom;
    assert_eq!(
        w.one(TargetInput::SourceClosed),
        TargetEffect::Done { outcome }
    );
}

#[test]
fn it_ends_the_same_when_the_metadata_shows_it_first() {
    let mut w = given_up();
    let mut cleared = view(None);
    cleared.target = None;
    assert_eq!(w.applied(11, Some(cleared)), vec![]);
    assert_eq!(w.done(11), TargetEffect::CloseSource);
    let outcome = MoveOutcome::NoRoom;
    assert_eq!(
        w.one(TargetInput::SourceClosed),
        TargetEffect::Done { outcome }
    );
}

#[test]
fn a_slot_that_cannot_be_given_up_is_used_on() {
    // The owner is dead (R14), or nobody knows: the copy may be the last one, so it goes on.
    for outcome in [
        ProposeOutcome::Refused(Refusal::OwnerDead),
        ProposeOutcome::Unknown,
        ProposeOutcome::NotProposed,
    ] {
        let mut w = given_up();
        let wait = w.one(TargetInput::Proposed(outcome));
        assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
        assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
        let wait = full(&mut w);
        assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
    }
}

#[test]
fn a_pass_that_goes_through_begins_the_count_anew() {
    let mut w = Worker::begun();
    for _ in 0..ROOM_TRIES {
        full(&mut w);
        w.one(TargetInput::Timer);
    }
    let (first, more) = (1 << 30, (1 << 30) + (1 << 27));
    w.opened(first);
    assert_eq!(w.copied(first), TargetEffect::RefreshSource);
    let copy = w.refreshed(more);
    assert!(matches!(copy, TargetEffect::CopyRanges { .. }), "{copy:?}");
    let wait = w.one(TargetInput::NoRoom {
        staged: staged(first),
        why: "full".into(),
    });
    assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
}
