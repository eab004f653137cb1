//! `narad serve`: starts a node, waits until it is to stop, and stops it in order.
//!
//! What this file keeps true: a start that is refused changes nothing; executors start from the
//! control core outwards and stop the other way round (leadership away, shards closed, Raft last);
//! the process never lives on with a part missing.

mod parts;

pub use crate::config::ServeArgs;

use crate::config::{Config, ConfigErrors};
use crate::context::Farewell;
use crate::data_dir::{self, DataDir, DataDirError};
use crate::process::{files, panics, signals};
use crate::salvage::{self, SalvageError, What};
use parts::{Event, Parts};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Why `narad serve` ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The data directory or a port cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Something of the system that every process needs.
    #[error("cannot {action}: {message}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said and what to do.
        message: String,
    },
    /// A part of the node ended by itself.
    #[error("the node ends because its {part} ended: {message}")]
    Part {
        /// Which part.
        part: String,
        /// Why.
        message: String,
    },
    /// The node is no member any more, and what is left on its disk could not be handed over.
    #[error("{0}")]
    Salvage(SalvageError),
    /// The stop took too long.
    #[error(
        "{part} did not stop within {after_ms} ms; everything acked is durable, recovery runs at the next start"
    )]
    StopTimeout {
        /// What was waited for.
        part: String,
        /// The bound, in ms.
        after_ms: u64,
    },
}

impl ServeError {
    /// Exit code for the process: 2 for wrong usage, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::DataDir(_)
            | Self::System { .. }
            | Self::Part { .. }
            | Self::Salvage(_)
            | Self::StopTimeout { .. } => 1,
        }
    }
}

/// A data directory in memory breaks every promise at the first power cut.
fn warn_of_memory(dir: &std::path::Path) {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};
    if statfs(dir).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC) {
        tracing::warn!(
            data_dir = %dir.display(),
            "the data directory is on tmpfs, in memory: all records are lost with the machine; use a disk (ext4, XFS)"
        );
    }
}

/// Runs a node until it is told to stop (SIGTERM, SIGINT) or cannot go on. Call it from a process
/// that has no other threads: signals are blocked for the whole process.
///
/// # Errors
/// [`ServeError`]; its text says what to do.
pub fn run(args: ServeArgs) -> Result<(), ServeError> {
    start_log();
    let config = Config::resolve(args)?;
    let listeners = data_dir::bind_ports(&config)?;
    let dir = data_dir::open(&config)?;
    warn_of_memory(&config.data_dir);
    files::raise_limit();
    panics::abort_on_panic();
    let set = signals::block().map_err(|error| ServeError::System {
        action: "block signals",
        message: error.to_string(),
    })?;
    let (events, received) = mpsc::channel();
    let on_signal = events.clone();
    signals::watch(set, move |signal| {
        let _ = on_signal.send(Event::Signal(signal));
    })
    .map_err(|error| ServeError::System {
        action: "start the signal thread",
        message: error.to_string(),
    })?;
    let timeout = Duration::from_millis(config.timings.stop_timeout_ms);
    tracing::info!(
        node = %config.node_id,
        version = env!("CARGO_PKG_VERSION"),
        data_dir = %config.data_dir.display(),
        listen = %config.addr,
        bulk = %config.bulk_addr,
        http = config.http_addr,
        shards = config.shards,
        "starting"
    );
    let mut parts = Parts::start(config, &dir, listeners, &events)?;
    drop(events);
    let ended = match received.recv() {
        Ok(Event::Signal(signal)) => {
            tracing::info!(%signal, "stopping; a second signal ends the process at once");
            None
        }
        Ok(Event::Ended { part, message }) => {
            parts.ended(&part);
            // Nothing is wrong, and a supervisor must not start it again.
            let left = Parts::left_cluster(&part, &message);
            let message = if message.is_empty() {
                "it returned although nobody had asked it to".into()
            } else {
                message
            };
            (!left).then_some(ServeError::Part { part, message })
        }
        Err(mpsc::RecvError) => unreachable!("the parts hold their ends of the channel"),
    };
    if let Some(error) = &ended {
        tracing::error!("{error}");
    }
    let stopped = parts.stop(&received, Instant::now() + timeout, timeout);
    let farewell = parts.farewell().filter(|_| stopped.is_ok());
    if let Some(farewell) = farewell
        && take_leave(&dir, farewell)?
    {
        return Ok(());
    }
    // The directory's lock goes with the process, after everything that writes into it.
    drop(dir);
    match ended {
        Some(error) => Err(error),
        None => stopped.inspect(|()| tracing::info!("stopped")),
    }
}

/// Hands what is left on the disk of a node that is no member any more to the cluster. True when the
/// node was given up and this was what it had come back for.
fn take_leave(dir: &DataDir, farewell: Farewell) -> Result<bool, ServeError> {
    let Farewell { what, servers } = farewell;
    let handed = salvage::run(dir, servers, what).map_err(ServeError::Salvage)?;
    if handed.records > 0 || handed.damaged > 0 {
        tracing::warn!(
            records = handed.records,
            unwanted = handed.unwanted,
            damaged = handed.damaged,
            "records that only this disk held were handed to the cluster"
        );
    }
    if what != What::Everything {
        return Ok(false);
    }
    tracing::info!("nothing that is needed is left on this disk: the node can be switched off");
    Ok(true)
}

/// What Raft's library may log unasked: errors, without those of its own orderly end.
const QUIET: &str = "openraft=error,openraft::raft::raft_inner=off";

fn start_log() {
    use tracing_subscriber::EnvFilter;
    // Raft's library logs every step of an election and every message that a dead peer does not
    // take; whoever wants that asks for it by name.
    let asked = std::env::var("NARAD_LOG").unwrap_or_else(|_| "info".into());
    let filter = EnvFilter::try_new(format!("{QUIET},{asked}"))
        .unwrap_or_else(|_| EnvFilter::new(format!("{QUIET},info")));
    // Fails only when a subscriber is set already, which is then the one that is wanted.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}
