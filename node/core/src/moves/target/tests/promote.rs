//! Without the source: every gate of a forced promotion.

use super::*;

fn unreachable_with(w: &mut Worker, deaths: u64) -> TargetEffect {
    w.give(TargetInput::OwnerDeadLongEnough {
        deaths: DeathGeneration(deaths),
    });
    w.one(TargetInput::SourceUnreachable { why: "gone".into() })
}

#[test]
fn a_promotion_needs_a_source_that_was_reached_in_this_move() {
    let mut w = Worker::new();
    w.one(TargetInput::Start);
    w.one(TargetInput::LocalClear);
    w.one(TargetInput::StagingReady {
        staged: staged(100),
        told: Some(Told {
            move_id: MoveId(9),
            manifest: source(100),
        }),
    });
    assert!(matches!(
        unreachable_with(&mut w, 1),
        TargetEffect::Wait { .. }
    ));
}

#[test]
fn a_promotion_needs_everything_that_the_owner_had_told() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    let told = 100 + (8 << 20);
    assert!(matches!(w.refreshed(told), TargetEffect::CopyRanges { .. }));
    w.give(TargetInput::OwnerDeadLongEnough {
        deaths: DeathGeneration(1),
    });
    let wait = w.one(TargetInput::CopyFailed {
        staged: staged(told - 1),
        why: "gone".into(),
    });
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    assert!(matches!(
        unreachable_with(&mut w, 1),
        TargetEffect::Wait { .. }
    ));
}

#[test]
fn a_copy_that_is_known_to_differ_is_never_promoted() {
    let mut w = Worker::freezing();
    w.one(TargetInput::Frozen {
        capture: source(104),
    });
    w.copied(104);
    w.one(TargetInput::Mismatch { why: "x".into() });
    w.one(TargetInput::Proposed(ProposeOutcome::Unknown));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    // The source dies before it could be copied again.
    assert!(matches!(
        unreachable_with(&mut w, 1),
        TargetEffect::Wait { .. }
    ));
}

#[test]
fn a_promotion_installs_first_and_names_the_death() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    // The source dies while it is asked how it stands.
    let prepare = unreachable_with(&mut w, 3);
    assert!(matches!(prepare, TargetEffect::PrepareInstall { .. }));
    let finish = w.one(TargetInput::InstallPrepared);
    let TargetEffect::FinishStaging { capture, mark, .. } = finish else {
        panic!("{finish:?}")
    };
    assert_eq!((capture.hwm, capture.frontier), (Offset(100), Offset(50)));
    assert_eq!(mark.handoff_id, None);
    w.one(TargetInput::Finished);
    assert_eq!(
        w.one(TargetInput::Installed),
        TargetEffect::Propose(Command::ForcePromote {
            key: key(),
            owner: node("a"),
            epoch: Epoch(4),
            target: node("b"),
            move_id: MoveId(10),
            deaths: DeathGeneration(3),
            staged_hwm: Offset(100),
            told_hwm: Offset(100),
        })
    );
    // Refused because the leader has not waited long enough itself: not a refusal for good.
    w.one(TargetInput::Proposed(ProposeOutcome::NotProposed));
    let wait = w.one(TargetInput::Barrier(Some(Confirmed {
        assignment: Some(view(None)),
        owner: Some(OwnerLife {
            status: MemberStatus::Dead,
            deaths: DeathGeneration(3),
        }),
    })));
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert!(matches!(
        w.one(TargetInput::Timer),
        TargetEffect::Propose(Command::ForcePromote { .. })
    ));
    // The owner lives again: that death is over.
    w.one(TargetInput::Proposed(ProposeOutcome::Refused(
        Refusal::OtherDeath,
    )));
    assert_eq!(
        w.one(confirmed(Some(view(None)))),
        TargetEffect::RollBack { copy: next() }
    );
}

#[test]
fn a_staged_copy_that_fails_its_check_is_kept_while_the_owner_is_away() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    unreachable_with(&mut w, 1);
    w.one(TargetInput::InstallPrepared);
    let wait = w.one(TargetInput::Mismatch { why: "x".into() });
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
}

#[test]
fn an_owner_that_answers_and_is_dead_to_the_leader_is_promoted_over() {
    let mut w = Worker::begun();
    w.opened(100);
    w.copied(100);
    w.refreshed(100);
    w.one(TargetInput::InstallPrepared);
    let refused = |w: &mut Worker| {
        w.one(TargetInput::Proposed(ProposeOutcome::Refused(
            Refusal::OwnerDead,
        )));
        w.one(confirmed(Some(view(None))))
    };
    // Until its death is waited out, the source is asked again.
    let wait = refused(&mut w);
    assert!(matches!(wait, TargetEffect::Wait { .. }), "{wait:?}");
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    let prepare = w.opened(100);
    assert!(matches!(prepare, TargetEffect::PrepareInstall { .. }));
    w.one(TargetInput::InstallPrepared);
    w.give(TargetInput::OwnerDeadLongEnough {
        deaths: DeathGeneration(2),
    });
    let prepare = refused(&mut w);
    assert!(
        matches!(prepare, TargetEffect::PrepareInstall { .. }),
        "{prepare:?}"
    );
    let finish = w.one(TargetInput::InstallPrepared);
    let TargetEffect::FinishStaging { mark, .. } = finish else {
        panic!("{finish:?}")
    };
    assert_eq!(mark.handoff_id, None);
}
