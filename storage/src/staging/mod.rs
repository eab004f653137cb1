//! A copy in progress on the target of a move.
//!
//! What this module keeps true: staged bytes are verified as they arrive and digested, so that nothing
//! has to be read again in the freeze; what a restart resumes from was synced and saved together; no
//! staging exists beside a real copy of the same partition (rule R1).

mod buffer;
mod checkpoint;
mod finish;
mod gate;
mod installed;
mod saved;
mod segment;
mod writes;

pub use buffer::StageBuf;
pub use finish::{installed_manifest, roll_back_install};
pub use gate::WriteGate;
pub use installed::Installed;

use crate::disk::{self, DiskFile};
use crate::error::{StageError, StorageError};
use crate::format::list::Marks;
use crate::format::meta::Meta;
use crate::format::segment::{Owner, SegmentIdent, file_name, parse_file_name};
use crate::layout;
use crate::limits::MAX_SEGMENTS;
use crate::options::Options;
use crate::store::keep::LIST_FILE;
use crate::store::meta::META_FILE;
use checkpoint::Checkpoint;
use narad_core::copy::{SegmentId, SegmentState};
use narad_core::ids::{CopyId, MoveId, PartitionKey};
use narad_core::moves::target::Told;
pub(crate) use saved::Saved;
use segment::{StagedSegment, Taken};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A copy in progress. One task drives it; it lives on one executor.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    key: PartitionKey,
    move_id: MoveId,
    options: Options,
    segments: Vec<StagedSegment>,
    marks: Marks,
    told: Option<Told>,
    pending: VecDeque<glommio::Task<Result<(), StorageError>>>,
    gate: Option<Rc<WriteGate>>,
    /// Places at which damaged frames arrived once; the second time they are taken as the source's own.
    known_damage: BTreeSet<(SegmentId, u64)>,
    /// Writes sent to the disk, and those of them that have ended.
    queued: u64,
    written: u64,
    checkpoint: Option<Checkpoint>,
    meta_file: Option<Rc<DiskFile>>,
    meta_generation: u64,
    list_file: Option<Rc<DiskFile>>,
    /// Bytes that the list's file holds.
    list_room: u64,
    /// The directory into which the copy will be renamed is there.
    prepared: bool,
    finished: Option<CopyId>,
    /// The list's bytes and the meta slot that were written last.
    end_state: Option<(Vec<u8>, Meta)>,
    failed: bool,
    dir_dirty: bool,
}

impl Staging {
    /// Opens the staging of a move, or makes an empty one. It resumes from what was saved; bytes beyond
    /// that are dropped.
    ///
    /// # Errors
    /// [`StageError::RealCopyExists`] (rule R1), or the disk's error.
    pub async fn open_or_create(
        root: &Path,
        key: PartitionKey,
        move_id: MoveId,
        options: &Options,
    ) -> Result<Self, StageError> {
        if let Some(copy) = layout::real_copy(root, key).await? {
            return Err(StageError::RealCopyExists { copy });
        }
        let dir = layout::staging_dir(root, key, move_id);
        disk::create_dir(&dir).await?;
        let mut staging = Self {
            dir,
            key,
            move_id,
            options: options.bounded(),
            segments: Vec::new(),
            marks: Marks::new(),
            told: None,
            pending: VecDeque::new(),
            gate: None,
            known_damage: BTreeSet::new(),
            queued: 0,
            written: 0,
            checkpoint: None,
            meta_file: None,
            meta_generation: 0,
            list_file: None,
            list_room: 0,
            prepared: false,
            finished: None,
            end_state: None,
            failed: false,
            dir_dirty: false,
        };
        staging.resume().await?;
        Ok(staging)
    }

    /// As [`Self::open_or_create`], but when this move has no staging yet, the one of the latest earlier
    /// move of the partition is taken over. Its bytes count only after their digests matched the
    /// source's (rule R4).
    ///
    /// # Errors
    /// As [`Self::open_or_create`].
    pub async fn open_or_adopt(
        root: &Path,
        key: PartitionKey,
        move_id: MoveId,
        options: &Options,
    ) -> Result<Self, StageError> {
        if !disk::exists(&layout::staging_dir(root, key, move_id)).await? {
            let found = layout::scan(root).await?;
            let earlier = found.stagings.iter().filter(|s| s.key == key);
            if let Some(old) = earlier.map(|s| s.move_id).max() {
                Self::adopt(root, key, old, move_id).await?;
            }
        }
        Self::open_or_create(root, key, move_id, options).await
    }

