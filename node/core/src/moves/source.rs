//! The owner's side of one partition: who may append, when it freezes, and what ends a freeze.
//!
//! What this file keeps true:
//! * once a capture was answered, nothing is appended until the cancel of that very handoff is
//!   applied here; time alone never opens the partition again;
//! * while the applied assignment names a target, or a copy session is open, appends and their acks
//!   need a running lease (rules R8, R13);
//! * consuming stops only when the flip is applied here;
//! * an owner that opens while a handoff is recorded starts frozen, whether or not it had captured.

mod messages;

pub use messages::{
    AckRefusal, AppendRefusal, SourceEffect, SourceInput, SourceRefusal, StopReason,
};

use crate::defaults::FREEZE_TTL_MS;
use crate::ids::{CopyId, Epoch, HandoffId, MonoMs, MoveId, NodeId, RaftIndex};
use crate::meta::{Assignment, MoveTarget};
use alloc::vec::Vec;

/// How long a Freeze that came before its handoff was applied here may wait, in ms; then it is
/// answered [`SourceRefusal::NotYet`] and the target asks again.
pub const FREEZE_APPLY_WAIT_MS: u64 = 2_000;
/// A cancel that is not applied after this long is proposed again, in ms.
pub const CANCEL_RETRY_MS: u64 = 2_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Gate {
    /// No handoff is recorded.
    Open,
    /// A handoff is recorded and no Freeze has come: appends go on.
    Recorded {
        handoff_id: HandoffId,
        since: MonoMs,
    },
    /// Nothing is appended.
    Shut {
        handoff_id: HandoffId,
        progress: MonoMs,
        stage: Stage,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Opened while the handoff was recorded; no Freeze has come in this life.
    Reopened,
    /// Waiting for appends in flight.
    Settling,
    /// The capture has been answered.
    Captured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Early {
    move_id: MoveId,
    handoff_id: HandoffId,
    until: MonoMs,
}

/// The owner's side of one partition, for one copy (epoch).
#[derive(Clone, Debug, Hash)]
pub struct SourcePartition {
    me: NodeId,
    copy: CopyId,
    applied: RaftIndex,
    owner: bool,
    target: Option<MoveTarget>,
    gate: Gate,
    /// A Freeze whose handoff is not applied here yet.
    early: Option<Early>,
    session: Option<MoveId>,
    /// When the cancel may be proposed again.
    cancel_again: Option<MonoMs>,
    freeze_ttl_ms: u64,
}

impl SourcePartition {
    /// Opens the owner's side of `copy` under the assignment applied at this moment (not an older
    /// answer of a barrier). With a handoff recorded it starts frozen. An assignment that names
    /// another owner or epoch gives a side that refuses everything.
    #[must_use]
    pub fn open(
        me: NodeId,
        copy: CopyId,
        index: RaftIndex,
        assignment: Option<&Assignment>,
        now: MonoMs,
    ) -> Self {
        let owner = assignment.is_some_and(|a| a.owner == me && a.epoch == copy.epoch);
        let target = assignment.and_then(|a| a.target.clone()).filter(|_| owner);
        let gate = match target.as_ref().and_then(|t| t.handoff) {
            Some(handoff_id) => Gate::Shut {
                handoff_id,
                progress: now,
                stage: Stage::Reopened,
            },
            None => Gate::Open,
        };
        Self {
            me,
            copy,
            applied: index,
            owner,
            target,
            gate,
            early: None,
            session: None,
            cancel_again: None,
            freeze_ttl_ms: FREEZE_TTL_MS,
        }
    }

    /// With another time to live of a freeze without progress, in ms.
    #[must_use]
    pub fn with_freeze_ttl_ms(mut self, freeze_ttl_ms: u64) -> Self {
        self.freeze_ttl_ms = freeze_ttl_ms;
        self
    }

    /// The copy that this side serves.
    #[must_use]
    pub fn copy(&self) -> CopyId {
        self.copy
    }

    /// Whether an append may begin, with the lease as [`super::MoveLease::until`] says.
    ///
    /// # Errors
    /// [`AppendRefusal`]; nothing was appended.
    pub fn may_append(&self, now: MonoMs, lease_until: MonoMs) -> Result<(), AppendRefusal> {
        if !self.owner {
            return Err(AppendRefusal::NotOwner);
        }
        if let Gate::Shut { handoff_id, .. } = self.gate {
            return Err(AppendRefusal::Frozen { handoff_id });
        }
        if self.needs_lease() && now >= lease_until {
            return Err(AppendRefusal::NoLease);
        }
        Ok(())
    }

    /// Whether an append that has become durable may be acknowledged (rule R8). A freeze that began
    /// meanwhile does not matter: the capture waits for appends in flight and contains them.
    ///
    /// # Errors
    /// [`AckRefusal`]; whether the record stays is unknown, so the sender must send it again.
    pub fn may_ack(&self, now: MonoMs, lease_until: MonoMs) -> Result<(), AckRefusal> {
        if !self.owner {
            return Err(AckRefusal::NotOwner);
        }
        if self.needs_lease() && now >= lease_until {
            return Err(AckRefusal::NoLease);
        }
        Ok(())
    }

    /// Whether consumers are served: until the flip is applied here, also while frozen.
    #[must_use]
    pub fn may_consume(&self) -> bool {
        self.owner
    }

    /// Whether appends are refused for a handoff.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.owner && matches!(self.gate, Gate::Shut { .. })
    }

    /// Whether appends need the lease: a target is applied, or a session is open (rule R13).
    #[must_use]
    pub fn needs_lease(&self) -> bool {
        self.target.is_some() || self.session.is_some()
    }

    /// The move whose copy session is open.
    #[must_use]
    pub fn session(&self) -> Option<MoveId> {
        self.session
    }

    /// When [`SourceInput::Tick`] is due next, if at all.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoMs> {
        if !self.owner {
            return None;
        }
        let ttl = self
            .handoff_progress()
            .map(|(_, progress)| progress.plus_ms(self.freeze_ttl_ms))
            .map(|due| self.cancel_again.map_or(due, |again| again.max(due)));
        let early = self.early.map(|early| early.until);
        match (ttl, early) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The same side on another clock, see [`MonoMs::rebased`].
    #[must_use]
    pub fn rebased(&self, now: MonoMs) -> Self {
        let mut side = self.clone();
        match &mut side.gate {
            Gate::Open => {}
            Gate::Recorded { since: at, .. } | Gate::Shut { progress: at, .. } => {
                *at = at.rebased(now);
            }
        }
        if let Some(early) = &mut side.early {
            early.until = early.until.rebased(now);
        }
        side.cancel_again = side.cancel_again.map(|at| at.rebased(now));
        side
    }

    /// Takes one input and says what to do.
    pub fn step(&mut self, now: MonoMs, input: SourceInput) -> Vec<SourceEffect> {
        let mut out = Vec::new();
        match input {
            SourceInput::AssignmentApplied { index, assignment } => {
                self.assignment(now, index, assignment.as_ref(), &mut out);
            }
            SourceInput::OpenSession {
                epoch,
                move_id,
                target,
            } => self.open_session(epoch, move_id, &target, &mut out),
            SourceInput::Refresh { move_id } => match self.in_session(move_id) {
                Ok(()) => out.push(SourceEffect::AnswerManifest { move_id }),
                Err(refusal) => out.push(SourceEffect::AnswerRefused(refusal)),
            },
            SourceInput::Freeze {
                move_id,
                handoff_id,
            } => self.freeze(now, move_id, handoff_id, &mut out),
            SourceInput::Settled { handoff_id } => self.settled(handoff_id, &mut out),
            SourceInput::RenewFreeze { handoff_id } => self.renew(now, handoff_id, &mut out),
            SourceInput::CloseSession { move_id } => {
                if self.session == Some(move_id) {
                    self.close_session(&mut out);
                }
                out.push(SourceEffect::AnswerDone);
            }
            SourceInput::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn assignment(
        &mut self,
        now: MonoMs,
        index: RaftIndex,
        assignment: Option<&Assignment>,
        out: &mut Vec<SourceEffect>,
    ) {
        if index < self.applied || !self.owner {
            return;
        }
        self.applied = index;
        let Some(view) = assignment.filter(|a| a.owner == self.me && a.epoch == self.copy.epoch)
        else {
            self.stop(assignment, out);
            return;
        };
        self.target.clone_from(&view.target);
        let current = self.target.as_ref().map(|t| t.move_id);
        if self.session.is_some() && self.session != current {
            self.close_session(out);
        }
        let recorded = self.target.as_ref().and_then(|t| t.handoff);
        let held = self.handoff_progress().map(|(id, _)| id);
        if held != recorded {
            if let Gate::Shut {
                handoff_id, stage, ..
            } = self.gate
            {
                if stage == Stage::Settling {
                    out.push(SourceEffect::FreezeRefused {
                        handoff_id,
                        refusal: SourceRefusal::OtherHandoff { current: recorded },
                    });
                }
                out.push(SourceEffect::Unfreeze { handoff_id });
            }
            self.cancel_again = None;
            self.gate = match recorded {
                Some(handoff_id) => Gate::Recorded {
                    handoff_id,
                    since: now,
                },
                None => Gate::Open,
            };
        }
        if let Some(early) = self.early.take() {
            self.freeze(now, early.move_id, early.handoff_id, out);
        }
    }

    fn stop(&mut self, assignment: Option<&Assignment>, out: &mut Vec<SourceEffect>) {
        self.owner = false;
        self.target = None;
        let settling = match self.gate {
            Gate::Shut {
                handoff_id,
                stage: Stage::Settling,
                ..
            } => Some(handoff_id),
            _ => None,
        };
        let early = self.early.take().map(|early| early.handoff_id);
        for handoff_id in settling.into_iter().chain(early) {
            out.push(SourceEffect::FreezeRefused {
                handoff_id,
                refusal: SourceRefusal::NotOwner,
            });
        }
        self.gate = Gate::Open;
        self.cancel_again = None;
        if self.session.is_some() {
            self.close_session(out);
        }
        out.push(SourceEffect::StopServing {
            reason: assignment.map_or(StopReason::TopicGone, |a| StopReason::Flipped {
                owner: a.owner.clone(),
                epoch: a.epoch,
            }),
        });
    }

    fn close_session(&mut self, out: &mut Vec<SourceEffect>) {
        if let Some(move_id) = self.session.take() {
            out.push(SourceEffect::SessionClosed { move_id });
        }
    }

    /// Whether `move_id` is the move applied here, and if not, whether it may still become it.
    fn is_current_move(&self, move_id: MoveId) -> Result<(), SourceRefusal> {
        if !self.owner {
            return Err(SourceRefusal::NotOwner);
        }
        let current = self.target.as_ref().map(|t| t.move_id);
        if current == Some(move_id) {
            return Ok(());
        }
        // Ids are log indices: one above what is applied here may still come.
        if move_id.0 > self.applied.0 {
            return Err(SourceRefusal::NotYet {
                applied: self.applied,
            });
        }
        Err(SourceRefusal::OtherMove { current })
    }

    /// Whether a session of this move is open here, and it is the move that is recorded.
    ///
    /// # Errors
    /// Why not.
    pub fn in_session(&self, move_id: MoveId) -> Result<(), SourceRefusal> {
        self.is_current_move(move_id)?;
        if self.session != Some(move_id) {
            return Err(SourceRefusal::NoSession);
        }
        Ok(())
    }

    fn open_session(
        &mut self,
        epoch: Epoch,
        move_id: MoveId,
        target: &NodeId,
        out: &mut Vec<SourceEffect>,
    ) {
        let checked = if epoch == self.copy.epoch {
            self.is_current_move(move_id)
        } else {
            Err(SourceRefusal::NotOwner)
        };
        let named = self.target.as_ref().is_some_and(|t| t.node == *target);
        let refusal = match checked {
            Ok(()) if named => None,
            Ok(()) => Some(SourceRefusal::OtherMove {
                current: Some(move_id),
            }),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            out.push(SourceEffect::AnswerRefused(refusal));
            return;
        }
        if self.session != Some(move_id) {
            self.close_session(out);
            self.session = Some(move_id);
            out.push(SourceEffect::PinFloor { move_id });
        }
        out.push(SourceEffect::AnswerManifest { move_id });
    }

    fn freeze(
        &mut self,
        now: MonoMs,
        move_id: MoveId,
        handoff_id: HandoffId,
        out: &mut Vec<SourceEffect>,
    ) {
        if let Err(refusal) = self.in_session(move_id) {
            out.push(SourceEffect::FreezeRefused {
                handoff_id,
                refusal,
            });
            return;
        }
        match self.gate {
            Gate::Recorded {
                handoff_id: recorded,
                ..
            } if recorded == handoff_id => {
                self.gate = Gate::Shut {
                    handoff_id,
                    progress: now,
                    stage: Stage::Settling,
                };
                out.push(SourceEffect::BeginSettle { handoff_id });
            }
            Gate::Shut {
                handoff_id: held,
                progress,
                stage,
            } if held == handoff_id => match stage {
                Stage::Reopened => {
                    self.gate = Gate::Shut {
                        handoff_id,
                        progress,
                        stage: Stage::Settling,
                    };
                    out.push(SourceEffect::BeginSettle { handoff_id });
                }
                // The settle that runs answers this call too.
                Stage::Settling => {}
                // Nothing was appended since, so this is the same capture.
                Stage::Captured => out.push(SourceEffect::AnswerCapture { handoff_id }),
            },
            Gate::Open | Gate::Recorded { .. } | Gate::Shut { .. } => {
                self.freeze_unrecorded(now, move_id, handoff_id, out);
            }
        }
    }

    /// A Freeze for a handoff that is not the recorded one: early, or over.
    fn freeze_unrecorded(
        &mut self,
        now: MonoMs,
        move_id: MoveId,
        handoff_id: HandoffId,
        out: &mut Vec<SourceEffect>,
    ) {
        if handoff_id.0 <= self.applied.0 {
            let current = self.target.as_ref().and_then(|t| t.handoff);
            out.push(SourceEffect::FreezeRefused {
                handoff_id,
                refusal: SourceRefusal::OtherHandoff { current },
            });
            return;
        }
        let replaced = self.early.filter(|early| early.handoff_id != handoff_id);
        let until = match self.early {
            Some(early) if replaced.is_none() => early.until,
            _ => now.plus_ms(FREEZE_APPLY_WAIT_MS),
        };
        if let Some(early) = replaced {
            out.push(SourceEffect::FreezeRefused {
                handoff_id: early.handoff_id,
                refusal: SourceRefusal::NotYet {
                    applied: self.applied,
                },
            });
        }
        self.early = Some(Early {
            move_id,
            handoff_id,
            until,
        });
    }

    fn settled(&mut self, handoff_id: HandoffId, out: &mut Vec<SourceEffect>) {
        if let Gate::Shut {
            handoff_id: held,
            stage,
            ..
        } = &mut self.gate
            && *held == handoff_id
            && *stage == Stage::Settling
        {
            *stage = Stage::Captured;
            out.push(SourceEffect::AnswerCapture { handoff_id });
        }
    }

    fn renew(&mut self, now: MonoMs, handoff_id: HandoffId, out: &mut Vec<SourceEffect>) {
        if !self.owner {
            out.push(SourceEffect::AnswerRefused(SourceRefusal::NotOwner));
            return;
        }
        match &mut self.gate {
            Gate::Shut {
                handoff_id: held,
                progress,
                ..
            } if *held == handoff_id => {
                *progress = now;
                self.cancel_again = None;
                out.push(SourceEffect::AnswerDone);
            }
            Gate::Open | Gate::Recorded { .. } | Gate::Shut { .. } => {
                let current = self.target.as_ref().and_then(|t| t.handoff);
                out.push(SourceEffect::AnswerRefused(SourceRefusal::OtherHandoff {
                    current,
                }));
            }
        }
    }

    fn handoff_progress(&self) -> Option<(HandoffId, MonoMs)> {
        match self.gate {
            Gate::Open => None,
            Gate::Recorded { handoff_id, since } => Some((handoff_id, since)),
            Gate::Shut {
                handoff_id,
                progress,
                ..
            } => Some((handoff_id, progress)),
        }
    }

    fn tick(&mut self, now: MonoMs, out: &mut Vec<SourceEffect>) {
        if !self.owner {
            return;
        }
        if let Some(early) = self.early
            && now >= early.until
        {
            self.early = None;
            out.push(SourceEffect::FreezeRefused {
                handoff_id: early.handoff_id,
                refusal: SourceRefusal::NotYet {
                    applied: self.applied,
                },
            });
        }
        if let Some((handoff_id, progress)) = self.handoff_progress()
            && now.since(progress) >= self.freeze_ttl_ms
            && self.cancel_again.is_none_or(|again| now >= again)
        {
            // The partition stays as it is until the cancel, or the flip, is applied here.
            self.cancel_again = Some(now.plus_ms(CANCEL_RETRY_MS));
            out.push(SourceEffect::ProposeCancel { handoff_id });
        }
    }
}

#[cfg(test)]
mod tests;
