//! One batch on its way from an ingress WAL to a partition's owner, here or elsewhere.
//!
//! What this file keeps true: only a definite "durable" ends the batch; a refusal, a lost answer and
//! an unreachable owner all mean "again", which the owner recognises by WAL and sequence.

use crate::messages::ShardRequest;
use crate::shard::dispatcher::Dispatcher;
use crate::shard::faults;
use crate::shard::limits::PEER_APPEND_MS;
use crate::shard::peers;
use crate::shard::shard::Shard;
use narad_core::dispatch::SendEnd;
use narad_core::ids::{CopyId, Epoch, NodeId, Offset, PartitionKey, WalSeq};
use narad_storage::Record;
use narad_wire::error::{WireError, WireFault};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What is sent where.
pub(crate) struct Batch {
    /// The partition.
    pub(crate) key: PartitionKey,
    /// Its owner.
    pub(crate) to: NodeId,
    /// Its epoch.
    pub(crate) epoch: Epoch,
    /// Which records.
    pub(crate) seqs: Vec<WalSeq>,
}

type Records = Vec<(WalSeq, Arc<Record>)>;

/// Sends a batch.
pub(crate) async fn send(dispatcher: &Dispatcher, shard: &Rc<Shard>, batch: Batch) -> SendEnd {
    let records = match dispatcher.fetch(&batch.seqs).await {
        Ok(records) => records,
        Err(error) => {
            tracing::error!(%error, "the ingress WAL cannot be read; tried again");
            return SendEnd::Again { retry_after_ms: 0 };
        }
    };
    if records.is_empty() {
        // Lost to damage, all of them; reading has reported it.
        return SendEnd::Appended;
    }
    let count = records.len() as u64;
    let oldest = batch.seqs.first().copied();
    let sent = if batch.to == shard.ctx.id {
        here(dispatcher, shard, &batch, records).await
    } else {
        there(dispatcher, shard, &batch, records).await
    };
    match sent {
        Ok((_, duplicates)) => {
            let fresh = count.saturating_sub(u64::from(duplicates));
            let metrics = &shard.ctx.metrics;
            metrics.dispatched_records.inc_by(fresh);
            if let Some(age_ms) = oldest.and_then(|seq| dispatcher.age_ms(seq)) {
                let age = Duration::from_millis(age_ms).as_secs_f64();
                metrics.dispatch_lag_seconds.observe(age);
            }
            SendEnd::Appended
        }
        Err(error) => {
            tracing::debug!(key = %batch.key, to = %batch.to, %error, "a dispatch is tried again");
            let retry_after_ms = error
                .fault()
                .map_or(0, |fault| u64::from(fault.retry_after_ms));
            SendEnd::Again { retry_after_ms }
        }
    }
}

async fn here(
    dispatcher: &Dispatcher,
    shard: &Rc<Shard>,
    batch: &Batch,
    records: Records,
) -> Result<(Offset, u32), WireError> {
    let records = records
        .into_iter()
        .map(|(seq, record)| (seq, Record::clone(&record)))
        .collect();
    let answered: Result<(Offset, u32), WireFault> = shard
        .ctx
        .shard(batch.key)
        .ask(|answer| ShardRequest::Dispatched {
            key: batch.key,
            epoch: batch.epoch,
            wal: dispatcher.wal.id(),
            records,
            answer,
        })
        .await
        .unwrap_or_else(|_| Err(faults::shutting_down()));
    answered.map_err(WireError::Fault)
}

async fn there(
    dispatcher: &Dispatcher,
    shard: &Rc<Shard>,
    batch: &Batch,
    records: Records,
) -> Result<(Offset, u32), WireError> {
    let state = shard.ctx.state();
    let member = state
        .members
        .get(&batch.to)
        .ok_or_else(|| WireError::Fault(faults::not_owner(&state, batch.key)))?;
    let copy = CopyId {
        key: batch.key,
        epoch: batch.epoch,
    };
    let deadline = Duration::from_millis(PEER_APPEND_MS);
    peers::append(
        &shard.pool,
        member,
        copy,
        dispatcher.wal.id(),
        &records,
        deadline,
    )
    .await
}
