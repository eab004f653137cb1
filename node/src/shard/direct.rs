//! The short way of a produce: a batch that goes into one open partition of the shard that took it.
//!
//! What this file keeps true: the batch is queued as one frame before anything is awaited, so it needs
//! no task of its own: whoever drops the call cuts nothing in half. Whatever is not as simple goes
//! back untouched.

use crate::clock::wall_ms;
use crate::shard::limits::PUT_BYTES;
use crate::shard::produce::{Placed, count};
use crate::shard::shard::Shard;
use crate::shard::times;
use narad_core::ids::{PartitionIndex, PartitionKey};
use narad_core::meta::Topic;
use narad_core::routing::{Here, Route, Wish};
use narad_storage::{Batch, Record};
use std::rc::Rc;
use std::time::Instant;

/// Appends the batch here if it is as simple as that: where no partition is named, its records have no
/// keys, or it has one record.
///
/// # Errors
/// The batch when it does not go this way.
pub(crate) async fn direct(
    shard: &Rc<Shard>,
    name: &str,
    batch: Batch,
    named: Option<PartitionIndex>,
) -> Result<Vec<Placed>, Vec<Record>> {
    let began = Instant::now();
    let Some(partition) = place(shard, name, &batch, named) else {
        return Err(batch.to_records());
    };
    let (records, bytes) = (batch.len(), batch.content_len());
    let index = partition.key().partition;
    let placed = match partition.append(batch, None).await {
        Ok(appended) => (0u64..)
            .take(records)
            .map(|n| Placed::Committed {
                partition: index,
                offset: appended.base.plus(n),
            })
            .collect(),
        Err(unappended) => match unappended.records {
            Some(back) => {
                let rerouted = &shard.ctx.metrics.rerouted_records;
                rerouted.inc_by(records as u64);
                return Err(back);
            }
            None => vec![Placed::Refused(unappended.fault); records],
        },
    };
    let refused = matches!(placed.first(), Some(Placed::Refused(_)));
    count(shard, &placed, if refused { 0 } else { bytes }, began);
    Ok(placed)
}

/// The one open partition of this shard that takes all of the records.
fn place(
    shard: &Rc<Shard>,
    name: &str,
    batch: &Batch,
    named: Option<PartitionIndex>,
) -> Option<Rc<crate::shard::partition::Partition>> {
    let state = shard.ctx.state();
    let topic = state.topics.get(state.names.get(name)?)?;
    let bytes = batch.content_len();
    if bytes > PUT_BYTES || batch.largest() > topic.settings.max_record_bytes as usize {
        return None;
    }
    let ((earliest, latest), now) = (batch.times(), wall_ms());
    if ![earliest, latest]
        .iter()
        .all(|time| times::fits(*time, &topic.settings, now))
    {
        return None;
    }
    let index = target(shard, &state, topic, batch, named)?;
    let key = PartitionKey {
        topic: topic.id,
        partition: index,
    };
    if !shard.is_mine(key) {
        return None;
    }
    shard.known_slot(key)?.usable()
}

fn target(
    shard: &Rc<Shard>,
    state: &narad_core::meta::MetaState,
    topic: &Topic,
    batch: &Batch,
    named: Option<PartitionIndex>,
) -> Option<PartitionIndex> {
    let open = |index: PartitionIndex| {
        topic.partitions[index.0 as usize]
            .target
            .as_ref()
            .is_none_or(|target| target.handoff.is_none())
    };
    let here = Here {
        state,
        topic,
        node: &shard.ctx.id,
        shard: shard.index,
        shards: u32::try_from(shard.ctx.shards.len()).expect("shards fit u32"),
        open: &open,
    };
    let mut sticky = shard.sticky.borrow_mut();
    let sticky = sticky.entry(topic.id).or_default();
    let key = batch.get(0)?.key;
    let wish = match (named, key) {
        (Some(index), _) if index.0 as usize >= topic.partitions.len() => return None,
        (Some(index), _) => Wish::Pinned(index),
        (None, None) => Wish::Any,
        (None, Some(key)) => Wish::Keyed(key),
    };
    let unkeyed = if wish == Wish::Any {
        batch.content_len() as u64
    } else {
        0
    };
    match here.route(wish, unkeyed, sticky) {
        Route::Append(index) => Some(index),
        Route::Wal { .. } | Route::UnknownPartition { .. } => None,
    }
}
