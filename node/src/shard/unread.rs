//! How long the disk has refused to read something of a partition.
//!
//! What this file keeps true: a refusal that may pass is waited for; one that lasts, try after try, is
//! taken for a loss, so that it does not hold the partition up for ever.

use crate::shard::limits::{READ_LULL_MS, READ_PATIENCE_MS};
use narad_core::ids::MonoMs;

/// See the file's description.
#[derive(Default)]
pub(crate) struct Unread {
    cause: String,
    first: MonoMs,
    last: Option<MonoMs>,
}

impl Unread {
    fn lasts(&self, now: MonoMs) -> bool {
        self.last
            .is_some_and(|last| now.since(last) <= READ_LULL_MS)
    }

    /// Another refusal; whether its cause is not the one of the latest.
    pub(crate) fn refused(&mut self, now: MonoMs, cause: &str) -> bool {
        if !self.lasts(now) {
            self.first = now;
        }
        self.last = Some(now);
        let new = self.cause != cause;
        if new {
            cause.clone_into(&mut self.cause);
        }
        new
    }

    /// Whether it has been waited long enough for what is refused.
    pub(crate) fn is_lost(&self, now: MonoMs) -> bool {
        self.lasts(now) && now.since(self.first) >= READ_PATIENCE_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_passes_is_waited_for_and_one_that_lasts_is_a_loss() {
        let mut unread = Unread::default();
        assert!(
            !unread.is_lost(MonoMs(READ_PATIENCE_MS * 2)),
            "there is none"
        );
        assert!(unread.refused(MonoMs(1_000), "bad"), "told");
        let mut now = 1_000;
        while now < READ_PATIENCE_MS {
            assert!(!unread.is_lost(MonoMs(now)));
            now += READ_LULL_MS;
            assert!(!unread.refused(MonoMs(now), "bad"), "told once");
        }
        assert!(unread.is_lost(MonoMs(now + 1_000)));
        // It has passed; the next one begins anew.
        now += READ_LULL_MS + 1;
        assert!(!unread.is_lost(MonoMs(now)));
        unread.refused(MonoMs(now), "bad");
        assert!(!unread.is_lost(MonoMs(now)));
        assert!(
            unread.refused(MonoMs(now), "worse"),
            "another cause is told"
        );
    }
}
