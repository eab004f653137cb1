//! `consume`: local partitions first, then other owners, then parking.
//!
//! What this file keeps true: from the moment a record is leased until its caller has the answer,
//! something holds it that gives it back ([`Handed`]): the branch that another one beat, the call
//! that was dropped, the receipt of the answer; a poll of another node is never cut off while it
//! may have leased something; one node that hangs keeps no caller from what the others have.

use crate::messages::{Delivered, ShardRequest};
use crate::metrics::{ConsumeLabel, ConsumeOutcome};
use crate::rpc::handed::{Handed, Receipt};
use crate::rpc::hedge::first_of;
use crate::rpc::leases;
use crate::rpc::node::NodeServer;
use crate::rpc::polls::{Poll, Polls};
use crate::rpc::reply::{malformed, stopping, text};
use crate::shard::limits::{
    ANSWERS_OWED_MAX, CALL_COST_BYTES, PEER_CALL_MS, REMOTE_HURRY_MS, REMOTE_NOW_MS,
    REMOTE_PARK_MS, REMOTE_POLLS_MAX,
};
use crate::shard::lookup::lookup;
use crate::shard::peers::{self, RemoteConsume, as_wire};
use crate::shard::shard::Shard;
use crate::shard::task;
use futures::future::Either;
use futures::stream::{FuturesUnordered, StreamExt};
use narad_core::ids::{NodeId, TopicId};
use narad_core::meta::{Member, MemberStatus};
use narad_schema::client_capnp::node;
use narad_wire::convert::{list_len, write_record};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_RECORDS, READ_MAX_BYTES, WAIT_MAX_MS};
use narad_wire::rpc::{Line, deliveries_room};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What was leased, of which incarnation of the topic, and what gives it back.
pub(crate) struct Got {
    topic: TopicId,
    records: Vec<Delivered>,
    handed: Handed,
}

impl Got {
    fn nothing(shard: &Rc<Shard>, topic: TopicId) -> Self {
        Self {
            topic,
            records: Vec::new(),
            handed: Handed::new(shard, topic),
        }
    }

    fn join(&mut self, other: Self) {
        self.records.extend(other.records);
        self.handed.join(other.handed);
    }

    fn bytes(&self) -> usize {
        let sizes = self.records.iter();
        sizes.map(|one| one.record.content_len()).sum()
    }

    /// What they take in an answer, in bytes.
    pub(crate) fn room(&self) -> usize {
        deliveries_room(self.records.len(), self.bytes())
    }
}

