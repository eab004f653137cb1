//! Opening a log: what is believed, what is scanned, what is cut.
//!
//! What this file keeps true: the work is bounded by the bytes that the list does not describe;
//! recovered bytes are synced before anyone sees them; a hole below the highest durable end known is
//! damage and stays where it is, one at or above it is a torn tail and cannot come back.

use super::append::{note_mark, push_point};
use super::keep::LIST_FILE;
use super::meta::META_FILE;
use super::repair;
use super::state::{Segment, State, Store};
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::FormatError;
use crate::format::list::{IndexPoint, ListEntry, Marks, SegmentList, Totals};
use crate::format::meta::{self, MetaFile};
use crate::format::segment::{Owner, SegmentIdent, file_name, parse_file_name};
use crate::limits::{
    FORMAT_VERSION, IO_CHUNK_BYTES, IO_DEPTH, MAX_HOLES, MAX_LIST_BYTES, META_SLOT_BYTES,
    TRIM_BLOCK_BYTES,
};
use crate::options::Options;
use crate::scan::{FrameScanner, Hole, ScanError, ScanEvent};
use futures::StreamExt as _;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, Origin};
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
    fn note(&mut self, text: String) {
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
        } else if ![META_FILE, LIST_FILE, "staged.json", "identity"].contains(&name.as_str()) {
            found.strangers.push(name);
        }
    }
    found.segments.sort_unstable();
    Ok(found)
}

/// Feeds the bytes `from.len..upto` of a file to a scanner; also returns how many bytes were read.
pub(crate) async fn scan_file(
    file: &Rc<DiskFile>,
    ident: SegmentIdent,
    from: Totals,
    upto: u64,
    sink: &mut dyn FnMut(ScanEvent),
) -> Result<(FrameScanner, u64), StorageError> {
    let mut scanner = FrameScanner::resume(ident, from);
    let begin = from.len - from.len % TRIM_BLOCK_BYTES;
    let pieces = (begin..upto).step_by(IO_CHUNK_BYTES);
    let mut reads = futures::stream::iter(pieces)
        .map(|pos| {
            let len = (upto - pos).min(IO_CHUNK_BYTES as u64);
            let len = len.next_multiple_of(TRIM_BLOCK_BYTES) as usize;
            async move { file.read(pos, len).await.map(|bytes| (pos, bytes)) }
        })
        .buffered(IO_DEPTH);
    let mut total = 0;
    while let Some(read) = reads.next().await {
        let (pos, bytes) = read?;
        total += bytes.len() as u64;
        let skip = from.len.saturating_sub(pos) as usize;
        let end = (upto - pos).min(bytes.len() as u64) as usize;
        if skip < end {
            scanner
                .feed(&bytes[skip..end], sink)
                .map_err(|e| scan_error(file.path(), ident, &e))?;
        }
    }
    Ok((scanner, total))
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

/// What scanning one segment gave.
struct Scanned {
    totals: Totals,
    index: Vec<IndexPoint>,
    origins: Vec<(Origin, Offset)>,
    holes: Vec<Hole>,
    last_frame: Option<u64>,
    max_durable_end: Offset,
}

struct Opening<'a> {
    dir: &'a Path,
    owner: Owner,
    report: RecoveryReport,
    marks: Marks,
    segments: Vec<Segment>,
    active: bool,
    allocated: u64,
}

impl Store {
    /// Opens what is in `dir`, recovering it first.
    pub(crate) async fn open(
        dir: &Path,
        owner: Owner,
        epoch: Epoch,
        options: &Options,
    ) -> Result<(Rc<Self>, RecoveryReport), StorageError> {
        let path = dir.to_path_buf();
        let found = disk::blocking("look into", dir, move || look(&path)).await?;
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
        let relist = report.scanned_segments > 0;
        let store = Self::new(dir, owner, epoch, options, state);
        if relist {
            store.list_later();
        }
        Ok((store, report))
    }
}

