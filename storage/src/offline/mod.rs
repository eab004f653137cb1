//! Looking at a data directory without a node: nothing is changed, no executor is needed.
//!
//! What this module keeps true: it uses the same readers as recovery, and says everything that recovery
//! would say, and more: every byte of every segment is checked.

mod dump;
mod verify;

pub use dump::dump;
pub use verify::{LogReport, Report, verify};

use crate::error::StorageError;
use crate::format::list::Totals;
use crate::format::segment::{Owner, SegmentIdent};
use crate::limits::IO_CHUNK_BYTES;
use crate::scan::{FrameScanner, ScanEvent};
use crate::store::recover::scan_error;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Scans the first `upto` bytes of a segment's file.
fn scan(
    path: &Path,
    ident: SegmentIdent,
    upto: u64,
    sink: &mut dyn FnMut(ScanEvent),
) -> Result<FrameScanner, StorageError> {
    let fail = |e| StorageError::io("read", path, e);
    let file = File::open(path).map_err(fail)?;
    let mut scanner = FrameScanner::resume(ident, Totals::empty(ident.id.base));
    let mut buffer = vec![0; IO_CHUNK_BYTES];
    let mut at = 0;
    while at < upto {
        let want = (upto - at).min(buffer.len() as u64) as usize;
        let got = file.read_at(&mut buffer[..want], at).map_err(fail)?;
        if got == 0 {
            break;
        }
        scanner
            .feed(&buffer[..got], sink)
            .map_err(|e| scan_error(path, ident, &e))?;
        at += got as u64;
    }
    Ok(scanner)
}

/// Whose directory this is: by its name, or, of a WAL, by its identity file.
fn owner_of(dir: &Path) -> Option<Owner> {
    let name = dir.file_name()?.to_str()?;
    if let Some(key) = crate::layout::key_of_name(name) {
        return Some(Owner::Partition(key));
    }
    crate::wal::known_identity(dir).ok()?.ok()?.map(Owner::Wal)
}
