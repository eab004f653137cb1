//! Appending: the queue, and the one writer that merges what waits into group writes.
//!
//! What this file keeps true: one group is in flight at a time; it starts on a fresh block, so a block
//! that holds acked bytes is never written again; nothing is acked before the sync that covers it; after
//! a failed write or sync nothing more is written until the log is reopened.

use super::cache::CachedFrame;
use super::group::{Layout, Written};
use super::state::{Segment, State, Store};
use crate::disk::{self, DiskFile};
use crate::error::{AppendError, StorageError};
use crate::format::batch::Batch;
use crate::format::frame::frame_len;
use crate::format::list::{IndexPoint, Totals, bound_marks};
use crate::limits::{
    CHECKPOINT_BYTES, FIRST_EXTENT_BYTES, GROUP_BYTES, INDEX_STEP_BYTES, MAX_FRAME_PAYLOAD_BYTES,
    MAX_FRAME_RECORDS, TRIM_BLOCK_BYTES,
};
use futures::channel::oneshot;
use narad_core::copy::SegmentId;
use narad_core::ids::{Offset, Origin};
use std::rc::Rc;
use std::sync::Arc;

/// Where appended records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first.
    pub base: Offset,
    /// Offset after the last.
    pub end: Offset,
}

/// Where records will be, and what tells when they are durable (nothing to wait for without records).
pub(crate) type Submitted = (Appended, Option<oneshot::Receiver<Result<(), AppendError>>>);

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) base: Offset,
    pub(crate) batch: Batch,
    pub(crate) origin: Option<Origin>,
    done: oneshot::Sender<Result<(), AppendError>>,
}

impl Pending {
    fn end(&self) -> Offset {
        Offset(self.base.0 + self.batch.len() as u64)
    }

    /// Bytes of its frame, and of what may lie empty in front of one that begins on a page.
    fn room(&self) -> usize {
        let before = if self.batch.is_aligned() {
            TRIM_BLOCK_BYTES as usize
        } else {
            0
        };
        frame_len(self.batch.payload_len()) + before
    }
}

/// How a group did not become durable.
pub(crate) enum GroupError {
    /// Nothing was written: there is no room.
    Full { needed: u64, available: u64 },
    /// It is unknown what was written.
    Failed(StorageError),
}

impl From<StorageError> for GroupError {
    fn from(error: StorageError) -> Self {
        Self::Failed(error)
    }
}

/// Place of a group in the active segment.
pub(crate) struct Place {
    pub(crate) file: Rc<DiskFile>,
    /// Where the group begins; 0 for a new segment, whose header goes with it.
    pub(crate) pos: u64,
    /// The segment is a new one.
    pub(crate) fresh: Option<SegmentId>,
}

impl Store {
    /// Queues records; the receiver tells when they are durable.
    pub(crate) fn submit(
        self: &Rc<Self>,
        batch: Batch,
        origin: Option<Origin>,
    ) -> Result<Submitted, AppendError> {
        let mut state = self.state.borrow_mut();
        state.check_open()?;
        if batch.is_empty() {
            let end = state.next;
            return Ok((Appended { base: end, end }, None));
        }
        let too_large = |bytes, limit| Err(AppendError::TooLarge { bytes, limit });
        if batch.len() > MAX_FRAME_RECORDS {
            return too_large(batch.len(), MAX_FRAME_RECORDS);
        }
        if batch.largest() > self.options.max_record_bytes {
            return too_large(batch.largest(), self.options.max_record_bytes);
        }
        let payload_len = batch.payload_len();
        if payload_len > MAX_FRAME_PAYLOAD_BYTES {
            return too_large(payload_len, MAX_FRAME_PAYLOAD_BYTES);
        }
        let limit = self.options.queue_bytes;
        if state.queue_bytes + payload_len > limit && !state.queue.is_empty() {
            return Err(AppendError::Busy {
                queued: state.queue_bytes,
                limit,
            });
        }
        let base = state.next;
        let end = base.plus(batch.len() as u64);
        let (done, receiver) = oneshot::channel();
        state.next = end;
        state.queue_bytes += payload_len;
        if let Some(origin) = origin {
            note_mark(&mut state.marks, origin, end);
        }
        state.queue.push_back(Pending {
            base,
            batch,
            origin,
            done,
        });
        let start = !std::mem::replace(&mut state.writer_runs, true);
        drop(state);
        if start {
            glommio::spawn_local(self.clone().run_writer()).detach();
        }
        Ok((Appended { base, end }, Some(receiver)))
    }

