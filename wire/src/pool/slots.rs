//! One slot an address: live, being connected, or waiting after a failure.

use crate::convert::read_node;
use crate::error::{ErrorCode, WireError};
use crate::limits;
use crate::rpc::{Door, Link, connect_door};
use crate::runtime::{Runtime, within};
use crate::view::NodeView;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::Shared;
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Times of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// For connecting and the first question to a node, each.
    pub connect_deadline: Duration,
    /// Wait after the first failed attempt.
    pub backoff_min: Duration,
    /// Longest wait between attempts.
    pub backoff_max: Duration,
    /// Which part of a node is spoken to. One that knows no parts is spoken to as a whole.
    pub door: Door,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            connect_deadline: Duration::from_millis(limits::CONNECT_DEADLINE_MS),
            backoff_min: Duration::from_millis(limits::BACKOFF_MIN_MS),
            backoff_max: Duration::from_millis(limits::BACKOFF_MAX_MS),
            door: Door::default(),
        }
    }
}

/// A connection with what is known of the node behind it.
pub(crate) struct Conn {
    link: Link,
    info: Option<NodeView>,
    peer: RefCell<Option<peer::Client>>,
    since: Instant,
}

impl Conn {
    /// The node.
    pub(crate) fn node(&self) -> &node::Client {
        self.link.node()
    }

    /// What it said about itself when the connection was made.
    pub(crate) fn info(&self) -> Option<&NodeView> {
        self.info.as_ref()
    }

    pub(crate) fn cached_peer(&self) -> Option<peer::Client> {
        self.peer.borrow().clone()
    }

    pub(crate) fn cache_peer(&self, peer: peer::Client) {
        *self.peer.borrow_mut() = Some(peer);
    }
}

type Outcome = Result<Rc<Conn>, WireError>;

enum State {
    Live(Rc<Conn>),
    Connecting(Shared<oneshot::Receiver<Outcome>>),
    Waiting { until: Instant, message: String },
    Idle,
}

struct Slot {
    state: State,
    /// Failed attempts in a row.
    failures: u32,
}

struct Inner<R: Runtime> {
    runtime: R,
    options: PoolOptions,
    slots: RefCell<HashMap<String, Slot>>,
    hasher: RandomState,
    draws: Cell<u64>,
}

/// Connections by address. One an executor; clones share.
pub struct NodePool<R: Runtime> {
    inner: Rc<Inner<R>>,
}

impl<R: Runtime> Clone for NodePool<R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

/// The wait after `failures` failed attempts in a row; `draw` is any number.
fn backoff(options: &PoolOptions, failures: u32, draw: u64) -> Duration {
    let doubled = options
        .backoff_min
        .saturating_mul(1u32 << failures.saturating_sub(1).min(16));
    let full = doubled.min(options.backoff_max);
    // Between a half and the whole of it, so that nodes that lost the same peer spread out.
    full / 2 + (full / 2).mul_f64((draw % 1_024) as f64 / 1_024.0)
}

impl<R: Runtime> NodePool<R> {
    /// An empty pool.
    #[must_use]
    pub fn new(runtime: R, options: PoolOptions) -> Self {
        Self {
            inner: Rc::new(Inner {
                runtime,
                options,
                slots: RefCell::default(),
                hasher: RandomState::new(),
                draws: Cell::new(0),
            }),
        }
    }

    /// The executor.
    #[must_use]
    pub fn runtime(&self) -> &R {
        &self.inner.runtime
    }

    /// The times.
    #[must_use]
    pub fn options(&self) -> &PoolOptions {
        &self.inner.options
    }

    /// The client interface of the node at `addr`, whoever that is. Dropping the future leaves the
    /// attempt running for the next caller.
    ///
    /// # Errors
    /// [`WireError::Connect`] when there is no connection.
    pub async fn node(&self, addr: &str) -> Result<node::Client, WireError> {
        Ok(self.connection(addr).await?.node().clone())
    }

    /// What the node at `addr` said about itself when the connection was made.
    ///
    /// # Errors
    /// [`WireError::Connect`] when there is no connection.
    pub async fn info(&self, addr: &str) -> Result<Option<NodeView>, WireError> {
        Ok(self.connection(addr).await?.info().cloned())
    }