    /// Gives the staging of an earlier move to another one, durably.
    ///
    /// # Errors
    /// [`StorageError::Exists`] when the new move has one already, or the disk's error.
    pub async fn adopt(
        root: &Path,
        key: PartitionKey,
        old: MoveId,
        new: MoveId,
    ) -> Result<(), StageError> {
        let to = layout::staging_dir(root, key, new);
        if disk::exists(&to).await? {
            return Err(StorageError::Exists { path: to }.into());
        }
        disk::rename(&layout::staging_dir(root, key, old), &to).await?;
        Ok(())
    }

    /// The partition.
    #[must_use]
    pub const fn key(&self) -> PartitionKey {
        self.key
    }

    /// The move.
    #[must_use]
    pub const fn move_id(&self) -> MoveId {
        self.move_id
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the source told last, as saved with the staged bytes.
    #[must_use]
    pub const fn told(&self) -> Option<&Told> {
        self.told.as_ref()
    }

    /// Notes what the source told; durable with the next [`Self::sync`].
    pub fn set_told(&mut self, told: Told) {
        self.told = Some(told);
    }

    /// Everything staged, in offset order, with running digests.
    #[must_use]
    pub fn progress(&self) -> Vec<SegmentState> {
        self.segments.iter().map(StagedSegment::state).collect()
    }

    /// Records in staged frames that are damaged at the source.
    #[must_use]
    pub fn damaged_records(&self) -> u64 {
        self.segments.iter().map(|s| s.scanner.edge().missing).sum()
    }

    /// From now on writes share this bound with other copies; none with `None`.
    pub fn set_gate(&mut self, gate: Option<Rc<WriteGate>>) {
        self.gate = gate;
    }

    /// An aligned buffer of `len` bytes for [`Self::write`].
    #[must_use]
    pub fn buffer(&self, len: usize) -> StageBuf {
        StageBuf::new(len)
    }

    /// Takes the next bytes of a segment. `at` must be the staged length. They are verified, digested and
    /// on their way to the disk when this returns; [`Self::sync`] makes them durable. Lengths that are
    /// multiples of 4096 are fastest. After dropping the future midway the staging must be opened again.
    /// Frames with wrong checksums are refused once, in case the wire did it; when the same place comes
    /// again they are taken as what the source has, and counted in [`Self::damaged_records`].
    ///
    /// # Errors
    /// [`StageError::NotContiguous`]: nothing was taken. [`StageError::Full`]: the disk would be left with
    /// less than its reserve; nothing was taken, and it may be tried again. [`StageError::BadBytes`]: the
    /// segment went back to an earlier frame; see [`Self::progress`]. The disk's error: open the staging
    /// again.
    pub async fn write(
        &mut self,
        segment: SegmentId,
        at: u64,
        bytes: StageBuf,
    ) -> Result<(), StageError> {
        self.check_usable()?;
        self.finished = None;
        let i = self.segment(segment, at).await?;
        let staged = &mut self.segments[i];
        if at != staged.len() {
            return Err(StageError::NotContiguous {
                segment,
                at,
                staged: staged.len(),
            });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let end = at + bytes.len() as u64;
        let room = staged.reserve(&self.dir, end, &self.options).await;
        self.failed |= matches!(&room, Err(e) if !matches!(e, StageError::Full { .. }));
        room?;
        let staged = &mut self.segments[i];
        let Taken { bad, marks } = staged.verify(bytes.as_ref(), &mut self.known_damage);
        if let Some((at, what)) = bad {
            // What was on its way may lie where the segment goes on now.
            self.drain().await?;
            self.drop_high_marks();
            return Err(StageError::BadBytes { segment, at, what });
        }
        for (origin, end) in marks {
            crate::store::append::note_mark(&mut self.marks, origin, end);
        }
        let result = self.put(i, at, bytes).await;
        self.failed |= result.is_err();
        result
    }

    /// Whether the disk has room for so many bytes more, the reserve of copies aside: asked before a copy
    /// begins, so that one that cannot end takes nothing.
    ///
    /// # Errors
    /// [`StageError::Full`]; the disk's error.
    pub async fn check_room(&self, bytes: u64) -> Result<(), StageError> {
        let free = disk::available_bytes(&self.dir).await?;
        let available = free.saturating_sub(self.options.staging_reserve_bytes);
        if available < bytes {
            let needed = bytes;
            return Err(StageError::Full { needed, available });
        }
        Ok(())
    }

    fn check_usable(&self) -> Result<(), StageError> {
        if self.failed {
            return Err(StorageError::Closed {
                path: self.dir.clone(),
                reason: "a write or sync of the copy failed".into(),
            }
            .into());
        }
        Ok(())
    }

    async fn segment(&mut self, id: SegmentId, at: u64) -> Result<usize, StageError> {
        match self.segments.binary_search_by_key(&id, |s| s.id()) {
            Ok(i) => Ok(i),
            Err(_) if at != 0 => Err(StageError::NotContiguous {
                segment: id,
                at,
                staged: 0,
            }),
            Err(i) => {
                if self.segments.len() >= MAX_SEGMENTS {
                    return Err(StorageError::damaged(&self.dir, "too many segments").into());
                }
                let file = DiskFile::create(&self.dir.join(file_name(id))).await?;
                let ident = self.ident(id);
                self.segments.insert(i, StagedSegment::new(ident, file));
                self.dir_dirty = true;
                Ok(i)
            }
        }
    }

    const fn ident(&self, id: SegmentId) -> SegmentIdent {
        SegmentIdent {
            owner: Owner::Partition(self.key),
            id,
        }
    }

    /// Makes everything staged durable and saves where it stands, so that a restart resumes from here.
    /// Whatever it returns, also after an earlier failure, no write is under way any more.
    ///
    /// # Errors
    /// The disk's error: open the staging again.
    pub async fn sync(&mut self) -> Result<(), StageError> {
        let drained = self.drain().await;
        self.checkpointed().await?;
        drained?;
        self.check_usable()?;
        let result = self.sync_all().await;
        self.failed |= result.is_err();
        result
    }

    /// Waits until no write and no checkpoint is under way, without making anything durable: the staging
    /// can be opened again then, and gives what was made durable before.
    pub async fn settle(&mut self) {
        for ended in [self.drain().await, self.checkpointed().await] {
            if let Err(error) = ended {
                tracing::debug!(key = %self.key, %error, "a copy that is opened again");
            }
        }
    }

    async fn sync_all(&mut self) -> Result<(), StageError> {
        let count = self.segments.len();
        for (i, segment) in self.segments.iter_mut().enumerate() {
            // The source has gone on to the next segment: this one is whole, and gets its footer.
            if i + 1 < count {
                segment.write_footer().await?;
            }
            segment.sync().await?;
        }
        if std::mem::take(&mut self.dir_dirty) {
            disk::sync_dir(&self.dir).await?;
        }
        let bytes = Saved::of(self).encode();
        disk::replace_file(&self.dir.join(layout::STAGED_FILE), bytes).await?;
        Ok(())
    }

    async fn resume(&mut self) -> Result<(), StageError> {
        let path = self.dir.join(layout::STAGED_FILE);
        let limit = crate::limits::MAX_LIST_BYTES * 4;
        let saved = match disk::read_small(&path, limit).await? {
            Some(bytes) => Saved::decode(&path, &bytes)?,
            None => Saved::default(),
        };
        let names = disk::list_dir(&self.dir).await?;
        for name in &names {
            // A list or meta is left from a finish whose install did not happen, or was taken back.
            let known =
                parse_file_name(name).is_some_and(|id| saved.segments.iter().any(|s| s.id() == id));
            let own = parse_file_name(name).is_some()
                || name == LIST_FILE
                || name == META_FILE
                || Path::new(name).extension().is_some_and(|e| e == "tmp");
            if own && !known {
                disk::remove_file(&self.dir.join(name)).await?;
            }
        }
        for s in &saved.segments {
            let path = self.dir.join(file_name(s.id()));
            if !disk::exists(&path).await? {
                continue;
            }
            let file = DiskFile::open(&path).await?;
            if file.len().await? < s.totals().len {
                continue;
            }
            let ident = self.ident(s.id());
            let segment = StagedSegment::resume(ident, file, s.totals()).await?;
            self.segments.push(segment);
        }
        self.segments.sort_by_key(StagedSegment::id);
        self.marks = saved.marks();
        self.drop_high_marks();
        self.told = saved.told;
        Ok(())
    }

    /// Forgets marks of frames that are not staged (any more): a mark that is missing costs a duplicate,
    /// one that is too high costs a record.
    fn drop_high_marks(&mut self) {
        let end = self.segments.last().map(|s| s.scanner.edge().end);
        self.marks
            .retain(|_, (_, at)| end.is_some_and(|end| *at <= end));
    }

    /// Keeps only these segments, each cut to the given durable length. A prefix that was cut is read
    /// again to know its digest.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn truncate_to(&mut self, keep: &[SegmentState]) -> Result<(), StageError> {
        self.drain().await?;
        self.checkpointed().await?;
        self.check_usable()?;
        for segment in std::mem::take(&mut self.segments) {
            match keep.iter().find(|k| k.id == segment.id()) {
                Some(k) if k.durable_len >= segment.len() => self.segments.push(segment),
                Some(k) => self.segments.push(segment.cut(k.durable_len).await?),
                None => self.forget(&segment).await?,
            }
        }
        self.drop_high_marks();
        self.sync().await
    }

    /// Keeps only these segments.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn keep(&mut self, ids: &[SegmentId]) -> Result<(), StageError> {
        let states: Vec<_> = self
            .progress()
            .into_iter()
            .filter(|s| ids.contains(&s.id))
            .collect();
        self.truncate_to(&states).await
    }

