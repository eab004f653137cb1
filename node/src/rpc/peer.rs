//! The interface between nodes: Raft, metadata, dispatch and views.
//!
//! What this file keeps true: every body and batch is bounded before it is copied. What the control core
//! answers is in [`super::control`].

use crate::messages::ShardRequest;
use crate::metrics::Call;
use crate::rpc::control::{ControlCalls, bounded, control_methods};
use crate::rpc::gate::Gate;
use crate::rpc::reply::{answer, malformed, stopping};
use crate::rpc::{copies, moves, topics};
use crate::shard::limits::RECORD_COST_BYTES;
use crate::shard::partition::record_bytes;
use crate::shard::shard::Shard;
use crate::shard::{faults, peers, task};
use narad_core::ids::{
    CopyId, Epoch, NodeId, NodeIncarnation, Offset, PartitionKey, WalId, WalSeq,
};
use narad_schema::peer_capnp::peer;
use narad_storage::Record;
use narad_wire::convert::{list_len, read_partition_key};
use narad_wire::error::WireFault;
use narad_wire::limits::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS};
use std::rc::Rc;

/// The peer interface, given to one node.
pub(crate) struct PeerServer {
    pub(crate) shard: Rc<Shard>,
    pub(crate) gate: Gate,
    calls: ControlCalls,
    /// Who asked for it.
    node: NodeId,
    incarnation: NodeIncarnation,
}

impl PeerServer {
    /// For this peer.
    pub(crate) fn new(shard: Rc<Shard>, node: NodeId, incarnation: NodeIncarnation) -> Self {
        tracing::debug!(%node, %incarnation, "a peer connects");
        Self {
            calls: ControlCalls::new(shard.ctx.clone()),
            shard,
            gate: Gate::new(),
            node,
            incarnation,
        }
    }

    async fn append_call(&self, params: peer::AppendParams) -> Result<(Offset, u32), WireFault> {
        let (key, epoch, wal, records) = read_append(&params)?;
        drop(params);
        let bytes: usize = records.iter().map(|(_, one)| record_bytes(one)).sum();
        let cost = bytes + (records.len() + 1) * RECORD_COST_BYTES;
        let room = self.shard.rooms.dispatched.enter(cost)?;
        let _permit = self.gate.enter().await?;
        let ctx = self.shard.ctx.clone();
        // In a task of its own: the sender may go away, the batch is appended as a whole.
        let appended = task::run("a dispatched append", async move {
            let _room = room;
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
        bytes = bytes.saturating_add(record_bytes(&record));
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

impl Drop for PeerServer {
    fn drop(&mut self) {
        tracing::debug!(node = %self.node, incarnation = %self.incarnation, "a peer's connection ended");
    }
}

impl peer::Server for PeerServer {
    control_methods!();

    async fn append(
        self: Rc<Self>,
        params: peer::AppendParams,
        mut results: peer::AppendResults,
    ) -> Result<(), capnp::Error> {
        let outcome = self.append_call(params).await;
        self.shard.ctx.metrics.called(Call::Append, &outcome);
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
}
