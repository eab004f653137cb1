//! P5: every move ends.
//!
//! What this file keeps true: at rest no move runs, no freeze stands, and whoever owns a partition
//! takes appends to it. That a state comes to rest at all is looked at by
//! [`World::finish`](crate::world::World::finish).

use super::Check;
use crate::world::World;

impl World {
    /// At rest.
    pub(crate) fn check_ended(&mut self) {
        for n in 0..self.nodes.len() {
            for p in 0..self.keys.len() {
                let part = &self.nodes[n].parts[p];
                let frozen = part.source.as_ref().is_some_and(|s| s.side.is_frozen());
                if frozen {
                    self.violate(Check::P5, format!("p{p} is frozen at node {n} at rest"));
                }
            }
        }
    }
}
