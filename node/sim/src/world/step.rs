//! One step.
//!
//! What this file keeps true: an action that is not possible does nothing, so that a shrunk list of
//! actions is still a run; what an action costs is taken before its effects.

use super::World;
use crate::action::{Action, How};
use crate::limits::CHAIN_MAX;
use narad_core::moves::target::{TargetEffect, TargetInput};

impl World {
    /// Takes one step and looks at the promises.
    pub fn step(&mut self, action: Action) {
        if self.violation.is_some() {
            return;
        }
        self.faults = self.faults.saturating_sub(cost(action));
        self.take(action);
        self.hurry();
        self.prune();
        self.check_state();
    }

    /// What is not a step of its own in this setup.
    fn hurry(&mut self) {
        let setup = self.setup.clone();
        for n in setup.eager.iter().copied() {
            if self.in_quorum(n) && self.nodes[n].confirmed {
                self.catch_up(n);
            }
        }
        if !setup.chained {
            return;
        }
        for n in 0..self.nodes.len() {
            if self.pause_of_dispatch(n) {
                self.wake_dispatch(n);
            }
            for p in 0..self.keys.len() {
                for _ in 0..CHAIN_MAX {
                    if !self.nodes[n].up || !self.chain(n, p) {
                        break;
                    }
                }
            }
        }
    }

    /// Does one local step of a worker, if that is what it waits for.
    fn chain(&mut self, n: usize, p: usize) -> bool {
        let Some(worker) = &self.nodes[n].parts[p].worker else {
            return false;
        };
        let waits_for_shard = !self.nodes[n].parts[p].copies.is_empty();
        match worker.pending {
            Some(TargetEffect::Wait { .. }) if !waits_for_shard => {
                self.answer(n, p, TargetInput::Timer);
            }
            Some(TargetEffect::CheckLocal) if !waits_for_shard => self.work(n, p, How::Ok),
            Some(
                TargetEffect::OpenStaging
                | TargetEffect::TrimStaging { .. }
                | TargetEffect::SetAside { .. }
                | TargetEffect::ResetStaging { .. }
                | TargetEffect::PrepareInstall { .. },
            ) => self.work(n, p, How::Ok),
            _ => return false,
        }
        true
    }

    fn take(&mut self, action: Action) {
        match action {
            Action::Produce(n, p) => self.produce(n, p),
            Action::Written(n, p) => self.write(n, p),
            Action::Ack(n, p) => self.end_append(n, p),
            Action::SyncFails(n, p) => self.sync_fails(n, p),
            Action::Reopen(n, p) => self.reopen(n, p),
            Action::Mark(n, p, how) => self.mark_opened(n, p, how),
            Action::Deliver(n, p) => self.deliver(n, p),
            Action::AckLease(n, at) => self.ack_lease(n, at),
            Action::Nack(n, at) => self.nack_lease(n, at),
            Action::Retain(n, p) => self.retain(n, p),
            Action::Apply(n) => self.apply_next(n),
            Action::Confirm(n) => self.confirm(n),
            Action::Work(n, p, how) => self.work(n, p, how),
            Action::Interrupted(n, p) => self.answer(n, p, TargetInput::Interrupted),
            Action::Timer(n, p) => self.answer(n, p, TargetInput::Timer),
            Action::Tick(n, p, how) => self.tick_source(n, p, how),
            Action::Commit(at) => {
                let command = self.pool.remove(at);
                self.commit(&command);
            }
            Action::Forget(at) => {
                self.pool.remove(at);
            }
            Action::Redo => self.pool.extend(self.last_command.take()),
            Action::Call(at) => {
                let call = self.calls.remove(at);
                if self.nodes[call.n].up {
                    self.feed_source(call.n, call.p, call.input);
                }
            }
            Action::Salvage(n, p) => self.salvage(n, p),
            Action::Reclaim(n, p, how) => self.reclaim(n, p, how),
            Action::DeleteAgain(n, p) => self.delete_again(n, p),
            Action::Report(n, p) => self.report(n, p),
            Action::Dispatch(n, how) => self.dispatch(n, how),
            Action::Beat(n, to, how) => self.beat(n, to, how),
            Action::Plan(how) => self.plan_pass(how),
            Action::StalePlan(n) => self.stale_plan(n),
            Action::MoveTo(p, n) => self.move_to(p, n),
            Action::CancelMove(p) => self.cancel_move(p),
            Action::Drain(n) => self.drain(n),
            Action::Remove(n) => self.remove(n),
            Action::GiveUp(n) => self.give_up(n),
            Action::HandOver(n) => self.hand_over(n),
            Action::DeleteTopic => self.delete_topic(),
            Action::CreateTopic => {
                self.commands = self.commands.saturating_sub(1);
                self.create_topic();
            }
            Action::Crash(n, left) => self.crash(n, left),
            Action::Restart(n) => self.restart(n),
            Action::Cut(n) => self.node(n).cut = true,
            Action::Mute(n) => self.node(n).mute = true,
            Action::Heal(n) => {
                let node = self.node(n);
                (node.cut, node.mute) = (false, false);
            }
            Action::Elect(n) => self.elect(n),
            Action::StepDown(n) => self.step_down(n),
            Action::Advance(span) => {
                self.advances = self.advances.saturating_sub(1);
                self.advance(span);
            }
        }
    }

    fn delete_topic(&mut self) {
        let topic = self.last().topics.keys().next_back().copied();
        if let Some(topic) = topic {
            self.commands = self.commands.saturating_sub(1);
            self.commit(&narad_core::meta::Command::DeleteTopic { topic });
        }
    }
}

/// What an action takes from the budget of faults.
#[must_use]
pub(super) fn cost(action: Action) -> u8 {
    match action {
        Action::Work(_, _, how)
        | Action::Tick(_, _, how)
        | Action::Mark(_, _, how)
        | Action::Reclaim(_, _, how)
        | Action::Dispatch(_, how)
        | Action::Beat(_, _, how)
        | Action::Plan(how) => how.cost(),
        Action::SyncFails(..)
        | Action::Redo
        | Action::DeleteAgain(..)
        | Action::Crash(..)
        | Action::Cut(_)
        | Action::Mute(_)
        | Action::Elect(_)
        | Action::StalePlan(_)
        | Action::MoveTo(..)
        | Action::CancelMove(_)
        | Action::Drain(_)
        | Action::GiveUp(_)
        | Action::DeleteTopic => 1,
        Action::Produce(..)
        | Action::Ack(..)
        | Action::Written(..)
        | Action::Reopen(..)
        | Action::Deliver(..)
        | Action::AckLease(..)
        | Action::Nack(..)
        | Action::Retain(..)
        | Action::Apply(_)
        | Action::Confirm(_)
        | Action::Interrupted(..)
        | Action::Timer(..)
        | Action::Commit(_)
        | Action::Forget(_)
        | Action::Call(_)
        | Action::Salvage(..)
        | Action::Report(..)
        | Action::Remove(_)
        | Action::HandOver(_)
        | Action::CreateTopic
        | Action::Restart(_)
        | Action::Heal(_)
        | Action::StepDown(_)
        | Action::Advance(_) => 0,
    }
}

/// Whether a way is one of loss, of lateness or of the disk.
pub(crate) fn allowed(world: &World, how: How) -> bool {
    let allow = &world.setup.allow;
    how.cost() <= world.faults
        && match how {
            How::Ok => true,
            How::Lost | How::NoReply | How::Half => allow.loss,
            How::Twice | How::Late => allow.late,
            How::Fail | How::FailDone | How::Corrupt | How::NoRoom => allow.disk,
        }
}
