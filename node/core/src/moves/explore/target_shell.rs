//! The target's shell of a walk: it carries out the worker's effects, badly when faults are on.

use super::calls::usize_of;
use super::world::{Copy, Staging, World, segment};
use crate::defaults::FORCE_PROMOTE_AFTER_MS;
use crate::ids::{CopyId, DeathGeneration, HandoffId, MonoMs, Offset, RaftIndex};
use crate::meta::{Assignment, MemberStatus, Reply};
use crate::moves::source::SourceInput;
use crate::moves::target::{
    Confirmed, FoundInstalled, OwnerLife, ProposeOutcome, TargetEffect, TargetInput, TargetMove,
};

pub(super) struct Worker {
    pub(super) machine: TargetMove,
    pending: Option<TargetEffect>,
    due: MonoMs,
    interrupted: bool,
}

impl World {
    /// Starts the worker that the applied metadata wants, and tells a running one.
    pub(super) fn worker_applied(
        &mut self,
        at: usize,
        index: RaftIndex,
        assignment: Option<Assignment>,
    ) {
        if self.nodes[at].worker.is_some() {
            self.feed_worker(
                at,
                TargetInput::AssignmentApplied {
                    index,
                    assignment: assignment.clone(),
                },
            );
        }
        self.watch_owner(at, assignment.as_ref());
        if self.nodes[at].worker.is_none() {
            self.start_worker(at, index, assignment.as_ref());
        }
    }

    fn start_worker(&mut self, at: usize, index: RaftIndex, assignment: Option<&Assignment>) {
        let node = &self.nodes[at];
        let marked = node.copies.iter().find(|(_, copy)| copy.mark.is_some());
        let machine = if let Some((epoch, copy)) = marked {
            let found = FoundInstalled {
                copy: self.copy_id(*epoch),
                mark: copy.mark.expect("found by it"),
                end: Offset(copy.records.len() as u64),
                hwm: Offset(copy.hwm as u64),
            };
            TargetMove::found_installed(node.id.clone(), found, index, assignment)
        } else {
            let Some(view) = assignment else { return };
            let Some(target) = view.target.as_ref().filter(|t| t.node == node.id) else {
                return;
            };
            TargetMove::new(node.id.clone(), self.key, target.move_id, index, view)
        };
        self.nodes[at].worker = Some(Worker {
            machine,
            pending: None,
            due: MonoMs(0),
            interrupted: false,
        });
        self.feed_worker(at, TargetInput::Start);
    }

    fn watch_owner(&mut self, at: usize, assignment: Option<&Assignment>) {
        let state = &self.versions[self.nodes[at].applied];
        let dead = assignment
            .and_then(|a| state.members.get(&a.owner))
            .filter(|m| m.status == MemberStatus::Dead)
            .map(|m| m.deaths.0);
        let known = self.nodes[at].owner_dead;
        match (dead, known) {
            (Some(deaths), Some((seen, _))) if seen == deaths => {}
            (Some(deaths), _) => self.nodes[at].owner_dead = Some((deaths, self.now)),
            (None, _) => {
                self.nodes[at].owner_dead = None;
                self.feed_worker(at, TargetInput::OwnerAlive);
            }
        }
    }

    pub(super) fn tick_worker(&mut self, at: usize) {
        if let Some((deaths, since)) = self.nodes[at].owner_dead
            && self.now.since(since) >= FORCE_PROMOTE_AFTER_MS
        {
            let deaths = DeathGeneration(deaths);
            self.feed_worker(at, TargetInput::OwnerDeadLongEnough { deaths });
        }
        if self.nodes[at].up
            && let Some(worker) = &self.nodes[at].worker
            && matches!(worker.pending, Some(TargetEffect::Wait { .. }))
            && worker.due <= self.now
        {
            self.feed_worker(at, TargetInput::Timer);
        }
    }

