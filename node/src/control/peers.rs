//! Calls to other nodes' control cores.
//!
//! What this file keeps true: each call has a deadline; a connection that is of no more use is
//! given up, so that the next call makes a new one.

use super::core::Core;
use crate::limits;
use crate::messages::{Beat, BeatAnswer, JoinRequest};
use narad_core::ids::{ClusterId, NodeId, RaftIndex, RaftTerm, TopicName};
use narad_core::meta::{Command, Reply};
use narad_schema::client_capnp::{move_, plan_step};
use narad_schema::peer_capnp::{heartbeat, join_request, peer};
use narad_wire::client::{
    LossView, MemberView, MembersView, MoveView, MovesView, PlanStepView, PlanView, TopicView,
};
use narad_wire::convert;
use narad_wire::error::WireError;
use narad_wire::pool::PeerPool;
use narad_wire::rpc;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// How long one call may take.
fn deadline() -> Duration {
    Duration::from_millis(limits::PEER_CALL_MS)
}

/// Gives up the connection when the call showed that it is dead.
fn noted<T>(pool: &PeerPool, addr: &str, result: Result<T, WireError>) -> Result<T, WireError> {
    if result.as_ref().is_err_and(WireError::connection_lost) {
        pool.failed(addr);
    }
    result
}

impl Core {
    /// The control core of another node.
    async fn peer(&self, node: &NodeId, addr: &str) -> Result<peer::Client, WireError> {
        self.peers.peer(node, addr).await
    }

