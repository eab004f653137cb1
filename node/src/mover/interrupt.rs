//! Stopping an operation of a move half way.
//!
//! What this file keeps true: an operation that is stopped answers all the same, so that the worker
//! is never left waiting.

use super::receive::CopyError;
use futures::future::{Either, select};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use tokio::sync::Notify;

/// The operation was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

impl From<Stopped> for CopyError {
    fn from(_: Stopped) -> Self {
        Self::Interrupted
    }
}

/// Tells the operation that runs to stop.
#[derive(Default)]
pub(super) struct Interrupt {
    asked: Cell<bool>,
    notify: Notify,
}

impl Interrupt {
    /// A new operation begins: nobody has asked it to stop.
    pub(super) fn arm(&self) {
        self.asked.set(false);
    }

    /// Asks the operation to stop.
    pub(super) fn stop(&self) {
        self.asked.set(true);
        self.notify.notify_waiters();
    }

    /// Runs `work` unless and until it is asked to stop; then the future is dropped.
    pub(super) async fn race<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let mut stop = pin!(self.notify.notified());
        // Registered before the flag is read, so that no stop falls in between.
        stop.as_mut().enable();
        if self.asked.get() {
            return Err(Stopped);
        }
        match select(pin!(work), stop).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(((), _)) => Err(Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::pending;

    #[test]
    fn a_stop_ends_what_runs_and_what_begins_until_it_is_armed_again() {
        let interrupt = Interrupt::default();
        let mut running = pin!(interrupt.race(pending::<()>()));
        assert_eq!(running.as_mut().now_or_never(), None);
        interrupt.stop();
        assert_eq!(running.now_or_never(), Some(Err(Stopped)));
        assert_eq!(
            interrupt.race(pending::<()>()).now_or_never(),
            Some(Err(Stopped))
        );
        interrupt.arm();
        assert_eq!(interrupt.race(async { 7 }).now_or_never(), Some(Ok(7)));
    }
}
