//! The producer: batches, pipelined, straight to the owners.
//!
//! What this file keeps true: every record that was taken is reported exactly once, stored or with
//! the reason why not; a record whose call has an unknown outcome is sent again (it may be stored
//! twice, it is not lost); what waits here is bounded in bytes. Batches of one partition may
//! overtake each other, and records of one key may be stored out of order around a move.

use super::deliver::{Batch, Pending, deliver};
use super::handle::Client;
use super::locator::Locator;
use super::model::Produced;
use crate::convert::Record;
use crate::error::{ErrorCode, WireError, WireFault};
use crate::limits;
use crate::runtime::Runtime;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::select;
use narad_core::ids::PartitionIndex;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// How a [`Producer`] works.
#[derive(Clone, Copy, Debug)]
pub struct ProducerOptions {
    /// Most records of a batch; at most [`BATCH_MAX_RECORDS`](limits::BATCH_MAX_RECORDS).
    pub batch_records: usize,
    /// Bytes after which a batch is sent; at most [`BATCH_MAX_BYTES`](limits::BATCH_MAX_BYTES). A
    /// larger record goes alone.
    pub batch_bytes: usize,
    /// How long a batch that is not full waits for more records.
    pub linger: Duration,
    /// Batches on their way at a time.
    pub in_flight: usize,
    /// Bytes that may wait or be on their way; [`Producer::send`] waits beyond it.
    pub pending_bytes: usize,
    /// One attempt of a batch at one node.
    pub attempt: Duration,
    /// After this long without success a batch's records are reported as failed.
    pub give_up: Duration,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            batch_records: limits::PRODUCER_BATCH_RECORDS,
            batch_bytes: limits::PRODUCER_BATCH_BYTES,
            linger: Duration::from_millis(limits::PRODUCER_LINGER_MS),
            in_flight: limits::PRODUCER_IN_FLIGHT,
            pending_bytes: limits::PRODUCER_PENDING_BYTES,
            attempt: Duration::from_millis(limits::PRODUCER_ATTEMPT_MS),
            give_up: Duration::from_millis(limits::PRODUCER_GIVE_UP_MS),
        }
    }
}

/// What became of one record, as a future. Dropping it does not take the record back.
#[derive(Debug)]
pub struct Receipt(oneshot::Receiver<Result<Produced, WireError>>);

impl Future for Receipt {
    type Output = Result<Produced, WireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(cx).map(|answer| {
            answer.unwrap_or_else(|oneshot::Canceled| {
                Err(WireError::Disconnected {
                    message: "the producer's executor has stopped".into(),
                })
            })
        })
    }
}

/// Where a batch goes first: one node, and a partition when the records name one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Route {
    /// `None`: any node.
    owner: Option<Rc<str>>,
    partition: Option<PartitionIndex>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Pending>,
    bytes: usize,
    full: Rc<Notify>,
}

struct Shared<R: Runtime> {
    locator: Locator<R>,
    options: ProducerOptions,
    queues: RefCell<HashMap<Route, Queue>>,
    room: Arc<Semaphore>,
    flights: Arc<Semaphore>,
    /// Records taken and not reported yet.
    pending: Cell<usize>,
    settled: Notify,
    /// Flushes under way: while there is one, nothing lingers.
    flushing: Cell<usize>,
    /// Spreads unkeyed batches over the owners.
    turn: Cell<usize>,
}

/// Produces records of one topic. Clones share batches. Not `Send`.
pub struct Producer<R: Runtime> {
    shared: Rc<Shared<R>>,
}

impl<R: Runtime> Clone for Producer<R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<R: Runtime> Client<R> {
    /// A producer for one topic.
    #[must_use]
    pub fn producer(&self, topic: &str, options: ProducerOptions) -> Producer<R> {
        let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX) / 2;
        let options = ProducerOptions {
            batch_records: options.batch_records.clamp(1, limits::BATCH_MAX_RECORDS),
            batch_bytes: options.batch_bytes.clamp(1, limits::BATCH_MAX_BYTES),
            in_flight: options.in_flight.clamp(1, limits::PRODUCER_IN_FLIGHT_MAX),
            pending_bytes: options.pending_bytes.clamp(1, most),
            ..options
        };
        Producer {
            shared: Rc::new(Shared {
                locator: Locator::new(self.clone(), topic),
                options,
                queues: RefCell::default(),
                room: Arc::new(Semaphore::new(options.pending_bytes)),
                flights: Arc::new(Semaphore::new(options.in_flight)),
                pending: Cell::new(0),
                settled: Notify::new(),
                flushing: Cell::new(0),
                turn: Cell::new(0),
            }),
        }
    }
}

