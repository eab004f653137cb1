//! One batch of a producer, until every record of it is stored or given up.
//!
//! What this file keeps true: a record leaves the batch only with an outcome; the first attempt
//! goes to the owner, the second to the owner as told anew, the later ones to any node in turn (whose
//! ingress WAL takes what it does not own); pauses between attempts grow to a bound.

use super::calls;
use super::handle::Client;
use super::locator::Locator;
use super::model::Produced;
use super::producer::ProducerOptions;
use crate::convert::Record;
use crate::error::{ErrorCode, WireError};
use crate::limits;
use crate::runtime::Runtime;
use futures::channel::oneshot;
use narad_core::ids::PartitionIndex;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// A record on its way.
pub(super) struct Pending {
    pub(super) record: Record,
    pub(super) done: oneshot::Sender<Result<Produced, WireError>>,
    /// Room in the producer, given back with the outcome.
    pub(super) _room: OwnedSemaphorePermit,
}

pub(super) struct Batch {
    pub(super) records: Vec<Pending>,
    pub(super) owner: Option<Rc<str>>,
    pub(super) partition: Option<PartitionIndex>,
}

/// Delivers a batch; `report` gets each record with its outcome, exactly once.
pub(super) async fn deliver<R: Runtime>(
    locator: &Locator<R>,
    options: &ProducerOptions,
    batch: Batch,
    report: impl Fn(Pending, Result<Produced, WireError>),
) {
    let Batch {
        records: mut left,
        mut owner,
        partition,
    } = batch;
    let client = locator.client();
    let until = Instant::now() + options.give_up;
    let mut attempt = 0usize;
    loop {
        let addr = owner.take().or_else(|| any_node(client, attempt));
        let sent = match &addr {
            Some(addr) => send(locator, options, addr, &left, partition).await,
            None => Err(WireError::Connect {
                addr: String::new(),
                message: "no node is known".into(),
                retry_after_ms: 0,
            }),
        };
        let error = match sent {
            Ok(outcomes) => match sort(&mut left, outcomes, locator, &report) {
                Some(error) => error,
                None => {
                    // Asks only when something did not fit, or the picture is old.
                    let _ = locator.fresh().await;
                    return;
                }
            },
            Err(error) => error,
        };
        // Within the call's own failure only: a refusal that lasts is the same at every node.
        let lasting = !error.is_transient() && !matches!(error, WireError::Protocol { .. });
        if lasting || Instant::now() >= until {
            for pending in left {
                report(pending, Err(error.clone()));
            }
            return;
        }
        tracing::debug!(%error, attempt, records = left.len(), "a batch is sent again");
        locator.suspect();
        attempt += 1;
        pause(client, &error, attempt).await;
        if attempt == 1 {
            owner = relocate(locator, &left, partition).await;
        }
    }
}

async fn send<R: Runtime>(
    locator: &Locator<R>,
    options: &ProducerOptions,
    addr: &Rc<str>,
    left: &[Pending],
    partition: Option<PartitionIndex>,
) -> Result<Vec<Result<Produced, crate::error::WireFault>>, WireError> {
    let client = locator.client();
    let node = client.pool().node(addr).await?;
    let records = left.iter().map(|pending| pending.record.as_ref());
    let runtime = client.runtime();
    let topic = locator.topic();
    let sent = calls::produce(runtime, &node, options.attempt, topic, records, partition).await;
    if sent.as_ref().is_err_and(WireError::connection_lost) {
        client.pool().failed(addr);
    }
    sent
}

/// Reports what is decided and keeps what is worth another attempt, with one of its reasons.
fn sort<R: Runtime>(
    left: &mut Vec<Pending>,
    outcomes: Vec<Result<Produced, crate::error::WireFault>>,
    locator: &Locator<R>,
    report: impl Fn(Pending, Result<Produced, WireError>),
) -> Option<WireError> {
    let mut again = Vec::new();
    let mut reason = None;
    for (pending, outcome) in std::mem::take(left).into_iter().zip(outcomes) {
        match outcome {
            Ok(produced) => {
                // A detour through a WAL: the picture of the owners is probably old.
                if produced == Produced::Accepted {
                    locator.suspect();
                }
                report(pending, Ok(produced));
            }
            Err(fault) => {
                let error = WireError::Fault(fault);
                if error.is_transient() {
                    reason = Some(error);
                    again.push(pending);
                } else {
                    report(pending, Err(error));
                }
            }
        }
    }
    *left = again;
    reason
}

/// The owner as told anew, when one node owns what all the records want.
async fn relocate<R: Runtime>(
    locator: &Locator<R>,
    left: &[Pending],
    partition: Option<PartitionIndex>,
) -> Option<Rc<str>> {
    let placement = locator.fresh().await.ok()?;
    if let Some(partition) = partition {
        return placement.owner(partition).cloned();
    }
    let mut owners = left
        .iter()
        .map(|pending| placement.owner_of_key(pending.record.key.as_deref()?));
    let first = owners.next()??;
    owners
        .all(|owner| owner == Some(first))
        .then(|| first.clone())
}

fn any_node<R: Runtime>(client: &Client<R>, attempt: usize) -> Option<Rc<str>> {
    let servers = client.servers();
    if servers.is_empty() {
        return None;
    }
    Some(servers[attempt % servers.len()].clone())
}

async fn pause<R: Runtime>(client: &Client<R>, error: &WireError, attempt: usize) {
    let code = error.code();
    // Another node takes it at once.
    let elsewhere = matches!(
        code,
        Some(ErrorCode::NotOwner | ErrorCode::Frozen | ErrorCode::ShuttingDown)
    ) || matches!(
        error,
        WireError::Disconnected { .. } | WireError::Connect { .. }
    );
    if attempt == 1 && elsewhere {
        return;
    }
    let advised = error.fault().map_or(0, |fault| fault.retry_after_ms);
    let grown = limits::CLIENT_PAUSE_MS << attempt.min(8);
    let pause = u64::from(advised)
        .max(grown)
        .min(limits::CLIENT_PAUSE_MAX_MS);
    client.runtime().sleep(Duration::from_millis(pause)).await;
}
