//! Housekeeping beside the append path: the segment list, footers, trimming, retention, closing.
//!
//! What this file keeps true: nothing here delays an append for longer than a trim of an idle log; the
//! list may lag behind the segments (recovery scans what it does not name) but never runs ahead of them; no
//! record keeps what stands behind it for ever, whatever time its producer gave it.

use super::index::{footer_at, write_footer};
use super::state::{State, Store};
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::list::{ListEntry, SegmentList};
use crate::format::segment::file_name;
use crate::removal::{self, Rest};
use glommio::sync::Permit;
use narad_core::copy::SegmentId;
use narad_core::ids::{Offset, WallMs};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::UNIX_EPOCH;

pub(crate) const LIST_FILE: &str = "segments.list";

/// What is too old to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    /// Records of earlier times are.
    pub min: WallMs,
    /// The time now. A segment with a record of a later one goes by when its file was last written.
    pub now: WallMs,
}

impl State {
    pub(crate) fn list(&self, store: &Store) -> SegmentList {
        let last = self.segments.len().wrapping_sub(1);
        SegmentList {
            owner: store.owner,
            epoch: store.epoch,
            entries: self
                .segments
                .iter()
                .enumerate()
                .map(|(i, s)| ListEntry {
                    id: s.id,
                    totals: s.totals,
                    active: self.active && i == last,
                })
                .collect(),
            marks: self.durable_marks.clone(),
        }
    }
}

impl Store {
    /// Writes the list durably.
    pub(crate) async fn persist_list(&self) -> Result<(), StorageError> {
        let Ok(_permit) = self.list_lock.acquire_permit(1).await else {
            unreachable!("the list lock is never closed");
        };
        let bytes = self.state.borrow().list(self).encode();
        disk::replace_file(&self.dir.join(LIST_FILE), bytes).await
    }

