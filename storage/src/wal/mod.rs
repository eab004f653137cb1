//! The ingress WAL of one shard: accepted records whose partition cannot take them here and now.
//!
//! What this file keeps true: an entry is on the disk from its ack until it is reported done; sequences
//! are consecutive and never used again in the life of a WAL; a segment is deleted once all its entries
//! are done and none was lost, wherever it stands, so one partition that cannot be reached pins only what it must. What is
//! done is known exactly while the WAL is open; the disk keeps the first entry that is not, so after a
//! crash entries above it are delivered again, and their partitions tell them by their marks.

mod done;
mod entry;
mod lost;

pub(crate) use entry::known_identity;
#[cfg(feature = "failpoints")]
pub(crate) use entry::{batch as entry_batch, decode_identity, encode_identity};
pub(crate) use lost::DAMAGED;

use crate::disk;
use crate::error::{AppendError, StorageError};
use crate::format::record::Record;
use crate::format::segment::Owner;
use crate::limits::READ_AHEAD_BYTES;
use crate::options::Options;
use crate::store::Store;
use crate::store::recover::RecoveryReport;
use crate::store::state::{LogStats, Segment};
use done::Runs;
use entry::{ROUTE, identity};
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, PartitionIndex, TopicId, WalId, WalSeq};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Settings of a WAL.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Most bytes on the disk; appends beyond are refused as full.
    pub cap_bytes: u64,
    /// Bytes above the cap that only [`Wal::append_rerouted`] may use; a few segments, since a segment's
    /// room comes back when all of its entries went elsewhere.
    pub reroute_bytes: u64,
    /// Settings of the log underneath.
    pub log: Options,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            cap_bytes: 4 << 30,
            reroute_bytes: 64 << 20,
            log: Options {
                segment_bytes: 16 << 20,
                extent_bytes: 4 << 20,
                ..Options::default()
            },
        }
    }
}

/// One accepted record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEntry {
    /// Topic incarnation that it is for.
    pub topic: TopicId,
    /// Partition that it is for.
    pub partition: PartitionIndex,
    /// The client named the partition, so it may go to no other.
    pub pinned: bool,
    /// The record.
    pub record: Record,
}

/// What waits in a WAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalPending {
    /// Durable entries that are not done.
    pub records: u64,
    /// Their share of the bytes on the disk, estimated by segment.
    pub bytes: u64,
    /// Bytes on the disk, done entries included: what the cap counts.
    pub disk_bytes: u64,
    /// The first of them.
    pub oldest: Option<WalSeq>,
    /// Entries that damage has destroyed since the WAL was opened.
    pub lost: u64,
}

/// What opening a WAL found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRecovery {
    /// As of a log.
    pub report: RecoveryReport,
    /// What waits.
    pub pending: WalPending,
}

#[derive(Debug)]
struct Done {
    /// Everything below is done.
    low: u64,
    /// Done at or above `low`; deleted segments are done.
    above: Runs,
    lost: u64,
    /// A segment has lost entries of which its description on the disk does not tell yet.
    unlisted: bool,
    cleaning: bool,
}

#[derive(Debug)]
struct Inner {
    store: Rc<Store>,
    id: WalId,
    cap_bytes: u64,
    reroute_bytes: u64,
    done: RefCell<Done>,
}

/// An open WAL. Clones share it; it lives on one executor.
#[derive(Clone, Debug)]
pub struct Wal(Rc<Inner>);

impl Wal {
    /// Opens the WAL in `dir`, making it when there is none.
    ///
    /// # Errors
    /// The disk's error; damage is in the report.
    pub async fn open(
        dir: &Path,
        options: &WalOptions,
    ) -> Result<(Self, WalRecovery), StorageError> {
        disk::create_dir(dir).await?;
        let id = identity(dir).await?;
        let mut log = options.log.clone();
        log.segment_bytes = log.segment_bytes.min(options.cap_bytes / 4);
        log.max_record_bytes += ROUTE;
        let (store, report) = Store::open(dir, Owner::Wal(id), Epoch(1), &log, None).await?;
        let low = store.state.borrow().frontier.0;
        let wal = Self(Rc::new(Inner {
            store,
            id,
            cap_bytes: options.cap_bytes,
            reroute_bytes: options.reroute_bytes,
            done: RefCell::new(Done {
                low,
                above: Runs::default(),
                lost: 0,
                unlisted: false,
                cleaning: false,
            }),
        }));
        wal.0.advance();
        let pending = wal.pending();
        Ok((wal, WalRecovery { report, pending }))
    }

    /// Identity of this WAL's life.
    #[must_use]
    pub fn id(&self) -> WalId {
        self.0.id
    }