    pub(super) fn feed_worker(&mut self, at: usize, input: TargetInput) {
        let now = self.now;
        let Some(worker) = &mut self.nodes[at].worker else {
            return;
        };
        let mut ended = false;
        for effect in worker.machine.step(input) {
            match effect {
                TargetEffect::Report(_) => {}
                TargetEffect::Interrupt => worker.interrupted = true,
                TargetEffect::Done { .. } => ended = true,
                TargetEffect::Wait { ms } => {
                    worker.due = now.plus_ms(ms);
                    worker.pending = Some(TargetEffect::Wait { ms });
                    worker.interrupted = false;
                }
                other => {
                    worker.pending = Some(other);
                    worker.interrupted = false;
                }
            }
        }
        if ended {
            self.nodes[at].worker = None;
        }
    }

    /// A Freeze call is answered, if its caller still waits and the answer arrives.
    pub(super) fn freeze_answered(&mut self, source: usize, id: HandoffId, input: TargetInput) {
        if self.faults && self.rng.percent(10) {
            return;
        }
        for at in 0..self.nodes.len() {
            let waits = self.nodes[at]
                .worker
                .as_ref()
                .is_some_and(|w| w.pending == Some(TargetEffect::FreezeSource { handoff_id: id }));
            if waits && self.talks(at) && self.talks(source) {
                self.answer(at, input.clone());
            }
        }
    }

    fn answer(&mut self, at: usize, input: TargetInput) {
        if let Some(worker) = &mut self.nodes[at].worker {
            worker.pending = None;
        }
        self.feed_worker(at, input);
    }

    /// Carries out what the worker asked for.
    pub(super) fn worker_step(&mut self, at: usize) {
        if !self.nodes[at].up || self.nodes[at].stalled {
            return;
        }
        let Some(worker) = &mut self.nodes[at].worker else {
            return;
        };
        if worker.interrupted && self.rng.percent(80) {
            self.answer(at, TargetInput::Interrupted);
            return;
        }
        let Some(effect) = worker.pending.clone() else {
            return;
        };
        if self.faults && self.rng.percent(2) && self.fail_locally(at, &effect) {
            return;
        }
        if let Some(input) = self.carry_out(at, effect) {
            self.answer(at, input);
        }
    }

    fn fail_locally(&mut self, at: usize, effect: &TargetEffect) -> bool {
        let local = matches!(
            effect,
            TargetEffect::CheckLocal
                | TargetEffect::OpenStaging
                | TargetEffect::PrepareInstall { .. }
                | TargetEffect::FinishStaging { .. }
                | TargetEffect::Install { .. }
                | TargetEffect::RollBack { .. }
                | TargetEffect::Serve { .. }
        );
        if !local {
            return false;
        }
        // A failed rename may have taken place: its directory was not synced.
        if matches!(effect, TargetEffect::Install { .. }) && self.rng.percent(50) {
            self.carry_out(at, effect.clone());
        }
        self.answer(at, TargetInput::Failed { why: "disk".into() });
        true
    }

