//! Readers of small files that are nobody's interface, opened to the fuzzers of test builds.
//!
//! What this file keeps true: it adds nothing; what a fuzzer calls here is what opening a directory calls.

use crate::error::StorageError;
use crate::format::FormatError;
use crate::format::list::{Marks, Totals};
use crate::format::record::Record;
use crate::staging::Saved;
use crate::wal::{self, WalEntry};
use narad_core::copy::SegmentId;
use narad_core::ids::WalId;
use std::path::Path;

/// Reads the identity file of a WAL.
///
/// # Errors
/// [`FormatError`] when the bytes are none that this version knows.
pub fn wal_identity(bytes: &[u8]) -> Result<WalId, FormatError> {
    wal::decode_identity(bytes)
}

/// The bytes of the identity file of a WAL.
#[must_use]
pub fn wal_identity_bytes(id: WalId) -> Vec<u8> {
    wal::encode_identity(id)
}

/// The entry that a record of a WAL's log is; `None` when it is none.
#[must_use]
pub fn wal_entry(record: &Record) -> Option<WalEntry> {
    WalEntry::from_record(record.as_ref())
}

/// The record that an entry is in a WAL's log.
#[must_use]
pub fn wal_record(entry: &WalEntry) -> Record {
    let batch = wal::entry_batch(std::slice::from_ref(entry), 0);
    batch.to_records().remove(0)
}

/// What `staged.json` tells of the copies in progress, and its bytes written again.
pub type Staged = (Vec<(SegmentId, Totals)>, Marks, Vec<u8>);

/// Reads `staged.json`. One that cannot be read counts as nothing staged.
///
/// # Errors
/// [`StorageError::NewerVersion`].
pub fn staged(bytes: &[u8]) -> Result<Staged, StorageError> {
    let saved = Saved::decode(Path::new("staged.json"), bytes)?;
    let segments = saved.segments.iter().map(|s| (s.id(), s.totals()));
    Ok((segments.collect(), saved.marks(), saved.encode()))
}
