//! The interface between nodes: Raft, metadata, dispatch and views.
//!
//! What this file keeps true: Raft and heartbeats never wait behind bulk work of the same
//! connection; every body and batch is bounded before it is copied.

use crate::messages::{Beat, ControlRequest, JoinRequest, ShardRequest};
use crate::rpc::gate::Gate;
use crate::rpc::reply::{answer, malformed, stopping, text, unproposed};
use crate::rpc::{copies, moves, topics};
use crate::shard::shard::Shard;
use crate::shard::{faults, peers, task};
use narad_core::ids::{
    CopyId, Epoch, NodeId, NodeIncarnation, Offset, PartitionKey, RaftIndex, WalId, WalSeq,
};
use narad_core::meta::Command;
use narad_schema::peer_capnp::peer;
use narad_storage::Record;
use narad_wire::convert::{list_len, read_partition_key};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS, RAFT_BODY_MAX_BYTES};
use std::rc::Rc;

/// The peer interface, given to one node.
pub(crate) struct PeerServer {
    pub(crate) shard: Rc<Shard>,
    pub(crate) gate: Gate,
    /// Who asked for it.
    node: NodeId,
    incarnation: NodeIncarnation,
}

impl PeerServer {
    /// For this peer.
    pub(crate) fn new(shard: Rc<Shard>, node: NodeId, incarnation: NodeIncarnation) -> Self {
        tracing::debug!(%node, %incarnation, "a peer connects");
        Self {
            shard,
            gate: Gate::new(),
            node,
            incarnation,
        }
    }

    async fn raft_call(&self, params: &peer::RaftParams) -> Result<Vec<u8>, WireFault> {
        let (kind, body) = {
            let params = params.get().map_err(malformed)?;
            let body = params.get_body().map_err(malformed)?;
            bounded("bytes of a Raft message", body.len(), RAFT_BODY_MAX_BYTES)?;
            (params.get_kind(), body.to_vec())
        };
        self.shard
            .ctx
            .control
            .ask(|answer| ControlRequest::Raft { kind, body, answer })
            .await
            .map_err(stopping)?
    }

    async fn propose_call(
        &self,
        params: &peer::ProposeParams,
    ) -> Result<(RaftIndex, Vec<u8>), WireFault> {
        let command: Command = {
            let params = params.get().map_err(malformed)?;
            let bytes = params.get_command().map_err(malformed)?;
            bounded("bytes of a command", bytes.len(), RAFT_BODY_MAX_BYTES)?;
            serde_json::from_slice(bytes).map_err(|error| {
                faults::invalid(
                    format!("a command that cannot be read: {error}"),
                    "the other node may run a newer version; upgrade this one",
                )
            })?
        };
        let (index, reply) = self
            .shard
            .ctx
            .control
            .ask(|answer| ControlRequest::ProposeHere { command, answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))?;
        let reply = serde_json::to_vec(&reply).map_err(|e| faults::internal("propose", e))?;
        Ok((index, reply))
    }

    async fn read_index_call(&self) -> Result<RaftIndex, WireFault> {
        self.shard
            .ctx
            .control
            .ask(|answer| ControlRequest::ReadIndexHere { answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))
    }

    async fn beat_call(
        &self,
        params: &peer::HeartbeatParams,
    ) -> Result<crate::messages::BeatAnswer, WireFault> {
        let beat = read_beat(params)?;
        self.shard
            .ctx
            .control
            .ask(|answer| ControlRequest::Beat { beat, answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))
    }

    async fn join_call(&self, params: &peer::JoinParams) -> Result<RaftIndex, WireFault> {
        let request = read_join(params)?;
        self.shard
            .ctx
            .control
            .ask(|answer| ControlRequest::Join { request, answer })
            .await
            .map_err(stopping)?
    }

    async fn append_call(&self, params: &peer::AppendParams) -> Result<(Offset, u32), WireFault> {
        let _permit = self.gate.enter().await?;
        let (key, epoch, wal, records) = read_append(params)?;
        let ctx = self.shard.ctx.clone();
        // In a task of its own: the sender may go away, the batch is appended as a whole.
        let appended = task::run("a dispatched append", async move {
            ctx.shard(key)
                .ask(|answer| ShardRequest::Dispatched {
                    key,
                    epoch,
                    wal,
                    records,
                    answer,
                })
                .await
                .map_err(stopping)?
        });
        appended
            .await
            .unwrap_or_else(|| Err(faults::internal("append", "its task ended early")))
    }

    async fn serves_call(&self, params: &peer::ServesParams) -> Result<bool, WireFault> {
        let copy = {
            let params = params.get().map_err(malformed)?;
            CopyId {
                key: read_partition_key(params.get_partition().map_err(malformed)?),
                epoch: Epoch(params.get_epoch()),
            }
        };
        self.shard
            .ctx
            .shard(copy.key)
            .ask(|answer| ShardRequest::Serves { copy, answer })
            .await
            .map_err(stopping)
    }

