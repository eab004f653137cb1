//! When a catch-up stops copying and freezes.
//!
//! What this file keeps true: every catch-up ends. One that does not shrink its tail stops early,
//! because the tail only grows while a moving end is chased; one whose passes have shown that the
//! partition is written more slowly than it is copied goes on until the tail is short, and gives up
//! after [`PASSES_MAX`] passes without a shorter one.

use crate::defaults::{
    FREEZE_BUDGET_MS, LAG_BOUND_MAX_BYTES, PASSES_MAX, SLOWER_PERCENT, STALL_GRACE_BYTES,
    STALL_PERCENT,
};

/// A pass below this size says little about bandwidth: its time is round trips.
const SAMPLE_MIN_BYTES: u64 = 1 << 20;
/// Lag bound while no pass was large enough to measure bandwidth, in bytes: what one round trip
/// carries anyway.
const LAG_BOUND_UNMEASURED_BYTES: u64 = 256 << 10;
/// Smallest lag bound, in bytes: one block.
const LAG_BOUND_MIN_BYTES: u64 = 4 << 10;

const _: () = {
    assert!(LAG_BOUND_MIN_BYTES < LAG_BOUND_UNMEASURED_BYTES);
    assert!(LAG_BOUND_UNMEASURED_BYTES < SAMPLE_MIN_BYTES);
    assert!(SAMPLE_MIN_BYTES <= LAG_BOUND_MAX_BYTES);
};

/// What to do with a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Copy it in another pass.
    Continue,
    /// It is short enough to be drained in the freeze.
    Converged,
    /// It will not become short: freeze and drain it anyway.
    NotConverged {
        /// Why not.
        why: Stall,
    },
}

/// Why a catch-up gives up shrinking the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// The tail is at least 0.9 of the one before: the partition is written about as fast as it is
    /// copied (W >= B).
    TailNotShrinking,
    /// The most passes were made, or made without the tail becoming shorter.
    Passes,
}

/// What an operator may choose about a catch-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CatchUpLimits {
    /// How long a freeze should last, in ms.
    pub freeze_budget_ms: u64,
    /// Largest tail at which a move freezes, in bytes.
    pub lag_bound_max_bytes: u64,
    /// Most passes of a catch-up that is about as slow as the writer; of one that is faster, most
    /// passes in a row that do not bring the tail to 0.9 of the shortest so far.
    pub passes_max: u32,
}

impl Default for CatchUpLimits {
    fn default() -> Self {
        Self {
            freeze_budget_ms: FREEZE_BUDGET_MS,
            lag_bound_max_bytes: LAG_BOUND_MAX_BYTES,
            passes_max: PASSES_MAX,
        }
    }
}

/// One catch-up: its passes, its tails, its bandwidth.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Convergence {
    limits: CatchUpLimits,
    passes: u32,
    previous: Option<u64>,
    grace_used: bool,
    measured: Option<u64>,
    /// What the passes copied, in bytes.
    copied: u64,
    /// What was written meanwhile, in bytes: the tails behind the passes.
    written: u64,
    /// The shortest tail so far, in bytes.
    shortest: Option<u64>,
    /// Passes since it became shorter by a tenth.
    idle_passes: u32,
}

impl Convergence {
    /// A catch-up of which nothing is known.
    #[must_use]
    pub fn new(limits: CatchUpLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A new catch-up over the same link: the bandwidth is kept, the passes are not.
    pub fn restart(&mut self) {
        *self = Self {
            limits: self.limits,
            measured: self.measured,
            ..Self::default()
        };
    }

    /// Time went by without a pass: the tail that comes next says nothing about the passes.
    pub fn waited(&mut self) {
        self.previous = None;
    }

    /// The same without what only measures: whether a pass was made is all that is kept.
    pub(super) fn without_pacing(&self) -> Self {
        Self {
            passes: self.passes.min(1),
            ..Self::new(self.limits)
        }
    }

    /// Passes made.
    #[must_use]
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// B as the latest pass of a measurable size showed it, in bytes/s.
    #[must_use]
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.measured
    }

    /// A pass copied `bytes` in `elapsed_us`.
    pub fn pass_done(&mut self, bytes: u64, elapsed_us: u64) {
        self.passes = self.passes.saturating_add(1);
        if bytes >= SAMPLE_MIN_BYTES {
            let rate = u128::from(bytes) * 1_000_000 / u128::from(elapsed_us.max(1));
            self.measured = Some(u64::try_from(rate).unwrap_or(u64::MAX));
        }
    }

