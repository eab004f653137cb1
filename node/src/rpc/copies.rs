//! The owner's side of a copy session, on the wire: parameters in, the shard's answer out.
//!
//! What this file keeps true: each call goes to the shard of its partition; nothing is decided here.

use crate::context::NodeContext;
use crate::messages::{CaptureView, SessionView, ShardRequest};
use crate::rpc::reply::{malformed, stopping, text};
use crate::shard::faults;
use narad_core::ids::{Epoch, HandoffId, MoveId, NodeId, PartitionKey};
use narad_schema::common_capnp::partition;
use narad_schema::peer_capnp::{manifest, peer};
use narad_wire::convert::{
    CopyManifest, read_partition_key, read_segment, write_copy_manifest, write_manifest,
};
use narad_wire::error::WireFault;

fn key(reader: capnp::Result<partition::Reader<'_>>) -> Result<PartitionKey, WireFault> {
    Ok(read_partition_key(reader.map_err(malformed)?))
}

/// `openCopy`.
pub(crate) async fn open(
    ctx: &NodeContext,
    params: &peer::OpenCopyParams,
) -> Result<SessionView, WireFault> {
    let (key, epoch, move_id, target) = {
        let params = params.get().map_err(malformed)?;
        let target = text(params.get_target())?;
        let target = NodeId::parse(&target).map_err(|error| {
            faults::invalid(
                format!("the node id {target:?} {error}"),
                "a target names itself",
            )
        })?;
        (
            key(params.get_partition())?,
            Epoch(params.get_epoch()),
            MoveId(params.get_move_id()),
            target,
        )
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::OpenCopy {
            key,
            epoch,
            move_id,
            target,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// `refreshCopy`.
pub(crate) async fn refresh(
    ctx: &NodeContext,
    params: &peer::RefreshCopyParams,
) -> Result<SessionView, WireFault> {
    let (key, move_id) = {
        let params = params.get().map_err(malformed)?;
        (key(params.get_partition())?, MoveId(params.get_move_id()))
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::RefreshCopy {
            key,
            move_id,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// `checkPrefix`.
pub(crate) async fn check_prefix(
    ctx: &NodeContext,
    params: &peer::CheckPrefixParams,
) -> Result<bool, WireFault> {
    let (key, move_id, segment) = {
        let params = params.get().map_err(malformed)?;
        (
            key(params.get_partition())?,
            MoveId(params.get_move_id()),
            read_segment(params.get_segment().map_err(malformed)?),
        )
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::CheckPrefix {
            key,
            move_id,
            segment,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// `freeze`.
pub(crate) async fn freeze(
    ctx: &NodeContext,
    params: &peer::FreezeParams,
) -> Result<CaptureView, WireFault> {
    let (key, move_id, handoff_id) = {
        let params = params.get().map_err(malformed)?;
        (
            key(params.get_partition())?,
            MoveId(params.get_move_id()),
            HandoffId(params.get_handoff_id()),
        )
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::Freeze {
            key,
            move_id,
            handoff_id,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// `renewFreeze`.
pub(crate) async fn renew(
    ctx: &NodeContext,
    params: &peer::RenewFreezeParams,
) -> Result<(), WireFault> {
    let (key, handoff_id) = {
        let params = params.get().map_err(malformed)?;
        (
            key(params.get_partition())?,
            HandoffId(params.get_handoff_id()),
        )
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::RenewFreeze {
            key,
            handoff_id,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// `closeCopy`.
pub(crate) async fn close(
    ctx: &NodeContext,
    params: &peer::CloseCopyParams,
) -> Result<(), WireFault> {
    let (key, move_id) = {
        let params = params.get().map_err(malformed)?;
        (key(params.get_partition())?, MoveId(params.get_move_id()))
    };
    ctx.shard(key)
        .ask(|answer| ShardRequest::CloseCopy {
            key,
            move_id,
            answer,
        })
        .await
        .map_err(stopping)?
}

/// Writes what a session answers.
pub(crate) fn fill(builder: manifest::Builder<'_>, view: SessionView) {
    write_copy_manifest(
        builder,
        &CopyManifest {
            manifest: view.manifest,
            write_bytes_per_s: view.write_bytes_per_s,
            bulk_token: view.bulk_token,
        },
    );
}

/// Writes a capture.
pub(crate) fn fill_capture(mut builder: peer::freeze_results::Builder<'_>, capture: &CaptureView) {
    builder.set_settle_us(capture.settle_us);
    write_manifest(builder.init_capture(), &capture.manifest);
}
