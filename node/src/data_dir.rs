//! The data directory of one node: whose it is, that nobody else uses it, and that its ports are
//! free.
//!
//! What this file keeps true: a start that is refused leaves nothing behind; two processes never
//! share a directory; a directory keeps its node id and its disk identity for ever, so a wiped
//! disk under an old id is recognised; once it is known which cluster it belongs to, that stays as well.

mod ports;

use crate::clock::wall_ms;
use crate::config::{Config, Start};
use crate::limits;
use narad_core::ids::{ClusterId, NodeId, WallMs};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Format of the directory that this program writes.
pub const FORMAT: u32 = 1;
const LOCK: &str = "LOCK";
const NODE: &str = "node.json";

/// Why a node does not start on a directory or on its ports.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process runs on it.
    #[error(
        "{path} is in use by another narad process{}: stop it first, or give this node its own --data-dir",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as it wrote down.
        pid: Option<u32>,
    },
    /// It belongs to another node.
    #[error(
        "{path} belongs to node {found}, not to {asked}: give --node-id {found}, or another --data-dir"
    )]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who asked.
        asked: NodeId,
    },
    /// A newer program wrote it.
    #[error(
        "{path} has format {found}, and this program knows {FORMAT} at most: start the newer narad that wrote it"
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// Its node.json cannot be read.
    #[error(
        "{path} cannot be understood ({reason}): restore it from a backup; nothing was changed"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It holds other things.
    #[error("{path} is not empty and not a narad data directory: name an empty or a new one")]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// It is no node's.
    #[error("{path} is not the data directory of a node: name the --data-dir that the node ran on")]
    NoNode {
        /// The directory.
        path: PathBuf,
    },
    /// It is new, and nothing says of which cluster.
    #[error(
        "{path} is new, so this node is not a member yet: say --peers ID=HOST:PORT,… to found a cluster \
         (this node included), or --join HOST:PORT to join one"
    )]
    NoCluster {
        /// The directory.
        path: PathBuf,
    },
    /// A port is taken.
    #[error(
        "{flag} {addr} cannot be bound ({source}): stop what uses it, or choose another address"
    )]
    Port {
        /// Which flag named it.
        flag: &'static str,
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// `node.json`: who this directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// Format of the directory.
    pub format: u32,
    /// The node.
    pub node_id: NodeId,
    /// Identity of this directory, drawn at random when it was made.
    pub disk: u64,
    /// When it was made.
    pub created_ms: WallMs,
    /// The cluster whose data it holds, once the node has learnt it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
}

/// A data directory held by this process until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    node: NodeFile,
    fresh: bool,
    // The lock lives as long as this handle.
    _lock: File,
}

/// Listeners that were bound while the ports were probed.
#[derive(Debug)]
pub struct Listeners {
    /// Of the bulk channel.
    pub bulk: TcpListener,
    /// Of the admin port.
    pub http: Option<TcpListener>,
}

impl DataDir {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    #[must_use]
    pub fn node_id(&self) -> &NodeId {
        &self.node.node_id
    }

    /// Identity of the directory.
    #[must_use]
    pub fn disk(&self) -> u64 {
        self.node.disk
    }

    /// The cluster whose data it holds, if the node has learnt it.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.node.cluster
    }

    /// Whether this start made it.
    #[must_use]
    pub fn fresh(&self) -> bool {
        self.fresh
    }
}

/// Binds the bulk and the admin port and probes the listener's port. The shards bind that one by
/// themselves with SO_REUSEPORT, which would succeed beside another process: hence the probe.
///
/// # Errors
/// [`DataDirError::Port`] for the first that is taken.
pub fn bind_ports(config: &Config) -> Result<Listeners, DataDirError> {
    let bind = |flag: &'static str, addr: SocketAddr| {
        TcpListener::bind(addr).map_err(|source| DataDirError::Port { flag, addr, source })
    };
    ports::probe(config.listen).map_err(|source| DataDirError::Port {
        flag: "--listen",
        addr: config.listen,
        source,
    })?;
    Ok(Listeners {
        bulk: bind("--bulk", config.bulk)?,
        http: config.http.map(|addr| bind("--http", addr)).transpose()?,
    })
}

/// Takes the directory for this process; makes it when it is new and the configuration says of
/// which cluster the node is.
///
/// # Errors
/// [`DataDirError`]; a refused directory is left as it was.
pub fn open(config: &Config) -> Result<DataDir, DataDirError> {
    let path = config.data_dir.as_path();
    let known = inspect(path, config)?;
    if known.is_none() {
        std::fs::create_dir_all(path).map_err(io("create", path))?;
    }
    let lock = lock(path)?;
    // Somebody may have made the directory his between the look and the lock.
    let (node, fresh) = match inspect(path, config)? {
        Some(node) => (node, false),
        None => (write_node(path, config)?, true),
    };
    Ok(DataDir {
        path: path.to_path_buf(),
        node,
        fresh,
        _lock: lock,
    })
}

