//! Waiting for the high-watermark to pass an offset.
//!
//! What this file keeps true: a waiter that is dropped leaves nothing behind; each is woken once its
//! condition holds or the log stops.

use super::Store;
use narad_core::ids::Offset;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl Waiters {
    /// Wakes everyone who waits; each looks again at what it waits for.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.inner.borrow_mut().waiting);
        for waker in waiting.into_values() {
            waker.wake();
        }
    }
}

/// Waits until a condition on the store holds.
pub(crate) struct Until<F> {
    store: Rc<Store>,
    ready: F,
    key: Option<u64>,
}

impl<F: Fn(&Store) -> bool> Until<F> {
    pub(crate) const fn new(store: Rc<Store>, ready: F) -> Self {
        Self {
            store,
            ready,
            key: None,
        }
    }
}

impl<F: Fn(&Store) -> bool + Unpin> Future for Until<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if (this.ready)(&this.store) {
            return Poll::Ready(());
        }
        let mut inner = this.store.waiters.inner.borrow_mut();
        let key = match this.key {
            Some(key) => key,
            None => {
                inner.last += 1;
                inner.last
            }
        };
        this.key = Some(key);
        inner.waiting.insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl<F> Drop for Until<F> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.store.waiters.inner.borrow_mut().waiting.remove(&key);
        }
    }
}

impl Store {
    /// Waits until the high-watermark is above `offset` or the log has stopped.
    pub(crate) fn past(self: &Rc<Self>, offset: Offset) -> impl Future<Output = ()> + use<> {
        Until::new(self.clone(), move |store: &Store| {
            let state = store.state.borrow();
            state.hwm() > offset || state.closed.is_some()
        })
    }

    /// Waits until no append is queued or in flight.
    pub(crate) fn settled(self: &Rc<Self>) -> impl Future<Output = ()> + use<> {
        Until::new(self.clone(), |store: &Store| {
            let state = store.state.borrow();
            state.queue.is_empty() && !state.writer_runs
        })
    }
}
