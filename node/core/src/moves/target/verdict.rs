//! What a confirmed version of the metadata says about a flip that was asked for.
//!
//! What this file keeps true: a flip counts as refused only when its guard can never become true
//! again; everything else is not known yet.

use crate::copy::InstallMark;
use crate::ids::{CopyId, DeathGeneration, NodeId};
use crate::meta::{Assignment, MemberStatus};

/// The owner's life as a confirmed version of the metadata shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLife {
    /// Living or dead.
    pub status: MemberStatus,
    /// Its deaths so far.
    pub deaths: DeathGeneration,
}

/// A confirmed version of the metadata, as far as one move is concerned: read after a barrier
/// through the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The partition; `None`: its topic is gone.
    pub assignment: Option<Assignment>,
    /// The life of the owner named there, if it is a member.
    pub owner: Option<OwnerLife>,
}

/// What became of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This node owns the installed copy.
    Flipped,
    /// It did own it, and the partition has gone on since: the copy is an ended one.
    FlippedAndEnded,
    /// Not applied, and it may still be: keep the copy, propose again or ask again.
    Open,
    /// It can never be applied: the copy is rolled back.
    Refused,
    /// The topic is gone.
    TopicGone,
}

/// Judges the flip that would make `me` the owner of `copy`, installed under `mark`.
#[must_use]
pub fn flip_verdict(
    confirmed: &Confirmed,
    me: &NodeId,
    copy: CopyId,
    mark: InstallMark,
) -> Verdict {
    let Some(view) = &confirmed.assignment else {
        return Verdict::TopicGone;
    };
    if view.epoch == copy.epoch && view.owner == *me {
        return Verdict::Flipped;
    }
    if view
        .ended
        .iter()
        .any(|ended| ended.epoch == copy.epoch && ended.owner == *me)
    {
        return Verdict::FlippedAndEnded;
    }
    if view.epoch.next() != copy.epoch {
        return Verdict::Refused;
    }
    let Some(target) = view
        .target
        .as_ref()
        .filter(|t| t.move_id == mark.move_id && t.node == *me)
    else {
        return Verdict::Refused;
    };
    if mark.handoff_id.is_some() {
        return if target.handoff == mark.handoff_id {
            Verdict::Open
        } else {
            Verdict::Refused
        };
    }
    // A promotion names a death; while the owner lives, every death so far is over (rule R6).
    match confirmed.owner {
        Some(life) if life.status == MemberStatus::Dead => Verdict::Open,
        Some(_) | None => Verdict::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{
        Epoch, HandoffId, MoveId, Offset, PartitionIndex, PartitionKey, RaftIndex, TopicId,
    };
    use crate::meta::{EndedEpoch, EpochEnd, MoveTarget};
    use alloc::vec;

    fn node(name: &str) -> NodeId {
        NodeId(name.into())
    }

    fn copy() -> CopyId {
        CopyId {
            key: PartitionKey {
                topic: TopicId(1),
                partition: PartitionIndex(0),
            },
            epoch: Epoch(5),
        }
    }

    fn view(move_id: u64, handoff: Option<u64>) -> Assignment {
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

    fn judge(view: Option<Assignment>, status: MemberStatus, handoff: Option<u64>) -> Verdict {
        let confirmed = Confirmed {
            assignment: view,
            owner: Some(OwnerLife {
                status,
                deaths: DeathGeneration(1),
            }),
        };
        let mark = InstallMark {
            move_id: MoveId(10),
            handoff_id: handoff.map(HandoffId),
        };
        flip_verdict(&confirmed, &node("b"), copy(), mark)
    }

    #[test]
    fn a_handoff_that_is_still_recorded_is_not_known_yet() {
        let alive = MemberStatus::Alive;
        let ask = |view| judge(Some(view), alive, Some(12));
        assert_eq!(ask(view(10, Some(12))), Verdict::Open);
        assert_eq!(ask(view(10, None)), Verdict::Refused);
        assert_eq!(ask(view(10, Some(14))), Verdict::Refused);
        assert_eq!(ask(view(11, Some(12))), Verdict::Refused);
        assert_eq!(judge(None, alive, Some(12)), Verdict::TopicGone);
    }

    #[test]
    fn a_flip_is_recognised_even_after_the_partition_has_gone_on() {
        let mut flipped = view(10, None);
        flipped.owner = node("b");
        flipped.epoch = Epoch(5);
        flipped.target = None;
        let alive = MemberStatus::Alive;
        assert_eq!(
            judge(Some(flipped.clone()), alive, Some(12)),
            Verdict::Flipped
        );
        flipped.owner = node("c");
        assert_eq!(
            judge(Some(flipped.clone()), alive, Some(12)),
            Verdict::Refused
        );
        flipped.epoch = Epoch(6);
        flipped.ended.push(EndedEpoch {
            epoch: Epoch(5),
            owner: node("b"),
            end: EpochEnd::Completed {
                captured_end: Offset(9),
            },
        });
        assert_eq!(
            judge(Some(flipped), alive, Some(12)),
            Verdict::FlippedAndEnded
        );
    }

    #[test]
    fn a_promotion_is_over_when_the_owner_lives() {
        assert_eq!(
            judge(Some(view(10, None)), MemberStatus::Dead, None),
            Verdict::Open
        );
        assert_eq!(
            judge(Some(view(10, None)), MemberStatus::Alive, None),
            Verdict::Refused
        );
    }
}
