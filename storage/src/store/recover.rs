//! Opening a log: what is believed, what is scanned, what is cut.
//!
//! What this file keeps true: the work is bounded by the bytes that the list does not describe;
//! recovered bytes are synced before anyone sees them; a hole below the highest durable end known is
//! damage and stays where it is, one at or above it is a torn tail and cannot come back.

use super::keep::LIST_FILE;
use super::meta::META_FILE;
use super::opening::Opening;
use super::state::{State, Store};
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::extents;
use crate::format::list::{Marks, Totals};
use crate::format::segment::{Owner, SegmentIdent, parse_file_name};
use crate::layout::DAMAGED;
use crate::limits::{
    FORMAT_VERSION, IO_CHUNK_BYTES, IO_DEPTH, MAX_HOLES, MAX_LIST_BYTES, META_SLOT_BYTES,
    TRIM_BLOCK_BYTES,
};
use crate::options::Options;
use crate::scan::{FrameScanner, ScanError, ScanEvent};
use crate::staging::Installed;
use futures::StreamExt as _;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

/// Damage that recovery met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In which segment.
    pub segment: SegmentId,
    /// Position in its file.
    pub at: u64,
    /// First offset that is not readable.
    pub from: Offset,
    /// Offset at which records go on.
    pub until: Offset,
}

/// A torn tail that recovery removed: records that were never acked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// In which segment.
    pub segment: SegmentId,
    /// Position from which on the file was cleared.
    pub at: u64,
    /// Offset of the next record.
    pub end: Offset,
}

/// What opening a log found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments of the log.
    pub segments: usize,
    /// Of those, how many were read instead of believed from the list.
    pub scanned_segments: usize,
    /// Bytes read from segments.
    pub bytes_read: u64,
    /// A torn tail that was removed.
    pub cut: Option<Cut>,
    /// Damage found; it stays, and reads skip it.
    pub damage: Vec<Damage>,
    /// Everything else that was not as a clean close leaves it, for people.
    pub notes: Vec<String>,
}

impl RecoveryReport {
    pub(crate) fn note(&mut self, text: String) {
        if self.notes.len() < MAX_HOLES {
            self.notes.push(text);
        }
    }
}

/// Everything that one look at the directory tells.
struct Found {
    segments: Vec<(SegmentId, u64)>,
    strangers: Vec<String>,
    meta: Option<Vec<u8>>,
    list: Option<Vec<u8>>,
}

impl From<Installed> for Found {
    fn from(known: Installed) -> Self {
        Self {
            segments: known.segments,
            strangers: Vec::new(),
            meta: Some(known.meta),
            list: Some(known.list),
        }
    }
}

fn look(dir: &Path) -> std::io::Result<Found> {
    let mut found = Found {
        segments: Vec::new(),
        strangers: Vec::new(),
        meta: disk::read_small_now(&dir.join(META_FILE), 2 * META_SLOT_BYTES)?,
        list: disk::read_small_now(&dir.join(LIST_FILE), MAX_LIST_BYTES)?,
    };
    for name in disk::list_dir_now(dir)? {
        if let Some(id) = parse_file_name(&name) {
            let len = std::fs::metadata(dir.join(&name))?.len();
            found.segments.push((id, len));
        } else if std::path::Path::new(&name)
            .extension()
            .is_some_and(|e| e == "tmp")
        {
            let _ = std::fs::remove_file(dir.join(&name));
        } else if ![META_FILE, LIST_FILE, "staged.json", "identity", DAMAGED]
            .contains(&name.as_str())
        {
            found.strangers.push(name);
        }
    }
    found.segments.sort_unstable();
    Ok(found)
}

/// Feeds the bytes `from.len..upto` of a file to a scanner; also returns how many bytes were read. Space that
/// was reserved and never written is fed as the zeros that it holds, without reading it.
pub(crate) async fn scan_file(
    file: &Rc<DiskFile>,
    ident: SegmentIdent,
    from: Totals,
    upto: u64,
    sink: &mut dyn FnMut(ScanEvent),
) -> Result<(FrameScanner, u64), StorageError> {
    let mut scanner = FrameScanner::resume(ident, from);
    let fail = |e| scan_error(file.path(), ident, &e);
    let upto = upto.min(file.len().await?);
    let written = extents::written(file.path(), from.len, upto).await?;
    let mut reads = futures::stream::iter(pieces(&written))
        .map(|(pos, len)| async move { file.read(pos, len).await.map(|bytes| (pos, bytes)) })
        .buffered(IO_DEPTH);
    let mut total = 0;
    while let Some(read) = reads.next().await {
        let (pos, bytes) = read?;
        total += bytes.len() as u64;
        feed_zeros(&mut scanner, pos, sink).map_err(fail)?;
        let skip = scanner.fed().saturating_sub(pos) as usize;
        let end = upto.saturating_sub(pos).min(bytes.len() as u64) as usize;
        if skip < end {
            scanner.feed(&bytes[skip..end], sink).map_err(fail)?;
        }
    }
    feed_zeros(&mut scanner, upto, sink).map_err(fail)?;
    Ok((scanner, total))
}

