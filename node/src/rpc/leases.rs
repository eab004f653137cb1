//! `ack`, `nack`, `extend` and `replay`: each goes to the owner of the partition.
//!
//! What this file keeps true: one result a lease, in the order asked; a call is handed on at most
//! once (`localOnly`), so that nodes with different views never send it in circles.

use crate::messages::{LeaseRef, ReplayBatch, ReplayRange, Settle, ShardRequest};
use crate::rpc::node::NodeServer;
use crate::rpc::reply::{malformed, stopping, text};
use crate::shard::faults;
use crate::shard::limits::{ANSWERS_OWED_MAX, CALL_COST_BYTES, PEER_CALL_MS};
use crate::shard::lookup::lookup;
use crate::shard::peers::{self, as_wire};
use crate::shard::shard::Shard;
use futures::future::{Either, join_all};
use narad_core::defaults::VISIBILITY_MAX_MS;
use narad_core::ids::{Nonce, Offset, PartitionIndex, PartitionKey, ShardIndex, WallMs};
use narad_core::meta::{Member, Topic};
use narad_schema::client_capnp::{lease, lease_result, node};
use narad_wire::convert::{list_len, write_fault, write_record};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_RECORDS, READ_MAX_BYTES};
use narad_wire::rpc::deliveries_room;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// One result a lease.
pub(crate) type Settled = Vec<Result<(), WireFault>>;

fn read_leases(
    list: capnp::struct_list::Reader<'_, lease::Owned>,
) -> Result<Vec<LeaseRef>, WireFault> {
    let count = list.len() as usize;
    if count > BATCH_MAX_RECORDS {
        return Err(faults::too_large(
            "leases in a call",
            count,
            BATCH_MAX_RECORDS,
        ));
    }
    Ok(list
        .iter()
        .map(|lease| LeaseRef {
            partition: PartitionIndex(lease.get_partition()),
            offset: Offset(lease.get_offset()),
            nonce: Nonce(lease.get_nonce()),
        })
        .collect())
}

/// A length of time that a caller names for its leases, in ms.
fn bounded(name: &str, ms: u32, least: u32) -> Result<u64, WireFault> {
    let ms = u64::from(ms);
    if ms < u64::from(least) || ms > VISIBILITY_MAX_MS {
        return Err(faults::invalid(
            format!("{name} must be {least} to {VISIBILITY_MAX_MS}, not {ms}"),
            "name a length of time in ms; a record that is out longer is better left to come again",
        ));
    }
    Ok(ms)
}

/// The visibility that a consumer names; 0: the topic's.
pub(crate) fn visibility(ms: u32) -> Result<u32, WireFault> {
    bounded("visibilityMs", ms, 0).map(|_| ms)
}

/// What a call asks to be done with leases.
struct Asked {
    topic: String,
    settle: Settle,
    leases: Vec<LeaseRef>,
    local_only: bool,
}

/// Copied out of its message, which is gone when the call waits for its turn.
async fn settle(server: &NodeServer, asked: Asked) -> Result<Settled, WireFault> {
    let cost = asked.topic.len() + size_of_val(asked.leases.as_slice()) + CALL_COST_BYTES;
    let _room = server.shard.rooms.calls.enter(cost)?;
    let _permit = server.gate.enter().await?;
    route(&server.shard, asked).await
}

/// `ack`.
pub(crate) async fn ack(
    server: &NodeServer,
    params: node::AckParams,
) -> Result<Settled, WireFault> {
    let asked = {
        let params = params.get().map_err(malformed)?;
        Asked {
            topic: text(params.get_topic())?,
            settle: Settle::Ack,
            leases: read_leases(params.get_leases().map_err(malformed)?)?,
            local_only: params.get_local_only(),
        }
    };
    drop(params);
    settle(server, asked).await
}

/// `nack`.
pub(crate) async fn nack(
    server: &NodeServer,
    params: node::NackParams,
) -> Result<Settled, WireFault> {
    let asked = {
        let params = params.get().map_err(malformed)?;
        let delay_ms = bounded("delayMs", params.get_delay_ms(), 0)?;
        Asked {
            topic: text(params.get_topic())?,
            settle: Settle::Nack { delay_ms },
            leases: read_leases(params.get_leases().map_err(malformed)?)?,
            local_only: params.get_local_only(),
        }
    };
    drop(params);
    settle(server, asked).await
}

