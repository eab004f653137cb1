//! Looking at Raft: who leads, who is a member, how far the log is; waiting for a change; barriers through the leader.
//!
//! Keeps true: what is read here is this node's local view, good for showing and for choosing whom to ask, never for
//! deciding. Decisions go through a barrier.

use super::machine::Machine;
use super::network::TransportError;
use super::node::{BarrierError, LeaderAt, RaftNode};
use super::runtime::GlommioRuntime;
use super::types::{MembershipView, RaftNodeId, TypeConfig, term_of};
use super::wire::{RaftMessage, RaftMessageKind, ReadIndexReply, from_bytes};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{AsyncRuntime, RaftMetrics, ServerState};
use std::time::{Duration, Instant};

/// Pause before a barrier looks for the leader again.
const LEADER_RETRY: Duration = Duration::from_millis(50);

/// What this node plays in Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftRole {
    /// Receives the log and does not vote.
    Learner,
    /// Votes and follows.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads, as far as it knows.
    Leader,
    /// Has stopped.
    Stopped,
}

/// This node's view of Raft at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftStatus {
    /// This node.
    pub node_id: String,
    /// Its role.
    pub role: RaftRole,
    /// Its term.
    pub term: u64,
    /// Who leads, with the address if it is a member that this node knows.
    pub leader: Option<LeaderAt>,
    /// Index of the last entry in the log here.
    pub last_log: Option<u64>,
    /// Index up to which entries are known to be committed.
    pub committed: Option<u64>,
    /// Index up to which entries are applied.
    pub applied: Option<u64>,
    /// Term and index of the last of those.
    pub applied_at: Option<(u64, u64)>,
    /// Index up to which the snapshot reaches.
    pub snapshot: Option<u64>,
    /// Index up to which the log is purged.
    pub purged: Option<u64>,
    /// Leader only: milliseconds since a majority last answered.
    pub quorum_ack_age_ms: Option<u64>,
    /// Members.
    pub membership: MembershipView,
    /// Why Raft has stopped, if it has: the node has to be restarted.
    pub fatal: Option<String>,
}

fn status_of(metrics: &RaftMetrics<TypeConfig>) -> RaftStatus {
    let index = |id: &Option<super::types::LogId>| id.as_ref().map(|id| id.index);
    let membership = MembershipView::from(&*metrics.membership_config);
    let leader = metrics.current_leader.as_ref().map(|RaftNodeId(id)| {
        let addr = membership.peer(id).map(|peer| peer.addr.clone());
        (id.clone(), addr.unwrap_or_default())
    });
    RaftStatus {
        node_id: metrics.id.0.clone(),
        role: match metrics.state {
            ServerState::Learner => RaftRole::Learner,
            ServerState::Follower => RaftRole::Follower,
            ServerState::Candidate => RaftRole::Candidate,
            ServerState::Leader => RaftRole::Leader,
            ServerState::Shutdown => RaftRole::Stopped,
        },
        term: metrics.current_term,
        leader,
        last_log: metrics.last_log_index,
        committed: index(&metrics.local_committed),
        applied: index(&metrics.last_applied),
        applied_at: metrics
            .last_applied
            .as_ref()
            .map(|id| (term_of(id), id.index)),
        snapshot: index(&metrics.snapshot),
        purged: index(&metrics.purged),
        quorum_ack_age_ms: metrics
            .last_quorum_acked
            .as_ref()
            .map(|at| at.elapsed().as_millis() as u64),
        membership,
        fatal: metrics
            .running_state
            .as_ref()
            .err()
            .map(ToString::to_string),
    }
}

/// Follows the status of a node.
#[derive(Clone)]
pub struct RaftWatch {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
}

impl RaftWatch {
    /// Waits for the next change. `false`: Raft has gone, there will be none. Changes in between are merged.
    pub async fn changed(&mut self) -> bool {
        self.metrics.changed().await.is_ok()
    }

    /// The status now.
    pub fn status(&self) -> RaftStatus {
        status_of(&self.metrics.borrow_watched())
    }
}

