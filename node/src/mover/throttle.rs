//! The node's limits on the copies into it, fixed or adaptive, shared by all of them.
//!
//! What this file keeps true: all throttled copies together have no more under way to the disk than is
//! allowed; over any second or more, throttled copies together take no more than
//! the limit, one chunk each, and what was saved up before; a drain in a freeze never asks here. Every source keeps the same limit
//! for what it sends, so this one binds only when several send to this node; a reader that waits here
//! holds its source back through the socket.

use super::limits::{CHUNK_BYTES, CHUNK_MIN_BYTES, THROTTLE_SAVED_BYTES, THROTTLE_WAIT_MS};
use crate::pace::Pace;
use narad_core::throttle::Limits;
use narad_storage::WriteGate;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A token bucket that may go into debt by one request; whoever comes while it is in debt waits.
pub(super) struct Throttle {
    pace: Arc<Pace>,
    bytes_per_s: Cell<Option<u64>>,
    tokens: Cell<f64>,
    filled: Cell<Instant>,
    gate: Rc<WriteGate>,
}

impl Throttle {
    /// Under the limit that `pace` has at each moment.
    pub(super) fn new(pace: Arc<Pace>) -> Self {
        Self {
            pace,
            bytes_per_s: Cell::new(None),
            tokens: Cell::new(0.0),
            filled: Cell::new(Instant::now()),
            gate: WriteGate::new(Limits::NONE.under_way_bytes),
        }
    }

    /// What the writes of all throttled copies pass through, under the bound of this moment.
    pub(super) fn gate(&self) -> &Rc<WriteGate> {
        self.gate.set_most_bytes(self.under_way_bytes());
        &self.gate
    }

    fn under_way_bytes(&self) -> u64 {
        match self.pace.under_way_bytes.load(Ordering::Relaxed) {
            0 => Limits::NONE.under_way_bytes,
            most => most,
        }
    }

    /// Bytes of one write: all of a low bound, since the next one's bytes arrive while it is under way. In four pieces the same bound took
    /// more calls and wake-ups than two cores had beside their load, for half of the bytes.
    pub(super) fn chunk_bytes(&self) -> usize {
        let most = usize::try_from(self.under_way_bytes()).unwrap_or(usize::MAX);
        let whole = most / CHUNK_MIN_BYTES * CHUNK_MIN_BYTES;
        whole.clamp(CHUNK_MIN_BYTES, CHUNK_BYTES)
    }

    /// Looks at the limit in force.
    fn look(&self) {
        let limit = self.pace.limit_bytes_per_s.load(Ordering::Relaxed);
        let bytes_per_s = (limit > 0).then_some(limit);
        if self.bytes_per_s.replace(bytes_per_s) != bytes_per_s {
            self.tokens.set(0.0);
            self.filled.set(Instant::now());
        }
    }

    /// Takes what has been earned since the last time; how long a caller has to wait, if at all.
    fn wait_at(&self, now: Instant, bytes: u64) -> Option<Duration> {
        self.look();
        let rate = self.bytes_per_s.get()? as f64;
        let earned = now.duration_since(self.filled.get()).as_secs_f64() * rate;
        self.filled.set(now);
        // What a short pause did not use is saved up, and so is what the streams of one move hold back
        // for one another: bytes arrive range by range, although they were sent evenly.
        let saved = (rate / 10.0).max(THROTTLE_SAVED_BYTES as f64);
        let tokens = (self.tokens.get() + earned).min(saved);
        if tokens >= 0.0 {
            self.tokens.set(tokens - bytes as f64);
            return None;
        }
        self.tokens.set(tokens);
        let wait = Duration::from_secs_f64(-tokens / rate);
        Some(wait.clamp(
            Duration::from_millis(1),
            Duration::from_millis(THROTTLE_WAIT_MS),
        ))
    }

    /// Pays for `bytes` that arrived; waits while those before them are not paid for. Dropping the
    /// future pays for nothing.
    pub(super) async fn take(&self, bytes: u64) {
        while let Some(wait) = self.wait_at(Instant::now(), bytes) {
            glommio::timer::sleep(wait).await;
        }
        self.pace.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn set(&self, bytes_per_s: Option<u64>) {
        let limit = bytes_per_s.unwrap_or(0);
        self.pace.limit_bytes_per_s.store(limit, Ordering::Relaxed);
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_over_time_and_none_is_none() {
        let throttle = Throttle::new(Arc::default());
        let start = Instant::now();
        assert_eq!(throttle.wait_at(start, u64::MAX), None);
        throttle.set(Some(1_000_000));
        let mut now = Instant::now();
        let begin = now;
        let mut taken = 0;
        for _ in 0..100 {
            while let Some(wait) = throttle.wait_at(now, 100_000) {
                now += wait;
            }
            taken += 100_000;
        }
        let seconds = now.duration_since(begin).as_secs_f64();
        let allowed = seconds.mul_add(1_000_000.0, 200_000.0);
        assert!(f64::from(taken) <= allowed, "{taken} in {seconds} s");
        assert!(
            seconds < 11.0,
            "it is not slower than the limit: {seconds} s"
        );
    }

    #[test]
    fn a_limit_that_is_lifted_counts_at_once() {
        let throttle = Throttle::new(Arc::default());
        throttle.set(Some(1));
        let now = Instant::now();
        throttle.wait_at(now, 1_000_000);
        assert!(throttle.wait_at(now, 1).is_some());
        throttle.set(None);
        assert_eq!(throttle.wait_at(now, 1), None);
    }
}
