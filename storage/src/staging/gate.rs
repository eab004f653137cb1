//! How many bytes of all the copies of one executor are on their way to the disk.
//!
//! What this file keeps true: more than the limit is under way only as one single write; whoever came first
//! goes first; a waiter that is dropped leaves nothing behind and holds nobody up.
//!
//! A disk serves what was handed to it first, so a small durable write waits for about as long as everything
//! before it takes. A rate alone does not bound that: eight copies that each have eight chunks under way
//! delay it by 64 of them. The bandwidth of a disk, on the other hand, is reached with a chunk or two.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A bound on bytes under way that several stagings share; see
/// [`Staging::set_gate`](super::Staging::set_gate). It lives on one executor.
#[derive(Debug)]
pub struct WriteGate {
    most_bytes: Cell<u64>,
    under_way_bytes: Cell<u64>,
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl WriteGate {
    /// At most so many bytes under way, or one write that is larger.
    #[must_use]
    pub fn new(most_bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            most_bytes: Cell::new(most_bytes),
            under_way_bytes: Cell::new(0),
            last: Cell::new(0),
            waiting: RefCell::default(),
        })
    }

    /// Another bound. What is under way already ends as it would have.
    pub fn set_most_bytes(&self, most_bytes: u64) {
        if self.most_bytes.replace(most_bytes) < most_bytes {
            self.wake_first();
        }
    }

    /// Bytes that are under way.
    #[must_use]
    pub fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes.get()
    }

    fn has_room(&self, bytes: u64) -> bool {
        let used = self.under_way_bytes.get();
        used == 0 || used.saturating_add(bytes) <= self.most_bytes.get()
    }

    fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.borrow().first_key_value() {
            first.wake_by_ref();
        }
    }

    /// Waits until there is room. Dropping the future gives up its place; dropping the pass ends it.
    pub(super) fn pass(self: &Rc<Self>, bytes: u64) -> impl Future<Output = Pass> + use<> {
        Turn {
            gate: self.clone(),
            bytes,
            place: None,
        }
    }
}

/// Bytes that are under way until this is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Rc<WriteGate>,
    bytes: u64,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let used = &self.gate.under_way_bytes;
        used.set(used.get() - self.bytes);
        self.gate.wake_first();
    }
}

struct Turn {
    gate: Rc<WriteGate>,
    bytes: u64,
    place: Option<u64>,
}

impl Future for Turn {
    type Output = Pass;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pass> {
        let gate = self.gate.clone();
        let mut waiting = gate.waiting.borrow_mut();
        let first = waiting.first_key_value().map(|(place, _)| *place);
        if first.is_none_or(|first| self.place == Some(first)) && gate.has_room(self.bytes) {
            if let Some(place) = self.place.take() {
                waiting.remove(&place);
            }
            drop(waiting);
            gate.under_way_bytes
                .set(gate.under_way_bytes.get() + self.bytes);
            // There may be room for the next one as well.
            gate.wake_first();
            let bytes = self.bytes;
            return Poll::Ready(Pass { gate, bytes });
        }
        let place = *self.place.get_or_insert_with(|| {
            gate.last.set(gate.last.get() + 1);
            gate.last.get()
        });
        waiting.insert(place, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.gate.waiting.borrow_mut().remove(&place);
            self.gate.wake_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn no_more_than_the_bound_and_in_order() {
        let gate = WriteGate::new(10);
        let first = gate.pass(6).now_or_never().expect("there is room");
        let mut second = Box::pin(gate.pass(6));
        let mut third = Box::pin(gate.pass(1));
        assert!(second.as_mut().now_or_never().is_none());
        // There would be room for it; but it came later.
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none());
        let second = second.now_or_never().expect("its turn");
        let third = third.now_or_never().expect("its turn");
        assert_eq!(gate.under_way_bytes(), 7);
        drop((second, third));
        assert_eq!(gate.under_way_bytes(), 0);
    }

    #[test]
    fn one_write_may_be_larger_than_the_bound() {
        let gate = WriteGate::new(10);
        let large = gate.pass(100).now_or_never().expect("it is alone");
        assert!(gate.pass(1).now_or_never().is_none());
        gate.set_most_bytes(101);
        assert!(gate.pass(1).now_or_never().is_some());
        drop(large);
    }

    #[test]
    fn who_gives_up_holds_nobody_up() {
        let gate = WriteGate::new(10);
        let first = gate.pass(6).now_or_never().expect("there is room");
        let mut second = Box::pin(gate.pass(6));
        assert!(second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(gate.pass(1));
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.now_or_never().is_some());
        assert!(gate.waiting.borrow().is_empty());
        drop(first);
    }
}
