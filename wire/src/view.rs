//! What clients and operators see of a cluster, as plain data.
//!
//! What this file keeps true: a view is printed as it was sent; its JSON field names are stable
//! (fields are only added) and carry their units.

use serde::{Deserialize, Serialize};

/// Who answers a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its id.
    pub id: String,
    /// Program version.
    pub version: String,
    /// Shard executors.
    pub shards: u32,
    /// Largest record, in bytes.
    pub max_record_bytes: u32,
    /// Largest batch, in bytes.
    pub max_batch_bytes: u32,
    /// Most records of a batch.
    pub max_batch_records: u32,
    /// Which life of the process.
    pub incarnation: u64,
}

/// Settings of a topic. 0 or empty means the default, or no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSettingsView {
    /// How long a delivered record stays invisible, in ms; 0: default.
    pub visibility_ms: u64,
    /// Oldest record kept, in ms by record time; 0 keeps all.
    pub retention_ms: u64,
    /// Most bytes kept a partition; 0 keeps all.
    pub retention_bytes: u64,
    /// Largest record, in bytes; 0: default.
    pub max_record_bytes: u32,
    /// Deliveries before a record goes to the dead-letter topic; 0: no limit.
    pub max_deliveries: u32,
    /// The dead-letter topic; empty: none.
    pub dead_letter: String,
    /// Records of a partition that are out at a time; 0: default.
    #[serde(default)]
    pub max_leases: u32,
    /// Records of a partition acked out of order; 0: default.
    #[serde(default)]
    pub max_acked_ahead: u32,
}

/// One partition of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Index inside the topic.
    pub index: u32,
    /// Owner's node id.
    pub owner: String,
    /// Number of ownership changes.
    pub epoch: u64,
    /// Where it is going; empty when stable.
    pub target: String,
    /// Identity of the running move; 0: none.
    pub move_id: u64,
    /// Recorded permission to freeze; 0: none.
    pub handoff_id: u64,
    /// First offset kept; this and the next four are 0 while `known` is false.
    pub start: u64,
    /// High-watermark.
    pub hwm: u64,
    /// Consumers' committed offset.
    pub frontier: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether the owner could be asked for these figures.
    pub known: bool,
}

/// One topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicView {
    /// Incarnation.
    pub id: u64,
    /// Name.
    pub name: String,
    /// The topic that feeds it; empty: none.
    pub parent: String,
    /// Settings.
    pub settings: TopicSettingsView,
    /// Partitions by index.
    pub partitions: Vec<PartitionView>,
}

/// One member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Node id.
    pub id: String,
    /// `host:port` of its Cap'n Proto listener.
    pub addr: String,
    /// `host:port` of its bulk listener.
    pub bulk_addr: String,
    /// `host:port` of its admin port; empty: none.
    pub http_addr: String,
    /// `alive` or `dead`.
    pub status: String,
    /// Being drained off.
    pub draining: bool,
    /// `leader`, `voter`, `learner` or `none`.
    pub role: String,
    /// Partitions that it owns.
    pub owned: u32,
    /// Moves towards it.
    pub inbound: u32,
    /// Moves away from it.
    pub outbound: u32,
    /// Shard executors.
    pub shards: u32,
    /// Program version.
    pub version: String,
    /// Free bytes on its data disk; `None` when it has not told the present leader, as what follows.
    pub disk_free_bytes: Option<u64>,
    /// Used bytes on its data disk.
    pub disk_used_bytes: Option<u64>,
    /// Records in its ingress WALs as last told; known at the leader only.
    pub undispatched: Option<u64>,
    /// What holds its removal back; empty when nothing does.
    pub held: String,
    /// Which life of the process.
    pub incarnation: u64,
}

/// The members and Raft's standing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersView {
    /// Members by id.
    pub members: Vec<MemberView>,
    /// The leader's id; empty while there is none.
    pub leader: String,
    /// Raft term.
    pub term: u64,
    /// Last log index applied at the answering node.
    pub applied: u64,
    /// What the asked node has applied so far, because the leader could not be asked: it may be old.
    #[serde(default)]
    pub local: bool,
}

/// Parts of one freeze, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeSplitView {
    /// Waiting for appends in flight at the source.
    pub settle_us: u64,
    /// Draining the static tail.
    pub drain_us: u64,
    /// Writing and syncing what makes the copy a log.
    pub persist_us: u64,
    /// Renaming it into place, durably.
    pub install_us: u64,
    /// The compare-and-swap.
    pub flip_us: u64,
    /// Until the new owner serves.
    pub takeover_us: u64,
}

