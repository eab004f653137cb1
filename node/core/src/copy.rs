//! What one node tells another about the bytes of a partition: segments, manifests, captures.
//!
//! What this file keeps true: a manifest speaks only of durable bytes, and lists segments in
//! offset order without a gap; two nodes that agree on (segment, length, digest) hold the same
//! bytes below that length.

use crate::ids::{Epoch, HandoffId, MoveId, Offset, Origin};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Names one segment file of a partition. Ordered by base offset, then epoch: an empty segment
/// that an ended epoch left behind sorts before its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    /// Offset of the first record that it holds or would hold.
    pub base: Offset,
    /// Epoch under which it was made.
    pub epoch: Epoch,
}

/// One segment as its owner describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentState {
    /// Which one.
    pub id: SegmentId,
    /// Bytes of the file that are durable; a multiple of the logical block.
    pub durable_len: u64,
    /// CRC32C of the bytes `0..durable_len`.
    pub digest: u32,
    /// Offset after the last record below `durable_len`.
    pub end: Offset,
    /// No longer written to.
    pub sealed: bool,
}

/// A partition as its owner describes it at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Manifest {
    /// Every segment that holds records at or above `start`, in offset order.
    pub segments: Vec<SegmentState>,
    /// Retention's lower bound: the first offset that may be read.
    pub start: Offset,
    /// Exclusive bound of what consumers may see.
    pub hwm: Offset,
    /// The consumers' committed offset.
    pub frontier: Offset,
    /// Highest dispatched sequence appended, by ingress WAL.
    pub marks: Vec<Origin>,
    /// Visibility fence still standing at the owner: records from `.0` up to `.1` are hidden until
    /// an append passes `.1`.
    pub fence: Option<(Offset, Offset)>,
}

impl Manifest {
    /// Durable bytes in all segments.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let lens = self.segments.iter().map(|s| s.durable_len);
        lens.fold(0, u64::saturating_add)
    }

    /// Offset after the last durable record, visible or not.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.segments.last().map_or(self.hwm, |s| s.end)
    }
}

/// How a copy came to be installed; an installed directory carries it until its flip is known
/// (rule R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InstallMark {
    /// The move that made the copy.
    pub move_id: MoveId,
    /// The handoff under which the final capture was taken; `None` for a forced promotion.
    pub handoff_id: Option<HandoffId>,
}
