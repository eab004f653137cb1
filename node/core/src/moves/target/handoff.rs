//! The target's side from the permission to freeze to the flip.
//!
//! What this file keeps true: every try that fails before the rename cancels its handoff; after
//! the rename, what happens is decided by a confirmed version of the metadata alone.

use super::catchup::refusal_text;
use super::verdict::{Confirmed, Verdict, flip_verdict};
use super::{
    Attempt, FREEZE_AGAIN_MS, FREEZE_ASKS_MAX, HANDOFF_RETRY_MS, MoveOutcome, ProposeOutcome, Step,
    TargetEffect, TargetInput, TargetMove, Told, backoff,
};
use crate::copy::{InstallMark, Manifest};
use crate::ids::{HandoffId, Offset};
use crate::meta::{Command, MemberStatus};
use crate::moves::source::SourceRefusal;
use alloc::string::String;
use alloc::vec::Vec;

impl Attempt {
    pub(super) fn for_handoff(handoff_id: HandoffId) -> Self {
        Self {
            handoff_id: Some(handoff_id),
            promote: None,
            capture: None,
            captured_end: Offset(0),
            hwm: Offset(0),
            freeze_asks: 0,
        }
    }
}

impl TargetMove {
    /// The handoff of this try. The steps that name it are entered only with one.
    pub(super) fn handoff(&self) -> HandoffId {
        self.attempt
            .as_ref()
            .and_then(|a| a.handoff_id)
            .expect("the step is entered with a recorded handoff")
    }

    pub(super) fn capture(&self) -> Manifest {
        self.attempt
            .as_ref()
            .and_then(|a| a.capture.clone())
            .expect("the step is entered with a capture")
    }

    pub(super) fn mark(&self) -> InstallMark {
        InstallMark {
            move_id: self.move_id,
            handoff_id: self.attempt.as_ref().and_then(|a| a.handoff_id),
        }
    }

    pub(super) fn flip_command(&self) -> Command {
        let attempt = self
            .attempt
            .as_ref()
            .expect("a flip is asked for within a try");
        match (attempt.handoff_id, attempt.promote) {
            (Some(handoff_id), _) => Command::CompleteMove {
                key: self.key,
                owner: self.from.clone(),
                target: self.me.clone(),
                move_id: self.move_id,
                handoff_id,
                captured_end: attempt.captured_end,
            },
            (None, deaths) => Command::ForcePromote {
                key: self.key,
                owner: self.from.clone(),
                epoch: self.epoch,
                target: self.me.clone(),
                move_id: self.move_id,
                deaths: deaths.expect("a promotion names a death"),
                staged_hwm: attempt.captured_end,
                told_hwm: attempt.hwm,
            },
        }
    }

    pub(super) fn handoff_result(
        &mut self,
        step: Step,
        input: TargetInput,
        out: &mut Vec<TargetEffect>,
    ) {
        match (step, input) {
            (Step::Prepare, TargetInput::InstallPrepared) => {
                self.local_failures = 0;
                if self.attempt_lost() {
                    self.give_up("the owner lives again".into(), out);
                } else if self.attempt.is_some() {
                    self.enter(Step::Finish, out);
                } else {
                    self.enter(Step::Begin, out);
                }
            }
            (Step::Prepare, TargetInput::WaitedForTurn) => self.turn_came(out),
            (Step::Begin, TargetInput::Proposed(outcome)) => self.begun(outcome, out),
            (Step::AskHandoff, TargetInput::Barrier(confirmed)) => {
                self.handoff_asked(confirmed, out);
            }
            (Step::Freeze, TargetInput::Frozen { capture }) => self.frozen(capture, out),
            (Step::Freeze, TargetInput::SourceRefused(SourceRefusal::NotYet { .. })) => {
                self.freeze_too_early(out);
            }
            (Step::Freeze, TargetInput::SourceRefused(refusal)) => {
                self.give_up(refusal_text(&refusal), out);
            }
            (Step::Freeze, TargetInput::SourceUnreachable { why }) => self.give_up(why, out),
            (Step::Drain, TargetInput::Copied { staged, .. }) => {
                self.staged = staged;
                self.enter(Step::Finish, out);
            }
            (
                Step::Drain,
                TargetInput::CopyFailed { staged, why } | TargetInput::NoRoom { staged, why },
            ) => {
                self.staged = staged;
                self.give_up(why, out);
            }
            (Step::Freeze | Step::Drain, TargetInput::Interrupted) => {
                self.give_up("the handoff was cancelled".into(), out);
            }
            (Step::Finish, TargetInput::Finished) => {
                if self.attempt_lost() {
                    self.give_up("the permission to flip is over".into(), out);
                } else {
                    self.enter(Step::Install, out);
                }
            }
            (Step::Finish, TargetInput::Mismatch { why }) => {
                self.broken = true;
                self.give_up(why, out);
            }
            (Step::Drain | Step::Finish, TargetInput::Failed { why }) => {
                self.reopen = true;
                self.give_up(why, out);
            }
            (Step::Cancel, TargetInput::Proposed(_)) => self.cancelled(out),
            (Step::Prepare, TargetInput::Failed { why }) => {
                self.attempt = None;
                self.ending = None;
                self.retry_local(Step::OpenStaging, why, out);
            }
            (_, other) => self.unexpected(step, &other, out),
        }
    }

