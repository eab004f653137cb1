//! What a walk checks: after every step, at every flip, and at the end.

use super::world::World;
use crate::meta::EpochEnd;
use alloc::collections::BTreeSet;

impl World {
    pub(super) fn check_flip(&self) {
        let view = self.view();
        let ended = view.ended.last().expect("a flip ends an epoch");
        let old = &self.nodes[self.index_of(&ended.owner)].copies[&ended.epoch];
        let new = &self.nodes[self.index_of(&view.owner)].copies[&view.epoch];
        assert!(
            old.records.starts_with(&new.records),
            "P3: the copy is a prefix of the source"
        );
        assert!(new.hwm <= new.records.len());
    }

    /// P1, on the newest version of the metadata.
    pub(super) fn check(&self) {
        let view = self.view();
        let owner = &self.nodes[self.index_of(&view.owner)];
        let current = owner
            .copies
            .get(&view.epoch)
            .unwrap_or_else(|| panic!("P9: the owner has no copy of epoch {}", view.epoch));
        let mut held: BTreeSet<u64> = current.records.iter().copied().collect();
        for node in &self.nodes {
            held.extend(&node.wal);
        }
        for ended in &view.ended {
            let from = match ended.end {
                EpochEnd::Completed { captured_end } => captured_end.0,
                EpochEnd::Promoted { told_hwm } => told_hwm.0,
                EpochEnd::Forgotten => unreachable!("no node is given up in this model"),
            };
            let node = &self.nodes[self.index_of(&ended.owner)];
            if let Some(copy) = node.copies.get(&ended.epoch) {
                let from = usize::try_from(from).expect("fits");
                held.extend(copy.records.iter().skip(from));
            }
        }
        if let Some(lost) = self.acked.iter().find(|r| !held.contains(r)) {
            panic!("P1: acked record {lost} is lost");
        }
    }

    /// The faults stop: every move ends, and the partition takes appends.
    pub(super) fn heal_and_finish(&mut self) {
        self.faults = false;
        for at in 0..self.nodes.len() {
            self.nodes[at].cut = false;
            self.nodes[at].stalled = false;
            self.restart(at);
        }
        for _ in 0..3_000 {
            for at in 0..self.nodes.len() {
                self.catch_up(at);
                self.end_append(at);
                self.worker_step(at);
                self.reclaim(at);
            }
            self.late();
            let idle = self.view().target.is_none()
                && self.late_commands.is_empty()
                && self.view().ended.is_empty();
            if idle && self.appendable() {
                self.check();
                return;
            }
            let ms = 20 + self.rng.below(300);
            self.advance(ms);
            self.check();
        }
        panic!("P5: the move does not end: {:?}", self.view());
    }

    fn appendable(&self) -> bool {
        let owner = &self.nodes[self.index_of(&self.view().owner)];
        owner
            .source
            .as_ref()
            .is_some_and(|s| s.side.may_append(self.now, owner.lease.until()).is_ok())
    }
}
