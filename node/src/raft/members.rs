//! Changing who is a member, and handing leadership over.
//!
//! Keeps true: a change whose end was not seen is unknown, not failed: the same call may be made again and ends in the
//! same membership; leadership is only handed to a voter whose log is current.

use super::limits::{MAX_ADDR_BYTES, MAX_NODE_ID_BYTES};
use super::machine::Machine;
use super::node::{LeaderAt, RaftNode, leader_at};
use super::runtime::GlommioRuntime;
use super::types::{RaftNodeId, RaftPeer, TypeConfig};
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use openraft::{AsyncRuntime, ChangeMembers};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

/// Why the members are not (known to be) changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Another node leads; nothing was changed.
    #[error("this node does not lead{}", match leader { Some((id, addr)) => format!("; ask {id} at {addr}"), None => String::new() })]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<LeaderAt>,
    },
    /// An earlier change is not finished; nothing was changed. Try again.
    #[error("another change of members is under way: {0}")]
    InProgress(String),
    /// The change makes no sense for the members there are; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The change may have been made, or may yet be. Look at the members behind a barrier, or make it again.
    #[error("it is not known whether the members were changed: {0}")]
    Unknown(String),
    /// Raft has stopped on this node, which must be restarted. Whether the change was made is unknown.
    #[error("Raft has stopped on this node, restart it: {0}")]
    Fatal(String),
}

/// Why leadership was not (known to be) handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader,
    /// The target cannot lead.
    #[error("{0} is not a voter: leadership can only go to a voter other than the leader")]
    NotVoter(String),
    /// The target's log stayed behind; leadership was not touched.
    #[error("{id} is {lag:?} entries behind: leadership stays until it has caught up")]
    Behind {
        /// The target.
        id: String,
        /// How far it is behind, if known.
        lag: Option<u64>,
    },
    /// It was asked to take over, and somebody else (or nobody yet) leads.
    #[error("{to} was told to take over, but the leader now is {leader:?}")]
    NotTaken {
        /// The target.
        to: String,
        /// Who leads, as far as this node knows.
        leader: Option<LeaderAt>,
    },
    /// Raft has stopped here.
    #[error("Raft has stopped on this node, restart it: {0}")]
    Fatal(String),
}

fn check_member(id: &str, peer: &RaftPeer) -> Result<(), MembershipError> {
    if id.is_empty() || id.len() > MAX_NODE_ID_BYTES {
        return Err(MembershipError::Invalid(format!(
            "a node id has 1 to {MAX_NODE_ID_BYTES} bytes: {id:?}"
        )));
    }
    if peer.addr.is_empty() || peer.addr.len() > MAX_ADDR_BYTES {
        return Err(MembershipError::Invalid(format!(
            "an address has 1 to {MAX_ADDR_BYTES} bytes: {:?}",
            peer.addr
        )));
    }
    Ok(())
}

