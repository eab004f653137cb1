//! What must hold of the metadata after every command: for tests, simulator and model checks.
//!
//! What this file keeps true: it only looks. A state that breaks one of these is a bug in a guard,
//! never something a command may bring about.

use crate::ids::{DeathGeneration, Epoch, PartitionKey};
use crate::meta::{Assignment, MetaState};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;

impl MetaState {
    /// Checks everything that must hold of one state.
    ///
    /// # Errors
    /// A sentence about the first thing that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut moves = BTreeSet::new();
        for (key, assignment) in self.assignments() {
            self.check_assignment(key, assignment)?;
            if let Some(target) = &assignment.target
                && !moves.insert(target.move_id)
            {
                return Err(format!("{key}: move {} runs twice", target.move_id));
            }
        }
        if self.names.len() != self.topics.len() {
            return Err(format!(
                "{} names for {} topics",
                self.names.len(),
                self.topics.len()
            ));
        }
        for (id, topic) in &self.topics {
            if topic.id != *id || self.names.get(&topic.name) != Some(id) {
                return Err(format!("topic {} is not under its name", topic.name));
            }
            if topic.partitions.is_empty() || !self.covers(*id) {
                return Err(format!("topic {} is empty or of the future", topic.name));
            }
        }
        if let Some(id) = self
            .forgotten
            .iter()
            .find(|id| !self.removed.contains_key(*id))
        {
            return Err(format!("{id} was given up and is not removed"));
        }
        for (id, member) in &self.members {
            if member.id != *id || self.removed.contains_key(id) {
                return Err(format!("member {id} is under another id, or removed"));
            }
            if member.past.contains(&member.incarnation) {
                return Err(format!("member {id} has an incarnation of the past"));
            }
        }
        Ok(())
    }

    fn check_assignment(&self, key: PartitionKey, a: &Assignment) -> Result<(), String> {
        if a.epoch < Epoch(1) {
            return Err(format!("{key}: epoch {}", a.epoch));
        }
        if !self.members.contains_key(&a.owner) {
            return Err(format!("{key}: owner {} is no member", a.owner));
        }
        if a.born < Epoch(1) || a.born > a.epoch {
            return Err(format!("{key}: born in epoch {} of {}", a.born, a.epoch));
        }
        if a.changed > self.applied {
            return Err(format!("{key}: changed in the future"));
        }
        if let Some(target) = &a.target {
            if target.node == a.owner {
                return Err(format!("{key}: moves to its owner"));
            }
            if !self.members.contains_key(&target.node) {
                return Err(format!("{key}: target {} is no member", target.node));
            }
            if a.ended.iter().any(|e| e.owner == target.node) {
                return Err(format!("{key}: target {} has an old copy", target.node));
            }
            let handoff = target.handoff.map_or(u64::MAX, |h| h.0);
            if target.move_id.0 >= handoff {
                return Err(format!("{key}: handoff {handoff} before its move"));
            }
        }
        let mut last = Epoch(0);
        for ended in &a.ended {
            if ended.epoch <= last || ended.epoch >= a.epoch {
                return Err(format!("{key}: ended epoch {} out of order", ended.epoch));
            }
            last = ended.epoch;
            if ended.owner == a.owner {
                return Err(format!("{key}: the owner keeps an old copy too"));
            }
            if !self.members.contains_key(&ended.owner) {
                return Err(format!("{key}: old owner {} is no member", ended.owner));
            }
        }
        Ok(())
    }

    /// Checks what must hold between the states before and after one command.
    ///
    /// # Errors
    /// A sentence about the first thing that does not hold.
    pub fn check_successor(&self, next: &Self) -> Result<(), String> {
        if next.applied <= self.applied {
            return Err(format!("applied {} after {}", next.applied, self.applied));
        }
        for (key, old) in self.assignments() {
            let Some(new) = next.assignment(key) else {
                continue;
            };
            if new.epoch < old.epoch {
                return Err(format!("{key}: epoch fell to {}", new.epoch));
            }
            if new.epoch == old.epoch && new.owner != old.owner {
                return Err(format!("{key}: two owners in epoch {}", new.epoch));
            }
            if new.born != old.born
                && (new.born != new.epoch || !next.forgotten.contains(&old.owner))
            {
                return Err(format!(
                    "{key}: begins anew though its owner was not given up"
                ));
            }
            if new.epoch == old.epoch && old.opened && !new.opened {
                return Err(format!("{key}: no longer opened"));
            }
            let ended = |e: Epoch| new.ended.iter().any(|x| x.epoch == e);
            let forgotten = new.born == new.epoch;
            if new.epoch == old.epoch.next() && !ended(old.epoch) && !forgotten {
                return Err(format!("{key}: epoch {} left no entry", old.epoch));
            }
        }
        for id in self.topics.keys().chain(next.topics.keys()) {
            if !self.topics.contains_key(id) && id.0 <= self.applied.0 {
                return Err(format!("topic t{id} came back"));
            }
        }
        for (id, old) in &self.members {
            let deaths = next.members.get(id).map_or(old.deaths, |m| m.deaths);
            if deaths < old.deaths || deaths > DeathGeneration(old.deaths.0 + 1) {
                return Err(format!("member {id}: deaths {} to {deaths}", old.deaths));
            }
        }
        Ok(())
    }
}
