//! Copies that this node does not own any more: what only they hold is saved, then they go.
//!
//! What this file keeps true: nothing is destroyed on a local view (a barrier comes first); a copy
//! is deleted by its identity (R2), after its records above the salvage point are durable in the
//! ingress WAL (R9) and the new owner has said that it serves, or kept aside when some of those are
//! damaged; an installed copy whose flip is not known is left to the mover (R3).

use crate::shard::faults;
use crate::shard::limits::{PEER_CALL_MS, RECONCILE_RETRY_MS, SALVAGE_BYTES, SALVAGE_RECORDS};
use crate::shard::shard::Shard;
use narad_core::copies::{
    RetireStep, Retiring, Standing, retire, salvage_point, standing, unreported,
};
use narad_core::copy::InstallMark;
use narad_core::ids::{CopyId, Epoch, Offset, PartitionKey};
use narad_core::meta::EpochEnd;
use narad_core::meta::{Assignment, Command, MetaState, Reply};
use narad_storage::{Log, WalEntry, layout};
use narad_wire::error::{WireError, WireFault};
use std::rc::Rc;
use std::time::Duration;

/// Why a copy stays for now.
#[derive(Debug, thiserror::Error)]
enum Stays {
    #[error("{0}")]
    Storage(#[from] narad_storage::StorageError),
    #[error("its records cannot be put into the ingress WAL yet: {0}")]
    Wal(#[from] narad_storage::AppendError),
    #[error("it cannot be confirmed with the leader: {0}")]
    Unconfirmed(#[from] crate::messages::ProposeError),
    #[error("its new owner could not be asked: {0}")]
    Owner(#[from] WireError),
    #[error("its new owner does not serve yet")]
    NotServed,
    #[error("the leader's view is another one: {0:?}")]
    Changed(Standing),
    #[error("{0}")]
    Fault(WireFault),
}

impl Shard {
    /// Starts whatever is due for the copies on this shard's disk.
    pub(crate) fn retire_copies(self: &Rc<Self>) {
        let copies = self.copies.borrow().clone();
        self.retire_these(copies.into_iter());
    }

    /// The same for the copies of one partition.
    pub(crate) fn retire_copies_of(self: &Rc<Self>, key: PartitionKey) {
        let copy = |epoch| CopyId {
            key,
            epoch: Epoch(epoch),
        };
        let all = copy(0)..=copy(u64::MAX);
        let known = self.copies.borrow();
        let copies: Vec<_> = known.range(all).map(|(c, i)| (*c, *i)).collect();
        drop(known);
        self.retire_these(copies.into_iter());
    }

    fn retire_these(self: &Rc<Self>, copies: impl Iterator<Item = (CopyId, Option<InstallMark>)>) {
        let state = self.ctx.state();
        for (copy, install) in copies {
            match standing(&self.ctx.id, &state, copy, install) {
                Standing::Ours => {}
                Standing::Ended(_) | Standing::TopicGone => {
                    self.spawn_once(copy, async move |shard| shard.retire(copy).await);
                }
                Standing::Unknown => self.forget_moved_away(copy),
                Standing::Stray => {
                    if self.strays.borrow_mut().insert(copy) {
                        tracing::error!(%copy, "this copy is not accounted for by the metadata; it is kept and not served");
                    }
                }
            }
        }
    }

    /// The mover may have rolled an install back.
    fn forget_moved_away(&self, copy: CopyId) {
        if !layout::partition_dir(&self.root, copy).exists() {
            self.copies.borrow_mut().remove(&copy);
        }
    }

    /// Ended epochs of this node that have no copy here any more (or never had one) are reported.
    pub(crate) fn report_reclaimed(self: &Rc<Self>, key: PartitionKey, assignment: &Assignment) {
        let here = |epoch| self.copies.borrow().contains_key(&CopyId { key, epoch });
        for epoch in unreported(&self.ctx.id, assignment, here) {
            let copy = CopyId { key, epoch };
            self.spawn_once(copy, async move |shard| {
                if let Err(stays) = shard.report_gone(copy).await {
                    tracing::debug!(%copy, %stays, "not reported as reclaimed yet");
                    glommio::timer::sleep(Duration::from_millis(RECONCILE_RETRY_MS)).await;
                }
            });
        }
    }

    async fn report_gone(self: &Rc<Self>, copy: CopyId) -> Result<(), Stays> {
        let slot = self.slot(copy.key);
        {
            let _gate = slot.gate.lock().await;
            self.close_gated(&slot, copy).await;
        }
        if layout::partition_dir(&self.root, copy).exists() {
            self.copies.borrow_mut().entry(copy).or_insert(None);
            return Ok(());
        }
        self.ctx.barrier().await?;
        match standing(&self.ctx.id, &self.ctx.state(), copy, None) {
            Standing::Ended(_) => self.mark_reclaimed(copy).await,
            other => Err(Stays::Changed(other)),
        }
    }

    async fn mark_reclaimed(&self, copy: CopyId) -> Result<(), Stays> {
        let (_, reply) = self
            .ctx
            .propose(Command::MarkReclaimed {
                key: copy.key,
                epoch: copy.epoch,
                owner: self.ctx.id.clone(),
            })
            .await?;
        self.salvaged.borrow_mut().remove(&copy);
        match reply {
            Reply::Done { .. } => tracing::info!(%copy, "copy reclaimed"),
            Reply::Refused { refusal } => {
                tracing::info!(%copy, ?refusal, "the copy was reported as reclaimed before");
            }
        }
        Ok(())
    }

    async fn retire(self: &Rc<Self>, copy: CopyId) {
        if let Err(stays) = self.try_retire(copy).await {
            tracing::info!(%copy, %stays, "the copy of an ended epoch stays for now");
            glommio::timer::sleep(Duration::from_millis(RECONCILE_RETRY_MS)).await;
        }
    }

    async fn try_retire(self: &Rc<Self>, copy: CopyId) -> Result<(), Stays> {
        let slot = self.slot(copy.key);
        let _gate = slot.gate.lock().await;
        self.close_gated(&slot, copy).await;
        let install = self.copies.borrow().get(&copy).copied().flatten();
        let mut done = Retiring {
            salvaged: self.salvaged.borrow().get(&copy).copied(),
            ..Retiring::default()
        };
        loop {
            done.damaged = self.damaged.borrow().contains(&copy);
            let state = self.ctx.state();
            let now = standing(&self.ctx.id, &state, copy, install);
            match retire(&now, done) {
                RetireStep::Stay => return Err(Stays::Changed(now)),
                RetireStep::Salvage { end } => {
                    self.salvage(copy, end).await?;
                    self.salvaged.borrow_mut().insert(copy, end);
                    done = Retiring {
                        salvaged: Some(end),
                        ..Retiring::default()
                    };
                }
                RetireStep::Confirm => {
                    self.ctx.barrier().await?;
                    done.confirmed = true;
                }
                RetireStep::AskOwner => {
                    self.owner_serves(&state, copy).await?;
                    done.served = true;
                }
                RetireStep::Delete { report } => {
                    self.delete(copy).await?;
                    if report {
                        return self.mark_reclaimed(copy).await;
                    }
                    tracing::info!(%copy, "copy of a deleted topic removed");
                    self.forget_slot(copy.key);
                    return Ok(());
                }
                RetireStep::SetAside => {
                    self.set_aside(copy).await?;
                    return self.mark_reclaimed(copy).await;
                }
            }
        }
    }

    async fn delete(&self, copy: CopyId) -> Result<(), Stays> {
        match layout::delete_copy(&self.root, copy).await {
            Ok(()) => {}
            // Renamed away by an attempt that was cut short (the next start removes the rest), or
            // rolled back by the mover: either way this copy is not here any more.
            Err(narad_storage::StorageError::NoSuchCopy { .. }) => {
                tracing::info!(%copy, "the copy to delete is gone already");
            }
            Err(error) => return Err(error.into()),
        }
        self.forget_copy(copy);
        Ok(())
    }

    async fn set_aside(&self, copy: CopyId) -> Result<(), Stays> {
        match layout::set_copy_aside(&self.root, copy).await {
            Ok(path) => {
                tracing::error!(%copy, kept = %path.display(), "records that only this copy held are damaged; it is kept, narad verify tells what is damaged");
            }
            // By an attempt that was cut short.
            Err(narad_storage::StorageError::NoSuchCopy { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.forget_copy(copy);
        Ok(())
    }

    fn forget_copy(&self, copy: CopyId) {
        self.copies.borrow_mut().remove(&copy);
        self.salvage_at.borrow_mut().remove(&copy);
        self.damaged.borrow_mut().remove(&copy);
    }

    /// Puts everything from where its epoch ended on into the ingress WAL, durably. When this is cut short (a full
    /// WAL) the next attempt goes on where it stopped; only after a restart of the node may records
    /// get there twice. None is left out.
    async fn salvage(&self, copy: CopyId, end: EpochEnd) -> Result<(), Stays> {
        let (log, report) = Log::open(&self.root, copy, &self.options).await?;
        let from = salvage_point(end, log.frontier());
        tracing::info!(%copy, %from, end = %log.end(), ?report, "salvage of an ended copy begins");
        let result = self.salvage_log(&log, end, from).await;
        if let Err(error) = log.close().await {
            tracing::warn!(%copy, %error, "a salvaged copy did not close cleanly");
        }
        let (records, skipped) = result?;
        if skipped > 0 {
            tracing::error!(%copy, skipped, "records above the salvage point are corrupt and could not be saved");
        }
        tracing::info!(%copy, records, "salvage done: the records are in the ingress WAL");
        Ok(())
    }

    async fn salvage_log(
        &self,
        log: &Log,
        end: EpochEnd,
        from: Offset,
    ) -> Result<(u64, u64), Stays> {
        let copy = log.copy();
        let reached = self.salvage_at.borrow().get(&copy).copied();
        let reached = reached.filter(|(under, _)| *under == end).map(|(_, at)| at);
        let mut at = reached.unwrap_or(from).max(from).max(log.start());
        let (mut saved, mut skipped) = (0, 0);
        while at < log.hwm() {
            let batch = log.read(at, SALVAGE_RECORDS, SALVAGE_BYTES).await?;
            skipped += batch.skipped;
            if batch.skipped > 0 {
                self.damaged.borrow_mut().insert(copy);
            }
            let entries: Vec<WalEntry> = batch
                .records
                .iter()
                .map(|(_, record)| WalEntry {
                    topic: copy.key.topic,
                    partition: copy.key.partition,
                    pinned: false,
                    record: record.to_record(),
                })
                .collect();
            saved += entries.len() as u64;
            if !entries.is_empty() {
                self.put_into_wal(entries).await?;
            }
            if batch.next <= at {
                return Err(Stays::Fault(faults::internal(
                    "salvage makes no progress",
                    format!("at {at} of {copy}"),
                )));
            }
            at = batch.next;
            self.salvage_at.borrow_mut().insert(copy, (end, at));
        }
        Ok((saved, skipped))
    }

    async fn owner_serves(&self, state: &MetaState, copy: CopyId) -> Result<(), Stays> {
        let assignment = state
            .assignment(copy.key)
            .ok_or(Stays::Changed(Standing::TopicGone))?;
        let current = CopyId {
            key: copy.key,
            epoch: assignment.epoch,
        };
        if assignment.owner == self.ctx.id {
            let open = self.known_slot(copy.key).and_then(|slot| slot.open());
            return match open {
                Some(partition) if partition.copy == current => Ok(()),
                _ => Err(Stays::NotServed),
            };
        }
        let member = state
            .members
            .get(&assignment.owner)
            .ok_or(Stays::NotServed)?;
        let serves = crate::shard::peers::serves(
            &self.pool,
            member,
            current,
            Duration::from_millis(PEER_CALL_MS),
        )
        .await?;
        if serves {
            Ok(())
        } else {
            Err(Stays::NotServed)
        }
    }
}
