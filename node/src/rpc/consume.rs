//! `consume`: local partitions first, then other owners, then parking.
//!
//! What this file keeps true: a record that was leased for somebody who is gone, or in a branch
//! that another one beat, is given back at once; a poll of another node is never cut off while it
//! may have leased something, its result is taken and given back.

use crate::messages::{Delivered, LeaseRef, Settle, ShardRequest};
use crate::rpc::node::NodeServer;
use crate::rpc::reply::{malformed, stopping, text};
use crate::shard::limits::{PEER_CALL_MS, REMOTE_PARK_MS, REMOTE_POLLS_MAX};
use crate::shard::lookup::lookup;
use crate::shard::peers::{self, RemoteConsume, as_wire};
use crate::shard::shard::Shard;
use crate::shard::task;
use futures::stream::{FuturesUnordered, StreamExt};
use narad_core::ids::TopicId;
use narad_core::meta::{Member, MemberStatus};
use narad_schema::client_capnp::node;
use narad_wire::convert::{list_len, write_record};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_RECORDS, READ_MAX_BYTES, WAIT_MAX_MS};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What was leased, and of which incarnation of the topic.
pub(crate) struct Got {
    topic: TopicId,
    records: Vec<Delivered>,
}

#[derive(Clone)]
struct Want {
    name: String,
    topic: TopicId,
    max_records: usize,
    max_bytes: usize,
    visibility_ms: u32,
}

/// A consume that waits at one shard of this node. Dropped early, it gives back what it holds.
struct Branch {
    shard: Rc<Shard>,
    topic: TopicId,
    at: usize,
    receiver: oneshot::Receiver<Result<Vec<Delivered>, WireFault>>,
}

impl Branch {
    async fn ask(
        shard: &Rc<Shard>,
        want: &Want,
        at: usize,
        wait_ms: u64,
    ) -> Result<Self, WireFault> {
        let (answer, receiver) = oneshot::channel();
        shard.ctx.shards[at]
            .send(ShardRequest::Consume {
                topic: want.topic,
                max_records: want.max_records,
                max_bytes: want.max_bytes,
                visibility_ms: (want.visibility_ms != 0).then_some(u64::from(want.visibility_ms)),
                wait_ms,
                answer,
            })
            .await
            .map_err(stopping)?;
        Ok(Self {
            shard: shard.clone(),
            topic: want.topic,
            at,
            receiver,
        })
    }

    async fn wait(mut self) -> Result<Vec<Delivered>, WireFault> {
        match (&mut self.receiver).await {
            Ok(result) => result,
            Err(_) => Err(crate::shard::faults::shutting_down()),
        }
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        self.receiver.close();
        let Ok(Ok(records)) = self.receiver.try_recv() else {
            return;
        };
        if records.is_empty() {
            return;
        }
        let leases: Vec<LeaseRef> = records.iter().map(|one| one.lease).collect();
        let (handle, topic) = (self.shard.ctx.shards[self.at].clone(), self.topic);
        task::spawn("giving leases back", async move {
            let _ = handle
                .ask(|answer| ShardRequest::Settle {
                    topic,
                    settle: Settle::Nack { delay_ms: 0 },
                    leases,
                    answer,
                })
                .await;
        });
    }
}

/// Answers one call.
pub(crate) async fn call(
    server: &NodeServer,
    params: &node::ConsumeParams,
) -> Result<Got, WireFault> {
    let permit = server.gate.enter().await?;
    let (mut want, wait_ms, local_only) = read(params)?;
    let shard = &server.shard;
    want.topic = lookup(&shard.ctx, &want.name).await?.id;
    let until = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    let mut records = local_now(shard, &want).await?;
    if records.is_empty() && !local_only {
        records = remote_now(shard, &want).await;
    }
    if records.is_empty() && wait_ms > 0 {
        drop(permit);
        let _parked = server.gate.park()?;
        records = parked(shard, &want, until, local_only).await?;
    }
    Ok(Got {
        topic: want.topic,
        records,
    })
}

