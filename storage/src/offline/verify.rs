//! `narad verify`: every checksum of a data directory.
//!
//! What this file keeps true: a directory that is fine has an empty list of problems; a torn tail, which
//! recovery removes, is told apart from damage, which stays.

use super::{owner_of, scan};
use crate::disk::{list_dir_now, read_small_now};
use crate::error::StorageError;
use crate::format::FormatError;
use crate::format::list::{ListEntry, SegmentList};
use crate::format::meta::{self, Meta};
use crate::format::segment::{Owner, SegmentIdent, file_name, parse_file_name};
use crate::limits::{FORMAT_VERSION, MAX_LIST_BYTES, META_SLOT_BYTES};
use crate::scan::{Hole, ScanEvent};
use crate::store::keep::LIST_FILE;
use crate::store::meta::META_FILE;
use crate::wal::DAMAGED;
use narad_core::copy::SegmentId;
use narad_core::ids::Offset;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What one log directory (a copy, a copy in progress, a WAL) holds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogReport {
    /// The directory.
    pub path: PathBuf,
    /// Whose it is.
    pub owner: String,
    /// Segment files.
    pub segments: usize,
    /// Readable records.
    pub records: u64,
    /// Bytes of whole frames and their padding.
    pub bytes: u64,
    /// First offset that may be read.
    pub start: u64,
    /// Offset after the last record.
    pub end: u64,
    /// The consumers' committed offset, as last saved.
    pub frontier: u64,
    /// Records that are damaged or missing.
    pub missing: u64,
    /// Bytes of a torn tail: recovery removes them, no acked record is in them.
    pub torn_bytes: u64,
    /// Damage, one line each.
    pub problems: Vec<String>,
    /// Other things worth knowing.
    pub notes: Vec<String>,
}

/// What a data directory holds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Its logs.
    pub logs: Vec<LogReport>,
}

impl Report {
    /// No damage was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.logs.iter().all(|l| l.problems.is_empty())
    }
}

/// Checks every log under `dir`: a data directory, or the directory of one copy or WAL. Changes nothing;
/// a node that is running makes torn tails appear that are none.
///
/// # Errors
/// The disk's error, [`StorageError::NewerVersion`] or [`StorageError::Foreign`]. Damage is in the report.
pub fn verify(dir: &Path) -> Result<Report, StorageError> {
    let mut report = Report::default();
    if owner_of(dir).is_some() {
        report.logs.push(one(dir)?);
        return Ok(report);
    }
    let list = |path: &Path| list_dir_now(path).map_err(|e| StorageError::io("list", path, e));
    for group in ["partitions", "staging", "aside"] {
        for name in list(&dir.join(group))? {
            let path = dir.join(group).join(name);
            if owner_of(&path).is_some() {
                report.logs.push(one(&path)?);
            }
        }
    }
    for shard in list(&dir.join("shards"))? {
        let path = dir.join("shards").join(shard).join("wal");
        for path in [path.join(DAMAGED), path] {
            if path.is_dir() && owner_of(&path).is_some() {
                report.logs.push(one(&path)?);
            }
        }
    }
    Ok(report)
}

fn newer(path: &Path, found: u32) -> StorageError {
    StorageError::NewerVersion {
        path: path.to_path_buf(),
        found,
        supported: FORMAT_VERSION,
    }
}

fn read_meta(dir: &Path, out: &mut LogReport) -> Result<Option<Meta>, StorageError> {
    let path = dir.join(META_FILE);
    let bytes = read_small_now(&path, 2 * META_SLOT_BYTES)
        .map_err(|e| StorageError::io("read", &path, e))?;
    match meta::decode_file(&bytes.unwrap_or_default()) {
        Ok(file) => {
            if file.damaged > 0 {
                // One slot is torn by a crash in the middle of a write; the other is whole.
                out.notes
                    .push(format!("meta: {} damaged slot(s)", file.damaged));
            }
            Ok(file.newest)
        }
        Err(FormatError::Newer(version)) => Err(newer(&path, version)),
        Err(FormatError::Damaged(_)) => Ok(None),
    }
}

fn read_list(dir: &Path, out: &mut LogReport) -> Result<Vec<ListEntry>, StorageError> {
    let path = dir.join(LIST_FILE);
    let bytes =
        read_small_now(&path, MAX_LIST_BYTES).map_err(|e| StorageError::io("read", &path, e))?;
    match bytes.map(|b| SegmentList::decode(&b)) {
        None => Ok(Vec::new()),
        Some(Ok(list)) => Ok(list.entries),
        Some(Err(FormatError::Newer(version))) => Err(newer(&path, version)),
        Some(Err(FormatError::Damaged(what))) => {
            out.problems.push(format!("{LIST_FILE}: {what}"));
            Ok(Vec::new())
        }
    }
}

