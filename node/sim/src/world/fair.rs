//! The fair continuation: the faults stop, everybody does what is due, time goes on.
//!
//! What this file keeps true: nothing here helps a move along but time and the network being whole;
//! what is still on its way arrives first, so that a continuation is no easier than it may be.

use super::World;
use crate::action::{Action, How, Span};
use crate::check::Check;
use crate::limits::FAIR_ROUNDS;
use narad_core::moves::target::TargetEffect;
use std::collections::BTreeMap;

impl World {
    /// Runs the fair continuation and looks whether every move ends and nothing is lost at rest.
    pub fn finish(&mut self) {
        self.finish_without(None);
    }

    /// The same while one node stays away for ever.
    pub fn finish_without(&mut self, absent: Option<usize>) {
        if self.violation.is_some() {
            return;
        }
        self.faults = 0;
        self.commands = u64::MAX / 2;
        for n in 0..self.nodes.len() {
            if self.nodes[n].removed || absent == Some(n) {
                continue;
            }
            if !self.nodes[n].up {
                self.step(Action::Restart(n));
            }
            self.step(Action::Heal(n));
        }
        for n in 0..self.nodes.len() {
            if self.nodes[n].leads && n != self.leader {
                self.step(Action::StepDown(n));
            }
        }
        if self.setup.deaths && (self.nodes[self.leader].removed || !self.nodes[self.leader].leads)
        {
            let next = (0..self.nodes.len()).find(|n| self.in_quorum(*n));
            self.step(Action::Elect(next.expect("all are up")));
        }
        while !self.pool.is_empty() {
            self.step(Action::Commit(0));
        }
        while !self.calls.is_empty() {
            self.step(Action::Call(0));
        }
        let mut frozen = BTreeMap::new();
        for _ in 0..FAIR_ROUNDS {
            self.round();
            self.check_freezes(&mut frozen);
            if self.violation.is_some() {
                return;
            }
            if absent.is_some() && self.served() {
                return;
            }
            if self.at_rest() {
                self.check_rest();
                return;
            }
        }
        let why = self.unrest();
        self.violate(Check::P5, why);
    }

    fn round(&mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].removed {
                self.step(Action::HandOver(n));
                continue;
            }
            if !self.nodes[n].confirmed {
                self.step(Action::Confirm(n));
            }
            while self.nodes[n].applied < self.last().applied && self.violation.is_none() {
                self.step(Action::Apply(n));
            }
            for p in 0..self.keys.len() {
                self.fair_part(n, p);
            }
            let waiting = 2 * self.nodes[n].wal.len() + 2;
            for _ in 0..waiting {
                if self.dispatchable(n) || self.pause_of_dispatch(n) {
                    self.step(Action::Dispatch(n, How::Ok));
                }
            }
        }
        if self.plan_wanted() {
            self.step(Action::Plan(How::Ok));
        }
        self.advances = 1;
        let away = (0..self.nodes.len()).any(|n| !self.nodes[n].removed && !self.in_quorum(n));
        self.step(Action::Advance(if away { Span::Ttl } else { Span::Second }));
    }

    fn fair_part(&mut self, n: usize, p: usize) {
        while self.nodes[n].parts[p]
            .source
            .as_ref()
            .is_some_and(|source| !source.in_flight.is_empty())
            && self.violation.is_none()
        {
            self.step(Action::Ack(n, p));
        }
        if self.nodes[n].parts[p]
            .source
            .as_ref()
            .is_some_and(|source| source.failed && !source.stopped)
        {
            self.step(Action::Reopen(n, p));
        }
        if self.unmarked(n, p) {
            self.step(Action::Mark(n, p, How::Ok));
        }
        if self.tick_due(n, p) {
            self.step(Action::Tick(n, p, How::Ok));
        }
        for _ in 0..6 {
            let Some(worker) = &self.nodes[n].parts[p].worker else {
                break;
            };
            let action = match &worker.pending {
                Some(TargetEffect::Wait { .. }) => Action::Timer(n, p),
                Some(TargetEffect::FreezeSource { .. }) if worker.asked => {
                    if !self.freeze_is_lost(n, p) {
                        break;
                    }
                    Action::Work(n, p, How::Lost)
                }
                Some(_) => Action::Work(n, p, How::Ok),
                None => break,
            };
            self.step(action);
        }
        self.step(Action::Salvage(n, p));
        self.step(Action::Reclaim(n, p, How::Ok));
        self.step(Action::Report(n, p));
    }

    /// Whoever owns a partition takes appends to it.
    fn served(&self) -> bool {
        (0..self.keys.len()).all(|p| {
            let owner = self.view(p).map(|view| self.index_of(&view.owner));
            owner.is_none_or(|n| self.in_quorum(n) && self.may_append(n, p))
        })
    }

    /// Every move has ended, every owner takes appends, nothing is left of ended epochs, every WAL
    /// is empty.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        let owners = self.last().assignments().all(|(key, a)| {
            let n = self.index_of(&a.owner);
            let p = self.number_of(key);
            a.target.is_none() && a.ended.is_empty() && self.may_open(n, p)
        });
        let wals = self
            .nodes
            .iter()
            .all(|node| node.removed || node.wal.is_empty());
        let workers = self
            .nodes
            .iter()
            .all(|node| node.removed || node.parts.iter().all(|part| part.worker.is_none()));
        let handed = (0..self.nodes.len()).all(|n| self.taker(n).is_none());
        owners && wals && workers && handed && !self.plan_wanted()
    }

    /// Appends are taken, or would be by a log that was never needed.
    fn may_open(&self, n: usize, p: usize) -> bool {
        let lazy = self
            .view(p)
            .is_some_and(|a| !narad_core::copies::has_log(a));
        self.may_append(n, p) || (lazy && self.nodes[n].confirmed)
    }

    fn unrest(&self) -> String {
        use std::fmt::Write;
        let mut text = String::from("does not come to rest:");
        for p in 0..self.keys.len() {
            if let Some(view) = self.view(p) {
                let n = self.index_of(&view.owner);
                let takes = self.may_append(n, p);
                let _ = write!(text, " p{p}: {view:?}, takes appends: {takes};");
            }
        }
        for (n, node) in self.nodes.iter().enumerate() {
            for (p, part) in node.parts.iter().enumerate() {
                if let Some(worker) = &part.worker {
                    let _ = write!(
                        text,
                        " n{n} p{p}: worker waits for {:?}, last trouble {:?};",
                        worker.pending,
                        worker.machine.progress().last_error
                    );
                }
            }
            if !node.wal.is_empty() {
                let _ = write!(text, " n{n}: {} records in the WAL;", node.wal.len());
            }
        }
        text
    }
}