    async fn run_writer(self: Rc<Self>) {
        loop {
            let Ok(_permit) = self.writing.acquire_permit(1).await else {
                return;
            };
            // Whoever the last group has answered may append again before the next one is taken: all that
            // wait share it, instead of every other one.
            glommio::executor().yield_now().await;
            let mut group = self.state.borrow_mut().take_group();
            if group.is_empty() {
                self.state.borrow_mut().writer_runs = false;
                self.waiters.wake_all();
                return;
            }
            match self.write_group(&mut group).await {
                Ok((place, written)) => self.complete(group, &place, &written),
                Err(GroupError::Full { needed, available }) => {
                    self.refuse(group, needed, available);
                }
                Err(GroupError::Failed(error)) => self.stop(error.to_string(), group),
            }
        }
    }

    async fn write_group(
        self: &Rc<Self>,
        group: &mut [Pending],
    ) -> Result<(Place, Written), GroupError> {
        let room: usize = group.iter().map(Pending::room).sum();
        let place = self.place(group[0].base, room as u64).await?;
        let filled = self.state.borrow().filled;
        let layout = Layout::of(group, &place, filled, self.options.io_chunk_bytes);
        let end = place.pos + layout.end as u64;
        self.reserve(&place, end).await?;
        self.filled_up_to(end).await;
        let durable = self.state.borrow().durable;
        let before = self.digest_before(&place);
        let written = self
            .write_frames(group, &place, layout, durable, before)
            .await?;
        if !written.durable {
            place.file.sync().await?;
        }
        if place.fresh.is_some() {
            disk::sync_dir(&self.dir).await?;
        }
        Ok((place, written))
    }

    /// Digest of the segment up to where a group begins.
    fn digest_before(&self, place: &Place) -> u32 {
        if place.fresh.is_some() {
            return 0;
        }
        let state = self.state.borrow();
        let totals = state.segments[state.segments.len() - 1].totals;
        // Not empty where the disk's block is larger than the one written with before.
        let gap = vec![0; (place.pos - totals.len) as usize];
        crc32c::crc32c_append(totals.digest, &gap)
    }

    /// Finds the segment for a group, sealing the active one when it is full.
    async fn place(self: &Rc<Self>, base: Offset, frames: u64) -> Result<Place, GroupError> {
        let full = {
            let state = self.state.borrow();
            state.active
                && state.segments.last().is_some_and(|s| {
                    s.totals.len + frames > self.options.segment_bytes && s.totals.end > s.id.base
                })
        };
        if full {
            self.prepared().await;
            self.state.borrow_mut().seal_active();
            self.after_seal();
        }
        let current = {
            let state = self.state.borrow();
            let last = state.segments.last().filter(|_| state.active);
            last.map(|s| (s.id, s.totals.len))
        };
        if let Some((id, len)) = current {
            let Some(file) = self.file_of(id).await? else {
                unreachable!("the active segment is never removed while the writer holds it");
            };
            let pos = len.next_multiple_of(file.block());
            return Ok(Place {
                file,
                pos,
                fresh: None,
            });
        }
        let id = SegmentId {
            base,
            epoch: self.epoch,
        };
        self.room_for(FIRST_EXTENT_BYTES.min(self.options.extent_bytes))
            .await?;
        let no_room = |e: StorageError| match e.is_full() {
            true => GroupError::Full {
                needed: frames,
                available: 0,
            },
            false => GroupError::Failed(e),
        };
        if self.state.borrow().meta_generation == 0 {
            // Retention must be able to write it when the disk is full.
            self.open_meta_file().await.map_err(no_room)?;
        }
        let file = DiskFile::create(&self.path_of(id)).await.map_err(no_room)?;
        {
            let mut state = self.state.borrow_mut();
            state.allocated = 0;
            state.extents_from = 0;
            state.reserve_after = 0;
            state.filled = 0;
            state.groups_here = 0;
        }
        Ok(Place {
            file,
            pos: 0,
            fresh: Some(id),
        })
    }

