//! What other executors of this node ask a shard.
//!
//! What this file keeps true: each request is worked on in its own task, so one that waits (for a
//! disk, for Raft, for records) delays no other; consumers that park never take the room of other
//! requests, and nothing waits for room before it has been looked at; what is short and ordered (renewing a freeze,
//! refreshing a session) is answered at once.

use crate::messages::{LocalCopies, ReplayRange, ShardRequest};
use crate::shard::faults;
use crate::shard::limits::{FLIP_WAIT_MS, PARKED_MAX, SHARD_TASKS_MAX};
use crate::shard::shard::Shard;
use crate::shard::task;
use narad_core::copies::{Standing, has_log, standing};
use narad_core::ids::{CopyId, PartitionKey};
use narad_storage::layout;
use narad_wire::error::WireFault;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Answers requests until the senders are gone or the node stops.
pub(crate) async fn serve(shard: Rc<Shard>, mut requests: mpsc::Receiver<ShardRequest>) {
    let room = Room::new();
    let mut stop = shard.ctx.stop.clone();
    loop {
        let request = futures::select_biased! {
            request = futures::FutureExt::fuse(Box::pin(requests.recv())) => request,
            _ = futures::FutureExt::fuse(Box::pin(stop.wait_for(|stop| *stop))) => None,
        };
        let Some(request) = request else {
            return;
        };
        let Some(slow) = shard.at_once(request) else {
            continue;
        };
        let Some((permit, slow)) = room.enter(slow).await else {
            continue;
        };
        let shard = shard.clone();
        task::spawn("a shard request", async move {
            let _permit = permit;
            shard.in_time(slow).await;
        });
    }
}

/// Room for requests that are worked on. Consumers that park have their own, so that they never
/// keep an append or a move waiting.
struct Room {
    work: Arc<Semaphore>,
    parked: Arc<Semaphore>,
}

impl Room {
    fn new() -> Self {
        Self {
            work: Arc::new(Semaphore::new(SHARD_TASKS_MAX)),
            parked: Arc::new(Semaphore::new(PARKED_MAX)),
        }
    }

    /// Waits for room; `None` when the request was refused instead: consumers over the bound do not
    /// wait in front of others.
    async fn enter(&self, request: ShardRequest) -> Option<(OwnedSemaphorePermit, ShardRequest)> {
        if let ShardRequest::Consume { wait_ms: 1.., .. } = &request {
            return match self.parked.clone().try_acquire_owned() {
                Ok(permit) => Some((permit, request)),
                Err(_) => {
                    refuse_parked(request);
                    None
                }
            };
        }
        let permit = self.work.clone().acquire_owned().await.ok()?;
        Some((permit, request))
    }
}

fn refuse_parked(request: ShardRequest) {
    if let ShardRequest::Consume { answer, .. } = request {
        let _ = answer.send(Err(faults::busy("the number of parked consumers")));
    }
}

impl Shard {
    /// Answers what needs no waiting; gives back what does.
    fn at_once(self: &Rc<Self>, request: ShardRequest) -> Option<ShardRequest> {
        match request {
            ShardRequest::RefreshCopy {
                key,
                move_id,
                answer,
            } => match self.opened(key) {
                Ok(partition) => partition.refresh_copy(move_id, answer),
                Err(fault) => drop(answer.send(Err(fault))),
            },
            ShardRequest::Freeze {
                key,
                move_id,
                handoff_id,
                answer,
            } => match self.opened(key) {
                Ok(partition) => partition.freeze(move_id, handoff_id, answer),
                Err(fault) => drop(answer.send(Err(fault))),
            },
            ShardRequest::RenewFreeze {
                key,
                handoff_id,
                answer,
            } => match self.opened(key) {
                Ok(partition) => partition.renew_freeze(handoff_id, answer),
                Err(fault) => drop(answer.send(Err(fault))),
            },
            ShardRequest::CloseCopy {
                key,
                move_id,
                answer,
            } => match self.opened(key) {
                Ok(partition) => partition.close_copy(move_id, answer),
                Err(fault) => drop(answer.send(Err(fault))),
            },
            ShardRequest::Serves { copy, answer } => {
                let serves = self
                    .known_slot(copy.key)
                    .and_then(|slot| slot.open())
                    .is_some_and(|open| open.copy == copy && open.may_consume());
                let _ = answer.send(serves);
            }
            ShardRequest::Stats { topic, answer } => {
                let stats = self.open_of_topic(topic);
                let _ = answer.send(stats.iter().map(|open| open.stat()).collect());
            }
            ShardRequest::Summary { answer } => drop(answer.send(self.summary())),
            ShardRequest::Installed { copy, installed } => {
                let mut known = self.installed.borrow_mut();
                match installed {
                    Some(installed) => drop(known.insert(copy, installed)),
                    None => drop(known.remove(&copy)),
                }
            }
            slow => return Some(slow),
        }
        None
    }

