//! What can go wrong with the files of Raft, and what the operator does about it.

use std::io;
use std::path::{Path, PathBuf};

/// A failure of the Raft directory. Every one that stops a node says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation.
    #[error("{path}: {action}: {source}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Bytes that were durable once do not check out. Nothing was changed.
    #[error(
        "{path}: corrupt at byte {offset}: {what}. Nothing was changed. This node's Raft state cannot be trusted: check \
         the disk; then, if a majority of the other voters is healthy, move {dir} away, remove the node from the cluster and \
         join it again under the same data directory; otherwise restore {dir} from a backup taken while the node was stopped",
        path = .path.display(), dir = .path.parent().unwrap_or(Path::new(".")).display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What was expected there.
        what: String,
    },
    /// The file was written by a later release.
    #[error("{path}: written in format {found}, this release reads up to {supported}: start the release that wrote it, or a later one", path = .path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest format version known here.
        supported: u32,
    },
    /// The directory belongs to another node.
    #[error("{path}: belongs to node {found:?}, but this node is {wanted:?}: start it with --node-id {found}, or give this node a data directory of its own", path = .path.display())]
    WrongNode {
        /// The identity file.
        path: PathBuf,
        /// Whose directory it is.
        found: String,
        /// Who wanted to open it.
        wanted: String,
    },
    /// A node id that does not fit the vote file.
    #[error("a node id has 1 to {max} bytes, this one has {bytes}: choose a shorter --node-id", max = super::MAX_NODE_ID_BYTES)]
    BadNodeId {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A value that the format has no room for.
    #[error("{path}: {what} has {bytes} bytes, the format holds at most {max}", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// An earlier write or sync failed; what is on disk is unknown until it is recovered.
    #[error(
        "the Raft log stopped after a failed write ({0}): restart the node once the disk works again; recovery checks what was written"
    )]
    Stopped(String),
    /// openraft asked for something that would leave a hole in the log.
    #[error("entry {got} does not follow entry {last}")]
    Hole {
        /// Last entry in the log.
        last: u64,
        /// Index of the entry that was to be appended.
        got: u64,
    },
}

impl StoreError {
    /// For `map_err`: an I/O error at `path` while doing `action`.
    pub(super) fn io<E: Into<io::Error>>(
        path: &Path,
        action: &'static str,
    ) -> impl FnOnce(E) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io {
            path,
            action,
            source: source.into(),
        }
    }

    /// A [`StoreError::Corrupt`].
    pub(super) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt {
            path: path.to_owned(),
            offset,
            what: what.into(),
        }
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> io::Error {
        io::Error::other(error)
    }
}
