//! Applies one command to the metadata.
//!
//! What this file keeps true: applying is total and deterministic (state, command and log index in,
//! state and reply out), a refused command changes nothing but `applied`, and no command may be
//! applied at an index that is not above the last one, because indexes become identities.

use crate::ids::{NodeId, PartitionKey, RaftIndex};
use crate::meta::{Assignment, Command, MemberStatus, MetaState, Refusal, Reply};
use alloc::string::String;
use alloc::sync::Arc;

/// What a guard decides: the log index to answer with, or the refusal.
pub(super) type Applied = Result<RaftIndex, Refusal>;

impl MetaState {
    /// Applies `command` at log index `index`.
    ///
    /// # Panics
    /// When `index` is not above the last index applied: the log would give one identity twice.
    pub fn apply(&mut self, index: RaftIndex, command: &Command) -> Reply {
        assert!(
            index > self.applied,
            "log index {index} applied after {}",
            self.applied
        );
        let applied = self.dispatch(index, command);
        self.applied = index;
        match applied {
            Ok(index) => Reply::Done { index },
            Err(refusal) => Reply::Refused { refusal },
        }
    }

    fn dispatch(&mut self, index: RaftIndex, command: &Command) -> Applied {
        match command {
            Command::Register { .. }
            | Command::MarkDead { .. }
            | Command::MarkAlive { .. }
            | Command::SetDraining { .. }
            | Command::RemoveMember { .. }
            | Command::ForgetMember { .. } => self.apply_member(index, command),
            Command::CreateTopic { .. }
            | Command::SetTopicSettings { .. }
            | Command::DeleteTopic { .. }
            | Command::MarkOpened { .. }
            | Command::MarkReclaimed { .. } => self.apply_topic(index, command),
            Command::SetTarget { .. }
            | Command::ClearTarget { .. }
            | Command::BeginHandoff { .. }
            | Command::CancelHandoff { .. }
            | Command::CompleteMove { .. }
            | Command::ForcePromote { .. } => self.apply_move(index, command),
            Command::SetThrottle { bytes_per_s } => {
                if *bytes_per_s == Some(0) {
                    return Err(bad_settings(
                        "a rate limit must be above 0; lift it instead",
                    ));
                }
                self.throttle_bytes_per_s = *bytes_per_s;
                Ok(index)
            }
            Command::SetRebalancePaused { paused } => {
                self.rebalance_paused = *paused;
                Ok(index)
            }
            Command::IdentifyCluster { cluster } => self.identify(index, *cluster),
            Command::Recovered { recovery } => self.recovered(index, *recovery),
        }
    }

    /// The assignment of a partition of a living topic.
    pub(super) fn standing(&self, key: PartitionKey) -> Result<&Assignment, Refusal> {
        self.assignment(key).ok_or(Refusal::UnknownTopic)
    }

    /// Changes one assignment; the guards have found it.
    pub(super) fn change(&mut self, key: PartitionKey, change: impl FnOnce(&mut Assignment)) {
        let topic = self
            .topics
            .get_mut(&key.topic)
            .expect("the guard found the topic");
        let assignment = Arc::make_mut(topic)
            .partitions
            .get_mut(key.partition.0 as usize)
            .expect("the guard found the partition");
        change(assignment);
    }

    /// Refuses a node that is not a member, saying whether it was one.
    pub(super) fn member_status(&self, id: &NodeId) -> Result<MemberStatus, Refusal> {
        match self.members.get(id) {
            Some(member) => Ok(member.status),
            None if self.removed.contains_key(id) => Err(Refusal::MemberRemoved),
            None => Err(Refusal::UnknownMember),
        }
    }
}

pub(super) fn bad_settings(detail: impl Into<String>) -> Refusal {
    Refusal::BadSettings {
        detail: detail.into(),
    }
}
