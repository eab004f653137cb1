//! This node's own disk fails: before the freeze, in it, and around the rename.

use super::*;

fn disk() -> TargetInput {
    TargetInput::Failed { why: "EIO".into() }
}

/// The pause, then the staging is opened again and gives what the disk holds.
fn reopened(w: &mut Worker, answer: TargetEffect) {
    assert!(matches!(answer, TargetEffect::Wait { .. }), "{answer:?}");
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenStaging);
    assert_eq!(w.ready(60), TargetEffect::OpenSource);
    assert_eq!(
        w.opened(104),
        TargetEffect::CheckPrefixes { staged: staged(60) }
    );
    let copy = w.one(TargetInput::PrefixesChecked {
        matching: vec![segment(0, 0).id],
    });
    let TargetEffect::CopyRanges { ranges, .. } = copy else {
        panic!("{copy:?}")
    };
    assert_eq!((ranges[0].from, ranges[0].to), (60, 104));
}

#[test]
fn what_fails_before_the_handoff_opens_the_staging_again() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    w.refreshed(100);
    let wait = w.one(disk());
    reopened(&mut w, wait);
    // Under a pass it is the same.
    let wait = w.one(disk());
    reopened(&mut w, wait);
}

#[test]
fn what_fails_in_the_freeze_ends_it_and_opens_the_staging_again() {
    let mut w = Worker::freezing();
    w.one(TargetInput::Frozen {
        capture: source(104),
    });
    w.copied(104);
    let cancel = w.one(disk());
    assert!(matches!(
        cancel,
        TargetEffect::Propose(Command::CancelHandoff { .. })
    ));
    let wait = w.done(21);
    reopened(&mut w, wait);
}

#[test]
fn an_older_saved_answer_does_not_take_the_place_of_what_was_heard() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    w.refreshed(100);
    let wait = w.one(disk());
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    w.one(TargetInput::Timer);
    w.one(TargetInput::StagingReady {
        staged: staged(60),
        told: Some(Told {
            move_id: MoveId(10),
            manifest: source(60),
        }),
    });
    w.give(TargetInput::OwnerDeadLongEnough {
        deaths: DeathGeneration(1),
    });
    // What is staged reaches what was told first, and not what was told last.
    let wait = w.one(TargetInput::SourceUnreachable { why: "gone".into() });
    assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
}

/// Up to the rename being asked for.
fn installing() -> Worker {
    let mut w = Worker::freezing();
    w.one(TargetInput::Frozen {
        capture: source(104),
    });
    w.copied(104);
    let install = w.one(TargetInput::Finished);
    assert_eq!(install, TargetEffect::Install { next: next() });
    w
}

#[test]
fn an_heir_keeps_what_it_installed_while_its_source_was_given_up() {
    for answer in [TargetInput::Installed, disk()] {
        let mut w = installing();
        assert_eq!(w.applied(30, Some(flipped())), vec![]);
        assert_eq!(w.one(answer), TargetEffect::QueryBarrier);
        assert_eq!(
            w.one(confirmed(Some(flipped()))),
            TargetEffect::Serve { copy: next() }
        );
    }
}

#[test]
fn what_nobody_wants_any_more_is_taken_back_behind_a_barrier() {
    let mut other = view(None);
    other.target = None;
    let mut w = installing();
    w.applied(30, Some(other.clone()));
    assert_eq!(w.one(TargetInput::Installed), TargetEffect::QueryBarrier);
    assert_eq!(
        w.one(confirmed(Some(other))),
        TargetEffect::RollBack { copy: next() }
    );
    // Whether a rename that failed took place, the roll-back finds out.
    let mut w = installing();
    assert_eq!(w.one(disk()), TargetEffect::RollBack { copy: next() });
    // It cannot take back what the shard made meanwhile, and need not: this node is the heir.
    w.applied(30, Some(flipped()));
    let wait = w.one(disk());
    assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::QueryBarrier);
}

#[test]
fn what_a_source_has_lost_since_it_was_copied_is_named_when_the_copy_begins_anew() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    let mut decayed = source(100);
    decayed.segments[0].digest += 1;
    decayed.segments[0].sealed = true;
    let id = decayed.segments[0].id;
    let reset = w.one(TargetInput::Refreshed {
        manifest: decayed,
        write_bytes_per_s: 0,
    });
    assert_eq!(reset, TargetEffect::ResetStaging { decayed: vec![id] });
}
