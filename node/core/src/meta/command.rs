//! Commands that go through Raft, and what applying one answers.
//!
//! What this file keeps true: a command carries every fact that its guard compares, so that it
//! means the same whenever it is applied.

use crate::ids::{
    DeathGeneration, Epoch, HandoffId, MoveId, NodeId, NodeIncarnation, Offset, PartitionKey,
    RaftIndex, TopicId, TopicName,
};
use crate::meta::TopicSettings;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// A change of the metadata. Encoded as JSON in the Raft log, tagged by name, so that fields can
/// be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
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
    },
    /// A dead member answers again.
    MarkAlive {
        /// The node.
        id: NodeId,
        /// The incarnation that answers.
        incarnation: NodeIncarnation,
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
    /// Change the settings of a topic.
    SetTopicSettings {
        /// The incarnation.
        topic: TopicId,
        /// New settings.
        settings: TopicSettings,
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
        /// Bytes/s a node; `None` lifts it.
        bytes_per_s: Option<u64>,
    },
    /// Pause or resume the planner.
    SetRebalancePaused {
        /// New value.
        paused: bool,
    },
}

/// What applying a command answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// It took effect (or had taken effect already, where that is the same) at this log index.
    Done {
        /// The log index: for SetTarget the move id, for BeginHandoff the handoff id, for
        /// CreateTopic the incarnation.
        index: RaftIndex,
    },
    /// A guard refused it; nothing changed.
    Refused {
        /// Which guard.
        refusal: Refusal,
    },
}

/// Which guard refused a command. `final` in the text means: it can never become true again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The owner's death generation is over (final), or it is alive.
    OtherDeath,
    /// The staged copy does not reach what the owner had told.
    BehindTold,
    /// The target holds an old copy of the partition that is not reclaimed yet (rule R1).
    TargetHoldsOldCopy,
    /// Target and owner are the same node.
    TargetIsOwner,
}