    /// The largest tail that may be left to the freeze, in bytes.
    #[must_use]
    pub fn lag_bound(&self) -> u64 {
        let most = self.limits.lag_bound_max_bytes;
        let bound = self.measured.map_or(LAG_BOUND_UNMEASURED_BYTES, |rate| {
            rate.saturating_mul(self.limits.freeze_budget_ms) / 1_000
        });
        bound.max(LAG_BOUND_MIN_BYTES).min(most)
    }

    /// Judges the tail that is left, in bytes. To be asked once before each pass, the first with
    /// everything that is to be copied.
    pub fn decide(&mut self, tail: u64) -> Decision {
        let previous = self.previous.replace(tail);
        if let Some(before) = previous {
            self.copied = self.copied.saturating_add(before);
            self.written = self.written.saturating_add(tail);
        }
        if self
            .shortest
            .is_none_or(|best| at_most(tail, best, STALL_PERCENT))
        {
            self.shortest = Some(tail);
            self.idle_passes = 0;
        } else {
            self.idle_passes = self.idle_passes.saturating_add(1);
        }
        // Before the first pass nothing is measured: whatever there is, is copied unfrozen.
        if tail == 0 || (self.passes > 0 && tail <= self.lag_bound()) {
            return Decision::Converged;
        }
        match previous {
            Some(before) if self.writer_is_slower() => self.decide_slower(tail, before),
            _ => self.decide_as_fast(tail, previous),
        }
    }

    /// W / B over the whole catch-up, once enough was copied to know it.
    fn writer_is_slower(&self) -> bool {
        self.copied >= SAMPLE_MIN_BYTES && at_most(self.written, self.copied, SLOWER_PERCENT)
    }

    /// The writer is slower than the copy: the tail will be short, and one pass that says otherwise
    /// is a burst. Only a long tail that grows again shows that the writer has become faster.
    fn decide_slower(&self, tail: u64, before: u64) -> Decision {
        if tail >= STALL_GRACE_BYTES && tail >= before {
            return Decision::NotConverged {
                why: Stall::TailNotShrinking,
            };
        }
        if self.idle_passes >= self.limits.passes_max {
            return Decision::NotConverged { why: Stall::Passes };
        }
        Decision::Continue
    }

    /// The writer is about as fast as the copy, or nothing is known of it yet.
    fn decide_as_fast(&mut self, tail: u64, previous: Option<u64>) -> Decision {
        if self.passes >= self.limits.passes_max {
            return Decision::NotConverged { why: Stall::Passes };
        }
        let stalled = previous.is_some_and(|before| !below(tail, before, STALL_PERCENT));
        if !stalled {
            return Decision::Continue;
        }
        if tail < STALL_GRACE_BYTES && !self.grace_used {
            self.grace_used = true;
            return Decision::Continue;
        }
        Decision::NotConverged {
            why: Stall::TailNotShrinking,
        }
    }
}

/// `part` is below so many percent of `whole`.
fn below(part: u64, whole: u64, percent: u64) -> bool {
    u128::from(part) * 100 < u128::from(whole) * u128::from(percent)
}

