//! Entries of a WAL that damage has destroyed.
//!
//! What this file keeps true: they hold nobody up, but the bytes around them, in which somebody may still
//! find something, are never deleted: their segment is kept in `damaged/` beside the WAL, where
//! `narad verify` looks; a restart knows it by the segment's description, which is durable before
//! anything passes over what is lost.

use super::Inner;
use crate::disk;
use crate::error::StorageError;
use crate::store::read::ReadBatch;
use crate::store::state::Segment;
use narad_core::copy::SegmentId;
use narad_core::ids::Offset;

/// Directory of segments with lost entries, in the directory of their WAL.
pub(crate) const DAMAGED: &str = "damaged";

impl Inner {
    /// Whether reading from `from` on gave less than what waits there.
    pub(super) fn misses(&self, from: u64, batch: &ReadBatch) -> bool {
        let mut expected = from;
        let read = batch.records.iter().map(|(offset, _)| offset.0);
        read.chain([batch.next.0]).any(|at| {
            let gap = self.waits(expected, at);
            expected = at + 1;
            gap
        })
    }

    /// Whether one of these offsets is in a segment and not done.
    fn waits(&self, from: u64, until: u64) -> bool {
        if from >= until {
            return false;
        }
        let state = self.store.state.borrow();
        let done = self.done.borrow();
        let first = state.segments.partition_point(|s| s.totals.end.0 <= from);
        let here = |s: &&Segment| s.id.base.0 < until;
        let mut segments = state.segments[first..].iter().take_while(here);
        segments.any(|s| Self::undone(&done, from.max(s.id.base.0), until.min(s.totals.end.0)) > 0)
    }

    /// Offsets that reading has shown to be damaged or deleted wait for nobody.
    pub(super) fn note_lost(&self, from: u64, until: u64) {
        if from >= until {
            return;
        }
        {
            let mut state = self.store.state.borrow_mut();
            let mut done = self.done.borrow_mut();
            let from = from.max(done.low);
            let first = state.segments.partition_point(|s| s.totals.end.0 <= from);
            let here = |s: &&mut Segment| s.id.base.0 < until;
            for s in state.segments[first..].iter_mut().take_while(here) {
                let (begin, end) = (from.max(s.id.base.0), until.min(s.totals.end.0));
                let lost = done.above.add(begin, end);
                if lost > 0 {
                    done.lost += lost;
                    // At the least: recovery may have counted the same ones.
                    s.totals.missing = s.totals.missing.max(lost);
                    done.unlisted = true;
                }
            }
        }
        self.advance();
    }

    /// Makes it durable that segments have lost entries.
    pub(super) async fn list_lost(&self) -> Result<(), StorageError> {
        if !std::mem::take(&mut self.done.borrow_mut().unlisted) {
            return Ok(());
        }
        let listed = self.store.persist_list().await;
        self.done.borrow_mut().unlisted |= listed.is_err();
        listed
    }

    /// A sealed segment whose entries all wait for nobody goes, or is kept where some were lost.
    pub(super) async fn let_go(&self, id: SegmentId) -> Result<(), StorageError> {
        let missing = {
            let state = self.store.state.borrow();
            let at = state.position_of(id);
            at.map_or(0, |i| state.segments[i].totals.missing)
        };
        if missing == 0 {
            return self.store.remove_sealed(id, Offset(0)).await;
        }
        let dir = self.store.dir.join(DAMAGED);
        disk::create_dir(&dir).await?;
        if let Some(kept) = self.store.set_sealed_aside(id, &dir).await? {
            tracing::error!(
                path = %kept.display(), missing,
                "accepted records in the ingress WAL are damaged; the segment that held them is kept"
            );
        }
        Ok(())
    }
}
