//! How fast the application works, and so how many records may be leased ahead of it.
//!
//! What this file keeps true: records that wait here and have not been handed out are never more than
//! a quarter of the visibility's work, as the application worked last; a pace that nobody knows yet is taken for
//! a slow one, and grows by doubling.

use crate::limits;
use std::time::Duration;

/// What a poll may ask its node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// So many records, all nodes at the same time.
    Share(u32),
    /// So many records, one node after the other and only when they are waited for: a record of
    /// each node would be more than may wait.
    Turn(u32),
}

/// See the file's description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Most records that may wait, while the pace is being found out.
    cap: u32,
    /// Time that the application takes for a record.
    per_record: Duration,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self {
            cap: limits::CONSUMER_FIRST_RECORDS,
            per_record: Duration::ZERO,
        }
    }

    /// The application was away for `time` with so many records. Slower counts at once, faster little by
    /// little: leases that run out cost more than a batch that is small.
    pub(super) fn took(&mut self, time: Duration, records: usize) {
        let records = u32::try_from(records).unwrap_or(u32::MAX).max(1);
        let now = time / records;
        let before = self.per_record.saturating_mul(3);
        self.per_record = now.max(before.saturating_add(now) / 4);
        self.cap = self.cap.saturating_mul(2);
    }

    /// How long so many records take.
    pub(super) fn work(&self, records: usize) -> Duration {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        self.per_record.saturating_mul(records)
    }

    /// Records that may wait altogether.
    fn room(&self, visibility: Duration) -> u32 {
        let work = visibility / limits::CONSUMER_AHEAD_PART;
        let records = work.as_nanos() / self.per_record.as_nanos().max(1);
        self.cap.min(u32::try_from(records).unwrap_or(u32::MAX))
    }

    /// What one of so many pollers may ask for, `most` at most.
    pub(super) fn ask(&self, pollers: usize, visibility: Duration, most: u32) -> Ask {
        let room = self.room(visibility);
        let pollers = u32::try_from(pollers).unwrap_or(u32::MAX).max(1);
        match room / pollers {
            0 => Ask::Turn(room.clamp(1, most.max(1))),
            share => Ask::Share(share.min(most.max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VISIBILITY: Duration = Duration::from_secs(30);

    fn after(per_record: Duration, batches: u32) -> Pace {
        let mut pace = Pace::new();
        for _ in 0..batches {
            pace.took(per_record * 10, 10);
        }
        pace
    }

    fn asked(pace: &Pace, pollers: usize) -> (u32, bool) {
        match pace.ask(pollers, VISIBILITY, 500) {
            Ask::Share(records) => (records, true),
            Ask::Turn(records) => (records, false),
        }
    }

    #[test]
    fn what_waits_is_worked_off_long_before_its_leases_end() {
        for per_record_ms in [1, 20, 100, 1_000, 5_000, 60_000] {
            let per_record = Duration::from_millis(per_record_ms);
            let pace = after(per_record, 20);
            for pollers in [1, 3, 10, 100] {
                let (records, all) = asked(&pace, pollers);
                let waiting = if all {
                    records * u32::try_from(pollers).unwrap()
                } else {
                    records
                };
                assert!(
                    per_record * waiting <= VISIBILITY / 4 || waiting == 1,
                    "{waiting} records of {per_record_ms} ms wait from {pollers} nodes"
                );
            }
        }
    }

    #[test]
    fn a_quick_application_gets_full_batches_after_a_few_small_ones() {
        let first = asked(&Pace::new(), 1).0;
        assert!(first < 500, "{first} records before anything is known");
        let quick = after(Duration::from_micros(1), 20);
        assert_eq!(asked(&quick, 10), (500, true));
    }

    #[test]
    fn slower_counts_at_once_and_faster_little_by_little() {
        let mut pace = after(Duration::from_millis(1), 20);
        let before = asked(&pace, 3).0;
        pace.took(Duration::from_secs(10), 100);
        let slow = asked(&pace, 3).0;
        assert!(slow < before / 4, "{before}, then {slow}");
        pace.took(Duration::from_millis(100), 100);
        let next = asked(&pace, 3).0;
        assert!(slow < next && next < 2 * slow, "{slow}, then {next}");
        // Nothing that an application does makes it stand still for good.
        pace.took(Duration::MAX, 0);
        assert_eq!(asked(&pace, 3), (1, false));
    }
}
