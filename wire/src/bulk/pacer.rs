//! The rate limit that all streams of a sending node share.
//!
//! What this file keeps true: bytes are paid for before they leave, so that a range takes as long as
//! it would on a link of that speed, whatever its size; a pause between ranges saves up
//! [`BULK_BURST_US`] at the most, and a thread that was woken late inside one makes up for
//! [`BULK_LATE_US`]; a limit that is changed or lifted counts at once.
//!
//! [`BULK_BURST_US`]: crate::limits::BULK_BURST_US
//! [`BULK_LATE_US`]: crate::limits::BULK_LATE_US

use crate::limits;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A rate limit in bytes/s; 0 is none.
#[derive(Default)]
pub(super) struct Pacer {
    bytes_per_s: AtomicU64,
    /// When all bytes that were let through are paid for.
    paid_at: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Pacer {
    /// Bytes that should be paid for at once, at most `len`: a slow link carries small pieces.
    pub(super) fn quantum(&self, len: usize) -> usize {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate == 0 {
            return len;
        }
        let piece = rate.saturating_mul(limits::BULK_QUANTUM_US) / 1_000_000;
        let least = limits::BULK_QUANTUM_MIN_BYTES;
        let piece = usize::try_from(piece).map_or(len, |piece| piece.max(least) / least * least);
        len.min(piece)
    }

    /// Waits until `bytes` more are paid for, the limit changes, or the server stops. `inside`: they
    /// follow others of the same range at once.
    pub(super) fn pace(&self, bytes: usize, inside: bool, stopping: &AtomicBool) {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let mut paid_at = self
            .paid_at
            .lock()
            .expect("no holder of this lock can panic");
        let now = Instant::now();
        let saved_us = if inside {
            limits::BULK_LATE_US
        } else {
            limits::BULK_BURST_US
        };
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mine = due(*paid_at, now, cost, Duration::from_micros(saved_us));
        *paid_at = Some(mine);
        loop {
            let left = mine.saturating_duration_since(Instant::now());
            let same_rate = self.bytes_per_s.load(Ordering::Relaxed) == rate;
            if left.is_zero() || !same_rate || stopping.load(Ordering::Relaxed) {
                return;
            }
            (paid_at, _) = self
                .changed
                .wait_timeout(paid_at, left)
                .expect("no holder of this lock can panic");
        }
    }

    /// Another limit; who waits under the former one goes on.
    pub(super) fn set(&self, bytes_per_s: u64) {
        let mut paid_at = self
            .paid_at
            .lock()
            .expect("no holder of this lock can panic");
        if self.bytes_per_s.swap(bytes_per_s, Ordering::Relaxed) != bytes_per_s {
            *paid_at = None;
        }
        drop(paid_at);
        self.changed.notify_all();
    }

    /// Wakes who waits, so that a stopping server is noticed.
    pub(super) fn wake(&self) {
        drop(
            self.paid_at
                .lock()
                .expect("no holder of this lock can panic"),
        );
        self.changed.notify_all();
    }
}

/// When bytes that cost so much time are paid for. What a short pause did not use is not lost: the time
/// between two passes costs nothing, and a busy machine that wakes a thread late does not lower the rate.
fn due(paid_at: Option<Instant>, now: Instant, cost: Duration, saved: Duration) -> Instant {
    let earliest = now.checked_sub(saved).unwrap_or(now);
    paid_at.map_or(now, |at| at.max(earliest)) + cost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_rate_and_are_never_longer_than_what_is_left() {
        let pacer = Pacer::default();
        assert_eq!(pacer.quantum(1 << 20), 1 << 20);
        pacer.set(16 << 20);
        let piece = pacer.quantum(1 << 20);
        assert!(piece < 1 << 20 && piece.is_multiple_of(limits::BULK_QUANTUM_MIN_BYTES));
        assert_eq!(pacer.quantum(512), 512);
        pacer.set(1);
        assert_eq!(pacer.quantum(1 << 20), limits::BULK_QUANTUM_MIN_BYTES);
        pacer.set(u64::MAX);
        assert_eq!(pacer.quantum(1 << 20), 1 << 20);
    }

    #[test]
    fn bytes_are_paid_for_before_they_leave_also_the_first() {
        let (pacer, stopping) = (Pacer::default(), AtomicBool::new(false));
        pacer.set(1 << 20);
        let began = Instant::now();
        pacer.pace(64 << 10, false, &stopping);
        let first = began.elapsed();
        // A sixteenth of a second for a sixteenth of the bytes.
        assert!(first >= Duration::from_millis(62), "{first:?}");
        pacer.pace(64 << 10, false, &stopping);
        assert!(began.elapsed() >= Duration::from_millis(124));
    }

    #[test]
    fn a_pause_saves_up_a_burst_and_no_more() {
        let (pacer, stopping) = (Pacer::default(), AtomicBool::new(false));
        pacer.set(1 << 20);
        pacer.pace(4_096, false, &stopping);
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        pacer.pace(64 << 10, false, &stopping);
        let least = Duration::from_micros(62_500 - limits::BULK_BURST_US);
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    }

    #[test]
    fn lateness_is_made_up_for_as_far_as_it_may_be_saved() {
        let (ms, start) = (Duration::from_millis, Instant::now());
        let now = start + ms(50);
        // Nothing was sent before: the clock begins now.
        assert_eq!(due(None, now, ms(10), ms(5)), now + ms(10));
        // 8 ms late: all of it, or as much as may be saved.
        assert_eq!(due(Some(start + ms(42)), now, ms(10), ms(100)), now + ms(2));
        assert_eq!(due(Some(start + ms(42)), now, ms(10), ms(5)), now + ms(5));
        // Others have paid ahead: behind them.
        assert_eq!(due(Some(start + ms(70)), now, ms(10), ms(5)), now + ms(30));
    }

    #[test]
    fn a_stopping_server_waits_for_nothing() {
        let (pacer, stopping) = (Pacer::default(), AtomicBool::new(true));
        pacer.set(1);
        pacer.pace(1 << 20, true, &stopping);
    }
}
