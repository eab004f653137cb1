//! Calls to other nodes.
//!
//! What this file keeps true: every call has a deadline; a connection that is seen broken is
//! dropped from the pool; an answer that was lost is reported as unknown, never as a refusal.

use crate::messages::{Delivered, LeaseRef, PartitionStat, ReplayBatch, ReplayRange, Settle};
use crate::shard::produce::Placed;
use narad_core::ids::{
    CopyId, Epoch, Nonce, Offset, PartitionIndex, PartitionKey, TopicId, WalId, WalSeq,
};
use narad_core::meta::Member;
use narad_schema::client_capnp::{node, receipt};
use narad_schema::peer_capnp::peer;
use narad_storage::{Record, RecordRef as StoredRef};
use narad_wire::client::MovesView;
use narad_wire::convert::{
    RecordRef, check, list_len, read_fault, record_ref, write_partition_key, write_record,
};
use narad_wire::error::{WireError, WireFault};
use narad_wire::pool::PeerPool;
use narad_wire::rpc::{call, records_room, with_room};
use std::sync::Arc;
use std::time::Duration;

/// What a consumer asks another node for.
#[derive(Clone, Debug)]
pub(crate) struct RemoteConsume {
    /// The topic's name.
    pub(crate) topic: String,
    /// Most records.
    pub(crate) max_records: usize,
    /// Most bytes.
    pub(crate) max_bytes: usize,
    /// How long to park there, in ms.
    pub(crate) wait_ms: u32,
    /// Visibility, 0 for the topic's.
    pub(crate) visibility_ms: u32,
}

fn note<T>(pool: &PeerPool, member: &Member, result: Result<T, WireError>) -> Result<T, WireError> {
    if let Err(error) = &result
        && error.connection_lost()
    {
        pool.failed(&member.addr);
    }
    result
}

async fn peer_of(pool: &PeerPool, member: &Member) -> Result<peer::Client, WireError> {
    pool.peer(&member.id, &member.addr).await
}

async fn node_of(pool: &PeerPool, member: &Member) -> Result<node::Client, WireError> {
    pool.node(&member.addr).await
}

/// Whether a node serves a copy.
pub(crate) async fn serves(
    pool: &PeerPool,
    member: &Member,
    copy: CopyId,
    deadline: Duration,
) -> Result<bool, WireError> {
    let mut request = peer_of(pool, member).await?.serves_request();
    write_partition_key(request.get().init_partition(), copy.key);
    request.get().set_epoch(copy.epoch.0);
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        Ok(answer.get_serves())
    })
    .await;
    note(pool, member, result)
}

/// Appends dispatched records at their owner: (end, duplicates).
pub(crate) async fn append(
    pool: &PeerPool,
    member: &Member,
    copy: CopyId,
    wal: WalId,
    records: &[(WalSeq, Arc<Record>)],
    deadline: Duration,
) -> Result<(Offset, u32), WireError> {
    let bytes = records
        .iter()
        .map(|(_, record)| Record::as_ref(record).content_len());
    // The sequences' numbers lie beside the records.
    let room = records_room(records.len(), bytes.sum::<usize>() + 8 * records.len());
    let peer = peer_of(pool, member).await?;
    let mut request = with_room(room, || peer.append_request());
    {
        let mut params = request.get();
        write_partition_key(params.reborrow().init_partition(), copy.key);
        params.set_epoch(copy.epoch.0);
        params.set_wal(wal.0);
        let mut seqs = params.reborrow().init_seqs(list_len(records.len()));
        for (index, (seq, _)) in (0u32..).zip(records) {
            seqs.set(index, seq.0);
        }
        let mut list = params.init_records(list_len(records.len()));
        for (index, (_, record)) in (0u32..).zip(records) {
            write_record(list.reborrow().get(index), as_wire(Record::as_ref(record)));
        }
    }
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        Ok((Offset(answer.get_end()), answer.get_duplicates()))
    })
    .await;
    note(pool, member, result)
}

/// Records that a node is to take as if they had been produced there.
pub(crate) struct Produce<'a> {
    /// The topic's name.
    pub(crate) topic: &'a str,
    /// The partition that the client named.
    pub(crate) named: Option<PartitionIndex>,
    /// The records.
    pub(crate) records: &'a [Record],
    /// How many nodes have passed them on, this one included.
    pub(crate) hops: u8,
}

