//! The consumers' leases over one partition: what is delivered, acked, given back, due again.
//!
//! What this file keeps true: the frontier never passes a record that is neither acked nor skipped;
//! every record at or above it that is visible is delivered again and again until it is acked, so
//! none is lost; a record has at most one lease at a time, and a nonce is never used twice; memory
//! is bounded: at most [`LEASES_MAX`] records are out, and nothing fresh goes out while
//! [`ACKED_AHEAD_MAX`] records are acked above the frontier (leases that are out then may still be
//! acked, so at most the sum of both is remembered). A topic may set other bounds
//! ([`LeaseTable::set_bounds`]).
//!
//! Reading a record takes time, so delivery has two steps: [`LeaseTable::take`] reserves offsets,
//! and each is then granted, given back or skipped. Whoever takes must do one of these for every
//! offset, also when its consumer has gone away.

use crate::defaults::{ACKED_AHEAD_MAX, LEASES_MAX};
use crate::ids::{MonoMs, Nonce, Offset};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

/// The lease has ended: by its timeout, an ack, a nack, or because another owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleLease {
    /// The record.
    pub offset: Offset,
}

impl fmt::Display for StaleLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the lease on offset {} has ended; the record is delivered again unless it was acked",
            self.offset
        )
    }
}

impl core::error::Error for StaleLease {}

/// Offsets `from..to`, reserved for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First.
    pub from: Offset,
    /// After the last.
    pub to: Offset,
}

/// A lease just given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its proof.
    pub nonce: Nonce,
    /// Deliveries of the record by this table, this one included.
    pub deliveries: u32,
    /// When it ends.
    pub until: MonoMs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Somebody reads it in order to deliver it.
    Reserved,
    /// Delivered; ends then.
    Leased(Nonce, MonoMs),
    /// To be delivered again from then on.
    Waiting(MonoMs),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Entry {
    state: State,
    deliveries: u32,
}

/// See the file's description.
#[derive(Clone, Debug, Hash)]
pub struct LeaseTable {
    frontier: Offset,
    /// Everything from here on was never taken.
    fresh: Offset,
    next_nonce: u64,
    /// Records between frontier and fresh that are not done.
    out: BTreeMap<Offset, Entry>,
    /// When the leased and waiting ones among them are due.
    due: BTreeSet<(MonoMs, Offset)>,
    /// Done above the frontier: start to end, apart from each other.
    done: BTreeMap<Offset, Offset>,
    acked_ahead: u64,
    max_out: usize,
    max_acked_ahead: u64,
}

impl LeaseTable {
    /// A table that starts at the durable `frontier`. `first_nonce` is drawn at random for every
    /// opening of the partition, so that nonces do not repeat across restarts and owners.
    #[must_use]
    pub const fn new(frontier: Offset, first_nonce: Nonce) -> Self {
        Self {
            frontier,
            fresh: frontier,
            next_nonce: first_nonce.0,
            out: BTreeMap::new(),
            due: BTreeSet::new(),
            done: BTreeMap::new(),
            acked_ahead: 0,
            max_out: LEASES_MAX,
            max_acked_ahead: ACKED_AHEAD_MAX as u64,
        }
    }

    /// Other bounds from now on. Lower ones take nothing back: what is out stays out, and nothing
    /// fresh follows until there is room.
    pub fn set_bounds(&mut self, max_leases: u32, max_acked_ahead: u32) {
        self.max_out = usize::try_from(max_leases).unwrap_or(usize::MAX);
        self.max_acked_ahead = u64::from(max_acked_ahead);
    }

    /// Everything below is acked or skipped.
    #[must_use]
    pub const fn frontier(&self) -> Offset {
        self.frontier
    }

    /// Records that are leased, reserved or wait to be delivered again.
    #[must_use]
    pub fn out(&self) -> usize {
        self.out.len()
    }

    /// Records that are acked or skipped above the frontier.
    #[must_use]
    pub const fn acked_ahead(&self) -> u64 {
        self.acked_ahead
    }

    /// When the next lease ends or the next delayed record is due; `None` when nothing is out.
    #[must_use]
    pub fn next_due(&self) -> Option<MonoMs> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Whether [`LeaseTable::take`] would find something.
    #[must_use]
    pub fn has_work(&self, now: MonoMs, hwm: Offset, max_deliveries: Option<u32>) -> bool {
        self.fresh_room(hwm) > 0
            || self
                .due_by(now)
                .any(|offset| !self.is_spent(offset, max_deliveries))
    }

