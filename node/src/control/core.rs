//! What the tasks of the control core share.
//!
//! What this file keeps true: everything here lives on the control executor; no borrow is held
//! across an await.

use super::ControlError;
use super::beats::{Beats, Clock};
use super::machine::MetaMachine;
use crate::context::NodeContext;
use crate::limits;
use crate::raft::RaftNode;
use narad_core::ids::{ClusterId, NodeId, RaftIndex, RaftTerm};
use narad_core::meta::{Heritage, LogPoint, MetaState, Stranger};
use narad_wire::error::WireFault;
use narad_wire::pool::PeerPool;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, watch};

/// The control core of this node.
pub(super) struct Core {
    pub(super) ctx: Arc<NodeContext>,
    pub(super) raft: RaftNode<MetaMachine>,
    /// Connections to other nodes' shards, for views of the cluster.
    pub(super) pool: PeerPool,
    /// Connections to other nodes' control cores, past their shards.
    pub(super) peers: PeerPool,
    /// The leader's clock over the members.
    pub(super) clock: RefCell<Clock>,
    /// What the members have told this leader.
    pub(super) beats: RefCell<Beats>,
    /// Raft messages are taken: it is certain that this data directory is the one that the
    /// cluster knows under this id (or that there is no cluster yet).
    pub(super) open: Cell<bool>,
    /// This incarnation is registered, as far as this node knows.
    pub(super) registered: watch::Sender<bool>,
    /// A barrier of this start was applied.
    pub(super) confirmed: watch::Sender<bool>,
    /// Wakes the controller before its tick.
    pub(super) replan: Rc<tokio::sync::Notify>,
    /// The foreign cluster that was told of last, so that each is told of once.
    pub(super) foreign: Cell<Option<ClusterId>>,
    /// The cluster's identity is being noted in the data directory.
    noting: Cell<bool>,
    /// Which of the owned partitions the next heartbeat tells of first, where one cannot tell of all.
    pub(super) told_from: Cell<usize>,
    /// Views that are being asked of the leader.
    pub(super) forwarded: Semaphore,
    fatal: mpsc::Sender<ControlError>,
}

impl Core {
    /// The core, and where a fatal error arrives.
    pub(super) fn new(
        ctx: Arc<NodeContext>,
        raft: RaftNode<MetaMachine>,
        (pool, peers): (PeerPool, PeerPool),
        confirmed: watch::Sender<bool>,
    ) -> (Rc<Self>, mpsc::Receiver<ControlError>) {
        let (fatal, received) = mpsc::channel(1);
        let clock = RefCell::new(Clock::new(&ctx.config.timings));
        let core = Rc::new(Self {
            ctx,
            raft,
            pool,
            peers,
            clock,
            beats: RefCell::default(),
            open: Cell::new(false),
            registered: watch::Sender::new(false),
            confirmed,
            replan: Rc::new(tokio::sync::Notify::new()),
            foreign: Cell::new(None),
            noting: Cell::new(false),
            told_from: Cell::new(0),
            forwarded: Semaphore::new(limits::VIEWS_FORWARDED),
            fatal,
        });
        (core, received)
    }

    /// This node's id.
    pub(super) fn id(&self) -> &NodeId {
        &self.ctx.id
    }

    /// The metadata as applied now.
    pub(super) fn state(&self) -> Arc<MetaState> {
        self.ctx.state()
    }

    /// Where the metadata on this disk comes from.
    pub(super) fn heritage(&self) -> Heritage {
        let status = self.raft.status();
        let (term, index) = status.applied_at.unwrap_or_default();
        Heritage {
            cluster: self.ctx.cluster(),
            has_log: status.last_log.is_some() || status.snapshot.is_some(),
            // The state was published before Raft said that it is applied: it is not older.
            recovery: self.state().recovery(),
            applied: LogPoint {
                term: RaftTerm(term),
                index: RaftIndex(index),
            },
        }
    }

    /// The refusal for a node of another cluster, told once each in the log.
    pub(super) fn foreign(&self, cluster: Option<ClusterId>) -> Option<WireFault> {
        let fault = crate::rpc::control::foreign(&self.ctx, cluster)?;
        if self.foreign.replace(cluster) != cluster {
            tracing::error!("{fault}");
        }
        Some(fault)
    }

    /// Notes in the data directory which cluster this is, once that is known.
    pub(super) async fn remember(&self, cluster: ClusterId) {
        match self.ctx.cluster.get() {
            Some(noted) if noted == cluster => return,
            Some(noted) => {
                let stranger = Stranger::OtherCluster {
                    theirs: noted,
                    ours: cluster,
                };
                self.fail(ControlError::Stranger {
                    id: self.id().to_string(),
                    reason: stranger.to_string(),
                });
                return;
            }
            None => {}
        }
        // Several hear of it at the same moment, and one file is written.
        if self.noting.replace(true) {
            return;
        }
        let dir = self.ctx.config.data_dir.clone();
        let noting = move || crate::data_dir::remember_cluster(&dir, cluster);
        let noted = glommio::executor().spawn_blocking(noting).await;
        self.noting.set(false);
        match noted {
            Ok(()) => {
                self.ctx.cluster.set(cluster);
                tracing::info!("this node belongs to cluster {:016x}", cluster.0);
            }
            // It is tried again when the metadata changes next; until then the metadata says it.
            Err(error) => tracing::warn!(%error, "the cluster's identity could not be noted"),
        }
    }

    /// The node cannot go on; the first reason wins.
    pub(super) fn fail(&self, error: ControlError) {
        // Full: a reason is there already, and the process is about to end with it.
        let _ = self.fatal.try_send(error);
    }

    /// Where a member is reached now: the address that it registered, else the one that Raft knows.
    pub(super) fn addr_of(&self, id: &str, known: &str) -> String {
        addr_of(&self.state(), id, known)
    }

    /// The leader, if one is known, with its address.
    pub(super) fn leader(&self) -> Option<(NodeId, String)> {
        let (id, addr) = self.raft.leader()?;
        let addr = self.addr_of(&id, &addr);
        Some((NodeId(id), addr))
    }

    /// Whether the leader that is known is this node.
    pub(super) fn leads(&self) -> bool {
        self.raft.is_leader()
    }
}

/// As [`Core::addr_of`], over a state.
pub(super) fn addr_of(state: &MetaState, id: &str, known: &str) -> String {
    state
        .members
        .get(&NodeId(id.to_owned()))
        .map_or_else(|| known.to_owned(), |member| member.addr.clone())
}
