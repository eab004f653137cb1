//! Delivering what the ingress WALs hold to the partitions' owners: the shell around
//! [`narad_core::dispatch`].
//!
//! What this file keeps true: a record is reported done only after its owner (or the WAL again, for
//! another partition) has it durably; sends, reads and barriers run in tasks of their own, so one
//! that hangs delays no other.

use crate::clock::mono_ms;
use crate::shard::limits::{
    AGES_MAX, DISPATCH_READ_BYTES, DISPATCH_WINDOW_BYTES, PARK_SLICE_MS, WAL_CHECKPOINT_MS,
};
use crate::shard::shard::Shard;
use crate::shard::{deliver, task};
use futures::FutureExt;
use narad_core::dispatch::{Dispatch, DispatchEffect, DispatchInput, Entry};
use narad_core::ids::{MonoMs, NodeId, PartitionIndex, PartitionKey, WalSeq};
use narad_storage::{Record, Wal, WalEntry};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// One WAL and what is known of its contents.
pub(crate) struct Dispatcher {
    pub(crate) wal: Wal,
    inputs: RefCell<VecDeque<DispatchInput>>,
    wake: Notify,
    arrived: Cell<bool>,
    dirty: Cell<bool>,
    window: RefCell<Window>,
    ages: RefCell<Ages>,
    /// Records that can go to dead owners only, by owner, as the machine said last.
    waiting_for_dead: RefCell<BTreeMap<NodeId, u64>>,
}

/// Records read from the WAL and not delivered yet, as far as there is room for them.
#[derive(Default)]
struct Window {
    records: BTreeMap<WalSeq, Arc<Record>>,
    bytes: usize,
}

impl Window {
    fn add(&mut self, seq: WalSeq, record: &Arc<Record>) {
        let bytes = size(record);
        if self.bytes + bytes <= DISPATCH_WINDOW_BYTES
            && self.records.insert(seq, record.clone()).is_none()
        {
            self.bytes += bytes;
        }
    }

    fn remove(&mut self, seq: WalSeq) {
        if let Some(record) = self.records.remove(&seq) {
            self.bytes -= size(&record);
        }
    }
}

/// When the latest records were accepted.
#[derive(Default)]
struct Ages(VecDeque<(WalSeq, MonoMs)>);

impl Ages {
    fn arrived(&mut self, first: WalSeq, at: MonoMs) {
        // Appends that share a group commit may end out of order; they came at the same time.
        if self.0.back().is_some_and(|(last, _)| *last >= first) {
            return;
        }
        if self.0.len() >= AGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((first, at));
    }

    fn of(&self, seq: WalSeq) -> Option<MonoMs> {
        let behind = self.0.partition_point(|(first, _)| *first <= seq);
        Some(self.0.get(behind.checked_sub(1)?)?.1)
    }
}

fn size(record: &Record) -> usize {
    crate::shard::partition::record_bytes(record)
}

impl Dispatcher {
    pub(crate) fn new(wal: Wal) -> Rc<Self> {
        Rc::new(Self {
            wal,
            inputs: RefCell::default(),
            wake: Notify::new(),
            arrived: Cell::new(false),
            dirty: Cell::new(false),
            window: RefCell::default(),
            ages: RefCell::default(),
            waiting_for_dead: RefCell::default(),
        })
    }

