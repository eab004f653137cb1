//! What all executors of one node share: who it is, its configuration, the applied metadata, the
//! lease of moving partitions, and the handles by which they ask each other.
//!
//! What this file keeps true: everything here is `Send + Sync` and none of it decides anything.

use crate::config::Config;
use crate::messages::{Answer, ControlRequest, MoverRequest, ProposeError, Proposed, ShardRequest};
use narad_core::ids::{
    ClusterId, MonoMs, NodeId, NodeIncarnation, PartitionKey, RaftIndex, ShardIndex,
};
use narad_core::meta::{Command, MetaState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot, watch};

/// The other side of a channel is gone: the node is stopping.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the node is shutting down")]
pub struct Stopping;

/// A bounded way to ask one executor.
pub struct Handle<R> {
    sender: mpsc::Sender<R>,
}

impl<R> Clone for Handle<R> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
        }
    }
}

impl<R> Handle<R> {
    /// A handle and what the executor reads from; `bound` requests may wait.
    #[must_use]
    pub fn channel(bound: usize) -> (Self, mpsc::Receiver<R>) {
        let (sender, receiver) = mpsc::channel(bound);
        (Self { sender }, receiver)
    }

    /// Asks and waits. Dropping the future does not take the request back.
    ///
    /// # Errors
    /// [`Stopping`] when the executor is gone.
    pub async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> R) -> Result<T, Stopping> {
        let (answer, receiver) = oneshot::channel();
        self.sender
            .send(request(answer))
            .await
            .map_err(|_| Stopping)?;
        receiver.await.map_err(|_| Stopping)
    }

    /// Sends a request whose answer the caller waits for by itself.
    ///
    /// # Errors
    /// [`Stopping`] when the executor is gone.
    pub async fn send(&self, request: R) -> Result<(), Stopping> {
        self.sender.send(request).await.map_err(|_| Stopping)
    }

    /// Sends without waiting, from anywhere; `false` when the queue is full or the executor gone.
    #[must_use]
    pub fn try_send(&self, request: R) -> bool {
        self.sender.try_send(request).is_ok()
    }

    /// As [`Handle::ask`], from a plain thread.
    ///
    /// # Errors
    /// [`Stopping`] when the executor is gone.
    pub fn ask_blocking<T>(&self, request: impl FnOnce(Answer<T>) -> R) -> Result<T, Stopping> {
        let (answer, receiver) = oneshot::channel();
        self.sender
            .blocking_send(request(answer))
            .map_err(|_| Stopping)?;
        receiver.blocking_recv().map_err(|_| Stopping)
    }
}

/// Until when the owner of a moving partition may append (DESIGN "leadership lease"); written by
/// the control core, read by every shard before an append and again before its ack.
///
/// The control core publishes the metadata that a lease depends on (R10) before it extends the
/// lease: whoever reads the lease first and looks at [`NodeContext::meta`] after it never combines
/// a fresh lease with an older assignment.
#[derive(Debug, Default)]
pub struct LeaseCell {
    until_ms: AtomicU64,
}

impl LeaseCell {
    /// The last moment at which the lease holds.
    #[must_use]
    pub fn until(&self) -> MonoMs {
        MonoMs(self.until_ms.load(Ordering::SeqCst))
    }

    /// Moves the lease's end; never backwards.
    pub fn extend(&self, until: MonoMs) {
        self.until_ms.fetch_max(until.0, Ordering::SeqCst);
    }
}

/// Which cluster the data directory belongs to, as noted in it.
#[derive(Debug, Default)]
pub struct ClusterCell {
    id: AtomicU64,
}

impl ClusterCell {
    /// With what is noted already.
    #[must_use]
    pub fn new(noted: Option<ClusterId>) -> Self {
        let id = noted.map_or(0, |cluster| cluster.0);
        Self {
            id: AtomicU64::new(id),
        }
    }

    /// What is noted.
    #[must_use]
    pub fn get(&self) -> Option<ClusterId> {
        match self.id.load(Ordering::SeqCst) {
            0 => None,
            id => Some(ClusterId(id)),
        }
    }

