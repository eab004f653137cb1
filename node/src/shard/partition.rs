//! One open partition: its log, the owner's side of a move, its leases, and the rules under which
//! records get in.
//!
//! What this file keeps true: the metadata applied on this node is fed to the owner's machine
//! before every check; nothing is queued in the log after the check said no, because nothing is
//! awaited between the two; and the check is made again before an append is acknowledged (R8).

use crate::clock::{mono_ms, wall_ms};
use crate::context::NodeContext;
use crate::messages::{PartitionStat, ReplayBatch, ReplayRange, Unappended};
use crate::shard::faults;
use crate::shard::rate::RateMeter;
use crate::shard::reconcile::Due;
use crate::shard::session::Sessions;
use crate::shard::unread::Unread;
use crate::shard::unwritten::Unwritten;
use narad_core::dispatch::is_new;
use narad_core::ids::{CopyId, Offset, Origin, PartitionKey, RaftIndex, WalId, WalSeq, WallMs};
use narad_core::leases::LeaseTable;
use narad_core::moves::{AckRefusal, AppendRefusal, SourceInput, SourcePartition, StopReason};
use narad_storage::{Age, AppendError, Appended, Batch, Log, Record};
use narad_wire::error::WireFault;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Mutex, Notify};

/// What an open partition wakes in its shard.
#[derive(Clone)]
pub(crate) struct Wakes {
    /// Consumers of the topic.
    pub(crate) arrivals: Rc<Notify>,
    /// The reconcile loop, for this partition.
    pub(crate) due: Rc<Due>,
    /// The flush of changed frontiers.
    pub(crate) flush: Rc<Notify>,
}

/// An open partition of this shard.
pub(crate) struct Partition {
    pub(crate) copy: CopyId,
    pub(crate) log: Log,
    /// Since when it is open.
    pub(crate) opened: Instant,
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) source: RefCell<SourcePartition>,
    pub(crate) leases: RefCell<LeaseTable>,
    /// Held while records are taken out of the lease table and read.
    pub(crate) delivery: Mutex<()>,
    pub(crate) sessions: RefCell<Sessions>,
    pub(crate) writes: Rc<RefCell<RateMeter>>,
    pub(crate) wakes: Wakes,
    /// A frontier that acks have moved.
    pub(crate) unwritten: Unwritten,
    /// Raft knows that this epoch's log was opened; before that nothing is acknowledged.
    pub(crate) marked: Cell<bool>,
    /// Set once, when this copy is not served any more.
    pub(crate) stopped: RefCell<Option<StopReason>>,
    /// What the disk refuses to read.
    pub(crate) unread: RefCell<Unread>,
    /// Group commits that the metrics know of.
    told_commits: Cell<u64>,
    fed: Cell<RaftIndex>,
    in_flight: Cell<usize>,
    idle: Notify,
    dispatching: RefCell<HashMap<WalId, Rc<Mutex<()>>>>,
}

/// An append between its check and its acknowledgement.
struct InFlight<'a>(&'a Partition);

