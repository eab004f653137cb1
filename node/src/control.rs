//! The control core of one node: Raft, the replicated metadata, heartbeats, membership, and on
//! the leader the controller.
//!
//! What this module keeps true: nothing is destroyed, planned or promoted on a local view (a
//! barrier through the leader comes first); an unknown outcome is never reported as a failure; the
//! decisions (who is dead, what moves where) are made in the core crate.

mod beats;
mod controller;
mod core;
mod decommission;
mod founding;
mod heartbeat;
mod join;
mod leader;
mod machine;
pub(crate) mod pacing;
mod peers;
mod plans;
mod propose;
pub(crate) mod registration;
mod requests;
mod transport;
pub(crate) mod views;

pub use machine::MetaMachine;
pub(crate) use machine::{encode, latest_recovery};

use crate::context::{Farewell, NodeContext};
use crate::limits;
use crate::messages::ControlRequest;
use crate::raft::{RaftNode, RaftOptions};
use crate::salvage::What;
use core::Core;
use futures::future::Either;
use narad_core::meta::MetaState;
use narad_wire::bulk::BulkServer;
use narad_wire::pool::PeerPool;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use transport::PeerTransport;

/// What the control core gets besides the context: the ends of channels that it alone holds.
pub struct ControlSetup {
    /// Where applied metadata is published.
    pub meta: watch::Sender<Arc<MetaState>>,
    /// Becomes true once a barrier of this start was applied.
    pub confirmed: watch::Sender<bool>,
    /// The sending side of the bulk channel, which keeps to the rate limit of the metadata.
    pub bulk: Arc<BulkServer>,
    /// What it is asked.
    pub requests: mpsc::Receiver<ControlRequest>,
    /// Becomes true when Raft is to stop, after everything else.
    pub stop: watch::Receiver<bool>,
}

/// Why the control core cannot go on; the process ends with it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The Raft directory cannot be used.
    #[error("the metadata log cannot be opened: {0}")]
    Raft(String),
    /// Raft stopped after an error of its storage.
    #[error("Raft has stopped: {0}; look at the disk and the node's log, then start it again")]
    Stopped(String),
    /// This node is no member any more.
    #[error(
        "node {0} was removed from the cluster and cannot come back under this id: \
         switch it off, or join with a new --node-id and an empty --data-dir"
    )]
    Removed(String),
    /// This node was given up while it was dead.
    #[error(
        "node {0} was given up while it was away, and its partitions began anew on other nodes: it cannot come \
         back under this id. What only its disk holds is handed to the cluster now"
    )]
    Forgotten(String),
    /// This node's decommission was completed while it ran: an orderly end.
    #[error("node {0} has been decommissioned and has left the cluster; it can be switched off")]
    Left(String),
    /// The cluster knows another data directory under this id.
    #[error(
        "the cluster knows another data directory under the id {id}: {reason}. Start the node on its \
         old --data-dir, or join with a new --node-id"
    )]
    OtherDisk {
        /// This node.
        id: String,
        /// What the cluster said.
        reason: String,
    },
    /// The data directory belongs to another cluster.
    #[error(
        "node {id} does not join this cluster: {reason}. Nothing on its disk was changed: correct --join, or \
         start with a new --node-id and an empty --data-dir"
    )]
    Stranger {
        /// This node.
        id: String,
        /// What the cluster said.
        reason: String,
    },
    /// Its metadata and the cluster's contradict each other.
    #[error(
        "node {id} cannot go on with the cluster's metadata: {reason}. Nothing on its disk was changed: give the \
         node up (narad cluster forget {id}) if narad cluster members lists it, hand over what its disk holds (narad salvage), and only then \
         empty the disk and join under a new id"
    )]
    Diverged {
        /// This node.
        id: String,
        /// How that was seen.
        reason: String,
    },
    /// The cluster's metadata has what this release does not know.
    #[error("{0}: nothing of it was applied; start the newer narad on this data directory")]
    Newer(String),
    /// Another process runs under this id.
    #[error("a newer process of node {0} has registered elsewhere: stop one of the two")]
    Replaced(String),
    /// The data directory was made, and the founding or joining was never finished.
    #[error(
        "this node has never become a member: start it again with the --peers or --join that it was \
         first started with"
    )]
    NeverMember,
    /// The only founder has voted, and has no log.
    #[error(
        "node {0} has voted in some cluster and has no metadata log any more, so it founds no other: bring          its raft directory back; if there never was a cluster, empty its --data-dir and start it again"
    )]
    LogLost(String),
    /// Most founders have empty disks, and one of the others has a cluster's metadata.
    #[error(
        "{lost} of the {voters} voters have an empty disk ({empty}), while {at} has the metadata of their          cluster: no second cluster is founded beside it. Start those nodes on their old --data-dir; if the          disks are lost for good, give the cluster a new quorum on {at} (narad recover quorum, see the          handbook) and let the others join it under new ids"
    )]
    QuorumLost {
        /// Who has the metadata.
        at: String,
        /// Whose disks are empty.
        empty: String,
        /// How many those are.
        lost: usize,
        /// How many voters there are.
        voters: usize,
    },
    /// The cluster refuses this node.
    #[error("the cluster refuses this node: {0}")]
    Refused(String),
}

