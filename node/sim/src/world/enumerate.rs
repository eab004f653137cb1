//! What may happen next.
//!
//! What this file keeps true: the order is fixed, so a walk that picks by number is the same on
//! every machine; every action listed is possible, and what faults, clients and time may still do
//! is bounded by the setup.

use super::World;
use super::step::allowed;
use crate::action::{Action, How, Left};
use crate::limits::BEATS_WAITING;
use narad_core::meta::Command;
use narad_core::moves::target::TargetEffect;

const REMOTE: &[How] = &[How::Ok, How::Lost, How::NoReply, How::Twice];
const STREAM: &[How] = &[How::Ok, How::Half, How::Lost, How::Corrupt, How::NoRoom];
const PROPOSAL: &[How] = &[How::Ok, How::NoReply, How::Late, How::Twice, How::Lost];
const DELIVERY: &[How] = &[How::Ok, How::NoReply, How::Lost];
const LOCAL: &[How] = &[How::Ok, How::Fail];
/// Ways to tear a group: its beginning, its end, every other block, over zeros or old bytes.
const TORN: &[u8] = &[0b0000_0011, 0b0111_1110, 0b1101_0101];

impl World {
    /// Every action that is possible now.
    #[must_use]
    pub fn actions(&self) -> Vec<Action> {
        let mut out = Vec::new();
        if self.violation.is_some() {
            return out;
        }
        for n in 0..self.nodes.len() {
            if !self.nodes[n].removed {
                self.node_actions(n, &mut out);
            }
        }
        self.raft_actions(&mut out);
        self.operator_actions(&mut out);
        out
    }

    fn node_actions(&self, n: usize, out: &mut Vec<Action>) {
        let (node, allow) = (&self.nodes[n], &self.setup.allow);
        let faulty = self.faults > 0;
        if !node.up {
            out.push(Action::Restart(n));
            return;
        }
        if node.applied < self.last().applied && self.to_leader(n) {
            out.push(Action::Apply(n));
        }
        if !node.confirmed && self.to_leader(n) {
            out.push(Action::Confirm(n));
        }
        for p in 0..self.keys.len() {
            self.client_actions(n, p, out);
            self.worker_actions(n, p, out);
            if self.tick_due(n, p) {
                self.push_all(out, &[How::Ok, How::Late], |how| Action::Tick(n, p, how));
            }
            if allow.reclaim {
                self.retire_actions(n, p, out);
            }
        }
        if self.dispatchable(n) {
            self.push_all(out, DELIVERY, |how| Action::Dispatch(n, how));
        }
        if faulty && allow.crash.contains(&n) {
            let torn: &[u8] = if allow.disk { TORN } else { &[] };
            out.extend([Left::Nothing, Left::All].map(|left| Action::Crash(n, left)));
            out.extend(
                torn.iter()
                    .map(|blocks| Action::Crash(n, Left::Torn(*blocks))),
            );
        }
        if faulty && allow.cut.contains(&n) && !node.cut {
            out.push(Action::Cut(n));
        }
        if faulty && allow.mute.contains(&n) && !node.mute && !node.cut {
            out.push(Action::Mute(n));
        }
        if node.cut || node.mute {
            out.push(Action::Heal(n));
        }
        // In an exhaustive model a leader that is well stays.
        let wanted = !self.setup.chained || !self.in_quorum(self.leader);
        if faulty && wanted && allow.elect.contains(&n) && self.leader != n && self.in_quorum(n) {
            out.push(Action::Elect(n));
        }
        if node.leads && self.leader != n && self.in_quorum(n) {
            out.push(Action::StepDown(n));
        }
        if allow.beat.contains(&n) && self.setup.deaths {
            for to in 0..self.nodes.len() {
                let there = n == to || (self.reach(n, to) && !node.mute);
                let waiting = self.nodes[to].liveness.beats_waiting();
                if self.nodes[to].leads && there && waiting < BEATS_WAITING {
                    self.push_all(out, &[How::Ok, How::NoReply, How::Late], |how| {
                        Action::Beat(n, to, how)
                    });
                }
            }
        }
    }

