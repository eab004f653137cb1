//! Clients that send, and retention.
//!
//! What this file keeps true: an append is checked when it begins and again before its ack (R8), at
//! the real owner's side; a record that no log takes here is durable in the WAL before its ack.

use super::World;
use crate::disk::Record;
use crate::mutation::Mutation;
use narad_core::ids::{MonoMs, Offset};

const FOREVER: MonoMs = MonoMs(u64::MAX);

impl World {
    /// Until when the node may append while it is being moved.
    fn lease_until(&self, n: usize, p: usize) -> MonoMs {
        let session_only = self.off(Mutation::R13)
            && self.nodes[n].parts[p]
                .source
                .as_ref()
                .is_some_and(|source| source.side.session().is_none());
        if !self.setup.deaths || session_only {
            return FOREVER;
        }
        self.nodes[n].lease.until()
    }

    /// Whether an append may begin here now.
    #[must_use]
    pub fn may_append(&self, n: usize, p: usize) -> bool {
        let node = &self.nodes[n];
        node.up
            && node.parts[p].source.as_ref().is_some_and(|source| {
                !source.failed
                    && source.marked
                    && source
                        .side
                        .may_append(self.now, self.lease_until(n, p))
                        .is_ok()
            })
    }

    pub(super) fn may_ack(&self, n: usize, p: usize) -> bool {
        let Some(source) = &self.nodes[n].parts[p].source else {
            return false;
        };
        if self.off(Mutation::R8) {
            return true;
        }
        let until = if self.off(Mutation::NoLeaseBeforeAck) {
            FOREVER
        } else {
            self.lease_until(n, p)
        };
        source.side.may_ack(self.now, until).is_ok()
    }

    /// A client's record.
    pub(crate) fn produce(&mut self, n: usize, p: usize) {
        let record = self.ghost.next_record;
        let ghost = self.ghost();
        ghost.next_record += 1;
        ghost.home.insert(record, p);
        if self.may_append(n, p) {
            let source = self.part(n, p).source.as_mut().expect("may append");
            source.in_flight.push(record);
            return;
        }
        // Every other client names its partition.
        let pinned = record.is_multiple_of(2);
        self.wal_append(n, p, &[record], pinned);
        self.ghost().acked.insert(record);
    }

    /// The oldest append in flight ends: durable, visible, acked if that is still allowed.
    pub(crate) fn end_append(&mut self, n: usize, p: usize) {
        let most = self.setup.segment;
        let may_ack = self.may_ack(n, p);
        let part = self.part(n, p);
        let Some(source) = &mut part.source else {
            return;
        };
        let record = source.in_flight.remove(0);
        let epoch = source.side.copy().epoch;
        if let Some(copy) = part.copies.get_mut(&epoch) {
            if source.written == 0 {
                copy.append(record, most);
            } else {
                source.written -= 1;
                copy.hwm = copy.end() - source.written as u64;
                copy.fence = None;
            }
        }
        if may_ack {
            self.acked(n, p, epoch, record);
        }
        self.note_shown(n, p);
        self.settle(n, p);
        self.close_stopped(n, p);
    }

    /// The oldest append that is not in the file gets there; nobody is told, nobody sees it.
    pub(crate) fn write(&mut self, n: usize, p: usize) {
        let most = self.setup.segment;
        let part = self.part(n, p);
        let Some(source) = &mut part.source else {
            return;
        };
        let record = source.in_flight[source.written];
        source.written += 1;
        let epoch = source.side.copy().epoch;
        if let Some(copy) = part.copies.get_mut(&epoch) {
            copy.segments.push(copy.start, record, most);
        }
    }

    fn acked(&mut self, n: usize, p: usize, epoch: narad_core::ids::Epoch, record: Record) {
        self.check_appender(n, p, epoch, record);
        self.ghost().acked.insert(record);
    }

    /// The oldest append is in the file, and its sync fails: the log stops, nobody is told.
    pub(crate) fn sync_fails(&mut self, n: usize, p: usize) {
        let most = self.setup.segment;
        let part = self.part(n, p);
        let Some(source) = &mut part.source else {
            return;
        };
        let record = source.in_flight.remove(0);
        // The rest of the group fails with it.
        source.in_flight.clear();
        let written = std::mem::take(&mut source.written) > 0;
        source.failed = true;
        let epoch = source.side.copy().epoch;
        if let Some(copy) = part.copies.get_mut(&epoch)
            && !written
        {
            copy.segments.push(copy.start, record, most);
        }
        self.settle(n, p);
        self.close_stopped(n, p);
    }

    /// A stopped log is closed, recovered and opened again.
    pub(crate) fn reopen(&mut self, n: usize, p: usize) {
        self.part(n, p).source = None;
        self.open_source(n, p);
    }

    /// Retention takes the oldest segment, if no session holds it.
    pub(crate) fn retain(&mut self, n: usize, p: usize) {
        let part = self.part(n, p);
        let Some(source) = &mut part.source else {
            return;
        };
        let epoch = source.side.copy().epoch;
        let Some(copy) = part.copies.get_mut(&epoch) else {
            return;
        };
        let taken = copy.retain();
        source.leases.retained_from(Offset(copy.start));
        let ghost = self.ghost();
        for record in taken {
            ghost.acked.remove(&record);
            ghost.retained.insert(record);
        }
    }

    /// What the owner shows from now on.
    pub(crate) fn note_shown(&mut self, n: usize, p: usize) {
        let part = &self.nodes[n].parts[p];
        let Some(source) = &part.source else { return };
        let Some(copy) = part.copies.get(&source.side.copy().epoch) else {
            return;
        };
        let hwm = copy.hwm;
        let new: Vec<Record> = copy
            .segments
            .iter()
            .filter(|(at, record)| *at < hwm && !self.ghost.shown.contains(record))
            .map(|(_, record)| record)
            .collect();
        if !new.is_empty() {
            self.ghost().shown.extend(new);
        }
    }
}
