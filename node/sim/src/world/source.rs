//! The owner's shell: opening a copy, feeding the real owner's side, carrying out its effects.
//!
//! What this file keeps true: the applied metadata is fed before anything else is asked; a copy of
//! an ended epoch is closed only when nothing is in flight (R8).

use super::{Source, World};
use crate::action::How;
use crate::mutation::Mutation;
use narad_core::copies::has_log;
use narad_core::copy::Manifest;
use narad_core::ids::{CopyId, Epoch, HandoffId, MonoMs, Offset};
use narad_core::leases::LeaseTable;
use narad_core::meta::{Assignment, Command};
use narad_core::moves::target::{ProposeOutcome, TargetEffect, TargetInput};
use narad_core::moves::{SourceEffect, SourceInput, SourcePartition};

impl World {
    /// The identity of a copy.
    #[must_use]
    pub fn copy_id(&self, p: usize, epoch: Epoch) -> CopyId {
        CopyId {
            key: self.keys[p],
            epoch,
        }
    }

    /// Opens the copy that the applied metadata gives to this node, once the start is confirmed.
    pub(crate) fn open_source(&mut self, n: usize, p: usize) {
        let node = &self.nodes[n];
        if !node.up || !node.confirmed || node.removed {
            return;
        }
        let Some(view) = self.view_of(n, p).filter(|a| a.owner == node.id).cloned() else {
            return;
        };
        if self.nodes[n].parts[p].source.is_some() {
            return;
        }
        let epoch = view.epoch;
        if !self.nodes[n].parts[p].copies.contains_key(&epoch) {
            if has_log(&view) {
                // Missing: never replaced by an empty one.
                return;
            }
            self.part(n, p).copies.insert(epoch, Default::default());
        }
        let marked = has_log(&view);
        let (me, index) = (self.nodes[n].id.clone(), self.nodes[n].applied);
        let shown = self.opened_under(&view);
        let copy = self.copy_id(p, epoch);
        let side = SourcePartition::open(me, copy, index, Some(&shown), self.now);
        let nonce = self.first_nonce();
        let part = self.part(n, p);
        let held = part.copies.get_mut(&epoch).expect("looked at above");
        held.mark = None;
        held.recover();
        let frontier = Offset(held.frontier);
        part.source = Some(Source {
            side,
            in_flight: Vec::new(),
            written: 0,
            settling: None,
            stopped: false,
            failed: false,
            leases: LeaseTable::new(frontier, nonce),
            marked,
        });
        self.note_shown(n, p);
    }

    /// Whether the metadata is still to learn that a log exists.
    #[must_use]
    pub fn unmarked(&self, n: usize, p: usize) -> bool {
        let source = self.nodes[n].parts[p].source.as_ref();
        source.is_some_and(|source| !source.marked && !source.stopped)
    }

    /// Nothing of a new log is acknowledged before the metadata knows that it exists.
    pub(crate) fn mark_opened(&mut self, n: usize, p: usize, how: How) {
        let Some(source) = &self.nodes[n].parts[p].source else {
            return;
        };
        let command = Command::MarkOpened {
            key: self.keys[p],
            owner: self.nodes[n].id.clone(),
            epoch: source.side.copy().epoch,
        };
        let outcome = self.propose(n, command, how);
        if matches!(outcome, ProposeOutcome::Done { .. })
            && let Some(source) = &mut self.part(n, p).source
        {
            source.marked = true;
        }
    }

    /// A rule switched off: what a restarted owner makes of the recorded handoff.
    fn opened_under(&self, view: &Assignment) -> Assignment {
        let mut view = view.clone();
        if self.off(Mutation::ForgetFreeze)
            && let Some(target) = &mut view.target
        {
            target.handoff = None;
        }
        view
    }

