//! The dispatcher of one ingress WAL: what is delivered where next.
//!
//! What this module keeps true:
//! - a record leaves the WAL only when its owner has said that it is durable there, when it is
//!   durable in this WAL again under another partition, or when a barrier has confirmed that its
//!   topic is gone;
//! - the records of one partition are sent in the order of their sequences, one batch at a time,
//!   because the owner recognises what it has by the highest sequence that it appended;
//! - each partition is retried by itself, so one that is frozen or unreachable delays no other; a
//!   node that does not answer takes a few of the sends in flight, never all;
//! - a change of owner, epoch or handoff that is applied here is acted upon at once, also when it is
//!   applied while a batch is on its way;
//! - a partition that the client named is never exchanged for another;
//! - memory is bounded however long the WAL is: what does not fit is read again later.

mod queue;
mod types;

#[cfg(test)]
mod tests;

pub use types::{
    BATCH_BYTES, BATCH_RECORDS, DispatchEffect, DispatchInput, Entry, QUEUE_LOW, QUEUE_MAX,
    READ_MAX, RETRY_ADVICE_MAX_MS, RETRY_MAX_MS, RETRY_MIN_MS, SENDS_A_NODE_MAX, SENDS_MAX,
    SendEnd, WINDOW_MAX,
};

use crate::ids::{MonoMs, NodeId, PartitionKey, TopicId, WalSeq};
use crate::meta::MetaState;
use crate::routing;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use queue::{Flight, Queue, Seen};

/// Whether a record of a WAL is new to a partition whose mark says that it has everything of this WAL
/// up to `mark` (0: nothing). One that is not was dispatched before, by a call whose answer was lost.
#[must_use]
pub const fn is_new(seq: WalSeq, mark: WalSeq) -> bool {
    seq.0 > mark.0
}

/// See the module's description.
#[derive(Clone, Debug, Hash)]
pub struct Dispatch {
    state: Arc<MetaState>,
    queues: BTreeMap<PartitionKey, Queue>,
    held: usize,
    /// Next sequence to read.
    cursor: WalSeq,
    /// Something durable may lie at or behind the cursor.
    unread: bool,
    /// A queue has room again for what did not fit.
    refill: bool,
    reading: bool,
    read_at: MonoMs,
    sends: usize,
    sends_to: BTreeMap<NodeId, usize>,
    /// Where the round over the partitions goes on.
    turn: Option<PartitionKey>,
    /// Topics that a barrier has confirmed to be gone. An incarnation never comes back.
    gone: BTreeSet<TopicId>,
    /// Topics that are missing in the applied state and wait for a barrier.
    missing: BTreeSet<TopicId>,
    /// A barrier is under way, for these topics.
    asked: Option<BTreeSet<TopicId>>,
    ask_at: MonoMs,
}

impl Dispatch {
    /// A dispatcher that will read the whole WAL.
    #[must_use]
    pub fn new(state: Arc<MetaState>) -> Self {
        Self {
            state,
            queues: BTreeMap::new(),
            held: 0,
            cursor: WalSeq(1),
            unread: true,
            refill: false,
            reading: false,
            read_at: MonoMs(0),
            sends: 0,
            sends_to: BTreeMap::new(),
            turn: None,
            gone: BTreeSet::new(),
            missing: BTreeSet::new(),
            asked: None,
            ask_at: MonoMs(0),
        }
    }

    /// Steps the machine.
    #[must_use]
    pub fn step(&mut self, now: MonoMs, input: DispatchInput) -> Vec<DispatchEffect> {
        let mut effects = Vec::new();
        match input {
            DispatchInput::Applied(state) => self.apply(state),
            DispatchInput::Arrived => self.unread = true,
            DispatchInput::Read { entries, exhausted } => {
                self.take(&entries, exhausted, &mut effects);
            }
            DispatchInput::ReadFailed => {
                self.reading = false;
                self.unread = true;
                self.read_at = now.plus_ms(RETRY_MAX_MS);
            }
            DispatchInput::Sent { key, end } => self.sent(now, key, end, &mut effects),
            DispatchInput::Rerouted { key, durable } => {
                self.rerouted(now, key, durable, &mut effects);
            }
            DispatchInput::Barrier { confirmed } => self.barrier(now, confirmed, &mut effects),
            DispatchInput::Tick => {}
        }
        self.send(now, &mut effects);
        self.ask(now, &mut effects);
        self.read(now, &mut effects);
        effects
    }

