//! The log of one partition.
//!
//! What this file keeps true: an acked append is durable and, unless a visibility fence stands, visible;
//! the manifest speaks of durable bytes only.

use crate::disk;
use crate::error::{AppendError, StorageError};
use crate::format::batch::Batch;
use crate::format::list::Totals;
use crate::format::segment::Owner;
use crate::layout;
use crate::options::Options;
use crate::staging::Installed;
use crate::store::Store;
use crate::store::append::Appended;
use crate::store::keep::Age;
use crate::store::read::{ReadBatch, Refused};
use crate::store::recover::{RecoveryReport, scan_file};
use crate::store::scrub::ScrubReport;
use crate::store::state::{LogStats, OnDurable, State};
use futures::channel::oneshot;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{CopyId, Offset, Origin, PartitionKey, WalId, WalSeq, WallMs};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// An open partition log. Clones share it; it lives on one executor.
#[derive(Clone, Debug)]
pub struct Log(Rc<Store>);

/// An append that was queued; see [`Log::submit`].
#[derive(Debug)]
pub struct Ticket {
    appended: Appended,
    done: Option<oneshot::Receiver<Result<(), AppendError>>>,
}

impl Ticket {
    /// Where the records will be.
    #[must_use]
    pub const fn place(&self) -> Appended {
        self.appended
    }

    /// Waits until the records are durable. Dropping it does not undo the append.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub async fn durable(self) -> Result<Appended, AppendError> {
        if let Some(done) = self.done {
            done.await.unwrap_or_else(|_| {
                Err(AppendError::Closed {
                    reason: "the log was dropped".into(),
                })
            })?;
        }
        Ok(self.appended)
    }
}

impl Log {
    /// Makes an empty log. Only its directory exists until the first append.
    ///
    /// # Errors
    /// [`StorageError::Exists`] when the copy is there already.
    pub async fn create(
        root: &Path,
        copy: CopyId,
        options: &Options,
    ) -> Result<Self, StorageError> {
        let dir = layout::partition_dir(root, copy);
        if disk::exists(&dir).await? {
            return Err(StorageError::Exists { path: dir });
        }
        disk::create_dir(&dir).await?;
        Ok(Self(Store::new(
            &dir,
            Owner::Partition(copy.key),
            copy.epoch,
            options,
            State::empty(options.cache_bytes),
        )))
    }

    /// Opens a copy and recovers it. The work is bounded by the active segment. When the newest segment
    /// is of an earlier epoch it is sealed; the next append starts one of this epoch.
    ///
    /// # Errors
    /// [`StorageError::NoSuchCopy`], [`StorageError::NewerVersion`], [`StorageError::Foreign`], or the
    /// disk's error. Damage is not an error: it is in the report, and reads skip it.
    pub async fn open(
        root: &Path,
        copy: CopyId,
        options: &Options,
    ) -> Result<(Self, RecoveryReport), StorageError> {
        let dir = layout::partition_dir(root, copy);
        if !disk::exists(&dir).await? {
            return Err(StorageError::NoSuchCopy { copy, path: dir });
        }
        let owner = Owner::Partition(copy.key);
        let (store, report) = Store::open(&dir, owner, copy.epoch, options, None).await?;
        Ok((Self(store), report))
    }

