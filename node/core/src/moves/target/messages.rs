//! What happens to the target's worker, and what it asks for.
//!
//! What this file keeps true: every effect that asks for something is answered by exactly one
//! input, named at the effect; an answer that was lost is an input too.

use super::verdict::Confirmed;
use crate::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use crate::ids::{CopyId, DeathGeneration, HandoffId, MoveId, Offset, RaftIndex};
use crate::meta::{Assignment, Command, Refusal};
use crate::moves::convergence::Stall;
use crate::moves::source::SourceRefusal;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What the source told in one answer; kept together, saved together with the staged copy. The
/// promote gate compares with it, and a promotion takes its HWM, frontier, marks and start from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Told {
    /// The move in which it was told (rule R12).
    pub move_id: MoveId,
    /// The partition then, without its segments.
    pub manifest: Manifest,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProposeOutcome {
    /// Applied.
    Done {
        /// The log index.
        index: RaftIndex,
    },
    /// A guard refused it when it was applied.
    Refused(Refusal),
    /// It may or may not be applied, now or later.
    Unknown,
    /// Certainly not proposed.
    NotProposed,
}

/// What happens to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetInput {
    /// Begin.
    Start,
    /// Metadata up to `index` is applied here.
    AssignmentApplied {
        /// The version.
        index: RaftIndex,
        /// The partition in it; `None`: the topic is gone.
        assignment: Option<Assignment>,
    },
    /// The owner has been dead for the force-promote time, as far as this node can tell.
    OwnerDeadLongEnough {
        /// Which death.
        deaths: DeathGeneration,
    },
    /// The owner lives (again).
    OwnerAlive,

    /// Answers CheckLocal: no real copy of the partition is on this node.
    LocalClear,
    /// Answers CheckLocal: this copy is to be salvaged and reclaimed first (rule R1).
    LocalOccupied {
        /// The copy.
        copy: CopyId,
    },
    /// Answers OpenStaging, SetAside, ResetStaging and TrimStaging: what is staged and durable now.
    StagingReady {
        /// Staged segments with their running digests, in offset order.
        staged: Vec<SegmentState>,
        /// What was saved with it under this move, if anything.
        told: Option<Told>,
    },
    /// Answers OpenSource.
    SourceOpened {
        /// The partition at the source.
        manifest: Manifest,
        /// W, bytes/s.
        write_bytes_per_s: u64,
    },
    /// Answers OpenSource, CheckPrefixes, RefreshSource and FreezeSource: no answer came.
    SourceUnreachable {
        /// Why, for people.
        why: String,
    },
    /// Answers the same four: the source refused.
    SourceRefused(SourceRefusal),
    /// Answers CheckPrefixes.
    PrefixesChecked {
        /// The segments whose staged prefix is the same at the source.
        matching: Vec<SegmentId>,
    },
    /// Answers CopyRanges: all ranges are staged; PrepareInstall makes them durable.
    Copied {
        /// Everything staged now.
        staged: Vec<SegmentState>,
        /// Bytes of these ranges.
        bytes: u64,
        /// Time taken, in µs.
        elapsed_us: u64,
    },
    /// Answers CopyRanges: the channel broke, or bytes did not verify.
    CopyFailed {
        /// What is staged nevertheless, as a restart would find it.
        staged: Vec<SegmentState>,
        /// Why, for people.
        why: String,
    },
    /// Answers CopyRanges: this node's disk has no room for the rest.
    NoRoom {
        /// What is staged and durable nevertheless.
        staged: Vec<SegmentState>,
        /// Why, for people.
        why: String,
    },
    /// Answers RefreshSource.
    Refreshed {
        /// The partition at the source.
        manifest: Manifest,
        /// W, bytes/s.
        write_bytes_per_s: u64,
    },
    /// Answers PrepareInstall.
    InstallPrepared,
    /// Answers PrepareInstall: nothing was done. Other moves into this node were being handed over, this one
    /// has waited for its turn, and it has the turn now.
    WaitedForTurn,
    /// Answers Propose.
    Proposed(ProposeOutcome),
    /// Answers FreezeSource.
    Frozen {
        /// The final capture.
        capture: Manifest,
    },
    /// Answers FinishStaging: the staged copy is the capture, bit for bit, and recovers to it.
    Finished,
    /// Answers FinishStaging: it is not.
    Mismatch {
        /// What differs, for people.
        why: String,
    },
    /// Answers Install.
    Installed,
    /// Answers QueryBarrier; `None`: no leader confirmed it.
    Barrier(Option<Confirmed>),
    /// Answers RollBack.
    RolledBack,
    /// Answers Serve.
    Serving,
    /// Answers CloseSource, whatever became of it.
    SourceClosed,
    /// Answers Wait.
    Timer,
    /// Answers Interrupt, unless the operation's own answer came first.
    Interrupted,
    /// Answers any effect on this node's own disk or shard, and Serve: it failed.
    Failed {
        /// Why, for people.
        why: String,
    },
    /// The node stops.
    Shutdown,
}

/// A stretch of one segment to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyRange {
    /// The segment.
    pub segment: SegmentId,
    /// First byte; equals the staged length.
    pub from: u64,
    /// Byte after the last; a durable length of the source.
    pub to: u64,
}