fn read(params: &node::ConsumeParams) -> Result<(Want, u32, bool), WireFault> {
    let params = params.get().map_err(malformed)?;
    let want = Want {
        name: text(params.get_topic())?,
        topic: TopicId(0),
        max_records: (params.get_max_records() as usize).clamp(1, BATCH_MAX_RECORDS),
        max_bytes: (params.get_max_bytes() as usize).clamp(1, READ_MAX_BYTES),
        visibility_ms: params.get_visibility_ms(),
    };
    Ok((
        want,
        params.get_wait_ms().min(WAIT_MAX_MS),
        params.get_local_only(),
    ))
}

/// Every shard of this node in turn, each time from another one on.
async fn local_now(shard: &Rc<Shard>, want: &Want) -> Result<Vec<Delivered>, WireFault> {
    let count = shard.ctx.shards.len();
    let first = shard.next_turn();
    let mut records = Vec::new();
    let (mut bytes, mut fault) = (0usize, None);
    for step in 0..count {
        let mut part = want.clone();
        part.max_records = want.max_records - records.len();
        part.max_bytes = want.max_bytes.saturating_sub(bytes);
        if part.max_records == 0 || part.max_bytes == 0 {
            break;
        }
        let at = first.wrapping_add(step) % count;
        match Branch::ask(shard, &part, at, 0).await?.wait().await {
            Ok(got) => {
                bytes += got
                    .iter()
                    .map(|one| crate::shard::partition::record_bytes(&one.record))
                    .sum::<usize>();
                records.extend(got);
            }
            Err(error) => fault = Some(error),
        }
    }
    match fault {
        Some(fault) if records.is_empty() => Err(fault),
        _ => Ok(records),
    }
}

/// The other living owners of the topic's partitions, each time from another one on.
fn remote_owners(shard: &Rc<Shard>, topic: TopicId) -> Vec<Arc<Member>> {
    let state = shard.ctx.state();
    let Some(topic) = state.topics.get(&topic) else {
        return Vec::new();
    };
    let ids: BTreeSet<_> = topic.partitions.iter().map(|a| &a.owner).collect();
    let mut members: Vec<_> = ids
        .into_iter()
        .filter(|id| **id != shard.ctx.id)
        .filter_map(|id| state.members.get(id))
        .filter(|member| member.status == MemberStatus::Alive)
        .cloned()
        .collect();
    if !members.is_empty() {
        let first = shard.next_turn() % members.len();
        members.rotate_left(first);
    }
    members
}

fn remote(want: &Want, wait_ms: u32) -> RemoteConsume {
    RemoteConsume {
        topic: want.name.clone(),
        max_records: want.max_records,
        max_bytes: want.max_bytes,
        wait_ms,
        visibility_ms: want.visibility_ms,
    }
}

/// A poll of another node. Dropped early, it gives back what has come already; what comes later is
/// given back by the poll's own task.
struct Poll {
    shard: Rc<Shard>,
    member: Arc<Member>,
    topic: String,
    receiver: oneshot::Receiver<Vec<Delivered>>,
}

impl Poll {
    /// Starts it in a task of its own.
    fn start(shard: &Rc<Shard>, member: Arc<Member>, want: &Want, wait_ms: u32) -> Self {
        let (answer, receiver) = oneshot::channel();
        let poll = Self {
            shard: shard.clone(),
            member: member.clone(),
            topic: want.name.clone(),
            receiver,
        };
        let (shard, want) = (shard.clone(), want.clone());
        task::spawn("a poll of another node", async move {
            let deadline = Duration::from_millis(u64::from(wait_ms) + PEER_CALL_MS);
            let asked = remote(&want, wait_ms);
            let records = match peers::consume(&shard.pool, &member, &asked, deadline).await {
                Ok(records) => records,
                Err(error) => {
                    tracing::debug!(node = %member.id, %error, "another node could not be polled");
                    Vec::new()
                }
            };
            if let Err(untaken) = answer.send(records) {
                give_back(&shard, &member, &want.name, &untaken).await;
            }
        });
        poll
    }

    async fn wait(mut self) -> Vec<Delivered> {
        (&mut self.receiver).await.unwrap_or_default()
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.receiver.close();
        let Ok(untaken) = self.receiver.try_recv() else {
            return;
        };
        if untaken.is_empty() {
            return;
        }
        let (shard, member) = (self.shard.clone(), self.member.clone());
        let topic = std::mem::take(&mut self.topic);
        task::spawn("giving leases back to another node", async move {
            give_back(&shard, &member, &topic, &untaken).await;
        });
    }
}

