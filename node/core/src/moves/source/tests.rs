//! Paths of the owner's side: who may append, the freeze, its end, the restart.

use super::*;
use crate::ids::{PartitionIndex, PartitionKey, TopicId};
use alloc::vec;

const LEASE: MonoMs = MonoMs(1_000_000);

fn node(name: &str) -> NodeId {
    NodeId(name.into())
}

fn copy() -> CopyId {
    CopyId {
        key: PartitionKey {
            topic: TopicId(1),
            partition: PartitionIndex(3),
        },
        epoch: Epoch(4),
    }
}

fn moving(move_id: u64, handoff: Option<u64>) -> Assignment {
    Assignment {
        owner: node("a"),
        epoch: Epoch(4),
        target: Some(MoveTarget {
            node: node("b"),
            move_id: MoveId(move_id),
            handoff: handoff.map(HandoffId),
            manual: false,
        }),
        opened: true,
        ended: vec![],
        changed: RaftIndex(0),
        born: Epoch(1),
    }
}

fn still() -> Assignment {
    Assignment {
        target: None,
        ..moving(0, None)
    }
}

fn opened(index: u64, assignment: &Assignment) -> SourcePartition {
    SourcePartition::open(
        node("a"),
        copy(),
        RaftIndex(index),
        Some(assignment),
        MonoMs(0),
    )
}

fn apply(
    side: &mut SourcePartition,
    now: u64,
    index: u64,
    assignment: Option<Assignment>,
) -> Vec<SourceEffect> {
    side.step(
        MonoMs(now),
        SourceInput::AssignmentApplied {
            index: RaftIndex(index),
            assignment,
        },
    )
}

fn open_session(side: &mut SourcePartition, move_id: u64) -> Vec<SourceEffect> {
    side.step(
        MonoMs(0),
        SourceInput::OpenSession {
            epoch: Epoch(4),
            move_id: MoveId(move_id),
            target: node("b"),
        },
    )
}

fn freeze(side: &mut SourcePartition, now: u64, handoff: u64) -> Vec<SourceEffect> {
    side.step(
        MonoMs(now),
        SourceInput::Freeze {
            move_id: MoveId(10),
            handoff_id: HandoffId(handoff),
        },
    )
}

fn frozen() -> SourcePartition {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    apply(&mut side, 0, 12, Some(moving(10, Some(12))));
    freeze(&mut side, 0, 12);
    side.step(
        MonoMs(0),
        SourceInput::Settled {
            handoff_id: HandoffId(12),
        },
    );
    side
}

#[test]
fn an_owner_that_nobody_moves_needs_no_lease() {
    let side = opened(10, &still());
    assert_eq!(side.may_append(MonoMs(5), MonoMs(0)), Ok(()));
    let side = opened(10, &moving(10, None));
    assert_eq!(
        side.may_append(MonoMs(5), MonoMs(0)),
        Err(AppendRefusal::NoLease)
    );
    assert_eq!(side.may_append(MonoMs(5), LEASE), Ok(()));
    assert_eq!(side.may_ack(LEASE, LEASE), Err(AckRefusal::NoLease));
}

#[test]
fn a_session_is_for_the_applied_move_and_its_target_only() {
    let mut side = opened(10, &moving(10, None));
    assert_eq!(
        open_session(&mut side, 9),
        vec![SourceEffect::AnswerRefused(SourceRefusal::OtherMove {
            current: Some(MoveId(10))
        })]
    );
    assert_eq!(
        open_session(&mut side, 11),
        vec![SourceEffect::AnswerRefused(SourceRefusal::NotYet {
            applied: RaftIndex(10)
        })]
    );
    assert_eq!(
        side.step(
            MonoMs(0),
            SourceInput::OpenSession {
                epoch: Epoch(4),
                move_id: MoveId(10),
                target: node("c"),
            },
        ),
        vec![SourceEffect::AnswerRefused(SourceRefusal::OtherMove {
            current: Some(MoveId(10))
        })]
    );
    assert_eq!(
        open_session(&mut side, 10),
        vec![
            SourceEffect::PinFloor {
                move_id: MoveId(10)
            },
            SourceEffect::AnswerManifest {
                move_id: MoveId(10)
            }
        ]
    );
    assert_eq!(
        open_session(&mut side, 10),
        vec![SourceEffect::AnswerManifest {
            move_id: MoveId(10)
        }]
    );
    let gone = apply(&mut side, 0, 11, Some(moving(11, None)));
    assert_eq!(
        gone,
        vec![SourceEffect::SessionClosed {
            move_id: MoveId(10)
        }]
    );
}