    /// Appends entries and returns the sequence of the first when they are durable; the others follow
    /// consecutively. Dropping the future after its first poll does not undo the append.
    ///
    /// # Errors
    /// [`AppendError`]; `Full` also when the cap is reached.
    pub async fn append(&self, entries: Vec<WalEntry>) -> Result<WalSeq, AppendError> {
        self.append_within(self.0.cap_bytes, entries).await
    }

    /// As [`Self::append`], for records of entries that are in this WAL already and go to another
    /// partition: they may use some room above the cap, so that a WAL full of what cannot be delivered
    /// gets empty again. The caller reports the old entries done once this has returned.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn append_rerouted(&self, entries: Vec<WalEntry>) -> Result<WalSeq, AppendError> {
        let cap_bytes = self.0.cap_bytes.saturating_add(self.0.reroute_bytes);
        self.append_within(cap_bytes, entries).await
    }

    async fn append_within(
        &self,
        cap_bytes: u64,
        entries: Vec<WalEntry>,
    ) -> Result<WalSeq, AppendError> {
        let size: usize = entries
            .iter()
            .map(|e| e.record.content_len() + ROUTE + 16)
            .sum();
        let needed = size as u64 + 4096;
        let used = {
            let state = self.0.store.state.borrow();
            let bytes: u64 = state.segments.iter().map(|s| s.totals.len).sum();
            bytes + state.queue_bytes as u64
        };
        if used + needed > cap_bytes {
            return Err(AppendError::Full {
                needed,
                available: cap_bytes.saturating_sub(used),
            });
        }
        let (appended, done) = self.0.store.submit(entry::batch(&entries, size), None)?;
        if let Some(done) = done {
            done.await.unwrap_or_else(|_| {
                Err(AppendError::Closed {
                    reason: "the WAL was dropped".into(),
                })
            })?;
        }
        Ok(seq_of(appended.base.0))
    }

    /// Durable entries that are not done, from `from` on, ascending: at most `max_records`, and at most
    /// `max_bytes` of content but always one.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn read(
        &self,
        from: WalSeq,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<(WalSeq, WalEntry)>, StorageError> {
        let mut out = Vec::new();
        let mut bytes = 0;
        let mut next = Offset(from.0.saturating_sub(1).max(self.0.done.borrow().low));
        while out.len() < max_records {
            let room = max_bytes.saturating_sub(bytes).clamp(1, READ_AHEAD_BYTES);
            let want = max_records - out.len();
            let mut batch = self.0.store.read(next, want, room).await?;
            if self.0.misses(next.0, &batch) {
                // A disk may misread once: what is not there the second time is lost.
                self.0.store.drop_stashes();
                batch = self.0.store.read(next, want, room).await?;
            }
            let mut expected = next.0;
            let end = batch.next.0;
            for (offset, record) in batch.records {
                self.0.note_lost(expected, offset.0);
                expected = offset.0 + 1;
                if self.0.is_done(offset.0) {
                    continue;
                }
                let size = record.content_len();
                if bytes > 0 && bytes + size > max_bytes {
                    return Ok(out);
                }
                match WalEntry::from_record(record.get()) {
                    Some(entry) => out.push((seq_of(offset.0), entry)),
                    None => self.0.note_lost(offset.0, offset.0 + 1),
                }
                bytes += size;
            }
            self.0.note_lost(expected, end);
            if batch.next == next {
                break;
            }
            next = batch.next;
        }
        Ok(out)
    }

    /// Waits until entries at or above `seq` are durable, or the WAL has stopped.
    pub async fn wait_from(&self, seq: WalSeq) {
        self.0.store.past(Offset(seq.0.saturating_sub(1))).await;
    }

    /// These entries were delivered (or are to be dropped). Durable with the next [`Self::checkpoint`];
    /// after a crash before that they are delivered again.
    pub fn done(&self, seqs: &[WalSeq]) {
        let durable = self.0.store.state.borrow().durable.0;
        {
            let mut done = self.0.done.borrow_mut();
            for seq in seqs {
                let Some(offset) = seq.0.checked_sub(1) else {
                    continue;
                };
                if offset >= done.low && offset < durable {
                    done.above.add(offset, offset + 1);
                }
            }
        }
        self.0.advance();
        if self.0.has_finished_segment() {
            let mut done = self.0.done.borrow_mut();
            if !std::mem::replace(&mut done.cleaning, true) {
                drop(done);
                let wal = self.clone();
                glommio::spawn_local(async move {
                    if let Err(error) = wal.clean().await {
                        tracing::warn!(%error, "WAL not cleaned up");
                    }
                    wal.0.done.borrow_mut().cleaning = false;
                })
                .detach();
            }
        }
    }

    /// Makes the deliveries so far durable and deletes segments whose entries are all done. A segment in
    /// which entries are lost to damage is kept beside the WAL instead, for the operator.
    ///
    /// # Errors
    /// The disk's error; it may be called again.
    pub async fn checkpoint(&self) -> Result<(), StorageError> {
        let inner = &self.0;
        inner.list_lost().await?;
        if inner.store.state.borrow().meta_dirty {
            inner.store.persist_meta().await?;
        }
        inner.seal_if_done().await;
        while let Some(id) = inner.finished_segment() {
            inner.let_go(id).await?;
            inner.advance();
        }
        Ok(())
    }

    /// As [`Self::checkpoint`], by nobody who waits for it: it begins nothing more on a WAL that was
    /// closed meanwhile, because that may be open again elsewhere.
    async fn clean(&self) -> Result<(), StorageError> {
        let inner = &self.0;
        let over = || inner.store.state.borrow().closed.is_some();
        if !over() {
            inner.list_lost().await?;
        }
        if !over() && inner.store.state.borrow().meta_dirty {
            inner.store.persist_meta().await?;
        }
        if !over() {
            inner.seal_if_done().await;
        }
        while let Some(id) = inner.finished_segment().filter(|_| !over()) {
            inner.let_go(id).await?;
            inner.advance();
        }
        Ok(())
    }

    /// What waits.
    #[must_use]
    pub fn pending(&self) -> WalPending {
        self.0.pending()
    }

    /// Counts of work.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.0.store.stats()
    }

    /// Why the WAL takes no appends any more.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        self.0.store.state.borrow().closed.clone()
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.0.store.dir.clone()
    }

    /// Takes no more appends, waits for those under way, and leaves everything in order on the disk.
    ///
    /// # Errors
    /// The disk's error; the next open recovers.
    pub async fn close(self) -> Result<(), StorageError> {
        // Closing waits for what is on its way to the disk, so it may not be left out.
        let checkpoint = self.checkpoint().await;
        self.0.store.close().await?;
        checkpoint
    }
}

