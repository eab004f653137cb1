//! Bringing this shard's partitions to what the metadata says.
//!
//! What this file keeps true: nothing is opened or destroyed before a barrier of this start was
//! applied; every change of the metadata is looked at, and everything again from time to time. A change
//! costs what it touches, however many partitions there are.

use crate::shard::limits::{RECONCILE_RETRY_MS, RECONCILE_TICK_MS};
use crate::shard::shard::Shard;
use futures::FutureExt;
use narad_core::ids::PartitionKey;
use narad_core::meta::MetaState;
use narad_storage::layout;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Partitions that are to be looked at because something about them has changed on this shard.
#[derive(Default)]
pub(crate) struct Due {
    keys: RefCell<BTreeSet<PartitionKey>>,
    woken: Notify,
}

impl Due {
    /// Has a partition looked at soon.
    pub(crate) fn add(&self, key: PartitionKey) {
        self.keys.borrow_mut().insert(key);
        self.woken.notify_one();
    }
}

/// Runs until the node stops.
pub(crate) async fn run(shard: Rc<Shard>) {
    let mut confirmed = shard.ctx.confirmed.clone();
    if confirmed.wait_for(|confirmed| *confirmed).await.is_err() {
        return;
    }
    find_copies(&shard).await;
    let mut meta = shard.ctx.meta.clone();
    let tick = Duration::from_millis(RECONCILE_TICK_MS);
    // The version that was looked at last, and when everything is due again.
    let mut seen: Option<Arc<MetaState>> = None;
    let mut all_at = Instant::now();
    loop {
        let woken = shard.due.woken.notified();
        let state = meta.borrow_and_update().clone();
        let mut keys = shard.due.keys.take();
        let changed = seen.as_ref().and_then(|seen| state.changed_since(seen));
        match changed.filter(|_| Instant::now() < all_at) {
            Some(changed) => {
                keys.extend(changed.into_iter().filter(|key| shard.is_mine(*key)));
                keys.iter().for_each(|key| look_at(&shard, &state, *key));
                shard.dispatchers.metadata_changed();
            }
            None => {
                pass(&shard);
                all_at = Instant::now() + tick;
            }
        }
        seen = Some(state);
        let left = all_at.saturating_duration_since(Instant::now());
        futures::select_biased! {
            changed = Box::pin(meta.changed()).fuse() => if changed.is_err() {
                return;
            },
            () = Box::pin(woken).fuse() => {}
            () = Box::pin(glommio::timer::sleep(left)).fuse() => {}
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

/// One partition.
fn look_at(shard: &Rc<Shard>, state: &MetaState, key: PartitionKey) {
    // Before the lease or anything else is looked at: the machine learns what is applied.
    if let Some(partition) = shard.known_slot(key).and_then(|slot| slot.open()) {
        partition.follow();
        shard.retire_if_stopped(&partition);
    }
    if let Some(assignment) = state.assignment(key) {
        shard.open_if_owned(key, assignment);
        shard.report_reclaimed(key, assignment);
    }
    shard.retire_copies_of(key);
}

/// All partitions.
fn pass(shard: &Rc<Shard>) {
    // Before the lease or anything else is looked at: the machines learn what is applied.
    let mut stopped = 0;
    for partition in shard.open_partitions() {
        partition.follow();
        stopped += i64::from(partition.log.failed().is_some());
    }
    let told = shard.stopped_logs.replace(stopped);
    shard.ctx.metrics.failed_partitions.inc_by(stopped - told);
    for partition in shard.open_partitions() {
        shard.retire_if_stopped(&partition);
    }
    let state = shard.ctx.state();
    for (key, assignment) in state.assignments() {
        if shard.is_mine(key) {
            shard.open_if_owned(key, assignment);
        }
    }
    shard.retire_copies();
    for (key, assignment) in state.assignments() {
        if shard.is_mine(key) {
            shard.report_reclaimed(key, assignment);
        }
    }
    shard.dispatchers.metadata_changed();
    shard.installed.borrow_mut().retain(|copy, _| {
        let now = state.assignment(copy.key);
        now.is_some_and(|now| now.epoch <= copy.epoch)
    });
    shard.forget_topics(|topic| state.topics.contains_key(&topic));
    shard
        .pool
        .retain(|addr| state.members.values().any(|member| member.addr == addr));
}