/// Takes the directory of a node that does not run, whichever it is, and makes nothing.
///
/// # Errors
/// [`DataDirError`]; the directory is left as it was.
pub fn hold(path: &Path) -> Result<DataDir, DataDirError> {
    if !path.join(NODE).is_file() {
        return Err(DataDirError::NoNode {
            path: path.to_path_buf(),
        });
    }
    let lock = lock(path)?;
    Ok(DataDir {
        path: path.to_path_buf(),
        node: read_node_file(path)?,
        fresh: false,
        _lock: lock,
    })
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DataDirError {
    let path = path.to_path_buf();
    move |source| DataDirError::Io {
        action,
        path,
        source,
    }
}

/// What is there, without changing it: `None` for a directory that may be made ours.
fn inspect(path: &Path, config: &Config) -> Result<Option<NodeFile>, DataDirError> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return allowed_to_make(path, config).map(|()| None);
        }
        Err(error) => return Err(io("read", path)(error)),
    };
    let mut foreign = false;
    for entry in entries {
        let name = entry.map_err(io("read", path))?.file_name();
        if name == NODE {
            return read_node(path, config).map(Some);
        }
        // A lock and a half-written node.json are left by a first start that was cut off; an
        // ext4 root has its lost+found.
        foreign |= name != LOCK && name != temporary(NODE).as_str() && name != "lost+found";
    }
    if foreign {
        return Err(DataDirError::Foreign {
            path: path.to_path_buf(),
        });
    }
    allowed_to_make(path, config).map(|()| None)
}

fn allowed_to_make(path: &Path, config: &Config) -> Result<(), DataDirError> {
    match config.start {
        Start::Found(_) | Start::Join(_) => Ok(()),
        Start::Restart => Err(DataDirError::NoCluster {
            path: path.to_path_buf(),
        }),
    }
}

fn read_node(path: &Path, config: &Config) -> Result<NodeFile, DataDirError> {
    let node = read_node_file(path)?;
    if node.node_id != config.node_id {
        return Err(DataDirError::OtherNode {
            path: path.to_path_buf(),
            found: node.node_id,
            asked: config.node_id.clone(),
        });
    }
    Ok(node)
}

fn read_node_file(path: &Path) -> Result<NodeFile, DataDirError> {
    let file_path = path.join(NODE);
    let damaged = |reason: String| DataDirError::Damaged {
        path: file_path.clone(),
        reason,
    };
    let mut text = String::new();
    File::open(&file_path)
        .and_then(|file| {
            file.take(limits::NODE_FILE_MAX_BYTES)
                .read_to_string(&mut text)
        })
        .map_err(io("read", &file_path))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    // The format first: a newer file may have other fields.
    let format = value
        .get("format")
        .and_then(serde_json::Value::as_u64)
        .ok_or_else(|| damaged("it names no format".into()))?;
    if format > u64::from(FORMAT) {
        return Err(DataDirError::NewerFormat {
            path: path.to_path_buf(),
            found: format,
        });
    }
    serde_json::from_value(value).map_err(|error| damaged(error.to_string()))
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let lock_path = path.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(io("open", &lock_path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = (&file)
                .take(32)
                .read_to_string(&mut text)
                .ok()
                .and_then(|_| text.trim().parse().ok());
            return Err(DataDirError::InUse {
                path: path.to_path_buf(),
                pid,
            });
        }
        Err(TryLockError::Error(source)) => return Err(io("lock", &lock_path)(source)),
    }
    // For the message of whoever comes second; the lock itself is the kernel's.
    file.set_len(0)
        .and_then(|()| write!(file, "{}", std::process::id()))
        .map_err(io("write", &lock_path))?;
    Ok(file)
}

fn temporary(name: &str) -> String {
    format!("{name}.new")
}

fn write_node(path: &Path, config: &Config) -> Result<NodeFile, DataDirError> {
    let node = NodeFile {
        format: FORMAT,
        node_id: config.node_id.clone(),
        // Zero never names a disk, so that a missing field is recognised.
        disk: rand::random::<u64>().max(1),
        created_ms: wall_ms(),
        cluster: None,
    };
    save_node(path, &node)?;
    // The directory's own entry must survive as well.
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        sync_dir(parent)?;
    }
    Ok(node)
}

/// Notes durably to which cluster a directory that this process holds belongs. What is noted stays: a
/// directory that another cluster's name is in is left as it is.
///
/// # Errors
/// [`DataDirError`]; then nothing is noted.
pub fn remember_cluster(path: &Path, cluster: ClusterId) -> Result<(), DataDirError> {
    let mut node = read_node_file(path)?;
    if node.cluster.is_some() {
        return Ok(());
    }
    node.cluster = Some(cluster);
    save_node(path, &node)
}

/// Replaces `node.json` as a whole.
fn save_node(path: &Path, node: &NodeFile) -> Result<(), DataDirError> {
    let text = serde_json::to_string_pretty(node).expect("a node file is JSON");
    let new = path.join(temporary(NODE));
    let file_path = path.join(NODE);
    let mut file = File::create(&new).map_err(io("create", &new))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(io("write", &new))?;
    std::fs::rename(&new, &file_path).map_err(io("rename", &new))?;
    sync_dir(path)
}

fn sync_dir(path: &Path) -> Result<(), DataDirError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", path))
}

#[cfg(test)]
mod tests;