impl Opening<'_> {
    fn newer(&self, name: &str, found: u32) -> StorageError {
        StorageError::NewerVersion {
            path: self.dir.join(name),
            found,
            supported: FORMAT_VERSION,
        }
    }

    fn foreign(&self, name: &str, found: Owner) -> StorageError {
        StorageError::Foreign {
            path: self.dir.join(name),
            found: found.to_string(),
            expected: self.owner.to_string(),
        }
    }

    fn meta(&mut self, bytes: Option<&[u8]>, used: bool) -> Result<MetaFile, StorageError> {
        let file = match meta::decode_file(bytes.unwrap_or(&[])) {
            Ok(file) => file,
            Err(FormatError::Newer(found)) => return Err(self.newer(META_FILE, found)),
            Err(FormatError::Damaged(_)) => MetaFile::default(),
        };
        if let Some(meta) = file.newest
            && meta.owner != self.owner
        {
            return Err(self.foreign(META_FILE, meta.owner));
        }
        if file.damaged > 0 {
            self.report
                .note(format!("meta: {} damaged slot(s)", file.damaged));
        }
        if file.newest.is_none() && used {
            self.report
                .note("meta: none; everything recovered is visible and is delivered again".into());
        }
        Ok(file)
    }

    fn list(
        &mut self,
        bytes: Option<&[u8]>,
        used: bool,
    ) -> Result<Option<SegmentList>, StorageError> {
        let Some(bytes) = bytes else {
            if used {
                self.report
                    .note(format!("{LIST_FILE}: none; all segments are read"));
            }
            return Ok(None);
        };
        match SegmentList::decode(bytes) {
            Ok(list) if list.owner == self.owner => Ok(Some(list)),
            Ok(list) => Err(self.foreign(LIST_FILE, list.owner)),
            Err(FormatError::Newer(found)) => Err(self.newer(LIST_FILE, found)),
            Err(FormatError::Damaged(what)) => {
                self.report
                    .note(format!("{LIST_FILE}: {what}; all segments are read"));
                Ok(None)
            }
        }
    }

    async fn segments(
        &mut self,
        files: &[(SegmentId, u64)],
        list: Option<SegmentList>,
        meta: &MetaFile,
        epoch: Epoch,
    ) -> Result<(), StorageError> {
        let start = meta.newest.map_or(Offset(0), |m| m.start);
        let (entries, marks) = list.map_or_else(Default::default, |l| (l.entries, l.marks));
        self.marks = marks;
        self.note_lost(&entries, files, start);
        for (i, (id, len)) in files.iter().enumerate() {
            let entry = entries.iter().find(|e| e.id == *id);
            if id.epoch > epoch {
                return Err(StorageError::damaged(
                    &self.dir.join(file_name(*id)),
                    format!("is of epoch {}, this copy is of epoch {epoch}", id.epoch),
                ));
            }
            let newest = i + 1 == files.len();
            match entry {
                Some(e) if !e.active && e.totals.len <= *len => {
                    if e.totals.end <= start && self.owner_is_partition() {
                        self.drop_file(*id).await?;
                        continue;
                    }
                    self.believe(e);
                }
                _ if newest => {
                    let known = meta.newest.map_or(Offset(0), |m| m.durable_end);
                    self.newest(*id, *len, entry, known, epoch).await?;
                }
                _ => self.inner(*id, *len, entry, files[i + 1].0.base).await?,
            }
        }
        Ok(())
    }

    const fn owner_is_partition(&self) -> bool {
        matches!(self.owner, Owner::Partition(_))
    }

    fn note_lost(&mut self, entries: &[ListEntry], files: &[(SegmentId, u64)], start: Offset) {
        for entry in entries {
            if entry.totals.end > start
                && self.owner_is_partition()
                && !files.iter().any(|(id, _)| *id == entry.id)
            {
                self.report.damage.push(Damage {
                    segment: entry.id,
                    at: 0,
                    from: entry.id.base,
                    until: entry.totals.end,
                });
                self.report
                    .note(format!("{}: the file is gone", file_name(entry.id)));
            }
        }
    }

    fn believe(&mut self, entry: &ListEntry) {
        self.segments.push(Segment {
            id: entry.id,
            totals: entry.totals,
            index: Vec::new(),
            unindexed: entry.totals.len,
            footed: false,
            file: None,
        });
    }

    async fn drop_file(&mut self, id: SegmentId) -> Result<(), StorageError> {
        disk::remove_file(&self.dir.join(file_name(id))).await?;
        disk::sync_dir(self.dir).await
    }

    async fn scan(
        &mut self,
        file: &Rc<DiskFile>,
        id: SegmentId,
        from: Totals,
        upto: u64,
    ) -> Result<Scanned, StorageError> {
        let ident = SegmentIdent {
            owner: self.owner,
            id,
        };
        let mut out = Scanned {
            totals: from,
            index: Vec::new(),
            origins: Vec::new(),
            holes: Vec::new(),
            last_frame: None,
            max_durable_end: Offset(0),
        };
        let mut repeated = 0u64;
        let mut sink = |event| match event {
            ScanEvent::Frame {
                pos,
                header,
                before,
            } => {
                out.last_frame = Some(pos);
                let point = IndexPoint {
                    base: header.base,
                    pos,
                    time_before: before.last_time,
                };
                push_point(&mut out.index, point);
                out.origins.extend(header.origin.map(|o| (o, header.end())));
            }
            ScanEvent::Hole(hole) if out.holes.len() < MAX_HOLES => out.holes.push(hole),
            ScanEvent::Hole(hole) => {
                if let Some(last) = out.holes.last_mut() {
                    last.to = hole.to;
                    last.until = hole.until;
                }
            }
            ScanEvent::Repeated { .. } => repeated += 1,
        };
        let (mut scanner, bytes) = scan_file(file, ident, from, upto, &mut sink).await?;
        scanner.finish(&mut sink);
        out.totals = *scanner.edge();
        out.max_durable_end = scanner.max_durable_end();
        self.report.bytes_read += bytes;
        self.report.scanned_segments += 1;
        if scanner.header_damaged() && out.last_frame.is_some() {
            self.report
                .note(format!("{}: damaged header", file_name(id)));
        }
        if repeated > 0 {
            self.report.note(format!(
                "{}: {repeated} frame(s) repeat offsets, not used",
                file_name(id)
            ));
        }
        Ok(out)
    }

    fn start_of(id: SegmentId, len: u64, entry: Option<&ListEntry>) -> Totals {
        entry
            .filter(|e| e.totals.len <= len)
            .map_or_else(|| Totals::empty(id.base), |e| e.totals)
    }

    /// A segment that has a successor but is not listed as sealed: everything in it was acked.
    async fn inner(
        &mut self,
        id: SegmentId,
        len: u64,
        entry: Option<&ListEntry>,
        next_base: Offset,
    ) -> Result<(), StorageError> {
        let file = DiskFile::open(&self.dir.join(file_name(id))).await?;
        let from = Self::start_of(id, len, entry);
        let scanned = self.scan(&file, id, from, len).await?;
        if scanned.totals.end == id.base && next_base == id.base {
            return self.drop_file(id).await;
        }
        self.take(id, from, scanned, file.block(), |h| {
            // What follows the last frame is the footer, or the rest of a lost frame.
            h.until.is_some()
        });
        file.sync().await
    }

    /// The segment that was written to last.
    async fn newest(
        &mut self,
        id: SegmentId,
        len: u64,
        entry: Option<&ListEntry>,
        known: Offset,
        epoch: Epoch,
    ) -> Result<(), StorageError> {
        let file = DiskFile::open(&self.dir.join(file_name(id))).await?;
        let from = Self::start_of(id, len, entry);
        let mut scanned = self.scan(&file, id, from, len).await?;
        let mut len = len;
        let known = known.max(entry.map_or(Offset(0), |e| e.totals.end));
        let durable = known.max(scanned.max_durable_end);
        let torn = scanned
            .holes
            .iter()
            .find(|h| h.from >= durable && h.until != Some(h.from))
            .copied();
        if let Some(hole) = torn {
            let at = hole.before.len;
            len = repair::clear_from(&file, at, len).await?;
            self.report.cut = Some(Cut {
                segment: id,
                at,
                end: hole.from,
            });
            if scanned.last_frame.is_some_and(|pos| pos >= at) {
                scanned = self.scan(&file, id, from, len).await?;
                self.report.scanned_segments -= 1;
            } else {
                scanned.holes.retain(|h| h.before.len < at);
                scanned.totals = hole.before;
            }
        }
        if scanned.totals.end == id.base && durable <= id.base {
            return self.drop_file(id).await;
        }
        let grew = scanned.totals.len > from.len;
        let broken_tail = scanned.totals.end < durable;
        let new = scanned.last_frame.is_some() || torn.is_some();
        self.take(id, from, scanned, file.block(), |_| true);
        if broken_tail && let Some(segment) = self.segments.last_mut() {
            let t = &mut segment.totals;
            self.report.damage.push(Damage {
                segment: id,
                at: t.len,
                from: t.end,
                until: durable,
            });
            t.missing += durable.0 - t.end.0;
            t.end = durable;
        }
        if grew || new {
            file.sync().await?;
        }
        if id.epoch == epoch && !broken_tail {
            self.active = true;
            self.allocated = len;
        }
        Ok(())
    }

    fn take(
        &mut self,
        id: SegmentId,
        from: Totals,
        scanned: Scanned,
        block: u64,
        counts: impl Fn(&Hole) -> bool,
    ) {
        for hole in scanned.holes.iter().filter(|h| counts(h)) {
            self.report.damage.push(Damage {
                segment: id,
                at: hole.before.len,
                from: hole.from,
                until: hole.until.unwrap_or(hole.from),
            });
        }
        for (origin, end) in &scanned.origins {
            note_mark(&mut self.marks, *origin, *end);
        }
        self.segments.push(Segment {
            id,
            totals: pad(scanned.totals, block),
            index: scanned.index,
            unindexed: from.len,
            footed: false,
            file: None,
        });
    }

    /// Gaps and overlaps between segments; in a WAL, gaps are what deletion leaves.
    fn check_order(&mut self) {
        if !self.owner_is_partition() {
            return;
        }
        for i in 1..self.segments.len() {
            let next = self.segments[i].id.base;
            let before = &mut self.segments[i - 1];
            let end = before.totals.end;
            if end < next {
                self.report.damage.push(Damage {
                    segment: before.id,
                    at: before.totals.len,
                    from: end,
                    until: next,
                });
                before.totals.missing += next.0 - end.0;
                before.totals.end = next;
            } else if end > next {
                self.report.notes.push(format!(
                    "{}: its records from {next} on are in the next segment as well; that one counts",
                    file_name(before.id)
                ));
                before.totals.end = next;
            }
        }
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