    /// Delivers for as long as it is let.
    pub(crate) async fn run(self: Rc<Self>, shard: Rc<Shard>) {
        let mut told = shard.ctx.state();
        let mut machine = Dispatch::new(told.clone());
        loop {
            let woken = self.wake.notified();
            let state = shard.ctx.state();
            if !Arc::ptr_eq(&state, &told) {
                told = state.clone();
                self.inputs
                    .borrow_mut()
                    .push_front(DispatchInput::Applied(state));
            }
            if self.arrived.replace(false) {
                self.push(DispatchInput::Arrived);
            }
            self.push(DispatchInput::Tick);
            while let Some(input) = self.pop() {
                for effect in machine.step(mono_ms(), input) {
                    self.perform(&shard, effect);
                }
            }
            self.waiting_for_dead.replace(machine.waiting_for_dead());
            let pause = machine
                .next_wake()
                .map_or(PARK_SLICE_MS * 10, |at| at.since(mono_ms()).max(1));
            futures::select_biased! {
                () = Box::pin(woken).fuse() => {}
                () = Box::pin(glommio::timer::sleep(Duration::from_millis(pause))).fuse() => {}
            }
        }
    }

    /// Records that can go to dead owners only, by owner.
    pub(crate) fn waiting_for_dead(&self) -> BTreeMap<NodeId, u64> {
        self.waiting_for_dead.borrow().clone()
    }

    fn push(&self, input: DispatchInput) {
        // As many as there are sends, reads and barriers under way: the machine bounds them.
        self.inputs.borrow_mut().push_back(input);
    }

    fn pop(&self) -> Option<DispatchInput> {
        self.inputs.borrow_mut().pop_front()
    }

    /// Records have become durable in the WAL, from this sequence on; they came at `at`.
    pub(crate) fn arrived(&self, first: WalSeq, at: MonoMs) {
        self.ages.borrow_mut().arrived(first, at);
        self.arrived.set(true);
        self.wake.notify_one();
    }

    /// Something that it may wait for has changed.
    pub(crate) fn look_again(&self) {
        self.wake.notify_one();
    }

    fn answer(&self, input: DispatchInput) {
        self.push(input);
        self.wake.notify_one();
    }

    fn perform(self: &Rc<Self>, shard: &Rc<Shard>, effect: DispatchEffect) {
        match effect {
            DispatchEffect::Read { from, max } => {
                let this = self.clone();
                task::spawn("reading the ingress WAL", async move {
                    let input = this.read(from, max).await;
                    this.answer(input);
                });
            }
            DispatchEffect::Send {
                key,
                to,
                epoch,
                seqs,
            } => {
                let (this, shard) = (self.clone(), shard.clone());
                task::spawn("a dispatch", async move {
                    let batch = deliver::Batch {
                        key,
                        to,
                        epoch,
                        seqs,
                    };
                    let end = deliver::send(&this, &shard, batch).await;
                    this.answer(DispatchInput::Sent { key, end });
                });
            }
            DispatchEffect::Reroute { key, to, seqs } => {
                let this = self.clone();
                task::spawn("a rerouting", async move {
                    let durable = this.reroute(key, to, &seqs).await;
                    this.answer(DispatchInput::Rerouted { key, durable });
                });
            }
            DispatchEffect::Done { seqs } => self.done(&seqs),
            DispatchEffect::Discard { topic, seqs } => {
                tracing::warn!(%topic, records = seqs.len(), "records for a deleted topic are dropped");
                self.done(&seqs);
            }
            DispatchEffect::Barrier => {
                let (this, shard) = (self.clone(), shard.clone());
                task::spawn("a barrier of the dispatcher", async move {
                    let confirmed = shard.ctx.barrier().await.is_ok();
                    this.push(DispatchInput::Applied(shard.ctx.state()));
                    this.answer(DispatchInput::Barrier { confirmed });
                });
            }
        }
    }

    /// How long ago this record was accepted, in ms; `None` when an earlier process did, or so long
    /// ago that it is forgotten.
    pub(crate) fn age_ms(&self, seq: WalSeq) -> Option<u64> {
        let at = self.ages.borrow().of(seq)?;
        Some(mono_ms().since(at))
    }

    fn done(&self, seqs: &[WalSeq]) {
        self.wal.done(seqs);
        self.dirty.set(true);
        let mut window = self.window.borrow_mut();
        for seq in seqs {
            window.remove(*seq);
        }
    }