    /// The source went on meanwhile, so the tail is asked for again. Where the source is dead, or was found
    /// to be written faster than it is copied, nothing is gained by that.
    fn turn_came(&mut self, out: &mut Vec<TargetEffect>) {
        if self.attempt.is_some() || matches!(self.ending, Some(Err(_))) {
            self.enter(Step::Prepare, out);
        } else {
            self.convergence.waited();
            self.enter(Step::Refresh, out);
        }
    }

    fn begun(&mut self, outcome: ProposeOutcome, out: &mut Vec<TargetEffect>) {
        match outcome {
            ProposeOutcome::Done { index } => self.freeze(HandoffId(index.0), out),
            // Unknown, or recorded by an earlier proposal whose answer was lost, or the move is
            // over: a confirmed version tells which.
            ProposeOutcome::Refused(_) | ProposeOutcome::Unknown => {
                self.enter(Step::AskHandoff, out);
            }
            ProposeOutcome::NotProposed => {
                self.trouble(
                    "no leader could be reached to record the handoff".into(),
                    out,
                );
                self.retry_leader(Step::Begin, out);
            }
        }
    }

    fn freeze(&mut self, handoff_id: HandoffId, out: &mut Vec<TargetEffect>) {
        self.leader_failures = 0;
        self.progress.handoffs = self.progress.handoffs.saturating_add(1);
        self.attempt = Some(Attempt::for_handoff(handoff_id));
        self.enter(Step::Freeze, out);
    }

    fn handoff_asked(&mut self, confirmed: Option<Confirmed>, out: &mut Vec<TargetEffect>) {
        let Some(confirmed) = confirmed else {
            self.retry_leader(Step::AskHandoff, out);
            return;
        };
        let target = confirmed
            .assignment
            .as_ref()
            .filter(|a| a.epoch == self.epoch)
            .and_then(|a| a.target.as_ref())
            .filter(|t| t.node == self.me && t.move_id == self.move_id);
        match target.map(|t| t.handoff) {
            // Only this worker begins handoffs of this move.
            Some(Some(handoff_id)) => self.freeze(handoff_id, out),
            // Not recorded (yet), or refused because somebody is dead. Time has passed, so the tail
            // is copied once more first. Should a lost one still arrive, the next one is refused,
            // and this question is asked again.
            Some(None) => {
                self.trouble("the handoff was not recorded".into(), out);
                // An owner that answers here and is dead to the leader gets no handoff, ever.
                if !self.promote(out) {
                    self.retry_leader(Step::OpenSource, out);
                }
            }
            // The move is over; the applied metadata will show it here.
            None => self.retry_leader(Step::AskHandoff, out),
        }
    }

    fn freeze_too_early(&mut self, out: &mut Vec<TargetEffect>) {
        let asks = self.attempt.as_mut().map_or(u32::MAX, |attempt| {
            attempt.freeze_asks += 1;
            attempt.freeze_asks
        });
        if asks >= FREEZE_ASKS_MAX || self.handoff_lost() {
            self.give_up("the source has not applied the handoff".into(), out);
        } else {
            self.pause(Step::Freeze, FREEZE_AGAIN_MS, out);
        }
    }

    fn frozen(&mut self, capture: Manifest, out: &mut Vec<TargetEffect>) {
        self.manifest = capture.clone();
        self.told = Some(Told {
            move_id: self.move_id,
            manifest: Manifest {
                segments: Vec::new(),
                ..capture.clone()
            },
        });
        if let Some(attempt) = &mut self.attempt {
            attempt.captured_end = capture.end();
            attempt.hwm = capture.hwm;
            attempt.capture = Some(capture);
        }
        self.enter(Step::Drain, out);
    }

    /// This try cannot go on: the handoff, if any, is taken back, and the catch-up begins anew.
    fn give_up(&mut self, why: String, out: &mut Vec<TargetEffect>) {
        self.trouble(why, out);
        if self
            .attempt
            .as_ref()
            .is_some_and(|a| a.handoff_id.is_some())
        {
            self.enter(Step::Cancel, out);
        } else {
            self.cancelled(out);
        }
    }

