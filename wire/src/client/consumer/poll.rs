//! The pollers of a consumer: one an owner, and who starts and ends them.
//!
//! What this file keeps true: a poll under way is never dropped (its answer may be bringing
//! leases), only left to end; one batch of a node waits at most, and while even a record of each
//! node would be too many, nodes are polled in turn and only for somebody who waits; what
//! nobody will take any more is given back.

use super::{Ask, Shared, Waiting, held, settle_all};
use crate::client::calls::{self, ConsumeRequest, Settle};
use crate::client::model::Delivery;
use crate::error::WireError;
use crate::limits;
use crate::runtime::Runtime;
use futures::FutureExt;
use futures::future::select;
use std::cell::Cell;
use std::collections::HashSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;

/// Stands for "whoever answers" among the pollers; no address looks like this.
const ANY_NODE: &str = "*";

/// Keeps one poller an owner, and one at any node while an owner cannot be reached.
pub(super) async fn manage<R: Runtime>(shared: Rc<Shared<R>>) {
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
            Err(error) => shared.fail(error),
        }
        let look = runtime.sleep(Duration::from_millis(limits::CONSUMER_LOOK_MS));
        let _ = select(pin!(shared.look.notified()), look).await;
        // Moves do not announce themselves; the question is cheap for a node.
        shared.locator.suspect();
    }
    for end in shared.pollers.borrow().values() {
        end.set(true);
    }
    // What waits when the consumer is dropped.
    for batch in shared.waiting.take() {
        settle_all(&shared, &held(&batch.records), GIVE_BACK).await;
    }
}

/// Giving back at once.
const GIVE_BACK: Settle = Settle::Nack { delay_ms: 0 };

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
    shared.changed.notify_waiters();
}

/// What a poll may do.
struct Leave<'a> {
    records: u32,
    /// How long it may park, in ms.
    wait_ms: u32,
    turn: Option<SemaphorePermit<'a>>,
}

/// Waits until it makes sense to poll this node; `None` when there will be no more polls.
async fn leave<'a, R: Runtime>(
    shared: &'a Shared<R>,
    node: &Rc<str>,
    end: &Cell<bool>,
    failing: bool,
) -> Option<Leave<'a>> {
    let parked = |records| Leave {
        records,
        wait_ms: shared.options.wait_ms,
        turn: None,
    };
    loop {
        if end.get() || shared.closing.get() {
            return None;
        }
        let has_one = shared.waiting.borrow().iter().any(|one| one.from == *node);
        let short = shared.is_short();
        // After a round that brought nothing all of them park: whoever gets a record first tells.
        let idle = shared.empty_turns.get() >= shared.pollers.borrow().len();
        match shared.ask() {
            _ if has_one => shared.changed.notified().await,
            Ask::Share(records) => return Some(parked(records)),
            Ask::Turn(_) if !short => shared.changed.notified().await,
            // A node that does not answer must not keep the others from theirs.
            Ask::Turn(_) if idle || failing => return Some(parked(1)),
            Ask::Turn(records) => {
                let turn = shared.turn.acquire().await.ok()?;
                if shared.is_short() && !end.get() {
                    return Some(Leave {
                        records,
                        wait_ms: 0,
                        turn: Some(turn),
                    });
                }
            }
        }
    }
}

/// Polls one node until it is told to end.
async fn poll<R: Runtime>(shared: &Shared<R>, node: &Rc<str>, end: &Cell<bool>) {
    let client = shared.locator.client();
    let runtime = client.runtime();
    let mut failures = 0u32;
    while let Some(leave) = leave(shared, node, end, failures > 0).await {
        let began = Instant::now();
        let in_turn = leave.turn.is_some();
        let fetched = fetch(shared, node, leave.records, leave.wait_ms).await;
        match fetched {
            Ok(batch) if batch.is_empty() => {
                failures = 0;
                reached(shared, node);
                shared
                    .empty_turns
                    .set(shared.empty_turns.get() + usize::from(in_turn));
                drop(leave);
                // A node that answers an empty poll at once must not be asked in a tight loop.
                let least = Duration::from_millis(limits::CLIENT_PAUSE_MS);
                if let Some(rest) = least.checked_sub(began.elapsed()) {
                    runtime.sleep(rest).await;
                }
            }
            Ok(batch) => {
                failures = 0;
                reached(shared, node);
                shared.empty_turns.set(0);
                keep(shared, node, batch).await;
            }
            Err(error) if error.is_transient() || error.outcome_unknown() => {
                tracing::debug!(%error, node = %node, "a poll failed");
                failures = failures.saturating_add(1);
                if failures >= limits::CONSUMER_UNREACHABLE_FAILURES && **node != *ANY_NODE {
                    shared.unreachable.borrow_mut().insert(node.clone());
                }
                drop(leave);
                shared.locator.suspect();
                shared.look.notify_one();
                let grown = limits::CLIENT_PAUSE_MS << failures.min(8);
                let pause = grown.min(limits::CLIENT_PAUSE_MAX_MS);
                runtime.sleep(Duration::from_millis(pause)).await;
            }
            Err(error) => {
                drop(leave);
                shared.fail(error);
                let pause = Duration::from_millis(limits::CLIENT_PAUSE_MAX_MS);
                runtime.sleep(pause).await;
            }
        }
    }
}

/// Lets a batch wait for the application; when that has gone meanwhile, others get it at once.
async fn keep<R: Runtime>(shared: &Shared<R>, node: &Rc<str>, records: Vec<Delivery>) {
    if shared.closing.get() {
        settle_all(shared, &held(&records), GIVE_BACK).await;
        return;
    }
    shared.waiting.borrow_mut().push_back(Waiting {
        records,
        from: node.clone(),
        at: shared.now(),
    });
    shared.came.notify_one();
}

fn reached<R: Runtime>(shared: &Shared<R>, node: &Rc<str>) {
    shared.unreachable.borrow_mut().remove(node);
}

async fn fetch<R: Runtime>(
    shared: &Shared<R>,
    node: &Rc<str>,
    max_records: u32,
    wait_ms: u32,
) -> Result<Vec<Delivery>, WireError> {
    let client = shared.locator.client();
    let topic = shared.locator.topic();
    let mut ask = ConsumeRequest {
        max_records,
        max_bytes: shared.options.max_bytes,
        wait_ms,
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