    fn push_all(&self, out: &mut Vec<Action>, ways: &[How], action: impl Fn(How) -> Action) {
        out.extend(
            ways.iter()
                .filter(|how| allowed(self, **how))
                .map(|how| action(*how)),
        );
    }

    fn client_actions(&self, n: usize, p: usize, out: &mut Vec<Action>) {
        let (node, allow) = (&self.nodes[n], &self.setup.allow);
        let sent = u64::from(self.ghost.next_record - 1);
        let first = u64::from(self.setup.preload * self.setup.partitions);
        let stands = self.view(p).is_some();
        if stands && sent < first + u64::from(self.setup.records) {
            let open = self.may_append(n, p);
            let room = node.parts[p]
                .source
                .as_ref()
                .is_some_and(|s| s.in_flight.len() < self.setup.in_flight);
            if (open && room) || (!open && allow.wal && self.view_of(n, p).is_some()) {
                out.push(Action::Produce(n, p));
            }
        }
        let Some(source) = &node.parts[p].source else {
            return;
        };
        if !source.in_flight.is_empty() {
            out.push(Action::Ack(n, p));
            if allow.written && source.written < source.in_flight.len() && !source.stopped {
                out.push(Action::Written(n, p));
            }
            if allow.disk && self.faults > 0 && !source.stopped {
                out.push(Action::SyncFails(n, p));
            }
        }
        if self.unmarked(n, p) && self.commands > 0 && self.to_leader(n) {
            self.push_all(out, &[How::Ok, How::NoReply], |how| Action::Mark(n, p, how));
        }
        if source.failed && !source.stopped {
            out.push(Action::Reopen(n, p));
        }
        if allow.consume {
            if self.deliverable(n, p) {
                out.push(Action::Deliver(n, p));
            }
            for (at, _) in self.held.iter().enumerate().filter(|(_, held)| held.p == p) {
                out.extend([Action::AckLease(n, at), Action::Nack(n, at)]);
            }
        }
        if allow.retain && source.side.may_consume() && source.side.session().is_none() {
            let copy = node.parts[p].copies.get(&source.side.copy().epoch);
            if copy.is_some_and(crate::disk::Copy::may_retain) {
                out.push(Action::Retain(n, p));
            }
        }
    }

    fn worker_actions(&self, n: usize, p: usize, out: &mut Vec<Action>) {
        let Some(worker) = &self.nodes[n].parts[p].worker else {
            return;
        };
        let Some(pending) = &worker.pending else {
            return;
        };
        if worker.interrupted {
            out.push(Action::Interrupted(n, p));
        }
        let ways: &[How] = match pending {
            TargetEffect::Wait { .. } => {
                out.push(Action::Timer(n, p));
                return;
            }
            TargetEffect::FreezeSource { .. } if worker.asked => {
                // The answer comes by itself; or the call's time is over.
                let lost = self.freeze_is_lost(n, p);
                if lost || allowed(self, How::Lost) {
                    out.push(Action::Work(n, p, How::Lost));
                }
                return;
            }
            TargetEffect::OpenSource
            | TargetEffect::RefreshSource
            | TargetEffect::FreezeSource { .. } => REMOTE,
            TargetEffect::CheckPrefixes { .. } | TargetEffect::CloseSource => &[How::Ok, How::Lost],
            TargetEffect::CopyRanges { .. } => STREAM,
            TargetEffect::Propose(_) if self.commands == 0 => return,
            TargetEffect::Propose(Command::CancelHandoff { .. }) => {
                &[How::Ok, How::Late, How::Lost]
            }
            TargetEffect::Propose(_) => PROPOSAL,
            TargetEffect::QueryBarrier => &[How::Ok, How::Lost],
            TargetEffect::FinishStaging { .. } => &[How::Ok, How::Fail, How::Corrupt],
            TargetEffect::Install { .. } => &[How::Ok, How::Fail, How::FailDone],
            TargetEffect::OpenStaging
            | TargetEffect::RollBack { .. }
            | TargetEffect::Serve { .. } => LOCAL,
            TargetEffect::CheckLocal
            | TargetEffect::SetAside { .. }
            | TargetEffect::ResetStaging { .. }
            | TargetEffect::TrimStaging { .. } => &[How::Ok],
            TargetEffect::PrepareInstall { .. } => &[How::Ok, How::Late, How::Fail],
            TargetEffect::Interrupt | TargetEffect::Report(_) | TargetEffect::Done { .. } => &[],
        };
        self.push_all(out, ways, |how| Action::Work(n, p, how));
    }

