//! Which cluster a node's metadata comes from, and whether it can be continued with this cluster's log.
//!
//! What this file keeps true: a log is continued only by the cluster that wrote it; one that holds
//! committed entries which a replaced quorum has lost is never continued, because Raft would take them
//! for entries that both sides have; what only such a lost quorum knew is not taken for deleted.

use super::apply::{Applied, bad_settings};
use crate::defaults::{RECOVERIES_MAX, TOPIC_INDEX_BITS};
use crate::ids::{ClusterId, NodeId, RaftIndex, RaftTerm, RecoveryId, TopicId};
use crate::meta::{MetaState, Refusal};
use alloc::format;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Position in the log, in the order in which Raft compares logs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogPoint {
    /// Term of the entry.
    pub term: RaftTerm,
    /// Its index.
    pub index: RaftIndex,
}

/// A lost quorum that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovery {
    /// Which one.
    pub id: RecoveryId,
    /// Last entry of the log that the cluster goes on with.
    pub kept: LogPoint,
}

/// Where the metadata on a node's disk comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heritage {
    /// The cluster, as far as the node knows.
    pub cluster: Option<ClusterId>,
    /// Whether there is any.
    pub has_log: bool,
    /// The latest replaced quorum that it has applied.
    pub recovery: Option<RecoveryId>,
    /// The last entry that it has applied: not one that is committed and waits, which may tell of a
    /// replacement that `recovery` does not.
    pub applied: LogPoint,
}

/// Why a node's metadata cannot be continued with this cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It is another cluster's.
    OtherCluster {
        /// Which one's.
        theirs: ClusterId,
        /// This one.
        ours: ClusterId,
    },
    /// It is some cluster's, and this one has never heard of the node.
    NeverMember,
    /// It is some cluster's, and this one knows another disk under the node's id. (An empty disk may
    /// take the place of a lost one.)
    OtherDisk,
    /// It holds committed entries that are not in this cluster's log: they were lost with a quorum
    /// that was replaced, or the other way round.
    Diverged,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherCluster { theirs, ours } => write!(
                f,
                "it belongs to cluster {:016x}, and this is cluster {:016x}",
                theirs.0, ours.0
            ),
            Self::NeverMember => f.write_str(
                "its data directory holds the metadata of a cluster, and this cluster has never had such a \
                 member",
            ),
            Self::OtherDisk => f.write_str(
                "its data directory holds the metadata of a cluster, and this cluster knows another one under its id",
            ),
            Self::Diverged => f.write_str(
                "its metadata holds committed changes that this cluster does not have: they were lost when the \
                 quorum was replaced",
            ),
        }
    }
}

impl MetaState {
    pub(super) fn identify(&mut self, index: RaftIndex, cluster: ClusterId) -> Applied {
        if cluster == ClusterId(0) {
            return Err(bad_settings("0 is no cluster's identity"));
        }
        match self.cluster {
            Some(known) if known != cluster => Err(Refusal::OtherCluster),
            _ => {
                self.cluster = Some(cluster);
                Ok(index)
            }
        }
    }

    pub(super) fn recovered(&mut self, index: RaftIndex, recovery: Recovery) -> Applied {
        if self.recoveries.iter().any(|known| known.id == recovery.id) {
            return Ok(index);
        }
        if self.recoveries.len() >= RECOVERIES_MAX
            || recovery.id == RecoveryId(0)
            || recovery.kept.index >= index
        {
            return Err(bad_settings(format!(
                "a quorum is replaced at most {RECOVERIES_MAX} times, each time by a log that was there before"
            )));
        }
        self.recoveries.push(recovery);
        Ok(index)
    }

    /// The latest replaced quorum.
    #[must_use]
    pub fn recovery(&self) -> Option<RecoveryId> {
        self.recoveries.last().map(|recovery| recovery.id)
    }

    /// Identity of a topic that is made at `index` of the log. Log indexes above what a replaced quorum
    /// kept are given once more, so the number of recoveries goes in front.
    #[must_use]
    pub fn topic_id_at(&self, index: RaftIndex) -> TopicId {
        TopicId(((self.recoveries.len() as u64) << TOPIC_INDEX_BITS) | index.0)
    }

