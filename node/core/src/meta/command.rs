//! Commands that go through Raft, and what applying one answers.
//!
//! What this file keeps true: a command carries every fact that its guard compares, so that it
//! means the same whenever it is applied.

use crate::ids::{
    ClusterId, DeathGeneration, Epoch, HandoffId, MoveId, NodeId, NodeIncarnation, Offset,
    PartitionKey, RaftIndex, TopicId, TopicName,
};
use crate::meta::{Recovery, Setting, TopicSettings};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A change of the metadata. Encoded as JSON in the Raft log, tagged by name. A release that does not know a
/// command, or a field of one, stops before it rather than apply half of it. So what is added later has a default
/// for logs without it (`default`), and is left out of the log while it has that (`skip_serializing_if`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// A process of a node starts (or joins): its addresses and incarnation. Keeps the drain flag
    /// and the death count; marks it alive. Refused for a removed node and for another disk under
    /// a known id that owns or receives anything.
    Register {
        /// The node.
        id: NodeId,
        /// Cap'n Proto listener.
        addr: String,
        /// Bulk listener.
        bulk_addr: String,
        /// Admin port or empty.
        http_addr: String,
        /// Which life of the process.
        incarnation: NodeIncarnation,
        /// Identity of the data directory.
        disk: u64,
        /// Number of shard executors.
        shards: u32,
        /// Program version.
        version: String,
    },
    /// The leader's clock has not heard `id` for the dead-after time.
    MarkDead {
        /// The node.
        id: NodeId,
        /// The incarnation that was not heard; a newer registration refuses the command.
        incarnation: NodeIncarnation,
        /// How many deaths it had before this one; a repeated command finds one more.
        deaths: DeathGeneration,
    },
    /// A dead member answers again.
    MarkAlive {
        /// The node.
        id: NodeId,
        /// The incarnation that answers.
        incarnation: NodeIncarnation,
        /// The death that is over; a late command after the next one is refused.
        deaths: DeathGeneration,
    },
    /// Set or clear the drain flag.
    SetDraining {
        /// The node.
        id: NodeId,
        /// New value.
        draining: bool,
    },
    /// Forget a drained member (it owns nothing, nothing moves to it, no ended copy is on it).
    RemoveMember {
        /// The node.
        id: NodeId,
        /// When its drain flag was set, in the state on which this was decided: what was found out
        /// under one drain says nothing about a later one.
        #[serde(default)]
        drain: RaftIndex,
    },
    /// Give a dead member up for good: its partitions begin anew, empty, on living members, and what
    /// only its disk holds is lost unless it comes back and hands it over.
    ForgetMember {
        /// The node.
        id: NodeId,
        /// The death in which its loss was accepted; refused when it was heard since.
        deaths: DeathGeneration,
    },
    /// Make a topic; placement is decided at apply over living, non-draining members.
    CreateTopic {
        /// Its name.
        name: TopicName,
        /// Number of partitions, 1 or more.
        partitions: u32,
        /// The topic that feeds it.
        parent: Option<TopicName>,
        /// Its settings.
        settings: TopicSettings,
    },
    /// Change some settings of a topic. Which ones is part of the command, so that two changes at
    /// the same time do not undo each other.
    SetTopicSettings {
        /// The incarnation.
        topic: TopicId,
        /// Where the new values are.
        settings: TopicSettings,
        /// Which of them are taken.
        change: Vec<Setting>,
    },
    /// Delete one incarnation of a topic.
    DeleteTopic {
        /// The incarnation.
        topic: TopicId,
    },
    /// The owner has made or opened the log of this epoch.
    MarkOpened {
        /// The partition.
        key: PartitionKey,
        /// The owner that says so.
        owner: NodeId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Start a move.
    SetTarget {
        /// The partition.
        key: PartitionKey,
        /// Expected owner.
        owner: NodeId,
        /// Expected epoch.
        epoch: Epoch,
        /// Expected running move, which this one replaces.
        replaces: Option<MoveId>,
        /// `applied` of the state on which this was decided: refused when the assignment changed
        /// after it, so that a repeated command cannot revive a move that was ended since.
        seen: RaftIndex,
        /// The new target.
        target: NodeId,
        /// An operator's own move.
        manual: bool,
    },
    /// End a move without a flip.
    ClearTarget {
        /// The partition.
        key: PartitionKey,
        /// The move.
        move_id: MoveId,
        /// The target itself gives up because its disk has no room; for the leader that takes the
        /// command, which then plans it elsewhere.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        no_room: bool,
    },
    /// Record the permission to freeze.
    BeginHandoff {
        /// The partition.
        key: PartitionKey,
        /// Expected owner.
        owner: NodeId,
        /// Expected target.
        target: NodeId,
        /// Expected move.
        move_id: MoveId,
    },
    /// Take the permission back: the source opens once this is applied.
    CancelHandoff {
        /// The partition.
        key: PartitionKey,
        /// The handoff recorded.
        handoff_id: HandoffId,
    },
    /// The flip.
    CompleteMove {
        /// The partition.
        key: PartitionKey,
        /// Expected owner.
        owner: NodeId,
        /// Expected target, the new owner.
        target: NodeId,
        /// Expected move.
        move_id: MoveId,
        /// Expected handoff.
        handoff_id: HandoffId,
        /// Offset after the last record captured.
        captured_end: Offset,
    },
    /// The flip without the source, which is dead.
    ForcePromote {
        /// The partition.
        key: PartitionKey,
        /// Expected owner.
        owner: NodeId,
        /// Expected epoch.
        epoch: Epoch,
        /// Expected target, the new owner.
        target: NodeId,
        /// Expected move, in which the target reached the source.
        move_id: MoveId,
        /// The owner's death that was waited out.
        deaths: DeathGeneration,
        /// What the staged copy recovers to.
        staged_hwm: Offset,
        /// What the owner had told.
        told_hwm: Offset,
    },
    /// The copy of an ended epoch is gone from its old owner's disk (and salvaged before).
    MarkReclaimed {
        /// The partition.
        key: PartitionKey,
        /// The ended epoch.
        epoch: Epoch,
        /// Its old owner.
        owner: NodeId,
    },
    /// Set or lift the copy rate limit.
    SetThrottle {
        /// Bytes/s a node; the largest number is unlimited, `None` adapts.
        bytes_per_s: Option<u64>,
    },
    /// Pause or resume the planner.
    SetRebalancePaused {
        /// New value.
        paused: bool,
    },
    /// Give the cluster its identity, once: what a new leader does first where there is none.
    IdentifyCluster {
        /// The identity.
        cluster: ClusterId,
    },
    /// A lost quorum was replaced. Written into the log of the chosen survivor while it does not run.
    Recovered {
        /// Which replacement, and what of the log was kept.
        recovery: Recovery,
    },
}