/// One move.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MoveView {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: u32,
    /// Owner at its start.
    pub source: String,
    /// Where it goes.
    pub target: String,
    /// Identity.
    pub move_id: u64,
    /// `waiting`, `open`, `catch_up`, `begin_handoff`, `freeze`, `finalize`, `install`, `flip`,
    /// `flip_unknown` (the answer to the flip was lost, the metadata is being asked), `roll_back` (the
    /// flip was refused for good, the copy goes back into staging), `serve`, `done` or `failed`.
    pub phase: String,
    /// Bytes at the target.
    pub bytes_done: u64,
    /// Bytes still at the source only.
    pub bytes_left: u64,
    /// Copy bandwidth B in bytes/s: of the latest pass that was long enough to measure, of all that was
    /// copied until there is one; 0: nothing was copied yet.
    pub bytes_per_s: u64,
    /// Write rate W of the source, in bytes/s.
    pub write_bytes_per_s: u64,
    /// Passes so far.
    pub passes: u32,
    /// Whether the tail shrank below the lag bound before the freeze.
    pub converged: bool,
    /// Since its start, in ms.
    pub elapsed_ms: u64,
    /// Whole freeze, in microseconds; 0 until it ended.
    pub freeze_us: u64,
    /// Parts of the freeze.
    pub split: FreezeSplitView,
    /// Latest error; empty: none.
    pub last_error: String,
    /// Recorded permission to freeze; 0: none.
    pub handoff_id: u64,
    /// How it ended: `flipped`, `promoted` (the source was dead, the copy took its place),
    /// `superseded` or `cancelled` (its topic is gone); empty while it runs.
    pub outcome: String,
    /// Bytes left at the end of each pass.
    pub tails: Vec<u64>,
    /// Ordered by an operator.
    pub manual: bool,
    /// While the source is frozen, how long it has been, in microseconds, counted from asking it to freeze;
    /// 0 otherwise.
    #[serde(default)]
    pub frozen_for_us: u64,
}

impl MoveView {
    /// Share of the bytes that are at the target, 0 to 100; an empty partition counts as copied.
    #[must_use]
    pub fn percent(&self) -> u8 {
        let all = u128::from(self.bytes_done) + u128::from(self.bytes_left);
        if all == 0 {
            return 100;
        }
        u8::try_from(u128::from(self.bytes_done) * 100 / all).unwrap_or(100)
    }

    /// Expected time to the end of the copy, in ms, while B is known and above W.
    #[must_use]
    pub fn eta_ms(&self) -> Option<u64> {
        if self.bytes_left == 0 {
            return Some(0);
        }
        let net = self.bytes_per_s.checked_sub(self.write_bytes_per_s)?;
        if net == 0 {
            return None;
        }
        u64::try_from(u128::from(self.bytes_left) * 1_000 / u128::from(net)).ok()
    }
}

/// Running and latest finished moves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovesView {
    /// Running.
    pub moves: Vec<MoveView>,
    /// Finished, latest last; a bounded history.
    pub finished: Vec<MoveView>,
}

/// One move that the planner would start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStepView {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: u32,
    /// Owner.
    pub from: String,
    /// New owner.
    pub to: String,
    /// Why.
    pub reason: String,
    /// Size of the partition as its owner told last; 0: empty, and of older nodes also unknown.
    #[serde(default)]
    pub bytes: u64,
}

/// What the planner would do now, and why not more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanView {
    /// Moves to start now.
    pub steps: Vec<PlanStepView>,
    /// Moves that wait until running ones end.
    #[serde(default)]
    pub later: Vec<PlanStepView>,
    /// All that have to move, those included that are not listed.
    #[serde(default)]
    pub total_steps: u64,
    /// Their bytes, as far as they are known.
    #[serde(default)]
    pub total_bytes: u64,
    /// What holds something back, a sentence each.
    pub notes: Vec<String>,
    /// Of a decommission: what keeps it from ending until somebody does something about it, a sentence each.
    #[serde(default)]
    pub blocked: Vec<String>,
}

/// Where a topic's partitions are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocationView {
    /// The topic with its partitions.
    pub topic: TopicView,
    /// The nodes that own or will own them.
    pub nodes: Vec<MemberView>,
}

/// What the cluster says to whoever hands over the disk of a node, confirmed by a leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarewellView {
    /// Whether it has removed that node, or given it up.
    pub removed: bool,
    /// Whether that node was a member only in what a replaced quorum alone knew.
    #[serde(default)]
    pub lost: bool,
    /// All topics, without figures.
    pub topics: Vec<TopicView>,
}

/// A partition that giving up its dead owner loses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPartitionView {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: u32,
    /// Number of ownership changes so far.
    pub epoch: u64,
    /// Bytes on the disk as told last; `None`: nobody has told the present leader.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Where a copy is under way, which would be given up too; empty: nowhere.
    pub target: String,
}

/// An old copy on a disk that is given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCopyView {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: u32,
    /// The epoch that ended.
    pub epoch: u64,
    /// How: completed, promoted or forgotten.
    pub end: String,
    /// Records from this offset on may be on that disk only. With `forgotten` those that were not
    /// acknowledged, wherever they are.
    pub from: u64,
}

/// What giving up a dead node loses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossView {
    /// Its partitions.
    pub partitions: Vec<LostPartitionView>,
    /// Moves to it that are cancelled.
    pub inbound: u32,
    /// Accepted records in its ingress WALs as it told last.
    pub undispatched: u64,
    /// Whether it has told the present leader anything.
    pub told: bool,
    /// Old copies on its disk that were not salvaged and reclaimed yet.
    #[serde(default)]
    pub copies: Vec<LostCopyView>,
    /// How many times it has been marked dead: names the list whose loss is accepted.
    #[serde(default)]
    pub deaths: u64,
    /// What speaks against it now, and what to do first, a sentence each.
    pub notes: Vec<String>,
}
