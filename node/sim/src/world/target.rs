//! The mover: workers of moves into a node, and what the world does for them.
//!
//! What this file keeps true: one operation at a time, each answered by exactly one input; a start
//! that finds an installed copy with its mark begins there (R3).

use super::{Part, Worker, World};
use crate::action::How;
use crate::mutation::Mutation;
use narad_core::defaults::FORCE_PROMOTE_AFTER_MS;
use narad_core::ids::Offset;
use narad_core::moves::target::{
    Confirmed, MovePhase, OwnerLife, ProposeOutcome, TargetEffect, TargetInput, TargetMove,
};
use narad_core::moves::{FoundInstalled, MoveOutcome, OwnerWatch};

impl World {
    /// Tells the worker what is applied, or starts the one that is wanted.
    pub(crate) fn follow_worker(&mut self, n: usize, p: usize) {
        let (index, assignment) = (self.nodes[n].applied, self.view_of(n, p).cloned());
        self.feed_worker(n, p, TargetInput::AssignmentApplied { index, assignment });
        self.watch_owner(n, p);
        self.start_worker(n, p);
    }

    fn start_worker(&mut self, n: usize, p: usize) {
        let node = &self.nodes[n];
        let part: &Part = &node.parts[p];
        if !node.up || !node.confirmed || node.removed || part.worker.is_some() {
            return;
        }
        let index = node.applied;
        let view = self.view_of(n, p);
        let marked = part.copies.iter().find(|(_, copy)| copy.mark.is_some());
        let machine = match marked {
            Some((epoch, copy)) if part.found => {
                let found = FoundInstalled {
                    copy: self.copy_id(p, *epoch),
                    mark: copy.mark.expect("looked for"),
                    end: Offset(copy.end()),
                    hwm: Offset(copy.hwm),
                };
                TargetMove::found_installed(node.id.clone(), found, index, view)
            }
            _ => {
                let Some(view) = view else { return };
                let Some(target) = view.target.as_ref().filter(|t| t.node == node.id) else {
                    return;
                };
                TargetMove::new(node.id.clone(), self.keys[p], target.move_id, index, view)
            }
        };
        let part = self.part(n, p);
        part.found = false;
        part.worker = Some(Worker {
            machine,
            watch: OwnerWatch::new(FORCE_PROMOTE_AFTER_MS),
            pending: None,
            interrupted: false,
            asked: false,
        });
        self.watch_owner(n, p);
        self.feed_worker(n, p, TargetInput::Start);
    }

    /// What this node's clock says of the owner's death.
    pub(crate) fn watch_owner(&mut self, n: usize, p: usize) {
        let (key, now) = (self.keys[p], self.now);
        let version = self.state_of(n).clone();
        let Some(worker) = &mut self.part(n, p).worker else {
            return;
        };
        if let Some(input) = worker.watch.look(key, &version.state, now) {
            self.feed_worker(n, p, input);
        }
    }

    pub(crate) fn feed_worker(&mut self, n: usize, p: usize, input: TargetInput) {
        if self.nodes[n].parts[p].worker.is_none() {
            return;
        }
        let worker = self.part(n, p).worker.as_mut().expect("looked at above");
        let mut ended = None;
        for effect in worker.machine.step(input) {
            match effect {
                TargetEffect::Report(_) => {}
                TargetEffect::Interrupt => worker.interrupted = true,
                TargetEffect::Done { outcome } => ended = Some(outcome),
                wanted => {
                    worker.pending = Some(wanted);
                    worker.interrupted = false;
                    worker.asked = false;
                }
            }
        }
        let Some(outcome) = ended else { return };
        let keep_told = outcome == MoveOutcome::Stopped || self.off(Mutation::R12);
        let part = self.part(n, p);
        part.worker = None;
        if !keep_told {
            part.told = None;
        }
        self.start_worker(n, p);
    }

    /// The answer to the outstanding operation.
    pub(crate) fn answer(&mut self, n: usize, p: usize, input: TargetInput) {
        if let Some(worker) = &mut self.part(n, p).worker {
            worker.pending = None;
            worker.interrupted = false;
            worker.asked = false;
        }
        self.feed_worker(n, p, input);
    }

    /// Carries out what the worker asked for.
    pub(crate) fn work(&mut self, n: usize, p: usize, how: How) {
        let Some(worker) = &self.nodes[n].parts[p].worker else {
            return;
        };
        let Some(effect) = worker.pending.clone() else {
            return;
        };
        if let Some(input) = self.carry_out(n, p, effect, how) {
            self.answer(n, p, input);
        }
    }