/// Aligned requests, none of them too long, that cover all of these parts in order.
fn pieces(parts: &[Range<u64>]) -> Vec<(u64, usize)> {
    let mut out = Vec::new();
    let mut done = 0;
    for part in parts {
        let begin = part.start - part.start % TRIM_BLOCK_BYTES;
        let end = part.end.next_multiple_of(TRIM_BLOCK_BYTES);
        done = begin.max(done);
        while done < end {
            let len = (end - done).min(IO_CHUNK_BYTES as u64);
            out.push((done, len as usize));
            done += len;
        }
    }
    out
}

fn feed_zeros(
    scanner: &mut FrameScanner,
    upto: u64,
    sink: &mut dyn FnMut(ScanEvent),
) -> Result<(), ScanError> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while scanner.fed() < upto {
        let len = (upto - scanner.fed()).min(ZEROS.len() as u64) as usize;
        scanner.feed(&ZEROS[..len], sink)?;
    }
    Ok(())
}

pub(crate) fn scan_error(path: &Path, ident: SegmentIdent, error: &ScanError) -> StorageError {
    match error {
        ScanError::Newer(found) => StorageError::NewerVersion {
            path: path.to_path_buf(),
            found: *found,
            supported: FORMAT_VERSION,
        },
        ScanError::Foreign(found) => StorageError::Foreign {
            path: path.to_path_buf(),
            found: found.to_string(),
            expected: ident.to_string(),
        },
    }
}

impl Store {
    /// Opens what is in `dir`, recovering it first. What is `known` of it is not looked up.
    pub(crate) async fn open(
        dir: &Path,
        owner: Owner,
        epoch: Epoch,
        options: &Options,
        known: Option<Installed>,
    ) -> Result<(Rc<Self>, RecoveryReport), StorageError> {
        let path = dir.to_path_buf();
        let found = match known {
            Some(known) => known.into(),
            None => disk::blocking("look into", dir, move || look(&path)).await?,
        };
        let mut opening = Opening {
            dir,
            owner,
            report: RecoveryReport::default(),
            marks: Marks::new(),
            segments: Vec::new(),
            active: false,
            allocated: 0,
        };
        let meta = opening.meta(found.meta.as_deref(), !found.segments.is_empty())?;
        let list = opening.list(found.list.as_deref(), !found.segments.is_empty())?;
        for name in &found.strangers {
            opening
                .report
                .note(format!("{name}: unknown file, left alone"));
        }
        opening
            .segments(&found.segments, list, &meta, epoch)
            .await?;
        opening.check_order();
        let mut report = opening.report;
        report.segments = opening.segments.len();
        let mut state = State::empty(options.cache_bytes);
        let newest = meta.newest;
        let first_base = opening.segments.first().map_or(Offset(0), |s| s.id.base);
        let last_end = opening.segments.last().map_or(Offset(0), |s| s.totals.end);
        state.start = newest.map_or(first_base, |m| m.start);
        state.durable = last_end
            .max(state.start)
            .max(newest.map_or(Offset(0), |m| m.durable_end));
        if state.durable > last_end && !opening.segments.is_empty() && state.durable > state.start {
            report.note(format!(
                "records {last_end} up to {} are missing at the end",
                state.durable
            ));
        }
        state.next = state.durable;
        state.fence = newest
            .and_then(|m| m.fence)
            .filter(|(_, to)| state.durable <= *to)
            .map(|(from, to)| (from.min(state.durable), to));
        let hwm = state.hwm();
        state.frontier = newest
            .map_or(state.start, |m| m.frontier)
            .max(state.start)
            .min(hwm.max(state.start));
        state.install = newest.and_then(|m| m.install);
        state.meta_generation = newest.map_or(0, |m| m.generation);
        state.marks = opening.marks.clone();
        state.durable_marks = opening.marks;
        state.listed_len = opening.segments.last().map_or(0, |s| s.totals.len);
        state.segments = opening.segments;
        state.active = opening.active;
        state.allocated = opening.allocated;
        state.extents_from = opening.allocated;
        let relist = report.scanned_segments > 0;
        let store = Self::new(dir, owner, epoch, options, state);
        if relist {
            store.list_later();
        }
        Ok((store, report))
    }
}

/// Sums up to the end of the block in which `totals` ends; the rest of the block is zeros.
pub(crate) fn pad(totals: Totals, block: u64) -> Totals {
    let len = totals.len.next_multiple_of(block);
    let zeros = vec![0; (len - totals.len) as usize];
    Totals {
        len,
        digest: crc32c::crc32c_append(totals.digest, &zeros),
        ..totals
    }
}
