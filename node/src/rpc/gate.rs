//! How many calls one connection may have running.
//!
//! What this file keeps true: calls wait for their turn in the order they came, a bounded number of
//! them; parked consumers have a bound of their own, so that they never keep other calls out.

use crate::shard::faults;
use crate::shard::limits::{
    CALLS_PER_CONNECTION, CALLS_WAITING_PER_CONNECTION, PARKED_PER_CONNECTION,
};
use narad_wire::error::WireFault;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bounds of one connection.
#[derive(Clone)]
pub(crate) struct Gate {
    calls: Arc<Semaphore>,
    parked: Arc<Semaphore>,
    waiting: Rc<Cell<usize>>,
}

/// A call that runs.
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
}

struct Waiting(Rc<Cell<usize>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Gate {
    /// For a new connection.
    pub(crate) fn new() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(CALLS_PER_CONNECTION)),
            parked: Arc::new(Semaphore::new(PARKED_PER_CONNECTION)),
            waiting: Rc::new(Cell::new(0)),
        }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// `busy` when too many calls of this connection wait already.
    pub(crate) async fn enter(&self) -> Result<Permit, WireFault> {
        if let Ok(permit) = self.calls.clone().try_acquire_owned() {
            return Ok(Permit { _permit: permit });
        }
        if self.waiting.get() >= CALLS_WAITING_PER_CONNECTION {
            return Err(faults::busy("this connection's queue of calls"));
        }
        self.waiting.set(self.waiting.get() + 1);
        let _waiting = Waiting(self.waiting.clone());
        let permit = self
            .calls
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| faults::shutting_down())?;
        Ok(Permit { _permit: permit })
    }

    /// A place for a consumer that parks.
    ///
    /// # Errors
    /// `busy` when too many are parked already.
    pub(crate) fn park(&self) -> Result<Permit, WireFault> {
        let permit = self
            .parked
            .clone()
            .try_acquire_owned()
            .map_err(|_| faults::busy("this connection's number of parked consumers"))?;
        Ok(Permit { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn calls_wait_in_order_and_are_refused_beyond_the_bound() {
        let gate = Gate::new();
        let mut running: Vec<Permit> = (0..CALLS_PER_CONNECTION)
            .map(|_| gate.enter().now_or_never().expect("room").expect("a turn"))
            .collect();
        let mut first = Box::pin(gate.enter());
        let mut second = Box::pin(gate.enter());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        running.pop();
        let _first = first.as_mut().now_or_never().expect("its turn");
        assert!(second.as_mut().now_or_never().is_none());

        let waiting: Vec<_> = (1..CALLS_WAITING_PER_CONNECTION)
            .map(|_| {
                let mut call = Box::pin(gate.enter());
                assert!(call.as_mut().now_or_never().is_none());
                call
            })
            .collect();
        let refused = gate.enter().now_or_never().expect("an answer at once");
        assert!(refused.is_err());
        // Calls that are given up make room.
        drop(waiting);
        assert!(gate.enter().now_or_never().is_none());
        // Parked consumers are counted apart.
        assert!(gate.park().is_ok());
    }
}