    /// Writes the list soon, in the background; call without a borrow of the state.
    pub(crate) fn list_later(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            state.list_dirty = true;
            state.listed_len = state.segments.last().map_or(0, |s| s.totals.len);
            if std::mem::replace(&mut state.list_writer_runs, true) {
                return;
            }
        }
        let store = self.clone();
        glommio::spawn_local(async move {
            while std::mem::take(&mut store.state.borrow_mut().list_dirty) {
                store.write_footers().await;
                if let Err(error) = store.persist_list().await {
                    // Recovery does the work that the list would have saved.
                    tracing::warn!(%error, "segment list not written");
                }
            }
            store.state.borrow_mut().list_writer_runs = false;
            store.waiters.wake_all();
        })
        .detach();
    }

    /// A segment was sealed: give it its footer and list it.
    pub(crate) fn after_seal(self: &Rc<Self>) {
        self.list_later();
    }

    /// Writes footers of sealed segments whose index is whole in memory, and lets go of that index: a
    /// cold segment's is read back from the footer when it is needed.
    async fn write_footers(&self) {
        let sealed: Vec<_> = {
            let state = self.state.borrow();
            let sealed = state.segments.len() - usize::from(state.active);
            state.segments[..sealed]
                .iter()
                .filter(|s| !s.footed && s.unindexed == 0)
                .map(|s| (s.id, s.totals.len, s.index.clone()))
                .collect()
        };
        for (id, len, index) in sealed {
            let result = match self.file_of(id).await {
                Ok(Some(file)) => write_footer(&file, self.ident(id).seed(), len, &index).await,
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                tracing::warn!(%error, "footer not written");
                continue;
            }
            let mut state = self.state.borrow_mut();
            if let Some(i) = state.position_of(id) {
                state.segments[i].footed = true;
                state.segments[i].index = Vec::new();
                state.segments[i].unindexed = len;
            }
        }
    }

    /// Gives back what a move reserved behind the last segment that it copied.
    pub(crate) async fn trim_copied(&self) -> Result<(), StorageError> {
        let last = {
            let state = self.state.borrow();
            let sealed = state.segments.len() - usize::from(state.active);
            state.segments[..sealed].last().map(|s| s.id)
        };
        let Some(id) = last else { return Ok(()) };
        self.ensure_index(id).await?;
        let index = {
            let state = self.state.borrow();
            let Some(i) = state.position_of(id) else {
                return Ok(());
            };
            (
                state.segments[i].totals.len,
                state.segments[i].index.clone(),
            )
        };
        if let Some(file) = self.file_of(id).await? {
            write_footer(&file, self.ident(id).seed(), index.0, &index.1).await?;
        }
        Ok(())
    }

    pub(crate) fn activity(&self) -> u64 {
        let state = self.state.borrow();
        state.work.appends + state.work.reads + state.meta_generation
    }

    pub(crate) fn holds_resources(&self) -> bool {
        let state = self.state.borrow();
        let reserved = state
            .segments
            .last()
            .is_some_and(|s| state.active && state.allocated > footer_at(s.totals.len));
        reserved || !state.stashes.is_empty() || !state.cache.is_empty() || self.has_open_files()
    }

    /// Gives back the space reserved ahead and memory, and closes files; appends may go on afterwards.
    pub(crate) async fn trim(self: &Rc<Self>) -> Result<(), StorageError> {
        let Ok(_permit) = self.writing.acquire_permit(1).await else {
            unreachable!("the writer's lock is never closed");
        };
        self.prepared().await;
        let active = {
            let state = self.state.borrow();
            match state.segments.last() {
                Some(s) if state.active && state.allocated > footer_at(s.totals.len) => {
                    Some((s.id, footer_at(s.totals.len)))
                }
                _ => None,
            }
        };
        if let Some((id, len)) = active
            && let Some(file) = self.file_of(id).await?
        {
            file.truncate(len).await?;
            file.sync().await?;
            let mut state = self.state.borrow_mut();
            state.allocated = len;
            state.extents_from = len;
            state.reserve_after = 0;
            state.filled = state.filled.min(len);
            state.groups_here = 0;
        }
        let mut state = self.state.borrow_mut();
        state.stashes.clear();
        state.cache.clear();
        drop(state);
        self.forget_files();
        Ok(())
    }

    /// Closes files and nothing else. Whoever uses one keeps it until that is done, and whoever wants one opens
    /// it again.
    pub(crate) fn forget_files(&self) {
        for segment in &mut self.state.borrow_mut().segments {
            segment.file = None;
        }
        *self.meta_file.borrow_mut() = None;
    }

    pub(crate) fn has_open_files(&self) -> bool {
        let open = self
            .state
            .borrow()
            .segments
            .iter()
            .any(|s| s.file.is_some());
        open || self.meta_file.borrow().is_some()
    }

    /// Takes no more appends, waits for those under way, and leaves everything in order on the disk.
    pub(crate) async fn close(self: &Rc<Self>) -> Result<(), StorageError> {
        let failed = {
            let mut state = self.state.borrow_mut();
            let failed = state.closed.clone();
            state.closed.get_or_insert_with(|| "closed".into());
            failed
        };
        self.quiet().await;
        if failed.is_some() {
            return Ok(());
        }
        // Trimming comes first: it may make the room that the others need.
        self.trim().await?;
        if !self.state.borrow().segments.is_empty() {
            self.persist_list().await?;
        }
        if self.state.borrow().durable.0 > 0 || self.state.borrow().meta_generation > 0 {
            self.persist_meta().await?;
            *self.meta_file.borrow_mut() = None;
        }
        self.waiters.wake_all();
        Ok(())
    }

    /// For work that may outlive a close: whoever closed the log may be removing its files, or have opened them
    /// anew.
    pub(crate) fn still_open(&self) -> Result<(), StorageError> {
        match &self.state.borrow().closed {
            None => Ok(()),
            Some(reason) => Err(StorageError::Closed {
                path: self.dir.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Waits until nothing of this log is on its way to the disk, also after a failure: whoever opens it
    /// next writes to the same files.
    async fn quiet(self: &Rc<Self>) {
        drop(self.keeping().await);
        self.settled().await;
        self.list_settled().await;
        self.prepared().await;
        for lock in [&self.writing, &self.meta_lock, &self.list_lock] {
            let Ok(_permit) = lock.acquire_permit(1).await else {
                unreachable!("the locks of a log are never closed");
            };
        }
    }

    pub(crate) async fn list_settled(self: &Rc<Self>) {
        super::wait::Until::new(self.clone(), |store: &Store| {
            !store.state.borrow().list_writer_runs
        })
        .await;
    }

    /// Alone with the choice of segments that go.
    async fn keeping(&self) -> Permit<'_> {
        let Ok(permit) = self.keep_lock.acquire_permit(1).await else {
            unreachable!("the locks of a log are never closed");
        };
        permit
    }

    /// Deletes whole sealed segments from the front: those whose records are all too old, and the
    /// oldest ones while the log is larger than `max_bytes`. Pinned and hidden records stay. Returns
    /// how many records went.
    pub(crate) async fn retain(
        self: &Rc<Self>,
        age: Option<Age>,
        max_bytes: Option<u64>,
    ) -> Result<u64, StorageError> {
        let keeping = self.keeping().await;
        self.still_open()?;
        self.seal_if_old(age).await;
        let written_long_ago = self.written_long_ago(age).await;
        let (start, gone, before) = {
            let mut state = self.state.borrow_mut();
            let floor = state
                .pins
                .first_key_value()
                .map_or(state.hwm(), |(pin, _)| (*pin).min(state.hwm()));
            let mut total: u64 = state.segments.iter().map(|s| s.totals.len).sum();
            let sealed = state.segments.len() - usize::from(state.active);
            let mut gone: Vec<SegmentId> = Vec::new();
            let mut start = state.start;
            for segment in &state.segments[..sealed] {
                let t = &segment.totals;
                let old = age.is_some_and(|age| t.last_time < age.min)
                    || written_long_ago.contains(&segment.id);
                let large = max_bytes.is_some_and(|max| total > max);
                if t.end > floor || !(old || large) {
                    break;
                }
                total -= t.len;
                start = start.max(t.end);
                gone.push(segment.id);
            }
            let before = state.start;
            if !gone.is_empty() {
                state.start = start;
                state.frontier = state.frontier.max(start);
            }
            (start, gone, before)
        };
        if gone.is_empty() {
            return Ok(0);
        }
        // The lower bound is durable before the first file goes: what recovery finds below it is rest.
        self.persist_meta().await?;
        let gone = self.forget(&gone);
        let rests = self.take_names(gone).await?;
        self.persist_list().await?;
        // What is left has no name that anybody knows.
        drop(keeping);
        remove_rests(rests).await?;
        Ok(start.0 - before.0)
    }

    /// An idle log whose newest records are too old lets them go as well.
    async fn seal_if_old(self: &Rc<Self>, age: Option<Age>) {
        let Some(age) = age else { return };
        let Ok(_permit) = self.writing.acquire_permit(1).await else {
            return;
        };
        self.prepared().await;
        let active = {
            let state = self.state.borrow();
            let last = state.segments.last().filter(|_| state.active);
            last.map(|s| (s.id, s.totals.last_time))
        };
        // Nothing is written to it meanwhile: the writer's lock is held.
        if let Some((id, last_time)) = active
            && self.is_old(id, last_time, age).await
        {
            self.state.borrow_mut().seal_active();
            self.after_seal();
        }
    }

    /// Sealed segments from the front that are too old although a record in them has a time to come.
    async fn written_long_ago(&self, age: Option<Age>) -> Vec<SegmentId> {
        let Some(age) = age else { return Vec::new() };
        let sealed: Vec<_> = {
            let state = self.state.borrow();
            let sealed = state.segments.len() - usize::from(state.active);
            let sealed = state.segments[..sealed].iter();
            sealed.map(|s| (s.id, s.totals.last_time)).collect()
        };
        let mut old = Vec::new();
        // No further than the first that stays: the files of the others need no look.
        for (id, last_time) in sealed {
            if !self.is_old(id, last_time, age).await {
                break;
            }
            if last_time >= age.min {
                old.push(id);
            }
        }
        old
    }

    /// Whether all records of a segment are too old, the latest of which has `last_time`. A producer
    /// may say any time; no record came later than the file was last written.
    async fn is_old(&self, id: SegmentId, last_time: WallMs, age: Age) -> bool {
        if last_time <= age.now {
            return last_time < age.min;
        }
        let path = self.path_of(id);
        let look = path.clone();
        let look = move || std::fs::metadata(look)?.modified();
        let written = disk::blocking("look at", &path, look).await;
        // What the system cannot tell is kept.
        written
            .ok()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
            .is_some_and(|at| at.as_millis() < u128::from(age.min.0))
    }

    fn forget(&self, gone: &[SegmentId]) -> Vec<Gone> {
        let mut state = self.state.borrow_mut();
        let forgotten = state.segments.extract_if(.., |s| gone.contains(&s.id));
        let gone = forgotten
            .map(|segment| (segment.id, segment.file.as_ref().map(Rc::downgrade)))
            .collect();
        state.stashes.clear();
        gone
    }

    /// Takes the files of these segments out of the directory, durably. Returns those of which the space is to be given
    /// back; one that is read at this moment goes as a whole when its reader lets go of it.
    async fn take_names(&self, gone: Vec<Gone>) -> Result<Vec<Rest>, StorageError> {
        let mut rests = Vec::new();
        for (id, file) in gone {
            let path = self.path_of(id);
            if file.is_some_and(|file| file.strong_count() > 0) {
                disk::remove_file(&path).await?;
            } else {
                rests.extend(removal::take_name(&path).await?);
            }
        }
        disk::sync_dir(&self.dir).await?;
        Ok(rests)
    }

    /// Deletes one sealed segment wherever it stands (a WAL's segment whose entries are all done).
    pub(crate) async fn remove_sealed(
        self: &Rc<Self>,
        id: SegmentId,
        start: Offset,
    ) -> Result<(), StorageError> {
        {
            let mut state = self.state.borrow_mut();
            let last = state.segments.last().map(|s| s.id);
            assert!(
                !(state.active && last == Some(id)),
                "active segment removed"
            );
            state.start = state.start.max(start);
        }
        // Offsets are never used again, also when no segment is left to tell the last one.
        self.persist_meta().await?;
        let gone = self.forget(&[id]);
        self.list_settled().await;
        self.persist_list().await?;
        remove_rests(self.take_names(gone).await?).await
    }

    /// As [`Self::remove_sealed`], but the file goes to another directory. Returns where it is; `None` when
    /// somebody else is at it.
    pub(crate) async fn set_sealed_aside(
        self: &Rc<Self>,
        id: SegmentId,
        dir: &Path,
    ) -> Result<Option<PathBuf>, StorageError> {
        self.persist_meta().await?;
        if self.forget(&[id]).is_empty() {
            return Ok(None);
        }
        // Until it is renamed a start finds it, and what is lost in it, again.
        let to = dir.join(file_name(id));
        disk::rename(&self.path_of(id), &to).await?;
        self.list_settled().await;
        self.persist_list().await?;
        Ok(Some(to))
    }
}

/// A segment that is forgotten, and its file where somebody may read it.
type Gone = (SegmentId, Option<Weak<DiskFile>>);

async fn remove_rests(rests: Vec<Rest>) -> Result<(), StorageError> {
    for rest in rests {
        rest.remove().await?;
    }
    Ok(())
}
