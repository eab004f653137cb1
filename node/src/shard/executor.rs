//! Starting and stopping one shard executor.
//!
//! What this file keeps true: the disk is prepared before anything else touches it; clients are
//! served from the start (produce goes to the ingress WAL until ownership is confirmed); at the end
//! no new work is taken, what runs is let finish, and logs and WAL are closed in order.

use crate::context::NodeContext;
use crate::messages::ShardRequest;
use crate::rpc;
use crate::shard::limits::STOP_GRACE_MS;
use crate::shard::shard::Shard;
use crate::shard::wals::Dispatchers;
use crate::shard::{reconcile, requests, ticks, upkeep};
use glommio::net::TcpListener;
use narad_core::ids::ShardIndex;
use narad_storage::{Options, StorageError};
use narad_wire::pool::PeerPool;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Why a shard could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The disk or a file of the WAL.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The listener.
    #[error("cannot listen on {addr}: {message}; choose another address with --listen")]
    Listen {
        /// Where.
        addr: String,
        /// What the system said.
        message: String,
    },
    /// A directory.
    #[error("cannot read {}: {message}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
}

/// The storage settings of this node's partitions.
fn options(ctx: &NodeContext) -> Options {
    let settings = &ctx.config.storage;
    let mut options = Options {
        segment_bytes: settings.segment_bytes,
        ..Options::default()
    };
    if let Some(bytes) = settings.cache_bytes {
        options.cache_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    options.bounded()
}

/// Runs a shard until the node stops.
///
/// # Errors
/// [`ShardError`] when the shard cannot start.
pub async fn run(
    ctx: Arc<NodeContext>,
    index: ShardIndex,
    requests: mpsc::Receiver<ShardRequest>,
) -> Result<(), ShardError> {
    narad_storage::prepare_executor(&ctx.config.data_dir).await?;
    let options = options(&ctx);
    let pool = PeerPool::new(ctx.id.clone(), ctx.incarnation).in_cluster(ctx.tell_cluster());
    let dispatchers = Dispatchers::open(&ctx, index).await?;
    let shard = Rc::new(Shard::new(ctx.clone(), index, options, pool, dispatchers));
    let listener = TcpListener::bind(ctx.config.listen).map_err(|error| ShardError::Listen {
        addr: ctx.config.listen.to_string(),
        message: error.to_string(),
    })?;
    tracing::info!(shard = %index, listen = %ctx.config.listen, "shard started");
    let background = [
        glommio::spawn_local(rpc::listen(shard.clone(), listener)),
        glommio::spawn_local(reconcile::run(shard.clone())),
        glommio::spawn_local(ticks::flush_frontiers(shard.clone())),
        glommio::spawn_local(ticks::tick_sources(shard.clone())),
        glommio::spawn_local(ticks::retain(shard.clone())),
        glommio::spawn_local(upkeep::trim_idle(shard.clone())),
        glommio::spawn_local(upkeep::bound_files(shard.clone())),
        glommio::spawn_local(upkeep::scrub(shard.clone())),
    ];
    shard.dispatchers.start(&shard);
    requests::serve(shard.clone(), requests).await;
    for task in background {
        task.cancel().await;
    }
    close(&shard).await;
    Ok(())
}

/// Closes what is open. Appends under way are waited for; consumers' leases end with the process.
async fn close(shard: &Rc<Shard>) {
    let closing = async {
        for partition in shard.open_partitions() {
            let slot = shard.slot(partition.key());
            shard.close_slot(&slot, partition.copy).await;
        }
        shard.dispatchers.close().await;
        Ok::<(), glommio::GlommioError<()>>(())
    };
    let grace = Duration::from_millis(STOP_GRACE_MS);
    if glommio::timer::timeout(grace, closing).await.is_err() {
        tracing::warn!(shard = %shard.index, "not everything closed in time; it is recovered at the next start");
    }
    tracing::info!(shard = %shard.index, "shard stopped");
}