impl<'a> InFlight<'a> {
    fn enter(partition: &'a Partition) -> Self {
        partition.in_flight.set(partition.in_flight.get() + 1);
        Self(partition)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let left = self.0.in_flight.get() - 1;
        self.0.in_flight.set(left);
        if left == 0 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Partition {
    /// The owner's side of an opened log, under the metadata applied at this moment.
    pub(crate) fn new(
        ctx: Arc<NodeContext>,
        log: Log,
        leases: LeaseTable,
        wakes: Wakes,
        marked: bool,
    ) -> Self {
        let copy = log.copy();
        let state = ctx.state();
        let source = SourcePartition::open(
            ctx.id.clone(),
            copy,
            state.applied,
            state.assignment(copy.key),
            mono_ms(),
        )
        .with_freeze_ttl_ms(ctx.config.moves.freeze_ttl_ms);
        let writes = Rc::<RefCell<RateMeter>>::default();
        // Told by the log: whoever sent the records may be gone when they have become durable.
        let (arrivals, meter) = (wakes.arrivals.clone(), writes.clone());
        log.on_durable(move |bytes| {
            meter.borrow_mut().add(mono_ms(), bytes);
            arrivals.notify_waiters();
        });
        Self {
            copy,
            log,
            opened: Instant::now(),
            source: RefCell::new(source),
            leases: RefCell::new(leases),
            delivery: Mutex::new(()),
            sessions: RefCell::default(),
            writes,
            unwritten: Unwritten::new(ctx.clone()),
            wakes,
            marked: Cell::new(marked),
            stopped: RefCell::new(None),
            unread: RefCell::default(),
            told_commits: Cell::default(),
            fed: Cell::new(state.applied),
            in_flight: Cell::new(0),
            idle: Notify::new(),
            dispatching: RefCell::default(),
            ctx,
        }
    }

    /// Which partition.
    pub(crate) fn key(&self) -> PartitionKey {
        self.copy.key
    }

    /// Tells the owner's machine what is applied on this node now.
    pub(crate) fn follow(self: &Rc<Self>) {
        let state = self.ctx.state();
        if state.applied == self.fed.get() {
            return;
        }
        self.fed.set(state.applied);
        let assignment = state.assignment(self.key()).cloned();
        if assignment
            .as_ref()
            .is_some_and(|a| a.owner == self.ctx.id && a.epoch == self.copy.epoch && a.opened)
        {
            self.marked.set(true);
        }
        self.step(SourceInput::AssignmentApplied {
            index: state.applied,
            assignment,
        });
    }

    /// Whether consumers are served from here.
    pub(crate) fn may_consume(self: &Rc<Self>) -> bool {
        self.follow();
        self.source.borrow().may_consume()
    }

    /// Whether an append may begin now.
    pub(crate) fn check_append(self: &Rc<Self>) -> Result<(), WireFault> {
        // The lease is read before the metadata: control publishes what is applied before it
        // extends the lease that waited for it (R10).
        let lease_until = self.ctx.lease.until();
        self.follow();
        let checked = self.source.borrow().may_append(mono_ms(), lease_until);
        match checked {
            Ok(()) if self.marked.get() => Ok(()),
            Ok(()) => Err(faults::opening(self.key())),
            Err(AppendRefusal::Frozen { .. }) => Err(faults::frozen(self.key())),
            Err(AppendRefusal::NotOwner) => Err(faults::not_owner(&self.ctx.state(), self.key())),
            Err(AppendRefusal::NoLease) => Err(faults::lease_lapsed(self.key())),
        }
    }

    fn check_ack(self: &Rc<Self>) -> Result<(), WireFault> {
        let lease_until = self.ctx.lease.until();
        self.follow();
        match self.source.borrow().may_ack(mono_ms(), lease_until) {
            Ok(()) => Ok(()),
            Err(AckRefusal::NotOwner | AckRefusal::NoLease) => {
                Err(faults::unknown_append(self.key()))
            }
        }
    }

    /// Appends durably. The caller keeps the future alive: it is spawned where a client could drop it.
    pub(crate) async fn append(
        self: &Rc<Self>,
        batch: Batch,
        origin: Option<Origin>,
    ) -> Result<Appended, Unappended> {
        if let Err(fault) = self.check_append() {
            return Err(Unappended::untouched(fault, batch.to_records()));
        }
        if let Some(reason) = self.log.failed() {
            // It is recovered soon, and until then the records go elsewhere.
            self.wakes.due.add(self.key());
            let fault = faults::append_failed(self.key(), &AppendError::Closed { reason });
            return Err(Unappended::untouched(fault, batch.to_records()));
        }
        // While it is being moved, ownership or the lease may go before the ack; then the records go
        // another way, and nobody's produce fails because of a move.
        let kept =
            (origin.is_none() && self.source.borrow().needs_lease()).then(|| batch.to_records());
        // Queued before anything is awaited: what was checked still holds.
        let _in_flight = InFlight::enter(self);
        let failed = |error: AppendError| {
            if matches!(error, AppendError::Closed { .. }) {
                self.wakes.due.add(self.key());
            }
            Unappended::gone(faults::append_failed(self.key(), &error))
        };
        let ticket = self.log.submit(batch, origin).map_err(failed)?;
        let began = Instant::now();
        let appended = ticket.durable().await.map_err(failed)?;
        self.ctx
            .metrics
            .commit_seconds
            .observe(began.elapsed().as_secs_f64());
        self.check_ack().map_err(|fault| Unappended {
            fault: Box::new(fault),
            records: kept,
        })?;
        Ok(appended)
    }

    /// Appends what of a dispatch is new. One dispatch of a WAL at a time: a repeated one waits for
    /// the first, so that what it calls a duplicate is durable.
    pub(crate) async fn append_dispatched(
        self: &Rc<Self>,
        wal: WalId,
        records: Vec<(WalSeq, Record)>,
    ) -> Result<(Offset, u32), WireFault> {
        let turn = {
            let mut dispatching = self.dispatching.borrow_mut();
            // A turn that nobody holds or waits for says nothing; peers name their WALs freely.
            dispatching.retain(|_, turn| Rc::strong_count(turn) > 1);
            dispatching.entry(wal).or_default().clone()
        };
        let _turn = turn.lock().await;
        self.check_append()?;
        if let Some(reason) = self.log.failed() {
            return Err(faults::open_failed(self.copy, &reason));
        }
        let mark = self.log.mark(wal);
        let all = records.len();
        let last = records.last().map_or(WalSeq(0), |(seq, _)| *seq);
        let fresh: Vec<Record> = records
            .into_iter()
            .filter(|(seq, _)| is_new(*seq, mark))
            .map(|(_, record)| record)
            .collect();
        let duplicates = u32::try_from(all - fresh.len()).unwrap_or(u32::MAX);
        if fresh.is_empty() {
            self.check_ack()?;
            return Ok((self.log.end(), duplicates));
        }
        let origin = Origin { wal, seq: last };
        let appended = self
            .append(fresh.into(), Some(origin))
            .await
            .map_err(|unappended| *unappended.fault)?;
        Ok((appended.end, duplicates))
    }

    /// Waits until no append is between its check and its end. New ones must be refused by then.
    pub(crate) async fn settle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight.get() == 0 {
                break;
            }
            idle.await;
        }
        self.log.settle().await;
    }

