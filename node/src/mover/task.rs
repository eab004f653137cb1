//! The task of one move: it feeds the worker's machine and runs one operation at a time.
//!
//! What this file keeps true: the machine sees every applied version of the metadata while an
//! operation runs, so a move that is over stops at once; the death of an owner is timed here, on
//! the monotonic clock, from when this node saw it.

use super::Mover;
use super::history::{Facts, view};
use super::limits::{TICK_MS, TROUBLE_LOG_MS};
use super::work::Work;
use crate::clock::mono_ms;
use futures::FutureExt;
use futures::future::{Either, LocalBoxFuture, select};
use narad_core::meta::MetaState;
use narad_core::moves::target::{Report, TargetEffect, TargetInput, TargetMove};
use narad_core::moves::{MoveOutcome, OwnerWatch};
use narad_wire::view::MoveView;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What others see of a running move.
pub(super) struct Running {
    pub(super) view: RefCell<MoveView>,
}

fn applied(machine: &TargetMove, state: &MetaState) -> TargetInput {
    TargetInput::AssignmentApplied {
        index: state.applied,
        assignment: state.assignment(machine.key()).cloned(),
    }
}

/// Runs a move to its end. Dropping the future stops it where it is; the next start goes on.
pub(super) async fn run(mover: Rc<Mover>, mut machine: TargetMove, running: Rc<Running>) {
    let began = Instant::now();
    let (key, move_id) = (machine.key(), machine.move_id());
    tracing::info!(%key, %move_id, from = %machine.from(), "move into this node");
    let owner = machine.from().clone();
    let work = Work::new(mover.clone(), key, move_id, machine.epoch(), owner);
    let mut meta = mover.ctx.meta.clone();
    let mut watch = OwnerWatch::new(mover.ctx.config.timings.force_promote_after_ms);
    let mut troubles = Troubles::default();
    let mut operation: Option<LocalBoxFuture<'_, TargetInput>> = None;
    let mut inputs = VecDeque::from([TargetInput::Start]);
    let outcome = loop {
        let mut ended = None;
        while let Some(input) = inputs.pop_front() {
            for effect in machine.step(input) {
                match effect {
                    TargetEffect::Report(report) => troubles.log(&machine, report),
                    TargetEffect::Interrupt => work.interrupt.stop(),
                    TargetEffect::Done { outcome } => ended = Some(outcome),
                    wanted => {
                        crate::failpoint::before(&wanted);
                        work.interrupt.arm();
                        operation = Some(work.perform(wanted).boxed_local());
                    }
                }
            }
        }
        running.view.replace(look(&mover, &machine, &work, began));
        if let Some(outcome) = ended {
            break outcome;
        }
        match next(&mut operation, &mut meta).await {
            Event::Answer(input) => {
                operation = None;
                inputs.push_back(input);
            }
            Event::Meta => {
                let state = meta.borrow_and_update().clone();
                inputs.push_back(applied(&machine, &state));
                inputs.extend(watch.look(key, &state, mono_ms()));
            }
            Event::Tick => {
                let state = meta.borrow().clone();
                inputs.extend(watch.look(key, &state, mono_ms()));
            }
            Event::Stopping => inputs.push_back(TargetInput::Shutdown),
        }
    };
    drop(operation);
    finish(&mover, &machine, &work, began, outcome).await;
}

enum Event {
    Answer(TargetInput),
    Meta,
    Tick,
    Stopping,
}

async fn next(
    operation: &mut Option<LocalBoxFuture<'_, TargetInput>>,
    meta: &mut tokio::sync::watch::Receiver<std::sync::Arc<MetaState>>,
) -> Event {
    let answer = async {
        match operation {
            Some(operation) => operation.await,
            None => std::future::pending().await,
        }
    };
    let tick = pin!(glommio::timer::sleep(Duration::from_millis(TICK_MS)));
    let changed = pin!(meta.changed());
    match select(pin!(answer), select(changed, tick)).await {
        Either::Left((input, _)) => Event::Answer(input),
        Either::Right((Either::Left((Ok(()), _)), _)) => Event::Meta,
        Either::Right((Either::Left((Err(_), _)), _)) => Event::Stopping,
        Either::Right((Either::Right(_), _)) => Event::Tick,
    }
}

