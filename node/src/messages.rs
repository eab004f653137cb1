//! What the executors of one node ask each other.
//!
//! What this file keeps true: a partition is touched by its shard only and Raft by the control
//! core only; everybody else sends one of these, over a bounded channel, and waits for the answer.
//! Dropping the receiver of an answer never undoes work that has begun.

use narad_core::copy::{Manifest, SegmentState};
use narad_core::ids::{
    CopyId, Epoch, HandoffId, MoveId, NodeId, NodeIncarnation, Nonce, Offset, PartitionIndex,
    PartitionKey, RaftIndex, RaftTerm, TopicId, TopicName, WalId, WalSeq, WallMs,
};
use narad_core::meta::{Command, Reply};
use narad_storage::{Installed, Record, StoredRecord};
use narad_wire::error::WireFault;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

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

/// A lease that a consumer names.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRef {
    /// The partition.
    pub partition: PartitionIndex,
    /// The record.
    pub offset: Offset,
    /// Proof.
    pub nonce: Nonce,
}

/// What a consumer does with leases.
#[derive(Clone, Copy, Debug)]
pub enum Settle {
    /// Done with the records.
    Ack,
    /// Deliver again after a delay.
    Nack {
        /// The delay in ms.
        delay_ms: u64,
    },
    /// Keep for longer.
    Extend {
        /// From now, in ms.
        visibility_ms: u64,
    },
    /// They never reached their consumer: due again at once, and not counted as delivered.
    Undeliver,
}

/// What a replay reads.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRange {
    /// The partition.
    pub partition: PartitionIndex,
    /// From this offset.
    pub from: Offset,
    /// From the first record of this time or later, if that is behind `from`; 0: no matter when.
    pub from_time: WallMs,
    /// Below this offset.
    pub to: Offset,
    /// Most records.
    pub max_records: usize,
    /// Most bytes.
    pub max_bytes: usize,
}

/// One record on its way to a consumer.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Its lease.
    pub lease: LeaseRef,
    /// The record.
    pub record: StoredRecord,
    /// Deliveries by this owner, this one included.
    pub deliveries: u32,
}

/// A batch of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayBatch {
    /// Records with their offsets.
    pub records: Vec<(Offset, StoredRecord)>,
    /// Where the next call goes on.
    pub next: Offset,
    /// First offset that can be read.
    pub start: Offset,
    /// High-watermark.
    pub hwm: Offset,
    /// Unreadable records passed over.
    pub skipped: u64,
}

/// Counters of one open partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionStat {
    /// The partition and epoch.
    pub copy: CopyId,
    /// First offset kept.
    pub start: Offset,
    /// High-watermark.
    pub hwm: Offset,
    /// Frontier.
    pub frontier: Offset,
    /// Bytes on disk.
    pub bytes: u64,
}

/// What a copy session answers at its Open and at every refresh.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The partition now.
    pub manifest: Manifest,
    /// W, bytes/s.
    pub write_bytes_per_s: u64,
    /// For the bulk channel.
    pub bulk_token: u64,
}

/// A frozen partition's final capture.
#[derive(Clone, Debug)]
pub struct CaptureView {
    /// The capture.
    pub manifest: Manifest,
    /// Time from the freeze until appends in flight had settled, in µs.
    pub settle_us: u64,
}

/// What the mover finds on this node before it opens a session (rule R1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalCopies {
    /// No real copy of the partition and no open log of it.
    Clear,
    /// A real copy that is to be salvaged and reclaimed first.
    Occupied {
        /// Which.
        copy: CopyId,
    },
    /// An installed copy whose flip is not known yet (rule R3).
    Unknown {
        /// Which.
        copy: CopyId,
    },
}

/// Records that were not appended for sure.
#[derive(Debug)]
pub struct Unappended {
    /// Why.
    pub fault: Box<WireFault>,
    /// The records, when they may go elsewhere: nothing of them was written, or they were written
    /// where they may not count. `None` when that is unknown or they can go nowhere else.
    pub records: Option<Vec<Record>>,
}

impl Unappended {
    /// Nothing was written: the records may go elsewhere.
    #[must_use]
    pub fn untouched(fault: WireFault, records: Vec<Record>) -> Self {
        Self {
            fault: Box::new(fault),
            records: Some(records),
        }
    }

    /// What became of the records is unknown, or they are refused for good.
    #[must_use]
    pub fn gone(fault: WireFault) -> Self {
        Self {
            fault: Box::new(fault),
            records: None,
        }
    }
}

/// Totals of one shard, for heartbeats and metrics.
#[derive(Clone, Debug, Default)]
pub struct ShardSummary {
    /// Index of the metadata under which this was summed up: what a record that came later was
    /// decided upon is not older.
    pub applied: RaftIndex,
    /// Records in its ingress WALs, and those on their way into them.
    pub undispatched: u64,
    /// Ended copies still here.
    pub held_copies: u32,
    /// Owned partitions and their bytes.
    pub partition_bytes: Vec<(PartitionKey, u64)>,
}

