//! Recent frames in memory, so that a consumer at the tail reads no disk.
//!
//! What this file keeps true: what is cached is one run of offsets without a gap that ends at the
//! durable end; all caches of an executor together stay below one budget.

use crate::format::batch::Batch;
use crate::limits::EXECUTOR_CACHE_BYTES;
use narad_core::ids::Offset;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

thread_local! {
    static CACHED_BYTES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Clone, Debug)]
pub(crate) struct CachedFrame {
    pub(crate) base: Offset,
    pub(crate) batch: Arc<Batch>,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Cache {
    frames: VecDeque<CachedFrame>,
    bytes: usize,
    limit: usize,
}

impl Cache {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Adds the newest frame and drops the oldest ones beyond the bounds. When the executor's budget
    /// is used up by other logs, this one keeps its newest frame only.
    pub(crate) fn push(&mut self, frame: CachedFrame) {
        if let Some(last) = self.frames.back()
            && last.base.0 + last.batch.len() as u64 != frame.base.0
        {
            self.clear();
        }
        self.add(frame.bytes as isize);
        self.frames.push_back(frame);
        while self.bytes > self.limit
            || (self.frames.len() > 1 && CACHED_BYTES.get() > EXECUTOR_CACHE_BYTES)
        {
            let Some(old) = self.frames.pop_front() else {
                return;
            };
            self.add(-(old.bytes as isize));
        }
    }

    fn add(&mut self, bytes: isize) {
        self.bytes = self.bytes.wrapping_add_signed(bytes);
        CACHED_BYTES.set(CACHED_BYTES.get().wrapping_add_signed(bytes));
    }

    /// The frames from the one that holds `from` on; `None` when it is not cached.
    pub(crate) fn from(&self, from: Offset) -> Option<impl Iterator<Item = &CachedFrame>> {
        let first = self.frames.front()?;
        if from < first.base {
            return None;
        }
        let at = self.frames.partition_point(|f| f.base <= from) - 1;
        Some(self.frames.iter().skip(at))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.add(-(self.bytes as isize));
        self.frames = VecDeque::new();
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let bytes = self.bytes;
        let _ = CACHED_BYTES.try_with(|c| c.set(c.get().saturating_sub(bytes)));
    }
}
