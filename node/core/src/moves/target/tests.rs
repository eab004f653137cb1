//! Paths of the target's worker, one by one.

mod disk;
mod flip;
mod promote;
mod room;

use super::*;
use crate::copy::SegmentId;
use crate::ids::{HandoffId, PartitionIndex, TopicId};
use crate::meta::{Command, MemberStatus, MoveTarget, Refusal};
use crate::moves::source::SourceRefusal;
use alloc::vec;

fn node(name: &str) -> NodeId {
    NodeId(name.into())
}

fn key() -> PartitionKey {
    PartitionKey {
        topic: TopicId(1),
        partition: PartitionIndex(0),
    }
}

fn view(handoff: Option<u64>) -> Assignment {
    Assignment {
        owner: node("a"),
        epoch: Epoch(4),
        target: Some(MoveTarget {
            node: node("b"),
            move_id: MoveId(10),
            handoff: handoff.map(HandoffId),
            manual: false,
        }),
        opened: true,
        ended: vec![],
        changed: RaftIndex(10),
        born: Epoch(1),
    }
}

fn next() -> CopyId {
    CopyId {
        key: key(),
        epoch: Epoch(5),
    }
}

fn segment(len: u64, digest: u32) -> SegmentState {
    SegmentState {
        id: SegmentId {
            base: Offset(0),
            epoch: Epoch(4),
        },
        durable_len: len,
        digest,
        end: Offset(len),
        sealed: false,
    }
}

/// A source whose single segment has `len` bytes; a byte is a record.
fn source(len: u64) -> Manifest {
    let held = segment(len, digest(len));
    Manifest {
        segments: if len == 0 { vec![] } else { vec![held] },
        hwm: Offset(len),
        frontier: Offset(len / 2),
        ..Manifest::default()
    }
}

fn digest(len: u64) -> u32 {
    u32::try_from(len % 97).expect("small") + 1
}

fn staged(len: u64) -> Vec<SegmentState> {
    if len == 0 {
        vec![]
    } else {
        vec![segment(len, digest(len))]
    }
}

struct Worker(TargetMove);

impl Worker {
    fn new() -> Self {
        Self(TargetMove::new(
            node("b"),
            key(),
            MoveId(10),
            RaftIndex(10),
            &view(None),
        ))
    }

    /// Steps and gives the effects that are not reports.
    fn give(&mut self, input: TargetInput) -> Vec<TargetEffect> {
        self.0
            .step(input)
            .into_iter()
            .filter(|e| !matches!(e, TargetEffect::Report(_)))
            .collect()
    }

    fn one(&mut self, input: TargetInput) -> TargetEffect {
        let mut effects = self.give(input);
        assert_eq!(effects.len(), 1, "{effects:?}");
        effects.remove(0)
    }

    fn ready(&mut self, len: u64) -> TargetEffect {
        self.one(TargetInput::StagingReady {
            staged: staged(len),
            told: None,
        })
    }

    fn opened(&mut self, len: u64) -> TargetEffect {
        self.one(TargetInput::SourceOpened {
            manifest: source(len),
            write_bytes_per_s: 0,
        })
    }

    fn refreshed(&mut self, len: u64) -> TargetEffect {
        self.one(TargetInput::Refreshed {
            manifest: source(len),
            write_bytes_per_s: 0,
        })
    }

    fn copied(&mut self, len: u64) -> TargetEffect {
        self.one(TargetInput::Copied {
            staged: staged(len),
            bytes: 1 << 20,
            elapsed_us: 1_000,
        })
    }

    fn applied(&mut self, index: u64, assignment: Option<Assignment>) -> Vec<TargetEffect> {
        self.give(TargetInput::AssignmentApplied {
            index: RaftIndex(index),
            assignment,
        })
    }

    fn done(&mut self, index: u64) -> TargetEffect {
        self.one(TargetInput::Proposed(ProposeOutcome::Done {
            index: RaftIndex(index),
        }))
    }

    /// Up to the local staging being open.
    fn begun() -> Self {
        let mut w = Self::new();
        assert_eq!(w.one(TargetInput::Start), TargetEffect::CheckLocal);
        assert_eq!(w.one(TargetInput::LocalClear), TargetEffect::OpenStaging);
        assert_eq!(w.ready(0), TargetEffect::OpenSource);
        w
    }

    /// Up to the freeze being asked for, with 100 bytes copied and 104 at the source by then.
    fn freezing() -> Self {
        let mut w = Self::begun();
        assert!(matches!(w.opened(100), TargetEffect::CopyRanges { .. }));
        assert_eq!(w.copied(100), TargetEffect::RefreshSource);
        assert!(matches!(
            w.refreshed(100),
            TargetEffect::PrepareInstall { .. }
        ));
        let begin = w.one(TargetInput::InstallPrepared);
        assert!(
            matches!(begin, TargetEffect::Propose(Command::BeginHandoff { .. })),
            "{begin:?}"
        );
        let freeze = w.done(20);
        assert_eq!(
            freeze,
            TargetEffect::FreezeSource {
                handoff_id: HandoffId(20)
            }
        );
        w
    }

