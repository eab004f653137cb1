//! How many bytes of all the streams of a sending node are being read from its disk.
//!
//! What this file keeps true: more than the bound is read at once only as one single chunk; no stream waits
//! while it sends, nor for a stream that does; bytes of a drain never wait.
//!
//! A disk that is given sixteen large reads at once serves them before the small durable write that came after
//! them, and some schedulers prefer reads to writes altogether. One or two reads keep it as busy.

use crate::limits;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// The bound; see the head of the file.
pub(super) struct ReadGate {
    most_bytes: AtomicU64,
    under_way_bytes: Mutex<u64>,
    freed: Condvar,
}

/// Bytes that are being read until this is dropped.
pub(super) struct Reading<'a> {
    gate: &'a ReadGate,
    bytes: u64,
}

impl Default for ReadGate {
    fn default() -> Self {
        Self {
            most_bytes: AtomicU64::new(u64::MAX),
            under_way_bytes: Mutex::new(0),
            freed: Condvar::new(),
        }
    }
}

impl ReadGate {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.under_way_bytes
            .lock()
            .expect("no holder of this lock can panic")
    }

    /// Another bound; who waits looks again.
    pub(super) fn set(&self, most_bytes: u64) {
        if self.most_bytes.swap(most_bytes, Ordering::Relaxed) < most_bytes {
            self.wake();
        }
    }

    /// Bytes of one read, of `len` that are wanted: a part of the bound, so that one read is short as well.
    pub(super) fn piece(&self, len: usize) -> usize {
        let most = self.most_bytes.load(Ordering::Relaxed) / limits::BULK_READS;
        let piece = usize::try_from(most).unwrap_or(usize::MAX);
        let least = limits::BULK_READ_MIN_BYTES;
        len.min(piece.max(least) / least * least)
    }

    /// Waits until there is room, or the server stops.
    pub(super) fn enter(&self, bytes: usize, stopping: &AtomicBool) -> Reading<'_> {
        let bytes = bytes as u64;
        let full = |used: &mut u64| {
            let most = self.most_bytes.load(Ordering::Relaxed);
            *used > 0 && used.saturating_add(bytes) > most && !stopping.load(Ordering::Relaxed)
        };
        let mut used = self
            .freed
            .wait_while(self.lock(), full)
            .expect("no holder of this lock can panic");
        *used += bytes;
        Reading { gate: self, bytes }
    }

    /// Wakes who waits, so that a stopping server is noticed.
    pub(super) fn wake(&self) {
        drop(self.lock());
        self.freed.notify_all();
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        *self.gate.lock() -= self.bytes;
        // Whoever is woken may want more than is free while another one would fit.
        self.gate.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn a_read_is_a_part_of_the_bound() {
        let gate = ReadGate::default();
        assert_eq!(gate.piece(1 << 20), 1 << 20);
        gate.set(1 << 20);
        assert_eq!(gate.piece(1 << 20), 256 << 10);
        assert_eq!(gate.piece(4096), 4096, "no more than is wanted");
        gate.set(0);
        assert_eq!(gate.piece(1 << 20), limits::BULK_READ_MIN_BYTES);
    }

    #[test]
    fn a_read_waits_for_room_for_a_wider_bound_and_for_a_stop() {
        let gate = Arc::new(ReadGate::default());
        let stopping = Arc::new(AtomicBool::new(false));
        gate.set(10);
        let first = gate.enter(100, &stopping);
        let (said, heard) = channel();
        for _ in 0..3 {
            let (gate, stopping, said) = (gate.clone(), stopping.clone(), said.clone());
            std::thread::spawn(move || {
                let reading = gate.enter(6, &stopping);
                said.send(()).unwrap();
                std::mem::forget(reading);
            });
        }
        let none = heard.recv_timeout(Duration::from_millis(20));
        assert_eq!(none, Err(RecvTimeoutError::Timeout), "one large read alone");
        drop(first);
        heard.recv().expect("one fits");
        let none = heard.recv_timeout(Duration::from_millis(20));
        assert_eq!(
            none,
            Err(RecvTimeoutError::Timeout),
            "no more than the bound"
        );
        gate.set(12);
        heard.recv().expect("a wider bound counts at once");
        stopping.store(true, Ordering::Relaxed);
        gate.wake();
        heard.recv().expect("nobody holds a stop up");
    }
}
