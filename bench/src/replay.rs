//! Reading whole partitions back, to find every acknowledged record in a log by its content.
//!
//! What this file keeps true: a partition is read to the high-watermark that it has when the
//! reading reaches it; records that the cluster cannot read are counted.

use crate::load::{Load, LoadError};
use crate::servers::Servers;
use narad_core::ids::{Offset, PartitionIndex};
use narad_wire::client::calls::ReplayRequest;
use narad_wire::limits::READ_MAX_BYTES;

/// Records of one call.
const RECORDS: u32 = 10_000;

/// What the logs hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// Records read.
    pub records: u64,
    /// Records that could not be read.
    pub skipped: u64,
}

/// Reads all partitions of the load's topic into its ledger.
///
/// # Errors
/// [`LoadError::Call`] when a partition cannot be read.
pub async fn all(load: &Load, servers: &Servers, partitions: u32) -> Result<Replayed, LoadError> {
    let mut sum = Replayed::default();
    for partition in 0..partitions {
        let mut at = Offset(0);
        loop {
            let ask = ReplayRequest {
                partition: PartitionIndex(partition),
                from: at,
                from_time: narad_core::ids::WallMs(0),
                to: Offset(u64::MAX),
                max_records: RECORDS,
                max_bytes: u32::try_from(READ_MAX_BYTES).expect("the limit fits"),
            };
            let batch = servers.next().replay_once(&load.topic, ask).await;
            let batch = batch.map_err(|error| LoadError::Call {
                what: "reading a partition back",
                error,
            })?;
            let mut ledger = load.ledger.borrow_mut();
            for one in &batch.records {
                ledger.logged(one.record.key.as_deref(), &one.record.value);
            }
            sum.records += batch.records.len() as u64;
            sum.skipped += batch.skipped;
            let stands = batch.next <= at;
            at = batch.next;
            if stands || batch.is_done(Offset(u64::MAX)) {
                break;
            }
        }
    }
    Ok(sum)
}
