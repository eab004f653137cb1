//! Labels of the metrics.
//!
//! What this file keeps true: every label is out of a closed list, so the number of series is fixed.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

/// What became of a produced record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ProduceOutcome {
    /// Appended to its partition here.
    Committed,
    /// Kept in the ingress WAL, to be dispatched.
    Accepted,
    /// Refused.
    Refused,
}

/// Label of [`ProduceOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProduceLabel {
    /// What became of it.
    pub outcome: ProduceOutcome,
}

/// What a consume call was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ConsumeOutcome {
    /// Records.
    Delivered,
    /// Nothing: none came in the time it was to wait.
    Empty,
    /// An error.
    Refused,
}

/// Label of [`ConsumeOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ConsumeLabel {
    /// What it was answered with.
    pub outcome: ConsumeOutcome,
}

/// How a move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum MoveOutcome {
    /// The owner changed, after a handoff.
    Flipped,
    /// The owner changed without the source.
    Promoted,
    /// The target was cleared.
    Cancelled,
    /// Another move took its place.
    Superseded,
    /// The target's disk had no room.
    NoRoom,
}

/// Label of [`MoveOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MoveLabel {
    /// How it ended.
    pub outcome: MoveOutcome,
}

/// A part of a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum FreezePart {
    /// Appends in flight at the source.
    Settle,
    /// Copy of the last tail.
    Drain,
    /// Meta written and synced.
    Persist,
    /// Rename into place.
    Install,
    /// The compare-and-swap.
    Flip,
    /// Until the new owner serves.
    Takeover,
    /// All of it.
    Whole,
}

/// Label of [`FreezePart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FreezeLabel {
    /// Which part.
    pub part: FreezePart,
}

/// A direction of copied bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Direction {
    /// Received by this node.
    In,
    /// Sent by this node.
    Out,
}

/// Label of [`Direction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DirectionLabel {
    /// Which way.
    pub direction: Direction,
}

/// Label of the way in which segments are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PathLabel {
    /// `splice` or `read-send`.
    pub path: &'static str,
}

/// A call of the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Call {
    /// `produce`.
    Produce,
    /// `consume`.
    Consume,
    /// `ack`.
    Ack,
    /// `nack`.
    Nack,
    /// `extend`.
    Extend,
    /// `replay`.
    Replay,
    /// `append`: another node's dispatch.
    Append,
}

/// Label of an answered call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabel {
    /// Which.
    pub call: Call,
    /// `ok`, or the name of the code of the error for the whole call.
    pub outcome: &'static str,
}