    /// Records that can be delivered to dead owners only, by owner, as far as they are remembered: those
    /// whose partition was named, and all where no other owner of the topic lives.
    #[must_use]
    pub fn waiting_for_dead(&self) -> BTreeMap<NodeId, u64> {
        let mut waiting = BTreeMap::new();
        for (key, queue) in self.queues.iter().filter(|(_, queue)| !queue.is_empty()) {
            let Some(topic) = self.state.topics.get(&key.topic) else {
                continue;
            };
            let Some(assignment) = topic.partitions.get(key.partition.0 as usize) else {
                continue;
            };
            if self.state.is_alive(&assignment.owner) {
                continue;
            }
            let elsewhere = routing::live_sibling(&self.state, topic, key.partition, 0);
            let records = match elsewhere {
                Some(_) => queue.pinned(),
                None => queue.len(),
            };
            if records > 0 {
                *waiting.entry(assignment.owner.clone()).or_default() += records as u64;
            }
        }
        waiting
    }

    /// When a tick is wanted next; `None` while nothing waits for time.
    #[must_use]
    pub fn next_wake(&self) -> Option<MonoMs> {
        let retry = self
            .queues
            .values()
            .filter(|queue| queue.flight.is_none() && !queue.is_empty())
            .filter_map(|queue| queue.retry_at)
            .min();
        let wanted = (self.unread || self.refill) && !self.reading;
        let read = wanted.then_some(self.read_at);
        let ask = (!self.missing.is_empty() && self.asked.is_none()).then_some(self.ask_at);
        [retry, read, ask].into_iter().flatten().min()
    }

    /// The same without what only paces it, and without the applied state (its owner has that as
    /// well): two that do the same sooner or later are equal. For model checks.
    #[must_use]
    pub fn without_pacing(&self) -> Self {
        let mut same = self.clone();
        same.state = Arc::new(MetaState::default());
        (same.read_at, same.ask_at) = (MonoMs(0), MonoMs(0));
        same.queues.values_mut().for_each(Queue::forget_pacing);
        same
    }

    /// Records that are remembered now.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }

    fn apply(&mut self, state: Arc<MetaState>) {
        if state.applied < self.state.applied {
            // Told late: what was known already stands.
            return;
        }
        self.state = state;
        self.missing
            .retain(|topic| !self.state.topics.contains_key(topic));
        for (key, queue) in &mut self.queues {
            if queue.retry_at.is_some() && queue.seen != Seen::of(&self.state, *key) {
                queue.at_once();
            }
        }
    }

    fn take(&mut self, entries: &[Entry], exhausted: bool, effects: &mut Vec<DispatchEffect>) {
        self.reading = false;
        // What arrived while this was read has set the mark again, in `Arrived`.
        self.unread |= !exhausted && !entries.is_empty();
        let mut discarded: BTreeMap<TopicId, Vec<WalSeq>> = BTreeMap::new();
        for entry in entries {
            self.cursor = self.cursor.max(WalSeq(entry.seq.0 + 1));
            if self.gone.contains(&entry.key.topic) {
                discarded
                    .entry(entry.key.topic)
                    .or_default()
                    .push(entry.seq);
                continue;
            }
            let crowded = self.held >= WINDOW_MAX;
            let queue = self.queues.entry(entry.key).or_default();
            self.held += usize::from(queue.offer(*entry, crowded));
        }
        for (topic, seqs) in discarded {
            effects.push(DispatchEffect::Discard { topic, seqs });
        }
        self.queues.retain(|_, queue| !queue.is_finished());
    }

    fn sent(
        &mut self,
        now: MonoMs,
        key: PartitionKey,
        end: SendEnd,
        effects: &mut Vec<DispatchEffect>,
    ) {
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        let Some(Flight::Send { to, count }) = queue.flight.take() else {
            return;
        };
        self.sends -= 1;
        if let Some(sends) = self.sends_to.get_mut(&to) {
            *sends -= 1;
            if *sends == 0 {
                self.sends_to.remove(&to);
            }
        }
        match end {
            SendEnd::Appended => {
                let seqs = queue.pop(count);
                self.held -= seqs.len();
                queue.at_once();
                effects.push(DispatchEffect::Done { seqs });
            }
            // What was applied while it was on its way: neither the pause nor the advice is about that.
            SendEnd::Again { .. } if queue.seen != Seen::of(&self.state, key) => {
                queue.at_once();
            }
            SendEnd::Again { retry_after_ms } => queue.failed(now, retry_after_ms),
        }
        self.tidy(key);
    }

    fn rerouted(
        &mut self,
        now: MonoMs,
        key: PartitionKey,
        durable: bool,
        effects: &mut Vec<DispatchEffect>,
    ) {
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        let Some(Flight::Reroute { seqs }) = queue.flight.take() else {
            return;
        };
        self.sends -= 1;
        if durable {
            self.held -= queue.remove(&seqs);
            queue.at_once();
            effects.push(DispatchEffect::Done { seqs });
        } else if queue.seen != Seen::of(&self.state, key) {
            queue.at_once();
        } else {
            queue.failed(now, 0);
        }
        self.tidy(key);
    }