/// What applying a command answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// It took effect (or had taken effect already, where that is the same) at this log index.
    Done {
        /// The log index: for SetTarget the move id, for BeginHandoff the handoff id, for
        /// CreateTopic that of [`topic_id_at`](crate::meta::MetaState::topic_id_at).
        index: RaftIndex,
    },
    /// A guard refused it; nothing changed.
    Refused {
        /// Which guard.
        refusal: Refusal,
    },
}

/// Which guard refused a command. `final` in the text means: it can never become true again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// No such member.
    UnknownMember,
    /// The member was removed from the cluster.
    MemberRemoved,
    /// The member's data directory is another one than before (wiped disk under an old id).
    OtherDisk,
    /// A newer process of the node has registered.
    OldIncarnation,
    /// An id or a name is not valid.
    BadName {
        /// What is wrong with which.
        detail: String,
    },
    /// The member is not dead (or not alive), as the command wants it.
    WrongStatus,
    /// The member is draining or dead and cannot receive.
    CannotReceive,
    /// The member still owns, receives or keeps something.
    StillHolds,
    /// No such topic incarnation (final).
    UnknownTopic,
    /// The name is taken by a living topic.
    TopicExists,
    /// Partition count or settings out of range.
    BadSettings {
        /// What is wrong and what is allowed.
        detail: String,
    },
    /// No member can take partitions.
    NoReceiver,
    /// The owner is another one, or has another epoch (final for that epoch).
    NotOwner {
        /// Current owner.
        owner: NodeId,
        /// Current epoch.
        epoch: Epoch,
    },
    /// Another move runs, or none (final for that move id).
    OtherMove {
        /// The move recorded now.
        current: Option<MoveId>,
    },
    /// Another handoff is recorded, or none (final for that handoff id).
    OtherHandoff {
        /// The handoff recorded now.
        current: Option<HandoffId>,
    },
    /// A handoff is recorded already.
    HandoffRecorded,
    /// The owner is dead (rule R14).
    OwnerDead,
    /// The death generation is over or not reached (final), or the owner is alive.
    OtherDeath,
    /// The staged copy does not reach what the owner had told.
    BehindTold,
    /// The target holds an old copy of the partition that is not reclaimed yet (rule R1).
    TargetHoldsOldCopy,
    /// Target and owner are the same node.
    TargetIsOwner,
    /// The target has told the leader that its disk has no room for the partition. Of an operator's
    /// move, before it is proposed; the state machine knows no disks.
    NoRoom {
        /// Bytes of the partition.
        needed: u64,
        /// Bytes that copies to the target may take, beside those on their way.
        room: u64,
    },
    /// The assignment changed after the state on which the command was decided (final).
    ChangedSince {
        /// When it changed.
        changed: RaftIndex,
    },
    /// The cluster has another identity (final).
    OtherCluster,
}

