//! Upkeep of the logs: one that is idle gives back files, memory and the space reserved ahead, and files alone
//! when too many are open; sealed segments are read again, slowly, so that decay is met before a move or a
//! consumer meets it.
//!
//! What this file keeps true: an idle node does nothing once everything is given back; reading again
//! stays below the configured rate, one partition at a time; nothing here holds on to a partition that
//! is being closed.

use crate::shard::limits::{
    FILES_PAUSE_MS, IDLE_TICK_MS, SCRUB_FIRST_MS, SCRUB_LOOK_MS, SCRUB_PAUSE_MS,
};
use crate::shard::partition::Partition;
use crate::shard::shard::Shard;
use futures::future::{Either, select};
use narad_core::ids::CopyId;
use narad_storage::StorageError;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

async fn pause(ms: u64) {
    glommio::timer::sleep(Duration::from_millis(ms)).await;
}

/// Trims every log that did nothing between two looks.
pub(crate) async fn trim_idle(shard: Rc<Shard>) {
    let mut before: BTreeMap<CopyId, u64> = BTreeMap::new();
    loop {
        pause(IDLE_TICK_MS).await;
        let mut now = BTreeMap::new();
        for partition in shard.open_partitions() {
            let log = &partition.log;
            if !log.holds_resources() {
                continue;
            }
            let activity = log.activity();
            now.insert(partition.copy, activity);
            // A copy that is being moved is about to be asked for.
            let idle = before.get(&partition.copy) == Some(&activity)
                && log.failed().is_none()
                && partition.sessions.borrow().is_empty();
            if idle && let Err(error) = log.trim().await {
                tracing::warn!(copy = %partition.copy, %error, "an idle log keeps what it has reserved; tried again");
            }
        }
        before = now;
    }
}

/// Keeps the open files of this shard's logs within its part of what the process may open: where there are more,
/// those that did nothing for longest are closed.
pub(crate) async fn bound_files(shard: Rc<Shard>) {
    let shards = u64::from(shard.ctx.config.shards).max(1);
    // The other half is for connections, copies and Raft.
    let most = crate::process::files::allowed() / (2 * shards);
    let mut before: BTreeMap<CopyId, u64> = BTreeMap::new();
    loop {
        narad_storage::more_open_files_than(most).await;
        let open = shard.open_partitions().into_iter();
        let open: Vec<_> = open.filter(|one| one.log.has_open_files()).collect();
        let (quiet, busy): (Vec<_>, Vec<_>) = open
            .iter()
            .partition(|one| before.get(&one.copy) == Some(&one.log.activity()));
        for partition in quiet.into_iter().chain(busy) {
            if narad_storage::open_files() <= most / 2 {
                break;
            }
            partition.log.close_files();
        }
        let seen = open.iter().map(|one| (one.copy, one.log.activity()));
        before = seen.collect();
        // Those that are in use are closed when that is over.
        pause(FILES_PAUSE_MS).await;
    }
}

/// Reads sealed segments again, partition by partition, for ever.
pub(crate) async fn scrub(shard: Rc<Shard>) {
    let rate = shard.ctx.config.storage.scrub_bytes_per_s;
    if rate == 0 {
        return;
    }
    let every_ms = shard.ctx.config.storage.scrub_every_ms;
    pause(SCRUB_FIRST_MS.min(every_ms)).await;
    loop {
        let began = Instant::now();
        let mut done: Option<CopyId> = None;
        while let Some(partition) = next(&shard, done) {
            done = Some(partition.copy);
            scrub_one(&shard, &partition, rate).await;
            pause(SCRUB_PAUSE_MS).await;
        }
        let round = Duration::from_millis(every_ms);
        glommio::timer::sleep(round.saturating_sub(began.elapsed())).await;
    }
}

/// The open partition behind this one that has something to read.
fn next(shard: &Shard, done: Option<CopyId>) -> Option<Rc<Partition>> {
    shard
        .open_partitions()
        .into_iter()
        .filter(|p| done.is_none_or(|done| p.copy > done) && p.log.stats().sealed > 0)
        .min_by_key(|p| p.copy)
}

async fn scrub_one(shard: &Shard, partition: &Rc<Partition>, rate: u64) {
    let closing = async {
        while is_open(shard, partition) {
            pause(SCRUB_LOOK_MS).await;
        }
    };
    // Dropped midway, a scrub leaves everything as it found it.
    let outcome = match select(pin!(partition.log.scrub(rate)), pin!(closing)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => return,
    };
    let metrics = &shard.ctx.metrics;
    match outcome {
        Ok(report) => {
            metrics.scrubbed_bytes.inc_by(report.bytes);
            if !report.changed.is_empty() {
                metrics.decayed_segments.inc_by(report.changed.len() as u64);
                tracing::error!(
                    copy = %partition.copy,
                    segments = report.changed.len(),
                    damage = ?report.damage,
                    "sealed segments are not what was written: the disk has lost records; run narad verify"
                );
            }
        }
        // It has stopped, or its files may be gone by now.
        Err(error)
            if matches!(error, StorageError::Closed { .. }) || !is_open(shard, partition) =>
        {
            tracing::debug!(copy = %partition.copy, %error, "not read to its end: it was closed");
        }
        Err(error) => {
            tracing::error!(copy = %partition.copy, %error, "sealed segments cannot be read");
        }
    }
}

fn is_open(shard: &Shard, partition: &Rc<Partition>) -> bool {
    let slot = shard.known_slot(partition.key());
    slot.and_then(|slot| slot.open())
        .is_some_and(|open| Rc::ptr_eq(&open, partition))
}
