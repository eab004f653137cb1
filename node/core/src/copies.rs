//! What a real copy on a node's disk is, by the applied metadata, and what may be done with it.
//!
//! What this file keeps true: a copy is judged by its identity (R2); one whose flip is not known is
//! nobody's to reclaim (R3); an ended one is salvaged from the point that its end left (R9) before
//! it goes; what the metadata does not account for is kept.

use crate::copy::InstallMark;
use crate::ids::{CopyId, Epoch, NodeId, Offset, PartitionKey, TopicId};
use crate::meta::{Assignment, EndedEpoch, EpochEnd, MetaState};

/// What a real copy on the disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The log that this node serves, or will.
    Ours,
    /// Its epoch has ended: salvage, then reclaim behind a barrier once the new owner serves.
    Ended(EndedEpoch),
    /// Its topic is gone: delete behind a barrier.
    TopicGone,
    /// Its flip, or its topic, is not known here yet: wait, or the mover rolls it back.
    Unknown,
    /// The metadata does not account for it. It is kept and reported.
    Stray,
}

/// What `copy` on the disk of `me` is. `install` is the mark that it carries, if any.
#[must_use]
pub fn standing(
    me: &NodeId,
    state: &MetaState,
    copy: CopyId,
    install: Option<InstallMark>,
) -> Standing {
    let Some(assignment) = state.assignment(copy.key) else {
        // Topic ids are log indices: one above what is applied is not gone but not known yet.
        return if copy.key.topic <= TopicId(state.applied.0) {
            Standing::TopicGone
        } else {
            Standing::Unknown
        };
    };
    if assignment.epoch == copy.epoch && assignment.owner == *me {
        return Standing::Ours;
    }
    let ended = assignment
        .ended
        .iter()
        .find(|ended| ended.epoch == copy.epoch && ended.owner == *me);
    if let Some(ended) = ended {
        return Standing::Ended(ended.clone());
    }
    if install.is_some() || copy.epoch > assignment.epoch {
        return Standing::Unknown;
    }
    Standing::Stray
}

/// From where on an ended copy may hold records that went nowhere else (R9). `frontier` is the
/// copy's own.
#[must_use]
pub const fn salvage_point(end: EpochEnd, frontier: Offset) -> Offset {
    match end {
        EpochEnd::Completed { captured_end } => captured_end,
        EpochEnd::Promoted { told_hwm } => told_hwm,
        EpochEnd::Forgotten => frontier,
    }
}

/// What is to be done with staged bytes that no move here works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagingFate {
    /// A move of the partition to this node is recorded.
    Keep,
    /// Nobody can want it.
    Delete,
    /// It goes when its age allows and the owner of this epoch says that it serves: until then it may
    /// be the last copy.
    AskOwner {
        /// Who is to be asked.
        owner: NodeId,
        /// For which epoch.
        epoch: Epoch,
    },
}

/// What is to be done with bytes of the partition that are staged at `me`.
#[must_use]
pub fn staging_fate(me: &NodeId, state: &MetaState, key: PartitionKey) -> StagingFate {
    let Some(assignment) = state.assignment(key) else {
        return if key.topic <= TopicId(state.applied.0) {
            StagingFate::Delete
        } else {
            StagingFate::Keep
        };
    };
    if assignment.target.as_ref().is_some_and(|t| t.node == *me) {
        return StagingFate::Keep;
    }
    if assignment.owner == *me && assignment.opened {
        return StagingFate::Delete;
    }
    StagingFate::AskOwner {
        owner: assignment.owner.clone(),
        epoch: assignment.epoch,
    }
}

