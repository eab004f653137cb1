//! From a staged copy to a real one, and back.
//!
//! What this file keeps true: only a copy that equals the capture, byte for byte, gets an end state;
//! under the freeze nothing is read back from the disk; the rename is the moment at which the copy is
//! real, and it carries its install mark before that (rule R3).

use super::Staging;
use super::installed::Installed;
use super::saved::Saved;
use super::segment::StagedSegment;
use crate::disk::{self, DiskFile};
use crate::error::{StageError, StorageError};
use crate::format::list::{ListEntry, Marks, SegmentList, Totals};
use crate::format::meta::{Meta, decode_file};
use crate::format::segment::Owner;
use crate::layout;
use crate::limits::{MAX_LIST_BYTES, META_SLOT_BYTES};
use crate::store::append::note_mark;
use crate::store::keep::LIST_FILE;
use crate::store::meta::{META_FILE, open_meta, write_slot};
use crate::store::recover::pad;
use futures::future::{join, join_all};
use narad_core::copy::{InstallMark, Manifest, SegmentState};
use narad_core::ids::{CopyId, MoveId, Offset, Origin};
use std::path::Path;
use std::rc::Rc;

impl Staging {
    /// Does ahead what can be done before the freeze: checks that no real copy is in the way, makes the
    /// directories, the meta file and the list with their blocks written, puts the footer behind what is
    /// staged and makes everything durable. When nothing more comes, the freeze has two small files to
    /// write over.
    ///
    /// # Errors
    /// [`StageError::RealCopyExists`], or the disk's error.
    pub async fn prepare_install(&mut self, next: CopyId, root: &Path) -> Result<(), StageError> {
        assert!(next.key == self.key, "install of another partition");
        if let Some(copy) = layout::real_copy(root, self.key).await? {
            return Err(StageError::RealCopyExists { copy });
        }
        disk::create_dir(&layout::partitions_root(root)).await?;
        self.drain().await?;
        self.checkpointed().await?;
        self.check_usable()?;
        let result = self.prepare_files(next).await;
        self.failed |= result.is_err();
        result?;
        self.sync().await?;
        self.prepared = true;
        Ok(())
    }

    /// Makes the small files of the end state, so that the freeze finds their blocks written.
    async fn prepare_files(&mut self, next: CopyId) -> Result<(), StorageError> {
        if self.meta_file.is_none() {
            let file = open_meta(&self.dir).await?;
            disk::write_whole(&file, &[], 2 * META_SLOT_BYTES as u64).await?;
            self.meta_file = Some(file);
        }
        let list = SegmentList {
            owner: Owner::Partition(self.key),
            epoch: next.epoch,
            entries: self.entries_now(),
            marks: self.marks.clone(),
        };
        let file = self.open_list().await?;
        self.list_room = disk::write_whole(&file, &list.encode(), self.list_room).await?;
        if let Some(last) = self.segments.last_mut() {
            last.complete().await?;
        }
        Ok(())
    }

    /// The list of the end state; a finish that is not followed by an install leaves it to be written
    /// over, and a restart removes it.
    async fn open_list(&mut self) -> Result<Rc<DiskFile>, StorageError> {
        if let Some(file) = &self.list_file {
            return Ok(file.clone());
        }
        let file = DiskFile::create_synced(&self.dir.join(LIST_FILE)).await?;
        self.dir_dirty = true;
        self.list_file = Some(file.clone());
        Ok(file)
    }

    /// What is staged by now, as the list will name it: of the right size, if not the last word.
    fn entries_now(&self) -> Vec<ListEntry> {
        let staged = self.segments.iter().filter(|s| s.len() > 0);
        staged
            .map(|segment| ListEntry {
                id: segment.id(),
                totals: segment.scanner.totals(),
                active: false,
            })
            .collect()
    }

    /// Compares the staged copy with the capture, writes the end state (list, meta with exact
    /// high-watermark, frontier, fence, marks and install mark) and makes all of it durable. Nothing is
    /// read from the disk. Of a forced promotion (`mark.handoff_id` is `None`) the capture is what is
    /// staged, and an incomplete frame at its end is dropped.
    ///
    /// # Errors
    /// [`StageError::Mismatch`] or [`StageError::Short`]: nothing was written, copying may go on. The
    /// disk's error: open the staging again.
    pub async fn finish(
        &mut self,
        capture: &Manifest,
        mark: InstallMark,
        next: CopyId,
    ) -> Result<(), StageError> {
        assert!(next.key == self.key, "install of another partition");
        self.drain().await?;
        self.checkpointed().await?;
        self.check_usable()?;
        self.compare(capture)?;
        let promote = mark.handoff_id.is_none();
        let entries = self.entries(capture, promote)?;
        let end = entries.last().map_or(capture.hwm, |e| e.totals.end);
        if end < capture.hwm {
            return Err(StageError::Short {
                key: self.key,
                end,
                hwm: capture.hwm,
            });
        }
        let list = SegmentList {
            owner: Owner::Partition(self.key),
            epoch: next.epoch,
            entries,
            marks: self.marks_of(capture, promote),
        };
        let result = self.write_end_state(&list, capture, mark, next, end).await;
        self.failed |= result.is_err();
        result?;
        self.finished = Some(next);
        Ok(())
    }

