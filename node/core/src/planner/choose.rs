//! Chooses the steps of a plan.
//!
//! What this file keeps true: no node is filled above the ceiling of its share nor emptied below
//! what it keeps; the ceilings stay with the nodes that hold most, so the number of steps is the
//! smallest possible; among those, the cheapest by preference is taken.

use super::view::{Step, View};
use super::{MoveReason, PlanNote};
use crate::ids::PartitionKey;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// What each receiver should hold, and how many of the ceilings are still to be given away.
struct Shares {
    floor: usize,
    /// A ceiling is certain for it.
    keeps: Vec<bool>,
    /// Nodes of equal load of which only some can keep a ceiling.
    tied: Vec<bool>,
    /// How many of the tied nodes must go down to the floor.
    tied_down: usize,
    /// Ceilings that nobody holds now: this many receivers at the floor may take one more.
    spare: usize,
}

impl Shares {
    fn new(view: &View<'_>) -> Option<Self> {
        let count = view.nodes.len();
        let mut receivers: Vec<usize> = (0..count).filter(|n| view.receives[*n]).collect();
        if receivers.is_empty() {
            return None;
        }
        let to_shed: usize = (0..count)
            .filter(|n| !view.receives[*n])
            .map(|n| view.movable[n].len())
            .sum();
        let total = to_shed + receivers.iter().map(|n| view.load[*n]).sum::<usize>();
        let floor = total / receivers.len();
        let ceilings = total % receivers.len();
        // What is on its way to a node cannot leave it yet: a node that stays above the floor
        // anyhow is given a ceiling before those that hold more but can shed.
        let rank = |n: usize| {
            let pinned = view.load[n].saturating_sub(view.movable[n].len());
            (pinned > floor, view.load[n])
        };
        receivers.sort_by_key(|n| (Reverse(rank(*n)), *n));
        let full: Vec<usize> = receivers
            .iter()
            .copied()
            .filter(|n| view.load[*n] > floor)
            .collect();
        let mut shares = Self {
            floor,
            keeps: vec![false; count],
            tied: vec![false; count],
            tied_down: 0,
            spare: ceilings.saturating_sub(full.len()),
        };
        if full.len() <= ceilings {
            full.iter().for_each(|n| shares.keeps[*n] = true);
            return Some(shares);
        }
        // More nodes are above the floor than there are ceilings: those with the most keep one,
        // and of those that tie at the boundary any.
        let boundary = match ceilings {
            0 => return Some(shares),
            _ => rank(full[ceilings - 1]),
        };
        for node in full {
            shares.keeps[node] = rank(node) > boundary;
            shares.tied[node] = rank(node) == boundary;
        }
        let certain = shares.keeps.iter().filter(|k| **k).count();
        let tied = shares.tied.iter().filter(|t| **t).count();
        shares.tied_down = tied - (ceilings - certain);
        Some(shares)
    }

    /// How many partitions `node` must give away for certain.
    fn surplus(&self, view: &View<'_>, node: usize) -> usize {
        if !view.receives[node] {
            return view.movable[node].len();
        }
        let most = self.floor + usize::from(self.keeps[node] || self.tied[node]);
        view.load[node].saturating_sub(most)
    }

    /// Whether `node` has room in its share.
    fn wants(&self, view: &View<'_>, node: usize) -> bool {
        view.receives[node]
            && (view.load[node] < self.floor || (view.load[node] == self.floor && self.spare > 0))
    }
}

/// Preference among steps; smaller is better. Family first, then topic spread, then what moves
/// already, bytes, and a fixed order.
type Cost = (i64, i64, bool, u64, usize, PartitionKey, usize);

