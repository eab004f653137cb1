//! What a shard is asked, and what it answers.
//!
//! What this file keeps true: a partition is touched by its shard only.

use super::Answer;
use narad_core::copy::{Manifest, SegmentState};
use narad_core::ids::{
    CopyId, Epoch, HandoffId, MoveId, NodeId, Nonce, Offset, PartitionIndex, PartitionKey,
    RaftIndex, TopicId, WalId, WalSeq, WallMs,
};
use narad_storage::{Installed, Record, StoredRecord};
use narad_wire::error::WireFault;
use std::collections::BTreeMap;
use std::time::Instant;

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
    /// How many of them can go to dead owners only, by owner.
    pub waiting_for: BTreeMap<NodeId, u64>,
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
        /// The caller asks each owner by itself: it is another node, or a client that knows them.
        local_only: bool,
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
