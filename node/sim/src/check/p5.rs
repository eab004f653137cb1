//! P5: every move ends.
//!
//! What this file keeps true: while nothing fails, no freeze outlasts its time to live; at rest no move runs, no freeze stands, and whoever owns a partition
//! takes appends to it. That a state comes to rest at all is looked at by
//! [`World::finish`](crate::world::World::finish).

use super::Check;
use crate::limits::FREEZE_ROUNDS;
use crate::world::World;
use narad_core::ids::HandoffId;
use std::collections::BTreeMap;

/// Freezes that stand, and for how many rounds of a fair continuation each has.
pub(crate) type Freezes = BTreeMap<(usize, usize), (Option<HandoffId>, u32)>;

impl World {
    /// After every round of a fair continuation: a freeze is bounded. It ends by the flip, or by its
    /// time to live and the cancel that follows.
    pub(crate) fn check_freezes(&mut self, frozen: &mut Freezes) {
        for n in 0..self.nodes.len() {
            for p in 0..self.keys.len() {
                let source = self.nodes[n].parts[p].source.as_ref();
                let stands = source.is_some_and(|s| s.side.is_frozen()) && self.in_quorum(n);
                if !stands {
                    frozen.remove(&(n, p));
                    continue;
                }
                let target = self.view(p).and_then(|view| view.target.as_ref());
                let handoff = target.and_then(|target| target.handoff);
                let entry = frozen.entry((n, p)).or_insert((handoff, 0));
                if entry.0 != handoff {
                    *entry = (handoff, 0);
                }
                entry.1 += 1;
                if entry.1 > FREEZE_ROUNDS {
                    let what = format!("the freeze of p{p} at node {n} outlasts its time");
                    self.violate(Check::P5, what);
                    return;
                }
            }
        }
    }

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
