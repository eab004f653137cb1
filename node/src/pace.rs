//! How long the foreground waits on this node, and how fast copies may be because of it.
//!
//! What this file keeps true: recording a call costs one addition that no lock guards; reading takes a
//! difference of counts, so nobody has to reset them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Buckets of each doubling: a figure is right within one part in sixteen.
const STEPS: usize = 16;
/// Doublings covered, from 1 microsecond to more than a minute.
const DOUBLINGS: usize = 26;
const BUCKETS: usize = STEPS * DOUBLINGS;

/// Counts of calls by how long they took.
#[derive(Debug)]
pub struct Meter(Vec<AtomicU64>);

impl Default for Meter {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

fn bucket(us: u64) -> usize {
    let us = us.max(1);
    let doubling = us.ilog2() as usize;
    let step = if doubling >= 4 {
        (us >> (doubling - 4)) as usize % STEPS
    } else {
        (us << (4 - doubling)) as usize % STEPS
    };
    (doubling * STEPS + step).min(BUCKETS - 1)
}

/// Largest time that falls into a bucket, in microseconds.
fn upper_us(bucket: usize) -> u64 {
    let (doubling, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    ((STEPS as u64 + step + 1) << doubling) / STEPS as u64
}

impl Meter {
    /// A call took so long.
    pub fn record(&self, us: u64) {
        self.0[bucket(us)].fetch_add(1, Ordering::Relaxed);
    }

    /// Calls since `before`, and their p99 in microseconds; `before` becomes what is counted now.
    pub fn since(&self, before: &mut Vec<u64>) -> (u64, u64) {
        before.resize(BUCKETS, 0);
        let mut counts = Vec::with_capacity(BUCKETS);
        for (known, now) in before.iter_mut().zip(&self.0) {
            let now = now.load(Ordering::Relaxed);
            counts.push(now - *known);
            *known = now;
        }
        let all: u64 = counts.iter().sum();
        let mut left = all - all / 100;
        for (bucket, count) in counts.iter().enumerate() {
            left = left.saturating_sub(*count);
            if left == 0 && all > 0 {
                return (all, upper_us(bucket));
            }
        }
        (all, 0)
    }
}

/// What the executors of a node tell each other about it.
#[derive(Debug, Default)]
pub struct Pace {
    /// Produce calls.
    pub foreground: Meter,
    /// Bytes that moves into this node have asked for.
    pub received_bytes: AtomicU64,
    /// What copies into this node, and those out of it, may take at most, in bytes/s; 0: no limit.
    pub limit_bytes_per_s: AtomicU64,
    /// Bytes of all copies into this node that may be under way to its disk; 0: not decided yet.
    pub under_way_bytes: AtomicU64,
    /// Threads that copy stand behind others that want the processor, except for a frozen partition.
    pub gives_way: AtomicBool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p99_is_right_within_a_sixteenth() {
        let meter = Meter::default();
        let mut before = Vec::new();
        assert_eq!(meter.since(&mut before), (0, 0));
        for n in 1..=1_000 {
            meter.record(n * 10);
        }
        let (count, p99) = meter.since(&mut before);
        assert_eq!(count, 1_000);
        assert!((9_900..=9_900 * 17 / 16 + 1).contains(&p99), "{p99}");
        assert_eq!(meter.since(&mut before), (0, 0), "only what came since");
        for us in [0, 1, 3, 15, 16, 17, 1_000, 1_000_000, u64::MAX / 2] {
            let at = bucket(us);
            assert!(at < BUCKETS);
            if us < 1 << 25 {
                assert!(upper_us(at) >= us, "{us} in {at}: {}", upper_us(at));
            }
        }
    }
}