/// What a shard is asked.
pub enum ShardRequest {
    /// Append straight into an owned, open partition (all of one partition).
    Append {
        /// The partition.
        key: PartitionKey,
        /// The records.
        records: Vec<Record>,
        /// Offset of the first, or why not; with the records when they may go elsewhere.
        answer: Answer<Result<Offset, Unappended>>,
    },
    /// Append dispatched records; those at or below the mark of their WAL are duplicates.
    Dispatched {
        /// The partition.
        key: PartitionKey,
        /// The epoch that the sender knows.
        epoch: Epoch,
        /// Their WAL.
        wal: WalId,
        /// Records by sequence, ascending.
        records: Vec<(WalSeq, Record)>,
        /// (end, duplicates).
        answer: Answer<Result<(Offset, u32), WireFault>>,
    },
    /// Lease records of this shard's partitions of a topic; parks up to `wait_ms`. Whoever gives
    /// up waiting closes the receiver and gives back what it still finds in it.
    Consume {
        /// The topic.
        topic: TopicId,
        /// Most records.
        max_records: usize,
        /// Most bytes.
        max_bytes: usize,
        /// Visibility, or the topic's.
        visibility_ms: Option<u64>,
        /// How long to park.
        wait_ms: u64,
        /// What was leased.
        answer: Answer<Result<Vec<Delivered>, WireFault>>,
    },
    /// Ack, nack or extend; one result a lease, in order.
    Settle {
        /// The topic.
        topic: TopicId,
        /// What.
        settle: Settle,
        /// Which.
        leases: Vec<LeaseRef>,
        /// Results.
        answer: Answer<Vec<Result<(), WireFault>>>,
    },
    /// Read without leases.
    Replay {
        /// The partition.
        key: PartitionKey,
        /// Which records.
        range: ReplayRange,
        /// The batch.
        answer: Answer<Result<ReplayBatch, WireFault>>,
    },
    /// Counters of this shard's open partitions of a topic.
    Stats {
        /// The topic.
        topic: TopicId,
        /// Counters.
        answer: Answer<Vec<PartitionStat>>,
    },
    /// Totals.
    Summary {
        /// Totals.
        answer: Answer<ShardSummary>,
    },
    /// Open a copy session.
    OpenCopy {
        /// The partition.
        key: PartitionKey,
        /// The epoch that the target knows.
        epoch: Epoch,
        /// The move.
        move_id: MoveId,
        /// Who asks.
        target: NodeId,
        /// The partition now.
        answer: Answer<Result<SessionView, WireFault>>,
    },
    /// The partition now, for the next pass.
    RefreshCopy {
        /// The partition.
        key: PartitionKey,
        /// The move.
        move_id: MoveId,
        /// The partition now.
        answer: Answer<Result<SessionView, WireFault>>,
    },
    /// Whether this prefix is the same here.
    CheckPrefix {
        /// The partition.
        key: PartitionKey,
        /// The move.
        move_id: MoveId,
        /// Segment, length and digest at the target.
        segment: SegmentState,
        /// Whether they match.
        answer: Answer<Result<bool, WireFault>>,
    },
    /// Freeze, settle and capture.
    Freeze {
        /// The partition.
        key: PartitionKey,
        /// The move.
        move_id: MoveId,
        /// The permission.
        handoff_id: HandoffId,
        /// The capture.
        answer: Answer<Result<CaptureView, WireFault>>,
    },
    /// The drain makes progress.
    RenewFreeze {
        /// The partition.
        key: PartitionKey,
        /// The permission.
        handoff_id: HandoffId,
        /// Whether it still stands.
        answer: Answer<Result<(), WireFault>>,
    },
    /// The session ends.
    CloseCopy {
        /// The partition.
        key: PartitionKey,
        /// The move.
        move_id: MoveId,
        /// Done.
        answer: Answer<Result<(), WireFault>>,
    },
    /// Whether this epoch's log is open here.
    Serves {
        /// The copy.
        copy: CopyId,
        /// Whether.
        answer: Answer<bool>,
    },
    /// What is here of a partition, asked by the mover before staging and before an install.
    CheckLocal {
        /// The partition.
        key: PartitionKey,
        /// What is here.
        answer: Answer<LocalCopies>,
    },
    /// What the mover has installed, before it asks for the flip: whoever opens the copy next need not
    /// look at the disk. `None`: it takes the copy back, or may have.
    Installed {
        /// The copy.
        copy: CopyId,
        /// What is there.
        installed: Option<Installed>,
    },
    /// The mover has installed this copy and its flip is applied: open it and serve.
    Serve {
        /// The copy.
        copy: CopyId,
        /// Since when it is served, or why not.
        answer: Answer<Result<Instant, WireFault>>,
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
