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
use std::time::{Duration, Instant};

/// The rate in the metadata that means "no limit"; none in it means "adaptive".
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Runs for as long as the node does.
pub(super) fn start(core: Rc<Core>, bulk: Arc<BulkServer>) {
    glommio::spawn_local(async move {
        let mut stop = core.ctx.stop.clone();
        let mut meta = core.ctx.meta.clone();
        let mut windows = Windows::new();
        let mut adaptive = Limits::NONE;
        while !*stop.borrow_and_update() {
            let set = meta.borrow_and_update().throttle_bytes_per_s;
            if windows.left().is_zero() {
                // It goes on learning while a fixed limit is set.
                adaptive = windows.end(&core, &bulk, set);
            }
            let limits = match set {
                Some(UNLIMITED) => Limits::NONE,
                Some(fixed) => Limits {
                    bytes_per_s: Some(fixed),
                    ..Limits::NONE
                },
                None => adaptive,
            };
            apply(&core, &bulk, limits);
            // A fixed limit counts at once. A window is not ended by that: while moves begin and end the
            // metadata changes all the time, and what happened in some milliseconds says nothing.
            let changed = std::pin::pin!(meta.changed());
            let slept = std::pin::pin!(glommio::timer::sleep(windows.left()));
            futures::future::select(changed, slept).await;
        }
    })
    .detach();
}

/// The windows of this node, one after the other.
struct Windows {
    machine: Adaptive,
    began: Instant,
    calls_before: Vec<u64>,
    sent_before: u64,
    received_before: u64,
}

impl Windows {
    fn new() -> Self {
        Self {
            machine: Adaptive::default(),
            began: Instant::now(),
            calls_before: Vec::new(),
            sent_before: 0,
            received_before: 0,
        }
    }

    /// Of the window that goes on.
    fn left(&self) -> Duration {
        Duration::from_millis(WINDOW_MS).saturating_sub(self.began.elapsed())
    }

    /// Ends it, and begins the next. `set`: the limit of the metadata; where there is none, the machine's is in force.
    fn end(&mut self, core: &Core, bulk: &BulkServer, set: Option<u64>) -> Limits {
        let pace = &core.ctx.pace;
        let (samples, p99_us) = pace.foreground.since(&mut self.calls_before);
        let sent = bulk.stats().sent_bytes;
        let received = pace.received_bytes.load(Ordering::Relaxed);
        let elapsed = self.began.elapsed().as_millis();
        let window = Window {
            elapsed_ms: u64::try_from(elapsed).unwrap_or(u64::MAX),
            samples,
            p99_us,
            // The limit is one for each direction: of a node that sends and receives at once it would
            // bind neither, were it reckoned from the sum.
            copied_bytes: (sent - self.sent_before).max(received - self.received_before),
        };
        self.began = Instant::now();
        (self.sent_before, self.received_before) = (sent, received);
        let limits = match set {
            None => self.machine.step(window),
            Some(limit) => self.machine.watch(window, limit == UNLIMITED),
        };
        if window.copied_bytes > 0 {
            let baseline_us = self.machine.baseline_us();
            tracing::debug!(?window, ?limits, baseline_us, "copies and what others bear");
        }
        limits
    }
}

fn apply(core: &Core, bulk: &BulkServer, limits: Limits) {
    let pace = &core.ctx.pace;
    pace.under_way_bytes
        .store(limits.under_way_bytes, Ordering::Relaxed);
    bulk.set_reading_bytes(limits.under_way_bytes);
    pace.gives_way.store(limits.gives_way, Ordering::Relaxed);
    bulk.set_gives_way(limits.gives_way);
    let limit = limits.bytes_per_s.unwrap_or(0);
    if pace.limit_bytes_per_s.swap(limit, Ordering::Relaxed) != limit {
        bulk.set_rate_bytes_per_s(limit);
        let shown = i64::try_from(limit).unwrap_or(i64::MAX);
        core.ctx.metrics.copy_limit.set(shown);
    }
}