    pub(crate) async fn connection(&self, addr: &str) -> Outcome {
        let attempt = {
            let mut slots = self.inner.slots.borrow_mut();
            match slots.get(addr).map(|slot| &slot.state) {
                Some(State::Live(conn)) if !conn.link.is_closed() => return Ok(conn.clone()),
                Some(State::Connecting(attempt)) => attempt.clone(),
                Some(State::Waiting { until, message }) if Instant::now() < *until => {
                    let left = until.saturating_duration_since(Instant::now());
                    return Err(WireError::Connect {
                        addr: addr.to_owned(),
                        message: message.clone(),
                        retry_after_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX) + 1,
                    });
                }
                Some(State::Live(_) | State::Waiting { .. } | State::Idle) | None => {
                    make_room(&mut slots);
                    let slot = slots.entry(addr.to_owned()).or_insert(Slot {
                        state: State::Idle,
                        failures: 0,
                    });
                    let (done, attempt) = oneshot::channel();
                    let attempt = attempt.shared();
                    slot.state = State::Connecting(attempt.clone());
                    drop(slots);
                    self.attempt(addr.to_owned(), done);
                    attempt
                }
            }
        };
        match attempt.await {
            Ok(outcome) => outcome,
            Err(oneshot::Canceled) => Err(WireError::Connect {
                addr: addr.to_owned(),
                message: "the connection pool was taken down".into(),
                retry_after_ms: 0,
            }),
        }
    }

    /// Runs one attempt in a task of its own: it belongs to all callers and to none.
    fn attempt(&self, addr: String, done: oneshot::Sender<Outcome>) {
        let inner = self.inner.clone();
        let task = async move {
            let result = establish(&inner.runtime, &inner.options, &addr).await;
            let outcome = {
                let mut slots = inner.slots.borrow_mut();
                match (result, slots.get_mut(&addr)) {
                    (Ok(conn), slot) => {
                        if let Some(slot) = slot {
                            slot.failures = 0;
                            slot.state = State::Live(conn.clone());
                        }
                        Ok(conn)
                    }
                    (Err(error), Some(slot)) => {
                        slot.failures = slot.failures.saturating_add(1);
                        inner.draws.set(inner.draws.get() + 1);
                        let draw = inner.hasher.hash_one((&addr, inner.draws.get()));
                        let wait = backoff(&inner.options, slot.failures, draw);
                        slot.state = State::Waiting {
                            until: Instant::now() + wait,
                            message: message_of(&error),
                        };
                        Err(WireError::Connect {
                            addr: addr.clone(),
                            message: message_of(&error),
                            retry_after_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
                        })
                    }
                    (Err(error), None) => Err(error),
                }
            };
            let _ = done.send(outcome);
        };
        self.inner.runtime.spawn(task.boxed_local());
    }

    /// A caller saw that the connection is of no use: the next caller gets a new one. A connection
    /// that was made a moment ago is kept unless it has ended: what the caller saw was the end of
    /// the one before.
    pub fn failed(&self, addr: &str) {
        let young = Duration::from_millis(limits::POOL_YOUNG_MS);
        let removed = {
            let mut slots = self.inner.slots.borrow_mut();
            match slots.get_mut(addr) {
                Some(slot) => match &slot.state {
                    State::Live(conn) if conn.link.is_closed() || conn.since.elapsed() >= young => {
                        Some(std::mem::replace(&mut slot.state, State::Idle))
                    }
                    _ => None,
                },
                None => None,
            }
        };
        drop(removed);
    }

    /// Drops exactly this connection.
    pub(crate) fn forget(&self, addr: &str, conn: &Rc<Conn>) {
        let mut slots = self.inner.slots.borrow_mut();
        let removed = match slots.get_mut(addr) {
            Some(slot) if matches!(&slot.state, State::Live(live) if Rc::ptr_eq(live, conn)) => {
                Some(std::mem::replace(&mut slot.state, State::Idle))
            }
            _ => None,
        };
        drop(slots);
        drop(removed);
    }

    /// Ends every connection to an address that `keep` does not name.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut slots = self.inner.slots.borrow_mut();
        let gone: Vec<String> = slots.keys().filter(|addr| !keep(addr)).cloned().collect();
        let removed: Vec<_> = gone.iter().filter_map(|addr| slots.remove(addr)).collect();
        drop(slots);
        drop(removed);
    }

    /// Addresses with a live connection.
    #[must_use]
    pub fn live(&self) -> usize {
        self.inner
            .slots
            .borrow()
            .values()
            .filter(|slot| matches!(&slot.state, State::Live(conn) if !conn.link.is_closed()))
            .count()
    }
}

/// Keeps the number of remembered addresses bounded: those without a live connection go first.
fn make_room(slots: &mut HashMap<String, Slot>) {
    if slots.len() < limits::POOL_MAX_ADDRS {
        return;
    }
    slots.retain(|_, slot| match &slot.state {
        State::Live(conn) => !conn.link.is_closed(),
        State::Connecting(_) => true,
        State::Waiting { .. } | State::Idle => false,
    });
    while slots.len() >= limits::POOL_MAX_ADDRS {
        let oldest = slots
            .iter()
            .filter_map(|(addr, slot)| match &slot.state {
                State::Live(conn) => Some((conn.since, addr.clone())),
                _ => None,
            })
            .min();
        match oldest {
            Some((_, addr)) => drop(slots.remove(&addr)),
            None => return,
        }
    }
}

fn message_of(error: &WireError) -> String {
    match error {
        WireError::Connect { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// Connects and asks the node who it is, so that a port that accepts but does not answer counts as
/// a failed attempt.
async fn establish<R: Runtime>(runtime: &R, options: &PoolOptions, addr: &str) -> Outcome {
    match establish_at(runtime, options, addr, options.door).await {
        // A node of an earlier release takes the word for a broken message, says so or just goes away. One
        // that cannot be reached, or says nothing, would do so again.
        Err(WireError::Disconnected { .. } | WireError::Protocol { .. } | WireError::Fault(_))
            if options.door != Door::Shard =>
        {
            establish_at(runtime, options, addr, Door::Shard).await
        }
        outcome => outcome,
    }
}

async fn establish_at<R: Runtime>(
    runtime: &R,
    options: &PoolOptions,
    addr: &str,
    door: Door,
) -> Outcome {
    let deadline = options.connect_deadline;
    let link = connect_door(runtime, addr, deadline, door).await?;
    let asked = within(runtime, deadline, link.node().info_request().send().promise);
    let info = match asked.await {
        Ok(response) => {
            let results = response.get()?;
            Some(read_node(results.get_info()?)?)
        }
        Err(error) if error.code() == Some(ErrorCode::Unsupported) => None,
        Err(error) => return Err(error),
    };
    Ok(Rc::new(Conn {
        link,
        info,
        peer: RefCell::new(None),
        since: Instant::now(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_a_bound_and_never_below_half() {
        let options = PoolOptions::default();
        for failures in 1..80 {
            for draw in [0, 1, 511, 1_023, u64::MAX] {
                let wait = backoff(&options, failures, draw);
                assert!(wait >= options.backoff_min / 2 && wait <= options.backoff_max);
            }
        }
        assert!(backoff(&options, 10, 0) >= options.backoff_max / 2);
    }
}
