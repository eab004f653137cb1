//! The mover: the executor that carries out every move into this node.
//!
//! What this file keeps true: one task a partition, driven by the applied metadata; an installed
//! copy whose flip is not known (rule R3) is resolved before anything else of its partition; no
//! move begins before this start has been confirmed by a barrier.

mod courtesy;
mod history;
mod interrupt;
mod janitor;
mod limits;
mod receive;
mod source;
mod task;
mod throttle;
mod told;
mod turn;
mod work;

use crate::context::NodeContext;
use crate::messages::MoverRequest;
use courtesy::Courtesy;
use futures::future::{Either, select};
use history::History;
use narad_core::ids::PartitionKey;
use narad_core::meta::MetaState;
use narad_core::moves::target::TargetMove;
use narad_core::moves::{CatchUpLimits, FoundInstalled};
use narad_storage::{Options, StorageError, layout};
use narad_wire::pool::PeerPool;
use narad_wire::view::MoveView;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use task::Running;
use throttle::Throttle;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Why the mover ended.
#[derive(Debug, thiserror::Error)]
pub enum MoverError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// What the tasks of this executor share.
pub(crate) struct Mover {
    ctx: Arc<NodeContext>,
    root: PathBuf,
    options: Options,
    pool: PeerPool,
    throttle: Throttle,
    courtesy: Rc<Courtesy>,
    /// Turns to be handed over.
    turns: Arc<Semaphore>,
    running: RefCell<BTreeMap<PartitionKey, Rc<Running>>>,
    history: RefCell<History>,
    /// Installed copies whose flip is not known, of which no task has begun.
    found: RefCell<Vec<FoundInstalled>>,
    /// Partitions whose staging takes room that this node does not have.
    unwanted: RefCell<BTreeSet<PartitionKey>>,
    ended: Notify,
}

/// Runs the mover until the node stops.
///
/// # Errors
/// [`MoverError`] when the data directory cannot be read at the start.
pub async fn run(
    ctx: Arc<NodeContext>,
    mut requests: mpsc::Receiver<MoverRequest>,
) -> Result<(), MoverError> {
    let root = ctx.config.data_dir.clone();
    narad_storage::prepare_executor(&root).await?;
    let options = Options {
        segment_bytes: ctx.config.storage.segment_bytes,
        ..Options::default()
    };
    let found = installed(&root).await?;
    let mover = Rc::new(Mover {
        pool: PeerPool::new(ctx.id.clone(), ctx.incarnation).in_cluster(ctx.tell_cluster()),
        root,
        options,
        throttle: Throttle::new(ctx.pace.clone()),
        courtesy: Rc::new(Courtesy::new(ctx.pace.clone())),
        turns: Arc::new(Semaphore::new(limits::HANDOVERS)),
        running: RefCell::default(),
        history: RefCell::default(),
        found: RefCell::new(found),
        unwanted: RefCell::default(),
        ended: Notify::new(),
        ctx,
    });
    let mut meta = mover.ctx.meta.clone();
    let mut confirmed = mover.ctx.confirmed.clone();
    let mut stop = mover.ctx.stop.clone();
    let mut swept = Instant::now();
    loop {
        if *stop.borrow_and_update() || stop.has_changed().is_err() {
            break;
        }
        if *confirmed.borrow_and_update() {
            // A statement of its own: the lock is held to the end of the statement, tasks that are spawned in
            // there run at once, and a second read behind a waiting writer never ends.
            let state = meta.borrow_and_update().clone();
            mover.reconcile(&state);
            if swept.elapsed() >= Duration::from_millis(limits::JANITOR_MS) {
                swept = Instant::now();
                mover.clone().sweep();
            }
        }
        let changed = async {
            let (meta, confirmed) = (pin!(change(&mut meta)), pin!(change(&mut confirmed)));
            let (stop, ended) = (pin!(stop.changed()), pin!(mover.ended.notified()));
            let janitor = pin!(glommio::timer::sleep(Duration::from_millis(
                limits::JANITOR_MS
            )));
            select(
                select(meta, confirmed),
                select(select(stop, ended), janitor),
            )
            .await;
        };
        match select(pin!(changed), pin!(requests.recv())).await {
            Either::Left(((), _)) => {}
            Either::Right((Some(MoverRequest::Moves { answer }), _)) => {
                let _ = answer.send((mover.views(), mover.history.borrow().all()));
            }
            Either::Right((None, _)) => break,
        }
    }
    // The tasks stop where they are, with their executor: everything that matters is on the disk or
    // in the metadata.
    Ok(())
}

/// A new value; never, when nobody can send one any more (the stop is told by its own channel).
async fn change<T>(values: &mut watch::Receiver<T>) {
    if values.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Installed copies that still carry their mark.
async fn installed(root: &Path) -> Result<Vec<FoundInstalled>, StorageError> {
    layout::finish_deletions(root).await?;
    let mut out = Vec::new();
    for copy in layout::scan(root).await?.copies {
        let Some(mark) = copy.install else {
            continue;
        };
        out.push(FoundInstalled {
            copy: copy.copy,
            mark,
            end: copy.end,
            hwm: copy.hwm,
        });
    }
    Ok(out)
}

impl Mover {
    /// Begins what the metadata wants and nobody does yet.
    fn reconcile(self: &Rc<Self>, state: &MetaState) {
        for found in self.found.take() {
            let assignment = state.assignment(found.copy.key);
            let id = self.ctx.id.clone();
            let worker = TargetMove::found_installed(id, found, state.applied, assignment)
                .with_limits(self.limits());
            self.begin(worker);
        }
        for (key, assignment) in state.assignments() {
            let Some(target) = &assignment.target else {
                continue;
            };
            if target.node != self.ctx.id || self.running.borrow().contains_key(&key) {
                continue;
            }
            if self.running.borrow().len() >= self.ctx.config.moves.max_in {
                // The end of a running one looks here again.
                break;
            }
            let id = self.ctx.id.clone();
            let worker = TargetMove::new(id, key, target.move_id, state.applied, assignment)
                .with_limits(self.limits());
            self.begin(worker);
        }
    }

    fn limits(&self) -> CatchUpLimits {
        let moves = &self.ctx.config.moves;
        CatchUpLimits {
            freeze_budget_ms: moves.freeze_budget_ms,
            lag_bound_max_bytes: moves.lag_bound_max_bytes,
            passes_max: moves.passes_max,
        }
    }

    fn begin(self: &Rc<Self>, worker: TargetMove) {
        let key = worker.key();
        let running = Rc::new(Running {
            view: RefCell::default(),
        });
        self.running.borrow_mut().insert(key, running.clone());
        let mover = self.clone();
        glommio::spawn_local(async move {
            task::run(mover.clone(), worker, running).await;
            mover.running.borrow_mut().remove(&key);
            mover.ended.notify_one();
        })
        .detach();
    }

    fn views(&self) -> Vec<MoveView> {
        let running = self.running.borrow();
        running.values().map(|r| r.view.borrow().clone()).collect()
    }
}
