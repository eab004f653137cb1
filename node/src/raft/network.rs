//! Sending: openraft's network over a transport of the shell.
//!
//! Keeps true: every call ends within the time that Raft gives it; no message passes the bound of the wire; an
//! unreachable peer is tried again with growing pauses, never in a tight loop.

use super::limits::{BACKOFF_FIRST, BACKOFF_MAX, MAX_MESSAGE_BYTES, SNAPSHOT_CHUNK_BYTES};
use super::runtime::GlommioRuntime;
use super::types::{LogId, RaftNodeId, RaftPeer, Snapshot, StoredMembership, TypeConfig, Vote};
use super::wire::{
    ChunkHeader, ChunkReply, RaftMessage, RaftMessageKind, encode_chunk, from_bytes, to_bytes,
};
use futures::future::{Either, LocalBoxFuture, select};
use openraft::error::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, OptionalSend, RPCTypes};
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Why a call brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// There is no connection; the peer did not see the request, or will not answer it.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// No answer in time. The peer may have acted.
    #[error("no answer in time")]
    Timeout,
    /// The peer answered with an error.
    #[error("the peer refused: {0}")]
    Remote(String),
}

/// How messages reach a peer; the shell implements it over its RPC. On the other side the shell hands the
/// message to [`super::node::RaftNode::handle`] and returns its answer, or its error as [`TransportError::Remote`].
pub trait RaftTransport: 'static {
    /// Sends `request` to node `target` at `addr` and waits at most `deadline` for its answer. Dropping the
    /// future gives up; the peer may still act. Implementations must not reorder their own retries behind a caller's back.
    fn call<'a>(
        &'a self,
        target: &'a str,
        addr: &'a str,
        request: RaftMessage,
        deadline: Duration,
    ) -> LocalBoxFuture<'a, Result<Vec<u8>, TransportError>>;
}

/// Where the members are now. openraft hands a client the address once, when a replication stream starts; a member
/// that moves later is found here.
#[derive(Clone, Default)]
pub struct AddressBook(Rc<RefCell<BTreeMap<RaftNodeId, String>>>);

impl AddressBook {
    /// Replaces all addresses by those of `membership`.
    pub fn replace(&self, membership: &StoredMembership) {
        let now = membership
            .nodes()
            .map(|(id, peer)| (id.clone(), peer.addr.clone()));
        *self.0.borrow_mut() = now.collect();
    }

    fn of(&self, id: &RaftNodeId) -> Option<String> {
        self.0.borrow().get(id).cloned()
    }
}

/// How far each peer confirmed the log to the leader with this vote. A peer that later denies what it
/// confirmed has lost its log.
type Confirmed = Rc<RefCell<BTreeMap<RaftNodeId, (Vote, Option<LogId>)>>>;

/// Makes one [`PeerClient`] a peer and purpose.
pub struct PeerFactory {
    node_id: RaftNodeId,
    transport: Rc<dyn RaftTransport>,
    book: AddressBook,
    confirmed: Confirmed,
}