fn explain(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> MembershipError {
    let error = match error {
        RaftError::APIError(error) => error,
        RaftError::Fatal(error) => return MembershipError::Fatal(error.to_string()),
    };
    match error {
        ClientWriteError::ForwardToLeader(forward) => MembershipError::NotLeader {
            leader: leader_at(forward),
        },
        ClientWriteError::LogEntryDiscarded(_) => MembershipError::Unknown(error.to_string()),
        // Raft refuses the second half of a change when another one came between: the first half stands.
        ClientWriteError::PreconditionFailed(_) => MembershipError::Unknown(error.to_string()),
        ClientWriteError::ChangeMembershipError(error) => match error {
            ChangeMembershipError::InProgress(_)
            | ChangeMembershipError::UncommittedLeaderLog(_) => {
                MembershipError::InProgress(error.to_string())
            }
            ChangeMembershipError::EmptyMembership(_)
            | ChangeMembershipError::LearnerNotFound(_)
            | ChangeMembershipError::UnsupportedMembershipTransition(_)
            | ChangeMembershipError::NodeMetadataChanged(_) => {
                MembershipError::Invalid(error.to_string())
            }
        },
    }
}

type Change = ChangeMembers<RaftNodeId, RaftPeer>;

impl<M: Machine> RaftNode<M> {
    fn change_limit(&self) -> Duration {
        Duration::from_millis(self.inner.options.propose_timeout_ms)
    }

    async fn finish<F>(&self, changing: F) -> Result<(), MembershipError>
    where
        F: Future<
            Output = Result<
                ClientWriteResponse<TypeConfig>,
                RaftError<TypeConfig, ClientWriteError<TypeConfig>>,
            >,
        >,
    {
        let limit = self.change_limit();
        match GlommioRuntime::timeout(limit, changing).await {
            Ok(done) => done.map(|_| ()).map_err(explain),
            Err(_) => Err(MembershipError::Unknown(format!(
                "it was not finished within {} ms",
                limit.as_millis()
            ))),
        }
    }

    async fn change(&self, change: Change) -> Result<(), MembershipError> {
        self.finish(self.raft().change_membership(change, false))
            .await
    }

    /// Adds a node that receives the log and does not vote. A member keeps its place and its address.
    pub async fn add_learner(&self, id: &str, peer: RaftPeer) -> Result<(), MembershipError> {
        check_member(id, &peer)?;
        if self.is_leader() && self.membership().contains(id) {
            return Ok(());
        }
        self.finish(self.raft().add_learner(RaftNodeId::from(id), peer, false))
            .await
    }

    /// Makes a learner a voter. A voter stays one. Returns once the new majority is in force.
    pub async fn promote(&self, id: &str) -> Result<(), MembershipError> {
        self.change(Change::AddVoterIds(BTreeSet::from([RaftNodeId::from(id)])))
            .await
    }

    /// Removes a voter from the cluster altogether. The last voter cannot be removed; a leader should hand over first.
    pub async fn remove_voter(&self, id: &str) -> Result<(), MembershipError> {
        self.change(Change::RemoveVoters(BTreeSet::from([RaftNodeId::from(id)])))
            .await
    }

    /// Removes a learner from the cluster.
    pub async fn remove_learner(&self, id: &str) -> Result<(), MembershipError> {
        if self.is_leader() && self.membership().voters.contains_key(id) {
            return Err(MembershipError::Invalid(format!(
                "{id} is a voter, not a learner: remove it as a voter"
            )));
        }
        self.change(Change::RemoveNodes(BTreeSet::from([RaftNodeId::from(id)])))
            .await
    }

    /// Changes the address of a member.
    pub async fn set_address(&self, id: &str, peer: RaftPeer) -> Result<(), MembershipError> {
        check_member(id, &peer)?;
        self.change(Change::SetNodes(BTreeMap::from([(
            RaftNodeId::from(id),
            peer,
        )])))
        .await
    }

    /// Hands leadership to voter `to` and waits until this node sees it lead, at most `limit`.
    ///
    /// From the moment the target is told until a new leader is elected, proposals are refused here.
    pub async fn transfer_leader(&self, to: &str, limit: Duration) -> Result<(), TransferError> {
        if !self.is_leader() {
            return Err(TransferError::NotLeader);
        }
        if to == self.id() || !self.membership().voters.contains_key(to) {
            return Err(TransferError::NotVoter(to.to_owned()));
        }
        let until = std::time::Instant::now() + limit;
        let mut watch = self.watch();
        while self.lag(to) != Some(0) {
            let more = GlommioRuntime::timeout_at(until, watch.changed()).await;
            if !self.is_leader() {
                return Err(TransferError::NotLeader);
            }
            if more != Ok(true) {
                return Err(TransferError::Behind {
                    id: to.to_owned(),
                    lag: self.lag(to),
                });
            }
        }
        let told = self
            .raft()
            .trigger()
            .transfer_leader(RaftNodeId::from(to))
            .await;
        told.map_err(|error| TransferError::Fatal(error.to_string()))?;
        let taking = async {
            let mut known = self.id().to_owned();
            while let Some((leader, _)) = self.wait_leader_change(Some(&known)).await {
                if leader == to {
                    return true;
                }
                known = leader;
            }
            false
        };
        match GlommioRuntime::timeout_at(until, taking).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(TransferError::Fatal(
                self.fatal()
                    .unwrap_or_else(|| "it was shut down".to_owned()),
            )),
            Err(_) => Err(TransferError::NotTaken {
                to: to.to_owned(),
                leader: self.leader(),
            }),
        }
    }
}
