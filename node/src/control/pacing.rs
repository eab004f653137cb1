//! Applies the limit on copies: the fixed one of the metadata, none, or the adaptive one.
//!
//! What this file keeps true: the limit holds for what leaves this node and for what comes to it, each; while
//! nothing is copied and nobody calls, a look is a few loads.

use super::core::Core;
use narad_core::throttle::{Adaptive, Limits, WINDOW_MS, Window};
use narad_wire::bulk::BulkServer;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The rate in the metadata that means "no limit"; none in it means "adaptive".
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Runs for as long as the node does.
pub(super) fn start(core: Rc<Core>, bulk: Arc<BulkServer>) {
    glommio::spawn_local(async move {
        let mut stop = core.ctx.stop.clone();
        let mut meta = core.ctx.meta.clone();
        let mut machine = Adaptive::default();
        let mut before = Vec::new();
        let (mut sent_before, mut received_before) = (0, 0);
        while !*stop.borrow_and_update() {
            let set = meta.borrow_and_update().throttle_bytes_per_s;
            let (samples, p99_us) = core.ctx.pace.foreground.since(&mut before);
            let sent = bulk.stats().sent_bytes;
            let received = core.ctx.pace.received_bytes.load(Ordering::Relaxed);
            let window = Window {
                samples,
                p99_us,
                // The limit is one for each direction: of a node that sends and receives at once it would
                // bind neither, were it reckoned from the sum.
                copied_bytes: (sent - sent_before).max(received - received_before),
            };
            (sent_before, received_before) = (sent, received);
            // It goes on learning while a fixed limit is set.
            let adaptive = machine.step(window);
            let Limits {
                bytes_per_s,
                under_way_bytes,
            } = match set {
                Some(UNLIMITED) => Limits::NONE,
                Some(fixed) => Limits {
                    bytes_per_s: Some(fixed),
                    ..Limits::NONE
                },
                None => adaptive,
            };
            let limit = bytes_per_s.unwrap_or(0);
            let under_way = core
                .ctx
                .pace
                .under_way_bytes
                .swap(under_way_bytes, Ordering::Relaxed);
            let told = core
                .ctx
                .pace
                .limit_bytes_per_s
                .swap(limit, Ordering::Relaxed);
            if told != limit || under_way != under_way_bytes {
                bulk.set_rate_bytes_per_s(limit);
                core.ctx
                    .metrics
                    .copy_limit
                    .set(i64::try_from(limit).unwrap_or(i64::MAX));
                tracing::debug!(
                    limit,
                    under_way_bytes,
                    p99_us,
                    baseline_us = machine.baseline_us(),
                    "the limit on copies"
                );
            }
            let changed = std::pin::pin!(meta.changed());
            let slept = std::pin::pin!(glommio::timer::sleep(Duration::from_millis(WINDOW_MS)));
            // A fixed limit counts at once; its window is only shorter.
            futures::future::select(changed, slept).await;
        }
    })
    .detach();
}
