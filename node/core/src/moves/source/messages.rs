//! What happens to the owner's side, what it asks its shell for, and what it refuses.
//!
//! What this file keeps true: the enums are closed; no refusal stands for an unknown outcome.

use crate::ids::{Epoch, HandoffId, MoveId, NodeId, RaftIndex};
use crate::meta::Assignment;

/// What happens to the owner's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceInput {
    /// Metadata up to `index` is applied; `None`: the topic (incarnation) is gone. Feed it before
    /// any call that arrived after that version was published; unchanged assignments may be fed.
    AssignmentApplied {
        /// Version of the metadata.
        index: RaftIndex,
        /// The partition's assignment in it.
        assignment: Option<Assignment>,
    },
    /// `openCopy`: the target opens (or opens again) its copy session.
    OpenSession {
        /// The epoch that the target believes to copy.
        epoch: Epoch,
        /// Its move.
        move_id: MoveId,
        /// The target.
        target: NodeId,
    },
    /// `refreshCopy`.
    Refresh {
        /// The move.
        move_id: MoveId,
    },
    /// `freeze`.
    Freeze {
        /// The move.
        move_id: MoveId,
        /// The recorded permission.
        handoff_id: HandoffId,
    },
    /// The settle begun by [`SourceEffect::BeginSettle`] is over: no append is queued or in flight.
    Settled {
        /// The handoff that it was begun for.
        handoff_id: HandoffId,
    },
    /// `renewFreeze`: the target made progress with its drain.
    RenewFreeze {
        /// The handoff.
        handoff_id: HandoffId,
    },
    /// `closeCopy`.
    CloseSession {
        /// The move.
        move_id: MoveId,
    },
    /// Time passes; due at [`SourcePartition::next_deadline`](super::SourcePartition::next_deadline).
    Tick,
}

/// What the shell does about it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEffect {
    /// Publish the log's manifest to the bulk channel for this session and answer the call that was
    /// this input with it.
    AnswerManifest {
        /// The session's move.
        move_id: MoveId,
    },
    /// Answer the call that was this input with success.
    AnswerDone,
    /// Answer the call that was this input with this refusal.
    AnswerRefused(SourceRefusal),
    /// Keep retention from deleting anything from the log's start on.
    PinFloor {
        /// The session's move.
        move_id: MoveId,
    },
    /// The session of this move is over: close it at the bulk channel and let retention go on.
    SessionClosed {
        /// The session's move.
        move_id: MoveId,
    },
    /// Appends are refused from now on; wait until none is queued or in flight, then feed
    /// [`SourceInput::Settled`].
    BeginSettle {
        /// The handoff.
        handoff_id: HandoffId,
    },
    /// Publish the log's manifest (frontier from memory) and answer every waiting Freeze call of
    /// this handoff with it.
    AnswerCapture {
        /// The handoff.
        handoff_id: HandoffId,
    },
    /// Answer every waiting Freeze call of this handoff with this refusal.
    FreezeRefused {
        /// The handoff.
        handoff_id: HandoffId,
        /// Why.
        refusal: SourceRefusal,
    },
    /// Propose `CancelHandoff`. Its outcome need not be fed: only its application counts.
    ProposeCancel {
        /// The handoff to cancel.
        handoff_id: HandoffId,
    },
    /// The cancel is applied: appends are taken again.
    Unfreeze {
        /// The handoff that was cancelled.
        handoff_id: HandoffId,
    },
    /// This node does not own the copy any more: refuse appends and consumers, settle what is in
    /// flight, close the log; the copy becomes an ended one. Comes once, and last.
    StopServing {
        /// Why.
        reason: StopReason,
    },
}

/// Why a copy is no longer served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The flip is applied.
    Flipped {
        /// The new owner.
        owner: NodeId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The topic was deleted.
    TopicGone,
}

/// Why a call of the target was refused. None of these is an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRefusal {
    /// This node does not own that epoch of the partition (any more).
    NotOwner,
    /// What the call names is not applied here yet; ask again soon.
    NotYet {
        /// What is applied.
        applied: RaftIndex,
    },
    /// Another move runs, or none, or another node is the target.
    OtherMove {
        /// The move applied here.
        current: Option<MoveId>,
    },
    /// No session of this move is open here (this process restarted): open it again.
    NoSession,
    /// That handoff is over, or was replaced.
    OtherHandoff {
        /// The handoff applied here.
        current: Option<HandoffId>,
    },
}

/// Why an append is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendRefusal {
    /// Frozen for this handoff; it lasts milliseconds as a rule.
    Frozen {
        /// The handoff.
        handoff_id: HandoffId,
    },
    /// This node is not the owner of this copy.
    NotOwner,
    /// The partition is being moved and this owner's lease has run out.
    NoLease,
}

/// Why an append that is durable may not be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRefusal {
    /// The flip was applied meanwhile.
    NotOwner,
    /// The lease ran out meanwhile: someone may have promoted another copy.
    NoLease,
}