/// `part` is at most so many percent of `whole`.
fn at_most(part: u64, whole: u64, percent: u64) -> bool {
    u128::from(part) * 100 <= u128::from(whole) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Copies with bandwidth `b` while `w` is written (both bytes/s); the decision and the passes.
    fn catch_up(total: u64, b: u64, w: u64) -> (Decision, u32, u64) {
        let mut c = Convergence::new(CatchUpLimits::default());
        let mut tail = total;
        loop {
            match c.decide(tail) {
                Decision::Continue => {
                    let us = tail * 1_000_000 / b;
                    c.pass_done(tail, us);
                    tail = us * w / 1_000_000;
                }
                end => return (end, c.passes(), tail),
            }
        }
    }

    #[test]
    fn an_idle_partition_takes_one_pass() {
        assert_eq!(catch_up(1 << 30, 500 * MIB, 0), (Decision::Converged, 1, 0));
    }

    #[test]
    fn nothing_to_copy_takes_no_pass() {
        assert_eq!(catch_up(0, 1, 0), (Decision::Converged, 0, 0));
    }

    #[test]
    fn slower_writes_shrink_the_tail_below_the_bound() {
        for percent in [1, 20, 50, 70] {
            let b = 500 * MIB;
            let (decision, passes, tail) = catch_up(1 << 30, b, b * percent / 100);
            assert_eq!(decision, Decision::Converged, "{percent}");
            assert!(passes <= PASSES_MAX && tail <= b * FREEZE_BUDGET_MS / 1000);
        }
    }

    #[test]
    fn faster_writes_stop_at_the_first_pass_that_does_not_shrink() {
        let (decision, passes, _) = catch_up(1 << 30, 100 * MIB, 120 * MIB);
        assert_eq!(
            decision,
            Decision::NotConverged {
                why: Stall::TailNotShrinking
            }
        );
        assert_eq!(passes, 1);
    }

    #[test]
    fn a_short_tail_gets_one_pass_of_grace_and_no_more() {
        let mut c = Convergence::new(CatchUpLimits::default());
        assert_eq!(c.decide(8 * MIB), Decision::Continue);
        c.pass_done(8 * MIB, 1_000_000);
        assert_eq!(c.decide(8 * MIB), Decision::Continue);
        c.pass_done(8 * MIB, 1_000_000);
        assert_eq!(
            c.decide(8 * MIB),
            Decision::NotConverged {
                why: Stall::TailNotShrinking
            }
        );
    }

    #[test]
    fn a_writer_that_is_slower_is_caught_up_with_however_large_the_partition() {
        let b = 400 * MIB;
        for (total, percent) in [(64 * MIB, 90), (1 << 43, 90), (1 << 30, 75)] {
            let (decision, passes, tail) = catch_up(total, b, b * percent / 100);
            assert_eq!(decision, Decision::Converged, "{total} {percent}");
            assert!(tail <= b * FREEZE_BUDGET_MS / 1000, "{tail} left");
            assert!(passes < 200, "{passes}");
        }
    }

    #[test]
    fn a_burst_does_not_end_the_catch_up_with_a_slow_writer() {
        let mut c = Convergence::new(CatchUpLimits::default());
        c.decide(100 * MIB);
        c.pass_done(100 * MIB, 1_000_000);
        // Half as fast as the copy, in bursts of 4 MiB.
        let mut tail = 4 * MIB;
        for pass in 0..PASSES_MAX {
            assert_eq!(c.decide(tail), Decision::Continue, "{pass}");
            c.pass_done(tail, 40_000);
            tail = 4 * MIB;
        }
        assert_eq!(
            c.decide(tail),
            Decision::NotConverged { why: Stall::Passes }
        );
    }

    #[test]
    fn a_writer_that_becomes_faster_than_the_copy_ends_the_catch_up() {
        let mut c = Convergence::new(CatchUpLimits::default());
        for tail in [400 * MIB, 100 * MIB] {
            assert_eq!(c.decide(tail), Decision::Continue);
            c.pass_done(tail, 1_000_000);
        }
        assert_eq!(
            c.decide(110 * MIB),
            Decision::NotConverged {
                why: Stall::TailNotShrinking
            }
        );
    }

    #[test]
    fn passes_are_bounded_while_too_little_was_copied_to_know_the_writer() {
        let mut c = Convergence::new(CatchUpLimits {
            passes_max: 2,
            ..CatchUpLimits::default()
        });
        for tail in [340_000, 300_000] {
            assert_eq!(c.decide(tail), Decision::Continue);
            c.pass_done(tail, 1_000_000);
        }
        assert_eq!(
            c.decide(265_000),
            Decision::NotConverged { why: Stall::Passes }
        );
    }

    #[test]
    fn the_lag_bound_is_what_bandwidth_moves_in_the_budget_and_is_capped() {
        let mut c = Convergence::new(CatchUpLimits::default());
        c.pass_done(100 * MIB, 1_000_000);
        assert_eq!(c.lag_bound(), 100 * MIB * FREEZE_BUDGET_MS / 1_000);
        c.pass_done(4_000 * MIB, 1_000_000);
        assert_eq!(c.lag_bound(), LAG_BOUND_MAX_BYTES);
        // A small pass is round trips, not bandwidth.
        c.pass_done(4_096, 1_000_000);
        assert_eq!(c.lag_bound(), LAG_BOUND_MAX_BYTES);
    }
}