    /// Hands a command to the leader.
    pub(super) async fn call_propose(
        &self,
        node: &NodeId,
        addr: &str,
        command: &Command,
    ) -> Result<(RaftIndex, Reply), WireError> {
        let mut call = self.peer(node, addr).await?.propose_request();
        call.get().set_command(&super::machine::encode(command));
        let limit = Duration::from_millis(limits::PROPOSE_CALL_MS);
        let answer = rpc::call(limit, call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            let reply = super::machine::decode(results.get_reply()?)
                .map_err(|message| WireError::Protocol { message })?;
            Ok((RaftIndex(results.get_index()), reply))
        });
        noted(&self.peers, addr, answer.await)
    }

    /// A heartbeat to the leader.
    pub(super) async fn call_heartbeat(
        &self,
        node: &NodeId,
        addr: &str,
        beat: &Beat,
    ) -> Result<BeatAnswer, WireError> {
        let mut call = self.peer(node, addr).await?.heartbeat_request();
        write_beat(call.get().init_beat(), beat);
        let answer = rpc::call(deadline(), call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            Ok(BeatAnswer {
                commit: RaftIndex(results.get_commit_index()),
                lease_ms: results.get_lease_ms(),
                term: RaftTerm(results.get_term()),
                registered: results.get_registered(),
            })
        });
        noted(&self.peers, addr, answer.await)
    }

    /// Registers this node at whoever answers at `addr`; also which cluster that is.
    pub(super) async fn call_join(
        &self,
        addr: &str,
        request: &JoinRequest,
    ) -> Result<(RaftIndex, Option<ClusterId>), WireError> {
        // Reaching the node has a bound of its own: there are others to ask.
        let reach = Duration::from_millis(limits::JOIN_REACH_MS);
        let reached = rpc::with_deadline(reach, async {
            let node = self.call_identity(addr).await?;
            self.peer(&node, addr).await
        });
        let peer = noted(&self.peers, addr, reached.await)?;
        let mut call = peer.join_request();
        write_join(call.get().init_request(), request);
        // A join whose answer is late is asked for again, which changes nothing.
        let limit = Duration::from_millis(limits::JOIN_CALL_MS);
        let answer = rpc::call(limit, call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            let cluster = results.get_cluster();
            let cluster = (cluster != 0).then_some(ClusterId(cluster));
            Ok((RaftIndex(results.get_index()), cluster))
        });
        noted(&self.peers, addr, answer.await)
    }

    /// What a founder has on its disk; see [`super::founding`].
    pub(super) async fn call_founding(
        &self,
        node: &NodeId,
        addr: &str,
    ) -> Result<Vec<u8>, WireError> {
        let mut call = self.peer(node, addr).await?.raft_request();
        call.get().set_kind(super::founding::ASK_KIND);
        let answer = rpc::call(deadline(), call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            Ok(results.get_body()?.to_vec())
        });
        noted(&self.peers, addr, answer.await)
    }

    /// Who answers at `addr`.
    pub(super) async fn call_identity(&self, addr: &str) -> Result<NodeId, WireError> {
        let call = self.peers.node(addr).await?.info_request();
        let answer = rpc::call(deadline(), call.send(), |results| {
            let info = convert::read_node(results.get_info()?)?;
            NodeId::parse(&info.id).map_err(|error| WireError::Protocol {
                message: format!("node id {:?} {error}", info.id),
            })
        });
        noted(&self.peers, addr, answer.await)
    }

    /// The cluster as the node at `addr` sees it.
    pub(super) async fn call_members(&self, addr: &str) -> Result<MembersView, WireError> {
        let call = self.pool.node(addr).await?.members_request();
        let limit = Duration::from_millis(limits::VIEW_CALL_MS);
        let answer = rpc::call(limit, call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            let members = results
                .get_members()?
                .iter()
                .map(convert::read_member)
                .collect::<Result<Vec<MemberView>, WireError>>()?;
            Ok(MembersView {
                members,
                leader: convert::text(results.get_leader()?)?,
                term: results.get_term(),
                applied: results.get_applied(),
                local: results.get_local(),
            })
        });
        noted(&self.pool, addr, answer.await)
    }

    /// What the node at `addr` would plan, as it is or with `draining` drained.
    pub(super) async fn call_plan(
        &self,
        addr: &str,
        draining: Option<&NodeId>,
    ) -> Result<PlanView, WireError> {
        let node = self.pool.node(addr).await?;
        let limit = Duration::from_millis(limits::VIEW_CALL_MS);
        let answer = match draining {
            None => {
                rpc::call(limit, node.plan_request().send(), |results| {
                    convert::check(results.has_error(), results.get_error())?;
                    let (steps, later) = (results.get_steps()?, results.get_later()?);
                    let total = (results.get_total_steps(), results.get_total_bytes());
                    read_plan((steps, later), total, results.get_notes()?, None)
                })
                .await
            }
            Some(id) => {
                let mut call = node.decommission_request();
                call.get().set_node(id.as_str());
                call.get().set_dry_run(true);
                rpc::call(limit, call.send(), |results| {
                    convert::check(results.has_error(), results.get_error())?;
                    let (steps, later) = (results.get_steps()?, results.get_later()?);
                    let total = (results.get_total_steps(), results.get_total_bytes());
                    let blocked = Some(results.get_blocked()?);
                    read_plan((steps, later), total, results.get_notes()?, blocked)
                })
                .await
            }
        };
        noted(&self.pool, addr, answer)
    }

    /// What giving up a node would lose, as the node at `addr` sees it.
    pub(super) async fn call_loss(&self, addr: &str, id: &NodeId) -> Result<LossView, WireError> {
        let mut call = self.pool.node(addr).await?.forget_request();
        call.get().set_node(id.as_str());
        let limit = Duration::from_millis(limits::VIEW_CALL_MS);
        let answer = rpc::call(limit, call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            convert::read_loss(results.get_loss()?)
        });
        noted(&self.pool, addr, answer.await)
    }

    /// All moves, as this node's own client interface tells them.
    pub(super) async fn call_own_moves(&self) -> Result<MovesView, WireError> {
        let addr = self.own_addr();
        let call = self.pool.node(&addr).await?.moves_request();
        let read = |list: capnp::struct_list::Reader<'_, move_::Owned>| {
            list.iter().map(convert::read_move).collect()
        };
        let answer = rpc::call(deadline(), call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            let moves: Result<Vec<MoveView>, WireError> = read(results.get_moves()?);
            let finished: Result<Vec<MoveView>, WireError> = read(results.get_finished()?);
            Ok(MovesView {
                moves: moves?,
                finished: finished?,
            })
        });
        noted(&self.pool, &addr, answer.await)
    }

    /// One topic with its owners' figures, as this node's own client interface tells it.
    pub(super) async fn call_own_topic(&self, name: &TopicName) -> Result<TopicView, WireError> {
        let addr = self.own_addr();
        let mut call = self.pool.node(&addr).await?.describe_topic_request();
        call.get().set_name(name.as_str());
        let answer = rpc::call(deadline(), call.send(), |results| {
            convert::check(results.has_error(), results.get_error())?;
            convert::read_topic(results.get_topic()?)
        });
        noted(&self.pool, &addr, answer.await)
    }

    /// Where this node's own listener is reached from here.
    fn own_addr(&self) -> String {
        let mut addr = self.ctx.config.listen;
        if addr.ip().is_unspecified() {
            addr.set_ip(match addr.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        addr.to_string()
    }
}

type Steps<'a> = capnp::struct_list::Reader<'a, plan_step::Owned>;

fn read_plan(
    (steps, later): (Steps<'_>, Steps<'_>),
    (total_steps, total_bytes): (u64, u64),
    notes: capnp::text_list::Reader<'_>,
    blocked: Option<capnp::text_list::Reader<'_>>,
) -> Result<PlanView, WireError> {
    let texts = |list: capnp::text_list::Reader<'_>| {
        let texts = list.iter().map(|text| convert::text(text?));
        texts.collect::<Result<Vec<String>, WireError>>()
    };
    let list = |steps: Steps<'_>| {
        let steps = steps.iter().map(convert::read_plan_step);
        steps.collect::<Result<Vec<PlanStepView>, WireError>>()
    };
    Ok(PlanView {
        steps: list(steps)?,
        later: list(later)?,
        total_steps,
        total_bytes,
        notes: texts(notes)?,
        blocked: blocked.map_or(Ok(Vec::new()), texts)?,
    })
}

