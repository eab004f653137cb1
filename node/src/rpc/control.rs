//! What a node's control core answers its peers: Raft, proposals, heartbeats, members that join. A shard's
//! connection offers it with everything else; a connection of the control core's own, which peers ask for
//! in their first bytes, offers it alone.
//!
//! What this file keeps true: Raft and heartbeats never wait behind bulk work of the same connection, and on
//! a connection of their own never for a shard; every body is bounded before it is copied.

use crate::context::NodeContext;
use crate::messages::{Beat, ControlRequest, JoinRequest};
use crate::rpc::reply::{answer, malformed, stopping, text, unproposed};
use crate::shard::{faults, task};
use narad_core::ids::{ClusterId, NodeId, NodeIncarnation, RaftIndex, RaftTerm, RecoveryId};
use narad_core::meta::{Command, Heritage, LogPoint, Stranger};
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use narad_wire::convert::{read_partition_key, write_node};
use narad_wire::error::{ErrorCode, WireFault};
use narad_wire::limits::RAFT_BODY_MAX_BYTES;
use narad_wire::rpc::Line;
use narad_wire::view::NodeView;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Who this node is.
pub(crate) fn who(ctx: &NodeContext) -> NodeView {
    NodeView {
        id: ctx.id.0.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        shards: ctx.config.shards,
        max_record_bytes: narad_core::defaults::RECORD_MAX_BYTES,
        max_batch_bytes: u32::try_from(narad_wire::limits::BATCH_MAX_BYTES).unwrap_or(u32::MAX),
        max_batch_records: u32::try_from(narad_wire::limits::BATCH_MAX_RECORDS).unwrap_or(u32::MAX),
        incarnation: ctx.incarnation.0,
    }
}

/// The refusal for a node of another cluster, which has this node's address by mistake.
pub(crate) fn foreign(ctx: &NodeContext, cluster: Option<ClusterId>) -> Option<WireFault> {
    let (theirs, ours) = (cluster?, ctx.cluster()?);
    (theirs != ours).then(|| {
        let stranger = Stranger::OtherCluster { theirs, ours };
        WireFault::new(ErrorCode::Refused, format!("a node is refused: {stranger}"))
            .detail(crate::control::registration::refused::OTHER_CLUSTER)
            .hint("correct the address that leads here instead of to the node's own cluster")
    })
}

/// Whether a node may have the interface between nodes.
pub(crate) fn admit(ctx: &NodeContext, node: &str, of: u64) -> Result<NodeId, WireFault> {
    let id = NodeId::parse(node).map_err(|error| {
        WireFault::new(ErrorCode::Invalid, format!("the node id {node:?} {error}"))
            .hint("a node names itself when it asks for the interface between nodes")
    })?;
    if let Some(fault) = foreign(ctx, cluster(of)) {
        return Err(fault);
    }
    let state = ctx.state();
    if state.removed.contains_key(&id) {
        use crate::control::registration::refused;
        let forgotten = state.forgotten.contains(&id);
        return Err(WireFault::new(
            ErrorCode::NotMember,
            format!("node {id} was removed from this cluster"),
        )
        .detail(if forgotten {
            refused::FORGOTTEN
        } else {
            refused::REMOVED
        })
        .hint("start it under a new id with an empty data directory to join again"));
    }
    Ok(id)
}

/// The control core's part of the interface between nodes.
pub(crate) struct ControlCalls {
    ctx: Arc<NodeContext>,
}

impl ControlCalls {
    /// Of this node.
    pub(crate) fn new(ctx: Arc<NodeContext>) -> Self {
        Self { ctx }
    }

    pub(crate) async fn raft_call(&self, params: &peer::RaftParams) -> Result<Vec<u8>, WireFault> {
        let (kind, body, cluster) = {
            let params = params.get().map_err(malformed)?;
            let body = params.get_body().map_err(malformed)?;
            bounded("bytes of a Raft message", body.len(), RAFT_BODY_MAX_BYTES)?;
            let cluster = cluster(params.get_cluster());
            (params.get_kind(), body.to_vec(), cluster)
        };
        self.ctx
            .control
            .ask(|answer| ControlRequest::Raft {
                kind,
                body,
                cluster,
                answer,
            })
            .await
            .map_err(stopping)?
    }

    pub(crate) async fn propose_call(
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
            .ctx
            .control
            .ask(|answer| ControlRequest::ProposeHere { command, answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))?;
        let reply = serde_json::to_vec(&reply).map_err(|e| faults::internal("propose", e))?;
        Ok((index, reply))
    }

    pub(crate) async fn read_index_call(&self) -> Result<RaftIndex, WireFault> {
        self.ctx
            .control
            .ask(|answer| ControlRequest::ReadIndexHere { answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))
    }

    pub(crate) async fn beat_call(
        &self,
        params: &peer::HeartbeatParams,
    ) -> Result<crate::messages::BeatAnswer, WireFault> {
        let beat = read_beat(params)?;
        self.ctx
            .control
            .ask(|answer| ControlRequest::Beat { beat, answer })
            .await
            .map_err(stopping)?
            .map_err(|error| unproposed(&error))
    }

    pub(crate) async fn join_call(
        &self,
        params: &peer::JoinParams,
    ) -> Result<(RaftIndex, Option<ClusterId>), WireFault> {
        let request = read_join(params)?;
        let index = self
            .ctx
            .control
            .ask(|answer| ControlRequest::Join { request, answer })
            .await
            .map_err(stopping)??;
        Ok((index, self.ctx.cluster()))
    }