impl<R: Runtime> Producer<R> {
    /// Takes a record, after waiting for room, and returns what will become of it. `partition`
    /// names one; otherwise a key decides, and records without a key are spread.
    ///
    /// # Errors
    /// [`WireError::Fault`] with `tooLarge` for a record that no batch can carry.
    pub async fn send(
        &self,
        record: Record,
        partition: Option<PartitionIndex>,
    ) -> Result<Receipt, WireError> {
        let shared = &self.shared;
        let bytes = record.bytes();
        if bytes > limits::BATCH_MAX_BYTES {
            let message = format!(
                "a record of {bytes} bytes; a batch carries at most {}",
                limits::BATCH_MAX_BYTES
            );
            return Err(WireFault::new(ErrorCode::TooLarge, message).into());
        }
        // An empty record costs memory too.
        let cost = (bytes + limits::RECORD_COST_BYTES).min(shared.options.pending_bytes);
        let cost = u32::try_from(cost).expect("clamped to what fits");
        let room = shared.room.clone().acquire_many_owned(cost).await;
        let room = room.expect("the semaphore is never closed");
        // Nobody learns where a topic is while a node is asked: the first record waits for it.
        let placement = if shared.locator.known().owners().is_empty() {
            shared.locator.fresh().await.unwrap_or_default()
        } else {
            shared.locator.known()
        };
        let owner = match (partition, &record.key) {
            (Some(partition), _) => placement.owner(partition).cloned(),
            (None, Some(key)) => placement.owner_of_key(key).cloned(),
            (None, None) => self.unkeyed(placement.owners()),
        };
        let (done, receipt) = oneshot::channel();
        shared.pending.set(shared.pending.get() + 1);
        let pending = Pending {
            record,
            done,
            _room: room,
        };
        self.enqueue(Route { owner, partition }, pending, bytes);
        Ok(Receipt(receipt))
    }

    /// The node of the current turn; it is another's turn after each batch.
    fn unkeyed(&self, owners: &[Rc<str>]) -> Option<Rc<str>> {
        if owners.is_empty() {
            return None;
        }
        Some(owners[self.shared.turn.get() % owners.len()].clone())
    }

    fn enqueue(&self, route: Route, pending: Pending, bytes: usize) {
        let options = &self.shared.options;
        let mut queues = self.shared.queues.borrow_mut();
        let mut is_new = false;
        let queue = queues.entry(route.clone()).or_insert_with(|| {
            is_new = true;
            Queue::default()
        });
        queue.waiting.push_back(pending);
        queue.bytes += bytes;
        if queue.bytes >= options.batch_bytes || queue.waiting.len() >= options.batch_records {
            queue.full.notify_one();
            if route.partition.is_none() {
                self.shared.turn.set(self.shared.turn.get().wrapping_add(1));
            }
        }
        drop(queues);
        if is_new {
            let task = pump(self.shared.clone(), route);
            self.shared
                .locator
                .client()
                .runtime()
                .spawn(task.boxed_local());
        }
    }

    /// Sends what waits and returns when every record taken has been reported, those taken meanwhile
    /// included.
    pub async fn flush(&self) {
        let shared = &self.shared;
        shared.flushing.set(shared.flushing.get() + 1);
        let _down = Countdown(&shared.flushing);
        while shared.pending.get() > 0 {
            let settled = shared.settled.notified();
            for queue in shared.queues.borrow().values() {
                queue.full.notify_one();
            }
            settled.await;
        }
    }

    /// Records taken and not reported yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.shared.pending.get()
    }
}

/// Counts down also when its holder is dropped in the middle.
struct Countdown<'a>(&'a Cell<usize>);

impl Drop for Countdown<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Turns the queue of one route into batches until it is empty.
async fn pump<R: Runtime>(shared: Rc<Shared<R>>, route: Route) {
    let runtime = shared.locator.client().runtime().clone();
    loop {
        let full = {
            let mut queues = shared.queues.borrow_mut();
            let Some(queue) = queues.get(&route) else {
                return;
            };
            if queue.waiting.is_empty() {
                queues.remove(&route);
                return;
            }
            let is_full = queue.bytes >= shared.options.batch_bytes
                || queue.waiting.len() >= shared.options.batch_records
                || shared.flushing.get() > 0;
            (!is_full).then(|| queue.full.clone())
        };
        if let Some(full) = full {
            let linger = runtime.sleep(shared.options.linger);
            let _ = select(pin!(full.notified()), linger).await;
        }
        // While every flight is taken the batch goes on growing.
        let flight = shared.flights.clone().acquire_owned().await;
        let flight = flight.expect("the semaphore is never closed");
        let records = take_batch(&shared, &route);
        if records.is_empty() {
            continue;
        }
        let batch = Batch {
            records,
            owner: route.owner.clone(),
            partition: route.partition,
        };
        let of = shared.clone();
        let task = async move {
            let report = |pending: Pending, outcome| {
                let _ = pending.done.send(outcome);
                of.pending.set(of.pending.get() - 1);
            };
            deliver(&of.locator, &of.options, batch, report).await;
            drop(flight);
            of.settled.notify_waiters();
        };
        runtime.spawn(task.boxed_local());
    }
}

fn take_batch<R: Runtime>(shared: &Shared<R>, route: &Route) -> Vec<Pending> {
    let mut queues = shared.queues.borrow_mut();
    let Some(queue) = queues.get_mut(route) else {
        return Vec::new();
    };
    let mut records = Vec::new();
    let mut bytes = 0;
    while let Some(next) = queue.waiting.front() {
        let size = next.record.bytes();
        let fits = records.len() < shared.options.batch_records
            && bytes + size <= shared.options.batch_bytes;
        if !fits && !records.is_empty() {
            break;
        }
        bytes += size;
        queue.bytes -= size;
        records.extend(queue.waiting.pop_front());
    }
    records
}
