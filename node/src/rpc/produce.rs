//! `produce`: bounds, copying records out of the message, and the answer per record.
//!
//! What this file keeps true: a batch is taken apart once; it goes into one log in one piece, or is
//! placed in a task of its own, so that a client that goes away never cuts it in half; all that waits or is being placed has its
//! share of a bounded number of bytes, and what finds no room is answered `busy`.

use crate::rpc::node::NodeServer;
use crate::rpc::reply::{malformed, text};
use crate::shard::direct::{Direct, direct};
use crate::shard::faults;
use crate::shard::limits::RECORD_COST_BYTES;
use crate::shard::partition::record_bytes;
use crate::shard::produce::{Placed, produce};
use crate::shard::task;
use narad_core::ids::PartitionIndex;
use narad_schema::client_capnp::node;
use narad_storage::Record;
use narad_wire::convert::{list_len, record_ref, write_fault};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS};

/// Places the records of one call.
pub(crate) async fn call(
    server: &NodeServer,
    params: node::ProduceParams,
) -> Result<Vec<Placed>, WireFault> {
    let (topic, records, partition) = read(&params)?;
    let hops = params.get().map_err(malformed)?.get_hops();
    // What waits for its turn is counted, and held once only.
    drop(params);
    let room = server.shard.incoming.enter(cost(&records))?;
    let _permit = server.gate.enter().await?;
    let shard = server.shard.clone();
    let records = match direct(&shard, &topic, records, partition).await {
        Direct::Placed(placed) => return Ok(placed),
        Direct::Elsewhere(records) => records,
    };
    let placed = task::run("a produce", async move {
        let _room = room;
        produce(&shard, &topic, records, partition, hops).await
    });
    placed
        .await
        .unwrap_or_else(|| Err(faults::internal("produce", "its task ended early")))
}

/// Memory that records take until they are placed, in bytes.
fn cost(records: &[Record]) -> usize {
    let bytes: usize = records.iter().map(record_bytes).sum();
    bytes + (records.len() + 1) * RECORD_COST_BYTES
}

type Request = (String, Vec<Record>, Option<PartitionIndex>);

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
    let mut records = Vec::with_capacity(count);
    let mut bytes = 0usize;
    for reader in list.iter() {
        let record = record_ref(reader).map_err(malformed)?;
        bytes = bytes.saturating_add(record.bytes());
        if bytes > BATCH_MAX_BYTES {
            return Err(faults::too_large(
                "bytes in a batch",
                bytes,
                BATCH_MAX_BYTES,
            ));
        }
        records.push(Record {
            time: record.time,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.to_vec(),
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
    Ok((topic, records, partition))
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