    pub(crate) async fn transfer_call(
        &self,
        params: &peer::TransferLeaderParams,
    ) -> Result<(), WireFault> {
        let to = {
            let params = params.get().map_err(malformed)?;
            node_id(&text(params.get_to())?)?
        };
        self.ctx
            .control
            .ask(|answer| ControlRequest::TransferLeader { to, answer })
            .await
            .map_err(stopping)?
    }
}

pub(crate) fn bounded(what: &str, size: usize, limit: usize) -> Result<(), WireFault> {
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
    let waiting = beat.get_waiting_for().map_err(malformed)?;
    bounded(
        "nodes in a heartbeat",
        waiting.len() as usize,
        narad_core::defaults::MEMBERS_MAX,
    )?;
    let mut waiting_for = Vec::with_capacity(waiting.len() as usize);
    for one in waiting.iter() {
        waiting_for.push((node_id(&text(one.get_node())?)?, one.get_records()));
    }
    Ok(Beat {
        waiting_for,
        node: node_id(&text(beat.get_node())?)?,
        incarnation: NodeIncarnation(beat.get_incarnation()),
        applied: RaftIndex(beat.get_applied()),
        undispatched: beat.get_undispatched(),
        held_copies: beat.get_held_copies(),
        disk_free_bytes: beat.get_disk_free_bytes(),
        disk_used_bytes: beat.get_disk_used_bytes(),
        partition_bytes,
        cluster: cluster(beat.get_cluster()),
    })
}

fn cluster(id: u64) -> Option<ClusterId> {
    (id != 0).then_some(ClusterId(id))
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
        heritage: Heritage {
            cluster: cluster(request.get_cluster()),
            has_log: request.get_has_log(),
            recovery: match request.get_recovery() {
                0 => None,
                id => Some(RecoveryId(id)),
            },
            applied: LogPoint {
                term: RaftTerm(request.get_applied_term()),
                index: RaftIndex(request.get_applied_index()),
            },
        },
    })
}

/// The methods of `peer::Server` that the control core answers, for a server with a `calls` field.
macro_rules! control_methods {
    () => {
        async fn raft(
            self: Rc<Self>,
            params: peer::RaftParams,
            mut results: peer::RaftResults,
        ) -> Result<(), capnp::Error> {
            let outcome = self.calls.raft_call(&params).await;
            answer!(results, outcome, |body| results.get().set_body(&body));
            Ok(())
        }

        async fn propose(
            self: Rc<Self>,
            params: peer::ProposeParams,
            mut results: peer::ProposeResults,
        ) -> Result<(), capnp::Error> {
            let outcome = self.calls.propose_call(&params).await;
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
            let outcome = self.calls.read_index_call().await;
            answer!(results, outcome, |index| results.get().set_index(index.0));
            Ok(())
        }

        async fn heartbeat(
            self: Rc<Self>,
            params: peer::HeartbeatParams,
            mut results: peer::HeartbeatResults,
        ) -> Result<(), capnp::Error> {
            let outcome = self.calls.beat_call(&params).await;
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
            let outcome = self.calls.join_call(&params).await;
            answer!(results, outcome, |(index, cluster)| {
                let mut builder = results.get();
                builder.set_index(index.0);
                builder.set_cluster(cluster.map_or(0, |cluster| cluster.0));
            });
            Ok(())
        }

        async fn transfer_leader(
            self: Rc<Self>,
            params: peer::TransferLeaderParams,
            mut results: peer::TransferLeaderResults,
        ) -> Result<(), capnp::Error> {
            let outcome = self.calls.transfer_call(&params).await;
            answer!(results, outcome, |()| ());
            Ok(())
        }
    };
}
pub(crate) use control_methods;

/// The bootstrap of a connection of the control core's own.
struct ControlDoor {
    ctx: Arc<NodeContext>,
}

impl node::Server for ControlDoor {
    async fn info(
        self: Rc<Self>,
        _: node::InfoParams,
        mut results: node::InfoResults,
    ) -> Result<(), capnp::Error> {
        write_node(results.get().init_info(), &who(&self.ctx));
        Ok(())
    }

    async fn peer(
        self: Rc<Self>,
        params: node::PeerParams,
        mut results: node::PeerResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match params.get().map_err(malformed) {
            Ok(p) => {
                let of = p.get_cluster();
                text(p.get_node()).and_then(|node| admit(&self.ctx, &node, of))
            }
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |node| {
            tracing::debug!(%node, "a peer connects to the control core");
            let calls = ControlCalls::new(self.ctx.clone());
            let server = ControlPeer { calls };
            results.get().set_peer(narad_wire::rpc::new_client(server));
        });
        Ok(())
    }
}

struct ControlPeer {
    calls: ControlCalls,
}

impl peer::Server for ControlPeer {
    control_methods!();
}

/// Serves, on the calling executor, a connection that a shard has accepted and whose first bytes asked for
/// the control core.
pub(crate) fn serve(ctx: Arc<NodeContext>, socket: OwnedFd, permit: OwnedSemaphorePermit) {
    task::spawn("a connection to the control core", async move {
        let _permit = permit;
        ctx.metrics.connections.inc();
        // SAFETY: the descriptor is a connected socket that nobody else owns from here on.
        let stream = unsafe { glommio::net::TcpStream::from_raw_fd(socket.into_raw_fd()) };
        let bootstrap: node::Client = narad_wire::rpc::new_client(ControlDoor { ctx: ctx.clone() });
        if let Err(error) = narad_wire::rpc::serve(stream, bootstrap, Line::default()).await {
            tracing::debug!(%error, "a connection to the control core ended");
        }
        ctx.metrics.connections.dec();
    });
}
