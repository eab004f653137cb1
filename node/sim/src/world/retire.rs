//! Copies of ended epochs: salvage, reclaim, report, as the shard does it.
//!
//! What this file keeps true: what only such a copy holds is durable in the WAL before it goes; it
//! goes by its identity (R2), behind a barrier, once the new owner serves.

use super::World;
use crate::action::How;
use crate::mutation::Mutation;
use narad_core::copies::{RetireStep, Retiring, Standing, retire, standing, unreported};
use narad_core::ids::Epoch;
use narad_core::meta::Command;

impl World {
    /// What a copy on a disk is, by what the node has applied.
    #[must_use]
    pub fn standing_of(&self, n: usize, p: usize, epoch: Epoch) -> Standing {
        let node = &self.nodes[n];
        let mark = node.parts[p].copies.get(&epoch).and_then(|c| c.mark);
        standing(
            &node.id,
            &self.state_of(n).state,
            self.copy_id(p, epoch),
            mark,
        )
    }

    fn closed(&self, n: usize, p: usize, epoch: Epoch) -> bool {
        let hasty = self.off(Mutation::R8);
        self.nodes[n].parts[p]
            .source
            .as_ref()
            .is_none_or(|source| source.side.copy().epoch != epoch || (hasty && source.stopped))
    }

    /// The ended copy that can be salvaged next.
    #[must_use]
    pub fn salvageable(&self, n: usize, p: usize) -> Option<Epoch> {
        let node = &self.nodes[n];
        if !node.up || !node.confirmed {
            return None;
        }
        let part = &node.parts[p];
        part.copies.keys().copied().find(|epoch| {
            self.closed(n, p, *epoch)
                && matches!(
                    retire(&self.standing_of(n, p, *epoch), self.retiring(n, p, *epoch)),
                    RetireStep::Salvage { .. }
                )
        })
    }

    pub(crate) fn salvage(&mut self, n: usize, p: usize) {
        let Some(epoch) = self.salvageable(n, p) else {
            return;
        };
        let standing = self.standing_of(n, p, epoch);
        let RetireStep::Salvage { end } = retire(&standing, self.retiring(n, p, epoch)) else {
            return;
        };
        let copy = &self.nodes[n].parts[p].copies[&epoch];
        let from = Self::salvage_from(end, copy);
        let records: Vec<_> = copy.shown_from(from.max(copy.start)).collect();
        self.check_salvage(p, &records, epoch);
        self.wal_append(n, p, &records, false);
        self.part(n, p).salvaged.insert(epoch, end);
    }

    /// The copy that can be reclaimed next.
    #[must_use]
    pub fn reclaimable(&self, n: usize, p: usize) -> Option<Epoch> {
        let node = &self.nodes[n];
        if !node.up || !node.confirmed {
            return None;
        }
        let part = &node.parts[p];
        part.copies.keys().copied().find(|epoch| {
            self.closed(n, p, *epoch)
                && match retire(&self.standing_of(n, p, *epoch), self.retiring(n, p, *epoch)) {
                    RetireStep::Confirm => true,
                    // Rules switched off.
                    RetireStep::Stay => {
                        let ours = self.standing_of(n, p, *epoch) == Standing::Ours;
                        let unmarked = part.copies[epoch].mark.is_none();
                        let lax = self.off(Mutation::ReclaimOnLocalView)
                            || (self.off(Mutation::R3) && unmarked);
                        lax && !ours
                    }
                    _ => false,
                }
        })
    }

    pub(crate) fn reclaim(&mut self, n: usize, p: usize, how: How) {
        let Some(epoch) = self.reclaimable(n, p) else {
            return;
        };
        if self.off(Mutation::ReclaimOnLocalView) {
            self.delete_copy(n, p, epoch);
            return;
        }
        if !self.to_leader(n) {
            return;
        }
        self.catch_up(n);
        let standing = self.standing_of(n, p, epoch);
        let mut done = Retiring {
            confirmed: true,
            ..self.retiring(n, p, epoch)
        };
        if retire(&standing, done) == RetireStep::AskOwner {
            done.served = self.owner_serves(n, p);
        }
        match retire(&standing, done) {
            RetireStep::Delete { report } => {
                self.delete_copy(n, p, epoch);
                if report {
                    self.part(n, p).again = Some(epoch);
                    self.mark_reclaimed(n, p, epoch, how);
                }
            }
            RetireStep::Stay if standing == Standing::Unknown && self.off(Mutation::R3) => {
                self.delete_copy(n, p, epoch);
            }
            _ => {}
        }
    }

    fn retiring(&self, n: usize, p: usize, epoch: Epoch) -> Retiring {
        Retiring {
            salvaged: self.nodes[n].parts[p].salvaged.get(&epoch).copied(),
            ..Retiring::default()
        }
    }

    fn owner_serves(&self, n: usize, p: usize) -> bool {
        let Some(view) = self.view_of(n, p) else {
            return false;
        };
        let owner = self.index_of(&view.owner);
        self.reach(n, owner)
            && self.nodes[owner].parts[p]
                .source
                .as_ref()
                .is_some_and(|s| s.side.copy().epoch == view.epoch && s.side.may_consume())
    }

    fn delete_copy(&mut self, n: usize, p: usize, epoch: Epoch) {
        self.check_delete(n, p, epoch);
        let part = self.part(n, p);
        part.copies.remove(&epoch);
        part.salvaged.remove(&epoch);
        self.count.reclaims += 1;
    }

    fn mark_reclaimed(&mut self, n: usize, p: usize, epoch: Epoch, how: How) {
        let command = Command::MarkReclaimed {
            key: self.keys[p],
            epoch,
            owner: self.nodes[n].id.clone(),
        };
        self.propose(n, command, how);
    }

    /// A deletion that was asked for twice: by identity, and looked at again just before (R2).
    pub(crate) fn delete_again(&mut self, n: usize, p: usize) {
        let Some(epoch) = self.part(n, p).again.take() else {
            return;
        };
        if self.off(Mutation::R2) {
            let found: Vec<Epoch> = self.nodes[n].parts[p].copies.keys().copied().collect();
            for epoch in found {
                self.delete_copy(n, p, epoch);
            }
            return;
        }
        let there = self.nodes[n].parts[p].copies.contains_key(&epoch);
        if there && matches!(self.standing_of(n, p, epoch), Standing::Ended(_)) {
            self.delete_copy(n, p, epoch);
        }
    }

    /// An ended epoch of this node that has no copy here.
    #[must_use]
    pub fn reportable(&self, n: usize, p: usize) -> Option<Epoch> {
        let node = &self.nodes[n];
        if !node.up || !node.confirmed || !self.to_leader(n) {
            return None;
        }
        let view = self.view_of(n, p)?;
        let here = |epoch| node.parts[p].copies.contains_key(&epoch);
        unreported(&node.id, view, here).find(|epoch| self.closed(n, p, *epoch))
    }

    pub(crate) fn report(&mut self, n: usize, p: usize) {
        let Some(epoch) = self.reportable(n, p) else {
            return;
        };
        self.catch_up(n);
        if matches!(self.standing_of(n, p, epoch), Standing::Ended(_)) {
            self.mark_reclaimed(n, p, epoch, How::Ok);
        }
    }
}