    /// It is noted now.
    pub fn set(&self, cluster: ClusterId) {
        self.id.store(cluster.0, Ordering::SeqCst);
    }
}

/// One node, as its executors see it.
pub struct NodeContext {
    /// Its id.
    pub id: NodeId,
    /// This life of the process.
    pub incarnation: NodeIncarnation,
    /// Identity of its data directory.
    pub disk: u64,
    /// The cluster that the data directory belongs to.
    pub cluster: ClusterCell,
    /// Its configuration, validated.
    pub config: Config,
    /// The applied metadata; a new value a batch of applied entries.
    pub meta: watch::Receiver<Arc<MetaState>>,
    /// Set once a barrier after this start has been applied: before it, no partition is opened
    /// for appending.
    pub confirmed: watch::Receiver<bool>,
    /// Lease of moving partitions.
    pub lease: LeaseCell,
    /// The control core.
    pub control: Handle<ControlRequest>,
    /// The shards, by index.
    pub shards: Vec<Handle<ShardRequest>>,
    /// The mover.
    pub mover: Handle<MoverRequest>,
    /// Copy sessions that the bulk channel serves.
    pub sessions: Arc<narad_wire::bulk::SessionTable>,
    /// Counters and histograms.
    pub metrics: crate::metrics::Metrics,
    /// How long the foreground waits, and how fast copies may be.
    pub pace: Arc<crate::pace::Pace>,
    /// Becomes true when the node is to stop.
    pub stop: watch::Receiver<bool>,
    /// Set when the node has found out that it is no member any more.
    pub farewell: std::sync::OnceLock<Farewell>,
}

/// What a node does that is no member any more, after everything has stopped.
#[derive(Clone, Debug)]
pub struct Farewell {
    /// What of its disk the cluster is to get.
    pub what: crate::salvage::What,
    /// Whom to give it to.
    pub servers: Vec<String>,
}

impl NodeContext {
    /// The metadata as applied now.
    #[must_use]
    pub fn state(&self) -> Arc<MetaState> {
        self.meta.borrow().clone()
    }

    /// The cluster that this node belongs to, if it has learnt it: what its directory says, and before
    /// that the metadata.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster.get().or_else(|| self.meta.borrow().cluster)
    }

    /// The same, for those who ask again and again.
    pub fn tell_cluster(self: &Arc<Self>) -> impl Fn() -> Option<ClusterId> + use<> {
        let ctx = self.clone();
        move || ctx.cluster()
    }

    /// Which shard owns a partition on this node.
    #[must_use]
    pub fn shard_of(&self, key: PartitionKey) -> ShardIndex {
        let shards = u32::try_from(self.shards.len()).expect("shards fit u32");
        narad_core::routing::shard_of(key, shards)
    }

    /// The handle of the shard that owns a partition on this node.
    #[must_use]
    pub fn shard(&self, key: PartitionKey) -> &Handle<ShardRequest> {
        &self.shards[self.shard_of(key).0 as usize]
    }

    /// Proposes a command through the leader; applied here too when answered.
    ///
    /// # Errors
    /// [`ProposeError`]; `Unknown` means it may still be applied.
    pub async fn propose(&self, command: Command) -> Proposed {
        self.control
            .ask(|answer| ControlRequest::Propose { command, answer })
            .await
            .unwrap_or_else(|Stopping| {
                Err(ProposeError::Unknown {
                    reason: "the node is shutting down".into(),
                })
            })
    }

    /// A barrier through the leader: afterwards [`NodeContext::state`] holds everything that was
    /// committed before the call.
    ///
    /// # Errors
    /// [`ProposeError`] when no leader confirmed it.
    pub async fn barrier(&self) -> Result<RaftIndex, ProposeError> {
        self.control
            .ask(|answer| ControlRequest::Barrier { answer })
            .await
            .unwrap_or_else(|Stopping| {
                Err(ProposeError::Unavailable {
                    reason: "the node is shutting down".into(),
                })
            })
    }
}
