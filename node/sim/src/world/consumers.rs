//! Consumers: they take records under leases of the real table, and ack or give them back, late and
//! at the wrong node as well.
//!
//! What this file keeps true: a record counts as consumed only when the table took its ack; leases
//! outlive the owner that gave them, as consumers do.

use super::{Held, World};
use crate::check::Check;
use crate::disk::Record;
use crate::hash::Hash128;
use crate::limits::HELD_MAX;
use narad_core::ids::{Nonce, Offset};

/// How long a consumer has for a record, in ms: most stretches of time are longer.
const VISIBILITY_MS: u64 = 5_000;

impl World {
    /// The proof of the first lease of a log that is opened: drawn at random, in reality.
    pub(super) fn first_nonce(&mut self) -> Nonce {
        if !self.setup.allow.consume {
            return Nonce(0);
        }
        let ghost = self.ghost();
        ghost.openings += 1;
        let drawn = Hash128::of(&ghost.openings) & u128::from(u64::MAX);
        Nonce(u64::try_from(drawn).expect("masked"))
    }

    /// Whether a consumer gets a record of `p` from `n`.
    #[must_use]
    pub fn deliverable(&self, n: usize, p: usize) -> bool {
        let part = &self.nodes[n].parts[p];
        let Some(source) = part.source.as_ref().filter(|s| s.side.may_consume()) else {
            return false;
        };
        let copy = part.copies.get(&source.side.copy().epoch);
        let hwm = copy.map(|copy| Offset(copy.hwm));
        hwm.is_some_and(|hwm| source.leases.has_work(self.now, hwm, None))
            && self.held.len() < HELD_MAX
    }

    pub(crate) fn deliver(&mut self, n: usize, p: usize) {
        if !self.deliverable(n, p) {
            return;
        }
        let now = self.now;
        let part = self.part(n, p);
        let source = part.source.as_mut().expect("looked at above");
        let copy = &part.copies[&source.side.copy().epoch];
        let runs = source.leases.take(now, Offset(copy.hwm), 1, None);
        let Some(offset) = runs.first().map(|run| run.from) else {
            return;
        };
        let record = copy.segments.iter().find(|(at, _)| *at == offset.0);
        let grant = source.leases.grant(offset, now, VISIBILITY_MS);
        let (Some((_, record)), Some(grant)) = (record, grant) else {
            self.violate(Check::P4, format!("offset {offset} of p{p} is not there"));
            return;
        };
        if !self.ghost().nonces.insert(grant.nonce.0) {
            self.violate(
                Check::P4,
                format!("a lease's proof repeats at {offset} of p{p}"),
            );
        }
        self.held.push(Held {
            p,
            offset,
            nonce: grant.nonce,
            record,
        });
    }

    /// The consumer that holds the lease acks it at `n`, which may have never heard of it.
    pub(crate) fn ack_lease(&mut self, n: usize, at: usize) {
        let now = self.now;
        let held = self.held.remove(at);
        let Some(source) = &mut self.part(n, held.p).source else {
            return;
        };
        if source.side.may_consume() && source.leases.ack(held.offset, held.nonce, now).is_ok() {
            self.ghost().consumed.insert(held.record);
        }
    }

    /// It gives the record back.
    pub(crate) fn nack_lease(&mut self, n: usize, at: usize) {
        let now = self.now;
        let held = self.held.remove(at);
        if let Some(source) = &mut self.part(n, held.p).source
            && source.side.may_consume()
        {
            // One that has ended is told so, and needs nothing.
            let _ = source.leases.nack(held.offset, held.nonce, now, 0);
        }
    }

    /// Every record that an owner shows and no consumer has acked, and that the owner would not
    /// deliver however long one waits.
    #[must_use]
    pub(crate) fn undeliverable(&self, n: usize, p: usize) -> Option<Record> {
        let part = &self.nodes[n].parts[p];
        let source = part.source.as_ref()?;
        let copy = part.copies.get(&source.side.copy().epoch)?;
        let mut leases = source.leases.clone();
        let later = self.now.plus_ms(2 * VISIBILITY_MS);
        let runs = leases.take(later, Offset(copy.hwm), usize::MAX, None);
        let mut shown = copy.segments.iter().filter(|(at, _)| *at < copy.hwm);
        let stuck = shown.find(|(at, record)| {
            let taken = runs.iter().any(|run| run.from.0 <= *at && *at < run.to.0);
            !taken && !self.ghost.consumed.contains(record)
        });
        stuck.map(|(_, record)| record)
    }
}
