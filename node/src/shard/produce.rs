//! Where produced records go: their partition here when it is open, another open partition of the
//! topic here when it is not, and this shard's ingress WAL otherwise.
//!
//! What this file keeps true: a call ends after durable group commits, never waits for a move and
//! never fails because of one; a record that was refused before anything was written, or written to
//! a partition that changed hands before the ack, goes on to the next place; one whose write failed
//! with an unknown outcome is reported as such. The caller runs this in a task of its own.

use crate::clock::wall_ms;
use crate::messages::{ShardRequest, Unappended};
use crate::metrics::{ProduceLabel, ProduceOutcome};
use crate::shard::faults;
use crate::shard::limits::{PUT_BYTES, REROUTES_MAX};
use crate::shard::lookup::lookup;
use crate::shard::partition::record_bytes;
use crate::shard::shard::Shard;
use crate::shard::times;
use futures::future::join_all;
use narad_core::ids::{Offset, PartitionIndex, PartitionKey, TopicId, WallMs};
use narad_core::meta::Topic;
use narad_core::routing::{Here, Route, Wish};
use narad_storage::{Record, WalEntry};
use narad_wire::error::WireFault;
use narad_wire::limits::BATCH_MAX_RECORDS;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// What became of one record.
#[derive(Clone, Debug)]
pub(crate) enum Placed {
    /// Appended here.
    Committed {
        /// To this partition.
        partition: PartitionIndex,
        /// At this offset.
        offset: Offset,
    },
    /// Durable in the ingress WAL; delivered to its partition's owner later.
    Accepted,
    /// Not taken. Boxed: most batches have no refusal, and an outcome for each record.
    Refused(Box<WireFault>),
}

/// A record with its place in the call.
type Item = (usize, Record);

/// Where the records of one call may go.
#[derive(Clone, Copy)]
struct To {
    /// The partition that the client named.
    named: Option<PartitionIndex>,
    /// Nodes that have passed them on already.
    hops: u8,
}

/// Records of one call that go into one partition here.
struct Direct {
    partition: PartitionIndex,
    items: Vec<Item>,
}

/// Places every record of a call, which `hops` other nodes have passed on, and says where.
pub(crate) async fn produce(
    shard: &Rc<Shard>,
    name: &str,
    records: Vec<Record>,
    named: Option<PartitionIndex>,
    hops: u8,
) -> Result<Vec<Placed>, WireFault> {
    let began = Instant::now();
    let topic = lookup(&shard.ctx, name).await?;
    if let Some(index) = named
        && index.0 as usize >= topic.partitions.len()
    {
        let count = topic.partitions.len();
        return Err(faults::unknown_partition(name, index, count));
    }
    let mut placed: Vec<Option<Placed>> = vec![None; records.len()];
    let sizes: Vec<usize> = records.iter().map(record_bytes).collect();
    let items = check(&topic, records, &mut placed);
    settle(
        &mut placed,
        place(shard, &topic, items, To { named, hops }).await,
    );
    let placed: Vec<Placed> = placed
        .into_iter()
        .map(|one| {
            one.unwrap_or_else(|| {
                Placed::Refused(faults::internal("produce", "a record has no outcome").into())
            })
        })
        .collect();
    let taken = placed.iter().zip(sizes);
    let taken = taken.filter(|(one, _)| !matches!(one, Placed::Refused(_)));
    let bytes = taken.map(|(_, bytes)| bytes).sum();
    count(shard, &placed, bytes, began);
    Ok(placed)
}

/// Refuses records over the topic's limit or of a time that cannot be meant, and gives a time to those
/// without one.
fn check(topic: &Topic, records: Vec<Record>, placed: &mut [Option<Placed>]) -> Vec<Item> {
    let limit = topic.settings.max_record_bytes as usize;
    let now = wall_ms();
    let mut items = Vec::with_capacity(records.len());
    for (index, mut record) in records.into_iter().enumerate() {
        let size = record_bytes(&record);
        if size > limit {
            let fault = faults::too_large("bytes of a record", size, limit).hint(
                "split it, or keep it elsewhere and send its name; a topic's limit is set when it \
                 is created (--max-record-bytes)",
            );
            placed[index] = Some(Placed::Refused(fault.into()));
            continue;
        }
        if record.time == WallMs(0) {
            record.time = now;
        }
        if !times::fits(record.time, &topic.settings, now) {
            let fault = times::refusal(record.time, &topic.settings, now);
            placed[index] = Some(Placed::Refused(fault.into()));
            continue;
        }
        items.push((index, record));
    }
    items
}