    fn carry_out(
        &mut self,
        n: usize,
        p: usize,
        effect: TargetEffect,
        how: How,
    ) -> Option<TargetInput> {
        let writes = matches!(
            effect,
            TargetEffect::CopyRanges { .. }
                | TargetEffect::TrimStaging { .. }
                | TargetEffect::PrepareInstall { .. }
                | TargetEffect::FinishStaging { .. }
        );
        let fails = how == How::Fail && !matches!(effect, TargetEffect::Propose(_));
        if let Some(staging) = &mut self.part(n, p).staging {
            staging.failed |= fails && writes;
            if staging.failed && writes {
                return Some(failed("an earlier write failed"));
            }
        }
        if fails {
            return Some(failed("the disk"));
        }
        match effect {
            TargetEffect::CheckLocal => Some(self.check_local(n, p)),
            TargetEffect::OpenStaging => Some(self.open_staging(n, p)),
            TargetEffect::SetAside { .. } => Some(self.start_over(n, p, true)),
            TargetEffect::ResetStaging { .. } => Some(self.start_over(n, p, false)),
            TargetEffect::TrimStaging { keep } => Some(self.trim(n, p, &keep)),
            TargetEffect::OpenSource => Some(self.ask_source(n, p, true, how)),
            TargetEffect::RefreshSource => Some(self.ask_source(n, p, false, how)),
            TargetEffect::CheckPrefixes { staged } => Some(self.check_prefixes(n, p, &staged, how)),
            TargetEffect::CopyRanges {
                ranges,
                renew,
                told,
                ..
            } => Some(self.copy(n, p, &ranges, renew, told, how)),
            TargetEffect::PrepareInstall { .. } if how == How::Late => {
                Some(TargetInput::WaitedForTurn)
            }
            TargetEffect::PrepareInstall { told, .. } => {
                self.part(n, p).told = Some(told);
                Some(TargetInput::InstallPrepared)
            }
            TargetEffect::Propose(command) => Some(self.propose_flip(n, p, command, how)),
            TargetEffect::FreezeSource { handoff_id } => self.ask_freeze(n, p, handoff_id, how),
            TargetEffect::FinishStaging { capture, mark, .. } => {
                Some(self.finish_staging(n, p, capture, mark, how))
            }
            TargetEffect::Install { next } => Some(self.install(n, p, next.epoch, how)),
            TargetEffect::QueryBarrier => Some(self.barrier(n, p, how)),
            TargetEffect::RollBack { copy } => Some(self.roll_back(n, p, copy.epoch)),
            TargetEffect::Serve { copy } => Some(self.serve(n, p, copy.epoch)),
            TargetEffect::CloseSource => Some(self.close_source(n, p, how)),
            TargetEffect::Wait { .. } => Some(TargetInput::Timer),
            TargetEffect::Interrupt | TargetEffect::Report(_) | TargetEffect::Done { .. } => None,
        }
    }

    fn propose_flip(
        &mut self,
        n: usize,
        p: usize,
        command: narad_core::meta::Command,
        how: How,
    ) -> TargetInput {
        use narad_core::meta::Command;
        let flip = matches!(
            command,
            Command::CompleteMove { .. } | Command::ForcePromote { .. }
        );
        let outcome = self.propose(n, command, how);
        if flip && outcome == ProposeOutcome::Unknown && self.off(Mutation::UnknownIsRejected) {
            self.part(n, p).rejected = true;
        }
        TargetInput::Proposed(outcome)
    }

    fn barrier(&mut self, n: usize, p: usize, how: How) -> TargetInput {
        if !self.to_leader(n) || how == How::Lost {
            return TargetInput::Barrier(None);
        }
        let mut assignment = self.view(p).cloned();
        if !std::mem::take(&mut self.part(n, p).rejected) {
            self.catch_up(n);
        } else {
            // A rule switched off: no answer counts as a refusal.
            let epoch = self.nodes[n].parts[p]
                .worker
                .as_ref()
                .map(|worker| worker.machine.epoch());
            if let (Some(view), Some(epoch)) = (&mut assignment, epoch) {
                view.epoch = epoch;
                view.ended.retain(|ended| ended.epoch < epoch);
                view.target = None;
            }
        }
        let members = &self.last().members;
        let owner = assignment
            .as_ref()
            .and_then(|a| members.get(&a.owner))
            .map(|m| OwnerLife {
                status: m.status,
                deaths: m.deaths,
            });
        TargetInput::Barrier(Some(Confirmed { assignment, owner }))
    }

    fn serve(&mut self, n: usize, p: usize, epoch: narad_core::ids::Epoch) -> TargetInput {
        if self.to_leader(n) {
            self.catch_up(n);
        }
        let serves = self.nodes[n].parts[p]
            .source
            .as_ref()
            .is_some_and(|source| source.side.copy().epoch == epoch);
        if serves {
            TargetInput::Serving
        } else {
            failed("not served yet")
        }
    }

    /// Whether some worker is about to make its move known, or has.
    #[must_use]
    pub fn flip_asked(&self) -> bool {
        let late = |phase| {
            matches!(
                phase,
                MovePhase::Flipping
                    | MovePhase::Unknown
                    | MovePhase::RollingBack
                    | MovePhase::TakingOver
            )
        };
        (0..self.nodes.len())
            .any(|n| (0..self.keys.len()).any(|p| self.phase(n, p).is_some_and(late)))
    }

    /// The phase of the move into a node, if one runs.
    #[must_use]
    pub fn phase(&self, n: usize, p: usize) -> Option<MovePhase> {
        let worker = self.nodes[n].parts[p].worker.as_ref()?;
        Some(worker.machine.progress().phase)
    }
}

pub(crate) fn failed(why: &str) -> TargetInput {
    TargetInput::Failed { why: why.into() }
}