    async fn read(&self, from: WalSeq, max: usize) -> DispatchInput {
        let read = self.wal.read(from, max, DISPATCH_READ_BYTES).await;
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "the ingress WAL cannot be read; tried again");
                return DispatchInput::ReadFailed;
            }
        };
        let exhausted = found.is_empty();
        let entries = found
            .into_iter()
            .map(|(seq, entry)| {
                let record = Arc::new(entry.record);
                self.window.borrow_mut().add(seq, &record);
                Entry {
                    seq,
                    key: PartitionKey {
                        topic: entry.topic,
                        partition: entry.partition,
                    },
                    pinned: entry.pinned,
                    bytes: size(&record) as u64,
                }
            })
            .collect();
        DispatchInput::Read { entries, exhausted }
    }

    /// The records of these sequences, from memory or from the WAL. One that is missing is lost to
    /// damage, which reading has reported.
    pub(crate) async fn fetch(
        &self,
        seqs: &[WalSeq],
    ) -> Result<Vec<(WalSeq, Arc<Record>)>, narad_storage::StorageError> {
        let mut found: BTreeMap<WalSeq, Arc<Record>> = BTreeMap::new();
        {
            let window = self.window.borrow();
            for seq in seqs {
                if let Some(record) = window.records.get(seq) {
                    found.insert(*seq, record.clone());
                }
            }
        }
        let Some(last) = seqs.last().copied() else {
            return Ok(Vec::new());
        };
        let wanted = |seq: &WalSeq| seqs.binary_search(seq).is_ok();
        let mut missing = seqs.iter().copied().find(|seq| !found.contains_key(seq));
        while let Some(from) = missing {
            let count = usize::try_from(last.0 - from.0 + 1).unwrap_or(usize::MAX);
            let count = count.min(narad_core::dispatch::READ_MAX);
            let read = self.wal.read(from, count, DISPATCH_READ_BYTES).await?;
            let reached = read.last().map_or(last, |(seq, _)| *seq);
            for (seq, entry) in read {
                if wanted(&seq) {
                    found.entry(seq).or_insert_with(|| Arc::new(entry.record));
                }
            }
            missing = seqs
                .iter()
                .copied()
                .find(|seq| *seq > reached && !found.contains_key(seq));
        }
        Ok(found.into_iter().collect())
    }

    /// Puts records of a dead owner's partition into the WAL again, for another partition.
    async fn reroute(&self, key: PartitionKey, to: PartitionIndex, seqs: &[WalSeq]) -> bool {
        let records = match self.fetch(seqs).await {
            Ok(records) => records,
            Err(error) => {
                tracing::error!(%error, "the ingress WAL cannot be read; tried again");
                return false;
            }
        };
        let entries: Vec<WalEntry> = records
            .iter()
            .map(|(_, record)| WalEntry {
                topic: key.topic,
                partition: to,
                pinned: false,
                record: Record::clone(record),
            })
            .collect();
        if entries.is_empty() {
            return true;
        }
        let count = entries.len();
        // They are in this WAL already; room is kept for saying so once more.
        match self.wal.append_rerouted(entries).await {
            Ok(_) => {
                tracing::info!(%key, %to, records = count, "records of a dead owner's partition go to another one");
                self.arrived.set(true);
                true
            }
            Err(error) => {
                tracing::warn!(%key, %error, "records of a dead owner's partition wait");
                false
            }
        }
    }

    /// Writes the checkpoint when something was delivered.
    pub(crate) async fn checkpoints(self: Rc<Self>) {
        loop {
            glommio::timer::sleep(Duration::from_millis(WAL_CHECKPOINT_MS)).await;
            if !self.dirty.replace(false) || self.wal.failed().is_some() {
                continue;
            }
            if let Err(error) = self.wal.checkpoint().await {
                tracing::warn!(%error, "the checkpoint of the ingress WAL is not written; tried again");
                self.dirty.set(true);
            }
        }
    }
}
