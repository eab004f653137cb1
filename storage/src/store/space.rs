//! Reserving space for appends: ahead of them while there is plenty, just what is needed when there is not.
//!
//! What this file keeps true: the disk keeps its reserve; a group that has no room is refused before
//! anything of it is written; space that is being reserved in the background is waited for by whoever
//! needs it, seals the segment or trims it.

use super::append::{GroupError, Place};
use super::state::{State, Store};
use super::wait::Until;
use crate::disk::{self, DiskFile};
use crate::error::{StorageError, is_full};
use crate::limits::{FIRST_EXTENT_BYTES, SPACE_SHARE, TRIM_BLOCK_BYTES};
use std::rc::Rc;

impl Store {
    /// Bytes that may be taken without touching the reserve.
    async fn spare_bytes(&self) -> Result<u64, StorageError> {
        let free = disk::available_bytes(&self.dir).await?;
        Ok(free.saturating_sub(self.options.reserve_bytes))
    }

    /// Refuses when there is no room for so many bytes; else how many there is room for.
    pub(crate) async fn room_for(&self, bytes: u64) -> Result<u64, GroupError> {
        let available = self.spare_bytes().await?;
        if available < bytes {
            return Err(GroupError::Full {
                needed: bytes,
                available,
            });
        }
        Ok(available)
    }

    /// How far to reserve when `have` bytes are, `since` of them since the segment was begun, opened or
    /// trimmed: extents double up to the largest.
    fn next_extent(&self, have: u64, since: u64) -> u64 {
        let largest = self.options.extent_bytes;
        let step = since.clamp(FIRST_EXTENT_BYTES, largest.max(FIRST_EXTENT_BYTES));
        have + step.min(largest)
    }

    /// Makes sure that the file has space up to `end`.
    pub(crate) async fn reserve(
        self: &Rc<Self>,
        place: &Place,
        end: u64,
    ) -> Result<(), GroupError> {
        if end <= self.state.borrow().allocated {
            return Ok(());
        }
        self.reserved().await;
        let (have, since) = {
            let state = self.state.borrow();
            (state.allocated, state.allocated - state.extents_from)
        };
        if end <= have {
            return Ok(());
        }
        let available = self.room_for(end - have).await?;
        let cap = self.options.segment_bytes.max(end);
        let wanted = self
            .next_extent(have, since)
            .min(have + available / SPACE_SHARE)
            .clamp(end, cap)
            .next_multiple_of(TRIM_BLOCK_BYTES);
        let mut result = place.file.allocate(wanted).await;
        let mut reached = wanted;
        if result.as_ref().is_err_and(StorageError::is_full) {
            reached = end.next_multiple_of(TRIM_BLOCK_BYTES);
            result = place.file.allocate(reached).await;
        }
        match result {
            Ok(()) => {}
            Err(StorageError::Io { source, .. }) if is_full(&source) => {
                return Err(GroupError::Full {
                    needed: end - have,
                    available: 0,
                });
            }
            Err(other) => return Err(other.into()),
        }
        let mut state = self.state.borrow_mut();
        state.allocated = reached;
        state.work.extents += 1;
        Ok(())
    }

    /// Called after each group, by the writer alone: reserves the next piece before it is needed, so that
    /// no append waits for it.
    pub(crate) fn reserve_ahead(self: &Rc<Self>, file: &Rc<DiskFile>) {
        let Some((have, wanted)) = self.state.borrow_mut().next_reservation(self) else {
            return;
        };
        let (store, file) = (self.clone(), file.clone());
        glommio::spawn_local(async move {
            let plenty = store
                .spare_bytes()
                .await
                .is_ok_and(|spare| (wanted - have).saturating_mul(SPACE_SHARE) <= spare);
            // What fails here is tried, and told, by the append that needs it.
            let done = plenty && file.allocate(wanted).await.is_ok();
            {
                let mut state = store.state.borrow_mut();
                state.reserving = false;
                state.reserve_after = match done {
                    true => 0,
                    false => have,
                };
                if done {
                    state.allocated = wanted;
                    state.work.extents += 1;
                }
            }
            store.waiters.wake_all();
        })
        .detach();
    }

    /// Waits until no space is being reserved.
    async fn reserved(self: &Rc<Self>) {
        Until::new(self.clone(), |store: &Store| {
            !store.state.borrow().reserving
        })
        .await;
    }

    /// Waits until neither zeros nor space ahead are on their way, for whoever seals or trims the segment.
    /// The caller keeps the writer from starting new ones.
    pub(crate) async fn prepared(self: &Rc<Self>) {
        self.reserved().await;
        self.filled_up_to(u64::MAX).await;
    }
}

impl State {
    /// When less than half of the next extent is left: from where to where to reserve.
    fn next_reservation(&mut self, store: &Store) -> Option<(u64, u64)> {
        let len = self.segments.last()?.totals.len;
        let have = self.allocated;
        let wanted = store
            .next_extent(have, have - self.extents_from)
            .min(store.options.segment_bytes)
            .next_multiple_of(TRIM_BLOCK_BYTES);
        if !self.active
            || self.reserving
            || self.closed.is_some()
            // Not again where it did not succeed.
            || self.reserve_after == have
            || wanted <= have
            || len + (wanted - have) / 2 < have
        {
            return None;
        }
        self.reserving = true;
        Some((have, wanted))
    }
}
