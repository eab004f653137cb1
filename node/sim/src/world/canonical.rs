//! One number for a state: two states that no rule tells apart have the same.
//!
//! What this file keeps true: instants count by their distance from now, pacing and texts do not
//! count, everything else does.

use super::{Node, Part, World};
use crate::hash::Hash128;
use std::hash::{Hash, Hasher};

impl World {
    /// See the file's description.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        let mut hash = Hash128::default();
        for version in &self.versions {
            version.state.applied.hash(&mut hash);
            hash.write_u64(u64::try_from(version.digest & u128::from(u64::MAX)).expect("masked"));
        }
        self.pool.hash(&mut hash);
        for call in &self.calls {
            (call.n, call.p).hash(&mut hash);
            format!("{:?}", call.input).hash(&mut hash);
        }
        for node in &self.nodes {
            self.hash_node(node, &mut hash);
        }
        self.held.hash(&mut hash);
        self.ghost.hash(&mut hash);
        (self.leader, self.faults, self.commands, self.advances).hash(&mut hash);
        self.last_command.is_some().hash(&mut hash);
        hash.finish128()
    }

    fn hash_node(&self, node: &Node, hash: &mut Hash128) {
        let flags = [
            node.up,
            node.cut,
            node.mute,
            node.removed,
            node.confirmed,
            node.leads,
        ];
        flags.hash(hash);
        node.life.hash(hash);
        node.applied.hash(hash);
        if self.setup.deaths {
            node.lease.rebased(self.now).hash(hash);
            if node.leads {
                node.liveness.rebased(self.now).hash(hash);
            }
        }
        node.wal.hash(hash);
        (&node.wal_done, node.wal_next, &node.dispatches).hash(hash);
        node.dispatch.without_pacing().hash(hash);
        for part in &node.parts {
            self.hash_part(part, hash);
        }
    }

    fn hash_part(&self, part: &Part, hash: &mut Hash128) {
        match &part.source {
            None => hash.write_u8(0),
            Some(source) => {
                source.side.rebased(self.now).hash(hash);
                (&source.in_flight, source.settling, source.stopped).hash(hash);
                (source.failed, source.marked, source.written).hash(hash);
                source.leases.hash(hash);
            }
        }
        match &part.worker {
            None => hash.write_u8(0),
            Some(worker) => {
                worker.machine.without_pacing().hash(hash);
                worker.watch.rebased(self.now).hash(hash);
                std::mem::discriminant(&worker.pending).hash(hash);
                if let Some(pending) = &worker.pending {
                    std::mem::discriminant(pending).hash(hash);
                }
                (worker.interrupted, worker.asked).hash(hash);
            }
        }
        part.copies.hash(hash);
        part.staging.hash(hash);
        part.aside.hash(hash);
        part.told.hash(hash);
        (&part.salvaged, part.again, part.found, part.rejected).hash(hash);
    }
}