    async fn in_time(self: &Rc<Self>, request: ShardRequest) {
        match request {
            ShardRequest::Append {
                key,
                records,
                answer,
            } => {
                let _ = answer.send(self.append_here(key, records).await);
            }
            ShardRequest::Dispatched {
                key,
                epoch,
                wal,
                records,
                answer,
            } => {
                let result = match self.open_for_use(key).await {
                    Ok(partition) if partition.copy.epoch == epoch => {
                        partition.append_dispatched(wal, records).await
                    }
                    Ok(_) => Err(faults::not_owner(&self.ctx.state(), key)),
                    Err(fault) => Err(fault),
                };
                let _ = answer.send(result);
            }
            ShardRequest::Consume {
                topic,
                max_records,
                max_bytes,
                visibility_ms,
                wait_ms,
                local_only,
                answer,
            } => {
                let wanted = crate::shard::delivery::Wanted {
                    topic,
                    max_records,
                    max_bytes,
                    visibility_ms,
                    local_only,
                };
                self.consume(wanted, wait_ms, answer).await;
            }
            ShardRequest::Settle {
                topic,
                settle,
                leases,
                answer,
            } => {
                let results = self.settle_leases(topic, settle, &leases);
                let _ = answer.send(results);
            }
            ShardRequest::Replay { key, range, answer } => {
                let result = self.replay(key, range).await;
                let _ = answer.send(result);
            }
            other => self.in_time_for_move(other).await,
        }
    }

    /// What the mover of this node, or of another one, asks.
    async fn in_time_for_move(self: &Rc<Self>, request: ShardRequest) {
        match request {
            ShardRequest::OpenCopy {
                key,
                epoch,
                move_id,
                target,
                answer,
            } => match self.open_for_use(key).await {
                Ok(partition) => partition.open_copy(epoch, move_id, target, answer),
                Err(fault) => drop(answer.send(Err(fault))),
            },
            ShardRequest::CheckPrefix {
                key,
                move_id,
                segment,
                answer,
            } => {
                let result = match self.opened(key) {
                    Ok(partition) => partition.check_prefix(move_id, segment).await,
                    Err(fault) => Err(fault),
                };
                let _ = answer.send(result);
            }
            ShardRequest::CheckLocal { key, answer } => {
                let _ = answer.send(self.check_local(key).await);
            }
            ShardRequest::Serve { copy, answer } => {
                let _ = answer.send(self.serve_copy(copy).await);
            }
            ShardRequest::Append { .. }
            | ShardRequest::Dispatched { .. }
            | ShardRequest::Consume { .. }
            | ShardRequest::Settle { .. }
            | ShardRequest::Replay { .. }
            | ShardRequest::RefreshCopy { .. }
            | ShardRequest::Freeze { .. }
            | ShardRequest::RenewFreeze { .. }
            | ShardRequest::CloseCopy { .. }
            | ShardRequest::Serves { .. }
            | ShardRequest::Stats { .. }
            | ShardRequest::Summary { .. }
            | ShardRequest::Installed { .. } => unreachable!("answered at once"),
        }
    }

