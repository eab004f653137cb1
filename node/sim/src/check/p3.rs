//! P3: the copy's HWM is the source's, and a move exposes nothing that was hidden.
//!
//! What this file keeps true: a flip makes exactly what was captured (or told) the new log; what a
//! salvage puts into the WAL is not what the new owner keeps hidden behind a fence.

use super::Check;
use crate::disk::Record;
use crate::world::World;
use narad_core::ids::{Epoch, HandoffId};
use narad_core::meta::EpochEnd;

impl World {
    /// A flip was just applied.
    pub(crate) fn check_flip(&mut self, p: usize, handoff: Option<HandoffId>) {
        let Some(view) = self.view(p).cloned() else {
            return;
        };
        let Some(ended) = view.ended.last() else {
            return;
        };
        let new = self.nodes[self.index_of(&view.owner)].parts[p]
            .copies
            .get(&view.epoch);
        let Some(new) = new else {
            let what = format!("p{p} flips to {}, which has no copy of it", view.owner);
            self.violate(Check::P9, what);
            return;
        };
        let (hwm, end, records) = (new.hwm, new.end(), new.segments.clone());
        let frontier = new.frontier;
        let old = self.nodes[self.index_of(&ended.owner)].parts[p]
            .copies
            .get(&ended.epoch);
        if let Some(old) = old {
            let same = records.iter().all(|(at, record)| {
                at < old.start || old.segments.iter().any(|known| known == (at, record))
            });
            if !same {
                let what = format!("the new copy of p{p} holds what its source does not");
                self.violate(Check::P3, what);
                return;
            }
        }
        let told = handoff.and_then(|id| self.ghost.captured_frontiers.get(&id));
        if let Some(told) = told.cloned() {
            self.check_moved_frontier(p, &told, frontier);
        }
        let capture = handoff.and_then(|id| self.ghost.captures.get(&id));
        let wrong = capture.filter(|capture| capture.hwm.0 != hwm || capture.end().0 != end);
        if let Some(capture) = wrong {
            let what = format!(
                "the new copy of p{p} has HWM {hwm} and end {end}, its source {} and {}",
                capture.hwm,
                capture.end()
            );
            self.violate(Check::P3, what);
        }
    }

    /// These records of an ended copy go into the WAL.
    pub(crate) fn check_salvage(&mut self, p: usize, records: &[Record], epoch: Epoch) {
        let Some(view) = self.view(p) else { return };
        let completed = view
            .ended
            .iter()
            .any(|e| e.epoch == epoch && matches!(e.end, EpochEnd::Completed { .. }));
        let owner = &self.nodes[self.index_of(&view.owner)].parts[p];
        let Some(copy) = owner.copies.get(&view.epoch) else {
            return;
        };
        let hidden = copy
            .segments
            .iter()
            .find(|(at, record)| completed && *at >= copy.hwm && records.contains(record));
        if let Some((at, record)) = hidden {
            let what = format!("record {record} at {at} is hidden in the copy and salvaged");
            self.violate(Check::P3, what);
        }
    }
}