/// Runs the control core on the calling executor until it is told to stop, or until this node has
/// left its cluster in order: only then it returns unasked and without an error.
///
/// # Errors
/// [`ControlError`] when the node cannot go on.
pub async fn run(ctx: Arc<NodeContext>, setup: ControlSetup) -> Result<(), ControlError> {
    let ControlSetup {
        meta,
        confirmed,
        bulk,
        requests,
        mut stop,
    } = setup;
    narad_storage::prepare_executor(&ctx.config.data_dir)
        .await
        .map_err(|error| ControlError::Raft(error.to_string()))?;
    let machine = Rc::new(RefCell::new(MetaMachine::new(meta)));
    let pool = PeerPool::new(ctx.id.clone(), ctx.incarnation).in_cluster(ctx.tell_cluster());
    let peers =
        PeerPool::of_control(ctx.id.clone(), ctx.incarnation).in_cluster(ctx.tell_cluster());
    let transport = Rc::new(PeerTransport::new(ctx.clone(), peers.clone()));
    let raft = RaftNode::start(raft_options(&ctx), machine, transport)
        .await
        .map_err(|error| ControlError::Raft(error.to_string()))?;
    let (core, mut fatal) = Core::new(ctx, raft, (pool, peers), confirmed);
    requests::start(core.clone(), requests);
    registration::start(core.clone());
    heartbeat::start(core.clone());
    pacing::start(core.clone(), bulk.clone());
    leader::start(core.clone(), bulk);
    let ended = {
        let asked = std::pin::pin!(async {
            // A closed channel means that the main thread is gone: stop as well.
            let _ = stop.wait_for(|stop| *stop).await;
        });
        let failed = std::pin::pin!(fatal.recv());
        match futures::future::select(asked, failed).await {
            Either::Left(((), _)) => None,
            Either::Right((error, _)) => error,
        }
    };
    let what = match &ended {
        Some(ControlError::Left(_) | ControlError::Removed(_)) => Some(What::Undispatched),
        Some(ControlError::Forgotten(_)) => Some(What::Everything),
        _ => None,
    };
    if let Some(what) = what {
        let servers = registration::candidates(&core);
        // Set once, here.
        let _ = core.ctx.farewell.set(Farewell { what, servers });
    }
    let outcome = match ended {
        None => Ok(()),
        Some(left @ ControlError::Left(_)) => {
            tracing::info!("{left}");
            Ok(())
        }
        Some(error) => Err(error),
    };
    core.raft.shutdown().await;
    outcome
}

fn raft_options(ctx: &NodeContext) -> RaftOptions {
    let timings = &ctx.config.timings;
    let mut options = RaftOptions::new(
        ctx.id.0.clone(),
        ctx.config.addr.clone(),
        ctx.config.data_dir.join("raft"),
    );
    options.election_timeout_min_ms = timings.election_min_ms;
    options.election_timeout_max_ms = timings.election_max_ms;
    options.heartbeat_ms = timings.raft_heartbeat_ms();
    options.snapshot_every = ctx.config.storage.snapshot_entries;
    options.keep_entries = options.snapshot_every / limits::SNAPSHOT_KEEP;
    options
}
