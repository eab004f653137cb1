//! What a real copy on a node's disk is, by the applied metadata, and what may be done with it.
//!
//! What this file keeps true: a copy is judged by its identity (R2); one whose flip is not known is
//! nobody's to reclaim (R3); an ended one is salvaged from the point that its end left (R9) before
//! it goes; what the metadata does not account for is kept.

use crate::copy::InstallMark;
use crate::ids::{CopyId, Epoch, NodeId, Offset, PartitionKey};
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
        // Topic ids are log indices: one above what is applied is not gone but not known yet. One
        // that only a lost quorum knew was never deleted by anybody.
        return if state.covers(copy.key.topic) {
            Standing::TopicGone
        } else if state.lost(copy.key.topic) {
            Standing::Stray
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

/// What has been done on the way to deleting a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retiring {
    /// What only it held, if its epoch has ended so, is durable in the ingress WAL.
    pub salvaged: Option<EpochEnd>,
    /// Its standing was read behind a barrier, after the salvage.
    pub confirmed: bool,
    /// The new owner has said that it serves, after the barrier.
    pub served: bool,
    /// Records that only it held are damaged and could not be saved.
    pub damaged: bool,
}

/// What to do next with a copy that its node does not own any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetireStep {
    /// It is not to go, as things stand.
    Stay,
    /// Make everything durable in the ingress WAL that it shows from its [`salvage_point`] on (R9);
    /// what was confirmed before has to be confirmed again.
    Salvage {
        /// How its epoch has ended.
        end: EpochEnd,
    },
    /// Read its standing again, behind a barrier.
    Confirm,
    /// Ask the new owner whether it serves.
    AskOwner,
    /// Delete it, by its identity (R2).
    Delete {
        /// The metadata waits to be told (its epoch is listed as ended).
        report: bool,
    },
    /// Keep it where no node looks for copies, and tell the metadata that it is gone: what is damaged
    /// in it may be the last trace of acknowledged records, which an operator may want to look at.
    SetAside,
}

/// The next step, in the one order that loses nothing: salvage, barrier, owner, delete. `standing` is
/// looked at anew before every step; no append may be in flight on the copy (R8).
#[must_use]
pub fn retire(standing: &Standing, done: Retiring) -> RetireStep {
    match standing {
        // Also once more, when its successor was given up since and it has ended otherwise.
        Standing::Ended(ended) if done.salvaged != Some(ended.end) => {
            RetireStep::Salvage { end: ended.end }
        }
        Standing::Ended(_) | Standing::TopicGone if !done.confirmed => RetireStep::Confirm,
        Standing::Ended(_) if !done.served => RetireStep::AskOwner,
        Standing::Ended(_) if done.damaged => RetireStep::SetAside,
        Standing::Ended(_) => RetireStep::Delete { report: true },
        Standing::TopicGone => RetireStep::Delete { report: false },
        Standing::Ours | Standing::Unknown | Standing::Stray => RetireStep::Stay,
    }
}

/// Epochs of a partition that have ended at `me` and have no copy there any more (or never had one):
/// the metadata waits to be told. `here` says whether there is a copy of an epoch.
pub fn unreported<'a>(
    me: &'a NodeId,
    assignment: &'a Assignment,
    here: impl Fn(Epoch) -> bool + 'a,
) -> impl Iterator<Item = Epoch> + 'a {
    let ended = assignment.ended.iter().filter(|ended| ended.owner == *me);
    ended.map(|ended| ended.epoch).filter(move |e| !here(*e))
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
        return if state.covers(key.topic) {
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
    use crate::ids::{MoveId, PartitionIndex, RaftIndex, RecoveryId, TopicId};
    use crate::meta::{LogPoint, MoveTarget, Recovery, Topic, TopicSettings};
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
    fn a_topic_that_only_a_lost_quorum_knew_was_not_deleted() {
        let me = node("a");
        let mut state = state("a", 1, Vec::new());
        assert_eq!(
            standing(&me, &state, copy(15, 1), None),
            Standing::TopicGone
        );
        state.recoveries.push(Recovery {
            id: RecoveryId(1),
            kept: LogPoint {
                index: RaftIndex(12),
                ..LogPoint::default()
            },
        });
        assert_eq!(
            standing(&me, &state, copy(11, 1), None),
            Standing::TopicGone
        );
        assert_eq!(standing(&me, &state, copy(15, 1), None), Standing::Stray);
        let key = copy(15, 1).key;
        assert_eq!(staging_fate(&me, &state, key), StagingFate::Keep);
        let (new, next) = (
            state.topic_id_at(RaftIndex(15)),
            state.topic_id_at(RaftIndex(25)),
        );
        assert_eq!(
            standing(&me, &state, copy(new.0, 1), None),
            Standing::TopicGone
        );
        assert_eq!(
            standing(&me, &state, copy(next.0, 1), None),
            Standing::Unknown
        );
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
    fn an_ended_copy_is_saved_confirmed_and_served_elsewhere_before_it_goes() {
        let end = EpochEnd::Promoted {
            told_hwm: Offset(7),
        };
        let ended_by = |end| {
            Standing::Ended(EndedEpoch {
                epoch: Epoch(1),
                owner: node("a"),
                end,
            })
        };
        let ended = ended_by(end);
        let mut done = Retiring::default();
        assert_eq!(retire(&ended, done), RetireStep::Salvage { end });
        done.salvaged = Some(end);
        assert_eq!(retire(&ended, done), RetireStep::Confirm);
        done.confirmed = true;
        assert_eq!(retire(&ended, done), RetireStep::AskOwner);
        done.served = true;
        let delete = RetireStep::Delete { report: true };
        assert_eq!(retire(&ended, done), delete);
        let damaged = Retiring {
            damaged: true,
            ..done
        };
        assert_eq!(retire(&ended, damaged), RetireStep::SetAside);
        // What has changed meanwhile counts, whatever was done.
        let end = EpochEnd::Forgotten;
        let salvage = RetireStep::Salvage { end };
        assert_eq!(retire(&ended_by(end), done), salvage);
        for now in [Standing::Ours, Standing::Unknown, Standing::Stray] {
            assert_eq!(retire(&now, done), RetireStep::Stay);
        }
        // Of a topic that is gone nothing is saved, but it is confirmed all the same.
        let gone = Standing::TopicGone;
        assert_eq!(retire(&gone, Retiring::default()), RetireStep::Confirm);
        let delete = RetireStep::Delete { report: false };
        assert_eq!(retire(&gone, done), delete);
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