    /// Up to the flip being proposed.
    fn flipping() -> Self {
        let mut w = Self::freezing();
        let drain = w.one(TargetInput::Frozen {
            capture: source(104),
        });
        let TargetEffect::CopyRanges {
            ranges,
            throttled,
            renew,
            ..
        } = drain
        else {
            panic!("{drain:?}")
        };
        assert_eq!((ranges[0].from, ranges[0].to), (100, 104));
        assert!(!throttled, "the drain is never throttled");
        assert_eq!(renew, Some(HandoffId(20)));
        let finish = w.copied(104);
        assert!(matches!(finish, TargetEffect::FinishStaging { .. }));
        assert_eq!(
            w.one(TargetInput::Finished),
            TargetEffect::Install { next: next() }
        );
        let flip = w.one(TargetInput::Installed);
        assert_eq!(
            flip,
            TargetEffect::Propose(Command::CompleteMove {
                key: key(),
                owner: node("a"),
                target: node("b"),
                move_id: MoveId(10),
                handoff_id: HandoffId(20),
                captured_end: Offset(104),
            })
        );
        w
    }
}

fn confirmed(assignment: Option<Assignment>) -> TargetInput {
    TargetInput::Barrier(Some(Confirmed {
        assignment,
        owner: Some(OwnerLife {
            status: MemberStatus::Alive,
            deaths: DeathGeneration(0),
        }),
    }))
}

fn flipped() -> Assignment {
    Assignment {
        owner: node("b"),
        epoch: Epoch(5),
        target: None,
        opened: false,
        ended: vec![],
        changed: RaftIndex(21),
        born: Epoch(1),
    }
}

#[test]
fn a_move_that_waited_for_its_turn_asks_for_the_tail_again() {
    let mut w = Worker::begun();
    assert!(matches!(w.opened(100), TargetEffect::CopyRanges { .. }));
    assert_eq!(w.copied(100), TargetEffect::RefreshSource);
    assert!(matches!(
        w.refreshed(100),
        TargetEffect::PrepareInstall { .. }
    ));
    assert_eq!(
        w.one(TargetInput::WaitedForTurn),
        TargetEffect::RefreshSource
    );
    // A tail that is long by now is copied, and is no sign of a writer that is too fast.
    let long = 100 + (64 << 20);
    let pass = w.refreshed(long);
    assert!(matches!(pass, TargetEffect::CopyRanges { .. }), "{pass:?}");
    assert_eq!(w.copied(long), TargetEffect::RefreshSource);
    assert!(matches!(
        w.refreshed(long),
        TargetEffect::PrepareInstall { .. }
    ));
    let begin = w.one(TargetInput::InstallPrepared);
    assert!(
        matches!(begin, TargetEffect::Propose(Command::BeginHandoff { .. })),
        "{begin:?}"
    );
}

#[test]
fn a_move_goes_through() {
    let mut w = Worker::flipping();
    assert_eq!(w.done(21), TargetEffect::Serve { copy: next() });
    assert_eq!(w.one(TargetInput::Serving), TargetEffect::CloseSource);
    assert_eq!(
        w.one(TargetInput::SourceClosed),
        TargetEffect::Done {
            outcome: MoveOutcome::Flipped
        }
    );
    assert!(w.0.ended());
}

#[test]
fn an_empty_partition_moves_without_a_pass() {
    let mut w = Worker::begun();
    assert!(matches!(w.opened(0), TargetEffect::PrepareInstall { .. }));
    w.one(TargetInput::InstallPrepared);
    w.done(20);
    let drain = w.one(TargetInput::Frozen { capture: source(0) });
    assert!(matches!(drain, TargetEffect::CopyRanges { ref ranges, .. } if ranges.is_empty()));
}

#[test]
fn an_old_copy_here_is_waited_for() {
    let mut w = Worker::new();
    w.one(TargetInput::Start);
    let wait = w.one(TargetInput::LocalOccupied { copy: next() });
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::CheckLocal);
}

#[test]
fn a_staged_prefix_counts_only_after_the_source_vouched_for_it() {
    let mut w = Worker::new();
    w.one(TargetInput::Start);
    w.one(TargetInput::LocalClear);
    w.ready(40);
    let check = w.opened(100);
    assert_eq!(check, TargetEffect::CheckPrefixes { staged: staged(40) });
    let aside = w.one(TargetInput::PrefixesChecked { matching: vec![] });
    assert_eq!(aside, TargetEffect::SetAside { decayed: vec![] });
    let copy = w.ready(0);
    assert!(matches!(copy, TargetEffect::CopyRanges { ref ranges, .. } if ranges[0].from == 0));
}

#[test]
fn a_prefix_that_matches_is_built_upon() {
    let mut w = Worker::new();
    w.one(TargetInput::Start);
    w.one(TargetInput::LocalClear);
    w.ready(40);
    w.opened(100);
    let copy = w.one(TargetInput::PrefixesChecked {
        matching: vec![segment(0, 0).id],
    });
    assert!(matches!(copy, TargetEffect::CopyRanges { ref ranges, .. } if ranges[0].from == 40));
}

