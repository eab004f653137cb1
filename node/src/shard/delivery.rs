//! Leasing records to consumers, and what consumers do with their leases.
//!
//! What this file keeps true: every reserved offset is granted, skipped or given back, also when
//! its consumer goes away while the record is read; what the disk refuses to read is tried again after
//! a pause and holds nothing else back; the log's frontier follows the acks and never runs ahead of
//! them; a consumer that parks wakes for a new record, for a lease that ends and for
//! a partition that arrives.

use crate::clock::{mono_ms, wall_ms};
use crate::messages::{Answer, Delivered, LeaseRef, Settle};
use crate::shard::faults;
use crate::shard::limits::{PARK_MIN_MS, PARK_SLICE_MS, RECONCILE_RETRY_MS};
use crate::shard::partition::Partition;
use crate::shard::shard::Shard;
use futures::FutureExt;
use narad_core::ids::{MonoMs, Offset, PartitionKey, TopicId};
use narad_core::leases::Run;
use narad_core::meta::TopicSettings;
use narad_storage::{ReadBatch, StorageError};
use narad_wire::error::WireFault;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// What a consumer asks one shard for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The topic.
    pub(crate) topic: TopicId,
    /// Most records.
    pub(crate) max_records: usize,
    /// Most bytes; one record is given whatever its size.
    pub(crate) max_bytes: usize,
    /// Visibility, or the topic's.
    pub(crate) visibility_ms: Option<u64>,
    /// Steps behind those who wait here for records from anywhere, when one comes: they need no other node for it.
    pub(crate) local_only: bool,
}

/// What one partition is asked for.
#[derive(Clone, Copy, Debug)]
struct Share {
    max_records: usize,
    max_bytes: usize,
    visibility_ms: u64,
    max_deliveries: Option<u32>,
    max_leases: u32,
    max_acked_ahead: u32,
}

/// Offsets taken out of the lease table and not dealt with yet.
struct Reserved<'a> {
    partition: &'a Partition,
    offsets: BTreeSet<Offset>,
}

impl<'a> Reserved<'a> {
    /// Takes over what was reserved.
    fn new(partition: &'a Partition, offsets: impl Iterator<Item = Offset>) -> Self {
        Self {
            partition,
            offsets: offsets.collect(),
        }
    }

    /// Dealt with.
    fn done(&mut self, offset: Offset) {
        self.offsets.remove(&offset);
    }

    /// Given back, and not due again before a pause is over.
    fn later(&mut self, run: Run) {
        let at = mono_ms().plus_ms(RECONCILE_RETRY_MS);
        let mut leases = self.partition.leases.borrow_mut();
        let behind = self.offsets.split_off(&run.to);
        for offset in self.offsets.split_off(&run.from) {
            leases.give_back(offset, at);
        }
        self.offsets.extend(behind);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let now = mono_ms();
        let mut leases = self.partition.leases.borrow_mut();
        for offset in &self.offsets {
            leases.give_back(*offset, now);
        }
    }
}

impl Partition {
    /// The frontier follows what was acked or skipped.
    pub(crate) fn frontier_moved(&self) {
        let frontier = self.leases.borrow().frontier();
        if frontier > self.log.frontier() {
            self.log.set_frontier(frontier);
            self.unwritten.moved();
            self.wakes.flush.notify_one();
        }
    }

    /// Passes over records that cannot be read.
    fn skip(&self, from: Offset, to: Offset) {
        if from >= to {
            return;
        }
        // What retention deleted is no damage.
        let damaged = to.0 - from.max(self.log.start()).min(to).0;
        if damaged > 0 {
            tracing::error!(copy = %self.copy, %from, %to, "corrupt records are passed over; narad verify lists them");
            self.ctx.metrics.skipped_records.inc_by(damaged);
        }
        self.leases.borrow_mut().skip(Run { from, to });
        self.frontier_moved();
    }

