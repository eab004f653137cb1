//! The consumer: a long poll at every owner, leases settled where they were given.
//!
//! What this file keeps true: a poll under way is never dropped (its answer may be bringing
//! leases), only left to end; at most one batch an owner waits here, so leases do not run out in a
//! queue; a move, a lost connection or a stale lease is no error: the records come again.

use super::calls::{self, ConsumeRequest, Settle};
use super::handle::Client;
use super::locator::Locator;
use super::model::{Delivery, Lease};
use crate::error::{ErrorCode, WireError};
use crate::limits;
use crate::runtime::Runtime;
use futures::FutureExt;
use futures::future::{join_all, select};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// How a [`Consumer`] works.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerOptions {
    /// Most records of a batch.
    pub max_records: u32,
    /// Most bytes of a batch.
    pub max_bytes: u32,
    /// How long a poll parks at a node, in ms.
    pub wait_ms: u32,
    /// How long records stay invisible to others, in ms; 0: the topic's setting.
    pub visibility_ms: u32,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            max_records: limits::CONSUMER_BATCH_RECORDS,
            max_bytes: limits::CONSUMER_BATCH_BYTES,
            wait_ms: limits::CONSUMER_WAIT_MS,
            visibility_ms: 0,
        }
    }
}

/// What became of a lease that was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// As asked for.
    Done,
    /// The lease had ended (time, a move, another settle): the record has come, or comes, again.
    Stale,
    /// The node could not be asked, or its answer was lost: at worst the record comes again.
    Unknown,
}

struct Shared<R: Runtime> {
    locator: Locator<R>,
    options: ConsumerOptions,
    batches: mpsc::Sender<Result<Vec<Delivery>, WireError>>,
    /// Nodes with a poller, and whether that one is to end.
    pollers: RefCell<HashMap<Rc<str>, Rc<Cell<bool>>>>,
    /// Owners that could not be reached lately: somebody else has to be asked for their records.
    unreachable: RefCell<HashSet<Rc<str>>>,
    closing: Cell<bool>,
    /// Something changed that the manager should look at.
    look: Notify,
}

/// Consumes one topic. Not `Send`. Dropping it ends its polls; [`Consumer::close`] gives back what
/// was fetched and not handed out.
pub struct Consumer<R: Runtime> {
    shared: Rc<Shared<R>>,
    incoming: mpsc::Receiver<Result<Vec<Delivery>, WireError>>,
}

impl<R: Runtime> Drop for Consumer<R> {
    fn drop(&mut self) {
        self.shared.closing.set(true);
        self.shared.look.notify_one();
    }
}

impl<R: Runtime> Client<R> {
    /// A consumer of one topic; it starts to fetch at once.
    #[must_use]
    pub fn consumer(&self, topic: &str, options: ConsumerOptions) -> Consumer<R> {
        let (batches, incoming) = mpsc::channel(1);
        let options = ConsumerOptions {
            wait_ms: options.wait_ms.min(limits::WAIT_MAX_MS),
            ..options
        };
        let shared = Rc::new(Shared {
            locator: Locator::new(self.clone(), topic),
            options,
            batches,
            pollers: RefCell::default(),
            unreachable: RefCell::default(),
            closing: Cell::new(false),
            look: Notify::new(),
        });
        self.runtime().spawn(manage(shared.clone()).boxed_local());
        Consumer { shared, incoming }
    }
}

impl<R: Runtime> Consumer<R> {
    /// The next batch, never empty. Cancel-safe: a batch is handed out or kept.
    ///
    /// # Errors
    /// [`WireError`] that no waiting cures, as an unknown topic. Outages are waited out.
    pub async fn next(&mut self) -> Result<Vec<Delivery>, WireError> {
        match self.incoming.recv().await {
            Some(batch) => batch,
            None => unreachable!("the consumer itself holds a sender"),
        }
    }

    /// Done with these records.
    pub async fn ack(&self, deliveries: &[Delivery]) -> Vec<Settled> {
        self.settle(deliveries, Settle::Ack).await
    }

    /// Gives records back for delivery after `delay_ms`.
    pub async fn nack(&self, deliveries: &[Delivery], delay_ms: u32) -> Vec<Settled> {
        self.settle(deliveries, Settle::Nack { delay_ms }).await
    }

    /// Keeps records invisible to others for `visibility_ms` from now.
    pub async fn extend(&self, deliveries: &[Delivery], visibility_ms: u32) -> Vec<Settled> {
        self.settle(deliveries, Settle::Extend { visibility_ms })
            .await
    }

