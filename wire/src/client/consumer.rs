//! The consumer: a long poll at every owner, leases settled where they were given.
//!
//! What this file keeps true: a record is handed out under a lease that has time left: no more is
//! fetched ahead than the application works off in a part of the visibility, and a batch that waited
//! longer all the same gets its leases anew before it leaves, without what has run out; a move, a
//! lost connection or a stale lease is no error: the records come again.

mod pace;
mod poll;

use super::calls::{self, Settle};
use super::handle::Client;
use super::locator::Locator;
use super::model::{Delivery, Lease};
use crate::error::{ErrorCode, WireError};
use crate::limits;
use crate::runtime::Runtime;
use futures::FutureExt;
use futures::future::join_all;
use pace::{Ask, Pace};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// How a [`Consumer`] works.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerOptions {
    /// Most records of a batch. The consumer asks for fewer while the application is slow, so that
    /// what waits for it keeps its leases.
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

/// A batch that was fetched and not handed out.
struct Waiting {
    records: Vec<Delivery>,
    /// Whose poll brought it.
    from: Rc<str>,
    /// When it came. Its leases began a little earlier.
    at: Instant,
}

struct Shared<R: Runtime> {
    locator: Locator<R>,
    options: ConsumerOptions,
    /// At most one batch a poller.
    waiting: RefCell<VecDeque<Waiting>>,
    /// An error that no waiting cures, until it is told.
    error: RefCell<Option<WireError>>,
    pace: Cell<Pace>,
    /// Whether [`Consumer::next`] stands and waits.
    wanted: Cell<bool>,
    /// Something came for [`Consumer::next`].
    came: Notify,
    /// Something changed that the pollers should look at.
    changed: Notify,
    /// Held while one node is polled and the others wait for their turn; fair.
    turn: Semaphore,
    /// Turns in a row that brought nothing.
    empty_turns: Cell<usize>,
    /// Nodes with a poller, and whether that one is to end.
    pollers: RefCell<HashMap<Rc<str>, Rc<Cell<bool>>>>,
    /// Owners that could not be reached lately: somebody else has to be asked for their records.
    unreachable: RefCell<HashSet<Rc<str>>>,
    closing: Cell<bool>,
    /// Something changed that the manager should look at.
    look: Notify,
}

impl<R: Runtime> Shared<R> {
    fn now(&self) -> Instant {
        self.locator.client().runtime().now()
    }

    /// How long a lease lasts.
    fn visibility_ms(&self) -> u32 {
        let ms = match (
            self.options.visibility_ms,
            self.locator.known().visibility_ms(),
        ) {
            (0, 0) => narad_core::defaults::VISIBILITY_MS,
            (0, topic) => topic,
            (own, _) => own.into(),
        };
        u32::try_from(ms).unwrap_or(u32::MAX)
    }

    fn visibility(&self) -> Duration {
        Duration::from_millis(self.visibility_ms().into())
    }

    /// What a poll may ask for now.
    fn ask(&self) -> Ask {
        let pollers = self.pollers.borrow().len();
        let most = self.options.max_records;
        self.pace.get().ask(pollers, self.visibility(), most)
    }

    /// Whether the application waits and there is nothing for it.
    fn is_short(&self) -> bool {
        self.wanted.get() && self.waiting.borrow().is_empty()
    }

    fn fail(&self, error: WireError) {
        *self.error.borrow_mut() = Some(error);
        self.came.notify_one();
    }

    fn end(&self) {
        self.closing.set(true);
        self.look.notify_one();
        self.changed.notify_waiters();
    }
}

/// Consumes one topic. Not `Send`. Dropping it ends its polls and has what was fetched and not
/// handed out given back; [`Consumer::close`] waits for that.
///
/// A batch's leases run while the application works on it. The consumer learns how long a record
/// takes and asks for no more than fits a part of the visibility. Where single records take long, or
/// the pace varies a lot, [`Consumer::extend`] them while they are worked on, or choose a longer
/// visibility. Giving back ([`Consumer::nack`]) counts as a delivery, as a lease that runs out does.
pub struct Consumer<R: Runtime> {
    shared: Rc<Shared<R>>,
    /// What was handed out last: when, and how many records.
    handed: Option<(Instant, usize)>,
}

