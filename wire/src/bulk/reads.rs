//! How many bytes of all the streams of a sending node are being read from its disk.
//!
//! What this file keeps true: more than the bound is read at once only as one single chunk; no stream waits
//! while it sends, nor for a stream that does; bytes of a drain never wait.
//!
//! A disk that is given sixteen large reads at once serves them before the small durable write that came after
//! them, and some schedulers prefer reads to writes altogether. One or two reads keep it as busy.

use crate::limits;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;

/// The bound; see the head of the file.
pub(super) struct ReadGate {
    most_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    under_way_bytes: u64,
    /// In the order in which they came.
    waiting: VecDeque<Arc<Turn>>,
}

/// One that waits. It alone is woken when there is room for it: with a dozen streams that wait, waking all for each read
/// would cost more than the read.
struct Turn {
    bytes: u64,
    granted: AtomicBool,
    thread: Thread,
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
            state: Mutex::default(),
        }
    }
}

impl ReadGate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock can panic")
    }

    fn fits(&self, used: u64, bytes: u64) -> bool {
        used == 0 || used.saturating_add(bytes) <= self.most_bytes.load(Ordering::Relaxed)
    }

    /// Lets everybody in for whom there is room, in turn.
    fn grant(&self, state: &mut State) {
        while let Some(first) = state.waiting.front()
            && self.fits(state.under_way_bytes, first.bytes)
        {
            state.under_way_bytes += first.bytes;
            first.granted.store(true, Ordering::Release);
            first.thread.unpark();
            state.waiting.pop_front();
        }
    }

    /// Another bound, which counts at once.
    pub(super) fn set(&self, most_bytes: u64) {
        if self.most_bytes.swap(most_bytes, Ordering::Relaxed) < most_bytes {
            self.grant(&mut self.lock());
        }
    }

    /// Bytes of one read, of `len` that are wanted: no more than the bound.
    pub(super) fn piece(&self, len: usize) -> usize {
        let most = self.most_bytes.load(Ordering::Relaxed);
        let piece = usize::try_from(most).unwrap_or(usize::MAX);
        let least = limits::BULK_READ_MIN_BYTES;
        len.min(piece.max(least) / least * least)
    }

    /// Waits until there is room, or the server stops.
    pub(super) fn enter(&self, bytes: usize, stopping: &AtomicBool) -> Reading<'_> {
        let bytes = bytes as u64;
        let reading = Reading { gate: self, bytes };
        let mut state = self.lock();
        if state.waiting.is_empty() && self.fits(state.under_way_bytes, bytes) {
            state.under_way_bytes += bytes;
            return reading;
        }
        let turn = Arc::new(Turn {
            bytes,
            granted: AtomicBool::new(false),
            thread: std::thread::current(),
        });
        state.waiting.push_back(turn.clone());
        drop(state);
        while !turn.granted.load(Ordering::Acquire) {
            if stopping.load(Ordering::SeqCst) {
                let mut state = self.lock();
                if !turn.granted.load(Ordering::Acquire) {
                    state.waiting.retain(|other| !Arc::ptr_eq(other, &turn));
                    state.under_way_bytes += bytes;
                }
                break;
            }
            std::thread::park();
        }
        reading
    }

    /// Wakes who waits, so that a stopping server is noticed.
    pub(super) fn wake(&self) {
        for turn in &self.lock().waiting {
            turn.thread.unpark();
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.under_way_bytes -= self.bytes;
        self.gate.grant(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn a_read_is_no_longer_than_the_bound() {
        let gate = ReadGate::default();
        assert_eq!(gate.piece(1 << 20), 1 << 20);
        gate.set(300 << 10);
        assert_eq!(gate.piece(1 << 20), 256 << 10);
        assert_eq!(gate.piece(4096), 4096, "no more than is wanted");
        gate.set(0);
        assert_eq!(gate.piece(1 << 20), limits::BULK_READ_MIN_BYTES);
    }

    #[test]
    fn reads_are_let_in_in_the_order_in_which_they_came() {
        let gate = Arc::new(ReadGate::default());
        gate.set(10);
        let first = gate.enter(10, &AtomicBool::new(false));
        let (said, heard) = channel();
        for number in 0..4 {
            let (entered, said) = (gate.clone(), said.clone());
            std::thread::spawn(move || {
                // The last one would fit long before the one in front of it.
                let bytes = if number == 3 { 1 } else { 10 };
                let reading = entered.enter(bytes, &AtomicBool::new(false));
                said.send(number).unwrap();
                drop(reading);
            });
            while waiting(&gate) <= number {
                std::thread::yield_now();
            }
        }
        drop(first);
        let order: Vec<usize> = heard.iter().take(4).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        assert_eq!(gate.lock().under_way_bytes, 0);
    }

    fn waiting(gate: &ReadGate) -> usize {
        gate.lock().waiting.len()
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