fn look(mover: &Mover, machine: &TargetMove, work: &Work, began: Instant) -> MoveView {
    let facts = Facts {
        ctx: &mover.ctx,
        began,
        live_bytes: work.live_bytes.get(),
        copied: work.copied(),
        freeze: work.freeze.get(),
    };
    view(&machine.progress(), &facts)
}

async fn finish(
    mover: &Mover,
    machine: &TargetMove,
    work: &Work,
    began: Instant,
    outcome: MoveOutcome,
) {
    let view = look(mover, machine, work, began);
    let freeze = work.freeze.get();
    let split = freeze.split;
    tracing::info!(
        key = %machine.key(), move_id = %machine.move_id(), ?outcome,
        bytes = view.bytes_done, passes = view.passes, converged = view.converged,
        bytes_per_s = view.bytes_per_s, write_bytes_per_s = view.write_bytes_per_s,
        elapsed_ms = view.elapsed_ms, freeze_us = freeze.whole_us, drained_bytes = freeze.bytes,
        settle_us = split.settle_us, drain_us = split.drain_us, persist_us = split.persist_us,
        install_us = split.install_us, flip_us = split.flip_us, takeover_us = split.takeover_us,
        "move ended"
    );
    let metrics = &mover.ctx.metrics;
    mover
        .history
        .borrow_mut()
        .add(view, outcome, &freeze, work.promoted.get(), metrics);
    if outcome == MoveOutcome::NoRoom {
        mover.unwanted.borrow_mut().insert(machine.key());
    }
    if outcome != MoveOutcome::Stopped {
        let (key, move_id) = (machine.key(), machine.move_id());
        if let Err(error) = super::told::forget(&mover.root, key, move_id).await {
            tracing::debug!(%key, %error, "what the source told stays until the janitor comes");
        }
    }
}

/// What was logged last of what holds the move up: the same again is said now and then only.
#[derive(Default)]
struct Troubles {
    last: Option<(String, Instant)>,
}

impl Troubles {
    fn log(&mut self, machine: &TargetMove, report: Report) {
        let Report::Trouble { why } = report else {
            return log(machine, &report);
        };
        let pause = Duration::from_millis(TROUBLE_LOG_MS);
        let said = self
            .last
            .as_ref()
            .is_some_and(|(last, at)| *last == why && at.elapsed() < pause);
        if said {
            return;
        }
        tracing::warn!(key = %machine.key(), move_id = %machine.move_id(), why, "move held up; trying again");
        self.last = Some((why, Instant::now()));
    }
}

fn log(machine: &TargetMove, report: &Report) {
    let (key, move_id) = (machine.key(), machine.move_id());
    match report {
        Report::Pass {
            pass,
            bytes,
            elapsed_us,
            tail,
        } => {
            let b = machine.progress().bytes_per_s;
            tracing::info!(%key, %move_id, pass, bytes, elapsed_us, bytes_per_s = b, tail, "pass copied");
        }
        Report::Converged { tail, lag_bound } => {
            tracing::info!(%key, %move_id, tail, lag_bound, "converged: handing over");
        }
        Report::NotConverged { tail, why } => {
            tracing::warn!(%key, %move_id, tail, ?why, "not converged: the tail is drained in the freeze");
        }
        Report::Trouble { .. } => unreachable!("logged by its caller, which remembers it"),
        Report::Promoting {
            deaths,
            staged_end,
            told_hwm,
        } => {
            tracing::warn!(%key, %move_id, %deaths, %staged_end, %told_hwm, "the owner stays dead: promoting the staged copy");
        }
    }
}