    async fn write_end_state(
        &mut self,
        list: &SegmentList,
        capture: &Manifest,
        mark: InstallMark,
        next: CopyId,
        end: Offset,
    ) -> Result<(), StageError> {
        let file = match &self.meta_file {
            Some(file) => file.clone(),
            None => open_meta(&self.dir).await?,
        };
        self.meta_file = Some(file.clone());
        self.meta_generation += 1;
        let meta = Meta {
            owner: Owner::Partition(self.key),
            epoch: next.epoch,
            generation: self.meta_generation,
            start: capture.start,
            hwm: capture.hwm,
            durable_end: end,
            frontier: capture.frontier,
            fence: (capture.hwm < end).then_some((capture.hwm, end)),
            install: Some(mark),
        };
        let (list_file, room, bytes) = (self.open_list().await?, self.list_room, list.encode());
        let data = join_all(self.segments.iter_mut().map(StagedSegment::complete));
        let listing = disk::write_whole(&list_file, &bytes, room);
        let facts = join(listing, write_slot(&file, &meta));
        // All of it has ended before a failure is told: the same files may be opened again then.
        let (data, (listed, slot)) = join(data, facts).await;
        data.into_iter().collect::<Result<(), _>>()?;
        self.list_room = listed?;
        slot?;
        self.end_state = Some((bytes, meta));
        if std::mem::take(&mut self.dir_dirty) {
            disk::sync_dir(&self.dir).await?;
        }
        Ok(())
    }

    fn compare(&mut self, capture: &Manifest) -> Result<(), StageError> {
        let mismatch = |key, what| Err(StageError::Mismatch { key, what });
        for want in &capture.segments {
            let have = self.segments.iter().find(|s| s.id() == want.id);
            let have = have.map(StagedSegment::state);
            match have {
                Some(s) if s.durable_len == want.durable_len && s.digest == want.digest => {}
                Some(s) => {
                    return mismatch(
                        self.key,
                        format!(
                            "segment {} of epoch {}: {} bytes with digest {:08x} staged, {} with {:08x} captured",
                            want.id.base,
                            want.id.epoch,
                            s.durable_len,
                            s.digest,
                            want.durable_len,
                            want.digest
                        ),
                    );
                }
                None if want.durable_len == 0 => {}
                None => {
                    return mismatch(
                        self.key,
                        format!(
                            "segment {} of epoch {} is not staged",
                            want.id.base, want.id.epoch
                        ),
                    );
                }
            }
        }
        for staged in &self.segments {
            let wanted = capture.segments.iter().any(|s| s.id == staged.id());
            if !wanted && staged.len() > 0 {
                return mismatch(
                    self.key,
                    format!(
                        "segment {} of epoch {} is staged but not captured",
                        staged.id().base,
                        staged.id().epoch
                    ),
                );
            }
        }
        Ok(())
    }

    fn entries(&self, capture: &Manifest, promote: bool) -> Result<Vec<ListEntry>, StageError> {
        let mut entries: Vec<ListEntry> = Vec::new();
        for segment in self.segments.iter().filter(|s| s.len() > 0) {
            let want = capture.segments.iter().find(|s| s.id == segment.id());
            let totals = self.end_totals(segment, want, promote)?;
            if let Some(last) = entries.last()
                && last.totals.end > segment.id().base
            {
                return Err(StageError::Mismatch {
                    key: self.key,
                    what: format!("segments overlap at offset {}", segment.id().base),
                });
            }
            if totals.end == segment.id().base {
                continue;
            }
            entries.push(ListEntry {
                id: segment.id(),
                totals,
                active: false,
            });
        }
        Ok(entries)
    }

    fn end_totals(
        &self,
        segment: &StagedSegment,
        want: Option<&SegmentState>,
        promote: bool,
    ) -> Result<Totals, StageError> {
        let whole = segment.scanner.totals();
        if promote {
            let edge = pad(*segment.scanner.edge(), segment.file.block());
            return Ok(if edge.len <= whole.len { edge } else { whole });
        }
        // The source counts records that are lost at the end of a damaged segment.
        let end = want.map_or(whole.end, |s| s.end);
        if end < whole.end {
            return Err(StageError::Mismatch {
                key: self.key,
                what: format!(
                    "segment {} ends at {}, captured is {end}",
                    segment.id().base,
                    whole.end
                ),
            });
        }
        Ok(Totals {
            end,
            missing: whole.missing + (end.0 - whole.end.0),
            ..whole
        })
    }

