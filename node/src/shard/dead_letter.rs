//! Records that were delivered as often as their topic allows: they go to the dead-letter topic.
//!
//! What this file keeps true: a record leaves its partition only after it is durable in the ingress
//! WAL for the dead-letter topic; while that is not possible it stays, and is not delivered again.

use crate::clock::mono_ms;
use crate::shard::limits::{DEAD_LETTER_BATCH, RECONCILE_RETRY_MS, SALVAGE_BYTES};
use crate::shard::partition::Partition;
use crate::shard::shard::Shard;
use narad_core::ids::Offset;
use narad_core::meta::{Topic, TopicSettings};
use narad_core::routing;
use narad_storage::{Record, StoredRecord, WalEntry};
use std::rc::Rc;

impl Shard {
    /// Moves what is due and spent. The caller holds the partition's turn of delivery.
    pub(crate) async fn dead_letters(
        self: &Rc<Self>,
        partition: &Rc<Partition>,
        settings: &TopicSettings,
        max_deliveries: u32,
    ) {
        let now = mono_ms();
        let spent =
            partition
                .leases
                .borrow_mut()
                .take_spent(now, DEAD_LETTER_BATCH, max_deliveries);
        if spent.is_empty() {
            return;
        }
        let state = self.ctx.state();
        let topic = settings
            .dead_letter
            .as_ref()
            .and_then(|name| state.topic_by_name(name));
        let moved = match topic {
            Some(topic) => self.move_spent(partition, topic, &spent).await,
            None => Err("the dead-letter topic does not exist".into()),
        };
        if let Err(reason) = moved {
            tracing::warn!(copy = %partition.copy, records = spent.len(), %reason, "records cannot go to the dead-letter topic yet");
            let at = mono_ms().plus_ms(RECONCILE_RETRY_MS);
            let mut leases = partition.leases.borrow_mut();
            // Those that were moved before the failure are not reserved any more, and stay moved.
            for offset in spent {
                leases.give_back(offset, at);
            }
        }
        partition.frontier_moved();
    }

    async fn move_spent(
        &self,
        partition: &Rc<Partition>,
        topic: &Topic,
        spent: &[Offset],
    ) -> Result<(), String> {
        for offset in spent {
            let batch = partition.read(*offset, 1, SALVAGE_BYTES).await;
            let batch = batch.map_err(|error| {
                partition.unread(*offset, &error);
                error.to_string()
            })?;
            let record: Option<&StoredRecord> = batch
                .records
                .first()
                .filter(|(at, _)| at == offset)
                .map(|(_, record)| record);
            if let Some(record) = record {
                let entry = dead_letter(topic, *offset, record.to_record());
                if self.is_leaving() {
                    return Err("this node is leaving; the partition's owner moves them".into());
                }
                self.put_into_wal(vec![entry])
                    .await
                    .map_err(|error| error.to_string())?;
            }
            // Unreadable ones are gone either way: the read has reported them.
            partition.leases.borrow_mut().retire(*offset);
        }
        Ok(())
    }
}

/// The record as it goes into the dead-letter topic: with its key and time, to the key's partition.
fn dead_letter(topic: &Topic, offset: Offset, record: Record) -> WalEntry {
    let partitions = u32::try_from(topic.partitions.len()).expect("bounded by PARTITIONS_MAX");
    let unkeyed = offset.0.to_le_bytes();
    let by = record.key.as_deref().unwrap_or(&unkeyed);
    WalEntry {
        topic: topic.id,
        partition: routing::partition_of(by, partitions),
        pinned: false,
        record,
    }
}