/// What the worker asks for. At most one effect that wants an answer is outstanding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TargetEffect {
    /// Ask the partition's shard what is here. Answer: LocalClear, LocalOccupied or Failed.
    CheckLocal,
    /// Open the staging of this move, or adopt the newest one of an earlier move of the partition,
    /// or create it. Answer: StagingReady or Failed.
    OpenStaging,
    /// Open the copy session. Answer: SourceOpened, SourceUnreachable or SourceRefused.
    OpenSource,
    /// Ask the source whether these staged prefixes are its own (rule R4). Answer: PrefixesChecked,
    /// SourceUnreachable or SourceRefused.
    CheckPrefixes {
        /// Staged segments.
        staged: Vec<SegmentState>,
    },
    /// The staged bytes are not the source's: keep them aside, until the owner serves, and begin an
    /// empty staging. Answer: StagingReady or Failed.
    SetAside {
        /// As in ResetStaging.
        decayed: Vec<SegmentId>,
    },
    /// The staged bytes are a broken copy of what the source holds: begin an empty staging.
    /// Answer: StagingReady or Failed.
    ResetStaging {
        /// Segments that the source holds otherwise although it does not write to them any more, or
        /// not at all: what is staged of them without damage may be the only good copy, and is kept
        /// for the operator.
        decayed: Vec<SegmentId>,
    },
    /// Drop staged segments that the source no longer keeps. Answer: StagingReady or Failed.
    TrimStaging {
        /// What stays.
        keep: Vec<SegmentId>,
    },
    /// Copy these ranges, in this order, verify frames as they arrive and write them. Durable now and
    /// then, with a saved staged manifest, so that a restart goes on from there; as a whole with
    /// PrepareInstall, or, in the freeze, with FinishStaging. Answer: Copied, CopyFailed
    /// or NoRoom.
    CopyRanges {
        /// The ranges.
        ranges: Vec<CopyRange>,
        /// The node's rate limit applies.
        throttled: bool,
        /// The source is frozen: renew its time to live for this handoff as bytes arrive.
        renew: Option<HandoffId>,
        /// Saved durably now and then, and as a whole with PrepareInstall.
        told: Told,
    },
    /// Ask the source how it stands. Answer: Refreshed, SourceUnreachable or SourceRefused.
    RefreshSource,
    /// Do everything that can be done before the freeze, and save `told`; few moves into a node are handed over
    /// at once, so that their syncs do not wait for one another in a freeze. Answer: InstallPrepared,
    /// WaitedForTurn or Failed.
    PrepareInstall {
        /// The copy to be.
        next: CopyId,
        /// What the source told.
        told: Told,
    },
    /// Propose a command. Answer: Proposed.
    Propose(Command),
    /// Freeze the source. Answer: Frozen, SourceUnreachable or SourceRefused.
    FreezeSource {
        /// The recorded permission.
        handoff_id: HandoffId,
    },
    /// Check the staged copy against the capture, write its end state and the mark, sync. Answer:
    /// Finished, Mismatch or Failed.
    FinishStaging {
        /// The capture.
        capture: Manifest,
        /// The mark (rule R3).
        mark: InstallMark,
        /// The copy to be.
        next: CopyId,
    },
    /// Rename the staged copy into its real place. Answer: Installed or Failed.
    Install {
        /// The copy to be.
        next: CopyId,
    },
    /// Read the metadata behind a barrier through the leader. Answer: Barrier.
    QueryBarrier,
    /// Take the installed copy back into the staging of this move; nothing to do when it is not
    /// installed. Answer: RolledBack or Failed.
    RollBack {
        /// The copy.
        copy: CopyId,
    },
    /// Tell the shard that the copy is its own now. Answer: Serving or Failed.
    Serve {
        /// The copy.
        copy: CopyId,
    },
    /// Close the copy session, as well as it goes. Answer: SourceClosed.
    CloseSource,
    /// Answer: Timer.
    Wait {
        /// For this long.
        ms: u64,
    },
    /// Stop the outstanding operation (a copy, a wait or a call to the source). Answer: its own, if
    /// it came first, or Interrupted.
    Interrupt,
    /// Something worth a line in the log.
    Report(Report),
    /// The worker has ended; no effect follows.
    Done {
        /// How.
        outcome: MoveOutcome,
    },
}

/// Something worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// A pass ended.
    Pass {
        /// Its number, from 1.
        pass: u32,
        /// Bytes copied.
        bytes: u64,
        /// In µs.
        elapsed_us: u64,
        /// Bytes left by now.
        tail: u64,
    },
    /// The tail is short enough.
    Converged {
        /// Bytes left.
        tail: u64,
        /// The bound.
        lag_bound: u64,
    },
    /// The tail will not become short; the freeze will drain it.
    NotConverged {
        /// Bytes left.
        tail: u64,
        /// Why.
        why: Stall,
    },
    /// Something failed and is tried again.
    Trouble {
        /// What, for people.
        why: String,
    },
    /// The owner is dead and the staged copy is being promoted.
    Promoting {
        /// The owner's death.
        deaths: DeathGeneration,
        /// What the copy reaches.
        staged_end: Offset,
        /// What the owner had told.
        told_hwm: Offset,
    },
}

/// How a move ended at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveOutcome {
    /// This node owns and serves the partition.
    Flipped,
    /// It owned the partition and has lost it again since; the copy is an ended one.
    FlippedAndEnded,
    /// The metadata shows another move, or none; the staged copy is left for the next one or for
    /// clearing away.
    Superseded,
    /// This node's disk had no room, and the slot was given up; what is staged may go as soon as the
    /// owner says that it serves.
    NoRoom,
    /// The topic was deleted; the staged copy is of no use.
    TopicGone,
    /// The node stops; the next start goes on.
    Stopped,
}