impl Refusal {
    /// Whether a CompleteMove or ForcePromote that was refused so can never take effect any more:
    /// only then may its installed copy be rolled back. Every other answer is "unknown".
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self {
            Self::UnknownTopic
            | Self::NotOwner { .. }
            | Self::OtherMove { .. }
            | Self::OtherHandoff { .. }
            | Self::OtherDeath
            | Self::BehindTold
            | Self::ChangedSince { .. } => true,
            Self::UnknownMember
            | Self::MemberRemoved
            | Self::OtherDisk
            | Self::OldIncarnation
            | Self::BadName { .. }
            | Self::WrongStatus
            | Self::CannotReceive
            | Self::StillHolds
            | Self::TopicExists
            | Self::BadSettings { .. }
            | Self::NoReceiver
            | Self::HandoffRecorded
            | Self::OwnerDead
            | Self::TargetHoldsOldCopy
            | Self::TargetIsOwner
            | Self::OtherCluster
            | Self::NoRoom { .. } => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownMember => f.write_str("no such member; see `narad cluster members`"),
            Self::MemberRemoved => f.write_str(
                "the member was removed from the cluster; join with a new id and an empty data directory",
            ),
            Self::OtherDisk => f.write_str(
                "the cluster knows another data directory under this id and still needs what is on \
                 it; start the node on its old directory, or join with a new id",
            ),
            Self::OldIncarnation => {
                f.write_str("a newer process of the node has registered; stop this one or restart it")
            }
            Self::BadName { detail } | Self::BadSettings { detail } => f.write_str(detail),
            Self::WrongStatus => {
                f.write_str("the member is not in the state that this needs; see `narad cluster members`")
            }
            Self::CannotReceive => f.write_str(
                "the target is dead or draining; choose another, or cancel its decommission",
            ),
            Self::StillHolds => f.write_str(
                "the member still owns, receives or keeps partitions; wait until they have moved away",
            ),
            Self::UnknownTopic => f.write_str("no such topic; see `narad topic list`"),
            Self::TopicExists => f.write_str("a topic of this name exists; choose another name"),
            Self::NoReceiver => f.write_str(
                "no living member takes partitions; start a node or cancel a decommission",
            ),
            Self::NotOwner { owner, epoch } => {
                write!(f, "the partition is owned by {owner} in epoch {epoch}; ask that node")
            }
            Self::OtherMove { current: None } => f.write_str("the partition is not being moved"),
            Self::OtherMove { current: Some(id) } => {
                write!(f, "another move ({id}) of the partition runs; cancel it first")
            }
            Self::OtherHandoff { current: None } => f.write_str("no handoff is recorded"),
            Self::OtherHandoff { current: Some(id) } => write!(f, "another handoff ({id}) is recorded"),
            Self::HandoffRecorded => {
                f.write_str("the partition is being handed over now; try again in a moment")
            }
            Self::OwnerDead => f.write_str(
                "the owner is marked dead and its data is on its disk alone; start it again first",
            ),
            Self::OtherDeath => f.write_str("the owner is alive, or has died again since"),
            Self::BehindTold => {
                f.write_str("the copy lacks records that the owner had shown; wait for the owner")
            }
            Self::TargetHoldsOldCopy => f.write_str(
                "the target still keeps an older copy of the partition; wait until it is reclaimed",
            ),
            Self::TargetIsOwner => f.write_str("the target owns the partition already"),
            Self::NoRoom { needed, room } => write!(
                f,
                "the partition has {needed} bytes, and the target has room for {room}; free some \
                 there, or choose another"
            ),
            Self::ChangedSince { changed } => {
                write!(f, "the partition changed at {changed}; look again and decide anew")
            }
            Self::OtherCluster => f.write_str("the cluster has an identity already"),
        }
    }
}