    async fn replay(
        self: &Rc<Self>,
        key: PartitionKey,
        range: ReplayRange,
    ) -> Result<crate::messages::ReplayBatch, WireFault> {
        match self.opened(key) {
            Ok(partition) => partition.replay(range).await,
            Err(fault) => {
                let state = self.ctx.state();
                match state.assignment(key) {
                    // Never appended to: there is nothing to read, and nothing is wrong.
                    Some(assignment) if self.owns(assignment) && !has_log(assignment) => {
                        Ok(crate::messages::ReplayBatch::default())
                    }
                    _ => Err(fault),
                }
            }
        }
    }

    /// What of a partition is on this node's disk: the disk is asked, not memory, because the mover
    /// installs without telling.
    async fn check_local(&self, key: PartitionKey) -> LocalCopies {
        let found = match layout::copies_of(&self.root, key).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%key, %error, "the data directory cannot be read");
                // Nothing is known, so nothing may be staged or installed.
                return match self.copies.borrow().keys().find(|copy| copy.key == key) {
                    Some(copy) => LocalCopies::Occupied { copy: *copy },
                    None => LocalCopies::Unknown {
                        copy: CopyId {
                            key,
                            epoch: narad_core::ids::Epoch(0),
                        },
                    },
                };
            }
        };
        let state = self.ctx.state();
        match found.first() {
            None => LocalCopies::Clear,
            Some(copy) => match standing(&self.ctx.id, &state, copy.copy, copy.install) {
                Standing::Unknown => LocalCopies::Unknown { copy: copy.copy },
                Standing::Ours | Standing::Ended(_) | Standing::TopicGone | Standing::Stray => {
                    LocalCopies::Occupied { copy: copy.copy }
                }
            },
        }
    }

    /// The mover has installed this copy and its flip is applied: serve it now. Says since when it is
    /// served: the applied metadata opens it too.
    async fn serve_copy(self: &Rc<Self>, copy: CopyId) -> Result<Instant, WireFault> {
        let mut meta = self.ctx.meta.clone();
        let applied = meta.wait_for(|state| {
            state
                .assignment(copy.key)
                .is_none_or(|now| now.epoch >= copy.epoch)
        });
        let waited = glommio::timer::timeout(Duration::from_millis(FLIP_WAIT_MS), async {
            Ok::<_, glommio::GlommioError<()>>(applied.await.is_ok())
        });
        if waited.await.is_err() {
            return Err(faults::opening(copy.key));
        }
        let partition = self.open_slot(&self.slot(copy.key)).await?;
        if partition.copy == copy {
            Ok(partition.opened)
        } else {
            Err(faults::not_owner(&self.ctx.state(), copy.key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use narad_core::ids::TopicId;
    use tokio::sync::oneshot;

    fn consume(wait_ms: u64) -> (ShardRequest, impl Future<Output = bool>) {
        let (answer, answered) = oneshot::channel();
        let request = ShardRequest::Consume {
            topic: TopicId(1),
            max_records: 1,
            max_bytes: 1,
            visibility_ms: None,
            wait_ms,
            local_only: false,
            answer,
        };
        (request, async { matches!(answered.await, Ok(Err(_))) })
    }

    #[test]
    fn parked_consumers_leave_room_for_everything_else() {
        let room = Room::new();
        let enter = |request| {
            let entered = room.enter(request).now_or_never();
            entered.expect("nothing waits while there is room")
        };
        let parked: Vec<_> = (0..PARKED_MAX)
            .map(|_| enter(consume(60_000).0).expect("room to park"))
            .collect();
        // One more is refused, at once and in words.
        let (request, refused) = consume(60_000);
        assert!(enter(request).is_none());
        assert_eq!(refused.now_or_never(), Some(true));
        // All of the other room is there still.
        let work: Vec<_> = (0..SHARD_TASKS_MAX)
            .map(|_| enter(consume(0).0).expect("room to work"))
            .collect();
        assert!(room.enter(consume(0).0).now_or_never().is_none());
        drop(work);
        drop(parked);
        assert!(enter(consume(60_000).0).is_some());
    }
}
