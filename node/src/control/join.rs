//! Registrations, at the leader.
//!
//! What this file keeps true: who was removed, whose disk is another one and who was replaced by a
//! newer process is told so, before Raft hears of the node; a registered node is in Raft's
//! membership, as a learner at least, at its current address.

use super::core::Core;
use super::registration::refused;
use crate::messages::{JoinRequest, ProposeError};
use crate::raft::{MembershipError, RaftPeer};
use narad_core::ids::RaftIndex;
use narad_core::meta::{Command, MetaState, Refusal, Reply, Stranger};
use narad_wire::error::{ErrorCode, WireFault};
use std::rc::Rc;

/// What becomes of a node whose committed metadata was lost with a quorum.
const DIVERGED_HINT: &str = "give it up with narad cluster forget if it is listed as a member, hand over what its disk holds with narad \
    salvage, and only then empty the disk and join under a new id";

/// A proposal without an answer, for a peer.
fn unproposed(error: ProposeError) -> WireFault {
    match error {
        ProposeError::NotLeader { leader } => {
            WireFault::new(ErrorCode::NotLeader, "this node does not lead")
                .node(leader.map(|(_, addr)| addr).unwrap_or_default())
        }
        ProposeError::Unavailable { reason } => {
            WireFault::new(ErrorCode::Unavailable, reason).retry_after_ms(100)
        }
        ProposeError::Unknown { reason } => WireFault::new(ErrorCode::UnknownOutcome, reason),
    }
}

/// A refused registration, with the reason that the other side acts upon.
fn refusal(state: &MetaState, request: &JoinRequest, refusal: &Refusal) -> WireFault {
    let (code, detail) = match refusal {
        Refusal::MemberRemoved if state.forgotten.contains(&request.node) => {
            (ErrorCode::NotMember, refused::FORGOTTEN)
        }
        Refusal::MemberRemoved => (ErrorCode::NotMember, refused::REMOVED),
        Refusal::OtherDisk => (ErrorCode::Refused, refused::OTHER_DISK),
        Refusal::OldIncarnation => (ErrorCode::Refused, refused::REPLACED),
        Refusal::BadName { .. } | Refusal::BadSettings { .. } => (ErrorCode::Invalid, ""),
        _ => (ErrorCode::Refused, ""),
    };
    WireFault::new(code, format!("{} cannot register: {refusal}", request.node)).detail(detail)
}

fn register(request: &JoinRequest) -> Command {
    Command::Register {
        id: request.node.clone(),
        addr: request.addr.clone(),
        bulk_addr: request.bulk_addr.clone(),
        http_addr: request.http_addr.clone(),
        incarnation: request.incarnation,
        disk: request.disk,
        shards: request.shards,
        version: request.version.clone(),
    }
}

impl Core {
    /// Registers a process. Repeatable: the same incarnation again changes nothing.
    pub(super) async fn take_join(
        self: &Rc<Self>,
        request: JoinRequest,
    ) -> Result<RaftIndex, WireFault> {
        // Decided on a current state: the checks below are about what must not be done to Raft.
        self.raft
            .read_barrier()
            .await
            .map_err(|error| unproposed(self.unconfirmed(error)))?;
        self.refuse_stranger(&request)?;
        self.refuse_strange_founder(&request)?;
        self.part_with_old_disk(&request).await?;
        let (index, reply) = self
            .propose_here(&register(&request))
            .await
            .map_err(unproposed)?;
        match reply {
            Reply::Done { .. } => {}
            Reply::Refused { refusal: why } => return Err(refusal(&self.state(), &request, &why)),
        }
        self.admit(&request.node.0, &request.addr).await?;
        tracing::info!(
            node = %request.node,
            addr = request.addr,
            incarnation = request.incarnation.0,
            %index,
            "registered"
        );
        self.replan.notify_one();
        Ok(index)
    }