    /// As [`Self::open`], of a copy that was installed a moment ago: what its install knows is not read
    /// from the disk again. The work does not depend on the disk, unless a segment was staged of which
    /// nothing counts.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_installed(
        root: &Path,
        installed: Installed,
        options: &Options,
    ) -> Result<(Self, RecoveryReport), StorageError> {
        let copy = installed.copy();
        let dir = layout::partition_dir(root, copy);
        let owner = Owner::Partition(copy.key);
        let known = Some(installed);
        let (store, report) = Store::open(&dir, owner, copy.epoch, options, known).await?;
        Ok((Self(store), report))
    }

    /// Which copy this is.
    #[must_use]
    pub fn copy(&self) -> CopyId {
        CopyId {
            key: self.key(),
            epoch: self.0.epoch,
        }
    }

    fn key(&self) -> PartitionKey {
        match self.0.owner {
            Owner::Partition(key) => key,
            Owner::Wal(_) => unreachable!("a log is made for partitions only"),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Appends records as one frame and returns when they are durable. Appends that wait together share
    /// one write and one sync. Dropping the future after its first poll does not undo the append. No
    /// records is a valid append of nothing.
    ///
    /// # Errors
    /// [`AppendError`]. After `Closed` it is unknown what became of the records; after the others
    /// nothing was written.
    pub async fn append(
        &self,
        records: impl Into<Batch>,
        origin: Option<Origin>,
    ) -> Result<Appended, AppendError> {
        self.submit(records, origin)?.durable().await
    }

    /// The first half of [`Self::append`]: queues the records at once, so that what the caller checked
    /// just before still holds.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn submit(
        &self,
        records: impl Into<Batch>,
        origin: Option<Origin>,
    ) -> Result<Ticket, AppendError> {
        let (appended, done) = self.0.submit(records.into(), origin)?;
        Ok(Ticket { appended, done })
    }

    /// Has `tell` called whenever records have become durable, with the bytes of their keys and values,
    /// also when nobody waits for them any more. Replaces what was told to before.
    pub fn on_durable(&self, tell: impl Fn(u64) + 'static) {
        let tell = OnDurable(Rc::new(tell));
        self.0.on_durable.replace(Some(tell));
    }

    /// High-watermark: exclusive bound of what may be read.
    #[must_use]
    pub fn hwm(&self) -> Offset {
        self.0.state.borrow().hwm()
    }

    /// Retention's lower bound: the first offset that may be read.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.0.state.borrow().start
    }

    /// The consumers' committed offset.
    #[must_use]
    pub fn frontier(&self) -> Offset {
        self.0.state.borrow().frontier
    }

    /// Offset after the last durable record, hidden ones included.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.0.state.borrow().durable
    }

    /// Offset that the next append gets: [`Self::end`] plus what is in flight.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.0.state.borrow().next
    }

    /// Visibility fence that still stands: records from `.0` up to `.1` are hidden.
    #[must_use]
    pub fn fence(&self) -> Option<(Offset, Offset)> {
        self.0.state.borrow().fence
    }

    /// How this copy was installed, until [`Self::clear_install_mark`].
    #[must_use]
    pub fn install_mark(&self) -> Option<InstallMark> {
        self.0.state.borrow().install
    }

    /// Moves the committed offset forward (an earlier one is ignored); durable with the next
    /// [`Self::persist_meta`].
    pub fn set_frontier(&self, frontier: Offset) {
        let mut state = self.0.state.borrow_mut();
        let frontier = frontier.min(state.hwm());
        if frontier > state.frontier {
            state.frontier = frontier;
            state.meta_dirty = true;
        }
    }

    /// Something waits for [`Self::persist_meta`].
    #[must_use]
    pub fn meta_dirty(&self) -> bool {
        self.0.state.borrow().meta_dirty
    }

    /// Makes frontier and the other small facts durable.
    ///
    /// # Errors
    /// The disk's error; the previous state stays intact, and it may be called again. [`StorageError::Closed`]: the
    /// log has been closed, which makes them durable where the disk does not fail, or has stopped; nothing was written.
    pub async fn persist_meta(&self) -> Result<(), StorageError> {
        // Whoever closes the log waits for what has come this far.
        self.0.still_open()?;
        self.0.persist_meta().await
    }

    /// Highest dispatched sequence of a WAL that was appended or is being appended; 0 when none.
    #[must_use]
    pub fn mark(&self, wal: WalId) -> WalSeq {
        let state = self.0.state.borrow();
        state.marks.get(&wal).map_or(WalSeq(0), |m| m.0)
    }

    /// Reads visible records from `from` on: at most `max_records`, and at most `max_bytes` of keys and
    /// values but always one. An empty batch whose `next` is `from` means that nothing is visible there
    /// yet. Damaged and deleted records are skipped and counted.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn read(
        &self,
        from: Offset,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<ReadBatch, StorageError> {
        self.0.read(from, max_records, max_bytes).await
    }

    /// As [`Self::read`], but what the disk refuses to read, block by block, counts as damaged: its records
    /// are skipped, and those beside it are read. For a refusal that has not gone away.
    ///
    /// # Errors
    /// The disk's error when it reads nothing at all: nothing may be lost then.
    pub async fn read_around(
        &self,
        from: Offset,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<ReadBatch, StorageError> {
        let refused = Refused::PassedOver;
        self.0.read_as(from, max_records, max_bytes, refused).await
    }

    /// As [`Self::read`], right behind [`Self::read_around`]: what that left out while it read ahead counts as
    /// damaged, without another try. What the disk refuses beyond is an error.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn read_on(
        &self,
        from: Offset,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<ReadBatch, StorageError> {
        let refused = Refused::FailsAnew;
        self.0.read_as(from, max_records, max_bytes, refused).await
    }

    /// First visible offset whose record has this time or a later one; the high-watermark when there is
    /// none.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn offset_at(&self, time: WallMs) -> Result<Offset, StorageError> {
        self.0.offset_at(time).await
    }

    /// Waits until the high-watermark is above `offset`, or the log has stopped.
    pub async fn wait_past(&self, offset: Offset) {
        self.0.past(offset).await;
    }

    /// Waits until no append is queued or in flight. The caller has stopped new ones.
    pub async fn settle(&self) {
        self.0.settled().await;
    }

    /// Describes the durable bytes. No I/O.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        let state = self.0.state.borrow();
        let last = state.segments.len().wrapping_sub(1);
        Manifest {
            segments: state
                .segments
                .iter()
                .enumerate()
                .filter(|(_, s)| s.totals.end > state.start)
                .map(|(i, s)| SegmentState {
                    id: s.id,
                    durable_len: s.totals.len,
                    digest: s.totals.digest,
                    end: s.totals.end,
                    sealed: !(state.active && i == last),
                })
                .collect(),
            start: state.start,
            hwm: state.hwm(),
            frontier: state.frontier,
            marks: state
                .durable_marks
                .iter()
                .map(|(wal, (seq, _))| Origin {
                    wal: *wal,
                    seq: *seq,
                })
                .collect(),
            fence: state.fence,
        }
    }

    /// Digest of the first `len` bytes of a segment, from the disk; `None` when there is no such segment
    /// or it is shorter.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn digest_prefix(
        &self,
        segment: SegmentId,
        len: u64,
    ) -> Result<Option<u32>, StorageError> {
        let known = {
            let state = self.0.state.borrow();
            let totals = state.position_of(segment).map(|i| state.segments[i].totals);
            totals.filter(|t| t.len >= len)
        };
        let Some(totals) = known else {
            return Ok(None);
        };
        if totals.len == len {
            return Ok(Some(totals.digest));
        }
        let Some(file) = self.0.file_of(segment).await? else {
            return Ok(None);
        };
        let ident = self.0.ident(segment);
        let from = Totals::empty(segment.base);
        let (scanner, _) = scan_file(&file, ident, from, len, &mut |_| {}).await?;
        Ok((scanner.fed() == len).then(|| scanner.digest()))
    }

    /// Path of a segment's file, for sending it below its durable length.
    #[must_use]
    pub fn segment_path(&self, segment: SegmentId) -> Option<PathBuf> {
        let state = self.0.state.borrow();
        state.position_of(segment)?;
        Some(self.0.path_of(segment))
    }

    /// Keeps retention from deleting records at or above `from` while the pin lives.
    #[must_use]
    pub fn pin(&self, from: Offset) -> Pin {
        let mut state = self.0.state.borrow_mut();
        *state.pins.entry(from).or_default() += 1;
        Pin {
            store: self.0.clone(),
            from,
        }
    }

    /// Sizes and counts of work.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.0.stats()
    }

    /// Changes whenever the log has appended, read from the disk or written its meta file.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.0.activity()
    }

    /// Files are open, records are in memory or space is reserved: [`Self::trim`] gives something back.
    #[must_use]
    pub fn holds_resources(&self) -> bool {
        self.0.holds_resources()
    }

    /// Why the log takes no appends any more.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        self.0.state.borrow().closed.clone()
    }

    /// Deletes whole sealed segments from the front: those that are too old, and the oldest while
    /// the log is larger than `max_bytes`. Pinned and hidden records stay. Returns how many offsets went.
    ///
    /// # Errors
    /// The disk's error; what is left over is removed at the next open. [`StorageError::Closed`]: the log has
    /// been closed or has stopped, and nothing was deleted.
    pub async fn retain(
        &self,
        age: Option<Age>,
        max_bytes: Option<u64>,
    ) -> Result<u64, StorageError> {
        self.0.retain(age, max_bytes).await
    }

    /// The flip of this copy is known: from now on it is an ordinary copy.
    ///
    /// # Errors
    /// The disk's error; the mark then still stands. [`StorageError::Closed`]: the log has been closed or has
    /// stopped; so does it.
    pub async fn clear_install_mark(&self) -> Result<(), StorageError> {
        self.0.still_open()?;
        let old = self.0.state.borrow_mut().install.take();
        if old.is_none() {
            return Ok(());
        }
        if let Err(error) = self.0.persist_meta().await {
            self.0.state.borrow_mut().install = old;
            return Err(error);
        }
        // Also beside a close that came meanwhile: what is done here twice is as if it had been done once.
        disk::remove_file(&self.0.dir.join(layout::STAGED_FILE)).await?;
        self.0.trim_copied().await
    }

    /// Reads every sealed segment once, at no more than `bytes_per_s`, and compares it with its digest. A
    /// segment that has decayed is described as it is from then on: its damaged records count as
    /// missing, and a move copies it as it is. May be dropped at any time.
    ///
    /// # Errors
    /// The disk's error; [`StorageError::Closed`] when the log has been closed or has stopped meanwhile.
    pub async fn scrub(&self, bytes_per_s: u64) -> Result<ScrubReport, StorageError> {
        self.0.scrub(bytes_per_s).await
    }

    /// Gives back space reserved ahead and memory, and closes files, for a partition that is idle. Appends and reads
    /// may go on at any time.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn trim(&self) -> Result<(), StorageError> {
        self.0.trim().await
    }

    /// Has files open.
    #[must_use]
    pub fn has_open_files(&self) -> bool {
        self.0.has_open_files()
    }

    /// Closes files, and does nothing to the disk: for a process that may not open many. Appends and reads may
    /// go on at any time and open what they need.
    pub fn close_files(&self) {
        self.0.forget_files();
    }

    /// Takes no more appends (from any clone), waits for those under way, and leaves everything in order
    /// on the disk.
    ///
    /// # Errors
    /// The disk's error; the next open recovers.
    pub async fn close(self) -> Result<(), StorageError> {
        self.0.close().await
    }
}

/// Keeps retention away from records at or above an offset.
#[derive(Debug)]
pub struct Pin {
    store: Rc<Store>,
    from: Offset,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.store.state.borrow_mut();
        if let Some(count) = state.pins.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&self.from);
            }
        }
    }
}
