//! Whether a partition's frontier has moved and is not on the disk yet, and for how long.
//!
//! What this file keeps true: the gauge counts exactly the partitions of which that is so, also when one
//! is closed in between.

use crate::context::NodeContext;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// See the file's description.
pub(crate) struct Unwritten {
    ctx: Arc<NodeContext>,
    since: Cell<Option<Instant>>,
}

impl Unwritten {
    pub(crate) fn new(ctx: Arc<NodeContext>) -> Self {
        let since = Cell::default();
        Self { ctx, since }
    }

    /// An ack has moved the frontier.
    pub(crate) fn moved(&self) {
        if self.since.get().is_none() {
            self.since.set(Some(Instant::now()));
            self.ctx.metrics.unwritten_frontiers.inc();
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.since.get().is_some()
    }

    /// What has moved until now is being written.
    pub(crate) fn begin(&self) -> Writing<'_> {
        Writing {
            of: self,
            since: self.since.take(),
        }
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        if self.is_there() {
            self.ctx.metrics.unwritten_frontiers.dec();
        }
    }
}

/// A write under way; unless it is told to be durable, it was none.
pub(crate) struct Writing<'a> {
    of: &'a Unwritten,
    since: Option<Instant>,
}

impl Writing<'_> {
    /// It is on the disk.
    pub(crate) fn durable(mut self) {
        if let Some(since) = self.since.take() {
            let metrics = &self.of.ctx.metrics;
            metrics
                .frontier_seconds
                .observe(since.elapsed().as_secs_f64());
            metrics.unwritten_frontiers.dec();
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let Some(since) = self.since.take() else {
            return;
        };
        if self.of.since.replace(Some(since)).is_some() {
            // It moved again meanwhile, and was counted once more.
            self.of.ctx.metrics.unwritten_frontiers.dec();
        }
    }
}
