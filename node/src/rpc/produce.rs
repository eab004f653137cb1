//! `produce`: bounds, copying records out of the message, and the answer per record.
//!
//! What this file keeps true: a batch is taken apart once; it goes into one log in one piece, or is
//! placed in a task of its own, so that a client that goes away never cuts it in half; all that waits or is being placed has its
//! share of a bounded number of bytes, and what finds no room is answered `busy`.

use crate::clock::wall_ms;
use crate::rpc::node::NodeServer;
use crate::rpc::reply::{malformed, text};
use crate::shard::direct::direct;
use crate::shard::faults;
use crate::shard::limits::RECORD_COST_BYTES;
use crate::shard::partition::record_bytes;
use crate::shard::produce::{Placed, produce};
use crate::shard::task;
use narad_core::ids::{PartitionIndex, WallMs};
use narad_schema::client_capnp::node;
use narad_storage::{Batch, Record, RecordRef};
use narad_wire::convert::{list_len, record_ref, write_fault};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS};

/// Places the records of one call.
pub(crate) async fn call(
    server: &NodeServer,
    params: node::ProduceParams,
) -> Result<Vec<Placed>, WireFault> {
    let request = read(&params)?;
    // What waits for its turn is counted, and held once only.
    drop(params);
    let room = server.shard.rooms.produced.enter(request.cost())?;
    let _permit = server.gate.enter().await?;
    let shard = server.shard.clone();
    let Request {
        topic,
        records,
        partition,
        hops,
    } = request;
    let records = match records {
        Taken::Together(batch) => match direct(&shard, &topic, batch, partition).await {
            Ok(placed) => return Ok(placed),
            Err(records) => records,
        },
        Taken::Apart(records) => records,
    };
    let placed = task::run("a produce", async move {
        let _room = room;
        produce(&shard, &topic, records, partition, hops).await
    });
    placed
        .await
        .unwrap_or_else(|| Err(faults::internal("produce", "its task ended early")))
}

/// A call's records.
enum Taken {
    /// They go into one partition, whichever it is.
    Together(Batch),
    /// Their keys may lead them to several.
    Apart(Vec<Record>),
}

struct Request {
    topic: String,
    records: Taken,
    partition: Option<PartitionIndex>,
    hops: u8,
}

impl Request {
    /// Memory that the records take until they are placed, in bytes.
    fn cost(&self) -> usize {
        let (count, bytes) = match &self.records {
            Taken::Together(batch) => (batch.len(), batch.content_len()),
            Taken::Apart(records) => (records.len(), records.iter().map(record_bytes).sum()),
        };
        bytes + (count + 1) * RECORD_COST_BYTES
    }
}

fn read(params: &node::ProduceParams) -> Result<Request, WireFault> {
    let params = params.get().map_err(malformed)?;
    let topic = text(params.get_topic())?;
    let list = params.get_records().map_err(malformed)?;
    let count = list.len() as usize;
    if count > BATCH_MAX_RECORDS {
        return Err(faults::too_large(
            "records in a batch",
            count,
            BATCH_MAX_RECORDS,
        ));
    }
    let now = wall_ms();
    let mut records = Vec::with_capacity(count);
    let (mut bytes, mut keyed) = (0usize, false);
    for reader in list.iter() {
        let record = record_ref(reader).map_err(malformed)?;
        bytes = bytes.saturating_add(record.bytes());
        keyed |= record.key.is_some();
        if bytes > BATCH_MAX_BYTES {
            return Err(faults::too_large(
                "bytes in a batch",
                bytes,
                BATCH_MAX_BYTES,
            ));
        }
        records.push(RecordRef {
            time: if record.time == WallMs(0) {
                now
            } else {
                record.time
            },
            key: record.key,
            value: record.value,
        });
    }
    let partition = match params.get_partition() {
        -1 => None,
        index => Some(PartitionIndex(u32::try_from(index).map_err(|_| {
            faults::invalid(
                format!("partition {index} is negative"),
                "name an index from 0, or -1 to let the node choose",
            )
        })?)),
    };
    let records = if partition.is_some() || !keyed || count == 1 {
        let mut batch = Batch::with_capacity(count, bytes);
        records.into_iter().for_each(|record| batch.push(record));
        Taken::Together(batch)
    } else {
        Taken::Apart(records.iter().map(RecordRef::to_record).collect())
    };
    Ok(Request {
        topic,
        records,
        partition,
        hops: params.get_hops(),
    })
}

/// Writes one result a record.
pub(crate) fn fill(builder: node::produce_results::Builder<'_>, placed: &[Placed]) {
    let mut results = builder.init_results(list_len(placed.len()));
    for (index, one) in (0u32..).zip(placed) {
        let mut result = results.reborrow().get(index);
        match one {
            Placed::Committed { partition, offset } => {
                let mut committed = result.init_committed();
                committed.set_partition(partition.0);
                committed.set_offset(offset.0);
            }
            Placed::Accepted => result.set_accepted(()),
            Placed::Refused(fault) => write_fault(result.init_error(), fault),
        }
    }
}
