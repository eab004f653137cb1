//! What the dispatcher remembers of one partition.
//!
//! What this file keeps true: sequences ascend; everything below `known_to` has been seen, so a
//! second reading of the WAL adds nothing twice; at most one batch is on its way.

use super::{
    BATCH_BYTES, BATCH_RECORDS, Entry, QUEUE_LOW, QUEUE_MAX, RETRY_ADVICE_MAX_MS, RETRY_MAX_MS,
    RETRY_MIN_MS,
};
use crate::ids::{Epoch, HandoffId, MonoMs, NodeId, PartitionKey, WalSeq};
use crate::meta::MetaState;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

/// What of the state decides whether another attempt may fare better.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    owner: NodeId,
    epoch: Epoch,
    handoff: Option<HandoffId>,
    alive: bool,
    /// How many owners of the topic live, when this one does not: one of them may take it.
    siblings: usize,
}

impl Seen {
    pub(super) fn of(state: &MetaState, key: PartitionKey) -> Option<Self> {
        let topic = state.topics.get(&key.topic)?;
        let assignment = topic.partitions.get(key.partition.0 as usize)?;
        let alive = state.is_alive(&assignment.owner);
        let living = || {
            let owners = topic.partitions.iter().map(|a| &a.owner);
            owners.filter(|owner| state.is_alive(owner)).count()
        };
        Some(Self {
            owner: assignment.owner.clone(),
            epoch: assignment.epoch,
            handoff: assignment.target.as_ref().and_then(|t| t.handoff),
            alive,
            siblings: if alive { 0 } else { living() },
        })
    }
}

/// What is on its way.
#[derive(Clone, Debug, Hash)]
pub(super) enum Flight {
    /// The first so many records, to their owner.
    Send { to: NodeId, count: usize },
    /// These records, into the WAL again.
    Reroute { seqs: Vec<WalSeq> },
}

#[derive(Clone, Copy, Debug, Hash)]
struct Pending {
    seq: WalSeq,
    bytes: u64,
    pinned: bool,
}

/// See the file's description.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Queue {
    pending: VecDeque<Pending>,
    /// How many of them are pinned.
    pinned: usize,
    /// Every record of the partition below this was seen.
    pub(super) known_to: WalSeq,
    /// Records at or above `known_to` were met and not taken.
    pub(super) overflowed: bool,
    pub(super) flight: Option<Flight>,
    /// Not before; `None` at once.
    pub(super) retry_at: Option<MonoMs>,
    pub(super) backoff_ms: u64,
    /// The state on which the latest attempt was made.
    pub(super) seen: Option<Seen>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Records that may go to this partition only.
    pub(super) const fn pinned(&self) -> usize {
        self.pinned
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Nothing is left of it, here or in the WAL.
    pub(super) fn is_finished(&self) -> bool {
        self.is_empty() && self.flight.is_none() && !self.overflowed
    }

    /// It has room again for what it did not take.
    pub(super) fn wants_more(&self) -> bool {
        self.overflowed && self.len() < QUEUE_LOW / 2
    }

    /// Takes a record that was read, unless it was seen before or there is no room. True when it
    /// was taken.
    pub(super) fn offer(&mut self, entry: Entry, crowded: bool) -> bool {
        if entry.seq < self.known_to || self.overflowed {
            return false;
        }
        if self.len() >= QUEUE_MAX || (crowded && self.len() >= QUEUE_LOW) {
            self.overflowed = true;
            self.known_to = entry.seq;
            return false;
        }
        self.known_to = WalSeq(entry.seq.0 + 1);
        self.pinned += usize::from(entry.pinned);
        self.pending.push_back(Pending {
            seq: entry.seq,
            bytes: entry.bytes,
            pinned: entry.pinned,
        });
        true
    }

    pub(super) fn is_ready(&self, now: MonoMs) -> bool {
        self.flight.is_none() && !self.is_empty() && self.retry_at.is_none_or(|at| at <= now)
    }

    /// The next records for the owner.
    pub(super) fn batch(&self) -> Vec<WalSeq> {
        bounded(self.pending.iter())
    }

    /// The next records that may go to another partition.
    pub(super) fn unpinned_batch(&self) -> Vec<WalSeq> {
        bounded(self.pending.iter().filter(|pending| !pending.pinned))
    }

    pub(super) fn pop(&mut self, count: usize) -> Vec<WalSeq> {
        let count = count.min(self.len());
        let gone = self.pending.drain(..count);
        let pinned = &mut self.pinned;
        gone.inspect(|p| *pinned -= usize::from(p.pinned))
            .map(|p| p.seq)
            .collect()
    }

    /// Removes these records; how many it had.
    pub(super) fn remove(&mut self, seqs: &[WalSeq]) -> usize {
        let gone: BTreeSet<&WalSeq> = seqs.iter().collect();
        let before = self.len();
        self.pending.retain(|pending| !gone.contains(&pending.seq));
        self.pinned = self.pending.iter().filter(|pending| pending.pinned).count();
        before - self.len()
    }

    pub(super) fn forget_pacing(&mut self) {
        (self.retry_at, self.backoff_ms, self.seen) = (None, 0, None);
    }

    /// No pause before the next attempt: the latest has succeeded, or what it was made upon is over.
    pub(super) fn at_once(&mut self) {
        self.backoff_ms = 0;
        self.retry_at = None;
    }

    pub(super) fn failed(&mut self, now: MonoMs, advice_ms: u64) {
        self.backoff_ms = (self.backoff_ms * 2).clamp(RETRY_MIN_MS, RETRY_MAX_MS);
        let wait_ms = self.backoff_ms.max(advice_ms.min(RETRY_ADVICE_MAX_MS));
        self.retry_at = Some(now.plus_ms(wait_ms));
    }

    /// Nothing can be done before the state changes; it is looked at again now and then.
    pub(super) fn wait(&mut self, now: MonoMs, seen: Option<Seen>) {
        self.seen = seen;
        self.retry_at = Some(now.plus_ms(RETRY_MAX_MS));
    }
}

fn bounded<'a>(from: impl Iterator<Item = &'a Pending>) -> Vec<WalSeq> {
    let mut seqs = Vec::new();
    let mut bytes = 0;
    for pending in from {
        bytes += pending.bytes;
        if !seqs.is_empty() && (bytes > BATCH_BYTES || seqs.len() >= BATCH_RECORDS) {
            break;
        }
        seqs.push(pending.seq);
    }
    seqs
}