impl<R: Runtime> Drop for Consumer<R> {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl<R: Runtime> Client<R> {
    /// A consumer of one topic; it starts to fetch at once.
    #[must_use]
    pub fn consumer(&self, topic: &str, options: ConsumerOptions) -> Consumer<R> {
        let options = ConsumerOptions {
            wait_ms: options.wait_ms.min(limits::WAIT_MAX_MS),
            ..options
        };
        let shared = Rc::new(Shared {
            locator: Locator::new(self.clone(), topic),
            options,
            waiting: RefCell::default(),
            error: RefCell::default(),
            pace: Cell::new(Pace::new()),
            wanted: Cell::new(false),
            came: Notify::new(),
            changed: Notify::new(),
            turn: Semaphore::new(1),
            empty_turns: Cell::new(0),
            pollers: RefCell::default(),
            unreachable: RefCell::default(),
            closing: Cell::new(false),
            look: Notify::new(),
        });
        let manager = poll::manage(shared.clone());
        self.runtime().spawn(manager.boxed_local());
        Consumer {
            shared,
            handed: None,
        }
    }
}

/// Says that the application waits, for as long as it lives.
struct Wanted<'a>(&'a Cell<bool>);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<R: Runtime> Consumer<R> {
    /// The next batch, never empty. Cancel-safe: a batch is handed out or kept.
    ///
    /// # Errors
    /// [`WireError`] that no waiting cures, as an unknown topic. Outages are waited out.
    pub async fn next(&mut self) -> Result<Vec<Delivery>, WireError> {
        if let Some((at, records)) = self.handed.take() {
            let mut pace = self.shared.pace.get();
            pace.took(self.shared.now().saturating_duration_since(at), records);
            self.shared.pace.set(pace);
        }
        loop {
            if let Some(error) = self.shared.error.take() {
                return Err(error);
            }
            self.renew().await;
            let next = self.shared.waiting.borrow_mut().pop_front();
            self.shared.changed.notify_waiters();
            if let Some(batch) = next {
                self.handed = Some((self.shared.now(), batch.records.len()));
                return Ok(batch.records);
            }
            self.shared.wanted.set(true);
            let _wanted = Wanted(&self.shared.wanted);
            self.shared.came.notified().await;
        }
    }

    /// Begins the leases of what waits anew where there may not be time enough left to work on it,
    /// and drops what is not ours any more: it is somebody else's already, or comes again. So an
    /// application that comes back in time loses nothing, and one that does not holds nothing.
    async fn renew(&self) {
        let now = self.shared.now();
        let (pace, most) = (self.shared.pace.get(), self.shared.visibility());
        let is_old = |batch: &Waiting| {
            let age = now.saturating_duration_since(batch.at);
            age + pace.work(batch.records.len()) >= most / limits::CONSUMER_RENEW_PART
        };
        let leases: Vec<Held> = {
            let waiting = self.shared.waiting.borrow();
            let old = waiting.iter().filter(|batch| is_old(batch));
            old.flat_map(|batch| held(&batch.records)).collect()
        };
        if leases.is_empty() {
            return;
        }
        let visibility_ms = self.shared.visibility_ms();
        let settled = settle_all(&self.shared, &leases, Settle::Extend { visibility_ms }).await;
        let lost: HashSet<Lease> = leases
            .iter()
            .zip(settled)
            .filter_map(|((_, lease), settled)| (settled != Settled::Done).then_some(*lease))
            .collect();
        let asked: HashSet<Lease> = leases.iter().map(|(_, lease)| *lease).collect();
        let mut waiting = self.shared.waiting.borrow_mut();
        // Not those that came meanwhile.
        let was_asked =
            |batch: &Waiting| batch.records.iter().any(|one| asked.contains(&one.lease));
        for batch in waiting.iter_mut().filter(|batch| was_asked(batch)) {
            batch.records.retain(|one| !lost.contains(&one.lease));
            batch.at = now;
        }
        waiting.retain(|batch| !batch.records.is_empty());
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
        settle_all(&self.shared, &held(deliveries), how).await
    }

    /// Stops fetching and gives back what was fetched and not handed out, so that others get it at
    /// once. Polls under way end by themselves.
    pub async fn close(self) {
        self.shared.end();
        let waiting = self.shared.waiting.take();
        for batch in waiting {
            self.nack(&batch.records, 0).await;
        }
    }
}

/// A lease and the node that gave it.
type Held = (Rc<str>, Lease);

fn held(deliveries: &[Delivery]) -> Vec<Held> {
    let held = deliveries.iter().map(|one| (one.node.clone(), one.lease));
    held.collect()
}

async fn settle_all<R: Runtime>(shared: &Shared<R>, held: &[Held], how: Settle) -> Vec<Settled> {
    let mut by_node: HashMap<&Rc<str>, Vec<usize>> = HashMap::new();
    for (index, (node, _)) in held.iter().enumerate() {
        by_node.entry(node).or_default().push(index);
    }
    let calls = by_node.into_iter().flat_map(|(node, indexes)| {
        let parts: Vec<Vec<usize>> = indexes
            .chunks(limits::BATCH_MAX_RECORDS)
            .map(<[usize]>::to_vec)
            .collect();
        parts.into_iter().map(move |part| (node, part))
    });
    let calls = calls.map(|(node, indexes)| async move {
        let leases: Vec<Lease> = indexes.iter().map(|i| held[*i].1).collect();
        (indexes, settle_at(shared, node, &leases, how).await)
    });
    let mut out = vec![Settled::Unknown; held.len()];
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
