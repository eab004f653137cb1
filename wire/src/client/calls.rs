//! Single calls on one node, without any retry: what the client is made of, and what programs use
//! that want to decide for themselves.
//!
//! What this file keeps true: every call has a deadline and gives plain data; a typed error of the
//! node is [`WireError::Fault`]. Dropping a call's future cancels its handler at the node at an
//! unknown point.

use super::model::{Delivery, Lease, Produced, ReplayBatch, Replayed};
use crate::convert::{
    Record, RecordRef, check, list_len, read_fault, read_record, read_topic, write_records,
};
use crate::error::{WireError, WireFault};
use crate::rpc::{call_on, records_room, with_room};
use crate::runtime::Runtime;
use narad_core::ids::{Nonce, Offset, PartitionIndex, TopicId, WallMs};
use narad_schema::client_capnp::{lease_result, node, produce_result};
use std::rc::Rc;
use std::time::Duration;

/// How a consume call asks.
#[derive(Clone, Copy, Debug)]
pub struct ConsumeRequest {
    /// Most records.
    pub max_records: u32,
    /// Most bytes.
    pub max_bytes: u32,
    /// Parks for this long until something is there, in ms, at most
    /// [`WAIT_MAX_MS`](crate::limits::WAIT_MAX_MS).
    pub wait_ms: u32,
    /// How long the records stay invisible to others, in ms; 0: the topic's setting.
    pub visibility_ms: u32,
    /// Only partitions that the asked node owns.
    pub local_only: bool,
}

/// What is done with leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Done with the records.
    Ack,
    /// Deliver them again after a delay.
    Nack {
        /// The delay, in ms.
        delay_ms: u32,
    },
    /// Keep them for longer.
    Extend {
        /// From now, in ms.
        visibility_ms: u32,
    },
}

fn read_produced(
    reader: produce_result::Reader<'_>,
) -> Result<Result<Produced, WireFault>, WireError> {
    use produce_result::Which as W;
    Ok(match reader.which()? {
        W::Committed(at) => Ok(Produced::Committed {
            partition: PartitionIndex(at.get_partition()),
            offset: Offset(at.get_offset()),
        }),
        W::Accepted(()) => Ok(Produced::Accepted),
        W::Error(fault) => Err(read_fault(fault?)?),
    })
}

/// Produces one batch at one node. One result a record, in order.
///
/// # Errors
/// [`WireError`]; when its outcome is unknown, some or all records may be stored.
pub async fn produce<'a, R: Runtime>(
    runtime: &R,
    node: &node::Client,
    deadline: Duration,
    topic: &str,
    records: impl ExactSizeIterator<Item = RecordRef<'a>> + Clone,
    partition: Option<PartitionIndex>,
) -> Result<Vec<Result<Produced, WireFault>>, WireError> {
    let count = records.len();
    let bytes = records.clone().map(|record| record.bytes()).sum();
    let mut request = with_room(records_room(count, bytes), || node.produce_request());
    let mut params = request.get();
    params.set_topic(topic);
    params.set_partition(partition.map_or(-1, |p| i32::try_from(p.0).unwrap_or(i32::MAX)));
    write_records(params.init_records(list_len(count)), records);
    call_on(runtime, deadline, request.send(), |r| {
        check(r.has_error(), r.get_error())?;
        let results = r.get_results()?;
        if results.len() as usize != count {
            return Err(WireError::Protocol {
                message: format!("{} results for {count} records", results.len()),
            });
        }
        // Room for all at once: behind a result, `collect` cannot tell how many there are.
        let mut produced = Vec::with_capacity(count);
        for result in results {
            produced.push(read_produced(result)?);
        }
        Ok(produced)
    })
    .await
}

/// Leases records at one node. `addr` is kept in the deliveries. The deadline runs on top of the
/// request's park.
///
/// # Errors
/// [`WireError`]; records leased by a lost answer come again when their leases end, or at once when
/// the connection was lost with it.
pub async fn consume<R: Runtime>(
    runtime: &R,
    node: &node::Client,
    addr: &Rc<str>,
    deadline: Duration,
    topic: &str,
    ask: ConsumeRequest,
) -> Result<Vec<Delivery>, WireError> {
    let mut request = node.consume_request();
    let mut params = request.get();
    params.set_topic(topic);
    params.set_max_records(ask.max_records);
    params.set_max_bytes(ask.max_bytes);
    params.set_wait_ms(ask.wait_ms);
    params.set_visibility_ms(ask.visibility_ms);
    params.set_local_only(ask.local_only);
    let deadline = deadline + Duration::from_millis(ask.wait_ms.into());
    call_on(runtime, deadline, request.send(), |r| {
        check(r.has_error(), r.get_error())?;
        r.get_records()?
            .iter()
            .map(|delivery| {
                let lease = delivery.get_lease()?;
                Ok(Delivery {
                    lease: Lease {
                        partition: PartitionIndex(lease.get_partition()),
                        offset: Offset(lease.get_offset()),
                        nonce: Nonce(lease.get_nonce()),
                    },
                    record: read_record(delivery.get_record()?)?,
                    deliveries: delivery.get_deliveries(),
                    topic: TopicId(delivery.get_topic_id()),
                    node: addr.clone(),
                })
            })
            .collect()
    })
    .await
}

