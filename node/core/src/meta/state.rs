//! Shapes of the replicated metadata.
//!
//! What this file keeps true: cloning a state is cheap (topics and members are shared until they
//! change), because every applied version is handed to all shards; a state with parts that this release does not
//! know is refused as a whole, not read without them (see [`Command`](crate::meta::Command)).

use super::heritage::Recovery;
use crate::ids::{
    ClusterId, DeathGeneration, Epoch, HandoffId, MoveId, NodeId, NodeIncarnation, Offset,
    PartitionIndex, PartitionKey, RaftIndex, TopicId, TopicName,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Whether the leader counts a member as living.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberStatus {
    /// Answers heartbeats, or has not missed them for long enough.
    Alive,
    /// Marked dead by a leader's clock; owns what it owned, serves nothing.
    Dead,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// `host:port` of its Cap'n Proto listener.
    pub addr: String,
    /// `host:port` of its bulk listener.
    pub bulk_addr: String,
    /// `host:port` of its admin port, empty when it has none.
    pub http_addr: String,
    /// Which life of the process registered last.
    pub incarnation: NodeIncarnation,
    /// Identity of its data directory; a wiped disk under an old id has another one.
    pub disk: u64,
    /// Number of its shard executors.
    pub shards: u32,
    /// Program version.
    pub version: String,
    /// Living or dead.
    pub status: MemberStatus,
    /// How many times it has been marked dead.
    pub deaths: DeathGeneration,
    /// Being drained off; survives a re-registration.
    pub draining: bool,
    /// Log index at which the drain flag changed last.
    #[serde(default)]
    pub draining_changed: RaftIndex,
    /// Log index of its latest registration.
    pub registered: RaftIndex,
    /// Its latest earlier incarnations, newest last, at most
    /// [`PAST_INCARNATIONS`](crate::defaults::PAST_INCARNATIONS): a registration of one of them is
    /// a late one.
    #[serde(default)]
    pub past: Vec<NodeIncarnation>,
}

/// Settings of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    /// How long a delivered record stays invisible before it is delivered again, in ms.
    pub visibility_ms: u64,
    /// Oldest record kept, in ms by record time; `None` keeps all.
    pub retention_ms: Option<u64>,
    /// Most bytes kept a partition; `None` keeps all.
    pub retention_bytes: Option<u64>,
    /// Largest record (key and value), in bytes.
    pub max_record_bytes: u32,
    /// Deliveries after which a record goes to the dead-letter topic; `None` retries for ever.
    pub max_deliveries: Option<u32>,
    /// Where such records go.
    pub dead_letter: Option<TopicName>,
    /// Records of a partition that are out at a time.
    #[serde(default = "default_leases")]
    pub max_leases: u32,
    /// Records of a partition acked above its frontier, beyond which no fresh one goes out.
    #[serde(default = "default_acked_ahead")]
    pub max_acked_ahead: u32,
}

const fn default_leases() -> u32 {
    crate::defaults::LEASES_MAX as u32
}

const fn default_acked_ahead() -> u32 {
    crate::defaults::ACKED_AHEAD_MAX as u32
}

/// One of the [`TopicSettings`], by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// [`TopicSettings::visibility_ms`].
    VisibilityMs,
    /// [`TopicSettings::retention_ms`].
    RetentionMs,
    /// [`TopicSettings::retention_bytes`].
    RetentionBytes,
    /// [`TopicSettings::max_record_bytes`].
    MaxRecordBytes,
    /// [`TopicSettings::max_deliveries`].
    MaxDeliveries,
    /// [`TopicSettings::dead_letter`].
    DeadLetter,
    /// [`TopicSettings::max_leases`].
    MaxLeases,
    /// [`TopicSettings::max_acked_ahead`].
    MaxAckedAhead,
}

