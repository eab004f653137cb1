//! What a shard does from time to time: writing frontiers, freezes' time-to-live, retention.
//!
//! What this file keeps true: an idle shard writes nothing; a frontier that changed is on the disk
//! well within the promised time; one slow disk operation of a partition delays no other's.

use crate::shard::limits::{FLUSHES_AT_ONCE, FRONTIER_FLUSH_MS, RETENTION_TICK_MS, SOURCE_TICK_MS};
use crate::shard::shard::Shard;
use futures::stream::{self, StreamExt};
use narad_storage::StorageError;
use std::rc::Rc;
use std::time::Duration;

async fn pause(ms: u64) {
    glommio::timer::sleep(Duration::from_millis(ms)).await;
}

/// Writes frontiers that acks have moved.
pub(crate) async fn flush_frontiers(shard: Rc<Shard>) {
    loop {
        shard.flush.notified().await;
        pause(FRONTIER_FLUSH_MS).await;
        let dirty: Vec<_> = shard
            .open_partitions()
            .into_iter()
            .filter(|one| one.log.meta_dirty() || one.unwritten.is_there())
            .filter(|one| one.log.failed().is_none())
            .collect();
        stream::iter(dirty)
            .for_each_concurrent(FLUSHES_AT_ONCE, |partition| {
                let flush = shard.flush.clone();
                async move {
                    let writing = partition.unwritten.begin();
                    match partition.log.persist_meta().await {
                        Ok(()) => writing.durable(),
                        // Whoever closes one writes it, if the disk takes it.
                        Err(StorageError::Closed { reason, .. }) => {
                            tracing::debug!(copy = %partition.copy, reason, "the frontier of a closed log");
                        }
                        Err(error) => {
                            tracing::warn!(copy = %partition.copy, %error, "the frontier is not written; tried again");
                            flush.notify_one();
                        }
                    }
                }
            })
            .await;
    }
}

/// Lets the owner's machines see the time.
pub(crate) async fn tick_sources(shard: Rc<Shard>) {
    loop {
        // Only a partition with a handoff has anything due; without one this is a look at a map.
        pause(SOURCE_TICK_MS).await;
        for partition in shard.open_partitions() {
            partition.tick();
        }
    }
}

/// Deletes what retention allows.
pub(crate) async fn retain(shard: Rc<Shard>) {
    loop {
        pause(RETENTION_TICK_MS).await;
        for partition in shard.open_partitions() {
            match partition.retain().await {
                Ok(()) => {}
                // It was closed, and perhaps opened anew, while others took their time.
                Err(StorageError::Closed { reason, .. }) => {
                    tracing::debug!(copy = %partition.copy, reason, "no retention of a closed log");
                }
                Err(error) => {
                    tracing::warn!(copy = %partition.copy, %error, "retention failed; tried again");
                }
            }
        }
    }
}
