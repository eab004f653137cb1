//! How many files the logs and copies of an executor hold open.
//!
//! What this file keeps true: every open file is counted until it is dropped; whoever waits for too many hears of
//! it with the one that is too many, before the next is opened.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

thread_local! {
    static OPEN: Cell<u64> = const { Cell::new(0) };
    static WAITING: RefCell<Option<(u64, Waker)>> = const { RefCell::new(None) };
}

/// Files that this executor's logs and copies hold open.
#[must_use]
pub fn open_files() -> u64 {
    OPEN.with(Cell::get)
}

/// Waits until more than so many are open. One waiter an executor: another one takes its place.
pub async fn more_open_files_than(most: u64) {
    poll_fn(|cx| {
        if open_files() > most {
            return Poll::Ready(());
        }
        WAITING.with(|waiting| waiting.replace(Some((most, cx.waker().clone()))));
        Poll::Pending
    })
    .await;
}

/// Counts one open file until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted;

impl Counted {
    pub(crate) fn new() -> Self {
        let open = OPEN.with(|open| {
            open.set(open.get() + 1);
            open.get()
        });
        WAITING.with(|waiting| {
            let mut waiting = waiting.borrow_mut();
            if waiting.as_ref().is_some_and(|(most, _)| open > *most)
                && let Some((_, waker)) = waiting.take()
            {
                waker.wake();
            }
        });
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // At the end of a thread there is nobody to count for.
        let _ = OPEN.try_with(|open| open.set(open.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn the_one_that_is_too_many_is_heard_of() {
        let before = open_files();
        let mut waits = Box::pin(more_open_files_than(before + 1));
        assert!(waits.as_mut().now_or_never().is_none());
        let first = Counted::new();
        assert!(waits.as_mut().now_or_never().is_none());
        let second = Counted::new();
        assert!(waits.now_or_never().is_some());
        drop((first, second));
        assert_eq!(open_files(), before);
    }
}
