//! Giving up a dead node for good: its partitions begin anew elsewhere.
//!
//! What this file keeps true: only a dead node is given up, and only in the death that somebody
//! looked at; no partition is left without a living owner; a new epoch begins empty, and whatever
//! other nodes still keep of the partition is dispatched into it again; nothing of the node's old
//! life can be taken for a member's any more.

use super::apply::Applied;
use crate::ids::{DeathGeneration, NodeId, PartitionKey, RaftIndex};
use crate::meta::{Assignment, EpochEnd, MemberStatus, MetaState, Refusal};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

impl MetaState {
    /// The partitions that giving up `node` loses, in key order.
    pub fn owned_by<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> impl Iterator<Item = (PartitionKey, &'a Assignment)> {
        self.assignments().filter(move |(_, a)| a.owner == *node)
    }

    /// Partitions of `node` that nobody could own next, because every receiver there is keeps an old copy of
    /// them (R1), in key order. Such a copy is reclaimed only when an owner serves, so waiting does not
    /// help when the owner is gone: another receiver does.
    #[must_use]
    pub fn heirless(&self, node: &NodeId) -> Vec<PartitionKey> {
        let receivers: Vec<&NodeId> = self
            .members
            .keys()
            .filter(|id| *id != node && self.can_receive(id))
            .collect();
        let keeps = |a: &Assignment, id: &NodeId| a.ended.iter().any(|ended| ended.owner == *id);
        self.owned_by(node)
            .filter(|(_, a)| !receivers.is_empty() && receivers.iter().all(|id| keeps(a, id)))
            .map(|(key, _)| key)
            .collect()
    }

    pub(super) fn forget_member(
        &mut self,
        index: RaftIndex,
        id: &NodeId,
        deaths: DeathGeneration,
    ) -> Applied {
        let status = self.member_status(id)?;
        if self.members[id].deaths != deaths {
            return Err(Refusal::OtherDeath);
        }
        if status != MemberStatus::Dead {
            return Err(Refusal::WrongStatus);
        }
        let owners = self.heirs(id)?;
        let keys: Vec<PartitionKey> = self.assignments().map(|(key, _)| key).collect();
        for key in keys {
            let now = self.assignment(key).expect("listed just now");
            let touched = now.owner == *id
                || now.target.as_ref().is_some_and(|t| t.node == *id)
                || now.ended.iter().any(|e| e.owner == *id);
            if !touched {
                continue;
            }
            self.change(key, |a| {
                a.ended.retain(|ended| ended.owner != *id);
                if a.target.as_ref().is_some_and(|t| t.node == *id) {
                    a.target = None;
                    a.changed = index;
                }
                if let Some(heir) = owners.get(&key) {
                    a.owner = heir.clone();
                    a.epoch = a.epoch.next();
                    a.born = a.epoch;
                    a.target = None;
                    a.opened = false;
                    a.changed = index;
                    for ended in &mut a.ended {
                        ended.end = EpochEnd::Forgotten;
                    }
                }
            });
        }
        self.members.remove(id);
        self.removed.insert(id.clone(), index);
        self.forgotten.insert(id.clone());
        Ok(index)
    }

    /// Who owns each of the node's partitions next: the receiver with the fewest partitions, then
    /// with the fewest of the topic, that keeps no old copy of it (R1).
    fn heirs(&self, gone: &NodeId) -> Result<BTreeMap<PartitionKey, NodeId>, Refusal> {
        let mut load: BTreeMap<&NodeId, usize> = self
            .members
            .keys()
            .filter(|id| self.can_receive(id))
            .map(|id| (id, 0))
            .collect();
        let mut of_topic = BTreeMap::new();
        for (key, a) in self.assignments() {
            let home = a.target.as_ref().map_or(&a.owner, |t| &t.node);
            if let Some(n) = load.get_mut(home) {
                *n += 1;
                *of_topic.entry((key.topic, home)).or_insert(0_usize) += 1;
            }
        }
        let mut heirs = BTreeMap::new();
        for (key, a) in self.owned_by(gone) {
            // A copy that is under way to somebody is given up with its source.
            if let Some(target) = &a.target
                && let Some(n) = load.get_mut(&target.node)
            {
                *n -= 1;
            }
            let heir = load
                .iter()
                .filter(|(id, _)| !a.ended.iter().any(|ended| ended.owner == ***id))
                .min_by_key(|(id, n)| {
                    let here = of_topic.get(&(key.topic, **id)).copied();
                    (**n, here.unwrap_or(0), **id)
                })
                .map(|(id, _)| *id);
            let Some(heir) = heir else {
                return Err(if load.is_empty() {
                    Refusal::NoReceiver
                } else {
                    Refusal::TargetHoldsOldCopy
                });
            };
            *load.get_mut(heir).expect("it was found there") += 1;
            *of_topic.entry((key.topic, heir)).or_insert(0) += 1;
            heirs.insert(key, heir.clone());
        }
        Ok(heirs)
    }
}