    /// Settles leases at the nodes that gave them, one call a node, at the same time. One answer a
    /// delivery, in order. None of them is an error of the consumer.
    pub async fn settle(&self, deliveries: &[Delivery], how: Settle) -> Vec<Settled> {
        settle_all(&self.shared, deliveries, how).await
    }

    /// Stops fetching and gives back what was fetched and not handed out, so that others get it at
    /// once. Polls under way end by themselves.
    pub async fn close(mut self) {
        self.shared.closing.set(true);
        self.shared.look.notify_one();
        self.incoming.close();
        while let Some(batch) = self.incoming.recv().await {
            if let Ok(batch) = batch {
                self.nack(&batch, 0).await;
            }
        }
    }
}

async fn settle_all<R: Runtime>(
    shared: &Shared<R>,
    deliveries: &[Delivery],
    how: Settle,
) -> Vec<Settled> {
    let mut by_node: HashMap<&Rc<str>, Vec<usize>> = HashMap::new();
    for (index, delivery) in deliveries.iter().enumerate() {
        by_node.entry(&delivery.node).or_default().push(index);
    }
    let calls = by_node.into_iter().flat_map(|(node, indexes)| {
        let parts: Vec<Vec<usize>> = indexes
            .chunks(limits::BATCH_MAX_RECORDS)
            .map(<[usize]>::to_vec)
            .collect();
        parts.into_iter().map(move |part| (node, part))
    });
    let calls = calls.map(|(node, indexes)| async move {
        let leases: Vec<Lease> = indexes.iter().map(|i| deliveries[*i].lease).collect();
        (indexes, settle_at(shared, node, &leases, how).await)
    });
    let mut out = vec![Settled::Unknown; deliveries.len()];
    for (indexes, settled) in join_all(calls).await {
        for (index, one) in indexes.into_iter().zip(settled) {
            out[index] = one;
        }
    }
    out
}

async fn settle_at<R: Runtime>(
    shared: &Shared<R>,
    addr: &Rc<str>,
    leases: &[Lease],
    how: Settle,
) -> Vec<Settled> {
    let client = shared.locator.client();
    let deadline = client.options().attempt;
    let topic = shared.locator.topic();
    // Settling twice does no harm: one more attempt over a new connection.
    for _ in 0..2 {
        let result = async {
            let node = client.pool().node(addr).await?;
            calls::settle(client.runtime(), &node, deadline, topic, leases, how).await
        };
        match result.await {
            Ok(results) => return results.into_iter().map(settled).collect(),
            Err(error) if error.connection_lost() => {
                client.pool().failed(addr);
                shared.locator.suspect();
            }
            Err(error) if error.code() == Some(ErrorCode::NotOwner) => {
                return vec![Settled::Stale; leases.len()];
            }
            Err(error) => {
                tracing::debug!(%error, node = %addr, "leases could not be settled");
                break;
            }
        }
    }
    vec![Settled::Unknown; leases.len()]
}

fn settled(result: Result<(), crate::error::WireFault>) -> Settled {
    match result {
        Ok(()) => Settled::Done,
        Err(fault) => match fault.code {
            ErrorCode::StaleLease
            | ErrorCode::NotOwner
            | ErrorCode::UnknownTopic
            | ErrorCode::UnknownPartition => Settled::Stale,
            _ => Settled::Unknown,
        },
    }
}

/// Keeps one poller an owner, and one at any node while an owner cannot be reached.
async fn manage<R: Runtime>(shared: Rc<Shared<R>>) {
    let runtime = shared.locator.client().runtime().clone();
    while !shared.closing.get() {
        match shared.locator.fresh().await {
            Ok(placement) => arrange(&shared, placement.owners()),
            // Nobody knows better than we do: what is polled goes on being polled.
            Err(error) if error.is_transient() => {
                if shared.pollers.borrow().is_empty() {
                    arrange(&shared, &[]);
                }
            }
            Err(error) => {
                let _ = shared.batches.send(Err(error)).await;
            }
        }
        let look = runtime.sleep(Duration::from_millis(limits::CONSUMER_LOOK_MS));
        let _ = select(pin!(shared.look.notified()), look).await;
        // Moves do not announce themselves; the question is cheap for a node.
        shared.locator.suspect();
    }
    for end in shared.pollers.borrow().values() {
        end.set(true);
    }
}

