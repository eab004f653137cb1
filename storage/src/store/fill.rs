//! Writing zeros ahead of small appends.
//!
//! What this file keeps true: space that is reserved but was never written costs a journal commit at
//! each sync; once written it does not. Zeros go only where nothing was written yet, and the writer never
//! writes where zeros are on their way; both are ordered by [`Store::filled_up_to`].

use super::state::{State, Store};
use super::wait::Until;
use crate::disk::{self, DiskFile};
use crate::limits::{FILL_AFTER_GROUPS, FILL_BYTES, FILL_GROUP_BYTES, TRIM_BLOCK_BYTES};
use std::rc::Rc;

impl State {
    /// Starts filling when appends are small and the zeros ahead run out: the range to fill.
    fn next_fill(&mut self) -> Option<(u64, u64)> {
        let len = self.segments.last()?.totals.len;
        let small = self.work.writes > 0
            && self.groups_here >= FILL_AFTER_GROUPS
            && self.usual_group <= FILL_GROUP_BYTES;
        if !self.active || !small || self.filling.is_some() || self.closed.is_some() {
            return None;
        }
        let from = self.filled.max(len).next_multiple_of(TRIM_BLOCK_BYTES);
        let to = self.allocated.min(from + FILL_BYTES);
        if from > len + FILL_BYTES / 2 || to <= from {
            return None;
        }
        self.filling = Some(from);
        Some((from, to))
    }
}

impl Store {
    /// Called after each group, by the writer alone.
    pub(crate) fn fill_ahead(self: &Rc<Self>, file: &Rc<DiskFile>) {
        let Some((from, to)) = self.state.borrow_mut().next_fill() else {
            return;
        };
        let (store, file) = (self.clone(), file.clone());
        glommio::spawn_local(async move {
            let mut zeros = disk::buffer((to - from) as usize);
            zeros.as_bytes_mut().fill(0);
            let result = file.write(Rc::new(zeros), from).await;
            {
                let mut state = store.state.borrow_mut();
                state.filling = None;
                match result {
                    Ok(()) => {
                        state.filled = state.filled.max(to);
                        state.work.filled_bytes += to - from;
                    }
                    Err(error) => {
                        // The disk fails where the next appends go: they are not tried.
                        state.closed.get_or_insert(error.to_string());
                    }
                }
            }
            store.waiters.wake_all();
        })
        .detach();
    }

    /// Waits until bytes below `end` of the active segment may be written.
    pub(crate) async fn filled_up_to(self: &Rc<Self>, end: u64) {
        Until::new(self.clone(), move |store: &Store| {
            store.state.borrow().filling.is_none_or(|from| end <= from)
        })
        .await;
    }
}