    /// Reserves up to `max` records to deliver: those due again first, longest due before others,
    /// then fresh ones below `hwm`. Records that have been delivered `max_deliveries` times are
    /// left for [`LeaseTable::take_spent`]. Answers with runs in offset order.
    pub fn take(
        &mut self,
        now: MonoMs,
        hwm: Offset,
        max: usize,
        max_deliveries: Option<u32>,
    ) -> Vec<Run> {
        let mut taken: Vec<Offset> = self
            .due_by(now)
            .filter(|offset| !self.is_spent(*offset, max_deliveries))
            .take(max)
            .collect();
        for offset in &taken {
            self.set(*offset, State::Reserved);
        }
        while taken.len() < max && self.fresh_room(hwm) > 0 {
            let offset = self.fresh;
            self.fresh = offset.plus(1);
            self.out.insert(
                offset,
                Entry {
                    state: State::Reserved,
                    deliveries: 0,
                },
            );
            taken.push(offset);
            self.pass_done();
        }
        taken.sort_unstable();
        runs(&taken)
    }

    /// Reserves up to `max` due records that have been delivered `max_deliveries` times. Each is
    /// to be made durable in the dead-letter topic and then [`LeaseTable::retire`]d, or given back.
    pub fn take_spent(&mut self, now: MonoMs, max: usize, max_deliveries: u32) -> Vec<Offset> {
        let spent: Vec<Offset> = self
            .due_by(now)
            .filter(|offset| self.is_spent(*offset, Some(max_deliveries)))
            .take(max)
            .collect();
        for offset in &spent {
            self.set(*offset, State::Reserved);
        }
        spent
    }

    /// Leases a reserved record for `visibility_ms` from `now`; `None` when retention or a skip has
    /// taken it while it was read: it is not to be delivered then.
    ///
    /// # Panics
    /// When `offset` is leased or waits: it would have two leases.
    #[must_use]
    pub fn grant(&mut self, offset: Offset, now: MonoMs, visibility_ms: u64) -> Option<Grant> {
        let state = self.out.get(&offset)?.state;
        assert!(state == State::Reserved, "offset {offset} is not reserved");
        let nonce = Nonce(self.next_nonce);
        self.next_nonce = self.next_nonce.wrapping_add(1);
        let until = now.plus_ms(visibility_ms.max(1));
        self.set(offset, State::Leased(nonce, until));
        let entry = self.out.get_mut(&offset).expect("set above");
        entry.deliveries = entry.deliveries.saturating_add(1);
        Some(Grant {
            nonce,
            deliveries: entry.deliveries,
            until,
        })
    }

    /// Gives a reserved record back undelivered; it may be taken again from `at` on. One that
    /// retention or a skip has removed meanwhile stays removed.
    pub fn give_back(&mut self, offset: Offset, at: MonoMs) {
        if self.is_reserved(offset) {
            self.set(offset, State::Waiting(at));
        }
    }

    /// Takes a lease back that did not reach its consumer: the delivery does not count and the
    /// record is due at once.
    ///
    /// # Errors
    /// [`StaleLease`] when it has ended already.
    pub fn undeliver(
        &mut self,
        offset: Offset,
        nonce: Nonce,
        now: MonoMs,
    ) -> Result<(), StaleLease> {
        self.holds(offset, nonce, now)?;
        let entry = self.out.get_mut(&offset).expect("held");
        entry.deliveries -= 1;
        self.set(offset, State::Waiting(now));
        Ok(())
    }

    /// Done with a leased record.
    ///
    /// # Errors
    /// [`StaleLease`] when the lease has ended.
    pub fn ack(&mut self, offset: Offset, nonce: Nonce, now: MonoMs) -> Result<(), StaleLease> {
        self.holds(offset, nonce, now)?;
        self.skip(Run {
            from: offset,
            to: offset.plus(1),
        });
        Ok(())
    }

    /// Keeps a lease for `visibility_ms` from `now`.
    ///
    /// # Errors
    /// [`StaleLease`] when the lease has ended.
    pub fn extend(
        &mut self,
        offset: Offset,
        nonce: Nonce,
        now: MonoMs,
        visibility_ms: u64,
    ) -> Result<(), StaleLease> {
        self.holds(offset, nonce, now)?;
        self.set(
            offset,
            State::Leased(nonce, now.plus_ms(visibility_ms.max(1))),
        );
        Ok(())
    }

    /// Gives a leased record back; it is delivered again `delay_ms` from `now`.
    ///
    /// # Errors
    /// [`StaleLease`] when the lease has ended.
    pub fn nack(
        &mut self,
        offset: Offset,
        nonce: Nonce,
        now: MonoMs,
        delay_ms: u64,
    ) -> Result<(), StaleLease> {
        self.holds(offset, nonce, now)?;
        self.set(offset, State::Waiting(now.plus_ms(delay_ms)));
        Ok(())
    }