#[test]
fn a_source_that_does_not_answer_is_asked_for_ever_with_bounded_pauses() {
    let mut w = Worker::begun();
    let mut longest = 0;
    for _ in 0..200 {
        let wait = w.one(TargetInput::SourceUnreachable { why: "x".into() });
        let TargetEffect::Wait { ms } = wait else {
            panic!("{wait:?}")
        };
        assert!(ms >= longest);
        longest = ms;
        assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    }
    assert_eq!(longest, SOURCE_RETRY_MS.1);
}

#[test]
fn a_broken_copy_goes_on_from_what_is_staged() {
    let mut w = Worker::begun();
    w.opened(100);
    let wait = w.one(TargetInput::CopyFailed {
        staged: staged(60),
        why: "reset by peer".into(),
    });
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    w.one(TargetInput::Timer);
    let copy = w.opened(100);
    assert!(matches!(copy, TargetEffect::CopyRanges { ref ranges, .. } if ranges[0].from == 60));
}

#[test]
fn a_digest_that_differs_after_a_pass_is_copied_anew_unfrozen() {
    let mut w = Worker::begun();
    w.opened(100);
    let reset = w.one(TargetInput::Copied {
        staged: vec![segment(100, 77_777)],
        bytes: 100,
        elapsed_us: 1,
    });
    assert_eq!(reset, TargetEffect::ResetStaging { decayed: vec![] });
}

#[test]
fn a_mismatch_in_the_freeze_cancels_and_never_promotes() {
    let mut w = Worker::freezing();
    w.one(TargetInput::Frozen {
        capture: source(104),
    });
    w.copied(104);
    let cancel = w.one(TargetInput::Mismatch { why: "x".into() });
    assert_eq!(
        cancel,
        TargetEffect::Propose(Command::CancelHandoff {
            key: key(),
            handoff_id: HandoffId(20)
        })
    );
    let wait = w.one(TargetInput::Proposed(ProposeOutcome::Unknown));
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    assert_eq!(
        w.opened(104),
        TargetEffect::ResetStaging { decayed: vec![] }
    );
    assert!(matches!(w.ready(0), TargetEffect::CopyRanges { .. }));
}

#[test]
fn a_lost_begin_is_looked_up_and_used() {
    let mut w = Worker::begun();
    w.opened(0);
    w.one(TargetInput::InstallPrepared);
    let ask = w.one(TargetInput::Proposed(ProposeOutcome::Unknown));
    assert_eq!(ask, TargetEffect::QueryBarrier);
    assert_eq!(
        w.one(confirmed(Some(view(Some(33))))),
        TargetEffect::FreezeSource {
            handoff_id: HandoffId(33)
        }
    );
}

#[test]
fn a_begin_that_is_refused_goes_back_to_the_source_after_a_pause() {
    let mut w = Worker::begun();
    w.opened(0);
    w.one(TargetInput::InstallPrepared);
    w.one(TargetInput::Proposed(ProposeOutcome::Refused(
        Refusal::OwnerDead,
    )));
    let wait = w.one(confirmed(Some(view(None))));
    assert!(matches!(wait, TargetEffect::Wait { .. }));
    assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
}

#[test]
fn a_freeze_that_comes_too_early_is_asked_again_but_not_for_ever() {
    let mut w = Worker::freezing();
    let mut asks = 0;
    loop {
        let early = TargetInput::SourceRefused(SourceRefusal::NotYet {
            applied: RaftIndex(19),
        });
        match w.one(early) {
            TargetEffect::Wait { .. } => asks += 1,
            TargetEffect::Propose(Command::CancelHandoff { .. }) => break,
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            w.one(TargetInput::Timer),
            TargetEffect::FreezeSource { .. }
        ));
        assert!(asks <= FREEZE_ASKS_MAX);
    }
    assert!(asks > 1);
}

#[test]
fn a_source_that_has_not_heard_of_the_move_is_no_trouble_until_it_stays_so() {
    let mut w = Worker::begun();
    let not_yet = || {
        TargetInput::SourceRefused(SourceRefusal::NotYet {
            applied: RaftIndex(9),
        })
    };
    for _ in 0..NOT_YET_QUIET {
        assert!(matches!(w.one(not_yet()), TargetEffect::Wait { .. }));
        assert_eq!(w.0.progress().last_error, None);
        assert_eq!(w.one(TargetInput::Timer), TargetEffect::OpenSource);
    }
    assert!(matches!(w.one(not_yet()), TargetEffect::Wait { .. }));
    let told = w.0.progress().last_error.expect("it is told");
    assert!(told.contains("up to 9"), "{told}");
}

#[test]
fn a_cancelled_handoff_stops_the_drain() {
    let mut w = Worker::freezing();
    w.one(TargetInput::Frozen {
        capture: source(104),
    });
    assert_eq!(
        w.applied(20, Some(view(Some(20)))),
        vec![],
        "the handoff stands"
    );
    assert_eq!(
        w.applied(25, Some(view(None))),
        vec![TargetEffect::Interrupt]
    );
    let cancel = w.one(TargetInput::Interrupted);
    assert!(matches!(
        cancel,
        TargetEffect::Propose(Command::CancelHandoff { .. })
    ));
}
