//! Records on their way to and from a client.

use crate::convert::Record;
use narad_core::ids::{Nonce, Offset, PartitionIndex, TopicId};
use std::rc::Rc;

/// What became of a record that was produced. Either way it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// It is in its partition.
    Committed {
        /// Which one.
        partition: PartitionIndex,
        /// Where.
        offset: Offset,
    },
    /// It is in the answering node's ingress WAL and will be delivered to its partition's owner.
    Accepted,
}

/// One delivered, unacked record, as its consumer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition.
    pub partition: PartitionIndex,
    /// The record.
    pub offset: Offset,
    /// Proof.
    pub nonce: Nonce,
}

/// One record with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What to ack.
    pub lease: Lease,
    /// The record.
    pub record: Record,
    /// How many times this owner has delivered it, this one included.
    pub deliveries: u32,
    /// The topic's incarnation.
    pub topic: TopicId,
    /// Who leased it: the lease is settled there.
    pub node: Rc<str>,
}

/// One record of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Where it is.
    pub offset: Offset,
    /// The record.
    pub record: Record,
}

/// A batch of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayBatch {
    /// Records in offset order.
    pub records: Vec<Replayed>,
    /// Where the next call goes on.
    pub next: Offset,
    /// First offset that is kept.
    pub start: Offset,
    /// High-watermark.
    pub hwm: Offset,
    /// Records that could not be read and were passed over.
    pub skipped: u64,
}

impl ReplayBatch {
    /// Whether nothing is left below `to` now.
    #[must_use]
    pub fn is_done(&self, to: Offset) -> bool {
        self.next >= to.min(self.hwm)
    }
}