    /// A reserved record is durable in the dead-letter topic: done with it here. One that retention
    /// or a skip has taken meanwhile is done with already.
    pub fn retire(&mut self, offset: Offset) {
        if self.is_reserved(offset) {
            self.skip(Run {
                from: offset,
                to: offset.plus(1),
            });
        }
    }

    /// The records of `run` cannot be read (corrupt), or are done: they are passed over, whatever
    /// their state.
    pub fn skip(&mut self, run: Run) {
        let from = run.from.max(self.frontier);
        if from >= run.to {
            return;
        }
        let out: Vec<Offset> = self.out.range(from..run.to).map(|(o, _)| *o).collect();
        for offset in out {
            self.remove(offset);
        }
        self.add_done(from, run.to);
        self.pass_done();
    }

    /// Retention has deleted everything below `start`. Answers how many records of that were neither
    /// acked nor skipped.
    pub fn retained_from(&mut self, start: Offset) -> u64 {
        let from = self.frontier;
        let done = self.done.range(..start).map(|(done_from, done_to)| {
            let (from, to) = ((*done_from).max(from), (*done_to).min(start));
            to.0.saturating_sub(from.0)
        });
        let done: u64 = done.sum();
        self.skip(Run { from, to: start });
        start.0.saturating_sub(from.0) - done
    }

    fn due_by(&self, now: MonoMs) -> impl Iterator<Item = Offset> {
        self.due
            .iter()
            .take_while(move |(at, _)| *at <= now)
            .map(|(_, offset)| *offset)
    }

    fn is_spent(&self, offset: Offset, max_deliveries: Option<u32>) -> bool {
        max_deliveries.is_some_and(|max| self.out[&offset].deliveries >= max)
    }

    /// How many fresh records may go out now.
    fn fresh_room(&self, hwm: Offset) -> u64 {
        if self.acked_ahead >= self.max_acked_ahead {
            return 0;
        }
        let room = self.max_out.saturating_sub(self.out.len()) as u64;
        room.min(hwm.0.saturating_sub(self.fresh.0))
    }

    fn is_reserved(&self, offset: Offset) -> bool {
        self.out
            .get(&offset)
            .is_some_and(|entry| entry.state == State::Reserved)
    }

    fn holds(&self, offset: Offset, nonce: Nonce, now: MonoMs) -> Result<(), StaleLease> {
        match self.out.get(&offset).map(|entry| entry.state) {
            Some(State::Leased(held, until)) if held == nonce && now < until => Ok(()),
            _ => Err(StaleLease { offset }),
        }
    }

    fn set(&mut self, offset: Offset, state: State) {
        let entry = self.out.get_mut(&offset).expect("is out");
        if let State::Leased(_, at) | State::Waiting(at) = entry.state {
            self.due.remove(&(at, offset));
        }
        entry.state = state;
        if let State::Leased(_, at) | State::Waiting(at) = state {
            self.due.insert((at, offset));
        }
    }

    fn remove(&mut self, offset: Offset) {
        if let Some(entry) = self.out.remove(&offset)
            && let State::Leased(_, at) | State::Waiting(at) = entry.state
        {
            self.due.remove(&(at, offset));
        }
    }

    /// Adds `from..to` to what is done, joining neighbours.
    fn add_done(&mut self, mut from: Offset, mut to: Offset) {
        if let Some((start, end)) = self.done.range(..=from).next_back().map(|(s, e)| (*s, *e))
            && end >= from
        {
            from = start;
            to = to.max(end);
        }
        while let Some((start, end)) = self.done.range(from..=to).next().map(|(s, e)| (*s, *e)) {
            self.done.remove(&start);
            self.acked_ahead -= end.0 - start.0;
            to = to.max(end);
        }
        self.done.insert(from, to);
        self.acked_ahead += to.0 - from.0;
    }

    /// Lets the frontier, and the first fresh record, pass over what is done.
    fn pass_done(&mut self) {
        if let Some((start, end)) = self.done.first_key_value().map(|(s, e)| (*s, *e))
            && start <= self.frontier
        {
            self.done.remove(&start);
            self.acked_ahead -= end.0 - start.0;
            self.frontier = end;
        }
        if let Some((_, end)) = self.done.range(..=self.fresh).next_back() {
            self.fresh = self.fresh.max(*end);
        }
        self.fresh = self.fresh.max(self.frontier);
    }
}

fn runs(sorted: &[Offset]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for offset in sorted {
        match runs.last_mut() {
            Some(run) if run.to == *offset => run.to = offset.plus(1),
            _ => runs.push(Run {
                from: *offset,
                to: offset.plus(1),
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
