//! What the dispatcher is told, what it wants done, and its bounds.
//!
//! What this file keeps true: every queue and every wait of the dispatcher has its bound here.

use crate::ids::{Epoch, NodeId, PartitionIndex, PartitionKey, TopicId, WalSeq};
use crate::meta::MetaState;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Most records of one batch.
pub const BATCH_RECORDS: usize = 1_000;
/// Most bytes of one batch, unless a single record is larger.
pub const BATCH_BYTES: u64 = 512 << 10;
/// Batches on their way at once: with the bytes of a batch it bounds the memory of a dispatcher.
pub const SENDS_MAX: usize = 64;
/// Batches on their way to one node at once.
pub const SENDS_A_NODE_MAX: usize = 8;
/// Records of one partition that are remembered; the rest stays in the WAL until there is room.
pub const QUEUE_MAX: usize = 4_096;
/// Records of one partition that are remembered however crowded it is; below half of it, more are
/// read.
pub const QUEUE_LOW: usize = 64;
/// Records that are remembered in all, not counting [`QUEUE_LOW`] of every partition.
pub const WINDOW_MAX: usize = 131_072;
/// Records read from the WAL at once.
pub const READ_MAX: usize = 4_096;
/// First wait after a refusal, in ms; it doubles.
pub const RETRY_MIN_MS: u64 = 10;
/// Longest wait after a refusal, in ms.
pub const RETRY_MAX_MS: u64 = 1_000;
/// Longest wait that an owner may ask for, in ms.
pub const RETRY_ADVICE_MAX_MS: u64 = 5_000;

const _: () = {
    assert!(QUEUE_LOW > 1 && QUEUE_LOW < QUEUE_MAX && QUEUE_MAX <= WINDOW_MAX);
    assert!(SENDS_A_NODE_MAX * 4 <= SENDS_MAX);
    assert!(RETRY_MIN_MS > 0 && RETRY_MIN_MS < RETRY_MAX_MS);
};

/// One record of the WAL, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its sequence.
    pub seq: WalSeq,
    /// Where it belongs.
    pub key: PartitionKey,
    /// The client named the partition.
    pub pinned: bool,
    /// Bytes of key and value.
    pub bytes: u64,
}

/// How a batch fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// Durable at the owner (or was before).
    Appended,
    /// Refused, unreachable, or no answer: it is sent again.
    Again {
        /// What the owner advised to wait, in ms; 0 for no advice.
        retry_after_ms: u64,
    },
}

/// What happens to the dispatcher.
#[derive(Debug)]
pub enum DispatchInput {
    /// This state is applied here.
    Applied(Arc<MetaState>),
    /// Records have become durable in the WAL.
    Arrived,
    /// The reading that was asked for.
    Read {
        /// What was found, in order of sequences.
        entries: Vec<Entry>,
        /// Nothing durable lies behind.
        exhausted: bool,
    },
    /// Reading failed; it is asked for again at a tick.
    ReadFailed,
    /// A batch has come back.
    Sent {
        /// Its partition.
        key: PartitionKey,
        /// How.
        end: SendEnd,
    },
    /// A rerouting has ended.
    Rerouted {
        /// The partition that the records belonged to.
        key: PartitionKey,
        /// They are durable under the other partition.
        durable: bool,
    },
    /// A barrier has ended; the state of the confirmation was told by `Applied` before.
    Barrier {
        /// It was confirmed.
        confirmed: bool,
    },
    /// Time passes; wanted at [`super::Dispatch::next_wake`].
    Tick,
}

/// What the shell is to do. Effects of one step are to be begun in their order: what is done with
/// must not be found by a reading that is asked for behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DispatchEffect {
    /// Read the WAL and answer with `Read`.
    Read {
        /// First sequence.
        from: WalSeq,
        /// Most records.
        max: usize,
    },
    /// Send these records to the owner (which may be this node) and answer with `Sent`.
    Send {
        /// The partition.
        key: PartitionKey,
        /// Its owner.
        to: NodeId,
        /// Its epoch.
        epoch: Epoch,
        /// Which records, ascending.
        seqs: Vec<WalSeq>,
    },
    /// Make these records durable in the WAL under another partition of the topic, as new
    /// entries, and answer with `Rerouted`.
    Reroute {
        /// Their partition, whose owner is dead.
        key: PartitionKey,
        /// The partition that takes them.
        to: PartitionIndex,
        /// Which records.
        seqs: Vec<WalSeq>,
    },
    /// These records are done with in the WAL.
    Done {
        /// Which.
        seqs: Vec<WalSeq>,
    },
    /// The topic of these records is gone, confirmed: they are done with, undelivered.
    Discard {
        /// The topic.
        topic: TopicId,
        /// Which.
        seqs: Vec<WalSeq>,
    },
    /// Run a barrier, tell the state that it confirms, and answer with `Barrier`.
    Barrier,
}