const fn seq_of(offset: u64) -> WalSeq {
    WalSeq(offset + 1)
}

impl Inner {
    fn is_done(&self, offset: u64) -> bool {
        let done = self.done.borrow();
        offset < done.low || done.above.end_of(offset).is_some()
    }

    /// Moves the checkpoint over everything that is done, and over deleted segments.
    fn advance(&self) {
        let mut state = self.store.state.borrow_mut();
        let mut done = self.done.borrow_mut();
        loop {
            let low = done.low;
            if let Some(end) = done.above.end_of(low) {
                done.low = end;
                continue;
            }
            let at = state.segments.partition_point(|s| s.totals.end.0 <= low);
            let next = state
                .segments
                .get(at)
                .map_or(state.durable.0, |s| s.id.base.0);
            if next <= low {
                break;
            }
            done.low = next;
        }
        let low = done.low;
        done.above.drop_below(low);
        if state.frontier.0 < done.low {
            state.frontier = Offset(done.low);
            state.meta_dirty = true;
        }
    }

    fn undone(done: &Done, base: u64, end: u64) -> u64 {
        let from = base.max(done.low);
        if from >= end {
            return 0;
        }
        end - from - done.above.count(from, end)
    }

    fn finished(done: &Done, s: &Segment) -> bool {
        done.above.covers(s.id.base.0.max(done.low), s.totals.end.0)
    }

    fn finished_segment(&self) -> Option<SegmentId> {
        let state = self.store.state.borrow();
        let done = self.done.borrow();
        let sealed = state.segments.len() - usize::from(state.active);
        state.segments[..sealed]
            .iter()
            .find(|s| Self::finished(&done, s))
            .map(|s| s.id)
    }

    fn has_finished_segment(&self) -> bool {
        self.finished_segment().is_some()
    }

    /// A large active segment with nothing left in it is given up.
    async fn seal_if_done(&self) {
        let Ok(_permit) = self.store.writing.acquire_permit(1).await else {
            return;
        };
        self.store.filled_up_to(u64::MAX).await;
        let mut state = self.store.state.borrow_mut();
        let done = self.done.borrow();
        let large = self.store.options.segment_bytes / 4;
        let last = state.segments.last();
        let over = last.is_some_and(|s| s.totals.len >= large && Self::finished(&done, s));
        if state.active && over {
            state.seal_active();
        }
    }

    fn pending(&self) -> WalPending {
        let state = self.store.state.borrow();
        let done = self.done.borrow();
        let mut out = WalPending {
            lost: done.lost,
            ..WalPending::default()
        };
        for s in &state.segments {
            let undone = Self::undone(&done, s.id.base.0, s.totals.end.0);
            let all = (s.totals.end.0 - s.id.base.0).max(1);
            out.records += undone;
            out.disk_bytes += s.totals.len;
            out.bytes += (u128::from(s.totals.len) * u128::from(undone) / u128::from(all)) as u64;
        }
        out.oldest = (out.records > 0).then(|| seq_of(done.low));
        out
    }
}