/// Appends here what can be appended here, and keeps the rest in the WAL.
async fn place(shard: &Rc<Shard>, topic: &Topic, mut items: Vec<Item>, to: To) -> Outcomes {
    let mut outcomes = Vec::new();
    let mut closed: Vec<PartitionIndex> = Vec::new();
    while !items.is_empty() {
        let may_append = closed.len() < REROUTES_MAX;
        let (direct, kept) = shard.route(topic, items, to.named, &closed, may_append);
        let direct = join_all(
            direct
                .into_iter()
                .map(|group| append(shard, topic.id, group)),
        );
        let (direct, kept) = futures::join!(direct, keep(shard, topic, to, kept));
        outcomes.extend(kept);
        items = Vec::new();
        for (partition, done, back) in direct {
            outcomes.extend(done);
            if !back.is_empty() {
                let count = back.len() as u64;
                shard.ctx.metrics.rerouted_records.inc_by(count);
                closed.push(partition);
                items.extend(back);
            }
        }
    }
    outcomes
}

type Outcomes = Vec<(usize, Placed)>;

fn settle(placed: &mut [Option<Placed>], outcomes: Outcomes) {
    for (index, outcome) in outcomes {
        placed[index] = Some(outcome);
    }
}

/// Counts the outcomes of a call, in which `bytes` were taken.
pub(crate) fn count(shard: &Shard, placed: &[Placed], bytes: usize, began: Instant) {
    let metrics = &shard.ctx.metrics;
    for (outcome, n) in [
        (
            ProduceOutcome::Committed,
            placed
                .iter()
                .filter(|p| matches!(p, Placed::Committed { .. }))
                .count(),
        ),
        (
            ProduceOutcome::Accepted,
            placed
                .iter()
                .filter(|p| matches!(p, Placed::Accepted))
                .count(),
        ),
        (
            ProduceOutcome::Refused,
            placed
                .iter()
                .filter(|p| matches!(p, Placed::Refused(_)))
                .count(),
        ),
    ] {
        if n > 0 {
            metrics
                .produced_records
                .get_or_create(&ProduceLabel { outcome })
                .inc_by(n as u64);
        }
    }
    metrics.produced_bytes.inc_by(bytes as u64);
    let took = began.elapsed();
    metrics.produce_seconds.observe(took.as_secs_f64());
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    shard.ctx.pace.foreground.record(us);
}

/// Appends a group to its partition here, part by part in order. What may go elsewhere comes back:
/// after the first part that does, so does all the rest.
async fn append(
    shard: &Rc<Shard>,
    topic: TopicId,
    group: Direct,
) -> (PartitionIndex, Outcomes, Vec<Item>) {
    let partition = group.partition;
    let key = PartitionKey { topic, partition };
    let (mut outcomes, mut back) = (Vec::new(), Vec::new());
    for part in split(group.items, |(_, record)| record_bytes(record)) {
        if !back.is_empty() {
            back.extend(part);
            continue;
        }
        let (indexes, records): (Vec<usize>, Vec<Record>) = part.into_iter().unzip();
        match append_to(shard, key, records).await {
            Ok(base) => outcomes.extend((0u64..).zip(indexes).map(|(n, index)| {
                let offset = base.plus(n);
                (index, Placed::Committed { partition, offset })
            })),
            Err(Unappended {
                fault,
                records: None,
            }) => {
                let refused = |index| (index, Placed::Refused(WireFault::clone(&fault).into()));
                outcomes.extend(indexes.into_iter().map(refused));
            }
            Err(Unappended {
                fault,
                records: Some(records),
            }) => {
                tracing::debug!(%key, %fault, "a batch goes elsewhere");
                back.extend(indexes.into_iter().zip(records));
            }
        }
    }
    (partition, outcomes, back)
}

async fn append_to(
    shard: &Rc<Shard>,
    key: PartitionKey,
    records: Vec<Record>,
) -> Result<Offset, Unappended> {
    if shard.is_mine(key) {
        return shard.append_here(key, records).await;
    }
    shard
        .ctx
        .shard(key)
        .ask(|answer| ShardRequest::Append {
            key,
            records,
            answer,
        })
        .await
        .unwrap_or_else(|_| Err(Unappended::gone(faults::shutting_down())))
}

/// Puts records into the ingress WAL, or lets another node take them when this one is leaving.
async fn keep(shard: &Rc<Shard>, topic: &Topic, to: To, kept: Vec<(usize, WalEntry)>) -> Outcomes {
    let mut outcomes = Vec::with_capacity(kept.len());
    for part in split(kept, |(_, entry)| record_bytes(&entry.record)) {
        let (indexes, entries): (Vec<usize>, Vec<WalEntry>) = part.into_iter().unzip();
        let placed = keep_part(shard, topic, to, entries).await;
        outcomes.extend(indexes.into_iter().zip(placed));
    }
    outcomes
}