    /// The handoff is cancelled, or will be by the owner's own clock: either way this worker has
    /// no more use for it. Pauses, longer after each failure in a row, so that a partition is not
    /// frozen again and again.
    fn cancelled(&mut self, out: &mut Vec<TargetEffect>) {
        self.attempt = None;
        self.ending = None;
        if !self.staging_open {
            self.enter(Step::CheckLocal, out);
            return;
        }
        let ms = backoff(HANDOFF_RETRY_MS, &mut self.handoff_failures);
        let step = if self.reopen {
            Step::OpenStaging
        } else {
            Step::OpenSource
        };
        self.pause(step, ms, out);
    }

    pub(super) fn flip_result(
        &mut self,
        step: Step,
        input: TargetInput,
        out: &mut Vec<TargetEffect>,
    ) {
        match (step, input) {
            (Step::Install, TargetInput::Installed) => {
                // Nothing was proposed yet, and still this node may own the copy: as the heir of an
                // owner that was given up, whose epoch ended as the flip would have ended it.
                if self.over() || self.attempt_lost() {
                    self.enter(Step::AskFlip, out);
                } else {
                    self.enter(Step::Flip, out);
                }
            }
            (Step::Install, TargetInput::Failed { why }) => {
                self.trouble(why, out);
                if self.owns_next() {
                    // As above; the shard serves the copy, or has made an empty log before it.
                    self.enter(Step::AskFlip, out);
                } else {
                    // Whether the rename took place is not known here; the roll-back looks.
                    self.enter(Step::RollBack, out);
                }
            }
            (Step::Flip, TargetInput::Proposed(ProposeOutcome::Done { .. })) => {
                self.enter(Step::Serve, out);
            }
            (
                Step::Flip,
                TargetInput::Proposed(
                    ProposeOutcome::Refused(_)
                    | ProposeOutcome::Unknown
                    | ProposeOutcome::NotProposed,
                ),
            ) => self.enter(Step::AskFlip, out),
            (Step::AskFlip, TargetInput::Barrier(None)) => {
                self.trouble(
                    "no leader could be reached to learn about the flip".into(),
                    out,
                );
                self.retry_leader(Step::AskFlip, out);
            }
            (Step::AskFlip, TargetInput::Barrier(Some(confirmed))) => {
                self.flip_asked(&confirmed, out);
            }
            (Step::RollBack, TargetInput::RolledBack) => self.rolled_back(out),
            (Step::Serve, TargetInput::Serving) => {
                self.outcome = MoveOutcome::Flipped;
                self.enter(Step::Close, out);
            }
            (Step::Close, _) => {
                let outcome = self.outcome;
                self.end(outcome, out);
            }
            (Step::RollBack, TargetInput::Failed { why }) => {
                // An heir's copy is not taken back, and not while it is refused for ever.
                let step = if self.owns_next() {
                    Step::AskFlip
                } else {
                    step
                };
                self.retry_local(step, why, out);
            }
            (Step::Serve, TargetInput::Failed { why }) => {
                // The partition may have gone on meanwhile: ask before serving again.
                self.retry_local(Step::AskFlip, why, out);
            }
            (_, other) => self.unexpected(step, &other, out),
        }
    }

    fn flip_asked(&mut self, confirmed: &Confirmed, out: &mut Vec<TargetEffect>) {
        match flip_verdict(confirmed, &self.me, self.next_copy(), self.mark()) {
            Verdict::Flipped => self.enter(Step::Serve, out),
            Verdict::FlippedAndEnded => {
                self.outcome = MoveOutcome::FlippedAndEnded;
                self.enter(Step::Close, out);
            }
            Verdict::Refused | Verdict::TopicGone => {
                self.view.clone_from(&confirmed.assignment);
                self.enter(Step::RollBack, out);
            }
            Verdict::Open => self.flip_again(confirmed, out),
        }
    }

    /// The flip may still be applied. It is proposed again: the guards let it be applied once.
    fn flip_again(&mut self, confirmed: &Confirmed, out: &mut Vec<TargetEffect>) {
        if let Some(view) = &confirmed.assignment {
            self.from.clone_from(&view.owner);
        }
        let dead = confirmed
            .owner
            .filter(|life| life.status == MemberStatus::Dead)
            .map(|life| life.deaths);
        let waited_out = self.dead;
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if attempt.handoff_id.is_none() {
            // Found installed, or the owner has died once more since: the death to be named is the
            // one that stands, and only once it was waited out.
            if dead.is_none() || dead != waited_out {
                self.trouble(
                    "waiting until the owner has been dead for long enough".into(),
                    out,
                );
                self.retry_leader(Step::AskFlip, out);
                return;
            }
            attempt.promote = dead;
        }
        self.retry_leader(Step::Flip, out);
    }

    fn rolled_back(&mut self, out: &mut Vec<TargetEffect>) {
        self.local_failures = 0;
        self.attempt = None;
        self.ending = None;
        self.compared = false;
        self.staged.clear();
        if self.over() {
            self.wind_up(out);
            return;
        }
        let ms = backoff(HANDOFF_RETRY_MS, &mut self.handoff_failures);
        self.pause(Step::OpenStaging, ms, out);
    }
}