    /// When a topic was made: after how many recoveries, and at which index.
    fn made(topic: TopicId) -> (usize, RaftIndex) {
        let recoveries = usize::try_from(topic.0 >> TOPIC_INDEX_BITS).unwrap_or(usize::MAX);
        (
            recoveries,
            RaftIndex(topic.0 & ((1 << TOPIC_INDEX_BITS) - 1)),
        )
    }

    /// Whether this state includes the moment at which a topic with this identity was made, if it ever was:
    /// when it is not there, it was deleted.
    #[must_use]
    pub fn covers(&self, topic: TopicId) -> bool {
        let (recoveries, index) = Self::made(topic);
        match self.recoveries.get(recoveries) {
            Some(next) => index <= next.kept.index,
            None => recoveries == self.recoveries.len() && index <= self.applied,
        }
    }

    /// Whether only a lost quorum can have known a topic with this identity.
    #[must_use]
    pub fn lost(&self, topic: TopicId) -> bool {
        let (recoveries, index) = Self::made(topic);
        let next = self.recoveries.get(recoveries);
        next.is_some_and(|next| index > next.kept.index)
    }

    /// How many replacements a log knows of whose latest one is `recovery`; `None` where that is none of this state's.
    fn known_until(&self, recovery: Option<RecoveryId>) -> Option<usize> {
        let Some(id) = recovery else {
            return Some(0);
        };
        let at = self.recoveries.iter().position(|known| known.id == id)?;
        Some(at + 1)
    }

    /// Whether `id` joined in what a replaced quorum alone knew, so that it is neither a member nor removed here, and
    /// what is on its disk is this cluster's to take over. Of the disk: its cluster, and the latest replacement that is
    /// in its log, applied or not: were it of the line that goes on here, or of another one beside it, `id` would
    /// be known here or is not to be.
    #[must_use]
    pub fn joined_in_lost(
        &self,
        id: &NodeId,
        cluster: Option<ClusterId>,
        recovery: Option<RecoveryId>,
    ) -> bool {
        let ours = cluster.is_some() && cluster == self.cluster;
        let met = self.members.contains_key(id) || self.removed.contains_key(id);
        let behind = |known| known < self.recoveries.len();
        ours && !met && self.known_until(recovery).is_some_and(behind)
    }

    /// Whether a log that is applied up to `applied`, with `recovery` as the latest replacement until there, is a
    /// part of the log behind this state.
    #[must_use]
    pub fn continues(&self, recovery: Option<RecoveryId>, applied: LogPoint) -> bool {
        let Some(seen) = self.known_until(recovery) else {
            return false;
        };
        // The first replacement that it does not know of cut the log that it was written under.
        self.recoveries
            .get(seen)
            .is_none_or(|missed| applied <= missed.kept)
    }

    /// Whether the node `id` with metadata of this heritage on `disk` may go on in this cluster. `known`: Raft's
    /// membership has it although it never registered (a founder).
    ///
    /// # Errors
    /// [`Stranger`].
    pub fn check_heritage(
        &self,
        id: &NodeId,
        disk: u64,
        known: bool,
        heritage: &Heritage,
    ) -> Result<(), Stranger> {
        if let (Some(theirs), Some(ours)) = (heritage.cluster, self.cluster)
            && theirs != ours
        {
            return Err(Stranger::OtherCluster { theirs, ours });
        }
        if !heritage.has_log {
            return Ok(());
        }
        // One that joined in what a replaced quorum lost is unknown here and yet of this cluster: its log says
        // whether it may go on.
        let ours = heritage.cluster.is_some() && heritage.cluster == self.cluster;
        let met = known || self.members.contains_key(id) || self.removed.contains_key(id);
        if !ours && !met {
            return Err(Stranger::NeverMember);
        }
        if self
            .members
            .get(id)
            .is_some_and(|member| member.disk != disk)
        {
            return Err(Stranger::OtherDisk);
        }
        if !self.continues(heritage.recovery, heritage.applied) {
            return Err(Stranger::Diverged);
        }
        Ok(())
    }
}
