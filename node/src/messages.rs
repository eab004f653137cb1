//! What the executors of one node ask each other.
//!
//! What this file keeps true: a partition is touched by its shard only and Raft by the control
//! core only; everybody else sends one of these, over a bounded channel, and waits for the answer.
//! Dropping the receiver of an answer never undoes work that has begun.

use narad_core::ids::{
    ClusterId, NodeId, NodeIncarnation, PartitionKey, RaftIndex, RaftTerm, TopicName,
};
use narad_core::meta::{Command, Heritage, Reply};
use narad_wire::error::WireFault;
use std::os::fd::OwnedFd;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

mod shard;

pub use shard::{
    CaptureView, Delivered, LeaseRef, LocalCopies, PartitionStat, ReplayBatch, ReplayRange,
    SessionView, Settle, ShardRequest, ShardSummary, Unappended,
};

/// Where an answer goes.
pub type Answer<T> = oneshot::Sender<T>;

/// Outcome of a proposal that was not applied for sure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// It was certainly not proposed: no leader is known or reachable. Safe to send again.
    #[error("no leader can be reached now: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// It may or may not be applied, now or later. Ask through a barrier before undoing anything.
    #[error("the outcome is unknown: {reason}")]
    Unknown {
        /// Why.
        reason: String,
    },
    /// This node is not the leader (answers to peers only; local proposals are forwarded).
    #[error("not the leader")]
    NotLeader {
        /// The leader, if known, with its address.
        leader: Option<(NodeId, String)>,
    },
}

/// An applied command and where.
pub type Proposed = Result<(RaftIndex, Reply), ProposeError>;

/// A node's heartbeat to the leader.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Sender.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: NodeIncarnation,
    /// Applied at the sender.
    pub applied: RaftIndex,
    /// Records in its ingress WALs.
    pub undispatched: u64,
    /// Ended copies on its disk.
    pub held_copies: u32,
    /// Free bytes on its disk.
    pub disk_free_bytes: u64,
    /// Used bytes on its disk.
    pub disk_used_bytes: u64,
    /// Bytes of owned partitions, for the planner.
    pub partition_bytes: Vec<(PartitionKey, u64)>,
    /// The sender's cluster, if it knows.
    pub cluster: Option<ClusterId>,
    /// Undispatched records that can go to dead owners only, by owner.
    pub waiting_for: Vec<(NodeId, u64)>,
}

/// The leader's answer to a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct BeatAnswer {
    /// Commit index at the leader; the lease counts once it is applied at the sender (R10).
    pub commit: RaftIndex,
    /// Lease from the sending of the beat, in ms; 0 renews nothing (R11).
    pub lease_ms: u32,
    /// The leader's term.
    pub term: RaftTerm,
    /// Whether this incarnation is registered; if not, the sender registers again.
    pub registered: bool,
}

/// A process that registers or joins.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// Its id.
    pub node: NodeId,
    /// Cap'n Proto listener.
    pub addr: String,
    /// Bulk listener.
    pub bulk_addr: String,
    /// Admin port or empty.
    pub http_addr: String,
    /// Which life of the process.
    pub incarnation: NodeIncarnation,
    /// Identity of the data directory.
    pub disk: u64,
    /// Shard executors.
    pub shards: u32,
    /// Program version.
    pub version: String,
    /// It was started as a founder on an empty disk; a cluster that it did not found refuses it.
    pub founder: bool,
    /// Where the metadata on its disk comes from.
    pub heritage: Heritage,
}

/// What the control core is asked. Views (members, plan, decommission checks) are structs of the
/// wire crate's client, so that they are printed as they are sent.
pub enum ControlRequest {
    /// A Raft message of a peer.
    Raft {
        /// Kind, as the Raft layer numbers them.
        kind: u16,
        /// Body.
        body: Vec<u8>,
        /// The sender's cluster, if it knows.
        cluster: Option<ClusterId>,
        /// Answer body.
        answer: Answer<Result<Vec<u8>, WireFault>>,
    },
    /// A connection of a peer that is for the control core, accepted by a shard.
    Connection {
        /// Its socket.
        socket: OwnedFd,
        /// Its room among the connections of that shard.
        permit: OwnedSemaphorePermit,
    },
    /// A command of this node: forwarded to the leader, retried while that is certainly safe, and
    /// answered after it is applied on this node too.
    Propose {
        /// The command.
        command: Command,
        /// Answer.
        answer: Answer<Proposed>,
    },
    /// A command that a peer forwards; answered with NotLeader when this node does not lead.
    ProposeHere {
        /// The command.
        command: Command,
        /// Answer.
        answer: Answer<Proposed>,
    },
    /// A barrier through the leader; when answered, everything committed before is applied here.
    Barrier {
        /// The index waited for.
        answer: Answer<Result<RaftIndex, ProposeError>>,
    },
    /// A peer's barrier, at the leader.
    ReadIndexHere {
        /// The read index.
        answer: Answer<Result<RaftIndex, ProposeError>>,
    },
    /// A peer's heartbeat, at the leader.
    Beat {
        /// The beat.
        beat: Beat,
        /// Answer.
        answer: Answer<Result<BeatAnswer, ProposeError>>,
    },
    /// A process registers or joins, at the leader.
    Join {
        /// Who.
        request: JoinRequest,
        /// Log index of the registration.
        answer: Answer<Result<RaftIndex, WireFault>>,
    },
    /// Members with roles, counts and what holds a removal.
    Members {
        /// Answer.
        answer: Answer<Result<narad_wire::client::MembersView, WireFault>>,
    },
    /// What the planner would do now, and why not more.
    Plan {
        /// As if this node were draining.
        draining: Option<NodeId>,
        /// Answer.
        answer: Answer<Result<narad_wire::client::PlanView, WireFault>>,
    },
    /// What giving up a dead node would lose.
    Loss {
        /// Which.
        node: NodeId,
        /// Answer.
        answer: Answer<Result<narad_wire::client::LossView, WireFault>>,
    },
    /// Running and finished moves of the whole cluster (for the admin port).
    Moves {
        /// Answer.
        answer: Answer<Result<narad_wire::client::MovesView, WireFault>>,
    },
    /// One topic, with the figures of every owner that can be reached (for the admin port).
    Topic {
        /// Its name.
        name: TopicName,
        /// Answer.
        answer: Answer<Result<narad_wire::client::TopicView, WireFault>>,
    },
    /// The node is about to stop: leadership goes to any other voter, if it is here.
    HandOver {
        /// Answered when it is away, or cannot go.
        answer: Answer<()>,
    },
    /// Leadership goes to another node.
    TransferLeader {
        /// To whom.
        to: NodeId,
        /// Answer.
        answer: Answer<Result<(), WireFault>>,
    },
}

/// What the mover is asked.
pub enum MoverRequest {
    /// Running and latest finished moves whose target is this node.
    Moves {
        /// The moves.
        answer: Answer<(
            Vec<narad_wire::client::MoveView>,
            Vec<narad_wire::client::MoveView>,
        )>,
    },
}
