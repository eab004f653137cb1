//! What openraft is told about this cluster: the types of node ids, peers, proposals and answers.
//!
//! Keeps true: Raft carries opaque bytes. What they mean is known to the [`super::machine::Machine`] alone.

use super::runtime::GlommioRuntime;
use super::text;
use openraft::alias::{
    CommittedLeaderIdOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A node's id inside Raft: the operator's string.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RaftNodeId(pub String);

impl fmt::Display for RaftNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for RaftNodeId {
    fn from(id: &str) -> RaftNodeId {
        RaftNodeId(id.to_owned())
    }
}

#[cfg(test)]
impl From<u64> for RaftNodeId {
    fn from(id: u64) -> RaftNodeId {
        RaftNodeId(id.to_string())
    }
}

/// How a member is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftPeer {
    /// `host:port` of the peer's RPC listener.
    pub addr: String,
}

impl fmt::Display for RaftPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addr)
    }
}

/// One command, opaque to Raft, at most [`super::limits::MAX_PROPOSAL_BYTES`] long.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal(#[serde(with = "text")] pub Vec<u8>);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposal({} bytes)", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the machine answered to one applied proposal. Empty for entries of Raft itself.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Applied(#[serde(with = "text")] pub Vec<u8>);

impl fmt::Debug for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Applied({} bytes)", self.0.len())
    }
}

openraft::declare_raft_types!(
    /// The types of this Raft cluster. One leader a term, as in the Raft paper, so that a term names its leader.
    pub TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = RaftNodeId,
        Node = RaftPeer,
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
        AsyncRuntime = GlommioRuntime,
);

/// Position of an entry: term and index.
pub type LogId = LogIdOf<TypeConfig>;
/// A vote that this node gave or holds.
pub type Vote = VoteOf<TypeConfig>;
/// One log entry.
pub type Entry = openraft::alias::DefaultEntryOf<TypeConfig>;
/// Membership together with the entry that set it.
pub type StoredMembership = StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = SnapshotMetaOf<TypeConfig>;
/// A snapshot with its bytes.
pub type Snapshot = SnapshotOf<TypeConfig, Vec<u8>>;
/// The committed leader, inside a [`LogId`].
pub type LeaderId = CommittedLeaderIdOf<TypeConfig>;

/// Term of the leader that proposed the entry at `id`.
pub fn term_of(id: &LogId) -> u64 {
    id.leader_id.term
}

/// The members of the cluster, as far as this node has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    /// Index of the entry that set this membership; `None` before the cluster was initialised.
    pub index: Option<u64>,
    /// Who votes. During a change both the old and the new voters are in it.
    pub voters: BTreeMap<String, RaftPeer>,
    /// Who only receives the log.
    pub learners: BTreeMap<String, RaftPeer>,
    /// A change of voters is under way: both majorities are needed.
    pub joint: bool,
}

impl MembershipView {
    /// Whether `id` is a voter or a learner.
    pub fn contains(&self, id: &str) -> bool {
        self.voters.contains_key(id) || self.learners.contains_key(id)
    }

    /// The peer record of a voter or learner.
    pub fn peer(&self, id: &str) -> Option<&RaftPeer> {
        self.voters.get(id).or_else(|| self.learners.get(id))
    }
}

impl From<&StoredMembership> for MembershipView {
    fn from(stored: &StoredMembership) -> MembershipView {
        let voter_ids: BTreeSet<RaftNodeId> = stored.voter_ids().collect();
        let mut view = MembershipView {
            index: stored.log_id().as_ref().map(|id| id.index),
            joint: stored.get_joint_config().len() > 1,
            ..MembershipView::default()
        };
        for (id, peer) in stored.nodes() {
            let side = if voter_ids.contains(id) {
                &mut view.voters
            } else {
                &mut view.learners
            };
            side.insert(id.0.clone(), peer.clone());
        }
        view
    }
}
