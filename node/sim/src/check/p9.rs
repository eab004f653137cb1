//! P9: nothing is deleted while it is the only copy.
//!
//! What this file keeps true: a copy that the newest version of the metadata gives to its node is
//! never deleted, nor one whose acked records are nowhere else.

use super::Check;
use crate::world::World;
use narad_core::ids::Epoch;

impl World {
    /// A copy is about to be deleted.
    pub(crate) fn check_delete(&mut self, n: usize, p: usize, epoch: Epoch) {
        let Some(view) = self.view(p) else { return };
        if view.owner == self.nodes[n].id && view.epoch == epoch {
            let what = format!("the owner's own copy of p{p} is deleted at node {n}");
            self.violate(Check::P9, what);
        }
    }
}
