//! The target's side up to the freeze: the session, the comparison of what is staged, the passes.
//!
//! What this file keeps true: nothing staged is built upon, and nothing told is believed for a
//! promotion, before the staged bytes were found to be the source's in this move (rules R4, R12);
//! a source that does not answer is asked again for ever.

use super::staged::{self, Comparison};
use super::{
    Attempt, NOT_YET_QUIET, Report, SOURCE_RETRY_MS, Step, TargetEffect, TargetInput, TargetMove,
    Told, backoff,
};
use crate::copy::{Manifest, SegmentId, SegmentState};
use crate::ids::RaftIndex;
use crate::moves::convergence::Decision;
use crate::moves::source::SourceRefusal;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl TargetMove {
    pub(super) fn catchup_result(
        &mut self,
        step: Step,
        input: TargetInput,
        out: &mut Vec<TargetEffect>,
    ) {
        match input {
            TargetInput::SourceOpened {
                manifest,
                write_bytes_per_s,
            } if step == Step::OpenSource => {
                self.progress.write_bytes_per_s = write_bytes_per_s;
                self.manifest = manifest;
                self.convergence.restart();
                self.progress.tails.clear();
                self.compare(out);
            }
            TargetInput::Refreshed {
                manifest,
                write_bytes_per_s,
            } if step == Step::Refresh => {
                self.progress.write_bytes_per_s = write_bytes_per_s;
                self.manifest = manifest;
                self.source_failures = 0;
                self.compare(out);
            }
            TargetInput::PrefixesChecked { matching } if step == Step::CheckPrefixes => {
                self.prefixes(&matching, out);
            }
            TargetInput::Copied {
                staged,
                bytes,
                elapsed_us,
            } if step == Step::Pass => self.pass_done(staged, bytes, elapsed_us, out),
            TargetInput::CopyFailed { staged, why } if step == Step::Pass => {
                self.staged = staged;
                self.retry_source(why, out);
            }
            TargetInput::NoRoom { staged, why } if step == Step::Pass => {
                self.staged = staged;
                self.no_room(why, out);
            }
            // This node's disk: what is staged is what it gives when it is opened again.
            TargetInput::Failed { why } if step == Step::Pass => {
                self.retry_local(Step::OpenStaging, why, out);
            }
            TargetInput::SourceUnreachable { why } => self.retry_source(why, out),
            TargetInput::SourceRefused(SourceRefusal::NoSession) if step != Step::OpenSource => {
                self.enter(Step::OpenSource, out);
            }
            // The source hears of a new move a moment after its target: that is no trouble yet.
            TargetInput::SourceRefused(SourceRefusal::NotYet { .. })
                if self.source_failures < NOT_YET_QUIET =>
            {
                let ms = backoff(SOURCE_RETRY_MS, &mut self.source_failures);
                self.pause(Step::OpenSource, ms, out);
            }
            TargetInput::SourceRefused(refusal) => {
                self.retry_source(refusal_text(&refusal), out);
            }
            // The operation was stopped, and the move goes on after all.
            TargetInput::Interrupted => self.enter(Step::OpenSource, out),
            other => self.unexpected(step, &other, out),
        }
    }

    /// The source told how it stands: may what is staged be built upon?
    pub(super) fn compare(&mut self, out: &mut Vec<TargetEffect>) {
        if self.broken {
            self.reset(out);
            return;
        }
        match staged::compare(&self.manifest, &self.staged) {
            Comparison::Diverged if self.compared => {
                let why = "the staged copy differs from the source; it is copied again";
                self.trouble(why.into(), out);
                self.reset(out);
            }
            Comparison::Diverged => {
                self.set_aside(staged::decayed(&self.manifest, &self.staged), out)
            }
            Comparison::Stale => self.enter(Step::Trim, out),
            Comparison::Prefix { ask } if ask > 0 && !self.compared => {
                self.enter(Step::CheckPrefixes, out);
            }
            Comparison::Prefix { .. } => self.believe(out),
        }
    }

    /// Copies again from the start.
    fn reset(&mut self, out: &mut Vec<TargetEffect>) {
        self.decayed = staged::decayed(&self.manifest, &self.staged);
        self.enter(Step::Reset, out);
    }

    fn set_aside(&mut self, decayed: Vec<SegmentId>, out: &mut Vec<TargetEffect>) {
        self.decayed = decayed;
        let why = "what an earlier copy staged is not the source's; it is kept aside";
        self.trouble(why.into(), out);
        self.told = None;
        self.enter(Step::SetAside, out);
    }

    fn prefixes(&mut self, matching: &[SegmentId], out: &mut Vec<TargetEffect>) {
        let asked = staged::to_ask(&self.manifest, &self.staged);
        let mut others = asked
            .iter()
            .filter(|s| !matching.contains(&s.id))
            .peekable();
        if others.peek().is_none() {
            self.believe(out);
        } else {
            let sealed = others.filter(|s| staged::is_sealed(&self.manifest, s.id));
            let decayed = sealed.map(|s| s.id).collect();
            self.set_aside(decayed, out);
        }
    }

    /// The staged bytes are the source's: what it told counts, and the tail is judged.
    fn believe(&mut self, out: &mut Vec<TargetEffect>) {
        self.compared = true;
        let manifest = &self.manifest;
        self.told = Some(Told {
            move_id: self.move_id,
            manifest: Manifest {
                segments: Vec::new(),
                marks: manifest.marks.clone(),
                ..*manifest
            },
        });
        let tail = staged::tail_bytes(&self.manifest, &self.staged);
        self.progress.tails.push(tail);
        self.report_pass(tail, out);
        match self.convergence.decide(tail) {
            Decision::Continue => self.enter(Step::Pass, out),
            Decision::Converged => {
                self.ending = Some(Ok(()));
                let lag_bound = self.convergence.lag_bound();
                out.push(TargetEffect::Report(Report::Converged { tail, lag_bound }));
                self.prepare(out);
            }
            Decision::NotConverged { why } => {
                self.ending = Some(Err(why));
                self.progress.stall = Some(why);
                out.push(TargetEffect::Report(Report::NotConverged { tail, why }));
                self.prepare(out);
            }
        }
    }

    fn prepare(&mut self, out: &mut Vec<TargetEffect>) {
        self.attempt = None;
        self.enter(Step::Prepare, out);
    }

    fn report_pass(&mut self, tail: u64, out: &mut Vec<TargetEffect>) {
        if let Some((bytes, elapsed_us)) = self.last_pass.take() {
            out.push(TargetEffect::Report(Report::Pass {
                pass: self.convergence.passes(),
                bytes,
                elapsed_us,
                tail,
            }));
        }
    }

    fn pass_done(
        &mut self,
        staged: Vec<SegmentState>,
        bytes: u64,
        elapsed_us: u64,
        out: &mut Vec<TargetEffect>,
    ) {
        self.staged = staged;
        self.source_failures = 0;
        self.room_failures = 0;
        self.progress.last_error = None;
        self.convergence.pass_done(bytes, elapsed_us);
        self.last_pass = Some((bytes, elapsed_us));
        // Against the manifest that was copied: now every length is equal, so every digest speaks.
        if staged::compare(&self.manifest, &self.staged) == Comparison::Diverged {
            let why = "a copied segment's digest is not the source's; it is copied again";
            self.trouble(why.into(), out);
            self.reset(out);
            return;
        }
        self.enter(Step::Refresh, out);
    }

    /// The source does not answer, or not as hoped: promote if that is allowed, else ask again.
    pub(super) fn retry_source(&mut self, why: String, out: &mut Vec<TargetEffect>) {
        self.trouble(why, out);
        if self.promote(out) {
            return;
        }
        let ms = backoff(SOURCE_RETRY_MS, &mut self.source_failures);
        self.pause(Step::OpenSource, ms, out);
    }

    /// Begins a forced promotion if every gate on this side is open: the owner's death was waited
    /// out, this move has reached the source, and the staged copy holds all that it had told.
    pub(super) fn promote(&mut self, out: &mut Vec<TargetEffect>) -> bool {
        let (Some(deaths), Some(told)) = (self.dead, &self.told) else {
            return false;
        };
        if told.move_id != self.move_id {
            return false;
        }
        if self.broken {
            let why = "the owner is dead and the staged copy is known to differ from what it had";
            self.trouble(why.into(), out);
            return false;
        }
        let told_hwm = told.manifest.hwm;
        let covered = staged::covered_end(told.manifest.start, &self.staged);
        let Some(staged_end) = covered.filter(|end| *end >= told_hwm) else {
            let why = format!(
                "the owner is dead and the staged copy does not reach the high-watermark {told_hwm} \
                 that it had told; waiting for it to come back"
            );
            self.trouble(why, out);
            return false;
        };
        // What lies above the told high-watermark was never visible and stays hidden.
        let hidden = (staged_end > told_hwm).then_some((told_hwm, staged_end));
        let capture = Manifest {
            segments: self
                .staged
                .iter()
                .filter(|s| s.durable_len > 0)
                .copied()
                .collect(),
            marks: told.manifest.marks.clone(),
            fence: hidden,
            ..told.manifest
        };
        out.push(TargetEffect::Report(Report::Promoting {
            deaths,
            staged_end,
            told_hwm,
        }));
        self.attempt = Some(Attempt {
            handoff_id: None,
            promote: Some(deaths),
            captured_end: staged_end,
            hwm: told_hwm,
            capture: Some(capture),
            freeze_asks: 0,
        });
        self.enter(Step::Prepare, out);
        true
    }
}

pub(super) fn refusal_text(refusal: &SourceRefusal) -> String {
    match refusal {
        SourceRefusal::NotOwner => "the source says that it does not own the partition".into(),
        // Older releases do not say how far they are.
        SourceRefusal::NotYet {
            applied: RaftIndex(0),
        } => "the source does not know of the move yet".into(),
        SourceRefusal::NotYet { applied } => format!(
            "the source has applied the metadata up to {applied} and does not know of the move yet"
        ),
        SourceRefusal::OtherMove { current } => match current {
            Some(id) => format!("the source knows of move {id} only"),
            None => "the source knows of no move of the partition".into(),
        },
        SourceRefusal::NoSession => "the source has restarted and forgot the session".into(),
        SourceRefusal::OtherHandoff { current } => match current {
            Some(id) => format!("the source knows of handoff {id} only"),
            None => "the handoff is over at the source".into(),
        },
    }
}