/// What a call asks for.
#[derive(Clone, PartialEq)]
pub(crate) struct Want {
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
        (wait_ms, local_only): (u64, bool),
    ) -> Result<Self, WireFault> {
        let (answer, receiver) = oneshot::channel();
        shard.ctx.shards[at]
            .send(ShardRequest::Consume {
                topic: want.topic,
                max_records: want.max_records,
                max_bytes: want.max_bytes,
                visibility_ms: (want.visibility_ms != 0).then_some(u64::from(want.visibility_ms)),
                wait_ms,
                local_only,
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

    async fn wait(mut self) -> Result<Got, WireFault> {
        match (&mut self.receiver).await {
            Ok(Ok(records)) => Ok(self.got(records)),
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(crate::shard::faults::shutting_down()),
        }
    }

    fn got(&self, records: Vec<Delivered>) -> Got {
        Got {
            topic: self.topic,
            handed: Handed::by_shard(&self.shard, self.topic, self.at, &records),
            records,
        }
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        self.receiver.close();
        if let Ok(Ok(records)) = self.receiver.try_recv() {
            // Dropped, and so given back.
            self.got(records);
        }
    }
}

/// Answers one call.
pub(crate) async fn call(
    server: &NodeServer,
    params: node::ConsumeParams,
) -> Result<Got, WireFault> {
    let began = Instant::now();
    let answer = lease(server, params).await;
    let outcome = match &answer {
        Ok(got) if got.records.is_empty() => ConsumeOutcome::Empty,
        Ok(_) => ConsumeOutcome::Delivered,
        Err(_) => ConsumeOutcome::Refused,
    };
    let seconds = &server.shard.ctx.metrics.consume_seconds;
    seconds
        .get_or_create(&ConsumeLabel { outcome })
        .observe(began.elapsed().as_secs_f64());
    answer
}

async fn lease(server: &NodeServer, params: node::ConsumeParams) -> Result<Got, WireFault> {
    let (mut want, wait_ms, local_only) = read(&params)?;
    // What waits for its turn is counted, and has let go of its message.
    drop(params);
    let rooms = &server.shard.rooms;
    let room = rooms.calls.enter(want.name.len() + CALL_COST_BYTES)?;
    let permit = server.gate.enter().await?;
    server.line.room(ANSWERS_OWED_MAX).await;
    drop(room);
    let shard = &server.shard;
    want.topic = lookup(&shard.ctx, &want.name).await?.id;
    let until = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    let mut got = local_now(shard, &want).await?;
    if got.records.is_empty()
        && !local_only
        && let Some(elsewhere) = remote_now(server, &want, wait_ms > 0).await
    {
        got = elsewhere;
    }
    if got.records.is_empty() && wait_ms > 0 {
        drop(permit);
        let _parked = server.gate.park()?;
        got = parked(server, &want, until, local_only).await?;
    }
    Ok(got)
}

fn read(params: &node::ConsumeParams) -> Result<(Want, u32, bool), WireFault> {
    let params = params.get().map_err(malformed)?;
    let want = Want {
        name: text(params.get_topic())?,
        topic: TopicId(0),
        max_records: (params.get_max_records() as usize).clamp(1, BATCH_MAX_RECORDS),
        max_bytes: (params.get_max_bytes() as usize).clamp(1, READ_MAX_BYTES),
        visibility_ms: leases::visibility(params.get_visibility_ms())?,
    };
    Ok((
        want,
        params.get_wait_ms().min(WAIT_MAX_MS),
        params.get_local_only(),
    ))
}

/// Every shard of this node in turn, each time from another one on.
async fn local_now(shard: &Rc<Shard>, want: &Want) -> Result<Got, WireFault> {
    let count = shard.ctx.shards.len();
    let first = shard.next_turn();
    let mut all = Got::nothing(shard, want.topic);
    let (mut bytes, mut fault) = (0usize, None);
    for step in 0..count {
        let mut part = want.clone();
        part.max_records = want.max_records - all.records.len();
        part.max_bytes = want.max_bytes.saturating_sub(bytes);
        if part.max_records == 0 || part.max_bytes == 0 {
            break;
        }
        let at = first.wrapping_add(step) % count;
        match Branch::ask(shard, &part, at, (0, true)).await?.wait().await {
            Ok(got) => {
                bytes += got.bytes();
                all.join(got);
            }
            Err(error) => fault = Some(error),
        }
    }
    match fault {
        Some(fault) if all.records.is_empty() => Err(fault),
        _ => Ok(all),
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

/// What is asked of whom.
#[derive(Clone, PartialEq)]
pub(crate) struct PollKey {
    member: NodeId,
    want: Want,
}

/// Polls of other nodes, of one shard.
pub(crate) type RemotePolls = Polls<PollKey, Got>;

fn key(member: &Member, want: &Want) -> PollKey {
    PollKey {
        member: member.id.clone(),
        want: want.clone(),
    }
}

/// Polls another node, in a task of its own.
fn poll(server: &NodeServer, member: Arc<Member>, want: &Want, wait_ms: u32) -> Poll<PollKey, Got> {
    let ends = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    let (poll, asking) = server.polls.begin(key(&member, want), ends);
    let (shard, want) = (server.shard.clone(), want.clone());
    task::spawn("a poll of another node", async move {
        let deadline = Duration::from_millis(u64::from(wait_ms) + PEER_CALL_MS);
        let asked = remote(&want, wait_ms);
        match peers::consume(&shard.pool, &member, &asked, deadline).await {
            Ok((records, receipt)) if !records.is_empty() => {
                let from = (&member, want.name.as_str());
                asking.found(Got {
                    topic: want.topic,
                    handed: Handed::by_node(&shard, want.topic, from, &records, receipt),
                    records,
                });
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(node = %member.id, %error, "another node could not be polled");
            }
        }
    });
    poll
}

/// Asks the other owners for what they have now. A caller who waits for more is soon let go on to that:
/// whoever has not answered is asked there as well, and whoever is asked by a poll that stands by only there.
async fn remote_now(server: &NodeServer, want: &Want, waits: bool) -> Option<Got> {
    let owners = remote_owners(&server.shard, want.topic);
    let mut kept = owners
        .iter()
        .map(|member| server.polls.kept(&key(member, want)));
    if let Some(got) = kept.find_map(|got| got) {
        return Some(got);
    }
    let polls = owners
        .into_iter()
        .filter(|member| !(waits && server.polls.stands_by(&key(member, want))))
        .take(REMOTE_POLLS_MAX)
        .map(|member| async move { poll(server, member, want, 0).await });
    let hurry = Duration::from_millis(REMOTE_HURRY_MS);
    let patience = match waits {
        true => hurry,
        false => Duration::from_millis(REMOTE_NOW_MS),
    };
    first_of(polls, hurry, patience).await
}

/// Waits for the first record anywhere.
async fn parked(
    server: &NodeServer,
    want: &Want,
    until: Instant,
    local_only: bool,
) -> Result<Got, WireFault> {
    let shard = &server.shard;
    let left = until.saturating_duration_since(Instant::now());
    let wait_ms = u64::try_from(left.as_millis()).unwrap_or(0).max(1);
    let mut branches = FuturesUnordered::new();
    for at in 0..shard.ctx.shards.len() {
        let branch = Branch::ask(shard, want, at, (wait_ms, local_only)).await?;
        branches.push(branch.wait());
    }
    let local = async {
        let mut fault = None;
        while let Some(result) = branches.next().await {
            match result {
                Ok(got) if !got.records.is_empty() => return Ok(got),
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or_else(|| Ok(Got::nothing(shard, want.topic)), Err)
    };
    if local_only {
        return local.await;
    }
    let elsewhere = parked_elsewhere(server, want, until);
    match futures::future::select(std::pin::pin!(local), std::pin::pin!(elsewhere)).await {
        Either::Left((Ok(got), _)) => Ok(got),
        Either::Left((Err(fault), elsewhere)) => elsewhere.await.ok_or(fault),
        Either::Right((Some(got), _)) => Ok(got),
        Either::Right((None, local)) => local.await,
    }
}

/// Short polls of the other owners, who are looked up anew each time: partitions move. Each is asked
/// again when its own poll has ended, however long another one's takes.
async fn parked_elsewhere(server: &NodeServer, want: &Want, until: Instant) -> Option<Got> {
    let mut polls = FuturesUnordered::new();
    let mut asked = BTreeSet::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let slice = left.min(Duration::from_millis(u64::from(REMOTE_PARK_MS)));
        for member in remote_owners(&server.shard, want.topic) {
            if asked.len() < REMOTE_POLLS_MAX && asked.insert(member.id.clone()) {
                polls.push(parked_poll(server, member, want, slice));
            }
        }
        let sleep = Box::pin(glommio::timer::sleep(slice));
        match futures::future::select(polls.next(), sleep).await {
            Either::Left((Some((_, Some(got))), _)) => return Some(got),
            Either::Left((Some((id, None)), _)) => drop(asked.remove(&id)),
            // Nobody to ask; somebody may be soon.
            Either::Left((None, sleep)) => sleep.await,
            Either::Right(_) => {}
        }
    }
}

/// One of those polls, one that stands by where there is one, and whom it asked; one that is answered early with nothing (an error)
/// takes its time all the same, so that there is no busy loop.
async fn parked_poll(
    server: &NodeServer,
    member: Arc<Member>,
    want: &Want,
    slice: Duration,
) -> (NodeId, Option<Got>) {
    let (id, key) = (member.id.clone(), key(&member, want));
    // What came since they were last looked for.
    if let Some(got) = server.polls.kept(&key) {
        return (id, Some(got));
    }
    let wait_ms = u32::try_from(slice.as_millis())
        .unwrap_or(REMOTE_PARK_MS)
        .max(1);
    let standing_by = server.polls.take_over(&key);
    let poll = standing_by.unwrap_or_else(|| poll(server, member, want, wait_ms));
    let ends = poll.ends();
    let got = poll.await;
    if got.is_none() {
        glommio::timer::sleep(ends.saturating_duration_since(Instant::now())).await;
    }
    (id, got)
}

/// Writes what was leased. Until the caller releases the receipt, or with it the answer, the leases
/// may come back.
pub(crate) fn fill(mut builder: node::consume_results::Builder<'_>, got: Got, line: &Line) {
    line.owe(got.bytes() as u64);
    if !got.handed.is_empty() {
        let receipt = Receipt::new(got.handed, line.clone());
        builder.set_receipt(narad_wire::rpc::new_client(receipt));
    }
    let mut list = builder.init_records(list_len(got.records.len()));
    for (index, one) in (0u32..).zip(&got.records) {
        let mut delivery = list.reborrow().get(index);
        delivery.set_deliveries(one.deliveries);
        delivery.set_topic_id(got.topic.0);
        let mut lease = delivery.reborrow().init_lease();
        lease.set_partition(one.lease.partition.0);
        lease.set_offset(one.lease.offset.0);
        lease.set_nonce(one.lease.nonce.0);
        write_record(delivery.init_record(), as_wire(one.record.get()));
    }
}
