//! The client itself: which node is asked, and when the next one is.
//!
//! What this file keeps true: a question goes from node to node until one answers or the deadline
//! passes; a change goes on to the next node only when it certainly had no effect. Nodes are
//! learned from every answer that names members, within a bound.

use super::calls::{self, ConsumeRequest, ReplayRequest, Settle};
use super::model::{Delivery, Lease, Produced, ReplayBatch};
use crate::convert::Record;
use crate::error::{ErrorCode, WireError};
use crate::limits;
use crate::pool::{NodePool, PoolOptions};
use crate::runtime::{Glommio, Runtime};
use crate::view::MemberView;
use narad_core::ids::PartitionIndex;
use narad_schema::client_capnp::node;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How a [`Client`] works.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port` of nodes to begin with; one living one is enough.
    pub servers: Vec<String>,
    /// For every call, all attempts together.
    pub deadline: Duration,
    /// For one attempt of a question at one node: a stalled node costs no more.
    pub attempt: Duration,
    /// Times of the connections.
    pub pool: PoolOptions,
}

impl ClientOptions {
    /// The defaults, beginning with these servers.
    #[must_use]
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            deadline: Duration::from_millis(limits::CLIENT_DEADLINE_MS),
            attempt: Duration::from_millis(limits::CLIENT_ATTEMPT_MS),
            pool: PoolOptions::default(),
        }
    }
}

pub(super) struct Inner<R: Runtime> {
    pool: NodePool<R>,
    options: ClientOptions,
    /// Addresses to ask, those named by the user first.
    servers: RefCell<Vec<Rc<str>>>,
    /// Index of the one that answered last.
    last_good: Cell<usize>,
}

/// A client of a cluster. Clones share connections. Not `Send`: one an executor.
pub struct Client<R: Runtime = Glommio> {
    inner: Rc<Inner<R>>,
}

impl<R: Runtime> Clone for Client<R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl Client<Glommio> {
    /// A client on the glommio executor of this thread. Connects when it is first used.
    #[must_use]
    pub fn new(servers: Vec<String>) -> Self {
        Self::with(Glommio, ClientOptions::new(servers))
    }
}

/// Whether a call changes something, and so what may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Question,
    Change,
}

impl<R: Runtime> Client<R> {
    /// A client on any executor.
    #[must_use]
    pub fn with(runtime: R, options: ClientOptions) -> Self {
        let servers = options.servers.iter().map(|s| Rc::from(s.as_str()));
        let servers = servers.collect();
        Self {
            inner: Rc::new(Inner {
                pool: NodePool::new(runtime, options.pool),
                options,
                servers: RefCell::new(servers),
                last_good: Cell::new(0),
            }),
        }
    }

    /// The executor.
    #[must_use]
    pub fn runtime(&self) -> &R {
        self.inner.pool.runtime()
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// The connections, for single calls at a chosen node ([`calls`]).
    #[must_use]
    pub fn pool(&self) -> &NodePool<R> {
        &self.inner.pool
    }

    /// Addresses that are asked, those given at the start first.
    #[must_use]
    pub fn servers(&self) -> Vec<Rc<str>> {
        self.inner.servers.borrow().clone()
    }

    /// Remembers addresses that an answer named.
    pub(super) fn learn(&self, members: &[MemberView]) {
        let mut servers = self.inner.servers.borrow_mut();
        for member in members {
            let known = servers.iter().any(|addr| **addr == *member.addr);
            if !known && !member.addr.is_empty() && servers.len() < limits::CLIENT_MAX_SERVERS {
                servers.push(Rc::from(member.addr.as_str()));
            }
        }
    }

    /// Asks one node after the other. `op` gets the node, its address and the time that it has.
    pub(super) async fn question<T>(
        &self,
        op: impl AsyncFn(node::Client, Rc<str>, Duration) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        self.run(Kind::Question, self.inner.options.deadline, op)
            .await
    }

    /// Orders a change at one node; goes on to another only while it certainly had no effect.
    pub(super) async fn change<T>(
        &self,
        op: impl AsyncFn(node::Client, Rc<str>, Duration) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        self.run(Kind::Change, self.inner.options.deadline, op)
            .await
    }

    async fn run<T>(
        &self,
        kind: Kind,
        deadline: Duration,
        op: impl AsyncFn(node::Client, Rc<str>, Duration) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let until = Instant::now() + deadline;
        let mut elsewhere: Option<Rc<str>> = None;
        let mut tried = 0usize;
        let mut last: Option<WireError> = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let least = Duration::from_millis(limits::CLIENT_LEAST_ATTEMPT_MS);
            if left.is_zero() || (left < least && last.is_some()) {
                return Err(last.unwrap_or_else(|| WireError::timeout(deadline)));
            }
            let (addr, index) = match elsewhere.take() {
                Some(addr) => (addr, None),
                None => self.nth(tried)?,
            };
            let time = match kind {
                Kind::Question => left.min(self.inner.options.attempt),
                Kind::Change => left,
            };
            let error = match self.attempt(&addr, time, &op).await {
                Ok(value) => {
                    if let Some(index) = index {
                        self.inner.last_good.set(index);
                    }
                    return Ok(value);
                }
                Err(error) => error,
            };
            let again = error.is_transient()
                && (kind == Kind::Question || !error.outcome_unknown())
                && error.code() != Some(ErrorCode::Refused);
            if !again {
                return Err(whole(error, until, deadline));
            }
            if let Some(fault) = error.fault()
                && !fault.node.is_empty()
                && *fault.node != *addr
                && index.is_some()
            {
                elsewhere = Some(Rc::from(fault.node.as_str()));
            } else {
                tried += usize::from(index.is_some());
                self.pause(tried, &error, until).await;
            }
            last = Some(match (error, last) {
                // Silence says less than what was answered before.
                (WireError::Timeout { .. }, Some(told)) => told,
                (error, _) => whole(error, until, deadline),
            });
        }
    }

    /// After a whole round without an answer, a pause before the next.
    async fn pause(&self, tried: usize, error: &WireError, until: Instant) {
        if !tried.is_multiple_of(self.inner.servers.borrow().len().max(1)) {
            return;
        }
        let advised = match error {
            WireError::Connect { retry_after_ms, .. } => *retry_after_ms,
            WireError::Fault(fault) => fault.retry_after_ms,
            _ => 0,
        };
        let pause = u64::from(advised).clamp(limits::CLIENT_PAUSE_MS, limits::CLIENT_PAUSE_MAX_MS);
        let left = until.saturating_duration_since(Instant::now());
        let pause = Duration::from_millis(pause).min(left);
        self.runtime().sleep(pause).await;
    }

    fn nth(&self, tried: usize) -> Result<(Rc<str>, Option<usize>), WireError> {
        let servers = self.inner.servers.borrow();
        if servers.is_empty() {
            return Err(WireError::Connect {
                addr: String::new(),
                message: "no server was named".into(),
                retry_after_ms: 0,
            });
        }
        let index = (self.inner.last_good.get() + tried) % servers.len();
        Ok((servers[index].clone(), Some(index)))
    }

    async fn attempt<T>(
        &self,
        addr: &Rc<str>,
        time: Duration,
        op: impl AsyncFn(node::Client, Rc<str>, Duration) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let started = Instant::now();
        let node = self.inner.pool.node(addr).await?;
        let left = time.saturating_sub(started.elapsed());
        let result = op(node, addr.clone(), left.max(Duration::from_millis(1))).await;
        if let Err(error) = &result
            && error.connection_lost()
        {
            self.inner.pool.failed(addr);
        }
        result
    }

    /// Produces one batch at any one node, once: records of partitions that the node does not own
    /// go through its ingress WAL. The node is changed only while nothing was sent. For throughput
    /// use the producer.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, some or all records may be stored: sending them
    /// again may store them twice.
    pub async fn produce_once(
        &self,
        topic: &str,
        records: &[Record],
        partition: Option<PartitionIndex>,
    ) -> Result<Vec<Result<Produced, crate::error::WireFault>>, WireError> {
        self.change(async |node, _, time| {
            let records = calls::refs(records);
            calls::produce(self.runtime(), &node, time, topic, records, partition).await
        })
        .await
    }

    /// Leases records at any one node, which asks the owners. For throughput use
    /// the consumer.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn consume_once(
        &self,
        topic: &str,
        ask: ConsumeRequest,
    ) -> Result<Vec<Delivery>, WireError> {
        let wait = Duration::from_millis(ask.wait_ms.into());
        let deadline = self.inner.options.deadline + wait;
        self.run(Kind::Question, deadline, async |node, addr, time| {
            calls::consume(self.runtime(), &node, &addr, time, topic, ask).await
        })
        .await
    }

    /// Settles leases through any one node, which forwards them to the owners. Asked again after a
    /// lost answer: settling twice does no harm, the second time the lease is stale.
    ///
    /// # Errors
    /// [`WireError`]; at worst the records come again.
    pub async fn settle_once(
        &self,
        topic: &str,
        leases: &[Lease],
        how: Settle,
    ) -> Result<Vec<Result<(), crate::error::WireFault>>, WireError> {
        self.question(async |node, _, time| {
            calls::settle(self.runtime(), &node, time, topic, leases, how).await
        })
        .await
    }

    /// One batch of a replay, from any one node.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn replay_once(
        &self,
        topic: &str,
        ask: ReplayRequest,
    ) -> Result<ReplayBatch, WireError> {
        self.question(async |node, _, time| {
            calls::replay(self.runtime(), &node, time, topic, ask).await
        })
        .await
    }
}

/// A time-out as the caller sees it: the whole time that was spent, not the last attempt's share.
fn whole(error: WireError, until: Instant, deadline: Duration) -> WireError {
    match error {
        WireError::Timeout { .. } => {
            let left = until.saturating_duration_since(Instant::now());
            WireError::timeout(deadline.saturating_sub(left))
        }
        other => other,
    }
}