    fn carry_out(&mut self, at: usize, effect: TargetEffect) -> Option<TargetInput> {
        match effect {
            TargetEffect::Wait { .. } => None,
            TargetEffect::CheckLocal => Some(match self.nodes[at].copies.keys().next() {
                Some(epoch) => TargetInput::LocalOccupied {
                    copy: self.copy_id(*epoch),
                },
                None => TargetInput::LocalClear,
            }),
            TargetEffect::OpenStaging => Some(self.open_staging(at)),
            TargetEffect::SetAside { .. } | TargetEffect::ResetStaging { .. } => {
                let move_id = self.worker_move(at);
                self.nodes[at].staging = Some(Staging {
                    move_id,
                    ..Staging::default()
                });
                Some(self.staging_ready(at))
            }
            TargetEffect::TrimStaging { .. } => Some(self.staging_ready(at)),
            TargetEffect::OpenSource | TargetEffect::RefreshSource => self.ask_source(at, &effect),
            TargetEffect::CheckPrefixes { staged } => self.check_prefixes(at, &staged),
            TargetEffect::CopyRanges {
                ranges,
                renew,
                told,
                ..
            } => Some(self.copy(at, &ranges, renew, told)),
            TargetEffect::PrepareInstall { told, .. } => {
                if let Some(staging) = &mut self.nodes[at].staging {
                    staging.told = Some(told);
                }
                Some(TargetInput::InstallPrepared)
            }
            TargetEffect::Propose(command) => {
                let reply = self.propose_from(at, command);
                Some(TargetInput::Proposed(match reply {
                    None => ProposeOutcome::NotProposed,
                    Some(None) => ProposeOutcome::Unknown,
                    Some(Some(Reply::Done { index })) => ProposeOutcome::Done { index },
                    Some(Some(Reply::Refused { refusal })) => ProposeOutcome::Refused(refusal),
                }))
            }
            TargetEffect::FreezeSource { handoff_id } => self.ask_freeze(at, handoff_id),
            TargetEffect::FinishStaging { capture, mark, .. } => {
                Some(self.finish(at, &capture, mark))
            }
            TargetEffect::Install { next } => Some(self.install(at, next)),
            TargetEffect::QueryBarrier => Some(self.barrier(at)),
            TargetEffect::RollBack { copy } => Some(self.roll_back(at, copy)),
            TargetEffect::Serve { copy } => {
                self.catch_up(at);
                let serves = self.nodes[at]
                    .source
                    .as_ref()
                    .is_some_and(|s| s.side.copy() == copy);
                Some(if serves {
                    TargetInput::Serving
                } else {
                    TargetInput::Failed {
                        why: "not yet".into(),
                    }
                })
            }
            TargetEffect::CloseSource => {
                let move_id = self.worker_move(at);
                let call = SourceInput::CloseSession { move_id };
                if let Some(source) = self.reach(at) {
                    self.feed_source(source, call);
                }
                Some(TargetInput::SourceClosed)
            }
            TargetEffect::Interrupt | TargetEffect::Report(_) | TargetEffect::Done { .. } => None,
        }
    }

    pub(super) fn worker_move(&self, at: usize) -> crate::ids::MoveId {
        self.nodes[at]
            .worker
            .as_ref()
            .map(|w| w.machine.move_id())
            .expect("asked for by a worker")
    }

    fn finish(
        &mut self,
        at: usize,
        capture: &crate::copy::Manifest,
        mark: crate::copy::InstallMark,
    ) -> TargetInput {
        let bad = self.faults && self.rng.percent(3);
        let staging = self.nodes[at].staging.as_mut().expect("open");
        if bad || segment(&staging.records) != capture.segments {
            return TargetInput::Mismatch {
                why: "digest".into(),
            };
        }
        staging.durable = staging.records.len();
        staging.finished = Some((usize_of(capture.hwm.0), mark));
        TargetInput::Finished
    }

    fn install(&mut self, at: usize, next: CopyId) -> TargetInput {
        let node = &mut self.nodes[at];
        assert!(
            node.copies.is_empty(),
            "R1: an install beside a real copy of the partition"
        );
        let staging = node.staging.take().expect("finished before");
        let (hwm, mark) = staging.finished.expect("finished before");
        node.copies.insert(
            next.epoch,
            Copy {
                records: staging.records,
                hwm,
                mark: Some(mark),
            },
        );
        TargetInput::Installed
    }

    fn roll_back(&mut self, at: usize, copy: CopyId) -> TargetInput {
        let move_id = self.worker_move(at);
        if let Some(held) = self.nodes[at].copies.remove(&copy.epoch) {
            assert!(held.mark.is_some(), "R2: a served copy is never taken back");
            self.count.rollbacks += 1;
            self.nodes[at].staging = Some(Staging {
                move_id,
                durable: held.records.len(),
                records: held.records,
                told: None,
                finished: None,
            });
        }
        TargetInput::RolledBack
    }

    fn barrier(&mut self, at: usize) -> TargetInput {
        if !self.talks(at) || (self.faults && self.rng.percent(10)) {
            return TargetInput::Barrier(None);
        }
        self.catch_up(at);
        let assignment = self.view().clone();
        let owner = self
            .last()
            .members
            .get(&assignment.owner)
            .map(|m| OwnerLife {
                status: m.status,
                deaths: m.deaths,
            });
        TargetInput::Barrier(Some(Confirmed {
            assignment: Some(assignment),
            owner,
        }))
    }
}