    /// Steps the owner's side; gives the effect that answers the call, if the input was one.
    pub(crate) fn feed_source(
        &mut self,
        n: usize,
        p: usize,
        input: SourceInput,
    ) -> Option<SourceEffect> {
        let now = self.now;
        let source = self.part(n, p).source.as_mut()?;
        let effects = source.side.step(now, input);
        let mut answer = None;
        for effect in effects {
            match effect {
                SourceEffect::BeginSettle { handoff_id } => {
                    if let Some(source) = &mut self.part(n, p).source {
                        source.settling = Some(handoff_id);
                    }
                    self.settle(n, p);
                }
                SourceEffect::AnswerCapture { handoff_id } => {
                    if let Some(capture) = self.manifest(n, p) {
                        let ghost = self.ghost();
                        let told = ghost.captured_frontiers.entry(handoff_id).or_default();
                        told.insert(capture.frontier.0);
                        ghost.captures.insert(handoff_id, capture.clone());
                        self.freeze_answered(n, p, handoff_id, &TargetInput::Frozen { capture });
                    }
                }
                SourceEffect::FreezeRefused {
                    handoff_id,
                    refusal,
                } => {
                    self.freeze_answered(n, p, handoff_id, &TargetInput::SourceRefused(refusal));
                }
                SourceEffect::ProposeCancel { handoff_id } => self.cancel_wanted(n, p, handoff_id),
                SourceEffect::AnswerManifest { .. }
                | SourceEffect::AnswerDone
                | SourceEffect::AnswerRefused(_) => answer = Some(effect),
                SourceEffect::StopServing { .. } => {
                    if let Some(source) = &mut self.part(n, p).source {
                        source.stopped = true;
                    }
                }
                SourceEffect::PinFloor { .. }
                | SourceEffect::SessionClosed { .. }
                | SourceEffect::Unfreeze { .. } => {}
            }
        }
        self.close_stopped(n, p);
        answer
    }

    fn cancel_wanted(&mut self, n: usize, p: usize, handoff_id: HandoffId) {
        if self.off(Mutation::ResumeOnTtl) {
            let index = self.nodes[n].applied;
            let mut view = self.view_of(n, p).cloned();
            if let Some(target) = view.as_mut().and_then(|a| a.target.as_mut()) {
                target.handoff = None;
            }
            self.feed_source(
                n,
                p,
                SourceInput::AssignmentApplied {
                    index,
                    assignment: view,
                },
            );
            return;
        }
        let key = self.keys[p];
        self.propose(
            n,
            Command::CancelHandoff { key, handoff_id },
            self.cancel_how,
        );
    }

    /// The owner's clock for the handoff.
    pub(crate) fn tick_source(&mut self, n: usize, p: usize, how: How) {
        self.cancel_how = how;
        self.feed_source(n, p, SourceInput::Tick);
        self.cancel_how = How::Ok;
    }

    /// Whether the owner's clock has run out.
    #[must_use]
    pub fn tick_due(&self, n: usize, p: usize) -> bool {
        let source = self.nodes[n].parts[p].source.as_ref();
        let due = source.and_then(|source| source.side.next_deadline());
        self.nodes[n].up && due.is_some_and(|due: MonoMs| due <= self.now)
    }

    pub(crate) fn settle(&mut self, n: usize, p: usize) {
        let hasty = self.off(Mutation::NoSettle);
        if let Some(source) = &mut self.part(n, p).source
            && (source.in_flight.is_empty() || hasty)
            && let Some(handoff_id) = source.settling.take()
        {
            self.feed_source(n, p, SourceInput::Settled { handoff_id });
        }
    }

    /// A copy that is not served any more is closed when its appends have settled.
    pub(crate) fn close_stopped(&mut self, n: usize, p: usize) {
        let settled = self.nodes[n].parts[p]
            .source
            .as_ref()
            .is_some_and(|source| source.stopped && source.in_flight.is_empty());
        if settled {
            self.part(n, p).source = None;
            self.open_source(n, p);
        }
    }

    /// The open copy as its owner tells it.
    #[must_use]
    pub fn manifest(&self, n: usize, p: usize) -> Option<Manifest> {
        let part = &self.nodes[n].parts[p];
        let source = part.source.as_ref()?;
        let copy = part.copies.get(&source.side.copy().epoch)?;
        Some(copy.manifest(
            source.leases.frontier().0,
            self.setup.record_bytes,
            self.off(Mutation::R4),
        ))
    }

    /// Answers whoever waits for this Freeze.
    fn freeze_answered(&mut self, from: usize, p: usize, id: HandoffId, input: &TargetInput) {
        for n in 0..self.nodes.len() {
            let wanted = Some(TargetEffect::FreezeSource { handoff_id: id });
            let waits = self.nodes[n].parts[p]
                .worker
                .as_ref()
                .is_some_and(|w| w.asked && w.pending == wanted);
            if waits && self.reach(from, n) {
                self.answer(n, p, input.clone());
            }
        }
    }
}
