//! Opening the log of a partition that this node owns, and telling Raft that it was opened.
//!
//! What this file keeps true: nothing is opened before a barrier of this start was applied; an
//! empty log is made only for an epoch of which Raft says that it never had one; nothing of a new
//! log is acknowledged before Raft knows that it exists.

use crate::clock::mono_ms;
use crate::shard::faults;
use crate::shard::limits::{OPEN_WAIT_MS, RECONCILE_RETRY_MS};
use crate::shard::partition::Partition;
use crate::shard::shard::{Shard, Slot, SlotState};
use crate::shard::task;
use futures::future::Either;
use narad_core::copies::has_log;
use narad_core::ids::{CopyId, PartitionKey};
use narad_core::leases::LeaseTable;
use narad_core::meta::{Assignment, Command, Reply};
use narad_storage::{Log, layout};
use narad_wire::error::WireFault;
use std::rc::Rc;
use std::time::{Duration, Instant};

impl Shard {
    /// The open partition for somebody who wants to append or copy: makes the log of a partition
    /// that never had one. Waits a bounded time; the work, one at a time for a partition, goes on
    /// when the time is over.
    pub(crate) async fn open_for_use(
        self: &Rc<Self>,
        key: PartitionKey,
    ) -> Result<Rc<Partition>, WireFault> {
        if let Some(partition) = self.known_slot(key).and_then(|slot| slot.usable()) {
            return Ok(partition);
        }
        let state = self.ctx.state();
        match state.assignment(key) {
            None => return Err(faults::topic_gone(key)),
            Some(assignment) if !self.owns(assignment) => {
                return Err(faults::not_owner(&state, key));
            }
            Some(_) => {}
        }
        let slot = self.slot(key);
        let ended = slot.attempt_ended.notified();
        if !slot.attempting.replace(true) {
            let (shard, slot) = (self.clone(), slot.clone());
            task::spawn("opening a partition", async move {
                let attempt = Attempt(slot);
                let outcome = shard.open_usable(&attempt.0).await;
                attempt.0.refused.replace(outcome.err());
            });
        }
        let waited = glommio::timer::timeout(Duration::from_millis(OPEN_WAIT_MS), async move {
            ended.await;
            Ok::<_, glommio::GlommioError<()>>(())
        });
        let in_time = waited.await.is_ok();
        if let Some(partition) = slot.usable() {
            return Ok(partition);
        }
        let refused = slot.refused.borrow().clone().filter(|_| in_time);
        Err(refused.unwrap_or_else(|| faults::opening(key)))
    }

    async fn open_usable(self: &Rc<Self>, slot: &Rc<Slot>) -> Result<(), WireFault> {
        let partition = self.open_slot(slot).await?;
        if !partition.marked.get() {
            self.mark_opened(slot, &partition).await?;
        }
        Ok(())
    }

    /// Opens what this node owns of the partition now, unless it is open already.
    pub(crate) async fn open_slot(
        self: &Rc<Self>,
        slot: &Rc<Slot>,
    ) -> Result<Rc<Partition>, WireFault> {
        if !*self.ctx.confirmed.borrow() {
            return Err(faults::opening(slot.key));
        }
        let _gate = slot.gate.lock().await;
        let state = self.ctx.state();
        let Some(assignment) = state.assignment(slot.key) else {
            return Err(faults::topic_gone(slot.key));
        };
        if !self.owns(assignment) {
            return Err(faults::not_owner(&state, slot.key));
        }
        let copy = CopyId {
            key: slot.key,
            epoch: assignment.epoch,
        };
        if let Some(partition) = slot.open() {
            if partition.copy == copy {
                return Ok(partition);
            }
            // The copy of an ended epoch is still in the slot: it is retired first.
            self.due.add(slot.key);
            return Err(faults::opening(slot.key));
        }
        let failed_at = slot.failed_at.get().plus_ms(RECONCILE_RETRY_MS);
        if let Some(fault) = slot.failure()
            && mono_ms() < failed_at
        {
            return Err(fault);
        }
        match self.open_log(copy, assignment).await {
            Ok(partition) => {
                slot.state.replace(SlotState::Open(partition.clone()));
                self.copies.borrow_mut().insert(copy, None);
                self.ctx.metrics.open_partitions.inc();
                partition.wakes.arrivals.notify_waiters();
                self.dispatchers.metadata_changed();
                Ok(partition)
            }
            Err(fault) => {
                // Once a cause, not once a try.
                if slot.failure().is_none_or(|known| known != fault) {
                    tracing::error!(%copy, %fault, path = %layout::partition_dir(&self.root, copy).display(), "an owned partition cannot be served");
                }
                slot.failed_at.set(mono_ms());
                slot.state.replace(SlotState::Failed(fault.clone()));
                Err(fault)
            }
        }
    }