    async fn deliver(self: &Rc<Self>, share: Share) -> Result<Vec<Delivered>, WireFault> {
        if !self.may_consume() {
            return Ok(Vec::new());
        }
        let now = mono_ms();
        self.retained();
        let runs = {
            let mut leases = self.leases.borrow_mut();
            leases.set_bounds(share.max_leases, share.max_acked_ahead);
            leases.take(now, self.log.hwm(), share.max_records, share.max_deliveries)
        };
        self.frontier_moved();
        let offsets = runs
            .iter()
            .flat_map(|run| (run.from.0..run.to.0).map(Offset));
        let mut reserved = Reserved::new(self, offsets);
        let mut delivered = Vec::new();
        let (mut bytes, mut unread) = (0usize, None);
        for run in runs {
            let mut at = run.from;
            while at < run.to && (bytes < share.max_bytes || delivered.is_empty()) {
                let count = usize::try_from(run.to.0 - at.0).unwrap_or(usize::MAX);
                let left = share.max_bytes.saturating_sub(bytes).max(1);
                let batch = match self.read(at, count, left).await {
                    Ok(batch) => batch,
                    Err(error) => {
                        self.unread(at, &error);
                        unread = Some(faults::read_failed(self.key(), &error));
                        reserved.later(Run { from: at, ..run });
                        break;
                    }
                };
                if batch.next <= at {
                    break;
                }
                for (offset, record) in batch.records {
                    if offset >= run.to {
                        break;
                    }
                    self.skip(at, offset);
                    bytes += record.content_len();
                    let granted =
                        self.leases
                            .borrow_mut()
                            .grant(offset, mono_ms(), share.visibility_ms);
                    reserved.done(offset);
                    at = offset.plus(1);
                    let Some(grant) = granted else {
                        // Retention took it while it was read.
                        continue;
                    };
                    delivered.push(Delivered {
                        lease: LeaseRef {
                            partition: self.key().partition,
                            offset,
                            nonce: grant.nonce,
                        },
                        record,
                        deliveries: grant.deliveries,
                    });
                }
                let next = batch.next.min(run.to);
                self.skip(at, next);
                at = at.max(next);
            }
        }
        match unread {
            Some(fault) if delivered.is_empty() => Err(fault),
            // What is leased is delivered.
            _ => Ok(delivered),
        }
    }

    /// Reads for consumers: around what the disk has refused for too long, and what was waited for once is not
    /// waited for again by those who are given the records behind.
    pub(crate) async fn read(
        &self,
        at: Offset,
        count: usize,
        left: usize,
    ) -> Result<ReadBatch, StorageError> {
        let lost = self.unread.borrow().is_lost(mono_ms(), at);
        if lost {
            return self.log.read_around(at, count, left).await;
        }
        self.log.read_on(at, count, left).await
    }

    /// Tells of a read at `at` that the disk refused.
    pub(crate) fn unread(&self, at: Offset, error: &StorageError) {
        self.ctx.metrics.failed_reads.inc();
        let cause = error.to_string();
        // Once a cause, not once a try.
        if self.unread.borrow_mut().refused(mono_ms(), at, &cause) {
            tracing::error!(copy = %self.copy, %error, "records cannot be read; the others are delivered, these are tried every second for a minute and then passed over");
        }
    }

    /// Takes leases back that did not reach their consumer.
    fn undeliver(&self, leases: impl Iterator<Item = LeaseRef>) {
        let now = mono_ms();
        let mut table = self.leases.borrow_mut();
        for lease in leases {
            // Ended meanwhile: then it is due anyway.
            let _ = table.undeliver(lease.offset, lease.nonce, now);
        }
    }

    fn settle_lease(self: &Rc<Self>, settle: Settle, lease: LeaseRef) -> Result<(), WireFault> {
        let now = mono_ms();
        let (offset, nonce) = (lease.offset, lease.nonce);
        let mut leases = self.leases.borrow_mut();
        let result = match settle {
            Settle::Ack => leases.ack(offset, nonce, now),
            Settle::Nack { delay_ms } => leases.nack(offset, nonce, now, delay_ms),
            Settle::Extend { visibility_ms } => leases.extend(offset, nonce, now, visibility_ms),
            Settle::Undeliver => leases.undeliver(offset, nonce, now),
        };
        result.map_err(|_| faults::stale_lease(self.key()))
    }
}

impl Shard {
    /// Leases records of this shard's open partitions and answers; parks while there are none.
    pub(crate) async fn consume(
        self: &Rc<Self>,
        wanted: Wanted,
        wait_ms: u64,
        mut answer: Answer<Result<Vec<Delivered>, WireFault>>,
    ) {
        let until = mono_ms().plus_ms(wait_ms);
        let arrivals = self.arrivals(wanted.topic);
        loop {
            let arrived = arrivals.notified();
            let got = self.collect(wanted).await;
            let now = mono_ms();
            if answer.is_closed() || now >= until || !matches!(&got, Ok(none) if none.is_empty()) {
                self.hand_over(wanted.topic, answer, got);
                return;
            }
            let pause = self.next_look(wanted.topic, now).min(until.since(now));
            futures::select_biased! {
                () = Box::pin(answer.closed()).fuse() => return,
                () = Box::pin(arrived).fuse() => {
                    if wanted.local_only {
                        glommio::executor().yield_now().await;
                    }
                }
                () = Box::pin(glommio::timer::sleep(Duration::from_millis(pause))).fuse() => {}
            }
        }
    }

    /// When a parked consumer looks again though nobody woke it, in ms from now.
    fn next_look(&self, topic: TopicId, now: MonoMs) -> u64 {
        self.open_of_topic(topic)
            .iter()
            .filter_map(|partition| partition.leases.borrow().next_due())
            .map(|due| due.since(now))
            .min()
            .unwrap_or(PARK_SLICE_MS)
            .clamp(PARK_MIN_MS, PARK_SLICE_MS)
    }