impl<M: Machine> RaftNode<M> {
    /// The status now.
    pub fn status(&self) -> RaftStatus {
        self.watch().status()
    }

    /// Follows the status.
    pub fn watch(&self) -> RaftWatch {
        RaftWatch {
            metrics: self.raft().metrics(),
        }
    }

    /// Whether this node leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.raft().is_leader()
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<LeaderAt> {
        self.status().leader
    }

    /// This node's term.
    pub fn term(&self) -> u64 {
        self.status().term
    }

    /// The members, as far as this node has seen (perhaps not committed yet).
    pub fn membership(&self) -> MembershipView {
        self.status().membership
    }

    /// Why Raft has stopped here, if it has.
    pub fn fatal(&self) -> Option<String> {
        self.status().fatal
    }

    /// Waits until the leader that this node knows is another one than `known`. `None` if Raft stops first.
    pub async fn wait_leader_change(&self, known: Option<&str>) -> Option<LeaderAt> {
        let mut watch = self.watch();
        loop {
            if let Some((id, addr)) = watch.status().leader
                && Some(id.as_str()) != known
            {
                return Some((id, addr));
            }
            if !watch.changed().await {
                return None;
            }
        }
    }

    /// How many entries the log of member `id` is behind, on the leader; `None` if unknown.
    pub fn lag(&self, id: &str) -> Option<u64> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics
            .replication
            .as_ref()?
            .get(&RaftNodeId::from(id))?
            .as_ref()?
            .index;
        Some(metrics.last_log_index?.saturating_sub(matched))
    }

    /// A read barrier on any node: the leader confirms itself after this call began, and what was committed then is
    /// applied here on return. Looks for the leader again until `limit` is over.
    pub async fn barrier(&self, limit: Duration) -> Result<u64, BarrierError> {
        let until = Instant::now() + limit;
        let mut hint = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let asked =
                GlommioRuntime::timeout(left, self.index_from_leader(hint.take(), left)).await;
            let error = match asked {
                Ok(Ok(index)) => {
                    return self
                        .wait_applied(index, until.saturating_duration_since(Instant::now()))
                        .await;
                }
                Ok(Err(error @ BarrierError::Stopped(_))) => return Err(error),
                Ok(Err(error)) => error,
                Err(_) => BarrierError::Unconfirmed("the leader did not answer in time".to_owned()),
            };
            if let BarrierError::NotLeader { leader } = &error {
                hint = leader.clone();
            }
            if Instant::now() + LEADER_RETRY >= until {
                return Err(error);
            }
            GlommioRuntime::sleep(LEADER_RETRY).await;
        }
    }

    async fn index_from_leader(
        &self,
        hint: Option<LeaderAt>,
        limit: Duration,
    ) -> Result<u64, BarrierError> {
        let leader = hint.or_else(|| self.leader());
        let Some((id, addr)) = leader.filter(|(id, _)| id != self.id()) else {
            return self.leader_read_index().await;
        };
        let request = RaftMessage {
            kind: RaftMessageKind::ReadIndex,
            body: Vec::new(),
        };
        let answer = self.inner.transport.call(&id, &addr, request, limit).await;
        let answer = answer.map_err(|error| match error {
            TransportError::Remote(why) | TransportError::Unreachable(why) => {
                BarrierError::Unconfirmed(format!("{id} at {addr}: {why}"))
            }
            TransportError::Timeout => {
                BarrierError::Unconfirmed(format!("{id} at {addr} did not answer in time"))
            }
        })?;
        match from_bytes(&answer)
            .map_err(|error| BarrierError::Unconfirmed(format!("{id} at {addr}: {error}")))?
        {
            ReadIndexReply::Index(index) => Ok(index),
            ReadIndexReply::NotLeader(leader) => Err(BarrierError::NotLeader { leader }),
            ReadIndexReply::Unconfirmed(why) => Err(BarrierError::Unconfirmed(why)),
        }
    }
}