    async fn open_log(
        self: &Rc<Self>,
        copy: CopyId,
        assignment: &Assignment,
    ) -> Result<Rc<Partition>, WireFault> {
        let began = Instant::now();
        let known = self.installed.borrow_mut().remove(&copy);
        let exists = known.is_some() || layout::partition_dir(&self.root, copy).exists();
        let log = if exists {
            let opening = match known {
                Some(known) => Either::Left(Log::open_installed(&self.root, known, &self.options)),
                None => Either::Right(Log::open(&self.root, copy, &self.options)),
            };
            let (log, report) = opening
                .await
                .map_err(|error| faults::open_failed(copy, &error.to_string()))?;
            tracing::info!(%copy, ?report, elapsed_us = began.elapsed().as_micros(), "log opened");
            log
        } else if has_log(assignment) {
            return Err(faults::missing(copy));
        } else {
            let log = Log::create(&self.root, copy, &self.options)
                .await
                .map_err(|error| faults::open_failed(copy, &error.to_string()))?;
            tracing::info!(%copy, "log made");
            log
        };
        if exists {
            self.clear_install_mark(&log);
        }
        let leases = LeaseTable::new(log.frontier(), Self::first_nonce());
        Ok(Rc::new(Partition::new(
            self.ctx.clone(),
            log,
            leases,
            self.wakes(copy.key.topic),
            // Only an epoch that never had a log waits for Raft before it acknowledges.
            has_log(assignment),
        )))
    }

    /// The flip is known, so the mark of the install has done its work (R3). Not waited for: after
    /// a crash the applied metadata says again that the copy is ours.
    fn clear_install_mark(&self, log: &Log) {
        let log = log.clone();
        glommio::spawn_local(async move {
            if let Err(error) = log.clear_install_mark().await {
                tracing::warn!(copy = %log.copy(), %error, "the install mark stays until the next open");
            }
        })
        .detach();
    }

    /// Tells Raft that the log of this epoch exists.
    pub(crate) async fn mark_opened(
        self: &Rc<Self>,
        slot: &Rc<Slot>,
        partition: &Rc<Partition>,
    ) -> Result<(), WireFault> {
        let copy = partition.copy;
        let command = Command::MarkOpened {
            key: copy.key,
            owner: self.ctx.id.clone(),
            epoch: copy.epoch,
        };
        match self.ctx.propose(command).await {
            Ok((_, Reply::Done { .. })) => {
                partition.marked.set(true);
                Ok(())
            }
            Ok((_, Reply::Refused { refusal })) => {
                tracing::warn!(%copy, ?refusal, "a new log is not wanted any more");
                self.due.add(copy.key);
                let state = self.ctx.state();
                Err(match state.assignment(slot.key) {
                    None => faults::topic_gone(slot.key),
                    Some(_) => faults::not_owner(&state, slot.key),
                })
            }
            Err(error) => {
                tracing::warn!(%copy, %error, "a new log is not confirmed yet");
                Err(faults::opening(slot.key))
            }
        }
    }

    /// Closes an open copy of an epoch that has ended; what becomes of it is decided by what the
    /// metadata says of the copy on the disk.
    pub(crate) fn retire_if_stopped(self: &Rc<Self>, partition: &Rc<Partition>) {
        if partition.stopped.borrow().is_none() {
            return;
        }
        let copy = partition.copy;
        self.spawn_once(copy, async move |shard| {
            let slot = shard.slot(copy.key);
            shard.close_slot(&slot, copy).await;
        });
    }

