//! What can go wrong on the disk, as types that say where it happened and what to do next.
//!
//! What this file keeps true: every error names the file or directory, tells "nothing was changed"
//! apart from "the log is stopped", and never hides the operating system's own error.

use narad_core::ids::{CopyId, Offset, PartitionKey};
use std::io;
use std::path::{Path, PathBuf};

/// A failure of a storage operation outside the append path.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused an operation.
    #[error("{op} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was being done.
        op: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A file was written by a newer version of this program.
    #[error(
        "{}: format version {found} is newer than {supported}, which this program knows; \
         start the version that wrote it, nothing was changed",
        path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// A file belongs to something else: another topic incarnation, partition or kind.
    #[error(
        "{}: belongs to {found}, expected {expected}; move the file out of this directory",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What its header says.
        found: String,
        /// What the directory says.
        expected: String,
    },
    /// Damage that does not allow the operation; reads of undamaged parts still work.
    #[error("{}: {what}; `narad verify` on the data directory lists all damage", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The copy does not exist.
    #[error("{}: there is no copy {copy} here", path.display())]
    NoSuchCopy {
        /// The copy asked for.
        copy: CopyId,
        /// Where it would be.
        path: PathBuf,
    },
    /// The copy (or WAL) exists already.
    #[error("{}: exists already", path.display())]
    Exists {
        /// Where it is.
        path: PathBuf,
    },
    /// The log has stopped or was closed.
    #[error("{}: stopped: {reason}; reopen it to recover", path.display())]
    Closed {
        /// Directory of the log.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(code) if code == nix::libc::ENOSPC => " (free space on this disk; no data was lost)",
        Some(code) if code == nix::libc::EINVAL => {
            " (does the file system support O_DIRECT? tmpfs does not)"
        }
        Some(code) if code == nix::libc::EIO => " (the disk reports a fault: check its health)",
        _ => "",
    }
}

impl StorageError {
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            op,
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_path_buf(),
            what: what.into(),
        }
    }

    /// The system's error, where there was one.
    #[must_use]
    pub fn os_error(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.os_error().is_some_and(is_full)
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::ENOSPC)
        || error.raw_os_error() == Some(nix::libc::EDQUOT)
        || error.kind() == io::ErrorKind::StorageFull
}

/// Why an append was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log takes no appends any more: a write or sync failed, or it was closed. What became of
    /// this append is unknown: it may reappear after recovery.
    #[error("the log takes no appends: {reason}; reopen it to recover")]
    Closed {
        /// Why it stopped.
        reason: String,
    },
    /// There is no room: the disk is (nearly) full or the WAL's cap is reached. Nothing was written.
    #[error("no room for {needed} bytes ({available} available); free space or raise the cap")]
    Full {
        /// Bytes wanted.
        needed: u64,
        /// Bytes that may still be used.
        available: u64,
    },
    /// Too many bytes wait to be written. Nothing was written; try again later.
    #[error("{queued} bytes wait to be written (at most {limit}); try again")]
    Busy {
        /// Bytes in the queue.
        queued: usize,
        /// The bound.
        limit: usize,
    },
    /// A record or the whole batch is larger than allowed. Nothing was written; split the batch.
    #[error("{bytes} bytes are more than the {limit} allowed; split the batch")]
    TooLarge {
        /// Size found.
        bytes: usize,
        /// Size allowed.
        limit: usize,
    },
}

/// A failure of the target side of a move.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A chunk does not continue what is staged. Nothing was taken; ask for the staged length.
    #[error("chunk at {at} of segment {segment:?} does not continue the {staged} bytes staged")]
    NotContiguous {
        /// Which segment.
        segment: narad_core::copy::SegmentId,
        /// Position of the chunk.
        at: u64,
        /// Bytes staged.
        staged: u64,
    },
    /// The disk would be left with less free space than its reserve. Nothing of the chunk was taken.
    #[error(
        "no room for {needed} bytes of the copy ({available} available beside the reserve); \
         free space on this disk, the copy then goes on from where it is"
    )]
    Full {
        /// Bytes wanted.
        needed: u64,
        /// Bytes that may still be used.
        available: u64,
    },
    /// The received bytes cannot belong to this segment. Nothing of the chunk counts; restart the
    /// segment.
    #[error("segment {segment:?} at byte {at}: {what}")]
    BadBytes {
        /// Which segment.
        segment: narad_core::copy::SegmentId,
        /// Position in the segment.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// What is staged differs from the capture; nothing was installed. Compare prefixes and copy the
    /// difference again.
    #[error("staged copy of {key} differs from the capture: {what}")]
    Mismatch {
        /// The partition.
        key: PartitionKey,
        /// Where they differ.
        what: String,
    },
    /// The staged records end before the high-watermark that must be reproduced.
    #[error("staged copy of {key} ends at {end}, below the high-watermark {hwm}")]
    Short {
        /// The partition.
        key: PartitionKey,
        /// Offset after the last staged record.
        end: Offset,
        /// What it must reach.
        hwm: Offset,
    },
    /// A real copy of the partition is on this node (rule R1): salvage and reclaim it first.
    #[error(
        "{copy} is on this node; it must be salvaged and reclaimed before another is installed"
    )]
    RealCopyExists {
        /// The copy found.
        copy: CopyId,
    },
    /// `install` was called before `finish` succeeded.
    #[error("the staged copy of {key} is not finished")]
    NotFinished {
        /// The partition.
        key: PartitionKey,
    },
}
