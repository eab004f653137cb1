//! State of one open log.
//!
//! What this file keeps true: segments are in offset order and only the last may be active; `durable`
//! never exceeds what a sync has confirmed; `next` is the offset that the next append gets.

use super::ahead::Stash;
use super::append::Pending;
use super::cache::Cache;
use super::wait::Waiters;
use crate::disk::DiskFile;
use crate::error::AppendError;
use crate::format::list::{IndexPoint, Marks, Totals};
use crate::format::segment::{Owner, SegmentIdent, file_name};
use crate::limits::OPEN_SEGMENTS;
use crate::options::Options;
use glommio::sync::Semaphore;
use narad_core::copy::{InstallMark, SegmentId};
use narad_core::ids::{Epoch, Offset};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One segment of an open log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    /// Sums up to the durable length.
    pub(crate) totals: Totals,
    /// Points of the sparse index, for the bytes from `unindexed` on.
    pub(crate) index: Vec<IndexPoint>,
    /// Bytes at the start for which the index has no points yet.
    pub(crate) unindexed: u64,
    /// The file carries its footer.
    pub(crate) footed: bool,
    pub(crate) file: Option<Rc<DiskFile>>,
}

/// Counts of work done by one open log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Durable bytes in all segments.
    pub bytes: u64,
    /// Readable records in all segments.
    pub records: u64,
    /// Records that are damaged or missing.
    pub missing: u64,
    /// Segments.
    pub segments: usize,
    /// Of those, how many take no more appends.
    pub sealed: usize,
    /// Group writes since the log was opened.
    pub writes: u64,
    /// Syncs of segment data since the log was opened.
    pub syncs: u64,
    /// Bytes of group writes since the log was opened.
    pub written_bytes: u64,
    /// Of those, zeros that fill the last block.
    pub padding_bytes: u64,
    /// Zeros written ahead of small appends, in bytes.
    pub filled_bytes: u64,
    /// Times space was reserved ahead.
    pub extents: u64,
    /// Reads from the disk for consumers since the log was opened.
    pub reads: u64,
    /// Bytes of those reads.
    pub read_bytes: u64,
    /// Appends (batches) made durable since the log was opened.
    pub appends: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) segments: Vec<Segment>,
    /// The last segment takes appends.
    pub(crate) active: bool,
    /// Space reserved in the active segment's file.
    pub(crate) allocated: u64,
    /// Of that, what was there when the segment was begun, opened or trimmed.
    pub(crate) extents_from: u64,
    /// Space is being reserved behind that.
    pub(crate) reserving: bool,
    /// Where reserving ahead did not succeed; 0 for nowhere.
    pub(crate) reserve_after: u64,
    /// Everything below this was written in the active segment's file, if only with zeros.
    pub(crate) filled: u64,
    /// Zeros are on their way to here and behind.
    pub(crate) filling: Option<u64>,
    /// Groups written to the active segment since the log was opened.
    pub(crate) groups_here: u64,
    /// Bytes of a group, a mean in which the last ones count most.
    pub(crate) usual_group: u64,
    pub(crate) next: Offset,
    pub(crate) durable: Offset,
    pub(crate) start: Offset,
    pub(crate) frontier: Offset,
    pub(crate) fence: Option<(Offset, Offset)>,
    pub(crate) install: Option<InstallMark>,
    /// Marks of everything queued.
    pub(crate) marks: Marks,
    /// Marks of everything durable.
    pub(crate) durable_marks: Marks,
    pub(crate) queue: VecDeque<Pending>,
    pub(crate) queue_bytes: usize,
    pub(crate) writer_runs: bool,
    pub(crate) closed: Option<String>,
    pub(crate) cache: Cache,
    pub(crate) stashes: Vec<Stash>,
    pub(crate) meta_generation: u64,
    pub(crate) meta_dirty: bool,
    pub(crate) listed_len: u64,
    pub(crate) list_writer_runs: bool,
    pub(crate) list_dirty: bool,
    pub(crate) pins: BTreeMap<Offset, usize>,
    pub(crate) work: LogStats,
}

/// One open log: what a partition's `Log` and a `Wal` are made of.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) owner: Owner,
    pub(crate) epoch: Epoch,
    pub(crate) options: Options,
    pub(crate) state: RefCell<State>,
    pub(crate) waiters: Waiters,
    /// Held by whoever writes to, seals or trims the active segment.
    pub(crate) writing: Semaphore,
    /// Held by whoever writes the meta file.
    pub(crate) meta_lock: Semaphore,
    /// Held by whoever writes the list.
    pub(crate) list_lock: Semaphore,
    /// Held by whoever lets segments go, from the choice until no list names them.
    pub(crate) keep_lock: Semaphore,
    pub(crate) meta_file: RefCell<Option<Rc<DiskFile>>>,
    /// Whom every group that has become durable is told to.
    pub(crate) on_durable: RefCell<Option<OnDurable>>,
}

