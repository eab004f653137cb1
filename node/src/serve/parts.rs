//! The parts of a running node and the order in which they start and stop.
//!
//! What this file keeps true: the end of any part is an event that the main thread hears; nothing
//! is waited for without a bound.

use super::ServeError;
use crate::admin::AdminServer;
use crate::config::Config;
use crate::context::{ClusterCell, Farewell, Handle, LeaseCell, NodeContext};
use crate::control::{self, ControlSetup};
use crate::data_dir::{DataDir, Listeners};
use crate::limits;
use crate::messages::{ControlRequest, MoverRequest, ShardRequest};
use crate::metrics::Metrics;
use crate::process::executors::{self, Placements, Work};
use crate::process::notify;
use narad_core::ids::{NodeIncarnation, ShardIndex};
use narad_core::meta::MetaState;
use narad_wire::bulk::{BulkOptions, BulkServer, SessionTable};
use nix::sys::signal::Signal;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// What the main thread waits for.
pub(super) enum Event {
    /// The operator wants the process to stop.
    Signal(Signal),
    /// A part ended.
    Ended {
        /// Which.
        part: String,
        /// Why, or empty when it had been asked to.
        message: String,
    },
}

/// Everything that runs.
pub(super) struct Parts {
    stop: watch::Sender<bool>,
    stop_control: watch::Sender<bool>,
    bulk: Option<Arc<BulkServer>>,
    admin: Option<AdminServer>,
    /// Names of the shards and the mover that have not ended.
    data: Vec<String>,
    /// The control core has not ended.
    control_runs: bool,
    ctx: Arc<NodeContext>,
}

const CONTROL: &str = "control core";
const MOVER: &str = "mover";

impl Parts {
    /// Starts all of them.
    pub(super) fn start(
        config: Config,
        dir: &DataDir,
        listeners: Listeners,
        events: &Sender<Event>,
    ) -> Result<Self, ServeError> {
        let placements = Placements::of(&config);
        let (stop, stopping) = watch::channel(false);
        let (stop_control, control_stopping) = watch::channel(false);
        let (meta, meta_applied) = watch::channel(Arc::new(MetaState::default()));
        let (confirmed, confirmed_seen) = watch::channel(false);
        let (control_handle, requests) = Handle::channel(limits::CONTROL_QUEUE);
        let (shards, shard_receivers): (Vec<_>, Vec<_>) = (0..config.shards)
            .map(|_| Handle::<ShardRequest>::channel(limits::SHARD_QUEUE))
            .unzip();
        let (mover, mover_receiver) = Handle::<MoverRequest>::channel(limits::MOVER_QUEUE);
        let sessions = Arc::new(SessionTable::new());
        let bulk = BulkServer::start(
            listeners.bulk,
            sessions.clone(),
            BulkOptions {
                path: config.moves.copy_path,
                ..BulkOptions::new(dir.path())
            },
        )
        .map_err(|error| ServeError::System {
            action: "start the bulk channel",
            message: error.to_string(),
        })?;
        let ctx = Arc::new(NodeContext {
            id: config.node_id.clone(),
            incarnation: NodeIncarnation(rand::random::<u64>().max(1)),
            disk: dir.disk(),
            cluster: ClusterCell::new(dir.cluster()),
            config,
            meta: meta_applied,
            confirmed: confirmed_seen,
            lease: LeaseCell::default(),
            control: control_handle,
            shards,
            mover,
            sessions,
            metrics: Metrics::new(),
            pace: Arc::default(),
            stop: stopping,
            farewell: std::sync::OnceLock::new(),
        });
        ctx.metrics.sends_by(bulk.path().as_str());
        let bulk = Arc::new(bulk);
        let setup = ControlSetup {
            meta,
            confirmed,
            bulk: bulk.clone(),
            requests,
            stop: control_stopping,
        };
        spawn(events, CONTROL, placements.control(), {
            let ctx = ctx.clone();
            move || control::run(ctx, setup)
        })?;
        let data = start_data(&ctx, &placements, shard_receivers, mover_receiver, events)?;
        let admin = listeners
            .http
            .map(|listener| AdminServer::start(listener, ctx.clone()))
            .transpose()
            .map_err(|error| ServeError::System {
                action: "start the admin port",
                message: error.to_string(),
            })?;
        announce_ready(ctx.clone());
        Ok(Self {
            stop,
            stop_control,
            bulk: Some(bulk),
            admin,
            data,
            control_runs: true,
            ctx,
        })
    }

    /// What is to be done when everything has stopped, because the node is no member any more.
    pub(super) fn farewell(&self) -> Option<Farewell> {
        self.ctx.farewell.get().cloned()
    }

    /// Whether this end means that the node has left its cluster: the control core alone ends
    /// unasked without a reason, and only then.
    pub(super) fn left_cluster(part: &str, message: &str) -> bool {
        part == CONTROL && message.is_empty()
    }