impl PeerFactory {
    /// `node_id` is this node; `book` is kept current by the caller.
    pub fn new(
        node_id: RaftNodeId,
        transport: Rc<dyn RaftTransport>,
        book: AddressBook,
    ) -> PeerFactory {
        PeerFactory {
            node_id,
            transport,
            book,
            confirmed: Confirmed::default(),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for PeerFactory {
    type Network = PeerClient;

    async fn new_client(&mut self, target: RaftNodeId, node: &RaftPeer) -> PeerClient {
        // A member that was removed and added again begins with nothing confirmed.
        self.confirmed.borrow_mut().remove(&target);
        PeerClient {
            node_id: self.node_id.clone(),
            target,
            addr: node.addr.clone(),
            transport: self.transport.clone(),
            book: self.book.clone(),
            confirmed: self.confirmed.clone(),
        }
    }
}

/// Calls to one peer.
pub struct PeerClient {
    node_id: RaftNodeId,
    target: RaftNodeId,
    /// Where it was when this client was made.
    addr: String,
    transport: Rc<dyn RaftTransport>,
    book: AddressBook,
    confirmed: Confirmed,
}

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

impl PeerClient {
    async fn send(
        &self,
        kind: RaftMessageKind,
        body: Vec<u8>,
        action: RPCTypes,
        deadline: Duration,
    ) -> Rpc<Vec<u8>> {
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(NetworkError::from_string(format!(
                "a message of {} bytes is too long to be sent",
                body.len()
            ))
            .into());
        }
        let addr = self
            .book
            .of(&self.target)
            .unwrap_or_else(|| self.addr.clone());
        let call = self
            .transport
            .call(&self.target.0, &addr, RaftMessage { kind, body }, deadline);
        // The transport is told the deadline; this keeps the promise if it does not.
        let answer = GlommioRuntime::timeout(deadline, call)
            .await
            .unwrap_or(Err(TransportError::Timeout));
        answer.map_err(|error| match error {
            TransportError::Timeout => {
                let (id, target) = (self.node_id.clone(), self.target.clone());
                RPCError::Timeout(Timeout {
                    action,
                    id,
                    target,
                    timeout: deadline,
                })
            }
            // A peer that refuses (starting, stopping) is left alone for a while too.
            TransportError::Unreachable(_) | TransportError::Remote(_) => {
                RPCError::Unreachable(Unreachable::new(&error))
            }
        })
    }

    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        kind: RaftMessageKind,
        request: &Q,
        action: RPCTypes,
        option: &RPCOption,
    ) -> Rpc<A> {
        let answer = self
            .send(kind, to_bytes(request), action, option.soft_ttl())
            .await?;
        from_bytes(&answer).map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }

    /// Whether a peer's answer contradicts what it confirmed to the same leader before.
    fn has_lost_its_log(
        &self,
        sent: &AppendEntriesRequest<TypeConfig>,
        answer: &AppendEntriesResponse<TypeConfig>,
    ) -> bool {
        let mut confirmed = self.confirmed.borrow_mut();
        let known = confirmed
            .entry(self.target.clone())
            .or_insert_with(|| (sent.vote.clone(), None));
        if known.0 != sent.vote {
            *known = (sent.vote.clone(), None);
        }
        match answer {
            AppendEntriesResponse::Success => {
                let upto = sent
                    .entries
                    .last()
                    .map(|entry| entry.log_id)
                    .or(sent.prev_log_id);
                known.1 = known.1.max(upto);
                false
            }
            AppendEntriesResponse::PartialSuccess(upto) => {
                known.1 = known.1.max(*upto);
                false
            }
            AppendEntriesResponse::Conflict => {
                sent.prev_log_id.is_some() && sent.prev_log_id <= known.1
            }
            AppendEntriesResponse::HigherVote(_) => false,
        }
    }

    /// Sends one snapshot from the start. `None`: the peer lost the session.
    async fn send_chunks(
        &self,
        vote: &Vote,
        snapshot: &Snapshot,
        deadline: Duration,
    ) -> Rpc<Option<SnapshotResponse<TypeConfig>>> {
        let data = &snapshot.snapshot;
        let mut header = ChunkHeader {
            vote: vote.clone(),
            meta: snapshot.meta.clone(),
            session: rand::rng().random(),
            offset: 0,
            total: data.len() as u64,
            crc: crc32c::crc32c(data),
        };
        loop {
            let at = header.offset as usize;
            let piece = &data[at..data.len().min(at + SNAPSHOT_CHUNK_BYTES)];
            let body = encode_chunk(&header, piece);
            let answer = self
                .send(
                    RaftMessageKind::SnapshotChunk,
                    body,
                    RPCTypes::InstallSnapshot,
                    deadline,
                )
                .await?;
            match from_bytes(&answer)
                .map_err(|error| RPCError::Network(NetworkError::new(&error)))?
            {
                ChunkReply::Done(response) => return Ok(Some(response)),
                ChunkReply::Next(next) if next > header.offset && next <= header.total => {
                    header.offset = next
                }
                ChunkReply::Next(_) | ChunkReply::Restart => return Ok(None),
            }
        }
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        mut rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<TypeConfig>> {
        // The log hands out what fits; this covers entries that are longer on the wire than the log counted.
        let mut shortened = false;
        let mut body = to_bytes(&rpc);
        while body.len() > MAX_MESSAGE_BYTES && rpc.entries.len() > 1 {
            rpc.entries.truncate(rpc.entries.len() / 2);
            shortened = true;
            body = to_bytes(&rpc);
        }
        let answer = self
            .send(
                RaftMessageKind::AppendEntries,
                body,
                RPCTypes::AppendEntries,
                option.soft_ttl(),
            )
            .await?;
        let answer =
            from_bytes(&answer).map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        if self.has_lost_its_log(&rpc, &answer) {
            let (node, addr) = (&self.target, &self.addr);
            tracing::error!(
                %node, %addr,
                "this node confirmed Raft entries that it no longer has: was its data directory replaced? It gets no \
                 entries until it is removed from the cluster and joins again"
            );
            let lost = format!("{node} lost Raft entries that it had confirmed");
            return Err(RPCError::Unreachable(Unreachable::from_string(lost)));
        }
        Ok(match answer {
            AppendEntriesResponse::Success if shortened => {
                AppendEntriesResponse::PartialSuccess(rpc.entries.last().map(|entry| entry.log_id))
            }
            answer => answer,
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask(RaftMessageKind::Vote, &rpc, RPCTypes::Vote, &option)
            .await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask(RaftMessageKind::PreVote, &rpc, RPCTypes::Vote, &option)
            .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let sending = pin!(self.send_chunks(&vote, &snapshot, option.soft_ttl()));
        match select(sending, pin!(cancel)).await {
            Either::Left((Ok(Some(response)), _)) => Ok(response),
            Either::Left((Ok(None), _)) => {
                Err(NetworkError::from_string("the peer lost the snapshot session").into())
            }
            Either::Left((Err(error), _)) => Err(error.into()),
            Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<TypeConfig>> {
        self.ask(
            RaftMessageKind::TransferLeader,
            &req,
            RPCTypes::TransferLeader,
            &option,
        )
        .await
    }

    fn backoff(&self) -> Option<Backoff> {
        let doubling = std::iter::successors(Some(BACKOFF_FIRST), |pause| {
            Some((*pause * 2).min(BACKOFF_MAX))
        });
        // Three quarters to all of it, so that peers do not come in step.
        Some(Backoff::new(doubling.map(|pause| {
            pause.mul_f64(rand::rng().random_range(0.75..=1.0))
        })))
    }
}