/// Takes bytes of records.
#[derive(Clone)]
pub(crate) struct OnDurable(pub(crate) Rc<dyn Fn(u64)>);

impl fmt::Debug for OnDurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDurable")
    }
}

impl State {
    pub(crate) fn empty(cache_bytes: usize) -> Self {
        Self {
            segments: Vec::new(),
            active: false,
            allocated: 0,
            extents_from: 0,
            reserving: false,
            reserve_after: 0,
            filled: 0,
            filling: None,
            groups_here: 0,
            usual_group: 0,
            next: Offset(0),
            durable: Offset(0),
            start: Offset(0),
            frontier: Offset(0),
            fence: None,
            install: None,
            marks: Marks::new(),
            durable_marks: Marks::new(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            writer_runs: false,
            closed: None,
            cache: Cache::new(cache_bytes),
            stashes: Vec::new(),
            meta_generation: 0,
            meta_dirty: false,
            listed_len: 0,
            list_writer_runs: false,
            list_dirty: false,
            pins: BTreeMap::new(),
            work: LogStats::default(),
        }
    }

    pub(crate) fn hwm(&self) -> Offset {
        self.fence.map_or(self.durable, |(from, _)| from)
    }

    /// Everything below `end` is durable now.
    pub(crate) fn advance(&mut self, end: Offset) {
        assert!(end >= self.durable, "the durable end went back");
        self.durable = end;
        if self.fence.is_some_and(|(_, to)| end > to) {
            self.fence = None;
            self.meta_dirty = true;
        }
    }

    pub(crate) fn position_of(&self, id: SegmentId) -> Option<usize> {
        self.segments.binary_search_by_key(&id, |s| s.id).ok()
    }

    pub(crate) fn check_open(&self) -> Result<(), AppendError> {
        match &self.closed {
            None => Ok(()),
            Some(reason) => Err(AppendError::Closed {
                reason: reason.clone(),
            }),
        }
    }

    /// Keeps the number of open files of sealed segments bounded; `keep` stays open.
    pub(crate) fn close_others(&mut self, keep: SegmentId) {
        let sealed = self.segments.len() - usize::from(self.active);
        let open = self.segments[..sealed].iter().filter(|s| s.file.is_some());
        let mut surplus = open.count().saturating_sub(OPEN_SEGMENTS);
        for segment in &mut self.segments[..sealed] {
            if surplus == 0 {
                return;
            }
            if segment.id != keep && segment.file.take().is_some() {
                surplus -= 1;
            }
        }
    }
}

impl Store {
    pub(crate) fn new(
        dir: &Path,
        owner: Owner,
        epoch: Epoch,
        options: &Options,
        state: State,
    ) -> Rc<Self> {
        Rc::new(Self {
            dir: dir.to_path_buf(),
            owner,
            epoch,
            options: options.bounded(),
            state: RefCell::new(state),
            waiters: Waiters::default(),
            writing: Semaphore::new(1),
            meta_lock: Semaphore::new(1),
            list_lock: Semaphore::new(1),
            keep_lock: Semaphore::new(1),
            meta_file: RefCell::new(None),
            on_durable: RefCell::new(None),
        })
    }

    pub(crate) fn ident(&self, id: SegmentId) -> SegmentIdent {
        SegmentIdent {
            owner: self.owner,
            id,
        }
    }

    pub(crate) fn path_of(&self, id: SegmentId) -> PathBuf {
        self.dir.join(file_name(id))
    }

    pub(crate) fn stats(&self) -> LogStats {
        let state = self.state.borrow();
        // Damage may add more missing offsets to segments than there can be records.
        let sum =
            |f: fn(&Segment) -> u64| state.segments.iter().map(f).fold(0, u64::saturating_add);
        LogStats {
            bytes: sum(|s| s.totals.len),
            records: sum(|s| s.totals.records),
            missing: sum(|s| s.totals.missing),
            segments: state.segments.len(),
            sealed: state.segments.len() - usize::from(state.active),
            ..state.work
        }
    }

    /// An open file of the segment, for reading or, if it is the active one, writing.
    pub(crate) async fn file_of(
        &self,
        id: SegmentId,
    ) -> Result<Option<Rc<DiskFile>>, crate::error::StorageError> {
        {
            let state = self.state.borrow();
            match state.position_of(id) {
                None => return Ok(None),
                Some(i) if state.segments[i].file.is_some() => {
                    return Ok(state.segments[i].file.clone());
                }
                Some(_) => {}
            }
        }
        let file = DiskFile::open(&self.path_of(id)).await?;
        let mut state = self.state.borrow_mut();
        let Some(i) = state.position_of(id) else {
            return Ok(None);
        };
        let file = state.segments[i].file.get_or_insert(file).clone();
        state.close_others(id);
        Ok(Some(file))
    }
}
