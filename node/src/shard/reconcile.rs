//! Bringing this shard's partitions to what the metadata says.
//!
//! What this file keeps true: nothing is opened or destroyed before a barrier of this start was
//! applied; every change of the metadata is looked at, and everything again from time to time.

use crate::shard::limits::{RECONCILE_RETRY_MS, RECONCILE_TICK_MS};
use crate::shard::shard::Shard;
use futures::FutureExt;
use narad_storage::layout;
use std::rc::Rc;
use std::time::Duration;

/// Runs until the node stops.
pub(crate) async fn run(shard: Rc<Shard>) {
    let mut confirmed = shard.ctx.confirmed.clone();
    if confirmed.wait_for(|confirmed| *confirmed).await.is_err() {
        return;
    }
    find_copies(&shard).await;
    let mut meta = shard.ctx.meta.clone();
    loop {
        let woken = shard.reconcile.notified();
        meta.mark_unchanged();
        pass(&shard);
        futures::select_biased! {
            changed = Box::pin(meta.changed()).fuse() => if changed.is_err() {
                return;
            },
            () = Box::pin(woken).fuse() => {}
            () = Box::pin(glommio::timer::sleep(Duration::from_millis(RECONCILE_TICK_MS))).fuse() => {}
        }
    }
}

/// What is on the disk. Without that nothing is known, so it is asked until it answers.
async fn find_copies(shard: &Rc<Shard>) {
    loop {
        match layout::scan(&shard.root).await {
            Ok(found) => {
                if shard.index.0 == 0 {
                    for path in &found.unknown {
                        tracing::warn!(path = %path.display(), "not a partition of this program; left alone");
                    }
                }
                let mut copies = shard.copies.borrow_mut();
                for found in found.copies {
                    if shard.is_mine(found.copy.key) {
                        copies.insert(found.copy, found.install);
                    }
                }
                tracing::info!(shard = %shard.index, copies = copies.len(), "copies on the disk");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "the data directory cannot be read");
                glommio::timer::sleep(Duration::from_millis(RECONCILE_RETRY_MS)).await;
            }
        }
    }
}

fn pass(shard: &Rc<Shard>) {
    // Before the lease or anything else is looked at: the machines learn what is applied.
    let mut stopped = 0;
    for partition in shard.open_partitions() {
        partition.follow();
        stopped += i64::from(partition.log.failed().is_some());
    }
    let told = shard.stopped_logs.replace(stopped);
    shard.ctx.metrics.failed_partitions.inc_by(stopped - told);
    shard.retire_stopped();
    shard.open_owned();
    shard.retire_copies();
    shard.dispatchers.metadata_changed();
    let state = shard.ctx.state();
    shard.installed.borrow_mut().retain(|copy, _| {
        let now = state.assignment(copy.key);
        now.is_some_and(|now| now.epoch <= copy.epoch)
    });
    shard.forget_topics(|topic| state.topics.contains_key(&topic));
    shard
        .pool
        .retain(|addr| state.members.values().any(|member| member.addr == addr));
}