    async fn transfer_call(&self, params: &peer::TransferLeaderParams) -> Result<(), WireFault> {
        let to = {
            let params = params.get().map_err(malformed)?;
            node_id(&text(params.get_to())?)?
        };
        self.shard
            .ctx
            .control
            .ask(|answer| ControlRequest::TransferLeader { to, answer })
            .await
            .map_err(stopping)?
    }
}

fn bounded(what: &str, size: usize, limit: usize) -> Result<(), WireFault> {
    if size > limit {
        return Err(faults::too_large(what, size, limit));
    }
    Ok(())
}

fn node_id(text: &str) -> Result<NodeId, WireFault> {
    NodeId::parse(text).map_err(|error| {
        faults::invalid(
            format!("the node id {text:?} {error}"),
            "see narad cluster members for the ids",
        )
    })
}

type Batch = (PartitionKey, Epoch, WalId, Vec<(WalSeq, Record)>);

fn read_append(params: &peer::AppendParams) -> Result<Batch, WireFault> {
    let params = params.get().map_err(malformed)?;
    let key = read_partition_key(params.get_partition().map_err(malformed)?);
    let seqs = params.get_seqs().map_err(malformed)?;
    let list = params.get_records().map_err(malformed)?;
    bounded("records in a batch", list.len() as usize, BATCH_MAX_RECORDS)?;
    if seqs.len() != list.len() {
        return Err(faults::invalid(
            format!("{} sequences for {} records", seqs.len(), list.len()),
            "send one sequence a record",
        ));
    }
    let mut records = Vec::with_capacity(list.len() as usize);
    let mut bytes = 0usize;
    let mut last = WalSeq(0);
    for (seq, reader) in seqs.iter().zip(list.iter()) {
        if seq <= last.0 {
            return Err(faults::invalid(
                format!("sequence {seq} does not come after {last}"),
                "send the records in ascending order of their sequences, from 1",
            ));
        }
        last = WalSeq(seq);
        let record = peers::read_stored(reader).map_err(malformed)?;
        bytes = bytes.saturating_add(crate::shard::partition::record_bytes(&record));
        bounded("bytes in a batch", bytes, BATCH_MAX_BYTES)?;
        records.push((last, record));
    }
    Ok((
        key,
        Epoch(params.get_epoch()),
        WalId(params.get_wal()),
        records,
    ))
}

fn read_beat(params: &peer::HeartbeatParams) -> Result<Beat, WireFault> {
    let beat = params.get().and_then(|p| p.get_beat()).map_err(malformed)?;
    let partitions = beat.get_partition_bytes().map_err(malformed)?;
    bounded(
        "partitions in a heartbeat",
        partitions.len() as usize,
        crate::limits::BEAT_PARTITIONS_MAX,
    )?;
    let mut partition_bytes = Vec::with_capacity(partitions.len() as usize);
    for one in partitions.iter() {
        let key = read_partition_key(one.get_partition().map_err(malformed)?);
        partition_bytes.push((key, one.get_bytes()));
    }
    Ok(Beat {
        node: node_id(&text(beat.get_node())?)?,
        incarnation: NodeIncarnation(beat.get_incarnation()),
        applied: RaftIndex(beat.get_applied()),
        undispatched: beat.get_undispatched(),
        held_copies: beat.get_held_copies(),
        disk_free_bytes: beat.get_disk_free_bytes(),
        disk_used_bytes: beat.get_disk_used_bytes(),
        partition_bytes,
    })
}

fn read_join(params: &peer::JoinParams) -> Result<JoinRequest, WireFault> {
    let request = params
        .get()
        .and_then(|p| p.get_request())
        .map_err(malformed)?;
    Ok(JoinRequest {
        node: node_id(&text(request.get_node())?)?,
        addr: text(request.get_addr())?,
        bulk_addr: text(request.get_bulk_addr())?,
        http_addr: text(request.get_http_addr())?,
        incarnation: NodeIncarnation(request.get_incarnation()),
        disk: request.get_disk(),
        shards: request.get_shards(),
        version: text(request.get_version())?,
        founder: request.get_founder(),
    })
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        tracing::debug!(node = %self.node, incarnation = %self.incarnation, "a peer's connection ended");
    }
}

impl peer::Server for PeerServer {
    async fn raft(
        self: Rc<Self>,
        params: peer::RaftParams,
        mut results: peer::RaftResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.raft_call(&params).await;
        answer!(results, outcome, |body| results.get().set_body(&body));
        Ok(())
    }

    async fn propose(
        self: Rc<Self>,
        params: peer::ProposeParams,
        mut results: peer::ProposeResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.propose_call(&params).await;
        answer!(results, outcome, |(index, reply)| {
            let mut builder = results.get();
            builder.set_index(index.0);
            builder.set_reply(&reply);
        });
        Ok(())
    }