/// Works out up to `most` steps and counts them in `view`.
pub(super) fn choose(view: &mut View<'_>, most: usize) -> Vec<Step> {
    let Some(mut shares) = Shares::new(view) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    let mut stuck = vec![false; view.nodes.len()];
    // One step a round from every node that must give away, so that a large node cannot take all
    // slots of a pass.
    loop {
        let sources: Vec<usize> = (0..view.nodes.len())
            .filter(|n| !stuck[*n] && shares.surplus(view, *n) > 0)
            .collect();
        if sources.is_empty() || steps.len() >= most {
            break;
        }
        for source in sources {
            if steps.len() >= most {
                break;
            }
            match best(view, &shares, &[source]) {
                Some((place, target)) => steps.push(take(view, &mut shares, place, target)),
                None => stuck[source] = true,
            }
        }
    }
    while shares.tied_down > 0 && steps.len() < most {
        let ceiling = shares.floor + 1;
        let sources: Vec<usize> = (0..view.nodes.len())
            .filter(|n| shares.tied[*n] && view.load[*n] == ceiling)
            .collect();
        let Some((place, target)) = best(view, &shares, &sources) else {
            break;
        };
        shares.tied[place.0] = false;
        shares.tied_down -= 1;
        steps.push(take(view, &mut shares, place, target));
    }
    note_stuck(view, &shares, &stuck);
    trade(view, &mut steps);
    steps
}

/// The cheapest step out of `sources`: (source, place among its movable items), target.
fn best(view: &View<'_>, shares: &Shares, sources: &[usize]) -> Option<((usize, usize), usize)> {
    let targets: Vec<usize> = (0..view.nodes.len())
        .filter(|n| shares.wants(view, *n))
        .collect();
    let mut found: Option<(Cost, (usize, usize), usize)> = None;
    for source in sources {
        for (place, item) in view.movable[*source].iter().enumerate() {
            for target in targets.iter().filter(|t| view.fits(item, **t)) {
                let cost = (
                    view.family_cost(item, *target),
                    view.spread_cost(item, *target),
                    item.replaces.is_none(),
                    item.bytes,
                    view.load[*target],
                    item.key,
                    *target,
                );
                if found.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    found = Some((cost, (*source, place), *target));
                }
            }
        }
    }
    found.map(|(_, place, target)| (place, target))
}

fn take(
    view: &mut View<'_>,
    shares: &mut Shares,
    (source, place): (usize, usize),
    target: usize,
) -> Step {
    let item = view.movable[source].swap_remove(place);
    if view.load[target] >= shares.floor {
        shares.spare -= 1;
        shares.keeps[target] = true;
    }
    view.relocate(&item, source, target);
    let reason = if item.replaces.is_some() {
        MoveReason::Retarget
    } else if view.receives[source] {
        MoveReason::Balance
    } else {
        MoveReason::Drain
    };
    Step {
        item,
        target,
        reason,
    }
}

fn note_stuck(view: &mut View<'_>, shares: &Shares, stuck: &[bool]) {
    for (node, _) in stuck.iter().enumerate().filter(|(_, stuck)| **stuck) {
        // What is on its way to it cannot leave yet; that is no want of a place.
        let partitions = shares.surplus(view, node).min(view.movable[node].len());
        if partitions > 0 {
            let node = view.nodes[node].clone();
            view.note(PlanNote::NoPlace { node, partitions });
        }
    }
}

/// Lets two steps trade targets where that parts a child from its parent and joins no other: the
/// cheapest step by step is not always the cheapest together.
fn trade(view: &mut View<'_>, steps: &mut [Step]) {
    for one in 0..steps.len() {
        for two in 0..steps.len() {
            let (a, b) = (steps[one].target, steps[two].target);
            let meets = view.relatives(steps[one].item.key, a);
            if meets == 0 {
                break;
            }
            if a == b || !view.fits(&steps[one].item, b) || !view.fits(&steps[two].item, a) {
                continue;
            }
            let before = meets + view.relatives(steps[two].item.key, b);
            swap(view, steps, one, two);
            let after =
                view.relatives(steps[one].item.key, b) + view.relatives(steps[two].item.key, a);
            if after >= before {
                swap(view, steps, one, two);
            }
        }
    }
}

fn swap(view: &mut View<'_>, steps: &mut [Step], one: usize, two: usize) {
    let (a, b) = (steps[one].target, steps[two].target);
    view.relocate(&steps[one].item, a, b);
    view.relocate(&steps[two].item, b, a);
    steps[one].target = b;
    steps[two].target = a;
}
