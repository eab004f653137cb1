//! The short way of a produce: a batch that goes into one open partition of the shard that took it.
//!
//! What this file keeps true: the batch is queued as one frame before anything is awaited, so it needs
//! no task of its own: whoever drops the call cuts nothing in half. Whatever is not as simple goes
//! back untouched.

use crate::shard::limits::PUT_BYTES;
use crate::shard::partition::record_bytes;
use crate::shard::produce::{Placed, count, may_take};
use crate::shard::shard::Shard;
use narad_core::ids::{PartitionIndex, PartitionKey, WallMs};
use narad_core::meta::Topic;
use narad_core::routing::{Here, Route, Wish};
use narad_storage::Record;
use std::rc::Rc;
use std::time::Instant;

/// How it went.
pub(crate) enum Direct {
    /// Done; one outcome a record.
    Placed(Vec<Placed>),
    /// Not this way; the records are as they came, but for their time.
    Elsewhere(Vec<Record>),
}

/// Appends the batch here if it is as simple as that.
pub(crate) async fn direct(
    shard: &Rc<Shard>,
    name: &str,
    mut records: Vec<Record>,
    named: Option<PartitionIndex>,
) -> Direct {
    let began = Instant::now();
    let bytes: usize = records.iter().map(record_bytes).sum();
    let place = place(shard, name, &records, (bytes, named));
    let Some(partition) = place else {
        return Direct::Elsewhere(records);
    };
    let now = crate::clock::wall_ms();
    for record in &mut records {
        if record.time == WallMs(0) {
            record.time = now;
        }
    }
    let records_count = records.len();
    let index = partition.key().partition;
    match partition.append(records, None).await {
        Ok(appended) => {
            let placed = (0u64..)
                .take(records_count)
                .map(|n| Placed::Committed {
                    partition: index,
                    offset: appended.base.plus(n),
                })
                .collect::<Vec<_>>();
            count(shard, &placed, bytes, began);
            Direct::Placed(placed)
        }
        Err(unappended) => match unappended.records {
            Some(records) => {
                let rerouted = &shard.ctx.metrics.rerouted_records;
                rerouted.inc_by(records.len() as u64);
                Direct::Elsewhere(records)
            }
            None => {
                let placed = vec![Placed::Refused(*unappended.fault); records_count];
                count(shard, &placed, bytes, began);
                Direct::Placed(placed)
            }
        },
    }
}

/// The one open partition of this shard that takes all of the records.
fn place(
    shard: &Rc<Shard>,
    name: &str,
    records: &[Record],
    (bytes, named): (usize, Option<PartitionIndex>),
) -> Option<Rc<crate::shard::partition::Partition>> {
    let state = shard.ctx.state();
    let topic = state.topics.get(state.names.get(name)?)?;
    let whole = !records.is_empty() && bytes <= PUT_BYTES;
    if !whole || records.iter().any(|record| !may_take(topic, record)) {
        return None;
    }
    let index = target(shard, &state, topic, records, (bytes, named))?;
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
    records: &[Record],
    (bytes, named): (usize, Option<PartitionIndex>),
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
    let wish = match (named, &records[0].key) {
        (Some(index), _) if index.0 as usize >= topic.partitions.len() => return None,
        (Some(index), _) => Wish::Pinned(index),
        (None, None) if records.iter().all(|record| record.key.is_none()) => Wish::Any,
        // Several keys go to several partitions, mostly.
        (None, Some(key)) if records.len() == 1 => Wish::Keyed(key),
        (None, _) => return None,
    };
    let unkeyed = if wish == Wish::Any { bytes as u64 } else { 0 };
    match here.route(wish, unkeyed, sticky) {
        Route::Append(index) => Some(index),
        Route::Wal { .. } | Route::UnknownPartition { .. } => None,
    }
}