    /// Drops everything staged.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn reset(&mut self) -> Result<(), StageError> {
        self.truncate_to(&[]).await
    }

    async fn forget(&mut self, segment: &StagedSegment) -> Result<(), StageError> {
        let path = self.dir.join(file_name(segment.id()));
        disk::remove_file(&path).await?;
        self.dir_dirty = true;
        Ok(())
    }

    /// Takes those of these segments that are staged without damage out of the staging, durably, into
    /// `damaged/`, where nothing is deleted: the source holds them otherwise by now. Returns where they
    /// are.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn keep_for_operator(
        &mut self,
        root: &Path,
        ids: &[SegmentId],
    ) -> Result<Vec<PathBuf>, StageError> {
        self.drain().await?;
        self.checkpointed().await?;
        let mut kept = Vec::new();
        let whole = |s: &StagedSegment| s.len() > 0 && s.scanner.edge().missing == 0;
        for id in ids {
            let found = self.segments.iter().position(|s| s.id() == *id && whole(s));
            let Some(at) = found else {
                continue;
            };
            let to = layout::damaged_segment(root, self.key, self.move_id, *id).await?;
            let Some(to) = to else {
                continue;
            };
            self.segments[at].sync().await?;
            disk::rename(&self.dir.join(file_name(*id)), &to).await?;
            self.segments.remove(at);
            kept.push(to);
        }
        self.drop_high_marks();
        Ok(kept)
    }

    /// Moves the staged bytes out of the way, durably; they are kept until
    /// [`layout::delete_asides`], since they may be the last copy. Returns where they are.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn set_aside(mut self, root: &Path) -> Result<PathBuf, StageError> {
        self.drain().await?;
        self.checkpointed().await?;
        let mut number = 0;
        let to = loop {
            let to = layout::aside_dir(root, self.key, self.move_id, number);
            if !disk::exists(&to).await? {
                break to;
            }
            number += 1;
        };
        if let Some(parent) = to.parent() {
            disk::create_dir(parent).await?;
        }
        disk::rename(&self.dir, &to).await?;
        Ok(to)
    }
}
