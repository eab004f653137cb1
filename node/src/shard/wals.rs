//! The ingress WALs of one shard, each with its dispatcher: opening, opening again, closing.
//!
//! What this file keeps true: WALs that another number of shards left behind are adopted; one that an
//! error of the disk has stopped is recovered while the node runs, and takes nothing until then; of one
//! WAL there is never more than one that is open.

use crate::context::NodeContext;
use crate::shard::dispatcher::Dispatcher;
use crate::shard::executor::ShardError;
use crate::shard::limits::WAL_REPAIR_MS;
use crate::shard::shard::Shard;
use narad_core::defaults::WAL_CAP_PERCENT;
use narad_core::ids::{MonoMs, NodeId, ShardIndex, WalSeq};
use narad_storage::{StorageError, Wal, WalOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The dispatchers of one shard: of its own WAL and of those that it has adopted.
pub(crate) struct Dispatchers {
    all: Vec<RefCell<Running>>,
    options: WalOptions,
}

/// The dispatcher of one WAL, and its tasks while they run.
struct Running {
    dispatcher: Rc<Dispatcher>,
    tasks: Vec<glommio::Task<()>>,
    /// Looks after the WAL.
    watch: Option<glommio::Task<()>>,
}

fn wal_dir(root: &Path, index: u32) -> PathBuf {
    root.join("shards").join(index.to_string()).join("wal")
}

/// Most bytes of one WAL: this node's share of its disk, divided among its shards.
fn cap_bytes(ctx: &NodeContext) -> u64 {
    let whole = ctx.config.storage.wal_cap_bytes.unwrap_or_else(|| {
        match nix::sys::statvfs::statvfs(&ctx.config.data_dir) {
            Ok(disk) => {
                let bytes = disk.blocks() * disk.fragment_size();
                bytes / 100 * WAL_CAP_PERCENT
            }
            Err(error) => {
                tracing::warn!(%error, "the size of the disk is not known; the ingress WAL gets the default cap");
                WalOptions::default().cap_bytes
            }
        }
    });
    whole / u64::from(ctx.config.shards.max(1))
}

/// Indexes of shards that no longer exist and left a WAL that this shard adopts.
fn orphans(root: &Path, shards: u32, index: ShardIndex) -> Result<Vec<u32>, ShardError> {
    let path = root.join("shards");
    let listing = match std::fs::read_dir(&path) {
        Ok(listing) => listing,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(ShardError::Directory {
                path,
                message: error.to_string(),
            });
        }
    };
    let mut found: Vec<u32> = listing
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|old| *old >= shards && old % shards == index.0)
        .filter(|old| wal_dir(root, *old).exists())
        .collect();
    found.sort_unstable();
    Ok(found)
}

impl Dispatchers {
    /// Opens the shard's own WAL and those that it adopts.
    pub(crate) async fn open(
        ctx: &Arc<NodeContext>,
        index: ShardIndex,
    ) -> Result<Self, ShardError> {
        let root = &ctx.config.data_dir;
        let options = WalOptions {
            cap_bytes: cap_bytes(ctx),
            ..WalOptions::default()
        };
        let mut indexes = vec![index.0];
        indexes.extend(orphans(root, ctx.config.shards.max(1), index)?);
        let mut all = Vec::new();
        for (n, of) in indexes.into_iter().enumerate() {
            let dir = wal_dir(root, of);
            let wal = open_wal(&dir, &options).await?;
            let pending = wal.pending();
            if n > 0 {
                tracing::info!(shard = %index, of, records = pending.records, "the WAL of a shard that is gone is adopted");
            } else {
                tracing::info!(shard = %index, records = pending.records, cap_bytes = options.cap_bytes, "ingress WAL opened");
            }
            all.push(RefCell::new(Running::new(wal)));
        }
        Ok(Self { all, options })
    }

    /// Starts delivering, and looks after WALs that stop.
    pub(crate) fn start(&self, shard: &Rc<Shard>) {
        for at in 0..self.all.len() {
            self.all[at].borrow_mut().start(shard);
            let shard = shard.clone();
            let watch =
                glommio::spawn_local(async move { shard.dispatchers.keep(at, &shard).await });
            self.all[at].borrow_mut().watch = Some(watch);
        }
    }