impl TopicSettings {
    /// Takes one setting over from `from`.
    pub fn adopt(&mut self, setting: Setting, from: &Self) {
        match setting {
            Setting::VisibilityMs => self.visibility_ms = from.visibility_ms,
            Setting::RetentionMs => self.retention_ms = from.retention_ms,
            Setting::RetentionBytes => self.retention_bytes = from.retention_bytes,
            Setting::MaxRecordBytes => self.max_record_bytes = from.max_record_bytes,
            Setting::MaxDeliveries => self.max_deliveries = from.max_deliveries,
            Setting::DeadLetter => self.dead_letter.clone_from(&from.dead_letter),
            Setting::MaxLeases => self.max_leases = from.max_leases,
            Setting::MaxAckedAhead => self.max_acked_ahead = from.max_acked_ahead,
        }
    }
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            visibility_ms: crate::defaults::VISIBILITY_MS,
            retention_ms: None,
            retention_bytes: None,
            max_record_bytes: crate::defaults::RECORD_MAX_BYTES,
            max_deliveries: None,
            dead_letter: None,
            max_leases: default_leases(),
            max_acked_ahead: default_acked_ahead(),
        }
    }
}

/// Where a partition should end up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveTarget {
    /// The node that is to own it.
    pub node: NodeId,
    /// Identity of this move.
    pub move_id: MoveId,
    /// Permission to freeze, once recorded.
    pub handoff: Option<HandoffId>,
    /// Set by an operator, not by the planner; a re-plan leaves it alone.
    pub manual: bool,
}

/// How an epoch ended, which decides where a salvage of the old copy starts (rule R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EpochEnd {
    /// By CompleteMove: everything up to the captured end went along.
    Completed {
        /// Offset after the last record captured.
        captured_end: Offset,
    },
    /// By ForcePromote: records from the told HWM on may be on the old disk only.
    Promoted {
        /// High-watermark that the old owner had told.
        told_hwm: Offset,
    },
    /// Whoever owned the partition after it was given up, so this copy may be the last of what it
    /// holds: everything that its own consumers had not acknowledged is dispatched again.
    Forgotten,
}

/// An ended epoch whose copy has not been reclaimed yet (rule R7).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedEpoch {
    /// The epoch.
    pub epoch: Epoch,
    /// Who owned it.
    pub owner: NodeId,
    /// How it ended.
    pub end: EpochEnd,
}

/// Raft's state of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// Who serves it now.
    pub owner: NodeId,
    /// Number of its ownership changes, from 1.
    pub epoch: Epoch,
    /// The move that runs, if any.
    pub target: Option<MoveTarget>,
    /// The owner has said that it opened this epoch's log. While false and the epoch is `born`
    /// there may be no log on its disk; once true a missing one is never replaced by an empty one.
    pub opened: bool,
    /// Copies of ended epochs that are still to be reclaimed, oldest first.
    pub ended: Vec<EndedEpoch>,
    /// Log index at which owner, target or handoff changed last.
    #[serde(default)]
    pub changed: RaftIndex,
    /// The epoch whose log began empty: 1, or the one in which the partition began anew after its
    /// owner was given up. Every later epoch began with a copy.
    #[serde(default = "Assignment::first_epoch")]
    pub born: Epoch,
}

impl Assignment {
    /// The epoch in which a partition of a new topic begins.
    #[must_use]
    pub const fn first_epoch() -> Epoch {
        Epoch(1)
    }
}

/// One incarnation of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// Its incarnation.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// The topic that feeds it, for placement: a child is kept off its parent's node where a
    /// balanced alternative exists.
    pub parent: Option<TopicName>,
    /// Its settings.
    pub settings: TopicSettings,
    /// Assignments by partition index.
    pub partitions: Vec<Assignment>,
}

/// How many partitions tie a node to the cluster, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Owned now.
    pub owned: usize,
    /// Moving to it.
    pub inbound: usize,
    /// Owned and moving away.
    pub outbound: usize,
    /// Copies of ended epochs that are not reclaimed.
    pub ended: usize,
}

impl Holdings {
    /// Nothing ties it: it owns, receives and keeps nothing.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.owned == 0 && self.inbound == 0 && self.ended == 0
    }
}