async fn keep_part(
    shard: &Rc<Shard>,
    topic: &Topic,
    to: To,
    entries: Vec<WalEntry>,
) -> Vec<Placed> {
    let count = entries.len();
    if shard.is_leaving() {
        let records: Vec<Record> = entries.into_iter().map(|entry| entry.record).collect();
        return shard
            .forward(topic.name.as_str(), to.named, &records, to.hops)
            .await;
    }
    if let Some(reason) = shard.wal().failed() {
        return vec![Placed::Refused(faults::wal_recovering(&reason).into()); count];
    }
    let outcome = match shard.put_into_wal(entries).await {
        Ok(_) => Placed::Accepted,
        Err(error) => Placed::Refused(faults::wal_failed(&error).into()),
    };
    vec![outcome; count]
}

/// Splits what goes into one log at [`PUT_BYTES`] of content, in order. A record over that is a part
/// of its own, which the log refuses.
fn split<T>(items: Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut filled = 0;
    for item in items {
        let size = bytes(&item);
        if !part.is_empty() && (filled + size > PUT_BYTES || part.len() >= BATCH_MAX_RECORDS) {
            parts.push(std::mem::take(&mut part));
            filled = 0;
        }
        filled += size;
        part.push(item);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

impl Shard {
    /// Appends to a partition of this shard; gives the records back when nothing was written.
    pub(crate) async fn append_here(
        self: &Rc<Self>,
        key: PartitionKey,
        records: Vec<Record>,
    ) -> Result<Offset, Unappended> {
        match self.open_for_use(key).await {
            Ok(partition) => partition.append(records.into(), None).await.map(|a| a.base),
            Err(fault) => Err(Unappended::untouched(fault, records)),
        }
    }

    /// Says for each record whether it goes into a partition here or into the WAL. `closed` have
    /// refused this call already.
    fn route(
        &self,
        topic: &Topic,
        items: Vec<Item>,
        named: Option<PartitionIndex>,
        closed: &[PartitionIndex],
        may_append: bool,
    ) -> (Vec<Direct>, Vec<(usize, WalEntry)>) {
        let state = self.ctx.state();
        // The latest view: an assignment may have changed since the call began.
        let latest = state.topics.get(&topic.id).cloned();
        let topic = latest.as_deref().unwrap_or(topic);
        let open = |index: PartitionIndex| {
            may_append
                && !closed.contains(&index)
                && topic.partitions[index.0 as usize]
                    .target
                    .as_ref()
                    .is_none_or(|target| target.handoff.is_none())
        };
        let here = Here {
            state: &state,
            topic,
            node: &self.ctx.id,
            shard: self.index,
            shards: u32::try_from(self.ctx.shards.len()).expect("shards fit u32"),
            open: &open,
        };
        let unkeyed: usize = items
            .iter()
            .filter(|(_, record)| record.key.is_none())
            .map(|(_, record)| record_bytes(record))
            .sum();
        let mut sticky = self.sticky.borrow_mut();
        let sticky = sticky.entry(topic.id).or_default();
        let mut any = None;
        let mut direct: BTreeMap<PartitionIndex, Direct> = BTreeMap::new();
        let mut kept = Vec::new();
        for (index, record) in items {
            let route = match (named, &record.key) {
                (Some(partition), _) => here.route(Wish::Pinned(partition), 0, sticky),
                (None, Some(key)) => here.route(Wish::Keyed(key), 0, sticky),
                (None, None) => {
                    *any.get_or_insert_with(|| here.route(Wish::Any, unkeyed as u64, sticky))
                }
            };
            let (partition, pinned) = match route {
                Route::Append(partition) => {
                    let group = direct.entry(partition).or_insert_with(|| Direct {
                        partition,
                        items: Vec::new(),
                    });
                    group.items.push((index, record));
                    continue;
                }
                Route::Wal { partition, pinned } => (partition, pinned),
                Route::UnknownPartition { .. } => {
                    unreachable!("the index was checked, and topics do not shrink")
                }
            };
            let entry = WalEntry {
                topic: topic.id,
                partition,
                pinned,
                record,
            };
            kept.push((index, entry));
        }
        (direct.into_values().collect(), kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_at_the_bounds_and_keeps_its_order() {
        assert!(split(Vec::<usize>::new(), |n| *n).is_empty());
        let mib = 1 << 20;
        assert_eq!(split(vec![mib; 4], |n| *n), [vec![mib; 2], vec![mib; 2]]);
        let numbered: Vec<usize> = (0..10_000).collect();
        let parts = split(numbered.clone(), |_| 408);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.len() * 408 <= PUT_BYTES));
        assert_eq!(parts.concat(), numbered);
        // Records of no bytes are bounded by their number.
        let parts = split(vec![0; BATCH_MAX_RECORDS + 1], |n| *n);
        assert_eq!(parts[0].len(), BATCH_MAX_RECORDS);
        // One that is too large alone does not take others with it.
        assert_eq!(split(vec![1, PUT_BYTES + 1, 1], |n| *n).len(), 3);
    }
}