    /// The marks of what is staged and of the capture. Of a promotion those of hidden records are left
    /// out: the source has not acked them, so they are dispatched again, and must not be taken for
    /// duplicates of records that nobody sees.
    fn marks_of(&self, capture: &Manifest, promote: bool) -> Marks {
        let mut marks = self.marks.clone();
        marks.retain(|_, (_, end)| !promote || *end <= capture.hwm);
        for origin in &capture.marks {
            note_mark(&mut marks, *origin, Offset(0));
        }
        marks
    }

    /// Renames the finished copy into its real place, durably. Returns what it is, so that it can be opened
    /// without reading it.
    ///
    /// # Errors
    /// [`StageError::NotFinished`]; [`StageError::RealCopyExists`] (rule R1); or the disk's error, after
    /// which it is unknown whether the copy is real: look with [`layout::scan`].
    pub async fn install(self, root: &Path, next: CopyId) -> Result<Installed, StageError> {
        let end_state = match self.end_state {
            Some(end_state) if self.finished == Some(next) => end_state,
            _ => return Err(StageError::NotFinished { key: self.key }),
        };
        if !self.prepared {
            disk::create_dir(&layout::partitions_root(root)).await?;
        }
        let (base, key) = (layout::partitions_root(root), self.key);
        let free = move || layout::real_copy_now(&base, key);
        let to = layout::partition_dir(root, next);
        if let Some(copy) = disk::rename_if(&self.dir, &to, free).await? {
            return Err(StageError::RealCopyExists { copy });
        }
        let segments = self.segments.iter().map(|s| (s.id(), s.len())).collect();
        let (list, meta) = end_state;
        Ok(Installed::new(next, segments, list, &meta))
    }
}

/// The partition as it was captured for an installed copy that carries the mark of move `by`, without
/// its segments: what the source told last. None when no such copy is installed (any more).
///
/// # Errors
/// The disk's error.
pub async fn installed_manifest(
    root: &Path,
    copy: CopyId,
    by: MoveId,
) -> Result<Option<Manifest>, StorageError> {
    let dir = layout::partition_dir(root, copy);
    let meta = disk::read_small(&dir.join(META_FILE), 2 * META_SLOT_BYTES).await?;
    let meta = decode_file(&meta.unwrap_or_default()).ok();
    let Some(meta) = meta.and_then(|m| m.newest) else {
        return Ok(None);
    };
    if meta.install.is_none_or(|mark| mark.move_id != by) {
        return Ok(None);
    }
    let list = disk::read_small(&dir.join(LIST_FILE), MAX_LIST_BYTES).await?;
    let list = list.and_then(|bytes| SegmentList::decode(&bytes).ok());
    let marks = list.map(|list| list.marks).unwrap_or_default();
    Ok(Some(Manifest {
        segments: Vec::new(),
        start: meta.start,
        hwm: meta.hwm,
        frontier: meta.frontier,
        marks: marks
            .into_iter()
            .map(|(wal, (seq, _))| Origin { wal, seq })
            .collect(),
        fence: meta.fence,
    }))
}

/// Takes an installed copy back into the staging of move `to`, durably, with everything that it holds.
/// When the copy is not installed (any more) there is nothing to do. The caller has closed its log and
/// knows that the flip was refused for good.
///
/// # Errors
/// [`StorageError::Damaged`] when the copy carries no install mark of that move: it is not taken back;
/// [`StorageError::Exists`] when that move has a staging; or the disk's error.
pub async fn roll_back_install(root: &Path, copy: CopyId, to: MoveId) -> Result<(), StorageError> {
    let from = layout::partition_dir(root, copy);
    if !disk::exists(&from).await? {
        return Ok(());
    }
    let meta_path = from.join(META_FILE);
    let bytes = disk::read_small(&meta_path, 2 * META_SLOT_BYTES).await?;
    let meta = decode_file(&bytes.unwrap_or_default())
        .ok()
        .and_then(|m| m.newest);
    let mark = meta.and_then(|m| m.install);
    if mark.is_none_or(|m| m.move_id != to) {
        return Err(StorageError::damaged(
            &meta_path,
            format!("{copy} was not installed by move {to}; it is not taken back"),
        ));
    }
    let dir = layout::staging_dir(root, copy.key, to);
    if disk::exists(&dir).await? {
        return Err(StorageError::Exists { path: dir });
    }
    let list = disk::read_small(&from.join(LIST_FILE), MAX_LIST_BYTES).await?;
    let staged = from.join(layout::STAGED_FILE);
    let told = match disk::read_small(&staged, 4 * MAX_LIST_BYTES).await? {
        Some(bytes) => Saved::decode(&staged, &bytes)?.told,
        None => None,
    };
    if let Some(Ok(list)) = list.map(|b| SegmentList::decode(&b)) {
        let saved = Saved::of_list(&list.entries, &list.marks, told);
        disk::replace_file(&staged, saved.encode()).await?;
    }
    if let Some(parent) = dir.parent() {
        disk::create_dir(parent).await?;
    }
    disk::rename(&from, &dir).await?;
    disk::remove_file(&dir.join(META_FILE)).await?;
    disk::remove_file(&dir.join(LIST_FILE)).await?;
    disk::sync_dir(&dir).await
}