    /// Reads without leases.
    pub(crate) async fn replay(
        self: &Rc<Self>,
        range: ReplayRange,
    ) -> Result<ReplayBatch, WireFault> {
        if !self.may_consume() {
            return Err(faults::not_owner(&self.ctx.state(), self.key()));
        }
        let mut from = range.from.max(self.log.start());
        if range.from_time > WallMs(0) {
            let found = self.log.offset_at(range.from_time).await;
            from = from.max(found.map_err(|error| faults::read_failed(self.key(), &error))?);
        }
        let hwm = self.log.hwm();
        let upper = range.to.min(hwm);
        let mut batch = ReplayBatch {
            next: from,
            start: self.log.start(),
            hwm,
            ..ReplayBatch::default()
        };
        if from >= upper {
            return Ok(batch);
        }
        let wanted = usize::try_from(upper.0 - from.0).unwrap_or(usize::MAX);
        let read = self
            .log
            .read(from, range.max_records.min(wanted), range.max_bytes)
            .await
            .map_err(|error| faults::read_failed(self.key(), &error))?;
        batch.next = read.next.min(upper);
        batch.skipped = read.skipped;
        batch.records = read.records;
        batch.records.retain(|(offset, _)| *offset < upper);
        Ok(batch)
    }

    /// Tells the metrics of the group commits since the last time.
    pub(crate) fn tell_commits(&self) {
        let commits = self.log.stats().syncs;
        let told = self.told_commits.replace(commits);
        self.ctx
            .metrics
            .commits
            .inc_by(commits.saturating_sub(told));
    }

    /// Counters.
    pub(crate) fn stat(&self) -> PartitionStat {
        PartitionStat {
            copy: self.copy,
            start: self.log.start(),
            hwm: self.log.hwm(),
            frontier: self.log.frontier(),
            bytes: self.log.stats().bytes,
        }
    }

    /// Deletes what retention allows.
    pub(crate) async fn retain(self: &Rc<Self>) -> Result<(), narad_storage::StorageError> {
        let state = self.ctx.state();
        let Some(topic) = state.topics.get(&self.key().topic) else {
            return Ok(());
        };
        let settings = &topic.settings;
        if settings.retention_ms.is_none() && settings.retention_bytes.is_none() {
            return Ok(());
        }
        let now = wall_ms();
        let age = settings.retention_ms.map(|ms| Age {
            min: WallMs(now.0.saturating_sub(ms)),
            now,
        });
        self.log.retain(age, settings.retention_bytes).await?;
        self.retained();
        Ok(())
    }

    /// The leases follow what retention has deleted.
    pub(crate) fn retained(&self) {
        let start = self.log.start();
        let unacked = self.leases.borrow_mut().retained_from(start);
        self.ctx.metrics.expired_records.inc_by(unacked);
    }
}

/// Bytes of a record as limits count them: key and value.
pub(crate) fn record_bytes(record: &Record) -> usize {
    record.key.as_ref().map_or(0, Vec::len) + record.value.len()
}
