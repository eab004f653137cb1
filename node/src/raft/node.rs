//! One node of the Raft cluster: starting, proposing, reading behind a barrier, watching.
//!
//! Keeps true: an answer that was lost is reported as unknown, never as failed; an index that a barrier returns was
//! confirmed by a majority after the call began, and is applied here when the call returns.

use super::limits::{
    CORE_CHANNEL, MAX_APPEND_ENTRIES, MAX_NODE_ID_BYTES, MAX_PROPOSAL_BYTES, SNAPSHOT_CHUNK_BYTES,
    SNAPSHOT_CHUNK_TIMEOUT_MS,
};
use super::machine::{Machine, MachineAdaptor, Unfit};
use super::network::{AddressBook, PeerFactory, RaftTransport};
use super::receive::Arriving;
use super::runtime::GlommioRuntime;
use super::store::{self, LogStore, StoreError};
use super::types::{Proposal, RaftNodeId, RaftPeer, TypeConfig};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::error::{
    ClientWriteError, ForwardToLeader, InitializeError, LinearizableReadError, RaftError,
};
use openraft::{AsyncRuntime, Config, LinearizerOption, Raft, SnapshotPolicy};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How a node takes part. [`RaftOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct RaftOptions {
    /// This node's id.
    pub node_id: String,
    /// Where peers reach this node, `host:port`.
    pub addr: String,
    /// Directory of log, vote and snapshot, for Raft alone; created if missing.
    pub dir: PathBuf,
    /// A follower that hears nothing for this long or a little longer stands for election.
    pub election_timeout_min_ms: u64,
    /// Upper end of that random time.
    pub election_timeout_max_ms: u64,
    /// Pause between two heartbeats of the leader; also the time an append message may take.
    pub heartbeat_ms: u64,
    /// A snapshot is taken after this many entries.
    pub snapshot_every: u64,
    /// This many entries that are in the snapshot already stay in the log for peers that lag.
    pub keep_entries: u64,
    /// How long a proposal or a change of members is waited for before its outcome is called unknown.
    pub propose_timeout_ms: u64,
    /// How long a read barrier is waited for.
    pub barrier_timeout_ms: u64,
}

impl RaftOptions {
    /// The defaults, for a node that keeps its Raft state in `dir`.
    pub fn new(
        node_id: impl Into<String>,
        addr: impl Into<String>,
        dir: impl Into<PathBuf>,
    ) -> RaftOptions {
        RaftOptions {
            node_id: node_id.into(),
            addr: addr.into(),
            dir: dir.into(),
            election_timeout_min_ms: 1_000,
            election_timeout_max_ms: 2_000,
            heartbeat_ms: 250,
            snapshot_every: 4_096,
            keep_entries: 1_024,
            propose_timeout_ms: 10_000,
            barrier_timeout_ms: 5_000,
        }
    }

    fn config(&self) -> Result<Config, StartError> {
        let config = Config {
            cluster_name: "narad".to_owned(),
            election_timeout_min: self.election_timeout_min_ms,
            election_timeout_max: self.election_timeout_max_ms,
            heartbeat_interval: self.heartbeat_ms,
            install_snapshot_timeout: SNAPSHOT_CHUNK_TIMEOUT_MS,
            snapshot_max_chunk_size: SNAPSHOT_CHUNK_BYTES as u64,
            max_payload_entries: MAX_APPEND_ENTRIES,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            max_in_snapshot_log_to_keep: self.keep_entries,
            purge_batch_size: (self.snapshot_every / 8).max(1),
            replication_lag_threshold: self.snapshot_every + self.keep_entries,
            api_channel_size: Some(CORE_CHANNEL),
            enable_pre_vote: Some(true),
            // A restarted leader asks for votes like anyone else: what it had applied is not known to be current.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        config
            .validate()
            .map_err(|error| StartError::Options(error.to_string()))
    }
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The options contradict each other.
    #[error("the Raft options do not fit together: {0}")]
    Options(String),
    /// Raft refused what it found.
    #[error("Raft cannot start from what is in {dir}: {why}", dir = .dir.display())]
    Raft {
        /// The Raft directory.
        dir: PathBuf,
        /// Raft's reason.
        why: String,
    },
}

/// A leader's id and address.
pub type LeaderAt = (String, String);

/// Why a cluster was not initialised.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The founding members do not include this node, or one has an id that cannot be used.
    #[error("{0}")]
    Members(String),
    /// Raft has stopped here.
    #[error("Raft has stopped on this node: {0}")]
    Stopped(String),
}

/// Why there is no answer to a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was appended: another node leads.
    #[error("this node does not lead; {}", match leader { Some((id, addr)) => format!("ask {id} at {addr}"), None => "no leader is known, try again".to_owned() })]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<LeaderAt>,
    },
    /// It may be applied, now or later, or never. Read behind a barrier to find out.
    #[error("it is not known whether the proposal was applied: {0}")]
    Unknown(String),
    /// Nothing was appended, and never will be as it is.
    #[error("a proposal has at most {MAX_PROPOSAL_BYTES} bytes, this one has {0}: split it")]
    TooLarge(usize),
    /// Raft has stopped on this node, which must be restarted. Whether the proposal was applied is unknown.
    #[error("Raft has stopped on this node, restart it: {0}")]
    Fatal(String),
}

impl ProposeError {
    /// Whether the proposal may have been, or may yet be, applied.
    pub fn is_unknown(&self) -> bool {
        matches!(self, ProposeError::Unknown(_) | ProposeError::Fatal(_))
    }
}

/// Why a barrier was not passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// Another node leads.
    #[error("this node does not lead{}", match leader { Some((id, addr)) => format!("; ask {id} at {addr}"), None => String::new() })]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<LeaderAt>,
    },
    /// No majority confirmed the leader in time.
    #[error("leadership could not be confirmed: {0}")]
    Unconfirmed(String),
    /// This node has not applied enough yet.
    #[error("index {wanted} was not applied here in time (applied: {applied:?})")]
    NotApplied {
        /// What was waited for.
        wanted: u64,
        /// What is applied.
        applied: Option<u64>,
    },
    /// Raft has stopped here.
    #[error("Raft has stopped on this node, restart it: {0}")]
    Stopped(String),
}

pub(super) struct Inner<M: Machine> {
    pub(super) options: RaftOptions,
    pub(super) raft: Raft<TypeConfig, MachineAdaptor<M>>,
    pub(super) transport: Rc<dyn RaftTransport>,
    pub(super) log: LogStore,
    machine: Rc<RefCell<M>>,
    applied: watch::Receiver<Option<u64>>,
    arriving: RefCell<Option<Arriving>>,
    /// Why nothing is taken from the leader any more.
    pub(super) unfit: RefCell<Option<Unfit>>,
}

/// A running node. A clone is another handle to the same node; all stay on the executor that started it.
pub struct RaftNode<M: Machine> {
    pub(super) inner: Rc<Inner<M>>,
}

impl<M: Machine> Clone for RaftNode<M> {
    fn clone(&self) -> Self {
        RaftNode {
            inner: self.inner.clone(),
        }
    }
}

pub(super) fn leader_at(forward: ForwardToLeader<TypeConfig>) -> Option<LeaderAt> {
    Some((forward.leader_id?.0, forward.leader_node?.addr))
}

impl<M: Machine> RaftNode<M> {
    /// Recovers the directory, restores the machine from snapshot and log, and begins to take part.
    ///
    /// `machine` must be empty. A node that finds an empty directory waits until it is initialised or added.
    pub async fn start(
        options: RaftOptions,
        machine: Rc<RefCell<M>>,
        transport: Rc<dyn RaftTransport>,
    ) -> Result<RaftNode<M>, StartError> {
        let config = Arc::new(options.config()?);
        let opened = store::open(&options.dir, &options.node_id).await?;
        let (progress, applied) = watch::channel(None);
        let adaptor = MachineAdaptor::new(machine.clone(), opened.snapshot, progress);
        let id = RaftNodeId(options.node_id.clone());
        let book = AddressBook::default();
        let network = PeerFactory::new(id.clone(), transport.clone(), book.clone());
        let log = opened.log.clone();
        let raft = Raft::new(id, config, network, opened.log, adaptor).await;
        let raft = raft.map_err(|error| StartError::Raft {
            dir: options.dir.clone(),
            why: error.to_string(),
        })?;
        let node = RaftNode {
            inner: Rc::new(Inner {
                options,
                raft,
                transport,
                log,
                machine,
                applied,
                arriving: RefCell::default(),
                unfit: RefCell::default(),
            }),
        };
        node.follow_addresses(book);
        node.elect_if_alone().await;
        Ok(node)
    }

    /// Keeps `book` at the newest membership, committed or not, until Raft ends.
    fn follow_addresses(&self, book: AddressBook) {
        let mut metrics = self.inner.raft.server_metrics();
        glommio::spawn_local(async move {
            let mut known = None;
            loop {
                let members = metrics.borrow_and_update().membership_config.clone();
                if known != Some(*members.log_id()) {
                    known = Some(*members.log_id());
                    book.replace(&members);
                }
                if metrics.changed().await.is_err() {
                    return;
                }
            }
        })
        .detach();
    }

    /// A cluster of one needs nobody's silence before it elects itself.
    async fn elect_if_alone(&self) {
        let members = self.membership();
        if members.voters.len() == 1
            && members.voters.contains_key(self.id())
            && let Err(error) = self.inner.raft.trigger().elect(false).await
        {
            tracing::warn!(%error, "the only voter could not elect itself at once; it will after its timeout");
        }
    }

    /// This node's id.
    pub fn id(&self) -> &str {
        &self.inner.options.node_id
    }

    /// The machine behind Raft. Do not hold a borrow across an await.
    pub fn machine(&self) -> &Rc<RefCell<M>> {
        &self.inner.machine
    }

    pub(super) fn raft(&self) -> &Raft<TypeConfig, MachineAdaptor<M>> {
        &self.inner.raft
    }

    pub(super) fn arriving(&self) -> RefMut<'_, Option<Arriving>> {
        self.inner.arriving.borrow_mut()
    }

    /// Founds the cluster with these members, this node among them. Every founding node may call it with the same
    /// members. A node that has a log already does nothing.
    pub async fn initialize(&self, members: BTreeMap<String, RaftPeer>) -> Result<(), InitError> {
        if let Some(id) = members
            .keys()
            .find(|id| id.is_empty() || id.len() > MAX_NODE_ID_BYTES)
        {
            return Err(InitError::Members(format!(
                "a node id has 1 to {MAX_NODE_ID_BYTES} bytes: {id:?}"
            )));
        }
        let members: BTreeMap<RaftNodeId, RaftPeer> = members
            .into_iter()
            .map(|(id, peer)| (RaftNodeId(id), peer))
            .collect();
        match self.inner.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => {
                let id = self.id();
                Err(InitError::Members(format!(
                    "the founding members do not include this node, {id}: add {id}=HOST:PORT to them, or join instead"
                )))
            }
            Err(RaftError::Fatal(error)) => Err(InitError::Stopped(error.to_string())),
        }
    }

    /// Proposes with the configured time limit. See [`RaftNode::propose_within`].
    pub async fn propose(&self, proposal: Vec<u8>) -> Result<(u64, Vec<u8>), ProposeError> {
        self.propose_within(
            proposal,
            Duration::from_millis(self.inner.options.propose_timeout_ms),
        )
        .await
    }

    /// Proposes a command and waits until it is applied here; returns its index and the machine's answer.
    ///
    /// Only the leader can. Dropping the future does not withdraw the proposal.
    pub async fn propose_within(
        &self,
        proposal: Vec<u8>,
        limit: Duration,
    ) -> Result<(u64, Vec<u8>), ProposeError> {
        if proposal.len() > MAX_PROPOSAL_BYTES {
            return Err(ProposeError::TooLarge(proposal.len()));
        }
        let writing = self.inner.raft.client_write(Proposal(proposal));
        let Ok(outcome) = GlommioRuntime::timeout(limit, writing).await else {
            return Err(ProposeError::Unknown(format!(
                "no majority answered within {} ms",
                limit.as_millis()
            )));
        };
        match outcome {
            Ok(done) => Ok((done.log_id.index, done.data.0)),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotLeader {
                    leader: leader_at(forward),
                })
            }
            Err(RaftError::APIError(error)) => Err(ProposeError::Unknown(error.to_string())),
            Err(RaftError::Fatal(error)) => Err(ProposeError::Fatal(error.to_string())),
        }
    }

    /// A majority round that starts after this call confirms that this node leads. Returns the term it leads in.
    pub async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        self.read_log_id().await.map(|(term, _)| term)
    }

    /// Like [`RaftNode::confirm_leadership`], and returns an index at or above everything that was committed when
    /// the call began. It may not be applied here yet.
    pub async fn leader_read_index(&self) -> Result<u64, BarrierError> {
        self.read_log_id().await.map(|(_, index)| index)
    }

    async fn read_log_id(&self) -> Result<(u64, u64), BarrierError> {
        let limit = Duration::from_millis(self.inner.options.barrier_timeout_ms);
        // Zero age: only answers to heartbeats sent from now on count.
        let strict = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(limit);
        let asking = self.inner.raft.get_read_log_id(strict);
        let Ok(answer) = GlommioRuntime::timeout(limit, asking).await else {
            return Err(BarrierError::Unconfirmed(format!(
                "no majority answered within {} ms",
                limit.as_millis()
            )));
        };
        match answer {
            Ok((id, _)) => Ok((id.committed_leader_id().term, id.index())),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(BarrierError::NotLeader {
                    leader: leader_at(forward),
                })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(few))) => {
                Err(BarrierError::Unconfirmed(few.to_string()))
            }
            Err(RaftError::Fatal(error)) => Err(BarrierError::Stopped(error.to_string())),
        }
    }

    /// On the leader: confirms leadership and waits until everything committed before the call is applied here.
    /// Returns the index up to which that is so.
    pub async fn read_barrier(&self) -> Result<u64, BarrierError> {
        let index = self.leader_read_index().await?;
        self.wait_applied(
            index,
            Duration::from_millis(self.inner.options.barrier_timeout_ms),
        )
        .await
    }

    /// Waits until `index` is applied here. Returns what is applied then.
    pub async fn wait_applied(&self, index: u64, limit: Duration) -> Result<u64, BarrierError> {
        let mut applied = self.inner.applied.clone();
        let waiting = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= index));
        match GlommioRuntime::timeout(limit, waiting)
            .await
            .map(|done| done.map(|applied| *applied))
        {
            Ok(Ok(Some(applied))) => Ok(applied),
            Ok(Ok(None)) => unreachable!("waited for a value"),
            Ok(Err(_)) => Err(BarrierError::Stopped(
                self.fatal()
                    .unwrap_or_else(|| "it was shut down".to_owned()),
            )),
            Err(_) => Err(BarrierError::NotApplied {
                wanted: index,
                applied: self.last_applied(),
            }),
        }
    }

    /// Index of the last entry that is applied here.
    pub fn last_applied(&self) -> Option<u64> {
        *self.inner.applied.borrow()
    }

    /// Leaves Raft: waits for what is being written, then closes the log. Peers notice by silence; transfer
    /// leadership first to spare them the wait.
    pub async fn shutdown(&self) {
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "Raft did not end cleanly");
        }
        if let Err(error) = self.inner.log.close().await {
            tracing::warn!(%error, "the Raft log was not flushed at shutdown; what was confirmed is durable");
        }
    }
}