/// Lets a node take records; one outcome a record.
pub(crate) async fn produce(
    pool: &PeerPool,
    member: &Member,
    produce: Produce<'_>,
    deadline: Duration,
) -> Result<Vec<Placed>, WireError> {
    let Produce {
        topic,
        named,
        records,
        hops,
    } = produce;
    let bytes = records.iter().map(|record| record.as_ref().content_len());
    let room = records_room(records.len(), bytes.sum());
    let node = node_of(pool, member).await?;
    let mut request = with_room(room, || node.produce_request());
    {
        let mut params = request.get();
        params.set_topic(topic);
        params.set_hops(hops);
        // Topics have fewer partitions than that.
        let index = named.map_or(-1, |index| i32::try_from(index.0).unwrap_or(i32::MAX));
        params.set_partition(index);
        let mut list = params.init_records(list_len(records.len()));
        for (index, record) in (0u32..).zip(records) {
            write_record(list.reborrow().get(index), as_wire(record.as_ref()));
        }
    }
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        answer.get_results()?.iter().map(read_placed).collect()
    })
    .await;
    note(pool, member, result)
}

fn read_placed(
    result: narad_schema::client_capnp::produce_result::Reader<'_>,
) -> Result<Placed, WireError> {
    use narad_schema::client_capnp::produce_result::Which;
    Ok(match result.which()? {
        Which::Committed(committed) => Placed::Committed {
            partition: PartitionIndex(committed.get_partition()),
            offset: Offset(committed.get_offset()),
        },
        Which::Accepted(()) => Placed::Accepted,
        Which::Error(fault) => Placed::Refused(read_fault(fault?)?.into()),
    })
}

/// A stored record as the wire borrows it.
pub(crate) fn as_wire(record: StoredRef<'_>) -> RecordRef<'_> {
    RecordRef {
        time: record.time,
        key: record.key,
        value: record.value,
    }
}

/// Figures of a node's open partitions of a topic.
pub(crate) async fn local_partitions(
    pool: &PeerPool,
    member: &Member,
    topic: TopicId,
    deadline: Duration,
) -> Result<Vec<PartitionStat>, WireError> {
    let mut request = peer_of(pool, member).await?.local_partitions_request();
    request.get().set_topic(topic.0);
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        let stats = answer.get_partitions()?.iter().map(|stat| PartitionStat {
            copy: CopyId {
                key: PartitionKey {
                    topic,
                    partition: PartitionIndex(stat.get_index()),
                },
                epoch: Epoch(stat.get_epoch()),
            },
            start: Offset(stat.get_start()),
            hwm: Offset(stat.get_hwm()),
            frontier: Offset(stat.get_frontier()),
            bytes: stat.get_bytes(),
        });
        Ok(stats.collect())
    })
    .await;
    note(pool, member, result)
}

/// The moves into a node.
pub(crate) async fn local_moves(
    pool: &PeerPool,
    member: &Member,
    deadline: Duration,
) -> Result<MovesView, WireError> {
    let request = peer_of(pool, member).await?.local_moves_request();
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        serde_json::from_slice(answer.get_moves()?).map_err(|error| WireError::Protocol {
            message: format!("moves that cannot be read: {error}"),
        })
    })
    .await;
    note(pool, member, result)
}

/// Leases records of a node's own partitions. The receipt stands for the answer: the node gives the
/// leases back by itself when the connection ends while it is held.
pub(crate) async fn consume(
    pool: &PeerPool,
    member: &Member,
    wanted: &RemoteConsume,
    deadline: Duration,
) -> Result<(Vec<Delivered>, Option<receipt::Client>), WireError> {
    let mut request = node_of(pool, member).await?.consume_request();
    {
        let mut params = request.get();
        params.set_topic(&wanted.topic);
        params.set_max_records(u32::try_from(wanted.max_records).unwrap_or(u32::MAX));
        params.set_max_bytes(u32::try_from(wanted.max_bytes).unwrap_or(u32::MAX));
        params.set_wait_ms(wanted.wait_ms);
        params.set_visibility_ms(wanted.visibility_ms);
        params.set_local_only(true);
    }
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        let records = answer.get_records()?.iter().map(read_delivery);
        let records = records.collect::<Result<_, WireError>>()?;
        // A node of an earlier version sends none.
        let receipt = answer.has_receipt().then(|| answer.get_receipt());
        Ok((records, receipt.transpose()?))
    })
    .await;
    note(pool, member, result)
}

fn read_delivery(
    delivery: narad_schema::client_capnp::delivery::Reader<'_>,
) -> Result<Delivered, WireError> {
    let lease = delivery.get_lease()?;
    Ok(Delivered {
        lease: LeaseRef {
            partition: PartitionIndex(lease.get_partition()),
            offset: Offset(lease.get_offset()),
            nonce: Nonce(lease.get_nonce()),
        },
        record: read_stored(delivery.get_record()?)?.into(),
        deliveries: delivery.get_deliveries(),
    })
}