fn write_beat(mut builder: heartbeat::Builder<'_>, beat: &Beat) {
    builder.set_node(beat.node.as_str());
    builder.set_incarnation(beat.incarnation.0);
    builder.set_applied(beat.applied.0);
    builder.set_undispatched(beat.undispatched);
    builder.set_held_copies(beat.held_copies);
    builder.set_disk_free_bytes(beat.disk_free_bytes);
    builder.set_disk_used_bytes(beat.disk_used_bytes);
    builder.set_cluster(beat.cluster.map_or(0, |cluster| cluster.0));
    let mut list = builder
        .reborrow()
        .init_waiting_for(convert::list_len(beat.waiting_for.len()));
    for (slot, (owner, records)) in (0..).zip(&beat.waiting_for) {
        let mut entry = list.reborrow().get(slot);
        entry.set_node(owner.as_str());
        entry.set_records(*records);
    }
    let mut list = builder.init_partition_bytes(convert::list_len(beat.partition_bytes.len()));
    for (slot, (key, bytes)) in (0..).zip(&beat.partition_bytes) {
        let mut entry = list.reborrow().get(slot);
        entry.set_bytes(*bytes);
        convert::write_partition_key(entry.init_partition(), *key);
    }
}

fn write_join(mut builder: join_request::Builder<'_>, request: &JoinRequest) {
    builder.set_node(request.node.as_str());
    builder.set_addr(&request.addr);
    builder.set_bulk_addr(&request.bulk_addr);
    builder.set_http_addr(&request.http_addr);
    builder.set_incarnation(request.incarnation.0);
    builder.set_disk(request.disk);
    builder.set_shards(request.shards);
    builder.set_version(&request.version);
    builder.set_founder(request.founder);
    let heritage = &request.heritage;
    builder.set_cluster(heritage.cluster.map_or(0, |cluster| cluster.0));
    builder.set_has_log(heritage.has_log);
    builder.set_recovery(heritage.recovery.map_or(0, |recovery| recovery.0));
    builder.set_applied_term(heritage.applied.term.0);
    builder.set_applied_index(heritage.applied.index.0);
}
