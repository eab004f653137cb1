//! P2: one appender a partition and epoch.
//!
//! What this file keeps true: it is counted at the last check before an ack: whoever acks owns the
//! partition in the newest version of the metadata, and nobody else has acked under that epoch.

use super::Check;
use crate::disk::Record;
use crate::world::World;
use narad_core::ids::Epoch;

impl World {
    /// `n` is about to ack a record that it appended under `epoch`.
    pub(crate) fn check_appender(&mut self, n: usize, p: usize, epoch: Epoch, record: Record) {
        let me = self.nodes[n].id.clone();
        let owns = self
            .view(p)
            .is_some_and(|view| view.owner == me && view.epoch == epoch);
        if self.view(p).is_some() && !owns {
            let what = format!("{me} acks record {record} under epoch {epoch}, which has ended");
            self.violate(Check::P2, what);
            return;
        }
        let first = *self.ghost().appenders.entry((p, epoch)).or_insert(n);
        if first != n {
            let what = format!("nodes {first} and {n} both ack under epoch {epoch} of p{p}");
            self.violate(Check::P2, what);
        }
    }
}