/// Whether the metadata says that an epoch of a partition has, or had, a log: then a missing one is
/// never replaced by an empty one.
#[must_use]
pub fn has_log(assignment: &Assignment) -> bool {
    assignment.opened || assignment.epoch > assignment.born
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{MoveId, PartitionIndex, RaftIndex};
    use crate::meta::{MoveTarget, Topic, TopicSettings};
    use alloc::sync::Arc;
    use alloc::vec;
    use alloc::vec::Vec;

    fn node(name: &str) -> NodeId {
        NodeId(name.into())
    }

    fn state(owner: &str, epoch: u64, ended: Vec<EndedEpoch>) -> MetaState {
        let mut state = MetaState {
            applied: RaftIndex(20),
            ..MetaState::default()
        };
        let topic = Topic {
            id: TopicId(3),
            name: crate::ids::TopicName("t".into()),
            parent: None,
            settings: TopicSettings::default(),
            partitions: vec![Assignment {
                owner: node(owner),
                epoch: Epoch(epoch),
                target: None,
                opened: true,
                ended,
                changed: RaftIndex(3),
                born: Epoch(1),
            }],
        };
        state.topics.insert(TopicId(3), Arc::new(topic));
        state
    }

    fn copy(topic: u64, epoch: u64) -> CopyId {
        let key = PartitionKey {
            topic: TopicId(topic),
            partition: PartitionIndex(0),
        };
        CopyId {
            key,
            epoch: Epoch(epoch),
        }
    }

    #[test]
    fn a_marked_copy_is_never_stray_and_an_ended_one_is_found_by_its_epoch() {
        let a = node("a");
        let mark = Some(InstallMark {
            move_id: MoveId(9),
            handoff_id: None,
        });
        let end = EpochEnd::Completed {
            captured_end: Offset(7),
        };
        let ended = EndedEpoch {
            epoch: Epoch(1),
            owner: a.clone(),
            end,
        };
        let moved = state("b", 2, vec![ended.clone()]);
        assert_eq!(
            standing(&a, &moved, copy(3, 1), None),
            Standing::Ended(ended)
        );
        assert_eq!(standing(&a, &moved, copy(3, 2), None), Standing::Stray);
        assert_eq!(standing(&a, &moved, copy(3, 2), mark), Standing::Unknown);
        assert_eq!(standing(&a, &moved, copy(3, 3), None), Standing::Unknown);
        assert_eq!(
            standing(&node("b"), &moved, copy(3, 2), mark),
            Standing::Ours
        );
    }

    #[test]
    fn a_topic_above_what_is_applied_is_not_gone() {
        let state = state("a", 1, vec![]);
        assert_eq!(
            standing(&node("a"), &state, copy(19, 1), None),
            Standing::TopicGone
        );
        assert_eq!(
            standing(&node("a"), &state, copy(21, 1), None),
            Standing::Unknown
        );
    }

    fn moving(owner: &str, target: Option<&str>, opened: bool) -> MetaState {
        let mut state = state(owner, 2, vec![]);
        let topic = state.topics.get_mut(&TopicId(3)).expect("made above");
        let assignment = &mut Arc::make_mut(topic).partitions[0];
        assignment.opened = opened;
        assignment.target = target.map(|name| MoveTarget {
            node: node(name),
            move_id: MoveId(7),
            handoff: None,
            manual: false,
        });
        state
    }

    #[test]
    fn staging_goes_only_when_nobody_can_need_it() {
        let me = node("b");
        let key = |topic| PartitionKey {
            topic: TopicId(topic),
            partition: PartitionIndex(0),
        };
        let of = |state: &MetaState| staging_fate(&me, state, key(3));
        assert_eq!(of(&moving("a", Some("b"), true)), StagingFate::Keep);
        assert_eq!(of(&moving("b", None, true)), StagingFate::Delete);
        let ask = StagingFate::AskOwner {
            owner: node("a"),
            epoch: Epoch(2),
        };
        assert_eq!(of(&moving("a", None, true)), ask);
        assert_eq!(of(&moving("a", Some("c"), true)), ask);
        let known = moving("a", None, true);
        assert_eq!(staging_fate(&me, &known, key(4)), StagingFate::Delete);
        assert_eq!(
            staging_fate(&me, &known, key(21)),
            StagingFate::Keep,
            "a topic that is not applied here yet"
        );
    }
}