    async fn read_index(
        self: Rc<Self>,
        _: peer::ReadIndexParams,
        mut results: peer::ReadIndexResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.read_index_call().await;
        answer!(results, outcome, |index| results.get().set_index(index.0));
        Ok(())
    }

    async fn heartbeat(
        self: Rc<Self>,
        params: peer::HeartbeatParams,
        mut results: peer::HeartbeatResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.beat_call(&params).await;
        answer!(results, outcome, |beat| {
            let mut builder = results.get();
            builder.set_commit_index(beat.commit.0);
            builder.set_lease_ms(beat.lease_ms);
            builder.set_term(beat.term.0);
            builder.set_registered(beat.registered);
        });
        Ok(())
    }

    async fn join(
        self: Rc<Self>,
        params: peer::JoinParams,
        mut results: peer::JoinResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.join_call(&params).await;
        answer!(results, outcome, |index| results.get().set_index(index.0));
        Ok(())
    }

    async fn append(
        self: Rc<Self>,
        params: peer::AppendParams,
        mut results: peer::AppendResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.append_call(&params).await;
        answer!(results, outcome, |(end, duplicates)| {
            let mut builder = results.get();
            builder.set_end(end.0);
            builder.set_duplicates(duplicates);
        });
        Ok(())
    }

    async fn open_copy(
        self: Rc<Self>,
        params: peer::OpenCopyParams,
        mut results: peer::OpenCopyResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::open(&self.shard.ctx, &params).await;
        answer!(results, outcome, |view| copies::fill(
            results.get().init_manifest(),
            view
        ));
        Ok(())
    }

    async fn refresh_copy(
        self: Rc<Self>,
        params: peer::RefreshCopyParams,
        mut results: peer::RefreshCopyResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::refresh(&self.shard.ctx, &params).await;
        answer!(results, outcome, |view| copies::fill(
            results.get().init_manifest(),
            view
        ));
        Ok(())
    }

    async fn check_prefix(
        self: Rc<Self>,
        params: peer::CheckPrefixParams,
        mut results: peer::CheckPrefixResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::check_prefix(&self.shard.ctx, &params).await;
        answer!(results, outcome, |same| results.get().set_match(same));
        Ok(())
    }

    async fn freeze(
        self: Rc<Self>,
        params: peer::FreezeParams,
        mut results: peer::FreezeResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::freeze(&self.shard.ctx, &params).await;
        answer!(results, outcome, |capture| copies::fill_capture(
            results.get(),
            &capture
        ));
        Ok(())
    }

    async fn renew_freeze(
        self: Rc<Self>,
        params: peer::RenewFreezeParams,
        mut results: peer::RenewFreezeResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::renew(&self.shard.ctx, &params).await;
        answer!(results, outcome, |()| ());
        Ok(())
    }

    async fn close_copy(
        self: Rc<Self>,
        params: peer::CloseCopyParams,
        mut results: peer::CloseCopyResults,
    ) -> Result<(), capnp::Error> {
        let outcome = copies::close(&self.shard.ctx, &params).await;
        answer!(results, outcome, |()| ());
        Ok(())
    }

    async fn serves(
        self: Rc<Self>,
        params: peer::ServesParams,
        mut results: peer::ServesResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.serves_call(&params).await;
        answer!(results, outcome, |serves| results.get().set_serves(serves));
        Ok(())
    }

    async fn local_moves(
        self: Rc<Self>,
        _: peer::LocalMovesParams,
        mut results: peer::LocalMovesResults,
    ) -> Result<(), capnp::Error> {
        let view = moves::local(&self.shard.ctx).await;
        let outcome = serde_json::to_vec(&view).map_err(|e| faults::internal("moves", e));
        answer!(results, outcome, |json| results.get().set_moves(&json));
        Ok(())
    }

    async fn local_partitions(
        self: Rc<Self>,
        params: peer::LocalPartitionsParams,
        mut results: peer::LocalPartitionsResults,
    ) -> Result<(), capnp::Error> {
        let topic = narad_core::ids::TopicId(params.get()?.get_topic());
        let stats = topics::local_stats(&self.shard.ctx, topic).await;
        let mut list = results.get().init_partitions(list_len(stats.len()));
        for (index, stat) in (0u32..).zip(&stats) {
            let mut one = list.reborrow().get(index);
            one.set_index(stat.copy.key.partition.0);
            one.set_epoch(stat.copy.epoch.0);
            one.set_start(stat.start.0);
            one.set_hwm(stat.hwm.0);
            one.set_frontier(stat.frontier.0);
            one.set_bytes(stat.bytes);
        }
        Ok(())
    }

    async fn transfer_leader(
        self: Rc<Self>,
        params: peer::TransferLeaderParams,
        mut results: peer::TransferLeaderResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.transfer_call(&params).await;
        answer!(results, outcome, |()| ());
        Ok(())
    }
}