    /// Nobody is going to answer the Freeze call that is under way.
    #[must_use]
    pub fn freeze_is_lost(&self, n: usize, p: usize) -> bool {
        let Some(worker) = &self.nodes[n].parts[p].worker else {
            return false;
        };
        let from = self.index_of(worker.machine.from());
        let source = self.nodes[from].parts[p].source.as_ref();
        !self.reach(n, from) || source.is_none_or(|s| s.settling.is_none())
    }

    fn retire_actions(&self, n: usize, p: usize, out: &mut Vec<Action>) {
        if self.salvageable(n, p).is_some() {
            out.push(Action::Salvage(n, p));
        }
        if self.reclaimable(n, p).is_some() {
            self.push_all(out, &[How::Ok, How::Late], |how| Action::Reclaim(n, p, how));
        }
        if self.faults > 0 && self.nodes[n].parts[p].again.is_some() && self.setup.allow.late {
            out.push(Action::DeleteAgain(n, p));
        }
        if self.reportable(n, p).is_some() {
            out.push(Action::Report(n, p));
        }
    }

    fn raft_actions(&self, out: &mut Vec<Action>) {
        if self.has_leader() {
            out.extend((0..self.pool.len()).map(Action::Commit));
        }
        // In an exhaustive model it is enough that it need not be applied.
        if !self.setup.chained {
            out.extend((0..self.pool.len()).map(Action::Forget));
        }
        out.extend((0..self.calls.len()).map(Action::Call));
        let repeatable = self.last_command.is_some() && self.pool.len() < 2;
        if self.setup.allow.redo && self.faults > 0 && repeatable {
            out.push(Action::Redo);
        }
        if self.advances > 0 {
            out.extend(
                self.setup
                    .allow
                    .advance
                    .iter()
                    .map(|span| Action::Advance(*span)),
            );
        }
    }

    fn operator_actions(&self, out: &mut Vec<Action>) {
        let allow = &self.setup.allow;
        for n in allow.give_up.iter().copied() {
            if self.taker(n).is_some() {
                out.push(Action::HandOver(n));
            }
            if self.commands > 0 && self.faults > 0 && self.may_give_up(n) {
                out.push(Action::GiveUp(n));
            }
        }
        if self.commands == 0 || !self.has_leader() {
            return;
        }
        if allow.plan && self.plan_wanted() {
            self.push_all(out, &[How::Ok, How::Late], Action::Plan);
        }
        for n in 0..self.nodes.len() {
            if self.nodes[n].removed {
                continue;
            }
            let lags = self.nodes[n].applied < self.last().applied && self.to_leader(n);
            if allow.plan && self.faults > 0 && lags {
                out.push(Action::StalePlan(n));
            }
            if allow.drain.contains(&n) && self.faults > 0 {
                out.push(Action::Drain(n));
            }
            if self.removable(n) && !allow.drain.is_empty() {
                out.push(Action::Remove(n));
            }
        }
        for p in 0..self.keys.len() {
            let Some(view) = self.view(p) else { continue };
            let busy = view.target.as_ref().is_some_and(|t| t.handoff.is_some());
            for n in allow
                .move_to
                .iter()
                .copied()
                .filter(|_| self.faults > 0 && !busy)
            {
                let node = &self.nodes[n].id;
                let there = view.target.as_ref().is_some_and(|t| t.node == *node);
                let old = view.ended.iter().any(|e| e.owner == *node);
                if view.owner != *node && !there && (!old || self.setup.mutation.is_some()) {
                    out.push(Action::MoveTo(p, n));
                }
            }
            if allow.cancel && self.faults > 0 && view.target.is_some() {
                out.push(Action::CancelMove(p));
            }
        }
        if allow.topic {
            let stands = !self.last().topics.is_empty();
            if stands && self.faults > 0 {
                out.push(Action::DeleteTopic);
            }
            if !stands && self.keys.len() < 3 * self.setup.partitions as usize {
                out.push(Action::CreateTopic);
            }
        }
    }
}
