//! The steps of the target's worker: the operation that each of them asks for, what may be stopped,
//! and how long is paused before one is tried again.
//!
//! What this file keeps true: a step asks for exactly one effect; every pause is bounded.

use super::{TargetEffect, TargetMove, Told, staged};
use crate::copy::Manifest;
use crate::ids::{CopyId, DeathGeneration, HandoffId, Offset};
use crate::meta::Command;
use alloc::vec::Vec;

/// First and longest pause before the source is asked again, in ms.
pub(super) const SOURCE_RETRY_MS: (u64, u64) = (50, 2_000);
/// Times in a row that a source may not know of the move yet before that is told as what holds it up: with
/// the pauses between them 750 ms, in which a follower that is not behind has heard of it.
pub(super) const NOT_YET_QUIET: u32 = 4;
/// First and longest pause before a failed local step is tried again, in ms.
pub(super) const LOCAL_RETRY_MS: (u64, u64) = (200, 10_000);
/// First and longest pause before another handoff is tried after one that failed, in ms.
pub(super) const HANDOFF_RETRY_MS: (u64, u64) = (250, 30_000);
/// First and longest pause before the leader is asked again, in ms.
pub(super) const LEADER_RETRY_MS: (u64, u64) = (50, 1_000);
/// Pause before a Freeze that came too early is asked again, in ms.
pub(super) const FREEZE_AGAIN_MS: u64 = 10;
/// How often a Freeze that came too early is asked before the handoff is given up.
pub(super) const FREEZE_ASKS_MAX: u32 = 50;

/// First and longest pause before a copy is tried again for which there was no room, in ms.
pub(super) const ROOM_RETRY_MS: (u64, u64) = (500, 4_000);
/// How often it is tried again before the slot is given up: about ten seconds, in which other copies
/// may end and retention may run.
pub(super) const ROOM_TRIES: u32 = 5;

/// One operation of the worker; each asks for one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    CheckLocal,
    OpenStaging,
    OpenSource,
    CheckPrefixes,
    SetAside,
    Reset,
    Trim,
    Pass,
    Refresh,
    Prepare,
    Begin,
    AskHandoff,
    Freeze,
    Drain,
    Finish,
    Install,
    Flip,
    AskFlip,
    RollBack,
    Serve,
    Cancel,
    GiveUp,
    Close,
}

impl Step {
    /// May be stopped half way without leaving anything unknown behind.
    pub(super) fn interruptible(self) -> bool {
        match self {
            Self::OpenSource
            | Self::CheckPrefixes
            | Self::Pass
            | Self::Refresh
            | Self::Freeze
            | Self::Drain => true,
            Self::CheckLocal
            | Self::OpenStaging
            | Self::SetAside
            | Self::Reset
            | Self::Trim
            | Self::Prepare
            | Self::Begin
            | Self::AskHandoff
            | Self::Finish
            | Self::Install
            | Self::Flip
            | Self::AskFlip
            | Self::RollBack
            | Self::Serve
            | Self::Cancel
            | Self::GiveUp
            | Self::Close => false,
        }
    }

    /// From the rename on: a copy may be installed whose flip is not known, or the end has come.
    pub(super) fn past_install(self) -> bool {
        matches!(
            self,
            Self::Install | Self::Flip | Self::AskFlip | Self::RollBack | Self::Serve | Self::Close
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    New,
    Busy(Step),
    /// Pausing before the step.
    Pausing(Step),
    Ended,
}

/// One try to flip.
#[derive(Clone, Debug, Hash)]
pub(super) struct Attempt {
    /// The recorded permission; `None` for a promotion or before it is recorded.
    pub(super) handoff_id: Option<HandoffId>,
    /// The death that a promotion waits out.
    pub(super) promote: Option<DeathGeneration>,
    /// What the copy has to be; `None` when it was installed by an earlier life of this process.
    pub(super) capture: Option<Manifest>,
    /// Offset after the last record of the copy.
    pub(super) captured_end: Offset,
    /// HWM of the copy.
    pub(super) hwm: Offset,
    pub(super) freeze_asks: u32,
}

/// The pause for the next failure in a row, doubling up to a bound.
pub(super) fn backoff((first, longest): (u64, u64), failures: &mut u32) -> u64 {
    let ms = first.saturating_mul(1 << (*failures).min(16)).min(longest);
    *failures = failures.saturating_add(1);
    ms
}

impl TargetMove {
    pub(super) fn enter(&mut self, step: Step, out: &mut Vec<TargetEffect>) {
        self.state = State::Busy(step);
        let effect = self.effect(step);
        out.push(effect);
    }

    pub(super) fn effect(&self, step: Step) -> TargetEffect {
        match step {
            Step::CheckLocal => TargetEffect::CheckLocal,
            Step::OpenStaging => TargetEffect::OpenStaging,
            Step::OpenSource => TargetEffect::OpenSource,
            Step::CheckPrefixes => TargetEffect::CheckPrefixes {
                staged: staged::to_ask(&self.manifest, &self.staged),
            },
            Step::SetAside => TargetEffect::SetAside {
                decayed: self.decayed.clone(),
            },
            Step::Reset => TargetEffect::ResetStaging {
                decayed: self.decayed.clone(),
            },
            Step::Trim => TargetEffect::TrimStaging {
                keep: staged::kept(&self.manifest, &self.staged),
            },
            Step::Pass => self.copy_effect(None),
            Step::Drain => self.copy_effect(self.attempt.as_ref().and_then(|a| a.handoff_id)),
            Step::Refresh => TargetEffect::RefreshSource,
            Step::Prepare => TargetEffect::PrepareInstall {
                next: self.next_copy(),
                told: self.told_or_empty(),
            },
            Step::Begin => TargetEffect::Propose(Command::BeginHandoff {
                key: self.key,
                owner: self.from.clone(),
                target: self.me.clone(),
                move_id: self.move_id,
            }),
            Step::AskHandoff | Step::AskFlip => TargetEffect::QueryBarrier,
            Step::Freeze => TargetEffect::FreezeSource {
                handoff_id: self.handoff(),
            },
            Step::Finish => TargetEffect::FinishStaging {
                capture: self.capture(),
                mark: self.mark(),
                next: self.next_copy(),
            },
            Step::Install => TargetEffect::Install {
                next: self.next_copy(),
            },
            Step::Flip => TargetEffect::Propose(self.flip_command()),
            Step::RollBack => TargetEffect::RollBack {
                copy: self.next_copy(),
            },
            Step::Serve => TargetEffect::Serve {
                copy: self.next_copy(),
            },
            Step::Cancel => TargetEffect::Propose(Command::CancelHandoff {
                key: self.key,
                handoff_id: self.handoff(),
            }),
            Step::GiveUp => TargetEffect::Propose(Command::ClearTarget {
                key: self.key,
                move_id: self.move_id,
                no_room: true,
            }),
            Step::Close => TargetEffect::CloseSource,
        }
    }

    pub(super) fn next_copy(&self) -> CopyId {
        CopyId {
            key: self.key,
            epoch: self.epoch.next(),
        }
    }

    pub(super) fn told_or_empty(&self) -> Told {
        self.told.clone().unwrap_or_else(|| Told {
            move_id: self.move_id,
            manifest: Manifest::default(),
        })
    }

    pub(super) fn copy_effect(&self, renew: Option<HandoffId>) -> TargetEffect {
        TargetEffect::CopyRanges {
            ranges: staged::ranges(&self.manifest, &self.staged),
            throttled: renew.is_none(),
            renew,
            told: self.told_or_empty(),
        }
    }
}
