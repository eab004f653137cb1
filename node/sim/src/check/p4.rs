//! P4: the frontier never passes an unacked record, and moves along.
//!
//! What this file keeps true: every record below the frontier of an owner was acked by a consumer
//! (or taken by retention); a new owner starts at the frontier that was captured or told; no lease
//! has another's proof; at rest every record that nobody acked is delivered again.

use super::Check;
use crate::world::World;
use std::collections::BTreeSet;

impl World {
    /// A flip was just applied: acks that the source took after the capture are all that may be
    /// missing in the frontier.
    pub(crate) fn check_moved_frontier(
        &mut self,
        p: usize,
        captured: &BTreeSet<u64>,
        installed: u64,
    ) {
        if !captured.contains(&installed) {
            let what =
                format!("p{p} moves with frontier {captured:?} and arrives with {installed}");
            self.violate(Check::P4, what);
        }
    }

    /// At rest.
    pub(crate) fn check_deliverable(&mut self) {
        for p in 0..self.keys.len() {
            let Some(view) = self.view(p) else { continue };
            let n = self.index_of(&view.owner);
            if let Some(record) = self.undeliverable(n, p) {
                let what = format!("record {record} of p{p} is never delivered again");
                self.violate(Check::P4, what);
                return;
            }
        }
    }

    /// At every moment.
    pub(crate) fn check_frontiers(&mut self) {
        if !self.setup.allow.consume {
            return;
        }
        for p in 0..self.keys.len() {
            let Some(view) = self.view(p) else { continue };
            let n = self.index_of(&view.owner);
            let part = &self.nodes[n].parts[p];
            let Some(copy) = part.copies.get(&view.epoch) else {
                continue;
            };
            let memory = part
                .source
                .as_ref()
                .filter(|source| source.side.copy().epoch == view.epoch)
                .map_or(copy.frontier, |source| source.leases.frontier().0);
            let frontier = memory.max(copy.frontier);
            let passed = copy.segments.iter().find(|(at, record)| {
                *at < frontier && *at >= copy.start && !self.ghost.consumed.contains(record)
            });
            if let Some((at, record)) = passed {
                let what =
                    format!("frontier {frontier} of p{p} passes record {record} at {at}, unacked");
                self.violate(Check::P4, what);
                return;
            }
        }
    }
}
