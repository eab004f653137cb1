//! The ingress WAL and the real dispatcher that empties it.
//!
//! What this file keeps true: a record is in the WAL until the dispatcher says that it is done with;
//! what a crash undoes of that comes again; a send whose answer is lost counts as not answered,
//! never as refused.

use super::World;
use crate::action::How;
use crate::check::Check;
use crate::disk::{Record, WalRecord};
use narad_core::dispatch::{DispatchEffect, DispatchInput, Entry, SendEnd, is_new};
use narad_core::ids::{Epoch, NodeId, PartitionKey, WalId, WalSeq};
use std::collections::VecDeque;

const AGAIN: SendEnd = SendEnd::Again { retry_after_ms: 0 };

impl World {
    pub(crate) fn wal_append(&mut self, n: usize, p: usize, records: &[Record], pinned: bool) {
        let node = self.node(n);
        for record in records {
            let seq = node.wal_next;
            node.wal_next = WalSeq(seq.0 + 1);
            node.wal.push(WalRecord {
                seq,
                record: *record,
                p,
                pinned,
            });
        }
        if !records.is_empty() {
            self.feed_dispatch(n, DispatchInput::Arrived);
        }
    }

    /// Steps the dispatcher; what it wants of its own WAL is done at once.
    pub(crate) fn feed_dispatch(&mut self, n: usize, input: DispatchInput) {
        if !self.nodes[n].up {
            return;
        }
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.now.max(self.nodes[n].dispatch_now);
            for effect in self.node(n).dispatch.step(now, input) {
                match effect {
                    DispatchEffect::Read { from, max } => {
                        inputs.push_back(self.read_wal(n, from, max));
                    }
                    DispatchEffect::Done { seqs } | DispatchEffect::Discard { seqs, .. } => {
                        self.wal_done(n, &seqs);
                    }
                    later => self.node(n).dispatches.push(later),
                }
            }
        }
    }

    fn read_wal(&self, n: usize, from: WalSeq, max: usize) -> DispatchInput {
        let found = self.nodes[n].wal.iter().filter(|entry| entry.seq >= from);
        let entries: Vec<Entry> = found
            .take(max)
            .map(|entry| Entry {
                seq: entry.seq,
                key: self.keys[entry.p],
                pinned: entry.pinned,
                bytes: 1,
            })
            .collect();
        let exhausted = entries.is_empty();
        DispatchInput::Read { entries, exhausted }
    }

    /// These are out of the WAL. A crash may forget it of the latest.
    fn wal_done(&mut self, n: usize, seqs: &[WalSeq]) {
        let synced = self.setup.chained;
        let node = self.node(n);
        let (done, rest) = std::mem::take(&mut node.wal)
            .into_iter()
            .partition(|entry| seqs.contains(&entry.seq));
        node.wal = rest;
        node.wal_done = if synced { Vec::new() } else { done };
    }

    /// Whether the dispatcher has something to do that is worth a step.
    #[must_use]
    pub fn dispatchable(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        if !node.up || !node.confirmed {
            return false;
        }
        match node.dispatches.first() {
            None => !self.setup.chained && self.pause_of_dispatch(n),
            // In an exhaustive model a send waits until it may fare well, or is out of date.
            Some(DispatchEffect::Send { key, to, epoch, .. }) if self.setup.chained => {
                let p = self.number_of(*key);
                let current = self
                    .view_of(n, p)
                    .is_some_and(|view| view.owner == *to && view.epoch == *epoch);
                !current || self.takes(n, p, to, *epoch)
            }
            Some(_) => true,
        }
    }

    /// It waits for time to pass, with something in the WAL.
    #[must_use]
    pub(super) fn pause_of_dispatch(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        !node.wal.is_empty() && node.dispatches.is_empty() && node.dispatch.next_wake().is_some()
    }

    /// The dispatcher's pause is over.
    pub(super) fn wake_dispatch(&mut self, n: usize) {
        if let Some(wake) = self.nodes[n].dispatch.next_wake() {
            let node = self.node(n);
            node.dispatch_now = node.dispatch_now.max(wake);
            self.feed_dispatch(n, DispatchInput::Tick);
        }
    }

    /// What the dispatcher has asked for first.
    pub(crate) fn dispatch(&mut self, n: usize, how: How) {
        if self.nodes[n].dispatches.is_empty() {
            self.wake_dispatch(n);
            return;
        }
        let effect = self.node(n).dispatches.remove(0);
        let input = match effect {
            DispatchEffect::Send {
                key,
                to,
                epoch,
                seqs,
            } => {
                let end = self.send(n, key, &to, epoch, &seqs, how);
                DispatchInput::Sent { key, end }
            }
            DispatchEffect::Reroute { key, to, seqs } => {
                let to = self.number_of(PartitionKey {
                    partition: to,
                    ..key
                });
                let entries = self.nodes[n].wal.iter();
                let records: Vec<Record> = entries
                    .filter(|entry| seqs.contains(&entry.seq))
                    .map(|entry| entry.record)
                    .collect();
                self.wal_append(n, to, &records, false);
                let durable = how == How::Ok;
                DispatchInput::Rerouted { key, durable }
            }
            DispatchEffect::Barrier => {
                let confirmed = self.to_leader(n) && how == How::Ok;
                if confirmed {
                    self.catch_up(n);
                }
                DispatchInput::Barrier { confirmed }
            }
            DispatchEffect::Read { .. }
            | DispatchEffect::Done { .. }
            | DispatchEffect::Discard { .. } => return,
        };
        self.feed_dispatch(n, input);
    }

    /// Whether the owner would take a batch now.
    fn takes(&self, n: usize, p: usize, to: &NodeId, epoch: Epoch) -> bool {
        let owner = self.index_of(to);
        let source = self.nodes[owner].parts[p].source.as_ref();
        self.reach(n, owner)
            && self.may_append(owner, p)
            && source.is_some_and(|s| s.in_flight.is_empty() && s.side.copy().epoch == epoch)
    }

    fn send(
        &mut self,
        n: usize,
        key: PartitionKey,
        to: &NodeId,
        epoch: Epoch,
        seqs: &[WalSeq],
        how: How,
    ) -> SendEnd {
        let p = self.number_of(key);
        if how == How::Lost || !self.takes(n, p, to, epoch) {
            return AGAIN;
        }
        let batch: Vec<WalRecord> = {
            let entries = self.nodes[n].wal.iter();
            entries
                .filter(|entry| seqs.contains(&entry.seq))
                .cloned()
                .collect()
        };
        let (owner, wal, most) = (self.index_of(to), WalId(n as u64 + 1), self.setup.segment);
        let Some(copy) = self.part(owner, p).copies.get_mut(&epoch) else {
            return AGAIN;
        };
        for entry in &batch {
            let mark = copy.marks.get(&wal).copied().unwrap_or(WalSeq(0));
            if is_new(entry.seq, mark) {
                copy.append(entry.record, most);
                copy.marks.insert(wal, entry.seq);
            }
        }
        self.note_shown(owner, p);
        if !self.may_ack(owner, p) {
            return AGAIN;
        }
        for entry in &batch {
            self.check_appender(owner, p, epoch, entry.record);
            let home = self.ghost.home.get(&entry.record).copied();
            if entry.pinned && home != Some(p) {
                let what = format!("record {} was meant for {home:?}, not p{p}", entry.record);
                self.violate(Check::P8, what);
            }
        }
        if how == How::Ok {
            SendEnd::Appended
        } else {
            AGAIN
        }
    }
}