/// `extend`.
pub(crate) async fn extend(
    server: &NodeServer,
    params: node::ExtendParams,
) -> Result<Settled, WireFault> {
    let asked = {
        let params = params.get().map_err(malformed)?;
        let visibility_ms = bounded("visibilityMs", params.get_visibility_ms(), 1)?;
        Asked {
            topic: text(params.get_topic())?,
            settle: Settle::Extend { visibility_ms },
            leases: read_leases(params.get_leases().map_err(malformed)?)?,
            local_only: params.get_local_only(),
        }
    };
    drop(params);
    settle(server, asked).await
}

/// Where a lease's partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Shard(ShardIndex),
    Node(usize),
}

async fn route(shard: &Rc<Shard>, asked: Asked) -> Result<Settled, WireFault> {
    let Asked {
        topic: name,
        settle,
        leases,
        local_only,
    } = asked;
    let name = name.as_str();
    let topic = lookup(&shard.ctx, name).await?;
    let state = shard.ctx.state();
    let mut results: Vec<Option<Result<(), WireFault>>> = vec![None; leases.len()];
    let mut groups: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    let mut members: Vec<Arc<Member>> = Vec::new();
    for (index, lease) in leases.iter().enumerate() {
        let key = PartitionKey {
            topic: topic.id,
            partition: lease.partition,
        };
        let Some(assignment) = topic.partitions.get(lease.partition.0 as usize) else {
            let count = topic.partitions.len();
            results[index] = Some(Err(faults::unknown_partition(name, lease.partition, count)));
            continue;
        };
        if assignment.owner == shard.ctx.id {
            let place = Place::Shard(shard.ctx.shard_of(key));
            groups.entry(place).or_default().push(index);
            continue;
        }
        let owner = state.members.get(&assignment.owner);
        match owner.filter(|_| !local_only) {
            None => results[index] = Some(Err(faults::not_owner(&state, key))),
            Some(owner) => {
                let place = members.iter().position(|m| m.id == owner.id);
                let place = place.unwrap_or_else(|| {
                    members.push(owner.clone());
                    members.len() - 1
                });
                groups.entry(Place::Node(place)).or_default().push(index);
            }
        }
    }
    let asked = groups.into_iter().map(|(place, indexes)| {
        let part: Vec<LeaseRef> = indexes.iter().map(|index| leases[*index]).collect();
        let topic = &topic;
        let members = &members;
        async move {
            let settled = match place {
                Place::Shard(to) => settle_here(shard, to, topic, settle, part).await,
                Place::Node(to) => settle_there(shard, &members[to], name, settle, part).await,
            };
            (indexes, settled)
        }
    });
    for (indexes, settled) in join_all(asked).await {
        for (index, result) in indexes.into_iter().zip(settled) {
            results[index] = Some(result);
        }
    }
    Ok(results
        .into_iter()
        .map(|result| {
            result.unwrap_or_else(|| Err(faults::internal("settle", "no result for a lease")))
        })
        .collect())
}

async fn settle_here(
    shard: &Rc<Shard>,
    to: ShardIndex,
    topic: &Topic,
    settle: Settle,
    leases: Vec<LeaseRef>,
) -> Settled {
    let count = leases.len();
    let topic = topic.id;
    if to == shard.index {
        return shard.settle_leases(topic, settle, &leases);
    }
    shard.ctx.shards[to.0 as usize]
        .ask(|answer| ShardRequest::Settle {
            topic,
            settle,
            leases,
            answer,
        })
        .await
        .unwrap_or_else(|stopped| vec![Err(stopping(stopped)); count])
}

async fn settle_there(
    shard: &Rc<Shard>,
    member: &Member,
    topic: &str,
    settle: Settle,
    leases: Vec<LeaseRef>,
) -> Settled {
    let count = leases.len();
    let deadline = Duration::from_millis(PEER_CALL_MS);
    match peers::settle(&shard.pool, member, topic, settle, &leases, deadline).await {
        Ok(results) => results,
        Err(error) => vec![Err(error.into_fault()); count],
    }
}