#[test]
fn a_freeze_settles_captures_and_repeats_its_answer() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    apply(&mut side, 0, 12, Some(moving(10, Some(12))));
    assert_eq!(side.may_append(MonoMs(0), LEASE), Ok(()));
    assert_eq!(
        freeze(&mut side, 5, 12),
        vec![SourceEffect::BeginSettle {
            handoff_id: HandoffId(12)
        }]
    );
    assert_eq!(
        side.may_append(MonoMs(5), LEASE),
        Err(AppendRefusal::Frozen {
            handoff_id: HandoffId(12)
        })
    );
    assert_eq!(side.may_ack(MonoMs(5), LEASE), Ok(()));
    assert!(side.may_consume());
    assert_eq!(freeze(&mut side, 6, 12), vec![]);
    let answer = vec![SourceEffect::AnswerCapture {
        handoff_id: HandoffId(12),
    }];
    assert_eq!(
        side.step(
            MonoMs(7),
            SourceInput::Settled {
                handoff_id: HandoffId(12)
            }
        ),
        answer
    );
    assert_eq!(freeze(&mut side, 8, 12), answer);
}

#[test]
fn a_freeze_before_its_handoff_waits_for_it() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    assert_eq!(freeze(&mut side, 0, 12), vec![]);
    assert!(!side.is_frozen());
    assert_eq!(
        apply(&mut side, 3, 12, Some(moving(10, Some(12)))),
        vec![SourceEffect::BeginSettle {
            handoff_id: HandoffId(12)
        }]
    );
    assert!(side.is_frozen());
}

#[test]
fn a_freeze_that_waited_too_long_is_answered_not_yet() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    freeze(&mut side, 0, 12);
    let due = side.next_deadline().expect("a freeze is waiting");
    assert_eq!(
        side.step(due, SourceInput::Tick),
        vec![SourceEffect::FreezeRefused {
            handoff_id: HandoffId(12),
            refusal: SourceRefusal::NotYet {
                applied: RaftIndex(10)
            }
        }]
    );
    assert_eq!(side.next_deadline(), None);
}

#[test]
fn an_old_handoff_never_freezes() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    apply(&mut side, 0, 15, Some(moving(10, Some(15))));
    assert_eq!(
        freeze(&mut side, 0, 12),
        vec![SourceEffect::FreezeRefused {
            handoff_id: HandoffId(12),
            refusal: SourceRefusal::OtherHandoff {
                current: Some(HandoffId(15))
            }
        }]
    );
    assert!(!side.is_frozen());
}

#[test]
fn time_alone_never_opens_a_frozen_partition() {
    let mut side = frozen();
    assert_eq!(
        side.step(MonoMs(FREEZE_TTL_MS - 1), SourceInput::Tick),
        vec![]
    );
    let cancel = vec![SourceEffect::ProposeCancel {
        handoff_id: HandoffId(12),
    }];
    assert_eq!(side.step(MonoMs(FREEZE_TTL_MS), SourceInput::Tick), cancel);
    assert_eq!(
        side.step(MonoMs(FREEZE_TTL_MS + 1), SourceInput::Tick),
        vec![]
    );
    assert_eq!(
        side.step(MonoMs(FREEZE_TTL_MS + CANCEL_RETRY_MS), SourceInput::Tick),
        cancel
    );
    assert!(side.is_frozen());
    assert_eq!(
        apply(&mut side, FREEZE_TTL_MS + 5_000, 20, Some(moving(10, None))),
        vec![SourceEffect::Unfreeze {
            handoff_id: HandoffId(12)
        }]
    );
    assert_eq!(side.may_append(MonoMs(1), LEASE), Ok(()));
}