    async fn collect(self: &Rc<Self>, wanted: Wanted) -> Result<Vec<Delivered>, WireFault> {
        let state = self.ctx.state();
        let Some(topic) = state.topics.get(&wanted.topic) else {
            return Err(faults::topic_id_gone(wanted.topic));
        };
        let settings: &TopicSettings = &topic.settings;
        let mut partitions = self.open_of_topic(wanted.topic);
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.next_turn() % partitions.len();
        partitions.rotate_left(first);
        let mut delivered: Vec<Delivered> = Vec::new();
        let mut bytes = 0usize;
        for partition in partitions {
            if delivered.len() >= wanted.max_records || bytes >= wanted.max_bytes {
                break;
            }
            let _turn = partition.delivery.lock().await;
            if let Some(max) = settings.max_deliveries {
                self.dead_letters(&partition, settings, max).await;
            }
            let share = Share {
                max_records: wanted.max_records - delivered.len(),
                max_bytes: wanted.max_bytes - bytes,
                visibility_ms: wanted.visibility_ms.unwrap_or(settings.visibility_ms),
                max_deliveries: settings.max_deliveries,
                max_leases: settings.max_leases,
                max_acked_ahead: settings.max_acked_ahead,
            };
            match partition.deliver(share).await {
                Ok(got) => {
                    bytes += got
                        .iter()
                        .map(|one| one.record.content_len())
                        .sum::<usize>();
                    delivered.extend(got);
                }
                Err(fault) => {
                    // The other partitions' records are not held back by one that cannot be read.
                    tracing::debug!(copy = %partition.copy, %fault, "a partition cannot be read");
                }
            }
        }
        Ok(delivered)
    }

    /// Answers; what nobody takes any more is due again at once.
    fn hand_over(
        &self,
        topic: TopicId,
        answer: Answer<Result<Vec<Delivered>, WireFault>>,
        got: Result<Vec<Delivered>, WireFault>,
    ) {
        if let Ok(records) = &got {
            let metrics = &self.ctx.metrics;
            metrics.delivered_records.inc_by(records.len() as u64);
            let now = wall_ms();
            for again in records.iter().filter(|one| one.deliveries > 1) {
                metrics.redelivered_records.inc();
                let age_ms = now.0.saturating_sub(again.record.get().time.0);
                let age = Duration::from_millis(age_ms).as_secs_f64();
                metrics.redelivery_age_seconds.observe(age);
            }
        }
        let Err(Ok(untaken)) = answer.send(got) else {
            return;
        };
        if untaken.is_empty() {
            return;
        }
        for partition in self.open_of_topic(topic) {
            let leases = untaken
                .iter()
                .map(|one| one.lease)
                .filter(|lease| lease.partition == partition.key().partition);
            partition.undeliver(leases);
        }
        let count = untaken.len() as u64;
        self.ctx.metrics.returned_records.inc_by(count);
        self.arrivals(topic).notify_waiters();
    }

    /// Acks, gives back or extends; one result a lease.
    pub(crate) fn settle_leases(
        self: &Rc<Self>,
        topic: TopicId,
        settle: Settle,
        leases: &[LeaseRef],
    ) -> Vec<Result<(), WireFault>> {
        let mut results = Vec::with_capacity(leases.len());
        // Leases of one partition mostly stand together: it is looked up once for all of them. Nothing is
        // awaited in between, so it stays what it was.
        for group in leases.chunk_by(|one, next| one.partition == next.partition) {
            let key = PartitionKey {
                topic,
                partition: group[0].partition,
            };
            let partition = self.opened(key).and_then(|partition| {
                if partition.may_consume() {
                    Ok(partition)
                } else {
                    Err(faults::not_owner(&self.ctx.state(), key))
                }
            });
            match partition {
                Ok(partition) => {
                    let settled = group.iter();
                    results.extend(settled.map(|lease| partition.settle_lease(settle, *lease)));
                    partition.frontier_moved();
                }
                Err(fault) => results.extend(group.iter().map(|_| Err(fault.clone()))),
            }
        }
        match settle {
            Settle::Ack => {
                let acked = results.iter().filter(|result| result.is_ok()).count();
                self.ctx.metrics.acked_records.inc_by(acked as u64);
                // Room for further leases may be what a parked consumer waits for.
                self.arrivals(topic).notify_waiters();
            }
            Settle::Nack { .. } => self.arrivals(topic).notify_waiters(),
            Settle::Undeliver => {
                let returned = results.iter().filter(|result| result.is_ok()).count();
                self.ctx.metrics.returned_records.inc_by(returned as u64);
                self.arrivals(topic).notify_waiters();
            }
            Settle::Extend { .. } => {}
        }
        results
    }
}