fn one(dir: &Path) -> Result<LogReport, StorageError> {
    let Some(owner) = owner_of(dir) else {
        return Err(StorageError::damaged(dir, "not the directory of a log"));
    };
    let mut out = LogReport {
        path: dir.to_path_buf(),
        owner: owner.to_string(),
        ..LogReport::default()
    };
    let meta = read_meta(dir, &mut out)?;
    let list = read_list(dir, &mut out)?;
    let names = list_dir_now(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let mut ids: Vec<SegmentId> = names.iter().filter_map(|n| parse_file_name(n)).collect();
    ids.sort_unstable();
    out.segments = ids.len();
    out.start = meta.map_or(ids.first().map_or(0, |id| id.base.0), |m| m.start.0);
    out.frontier = meta.map_or(out.start, |m| m.frontier.0);
    out.end = out.start;
    for entry in &list {
        if !ids.contains(&entry.id) && entry.totals.end.0 > out.start {
            out.problems
                .push(format!("{}: the file is gone", file_name(entry.id)));
        }
    }
    let known = meta.map_or(Offset(0), |m| m.durable_end);
    for (i, id) in ids.iter().enumerate() {
        let entry = list.iter().find(|e| e.id == *id);
        let next = ids.get(i + 1).map(|n| n.base);
        segment(dir, owner, *id, entry, next, known, &mut out)?;
    }
    if matches!(owner, Owner::Wal(_)) {
        // Entries that were delivered go with their segments.
        out.end = out.end.max(out.frontier);
    }
    if out.end < known.0 {
        out.missing = out.missing.saturating_add(known.0 - out.end);
        out.problems.push(format!(
            "offsets {} to {known} are missing at the end",
            out.end
        ));
        out.end = known.0;
    }
    Ok(out)
}

fn segment(
    dir: &Path,
    owner: Owner,
    id: SegmentId,
    entry: Option<&ListEntry>,
    next: Option<Offset>,
    known: Offset,
    out: &mut LogReport,
) -> Result<(), StorageError> {
    let name = file_name(id);
    let path = dir.join(&name);
    let len = std::fs::metadata(&path)
        .map_err(|e| StorageError::io("look at", &path, e))?
        .len();
    let sealed = entry.filter(|e| !e.active);
    let upto = sealed.map_or(len, |e| e.totals.len.min(len));
    let mut holes: Vec<Hole> = Vec::new();
    let mut repeated = 0u64;
    let ident = SegmentIdent { owner, id };
    let mut sink = |event| match event {
        ScanEvent::Frame { .. } => {}
        ScanEvent::Hole(hole) => holes.push(hole),
        ScanEvent::Repeated { .. } => repeated += 1,
    };
    let mut scanner = scan(&path, ident, upto, &mut sink)?;
    scanner.finish(&mut sink);
    let edge = *scanner.edge();
    let durable = known
        .max(scanner.max_durable_end())
        .max(entry.map_or(Offset(0), |e| e.totals.end));
    if scanner.header_damaged() && edge.records > 0 {
        out.problems.push(format!("{name}: damaged header"));
    }
    if repeated > 0 {
        out.problems
            .push(format!("{name}: {repeated} frame(s) repeat offsets"));
    }
    let newest = next.is_none() && sealed.is_none();
    let torn = holes
        .iter()
        .find(|h| newest && h.from >= durable && h.until != Some(h.from));
    let (mut totals, cut) = torn.map_or((edge, u64::MAX), |h| (h.before, h.before.len));
    out.torn_bytes += torn.map_or(0, |h| h.to.max(edge.len) - h.before.len);
    for hole in holes.iter().filter(|h| h.before.len < cut) {
        if hole.until.is_none() && hole.from >= durable {
            // Behind the last frame of a sealed segment stands its footer.
            continue;
        }
        out.problems.push(format!(
            "{name}: byte {}: offsets {} to {} are damaged",
            hole.before.len,
            hole.from,
            hole.until.unwrap_or(hole.from)
        ));
    }
    if let Some(entry) = sealed {
        if len < entry.totals.len {
            out.problems.push(format!(
                "{name}: {len} bytes long, the list says {}",
                entry.totals.len
            ));
        } else if scanner.digest() != entry.totals.digest {
            out.problems.push(format!(
                "{name}: digest {:08x}, the list says {:08x}",
                scanner.digest(),
                entry.totals.digest
            ));
        }
        if totals.end < entry.totals.end {
            totals.missing += entry.totals.end.0 - totals.end.0;
            out.problems.push(format!(
                "offsets {} to {} are missing behind {name}",
                totals.end, entry.totals.end
            ));
            totals.end = entry.totals.end;
        }
    }
    if let Some(next) = next
        && totals.end < next
        && matches!(owner, Owner::Partition(_))
    {
        totals.missing += next.0 - totals.end.0;
        out.problems.push(format!(
            "offsets {} to {next} are missing behind {name}",
            totals.end
        ));
    }
    out.records += totals.records;
    out.missing = out.missing.saturating_add(totals.missing);
    out.bytes += totals.len;
    out.end = out.end.max(totals.end.0);
    Ok(())
}