/// Gives leases back to the node that gave them.
async fn give_back(shard: &Rc<Shard>, member: &Member, topic: &str, untaken: &[Delivered]) {
    if untaken.is_empty() {
        return;
    }
    let leases: Vec<LeaseRef> = untaken.iter().map(|one| one.lease).collect();
    let back = Settle::Nack { delay_ms: 0 };
    let deadline = Duration::from_millis(PEER_CALL_MS);
    let given = peers::settle(&shard.pool, member, topic, back, &leases, deadline).await;
    if let Err(error) = given {
        tracing::debug!(node = %member.id, %error, "leases come back by their timeout");
    }
}

async fn remote_now(shard: &Rc<Shard>, want: &Want) -> Vec<Delivered> {
    for member in remote_owners(shard, want.topic) {
        let records = Poll::start(shard, member, want, 0).wait().await;
        if !records.is_empty() {
            return records;
        }
    }
    Vec::new()
}

/// Waits for the first record anywhere.
async fn parked(
    shard: &Rc<Shard>,
    want: &Want,
    until: Instant,
    local_only: bool,
) -> Result<Vec<Delivered>, WireFault> {
    let left = until.saturating_duration_since(Instant::now());
    let wait_ms = u64::try_from(left.as_millis()).unwrap_or(0).max(1);
    let mut branches = FuturesUnordered::new();
    for at in 0..shard.ctx.shards.len() {
        branches.push(Branch::ask(shard, want, at, wait_ms).await?.wait());
    }
    let local = async {
        let mut fault = None;
        while let Some(result) = branches.next().await {
            match result {
                Ok(records) if !records.is_empty() => return Ok(records),
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(Vec::new()), Err)
    };
    if local_only {
        return local.await;
    }
    let elsewhere = parked_elsewhere(shard, want, until);
    match futures::future::select(std::pin::pin!(local), std::pin::pin!(elsewhere)).await {
        futures::future::Either::Left((Ok(records), _)) => Ok(records),
        futures::future::Either::Left((Err(fault), elsewhere)) => match elsewhere.await {
            records if records.is_empty() => Err(fault),
            records => Ok(records),
        },
        futures::future::Either::Right((records, _)) if !records.is_empty() => Ok(records),
        futures::future::Either::Right((_, local)) => local.await,
    }
}

/// Short polls of the other owners, looked up anew each time: partitions move.
async fn parked_elsewhere(shard: &Rc<Shard>, want: &Want, until: Instant) -> Vec<Delivered> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Vec::new();
        }
        let slice = left.min(Duration::from_millis(u64::from(REMOTE_PARK_MS)));
        let wait_ms = u32::try_from(slice.as_millis())
            .unwrap_or(REMOTE_PARK_MS)
            .max(1);
        let began = Instant::now();
        let mut polls: FuturesUnordered<_> = remote_owners(shard, want.topic)
            .into_iter()
            .take(REMOTE_POLLS_MAX)
            .map(|member| Poll::start(shard, member, want, wait_ms).wait())
            .collect();
        while let Some(records) = polls.next().await {
            if !records.is_empty() {
                return records;
            }
        }
        // Nobody to ask, or all answered early (an error): no busy loop.
        let rest = slice.saturating_sub(began.elapsed());
        if !rest.is_zero() {
            glommio::timer::sleep(rest).await;
        }
    }
}

/// Writes what was leased.
pub(crate) fn fill(builder: node::consume_results::Builder<'_>, got: Got) {
    let mut list = builder.init_records(list_len(got.records.len()));
    for (index, one) in (0u32..).zip(&got.records) {
        let mut delivery = list.reborrow().get(index);
        delivery.set_deliveries(one.deliveries);
        delivery.set_topic_id(got.topic.0);
        let mut lease = delivery.reborrow().init_lease();
        lease.set_partition(one.lease.partition.0);
        lease.set_offset(one.lease.offset.0);
        lease.set_nonce(one.lease.nonce.0);
        write_record(delivery.init_record(), as_wire(&one.record));
    }
}
