//! P4: the frontier never passes an unacked record, and moves along.
//!
//! What this file keeps true: every record below the frontier of an owner was acked by a consumer
//! (or taken by retention); a new owner starts at the captured frontier.

use super::Check;
use crate::world::World;

impl World {
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
                .map_or(copy.frontier, |source| source.frontier);
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
