//! How a move stands, as `cluster moves` shows it.
//!
//! What this file keeps true: it only describes; nothing decides on it.

use super::{State, Step, TargetMove};
use crate::ids::{MoveId, NodeId, PartitionKey};
use crate::moves::convergence::Stall;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Where a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovePhase {
    /// Not begun, or an old copy is in the way.
    Waiting,
    /// The copy session is being opened (also: the source does not answer).
    Opening,
    /// Copying while produce flows.
    CatchUp,
    /// The permission to freeze is being recorded, or the source asked to freeze.
    Freezing,
    /// The source is frozen; the tail is drained and checked.
    Finalizing,
    /// The copy is installed and the flip is asked for.
    Flipping,
    /// Whether the flip took place is not known.
    Unknown,
    /// The flip was refused; the copy goes back into staging.
    RollingBack,
    /// Flipped; the shard opens the copy.
    TakingOver,
    /// Over.
    Ended,
}

/// How a move stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MoveProgress {
    /// The partition.
    pub key: PartitionKey,
    /// The move.
    pub move_id: MoveId,
    /// The owner that it is taken from.
    pub from: NodeId,
    /// Where it is.
    pub phase: MovePhase,
    /// Bytes staged and durable.
    pub bytes_done: u64,
    /// Bytes that the source had beyond them when it was last asked.
    pub bytes_left: u64,
    /// B, bytes/s, once measured.
    pub bytes_per_s: Option<u64>,
    /// W, bytes/s, as the source told last.
    pub write_bytes_per_s: u64,
    /// Passes of the latest catch-up.
    pub passes: u32,
    /// Tails in bytes, before each pass and at the end of the catch-up; at most the passes plus one.
    pub tails: Vec<u64>,
    /// Whether the latest catch-up converged, once it ended.
    pub converged: Option<bool>,
    /// Why it did not.
    pub stall: Option<Stall>,
    /// Handoffs begun.
    pub handoffs: u32,
    /// The latest trouble, for people.
    pub last_error: Option<String>,
}

impl MoveProgress {
    pub(super) fn new(key: PartitionKey, move_id: MoveId, from: NodeId) -> Self {
        Self {
            key,
            move_id,
            from,
            phase: MovePhase::Waiting,
            bytes_done: 0,
            bytes_left: 0,
            bytes_per_s: None,
            write_bytes_per_s: 0,
            passes: 0,
            tails: Vec::new(),
            converged: None,
            stall: None,
            handoffs: 0,
            last_error: None,
        }
    }
}

impl TargetMove {
    pub(super) fn phase(&self) -> MovePhase {
        let step = match self.state {
            State::New => return MovePhase::Waiting,
            State::Ended => return MovePhase::Ended,
            State::Busy(step) | State::Pausing(step) => step,
        };
        match step {
            Step::CheckLocal => MovePhase::Waiting,
            Step::OpenStaging
            | Step::OpenSource
            | Step::CheckPrefixes
            | Step::SetAside
            | Step::Trim => MovePhase::Opening,
            Step::Reset | Step::Pass | Step::Refresh | Step::Prepare | Step::GiveUp => {
                MovePhase::CatchUp
            }
            Step::Begin | Step::AskHandoff | Step::Freeze | Step::Cancel => MovePhase::Freezing,
            Step::Drain | Step::Finish => MovePhase::Finalizing,
            Step::Install | Step::Flip => MovePhase::Flipping,
            Step::AskFlip => MovePhase::Unknown,
            Step::RollBack => MovePhase::RollingBack,
            Step::Serve => MovePhase::TakingOver,
            Step::Close => MovePhase::Ended,
        }
    }
}
