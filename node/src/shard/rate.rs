//! How fast a partition is written: W of the move, in bytes per second.
//!
//! What this file keeps true: the figure covers the last one to two seconds, so that a burst that
//! is over does not make a move look as if it could not converge.

use narad_core::ids::MonoMs;

/// Length of one window, in ms.
const WINDOW_MS: u64 = 1_000;

/// Bytes appended in the running and in the previous window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateMeter {
    window: u64,
    current: u64,
    previous: u64,
}

impl RateMeter {
    fn roll(&mut self, now: MonoMs) {
        let window = now.0 / WINDOW_MS;
        if window == self.window {
            return;
        }
        self.previous = if window == self.window + 1 {
            self.current
        } else {
            0
        };
        self.current = 0;
        self.window = window;
    }

    /// `bytes` were appended at `now`.
    pub(crate) fn add(&mut self, now: MonoMs, bytes: u64) {
        self.roll(now);
        self.current += bytes;
    }

    /// Bytes per second up to `now`.
    pub(crate) fn bytes_per_s(&mut self, now: MonoMs) -> u64 {
        self.roll(now);
        let covered_ms = WINDOW_MS + now.0 % WINDOW_MS;
        (self.current + self.previous) * 1_000 / covered_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_writer_is_measured_and_a_burst_is_forgotten() {
        let mut meter = RateMeter::default();
        for step in 0..40 {
            meter.add(MonoMs(step * 100), 1_000);
        }
        let rate = meter.bytes_per_s(MonoMs(3_999));
        assert!((9_000..=11_000).contains(&rate), "{rate}");
        assert_eq!(meter.bytes_per_s(MonoMs(6_000)), 0);
    }
}
