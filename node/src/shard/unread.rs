//! How long the disk has refused to read something of a partition, place by place.
//!
//! What this file keeps true: a refusal that may pass is waited for; one that lasts, try after try at the same
//! offset, is taken for a loss, so that it does not hold the partition up for ever. What is refused elsewhere has
//! its own time.

use crate::shard::limits::{READ_LULL_MS, READ_PATIENCE_MS, UNREAD_PLACES_MAX};
use narad_core::ids::{MonoMs, Offset};
use std::collections::BTreeMap;

/// See the file's description.
#[derive(Default)]
pub(crate) struct Unread {
    cause: String,
    places: BTreeMap<Offset, Refused>,
}

struct Refused {
    first: MonoMs,
    last: MonoMs,
}

impl Refused {
    fn lasts(&self, now: MonoMs) -> bool {
        now.since(self.last) <= READ_LULL_MS
    }
}

impl Unread {
    /// Another refusal, of a read that begins at `at`; whether its cause is not the one of the latest.
    pub(crate) fn refused(&mut self, now: MonoMs, at: Offset, cause: &str) -> bool {
        self.places.retain(|_, place| place.lasts(now));
        // Beyond the bound places wait until others have passed or are lost.
        if self.places.len() < UNREAD_PLACES_MAX || self.places.contains_key(&at) {
            let new = || Refused {
                first: now,
                last: now,
            };
            self.places.entry(at).or_insert_with(new).last = now;
        }
        let new = self.cause != cause;
        if new {
            cause.clone_into(&mut self.cause);
        }
        new
    }

    /// Whether it has been waited long enough for what a read at `at` is refused.
    pub(crate) fn is_lost(&self, now: MonoMs, at: Offset) -> bool {
        let place = self.places.get(&at);
        place.is_some_and(|p| p.lasts(now) && now.since(p.first) >= READ_PATIENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Offset = Offset(7);

    #[test]
    fn a_refusal_that_passes_is_waited_for_and_one_that_lasts_is_a_loss() {
        let mut unread = Unread::default();
        assert!(
            !unread.is_lost(MonoMs(READ_PATIENCE_MS * 2), AT),
            "there is none"
        );
        assert!(unread.refused(MonoMs(1_000), AT, "bad"), "told");
        let mut now = 1_000;
        while now < READ_PATIENCE_MS {
            assert!(!unread.is_lost(MonoMs(now), AT));
            now += READ_LULL_MS;
            assert!(!unread.refused(MonoMs(now), AT, "bad"), "told once");
        }
        assert!(unread.is_lost(MonoMs(now + 1_000), AT));
        // What is refused elsewhere for the first time is waited for like any other.
        unread.refused(MonoMs(now + 1_000), Offset(8), "bad");
        assert!(!unread.is_lost(MonoMs(now + 1_000), Offset(8)));
        assert!(unread.is_lost(MonoMs(now + 1_000), AT));
        // It has passed; the next one begins anew.
        now += READ_LULL_MS + 1;
        assert!(!unread.is_lost(MonoMs(now), AT));
        unread.refused(MonoMs(now), AT, "bad");
        assert!(!unread.is_lost(MonoMs(now), AT));
        assert!(
            unread.refused(MonoMs(now), AT, "worse"),
            "another cause is told"
        );
        // A disk that refuses everything is remembered within a bound.
        for at in 0..10 * UNREAD_PLACES_MAX as u64 {
            unread.refused(MonoMs(now), Offset(at), "worse");
        }
        assert_eq!(unread.places.len(), UNREAD_PLACES_MAX);
    }
}