/// Everything that Raft replicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetaState {
    /// Log index of the last command applied.
    pub applied: RaftIndex,
    /// Members by id.
    pub members: BTreeMap<NodeId, Arc<Member>>,
    /// Topics by incarnation.
    pub topics: BTreeMap<TopicId, Arc<Topic>>,
    /// Incarnation by name.
    pub names: BTreeMap<TopicName, TopicId>,
    /// Nodes that were removed, with the log index; one that comes back is told so.
    pub removed: BTreeMap<NodeId, RaftIndex>,
    /// Those of them that were given up while they were dead: what their disks hold is handed to
    /// the cluster if they come back.
    #[serde(default)]
    pub forgotten: BTreeSet<NodeId>,
    /// Copy rate limit of a node, bytes/s; the largest number is unlimited, `None` adapts to the
    /// node's produce latency.
    pub throttle_bytes_per_s: Option<u64>,
    /// The planner sets no targets while true.
    pub rebalance_paused: bool,
    /// Which cluster this is; `None` in one that was founded before clusters had identities, until
    /// its leader gives it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Lost quorums that were replaced, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<Recovery>,
}

impl MetaState {
    /// The topic that has this name now.
    #[must_use]
    pub fn topic_by_name(&self, name: &TopicName) -> Option<&Arc<Topic>> {
        self.topics.get(self.names.get(name)?)
    }

    /// The assignment of a partition, if its topic stands.
    #[must_use]
    pub fn assignment(&self, key: PartitionKey) -> Option<&Assignment> {
        self.topics
            .get(&key.topic)?
            .partitions
            .get(key.partition.0 as usize)
    }

    /// Whether `node` is a member that may be given partitions: alive and not draining.
    #[must_use]
    pub fn can_receive(&self, node: &NodeId) -> bool {
        self.members
            .get(node)
            .is_some_and(|m| m.status == MemberStatus::Alive && !m.draining)
    }

    /// Whether `node` is a member that is marked alive.
    #[must_use]
    pub fn is_alive(&self, node: &NodeId) -> bool {
        self.members
            .get(node)
            .is_some_and(|m| m.status == MemberStatus::Alive)
    }

    /// Whether `node` is done with records: it is being drained and neither owns nor receives a
    /// partition, or it was removed. It takes no record any more that it would have to pass on
    /// later, because it may be gone by then. While it is being drained nothing is moved to it, so
    /// this stays true until the drain is cancelled.
    #[must_use]
    pub fn is_leaving(&self, node: &NodeId) -> bool {
        match self.members.get(node) {
            Some(member) if member.draining => !self.assignments().any(|(_, assignment)| {
                assignment.owner == *node
                    || assignment
                        .target
                        .as_ref()
                        .is_some_and(|target| target.node == *node)
            }),
            Some(_) => false,
            None => self.removed.contains_key(node),
        }
    }

    /// What every node owns, receives, sends and still keeps of ended epochs. Members that hold
    /// nothing are in it too.
    #[must_use]
    pub fn holdings(&self) -> BTreeMap<NodeId, Holdings> {
        let mut all: BTreeMap<NodeId, Holdings> = self
            .members
            .keys()
            .map(|id| (id.clone(), Holdings::default()))
            .collect();
        for (_, assignment) in self.assignments() {
            let owner = all.entry(assignment.owner.clone()).or_default();
            owner.owned += 1;
            if let Some(target) = &assignment.target {
                owner.outbound += 1;
                all.entry(target.node.clone()).or_default().inbound += 1;
            }
            for ended in &assignment.ended {
                all.entry(ended.owner.clone()).or_default().ended += 1;
            }
        }
        all
    }

    /// Every partition with its assignment, in key order.
    pub fn assignments(&self) -> impl Iterator<Item = (PartitionKey, &Assignment)> {
        self.topics.values().flat_map(|topic| {
            topic
                .partitions
                .iter()
                .enumerate()
                .map(|(index, assignment)| {
                    let partition = PartitionIndex(u32::try_from(index).unwrap_or(u32::MAX));
                    (
                        PartitionKey {
                            topic: topic.id,
                            partition,
                        },
                        assignment,
                    )
                })
        })
    }
}