/// Starts and ends pollers so that they fit the owners.
fn arrange<R: Runtime>(shared: &Rc<Shared<R>>, owners: &[Rc<str>]) {
    let any: Rc<str> = Rc::from(ANY_NODE);
    let detour = owners.is_empty()
        || owners
            .iter()
            .any(|owner| shared.unreachable.borrow().contains(owner));
    let wanted: HashSet<Rc<str>> = owners
        .iter()
        .cloned()
        .chain(detour.then(|| any.clone()))
        .collect();
    shared
        .unreachable
        .borrow_mut()
        .retain(|node| owners.contains(node));
    let mut pollers = shared.pollers.borrow_mut();
    let mut start = Vec::new();
    for (node, end) in pollers.iter() {
        end.set(!wanted.contains(node));
    }
    for node in wanted {
        if !pollers.contains_key(&node) && pollers.len() < limits::CONSUMER_MAX_POLLERS {
            let end = Rc::new(Cell::new(false));
            pollers.insert(node.clone(), end.clone());
            start.push((node, end));
        }
    }
    drop(pollers);
    for (node, end) in start {
        let of = shared.clone();
        let task = async move {
            poll(&of, &node, &end).await;
            of.pollers.borrow_mut().remove(&node);
            of.look.notify_one();
        };
        let runtime = shared.locator.client().runtime();
        runtime.spawn(task.boxed_local());
    }
}

/// Stands for "whoever answers" among the pollers; no address looks like this.
const ANY_NODE: &str = "*";

/// Polls one node until it is told to end.
async fn poll<R: Runtime>(shared: &Shared<R>, node: &Rc<str>, end: &Cell<bool>) {
    let client = shared.locator.client();
    let runtime = client.runtime();
    let mut failures = 0u32;
    while !end.get() && !shared.closing.get() {
        let began = Instant::now();
        match fetch(shared, node).await {
            Ok(batch) if batch.is_empty() => {
                failures = 0;
                reached(shared, node);
                // A node that answers an empty poll at once must not be asked in a tight loop.
                let least = Duration::from_millis(limits::CLIENT_PAUSE_MS);
                if let Some(rest) = least.checked_sub(began.elapsed()) {
                    runtime.sleep(rest).await;
                }
            }
            Ok(batch) => {
                failures = 0;
                reached(shared, node);
                if let Err(mpsc::error::SendError(Ok(batch))) = shared.batches.send(Ok(batch)).await
                {
                    // The consumer has gone meanwhile: others get the records at once.
                    settle_all(shared, &batch, Settle::Nack { delay_ms: 0 }).await;
                    return;
                }
            }
            Err(error) if error.is_transient() || error.outcome_unknown() => {
                tracing::debug!(%error, node = %node, "a poll failed");
                failures = failures.saturating_add(1);
                if failures >= limits::CONSUMER_UNREACHABLE_FAILURES && **node != *ANY_NODE {
                    shared.unreachable.borrow_mut().insert(node.clone());
                }
                shared.locator.suspect();
                shared.look.notify_one();
                let grown = limits::CLIENT_PAUSE_MS << failures.min(8);
                let pause = grown.min(limits::CLIENT_PAUSE_MAX_MS);
                runtime.sleep(Duration::from_millis(pause)).await;
            }
            Err(error) => {
                if shared.batches.send(Err(error)).await.is_err() {
                    return;
                }
                let pause = Duration::from_millis(limits::CLIENT_PAUSE_MAX_MS);
                runtime.sleep(pause).await;
            }
        }
    }
}

fn reached<R: Runtime>(shared: &Shared<R>, node: &Rc<str>) {
    shared.unreachable.borrow_mut().remove(node);
}

async fn fetch<R: Runtime>(shared: &Shared<R>, node: &Rc<str>) -> Result<Vec<Delivery>, WireError> {
    let client = shared.locator.client();
    let topic = shared.locator.topic();
    let mut ask = ConsumeRequest {
        max_records: shared.options.max_records,
        max_bytes: shared.options.max_bytes,
        wait_ms: shared.options.wait_ms,
        visibility_ms: shared.options.visibility_ms,
        local_only: true,
    };
    if **node == *ANY_NODE {
        ask.local_only = false;
        return client.consume_once(topic, ask).await;
    }
    let result = async {
        let to = client.pool().node(node).await?;
        let deadline = client.options().attempt;
        calls::consume(client.runtime(), &to, node, deadline, topic, ask).await
    };
    let result = result.await;
    if result.as_ref().is_err_and(WireError::connection_lost) {
        client.pool().failed(node);
    }
    result
}
