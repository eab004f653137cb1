//! Raft's messages over the peer interface.
//!
//! What this file keeps true: a message goes to the node that it is for or to nobody (the pool
//! checks who answers), each within Raft's own deadline, and none is retried here.

use super::core::addr_of;
use crate::context::NodeContext;
use crate::raft::{RaftMessage, RaftTransport, TransportError};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use narad_core::ids::NodeId;
use narad_wire::convert::check;
use narad_wire::error::WireError;
use narad_wire::pool::PeerPool;
use narad_wire::rpc::{self, records_room, with_room};
use std::sync::Arc;
use std::time::Duration;

/// Sends Raft's messages.
pub(super) struct PeerTransport {
    ctx: Arc<NodeContext>,
    pool: PeerPool,
}

impl PeerTransport {
    pub(super) fn new(ctx: Arc<NodeContext>, pool: PeerPool) -> Self {
        Self { ctx, pool }
    }

    async fn send(
        &self,
        target: &str,
        addr: &str,
        request: RaftMessage,
        deadline: Duration,
    ) -> Result<Vec<u8>, WireError> {
        let peer = self.pool.peer(&NodeId(target.to_owned()), addr).await?;
        let room = records_room(0, request.body.len());
        let mut call = with_room(room, || peer.raft_request());
        call.get().set_kind(request.kind.number());
        call.get().set_body(&request.body);
        call.get()
            .set_cluster(self.ctx.cluster().map_or(0, |id| id.0));
        let answer = rpc::call(deadline, call.send(), |results| {
            check(results.has_error(), results.get_error())?;
            Ok(results.get_body()?.to_vec())
        })
        .await;
        if answer.as_ref().is_err_and(WireError::connection_lost) {
            self.pool.failed(addr);
        }
        answer
    }
}

impl RaftTransport for PeerTransport {
    fn call<'a>(
        &'a self,
        target: &'a str,
        addr: &'a str,
        request: RaftMessage,
        deadline: Duration,
    ) -> LocalBoxFuture<'a, Result<Vec<u8>, TransportError>> {
        // A member that came back elsewhere has registered its new address before Raft's
        // membership follows.
        let addr = addr_of(&self.ctx.state(), target, addr);
        async move {
            // The deadline covers the connection too.
            rpc::with_deadline(deadline, self.send(target, &addr, request, deadline))
                .await
                .map_err(|error| match error {
                    WireError::Timeout { .. } => TransportError::Timeout,
                    WireError::Connect { .. } | WireError::Disconnected { .. } => {
                        TransportError::Unreachable(error.to_string())
                    }
                    WireError::Fault(_) | WireError::Protocol { .. } => {
                        TransportError::Remote(error.to_string())
                    }
                })
        }
        .boxed_local()
    }
}