    /// Opens a partition of this shard when this node owns it and it has a log, and repeats what did
    /// not work.
    pub(crate) fn open_if_owned(self: &Rc<Self>, key: PartitionKey, assignment: &Assignment) {
        if !self.owns(assignment) {
            return;
        }
        let copy = CopyId {
            key,
            epoch: assignment.epoch,
        };
        let open = self.known_slot(key).and_then(|slot| slot.open());
        match open {
            Some(partition) if partition.copy == copy => {
                partition.follow();
                if assignment.opened && partition.log.failed().is_none() {
                    return;
                }
            }
            // Retired first; then it is looked at again.
            Some(_) => return,
            None if has_log(assignment) || self.copies.borrow().contains_key(&copy) => {}
            None => return,
        }
        self.spawn_once(copy, async move |shard| shard.open_or_repair(copy).await);
    }

    async fn open_or_repair(self: &Rc<Self>, copy: CopyId) {
        let opened = {
            let _permit = self.opens.acquire().await;
            self.repair_and_open(copy).await
        };
        if let Err(fault) = opened {
            tracing::debug!(%copy, %fault, "not open yet");
            glommio::timer::sleep(Duration::from_millis(RECONCILE_RETRY_MS)).await;
        }
    }

    async fn repair_and_open(self: &Rc<Self>, copy: CopyId) -> Result<Rc<Partition>, WireFault> {
        let slot = self.slot(copy.key);
        if let Some(partition) = slot.open()
            && let Some(reason) = partition.log.failed()
        {
            tracing::warn!(%copy, %reason, "a stopped log is closed and recovered");
            self.close_slot(&slot, copy).await;
        }
        let partition = self.open_slot(&slot).await?;
        let opened = |a: &Assignment| a.opened || a.epoch != copy.epoch;
        if !self.ctx.state().assignment(copy.key).is_some_and(opened) {
            self.mark_opened(&slot, &partition).await?;
        }
        Ok(partition)
    }

    /// Takes a copy out of its slot and closes it, after its appends have settled.
    pub(crate) async fn close_slot(self: &Rc<Self>, slot: &Rc<Slot>, copy: CopyId) {
        let _gate = slot.gate.lock().await;
        self.close_gated(slot, copy).await;
    }

    /// As [`Shard::close_slot`], by whoever holds the gate.
    pub(crate) async fn close_gated(self: &Rc<Self>, slot: &Rc<Slot>, copy: CopyId) {
        let Some(partition) = slot.open().filter(|open| open.copy == copy) else {
            return;
        };
        slot.state.replace(SlotState::Idle);
        self.ctx.metrics.open_partitions.dec();
        partition.retire();
        partition.settle().await;
        if let Err(error) = partition.log.clone().close().await {
            tracing::warn!(%copy, %error, "the log did not close cleanly; it is recovered when it is opened again");
        }
    }

    /// Runs background work on a copy unless some runs already, and looks again when it is over.
    pub(crate) fn spawn_once<W>(self: &Rc<Self>, copy: CopyId, work: W)
    where
        W: AsyncFnOnce(Rc<Shard>) + 'static,
    {
        if !self.busy.borrow_mut().insert(copy) {
            return;
        }
        let shard = self.clone();
        task::spawn("work on a copy", async move {
            let _done = Busy {
                shard: shard.clone(),
                copy,
            };
            work(shard).await;
        });
    }
}

/// The end of an attempt to open a partition, also when it panics.
struct Attempt(Rc<Slot>);

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.attempting.set(false);
        self.0.attempt_ended.notify_waiters();
    }
}

/// Takes a copy out of the busy set, also when its work panics.
struct Busy {
    shard: Rc<Shard>,
    copy: CopyId,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shard.busy.borrow_mut().remove(&self.copy);
        self.shard.due.add(self.copy.key);
    }
}
