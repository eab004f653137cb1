//! Where the partitions of a new topic go.
//!
//! What this file keeps true: only living, non-draining members receive; the topic is spread with
//! counts within one; what is left over goes to the nodes with the smallest load, so a balanced
//! cluster stays balanced; a child partition is off its parent's node wherever the counts allow it;
//! the same state gives the same placement on every node.

use crate::ids::{NodeId, TopicName};
use crate::meta::MetaState;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The owner of each of `count` partitions of a new topic; empty when nobody can receive.
pub(super) fn place(state: &MetaState, count: usize, parent: Option<&TopicName>) -> Vec<NodeId> {
    let receivers: Vec<&NodeId> = state
        .members
        .keys()
        .filter(|id| state.can_receive(id))
        .collect();
    if receivers.is_empty() {
        return Vec::new();
    }
    let slot_of: BTreeMap<&NodeId, usize> = receivers
        .iter()
        .enumerate()
        .map(|(i, id)| (*id, i))
        .collect();
    let avoid = parent_slots(state, count, parent, &slot_of);
    let quota = quotas(state, count, &slot_of, &avoid);
    assign(&quota, &avoid)
        .into_iter()
        .map(|slot| receivers[slot].clone())
        .collect()
}

/// For each new partition the receiver that holds the parent partition feeding it, if one does.
fn parent_slots(
    state: &MetaState,
    count: usize,
    parent: Option<&TopicName>,
    slot_of: &BTreeMap<&NodeId, usize>,
) -> Vec<Option<usize>> {
    let Some(parent) = parent.and_then(|name| state.topic_by_name(name)) else {
        return vec![None; count];
    };
    (0..count)
        .map(|i| {
            let feeding = &parent.partitions[i % parent.partitions.len()];
            let node = feeding.target.as_ref().map_or(&feeding.owner, |t| &t.node);
            slot_of.get(node).copied()
        })
        .collect()
}

/// How many partitions each receiver gets: the same number, and one more for those with the
/// smallest load (counting moves at their target).
fn quotas(
    state: &MetaState,
    count: usize,
    slot_of: &BTreeMap<&NodeId, usize>,
    avoid: &[Option<usize>],
) -> Vec<usize> {
    let receivers = slot_of.len();
    let mut load = vec![0_usize; receivers];
    for (_, assignment) in state.assignments() {
        let node = assignment
            .target
            .as_ref()
            .map_or(&assignment.owner, |t| &t.node);
        if let Some(slot) = slot_of.get(node) {
            load[*slot] += 1;
        }
    }
    let mut conflicts = vec![0_usize; receivers];
    for slot in avoid.iter().flatten() {
        conflicts[*slot] += 1;
    }
    let mut order: Vec<usize> = (0..receivers).collect();
    order.sort_by_key(|slot| (load[*slot], conflicts[*slot], *slot));
    let mut quota = vec![count / receivers; receivers];
    for slot in order.into_iter().take(count % receivers) {
        quota[slot] += 1;
    }
    quota
}

/// Fills the quotas so that as few partitions as possible sit where they should not.
fn assign(quota: &[usize], avoid: &[Option<usize>]) -> Vec<usize> {
    let mut left = quota.to_vec();
    let mut placed: Vec<usize> = Vec::with_capacity(avoid.len());
    for (index, bad) in avoid.iter().enumerate() {
        // Round robin over what is left: the fullest remainder first, ties from a rotating start.
        let start = index % left.len();
        let pick = (0..left.len())
            .map(|step| (start + step) % left.len())
            .filter(|slot| left[*slot] > 0)
            .min_by_key(|slot| (Some(*slot) == *bad, core::cmp::Reverse(left[*slot])))
            .expect("the quotas add up to the count");
        left[pick] -= 1;
        placed.push(pick);
        if Some(pick) != *bad {
            continue;
        }
        // Only its parent's node had room: trade with one that may sit here and lets us sit there.
        let trade = (0..index).find(|other| placed[*other] != pick && avoid[*other] != Some(pick));
        if let Some(other) = trade {
            placed.swap(other, index);
        }
    }
    placed
}