    fn complete(self: &Rc<Self>, group: Vec<Pending>, place: &Place, written: &Written) {
        let mut borrow = self.state.borrow_mut();
        let state = &mut *borrow;
        if let Some(id) = place.fresh {
            state.segments.push(Segment {
                id,
                totals: Totals::empty(id.base),
                index: Vec::new(),
                unindexed: 0,
                footed: false,
                file: Some(place.file.clone()),
            });
            state.active = true;
            state.listed_len = 0;
        }
        let Some(segment) = state.segments.last_mut() else {
            unreachable!("a group was written to no segment");
        };
        let len = place.pos + written.len;
        segment.totals.digest = written.digest;
        state.work.writes += 1;
        state.work.syncs += 1;
        state.work.written_bytes += written.bytes;
        state.work.padding_bytes += written.padding as u64;
        segment.totals.len = len;
        let mut finished = Vec::with_capacity(group.len());
        let mut content = 0;
        for (pending, pos) in group.into_iter().zip(&written.positions) {
            segment.add_frame(*pos, &pending);
            if let Some(origin) = pending.origin {
                note_mark(&mut state.durable_marks, origin, pending.end());
            }
            state.work.appends += 1;
            content += pending.batch.content_len() as u64;
            finished.push(pending.done);
            if pending.batch.is_gone() {
                state.cache.clear();
                continue;
            }
            state.cache.push(CachedFrame {
                base: pending.base,
                bytes: pending.batch.memory(),
                batch: Arc::new(pending.batch),
            });
        }
        let end = segment.totals.end;
        let checkpoint = len.saturating_sub(state.listed_len) >= CHECKPOINT_BYTES;
        state.advance(end);
        state.filled = state.filled.max(place.pos + written.end);
        state.groups_here += 1;
        state.usual_group = (3 * state.usual_group + written.len) / 4;
        drop(borrow);
        self.reserve_ahead(&place.file);
        self.fill_ahead(&place.file);
        if checkpoint {
            self.list_later();
        }
        for done in finished {
            let _ = done.send(Ok(()));
        }
        self.waiters.wake_all();
        let tell = self.on_durable.borrow().clone();
        if let Some(tell) = tell {
            (tell.0)(content);
        }
    }

    /// There was no room: nothing of the group, nor of what waits behind it, was written.
    fn refuse(&self, group: Vec<Pending>, needed: u64, available: u64) {
        let mut state = self.state.borrow_mut();
        let waiting = std::mem::take(&mut state.queue);
        state.queue_bytes = 0;
        state.next = state.durable;
        state.marks = state.durable_marks.clone();
        drop(state);
        for pending in group.into_iter().chain(waiting) {
            let _ = pending
                .done
                .send(Err(AppendError::Full { needed, available }));
        }
    }

    /// Stops the log for good.
    fn stop(&self, reason: String, group: Vec<Pending>) {
        tracing::error!(dir = %self.dir.display(), %reason, "log stopped");
        let mut state = self.state.borrow_mut();
        let waiting = std::mem::take(&mut state.queue);
        state.queue_bytes = 0;
        state.closed.get_or_insert(reason.clone());
        drop(state);
        for pending in group.into_iter().chain(waiting) {
            let _ = pending.done.send(Err(AppendError::Closed {
                reason: reason.clone(),
            }));
        }
        self.waiters.wake_all();
    }
}

impl State {
    fn take_group(&mut self) -> Vec<Pending> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.queue.front() {
            if bytes > 0 && bytes + next.batch.payload_len() > GROUP_BYTES {
                break;
            }
            bytes += next.batch.payload_len();
            self.queue_bytes -= next.batch.payload_len();
            group.extend(self.queue.pop_front());
        }
        group
    }

    /// The active segment takes no more; its file keeps what it has.
    pub(crate) fn seal_active(&mut self) {
        self.active = false;
        self.allocated = 0;
    }
}

impl Segment {
    fn add_frame(&mut self, pos: u64, pending: &Pending) {
        push_point(
            &mut self.index,
            IndexPoint {
                base: pending.base,
                pos,
                time_before: self.totals.last_time,
            },
        );
        let t = &mut self.totals;
        t.end = pending.end();
        t.records += pending.batch.len() as u64;
        t.first_time = t.first_time.min(pending.batch.first_time());
        t.last_time = t.last_time.max(pending.batch.last_time());
    }
}

/// Adds a point to a sparse index when it is far enough from the last.
pub(crate) fn push_point(index: &mut Vec<IndexPoint>, point: IndexPoint) {
    if index
        .last()
        .is_none_or(|last| point.pos - last.pos >= INDEX_STEP_BYTES)
    {
        index.push(point);
    }
}

/// Raises the mark of the origin's WAL.
pub(crate) fn note_mark(marks: &mut crate::format::list::Marks, origin: Origin, end: Offset) {
    let mark = marks.entry(origin.wal).or_default();
    mark.0 = mark.0.max(origin.seq);
    mark.1 = mark.1.max(end);
    bound_marks(marks);
}

pub(crate) fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}