fn write_leases(
    mut list: capnp::struct_list::Builder<'_, narad_schema::client_capnp::lease::Owned>,
    leases: &[Lease],
) {
    for (index, lease) in (0u32..).zip(leases) {
        let mut out = list.reborrow().get(index);
        out.set_partition(lease.partition.0);
        out.set_offset(lease.offset.0);
        out.set_nonce(lease.nonce.0);
    }
}

fn read_settled(
    results: capnp::struct_list::Reader<'_, lease_result::Owned>,
    count: usize,
) -> Result<Vec<Result<(), WireFault>>, WireError> {
    if results.len() as usize != count {
        return Err(WireError::Protocol {
            message: format!("{} results for {count} leases", results.len()),
        });
    }
    results
        .iter()
        .map(|result| {
            Ok(match result.which()? {
                lease_result::Which::Ok(()) => Ok(()),
                lease_result::Which::Error(fault) => Err(read_fault(fault?)?),
            })
        })
        .collect()
}

/// Acks, gives back or extends leases at one node. One result a lease, in order.
///
/// # Errors
/// [`WireError`]; when its outcome is unknown, the worst that happens is that records come again.
pub async fn settle<R: Runtime>(
    runtime: &R,
    node: &node::Client,
    deadline: Duration,
    topic: &str,
    leases: &[Lease],
    how: Settle,
) -> Result<Vec<Result<(), WireFault>>, WireError> {
    let count = leases.len();
    match how {
        Settle::Ack => {
            let mut request = node.ack_request();
            let mut params = request.get();
            params.set_topic(topic);
            write_leases(params.init_leases(list_len(count)), leases);
            call_on(runtime, deadline, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_settled(r.get_results()?, count)
            })
            .await
        }
        Settle::Nack { delay_ms } => {
            let mut request = node.nack_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_delay_ms(delay_ms);
            write_leases(params.init_leases(list_len(count)), leases);
            call_on(runtime, deadline, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_settled(r.get_results()?, count)
            })
            .await
        }
        Settle::Extend { visibility_ms } => {
            let mut request = node.extend_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_visibility_ms(visibility_ms);
            write_leases(params.init_leases(list_len(count)), leases);
            call_on(runtime, deadline, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_settled(r.get_results()?, count)
            })
            .await
        }
    }
}

/// What to replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRequest {
    /// The partition.
    pub partition: PartitionIndex,
    /// First offset.
    pub from: Offset,
    /// Begins at the first record of this time or later, if that is behind `from`; 0: no matter
    /// when.
    pub from_time: WallMs,
    /// Exclusive bound; `Offset(u64::MAX)` for all.
    pub to: Offset,
    /// Most records of one answer.
    pub max_records: u32,
    /// Most bytes of one answer.
    pub max_bytes: u32,
}

/// Reads records without leases at one node.
///
/// # Errors
/// [`WireError`].
pub async fn replay<R: Runtime>(
    runtime: &R,
    node: &node::Client,
    deadline: Duration,
    topic: &str,
    ask: ReplayRequest,
) -> Result<ReplayBatch, WireError> {
    let mut request = node.replay_request();
    let mut params = request.get();
    params.set_topic(topic);
    params.set_partition(ask.partition.0);
    params.set_from(ask.from.0);
    params.set_to(ask.to.0);
    params.set_from_time_ms(ask.from_time.0);
    params.set_max_records(ask.max_records);
    params.set_max_bytes(ask.max_bytes);
    call_on(runtime, deadline, request.send(), |r| {
        check(r.has_error(), r.get_error())?;
        let records = r.get_records()?.iter().map(|replayed| {
            Ok::<_, WireError>(Replayed {
                offset: Offset(replayed.get_offset()),
                record: read_record(replayed.get_record()?)?,
            })
        });
        Ok(ReplayBatch {
            records: records.collect::<Result<_, _>>()?,
            next: Offset(r.get_next()),
            start: Offset(r.get_start()),
            hwm: Offset(r.get_hwm()),
            skipped: r.get_skipped(),
        })
    })
    .await
}

/// Where a topic's partitions are.
///
/// # Errors
/// [`WireError`].
pub async fn locate<R: Runtime>(
    runtime: &R,
    node: &node::Client,
    deadline: Duration,
    topic: &str,
) -> Result<crate::view::LocationView, WireError> {
    let mut request = node.locate_request();
    request.get().set_topic(topic);
    call_on(runtime, deadline, request.send(), |r| {
        check(r.has_error(), r.get_error())?;
        let nodes = r.get_nodes()?.iter().map(crate::convert::read_member);
        Ok(crate::view::LocationView {
            topic: read_topic(r.get_topic()?)?,
            nodes: nodes.collect::<Result<_, _>>()?,
        })
    })
    .await
}

/// Record references of a slice, as [`produce`] takes them.
pub fn refs(records: &[Record]) -> impl ExactSizeIterator<Item = RecordRef<'_>> + Clone {
    records.iter().map(Record::as_ref)
}