    /// Opens a WAL again after an error of the disk has stopped it, for as long as the node runs.
    async fn keep(&self, at: usize, shard: &Rc<Shard>) {
        let mut told = String::new();
        loop {
            glommio::timer::sleep(Duration::from_millis(WAL_REPAIR_MS)).await;
            let dispatcher = self.all[at].borrow().dispatcher.clone();
            let Some(reason) = dispatcher.wal.failed() else {
                continue;
            };
            if told != reason {
                tracing::error!(dir = %dispatcher.wal.dir().display(), reason, "an ingress WAL has stopped; it is recovered from the disk");
            }
            match self.reopen(at, shard, &dispatcher).await {
                Ok(()) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if told == reason {
                        tracing::debug!(error, "the ingress WAL cannot be recovered yet");
                    } else {
                        tracing::error!(
                            error,
                            "the ingress WAL cannot be recovered yet: free the disk or replace it; tried again"
                        );
                    }
                    told = reason;
                }
            }
        }
    }

    /// A new WAL from what is on the disk, with a new dispatcher in place of the old one. What the old
    /// one has sent and not noted is sent again, and recognised there.
    async fn reopen(
        &self,
        at: usize,
        shard: &Rc<Shard>,
        old: &Rc<Dispatcher>,
    ) -> Result<(), StorageError> {
        let tasks = std::mem::take(&mut self.all[at].borrow_mut().tasks);
        for task in tasks {
            task.cancel().await;
        }
        // Waits for what is on its way to the disk; that the WAL has failed is known.
        if let Err(error) = old.wal.clone().close().await {
            tracing::debug!(%error, "the stopped WAL did not close cleanly");
        }
        let wal = open_wal(&old.wal.dir(), &self.options).await?;
        tracing::warn!(dir = %wal.dir().display(), records = wal.pending().records, "the ingress WAL is open again");
        let mut running = self.all[at].borrow_mut();
        running.dispatcher = Dispatcher::new(wal);
        running.start(shard);
        Ok(())
    }

    /// Stops delivering and closes the WALs. What is on its way is recognised when it comes again.
    pub(crate) async fn close(&self) {
        for running in &self.all {
            // First the one that would start others.
            let watch = running.borrow_mut().watch.take();
            if let Some(watch) = watch {
                watch.cancel().await;
            }
            let (tasks, dispatcher) = {
                let mut running = running.borrow_mut();
                (
                    std::mem::take(&mut running.tasks),
                    running.dispatcher.clone(),
                )
            };
            for task in tasks {
                task.cancel().await;
            }
            if let Err(error) = dispatcher.wal.clone().close().await {
                tracing::warn!(%error, "an ingress WAL did not close cleanly; it is recovered at the next start");
            }
        }
    }

    /// The shard's own WAL, as it is open now.
    pub(crate) fn own(&self) -> Wal {
        self.all[0].borrow().dispatcher.wal.clone()
    }

    /// Records have become durable in the shard's own WAL, from this sequence on; they came at `at`.
    pub(crate) fn arrived(&self, first: WalSeq, at: MonoMs) {
        self.all[0].borrow().dispatcher.arrived(first, at);
    }

    /// The metadata has changed: what waits for another owner is looked at again.
    pub(crate) fn metadata_changed(&self) {
        for running in &self.all {
            running.borrow().dispatcher.look_again();
        }
    }

    /// Records in all of them that can go to dead owners only, by owner.
    pub(crate) fn waiting_for_dead(&self) -> BTreeMap<NodeId, u64> {
        let mut all = BTreeMap::new();
        for running in &self.all {
            for (owner, records) in running.borrow().dispatcher.waiting_for_dead() {
                *all.entry(owner).or_default() += records;
            }
        }
        all
    }

    /// Records that wait in all of them.
    pub(crate) fn pending_records(&self) -> u64 {
        let pending = |running: &RefCell<Running>| running.borrow().dispatcher.wal.pending();
        self.all
            .iter()
            .map(|running| pending(running).records)
            .sum()
    }
}

/// Opens a WAL and tells what damage it has.
async fn open_wal(dir: &Path, options: &WalOptions) -> Result<Wal, StorageError> {
    let (wal, recovery) = Wal::open(dir, options).await?;
    if recovery.pending.lost > 0 || !recovery.report.damage.is_empty() {
        tracing::error!(dir = %dir.display(), ?recovery, "the ingress WAL is damaged; narad verify lists what is lost");
    }
    Ok(wal)
}

impl Running {
    fn new(wal: Wal) -> Self {
        Self {
            dispatcher: Dispatcher::new(wal),
            tasks: Vec::new(),
            watch: None,
        }
    }

    fn start(&mut self, shard: &Rc<Shard>) {
        let dispatcher = &self.dispatcher;
        self.tasks = vec![
            glommio::spawn_local(dispatcher.clone().run(shard.clone())),
            glommio::spawn_local(dispatcher.clone().checkpoints()),
        ];
    }
}