/// A record as it is stored.
pub(crate) fn read_stored(
    reader: narad_schema::common_capnp::record::Reader<'_>,
) -> Result<Record, WireError> {
    let record = record_ref(reader)?;
    Ok(Record {
        time: record.time,
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.to_vec(),
    })
}

/// Writes leases into a request.
fn write_leases(
    mut list: capnp::struct_list::Builder<'_, narad_schema::client_capnp::lease::Owned>,
    leases: &[LeaseRef],
) {
    for (index, lease) in (0u32..).zip(leases) {
        let mut builder = list.reborrow().get(index);
        builder.set_partition(lease.partition.0);
        builder.set_offset(lease.offset.0);
        builder.set_nonce(lease.nonce.0);
    }
}

type LeaseResults<'a> =
    capnp::struct_list::Reader<'a, narad_schema::client_capnp::lease_result::Owned>;

fn read_results(list: LeaseResults<'_>) -> Result<Vec<Result<(), WireFault>>, WireError> {
    use narad_schema::client_capnp::lease_result::Which;
    list.iter()
        .map(|result| match result.which()? {
            Which::Ok(()) => Ok(Ok(())),
            Which::Error(fault) => Ok(Err(read_fault(fault?)?)),
        })
        .collect()
}

/// Acks, nacks or extends leases of a node's own partitions; one result a lease.
pub(crate) async fn settle(
    pool: &PeerPool,
    member: &Member,
    topic: &str,
    settle: Settle,
    leases: &[LeaseRef],
    deadline: Duration,
) -> Result<Vec<Result<(), WireFault>>, WireError> {
    let node = node_of(pool, member).await?;
    let count = list_len(leases.len());
    let narrow = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
    let result = match settle {
        Settle::Ack => {
            let mut request = node.ack_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_local_only(true);
            write_leases(params.init_leases(count), leases);
            call(deadline, request.send(), |answer| {
                check(answer.has_error(), answer.get_error())?;
                read_results(answer.get_results()?)
            })
            .await
        }
        Settle::Nack { .. } | Settle::Undeliver => {
            let delay_ms = match settle {
                Settle::Nack { delay_ms } => delay_ms,
                Settle::Ack | Settle::Undeliver | Settle::Extend { .. } => 0,
            };
            let mut request = node.nack_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_local_only(true);
            params.set_delay_ms(narrow(delay_ms));
            write_leases(params.init_leases(count), leases);
            call(deadline, request.send(), |answer| {
                check(answer.has_error(), answer.get_error())?;
                read_results(answer.get_results()?)
            })
            .await
        }
        Settle::Extend { visibility_ms } => {
            let mut request = node.extend_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_local_only(true);
            params.set_visibility_ms(narrow(visibility_ms));
            write_leases(params.init_leases(count), leases);
            call(deadline, request.send(), |answer| {
                check(answer.has_error(), answer.get_error())?;
                read_results(answer.get_results()?)
            })
            .await
        }
    };
    note(pool, member, result)
}

/// Reads from a node's own partition.
pub(crate) async fn replay(
    pool: &PeerPool,
    member: &Member,
    topic: &str,
    range: ReplayRange,
    deadline: Duration,
) -> Result<ReplayBatch, WireError> {
    let mut request = node_of(pool, member).await?.replay_request();
    {
        let mut params = request.get();
        params.set_topic(topic);
        params.set_partition(range.partition.0);
        params.set_from(range.from.0);
        params.set_from_time_ms(range.from_time.0);
        params.set_to(range.to.0);
        params.set_max_records(u32::try_from(range.max_records).unwrap_or(u32::MAX));
        params.set_max_bytes(u32::try_from(range.max_bytes).unwrap_or(u32::MAX));
        params.set_local_only(true);
    }
    let result = call(deadline, request.send(), |answer| {
        check(answer.has_error(), answer.get_error())?;
        let records = answer
            .get_records()?
            .iter()
            .map(|one| {
                let record = read_stored(one.get_record()?)?;
                Ok((Offset(one.get_offset()), record.into()))
            })
            .collect::<Result<_, WireError>>()?;
        Ok(ReplayBatch {
            records,
            next: Offset(answer.get_next()),
            start: Offset(answer.get_start()),
            hwm: Offset(answer.get_hwm()),
            skipped: answer.get_skipped(),
        })
    })
    .await;
    note(pool, member, result)
}
