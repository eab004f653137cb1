//! Partition logs, copies in progress and the ingress WAL, on O_DIRECT io_uring.
//!
//! What this crate keeps true: acked means durable; what recovery or a move makes visible was acked or
//! at least sent by a client; damage is reported and skipped, never repaired by cutting; after a failed
//! write or sync a log takes no more appends until it is reopened. Everything runs on the executor that
//! opened it; nothing is `Send` but records and batches of them. `FORMAT.md` has the bytes of every file.

#[cfg(test)]
narad_wire::runtime_hooks!();

pub mod error;
pub mod fault;
mod files;
pub mod format;
pub mod layout;
pub mod limits;
pub mod log;
pub mod memory;
pub mod offline;
pub mod options;
#[cfg(feature = "failpoints")]
pub mod readers;
pub mod scan;
pub mod staging;
pub mod wal;

mod aligned;
mod disk;
mod extents;
mod removal;
mod store;

pub use disk::prepare_executor;
pub use error::{AppendError, StageError, StorageError};
pub use files::{more_open_files_than, open_files};
pub use format::batch::{Batch, StoredRecord};
pub use format::record::{Record, RecordRef};
pub use layout::{FoundCopy, FoundStaging};
pub use log::{Log, Pin, Ticket};
pub use options::Options;
pub use scan::{FrameScanner, ScanEvent};
pub use staging::{Installed, StageBuf, Staging, WriteGate, installed_manifest, roll_back_install};
pub use store::append::Appended;
pub use store::keep::Age;
pub use store::read::ReadBatch;
pub use store::recover::{Cut, Damage, RecoveryReport};
pub use store::scrub::ScrubReport;
pub use store::state::LogStats;
pub use wal::{Wal, WalEntry, WalOptions, WalPending, WalRecovery};