#[test]
fn progress_of_the_drain_renews_the_time_to_live() {
    let mut side = frozen();
    assert_eq!(
        side.step(
            MonoMs(9_000),
            SourceInput::RenewFreeze {
                handoff_id: HandoffId(12)
            }
        ),
        vec![SourceEffect::AnswerDone]
    );
    assert_eq!(
        side.step(MonoMs(FREEZE_TTL_MS + 1), SourceInput::Tick),
        vec![]
    );
    assert_eq!(side.next_deadline(), Some(MonoMs(9_000 + FREEZE_TTL_MS)));
}

#[test]
fn a_handoff_without_a_freeze_is_cancelled_too() {
    let mut side = opened(10, &moving(10, None));
    apply(&mut side, 100, 12, Some(moving(10, Some(12))));
    assert_eq!(
        side.step(MonoMs(100 + FREEZE_TTL_MS), SourceInput::Tick),
        vec![SourceEffect::ProposeCancel {
            handoff_id: HandoffId(12)
        }]
    );
}

#[test]
fn a_restarted_owner_starts_frozen_and_captures_anew() {
    let mut side = opened(12, &moving(10, Some(12)));
    assert!(side.is_frozen());
    assert_eq!(
        freeze(&mut side, 1, 12),
        vec![SourceEffect::FreezeRefused {
            handoff_id: HandoffId(12),
            refusal: SourceRefusal::NoSession
        }]
    );
    let current = Some(MoveId(10));
    let (none, other) = (
        SourceRefusal::NoSession,
        SourceRefusal::OtherMove { current },
    );
    assert_eq!(side.in_session(MoveId(10)), Err(none));
    open_session(&mut side, 10);
    assert_eq!(side.in_session(MoveId(10)), Ok(()));
    assert_eq!(side.in_session(MoveId(9)), Err(other));
    assert_eq!(
        freeze(&mut side, 2, 12),
        vec![SourceEffect::BeginSettle {
            handoff_id: HandoffId(12)
        }]
    );
}

#[test]
fn the_flip_ends_everything_here() {
    let mut side = frozen();
    let flipped = Assignment {
        owner: node("b"),
        epoch: Epoch(5),
        ..still()
    };
    assert_eq!(
        apply(&mut side, 1, 14, Some(flipped)),
        vec![
            SourceEffect::SessionClosed {
                move_id: MoveId(10)
            },
            SourceEffect::StopServing {
                reason: StopReason::Flipped {
                    owner: node("b"),
                    epoch: Epoch(5)
                }
            }
        ]
    );
    assert_eq!(
        side.may_append(MonoMs(1), LEASE),
        Err(AppendRefusal::NotOwner)
    );
    assert_eq!(side.may_ack(MonoMs(1), LEASE), Err(AckRefusal::NotOwner));
    assert!(!side.may_consume());
    // Back here under a later epoch is another copy; this one stays ended.
    let back = Assignment {
        epoch: Epoch(6),
        ..still()
    };
    assert_eq!(apply(&mut side, 2, 20, Some(back)), vec![]);
    assert!(!side.may_consume());
}

#[test]
fn a_deleted_topic_answers_the_freeze_that_settles() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    apply(&mut side, 0, 12, Some(moving(10, Some(12))));
    freeze(&mut side, 0, 12);
    let effects = apply(&mut side, 1, 13, None);
    assert_eq!(
        effects.first(),
        Some(&SourceEffect::FreezeRefused {
            handoff_id: HandoffId(12),
            refusal: SourceRefusal::NotOwner
        })
    );
    assert_eq!(
        effects.last(),
        Some(&SourceEffect::StopServing {
            reason: StopReason::TopicGone
        })
    );
    assert_eq!(
        side.step(
            MonoMs(2),
            SourceInput::Settled {
                handoff_id: HandoffId(12)
            }
        ),
        vec![]
    );
}

#[test]
fn a_cancel_while_settling_refuses_the_waiting_freeze() {
    let mut side = opened(10, &moving(10, None));
    open_session(&mut side, 10);
    apply(&mut side, 0, 12, Some(moving(10, Some(12))));
    freeze(&mut side, 0, 12);
    assert_eq!(
        apply(&mut side, 1, 13, Some(moving(10, None))),
        vec![
            SourceEffect::FreezeRefused {
                handoff_id: HandoffId(12),
                refusal: SourceRefusal::OtherHandoff { current: None }
            },
            SourceEffect::Unfreeze {
                handoff_id: HandoffId(12)
            }
        ]
    );
}