/// Writes one result a lease.
pub(crate) fn fill(
    mut builder: capnp::struct_list::Builder<'_, lease_result::Owned>,
    settled: &Settled,
) {
    for (index, result) in (0u32..).zip(settled) {
        let mut one = builder.reborrow().get(index);
        match result {
            Ok(()) => one.set_ok(()),
            Err(fault) => write_fault(one.init_error(), fault),
        }
    }
}

/// `replay`.
pub(crate) async fn replay(
    server: &NodeServer,
    params: node::ReplayParams,
) -> Result<ReplayBatch, WireFault> {
    let (name, range, local_only) = {
        let params = params.get().map_err(malformed)?;
        let range = ReplayRange {
            partition: PartitionIndex(params.get_partition()),
            from: Offset(params.get_from()),
            from_time: WallMs(params.get_from_time_ms()),
            to: Offset(params.get_to()),
            max_records: (params.get_max_records() as usize).clamp(1, BATCH_MAX_RECORDS),
            max_bytes: (params.get_max_bytes() as usize).clamp(1, READ_MAX_BYTES),
        };
        (text(params.get_topic())?, range, params.get_local_only())
    };
    drop(params);
    let _room = server
        .shard
        .rooms
        .calls
        .enter(name.len() + CALL_COST_BYTES)?;
    let _permit = server.gate.enter().await?;
    server.line.room(ANSWERS_OWED_MAX).await;
    let shard = &server.shard;
    let topic = lookup(&shard.ctx, &name).await?;
    let key = PartitionKey {
        topic: topic.id,
        partition: range.partition,
    };
    let assignment = topic
        .partitions
        .get(range.partition.0 as usize)
        .ok_or_else(|| faults::unknown_partition(&name, range.partition, topic.partitions.len()))?;
    let state = shard.ctx.state();
    let asked = if assignment.owner == shard.ctx.id {
        Either::Left(async {
            shard
                .ctx
                .shard(key)
                .ask(|answer| ShardRequest::Replay { key, range, answer })
                .await
                .map_err(stopping)?
        })
    } else {
        let member = state
            .members
            .get(&assignment.owner)
            .filter(|_| !local_only)
            .ok_or_else(|| faults::not_owner(&state, key))?;
        Either::Right(async {
            let deadline = Duration::from_millis(crate::shard::limits::PEER_APPEND_MS);
            peers::replay(&shard.pool, member, &name, range, deadline)
                .await
                .map_err(narad_wire::error::WireError::into_fault)
        })
    };
    let batch = asked.await?;
    server.line.owe(replayed_bytes(&batch) as u64);
    Ok(batch)
}

fn replayed_bytes(batch: &ReplayBatch) -> usize {
    let bytes = batch.records.iter().map(|(_, record)| record.content_len());
    bytes.sum()
}

/// What a replayed batch takes in an answer, in bytes.
pub(crate) fn replay_room(batch: &ReplayBatch) -> usize {
    deliveries_room(batch.records.len(), replayed_bytes(batch))
}

/// Writes a replayed batch.
pub(crate) fn fill_replay(mut builder: node::replay_results::Builder<'_>, batch: &ReplayBatch) {
    builder.set_next(batch.next.0);
    builder.set_start(batch.start.0);
    builder.set_hwm(batch.hwm.0);
    builder.set_skipped(batch.skipped);
    let mut list = builder.init_records(list_len(batch.records.len()));
    for (index, (offset, record)) in (0u32..).zip(&batch.records) {
        let mut one = list.reborrow().get(index);
        one.set_offset(offset.0);
        write_record(one.init_record(), as_wire(record.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_wire::error::ErrorCode;

    #[test]
    fn times_of_leases_are_bounded_everywhere() {
        let max = u32::try_from(VISIBILITY_MAX_MS).expect("twelve hours");
        assert_eq!(bounded("visibilityMs", max, 1), Ok(VISIBILITY_MAX_MS));
        assert_eq!(bounded("delayMs", 0, 0), Ok(0));
        assert_eq!(visibility(0), Ok(0));
        let wrong = [
            bounded("visibilityMs", 0, 1).err(),
            bounded("delayMs", max + 1, 0).err(),
            visibility(max + 1).err(),
        ];
        for fault in wrong {
            assert_eq!(fault.map(|fault| fault.code), Some(ErrorCode::Invalid));
        }
    }
}
