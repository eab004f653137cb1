//! The segments of a log that is being opened: which are believed, what a scan of the others means.
//!
//! What this file keeps true: nothing intact is cut; what is cut is above every durable end known, and
//! is reported as well as damage is.

use super::append::{note_mark, push_point};
use super::keep::LIST_FILE;
use super::meta::META_FILE;
use super::recover::{Cut, Damage, RecoveryReport, pad, scan_file};
use super::repair;
use super::state::Segment;
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::FormatError;
use crate::format::list::{IndexPoint, ListEntry, Marks, SegmentList, Totals};
use crate::format::meta::{self, MetaFile};
use crate::format::segment::{Owner, SegmentIdent, file_name};
use crate::limits::{FORMAT_VERSION, MAX_HOLES};
use crate::scan::{Hole, ScanEvent, torn_tail};
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, Origin};
use std::path::Path;
use std::rc::Rc;

/// What scanning one segment gave.
struct Scanned {
    totals: Totals,
    index: Vec<IndexPoint>,
    origins: Vec<(Origin, Offset)>,
    holes: Vec<Hole>,
    last_frame: Option<u64>,
    max_durable_end: Offset,
}

/// A log while it is being opened.
pub(crate) struct Opening<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) owner: Owner,
    pub(crate) report: RecoveryReport,
    pub(crate) marks: Marks,
    pub(crate) segments: Vec<Segment>,
    pub(crate) active: bool,
    pub(crate) allocated: u64,
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

    /// Reads the meta file.
    pub(crate) fn meta(
        &mut self,
        bytes: Option<&[u8]>,
        used: bool,
    ) -> Result<MetaFile, StorageError> {
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

    /// Reads the segment list.
    pub(crate) fn list(
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

    /// Goes through the segment files in order: believes, scans, repairs.
    pub(crate) async fn segments(
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
        let torn = torn_tail(&scanned.holes, durable);
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
        if entry.is_none() {
            // The process may have died between the segment's first group and the sync of its name.
            disk::sync_dir(self.dir).await?;
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
    pub(crate) fn check_order(&mut self) {
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