    /// A node whose disk holds another cluster's metadata, or another continuation of this one's, must
    /// not get this log: Raft would take what both call committed for the same.
    fn refuse_stranger(&self, request: &JoinRequest) -> Result<(), WireFault> {
        let founded = self.raft.membership().contains(request.node.as_str());
        let state = self.state();
        let checked = state.check_heritage(&request.node, request.disk, founded, &request.heritage);
        let Err(stranger) = checked else {
            return Ok(());
        };
        let (detail, hint) = match stranger {
            Stranger::OtherCluster { .. } | Stranger::NeverMember => (
                refused::OTHER_CLUSTER,
                "correct the addresses that it joins by, so that it finds its own cluster; to make it a member of \
                 this one, start it under a new id with an empty data directory",
            ),
            Stranger::OtherDisk => return Err(refusal(&state, request, &Refusal::OtherDisk)),
            Stranger::Diverged => (refused::DIVERGED, DIVERGED_HINT),
        };
        let text = format!("{} is refused: {stranger}", request.node);
        tracing::warn!(addr = request.addr, "{text}");
        Err(WireFault::new(ErrorCode::Refused, text)
            .hint(hint)
            .detail(detail))
    }

    /// A founder of some other cluster must not slip into this one because an address of its
    /// `--peers` is wrong. A founder that comes late is in Raft's membership already.
    fn refuse_strange_founder(&self, request: &JoinRequest) -> Result<(), WireFault> {
        let state = self.state();
        let known = state.members.contains_key(&request.node)
            || state.removed.contains_key(&request.node)
            || self.raft.membership().contains(request.node.as_str());
        if !request.founder || known {
            return Ok(());
        }
        Err(WireFault::new(
            ErrorCode::Invalid,
            format!(
                "{} was started with --peers, which founds a cluster, but the nodes named there have one \
                 already and {} is not of it",
                request.node, request.node
            ),
        )
        .hint(format!(
            "start it with --join {} instead of --peers to add it to that cluster",
            self.ctx.config.addr
        )))
    }

    /// A known id with an empty disk has forgotten its votes and its log. Raft must forget it too
    /// before it may come back; where that is not possible the node is refused.
    async fn part_with_old_disk(self: &Rc<Self>, request: &JoinRequest) -> Result<(), WireFault> {
        let state = self.state();
        let Some(known) = state.members.get(&request.node) else {
            return Ok(());
        };
        let id = request.node.as_str();
        let membership = self.raft.membership();
        if known.disk == request.disk || !membership.contains(id) {
            return Ok(());
        }
        if !state.holdings()[&request.node].is_free() {
            return Err(refusal(&state, request, &Refusal::OtherDisk));
        }
        let changed = if membership.voters.contains_key(id) {
            if membership.voters.len() <= self.ctx.config.min_voters {
                return Err(WireFault::new(
                    ErrorCode::Refused,
                    format!(
                        "{id} is a voter whose disk is another one now, and only {} voters would be left",
                        membership.voters.len() - 1
                    ),
                )
                .hint("join with a new id, then decommission the old one")
                .detail(refused::OTHER_DISK));
            }
            self.raft.remove_voter(id).await
        } else {
            self.raft.remove_learner(id).await
        };
        changed.map_err(|error| not_changed(&error))
    }

    /// Makes the node part of Raft's membership, at this address.
    async fn admit(&self, id: &str, addr: &str) -> Result<(), WireFault> {
        let peer = RaftPeer {
            addr: addr.to_owned(),
        };
        let changed = match self.raft.membership().peer(id) {
            None => self.raft.add_learner(id, peer).await,
            Some(known) if known.addr != addr => self.raft.set_address(id, peer).await,
            Some(_) => Ok(()),
        };
        match changed {
            Ok(()) => Ok(()),
            // The registration stands, and the controller admits every registered member.
            Err(error) => {
                tracing::info!(id, addr, %error, "will be admitted to Raft by the next pass");
                self.replan.notify_one();
                Ok(())
            }
        }
    }
}

/// A change of Raft's membership that was not (known to be) made.
pub(super) fn not_changed(error: &MembershipError) -> WireFault {
    let code = match error {
        MembershipError::NotLeader { .. } => ErrorCode::NotLeader,
        MembershipError::InProgress(_) => ErrorCode::Busy,
        MembershipError::Invalid(_) => ErrorCode::Refused,
        MembershipError::Unknown(_) => ErrorCode::UnknownOutcome,
        MembershipError::Fatal(_) => ErrorCode::Internal,
    };
    let fault = WireFault::new(code, error.to_string());
    match error {
        MembershipError::NotLeader {
            leader: Some((_, addr)),
        } => fault.node(addr.clone()),
        _ => fault,
    }
}