    /// A part has ended.
    pub(super) fn ended(&mut self, part: &str) {
        self.control_runs &= part != CONTROL;
        self.data.retain(|name| name != part);
    }

    /// Stops them: leadership away, shards and mover, bulk and admin, Raft.
    pub(super) fn stop(
        &mut self,
        events: &Receiver<Event>,
        until: Instant,
        timeout: Duration,
    ) -> Result<(), ServeError> {
        notify::tell(notify::State::Stopping, "stopping in order");
        self.hand_over(until);
        self.stop.send_replace(true);
        while !self.data.is_empty() || self.control_runs {
            if self.data.is_empty() {
                self.stop_control.send_replace(true);
            }
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Signal(_)) => {}
                Ok(Event::Ended { part, message }) => {
                    if !message.is_empty() {
                        tracing::error!(part, message, "ended badly while stopping");
                    }
                    self.ended(&part);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(ServeError::StopTimeout {
                        part: self.data.first().cloned().unwrap_or(CONTROL.into()),
                        after_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                    });
                }
            }
        }
        if let Some(admin) = self.admin.take() {
            admin.stop();
        }
        // The control core has ended, so this is the last handle: its threads end here.
        self.bulk = None;
        tracing::debug!(node = %self.ctx.id, "all parts have ended");
        Ok(())
    }
}

impl Parts {
    /// Gives leadership away before anything closes, so that the cluster does not wait for an
    /// election; a control core that cannot answer is not waited for.
    fn hand_over(&self, until: Instant) {
        let (answer, mut done) = oneshot::channel();
        if !self
            .ctx
            .control
            .try_send(ControlRequest::HandOver { answer })
        {
            return;
        }
        let until = until.min(Instant::now() + Duration::from_millis(limits::HAND_OVER_MS));
        while Instant::now() < until {
            match done.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {
                    std::thread::sleep(Duration::from_millis(limits::RETRY_MIN_MS));
                }
                Ok(()) | Err(oneshot::error::TryRecvError::Closed) => return,
            }
        }
    }
}

fn start_data(
    ctx: &Arc<NodeContext>,
    placements: &Placements,
    shards: Vec<mpsc::Receiver<ShardRequest>>,
    mover: mpsc::Receiver<MoverRequest>,
    events: &Sender<Event>,
) -> Result<Vec<String>, ServeError> {
    let mut names = Vec::new();
    for (index, requests) in shards.into_iter().enumerate() {
        let name = format!("shard {index}");
        let ctx = ctx.clone();
        let shard = ShardIndex(u32::try_from(index).expect("shards fit u32"));
        spawn(events, &name, placements.shard(index), move || {
            crate::shard::run(ctx, shard, requests)
        })?;
        names.push(name);
    }
    let ctx = ctx.clone();
    spawn(events, MOVER, None, move || crate::mover::run(ctx, mover))?;
    names.push("mover".into());
    Ok(names)
}

/// Starts an executor whose end is an event.
fn spawn<F, E>(
    events: &Sender<Event>,
    name: &str,
    cpu: Option<usize>,
    run: impl FnOnce() -> F + Send + 'static,
) -> Result<(), ServeError>
where
    F: Future<Output = Result<(), E>> + 'static,
    E: std::fmt::Display + 'static,
{
    let system = |message: String| ServeError::System {
        action: "start an executor",
        message: format!(
            "{name}: {message}; narad needs io_uring (Linux 5.8 or newer, not disabled by \
             kernel.io_uring_disabled or a container's seccomp profile)"
        ),
    };
    let part = name.to_owned();
    let work = match name {
        MOVER => Work::Copies,
        _ => Work::Calls,
    };
    let handle = executors::start(name, cpu, work, move || async move {
        let ended = run().await;
        ended.err().map(|error| error.to_string())
    })
    .map_err(|error| system(error.to_string()))?;
    let events = events.clone();
    // Joining tells whether the executor could be made at all.
    std::thread::Builder::new()
        .name(format!("{part} end"))
        .spawn(move || {
            let message = match handle.join() {
                Ok(None) => String::new(),
                Ok(Some(message)) => message,
                Err(error) => format!(
                    "its executor cannot run: {error}; narad needs io_uring and 512 KiB of locked memory \
                     an executor (ulimit -l)"
                ),
            };
            let _ = events.send(Event::Ended { part, message });
        })
        .map(|_| ())
        .map_err(|error| system(error.to_string()))
}

/// Says once in the log that the node serves.
fn announce_ready(ctx: Arc<NodeContext>) {
    let spawned = std::thread::Builder::new()
        .name("ready".into())
        .spawn(move || {
            while !*ctx.stop.borrow() {
                if crate::admin::ready::check(&ctx).is_ok() {
                    tracing::info!(node = %ctx.id, listen = %ctx.config.addr, "ready");
                    notify::tell(notify::State::Ready, "serving");
                    return;
                }
                std::thread::sleep(Duration::from_millis(limits::READY_POLL_MS));
            }
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot announce readiness; /readyz tells it");
    }
}