    fn barrier(&mut self, now: MonoMs, confirmed: bool, effects: &mut Vec<DispatchEffect>) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        self.ask_at = now.plus_ms(RETRY_MAX_MS);
        if !confirmed {
            return;
        }
        for topic in asked {
            if !self.missing.remove(&topic) {
                continue;
            }
            self.gone.insert(topic);
            self.discard(topic, effects);
        }
    }

    /// Throws away what is remembered of a topic that is gone, but for what is on its way.
    fn discard(&mut self, topic: TopicId, effects: &mut Vec<DispatchEffect>) {
        let keys: Vec<PartitionKey> = self
            .queues
            .keys()
            .copied()
            .filter(|key| key.topic == topic)
            .collect();
        for key in keys {
            let queue = self.queues.get_mut(&key).expect("listed above");
            if queue.flight.is_some() {
                continue;
            }
            let seqs = queue.pop(usize::MAX);
            self.held -= seqs.len();
            if !seqs.is_empty() {
                effects.push(DispatchEffect::Discard { topic, seqs });
            }
            self.tidy(key);
        }
    }

    /// Forgets a queue that is finished, and has more read for one that did not take all.
    fn tidy(&mut self, key: PartitionKey) {
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        self.refill |= queue.wants_more();
        // Everything that it has seen is done, so a later reading does not find it again. A
        // reading that is under way may: it is kept until that has ended.
        if queue.is_finished() && !self.reading {
            self.queues.remove(&key);
        }
    }

    fn send(&mut self, now: MonoMs, effects: &mut Vec<DispatchEffect>) {
        let ready: Vec<PartitionKey> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.is_ready(now))
            .map(|(key, _)| *key)
            .collect();
        // Round robin: begin behind the partition that was served last.
        let start = match self.turn {
            Some(turn) => ready.partition_point(|key| *key <= turn),
            None => 0,
        };
        let (before, behind) = ready.split_at(start);
        for key in behind.iter().chain(before) {
            if self.sends >= SENDS_MAX {
                break;
            }
            if let Some(effect) = self.send_one(now, *key) {
                self.sends += 1;
                self.turn = Some(*key);
                effects.push(effect);
            }
        }
        let gone: Vec<TopicId> = ready
            .iter()
            .map(|key| key.topic)
            .filter(|topic| self.gone.contains(topic))
            .collect();
        for topic in gone {
            self.discard(topic, effects);
        }
    }

    fn send_one(&mut self, now: MonoMs, key: PartitionKey) -> Option<DispatchEffect> {
        let queue = self.queues.get_mut(&key)?;
        let Some(topic) = self.state.topics.get(&key.topic) else {
            if !self.gone.contains(&key.topic) {
                self.missing.insert(key.topic);
            }
            return None;
        };
        // A partition that its topic does not have can only come from a damaged WAL: it waits, and
        // shows among the undelivered records.
        let assignment = topic.partitions.get(key.partition.0 as usize)?;
        if !self.state.is_alive(&assignment.owner) {
            let seqs = queue.unpinned_batch();
            let to = seqs.first().and_then(|first| {
                let hash = routing::hash(&first.0.to_le_bytes());
                routing::live_sibling(&self.state, topic, key.partition, hash)
            });
            let Some(to) = to else {
                queue.wait(now, Seen::of(&self.state, key));
                return None;
            };
            queue.flight = Some(Flight::Reroute { seqs: seqs.clone() });
            queue.seen = Seen::of(&self.state, key);
            return Some(DispatchEffect::Reroute { key, to, seqs });
        }
        let to = assignment.owner.clone();
        let sends = self.sends_to.entry(to.clone()).or_insert(0);
        if *sends >= SENDS_A_NODE_MAX {
            return None;
        }
        *sends += 1;
        let seqs = queue.batch();
        queue.flight = Some(Flight::Send {
            to: to.clone(),
            count: seqs.len(),
        });
        queue.seen = Seen::of(&self.state, key);
        Some(DispatchEffect::Send {
            key,
            to,
            epoch: assignment.epoch,
            seqs,
        })
    }

    fn ask(&mut self, now: MonoMs, effects: &mut Vec<DispatchEffect>) {
        if self.asked.is_none() && !self.missing.is_empty() && now >= self.ask_at {
            self.asked = Some(self.missing.clone());
            effects.push(DispatchEffect::Barrier);
        }
    }

    fn read(&mut self, now: MonoMs, effects: &mut Vec<DispatchEffect>) {
        if (self.unread || self.refill) && !self.reading && now >= self.read_at {
            // Only here, between readings, may the cursor go back: what a reading brings must
            // join on to what its queues have seen.
            for queue in self.queues.values_mut().filter(|q| q.wants_more()) {
                queue.overflowed = false;
                self.cursor = self.cursor.min(queue.known_to);
            }
            self.refill = false;
            self.unread = false;
            self.reading = true;
            effects.push(DispatchEffect::Read {
                from: self.cursor,
                max: READ_MAX,
            });
        }
    }
}
