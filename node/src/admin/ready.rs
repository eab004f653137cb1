//! Whether this node serves.
//!
//! What this file keeps true: "ready" is said only when the metadata of this start is confirmed
//! and every shard answers; anything else comes with the reason.

use crate::context::NodeContext;
use crate::messages::ShardRequest;

/// `Ok` when the node serves, else what it waits for.
pub(crate) fn check(ctx: &NodeContext) -> Result<(), String> {
    if *ctx.stop.borrow() {
        return Err("the node is stopping".into());
    }
    if !*ctx.confirmed.borrow() {
        return Err(
            "the node is not a confirmed member yet: it waits for the cluster's leader".into(),
        );
    }
    for (index, shard) in ctx.shards.iter().enumerate() {
        shard
            .ask_blocking(|answer| ShardRequest::Summary { answer })
            .map_err(|_| format!("shard {index} does not answer"))?;
    }
    Ok(())
}
