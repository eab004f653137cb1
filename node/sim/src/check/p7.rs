//! P7: a drained node leaves with nothing.
//!
//! What this file keeps true: at the moment of its removal it owns nothing, nothing moves to it, no
//! copy and no undelivered record is on its disk, and it does not lead.

use super::Check;
use crate::world::World;

impl World {
    /// `n` was just removed.
    pub(crate) fn check_removed(&mut self, n: usize) {
        let node = &self.nodes[n];
        let copies: usize = node.parts.iter().map(|part| part.copies.len()).sum();
        let named = self.last().assignments().any(|(_, a)| {
            a.owner == node.id
                || a.target.as_ref().is_some_and(|t| t.node == node.id)
                || a.ended.iter().any(|e| e.owner == node.id)
        });
        let leads = self.setup.deaths && self.leader == n;
        if copies > 0 || !node.wal.is_empty() || named || leads {
            let what = format!(
                "{} leaves with {copies} copies, {} records, named: {named}, leads: {leads}",
                node.id,
                node.wal.len()
            );
            self.violate(Check::P7, what);
        }
    }
}
