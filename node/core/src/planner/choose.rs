//! Chooses the steps of a plan.
//!
//! What this file keeps true: no node is filled above the ceiling of its share nor emptied below
//! what it keeps; the ceilings stay with the nodes that hold most, so the number of steps is the
//! smallest possible; among those, the cheapest by preference is taken. Only where a draining node
//! would keep something although another has room for it, that one is filled above its ceiling:
//! balance can wait, and is restored by what fits elsewhere.

use super::view::{Item, Step, View, Want};
use super::{MoveReason, PlanNote};
use crate::ids::PartitionKey;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
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
    /// Pairs of a partition and a target that were compared.
    looks: Cell<usize>,
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
            looks: Cell::new(0),
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

    fn looked(&self, looks: usize) {
        self.looks.set(self.looks.get().saturating_add(looks));
    }

    /// `node` has got one more.
    fn filled(&mut self, view: &View<'_>, node: usize) {
        if view.load[node] == self.floor + 1 && self.spare > 0 && !self.keeps[node] {
            self.spare -= 1;
            self.keeps[node] = true;
        }
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

/// What has to leave a draining node and can go to few: those with the fewest places first, of
/// these the largest, because what is left of the room may do for others. Items that fit
/// everywhere are alike, so that preference decides.
type Tightness = (usize, Reverse<u64>);

/// A source and the place among its movable items.
type Place = (usize, usize);

/// Partitions of a stuck source for which others are made to give way: each is compared with all
/// steps, and the next pass goes on.
const GIVE_WAY_MAX: usize = 64;

/// Pairs that one pass compares before it leaves the rest to the next one: some tenths of a second of
/// the control core, which has heartbeats to answer.
const LOOKS_MAX: usize = 2_000_000;

/// Partitions that a step only passes over for each pair that they count as: finding its candidates, and closing
/// the gap of the one that is taken, is a walk through memory, a pair some look-ups in maps.
const PASSED_PER_LOOK: usize = 16;

/// What was worked out.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) steps: Vec<Step>,
    /// Partitions that have to move beyond that, and their bytes as far as they are known.
    pub(super) more: (usize, u64),
}

/// Works out up to `most` steps and counts them in `view`.
pub(super) fn choose(view: &mut View<'_>, most: usize) -> Chosen {
    let homeless = part_homeless(view);
    let Some(mut shares) = Shares::new(view) else {
        return Chosen::default();
    };
    let mut steps = Vec::new();
    let mut stuck = vec![false; view.nodes.len()];
    let full = |shares: &Shares, steps: &[Step]| {
        steps.len() >= most || (shares.looks.get() >= LOOKS_MAX && !steps.is_empty())
    };
    // One step a round from every node that must give away, so that a large node cannot take all
    // slots of a pass; those that drain first, because they can choose least.
    loop {
        let mut sources: Vec<usize> = (0..view.nodes.len())
            .filter(|n| !stuck[*n] && shares.surplus(view, *n) > 0)
            .collect();
        if sources.is_empty() || full(&shares, &steps) {
            break;
        }
        sources.sort_by_key(|n| view.receives[*n]);
        for source in sources {
            if full(&shares, &steps) {
                break;
            }
            stuck[source] = !give_away(view, &mut shares, &mut steps, source);
        }
    }
    while shares.tied_down > 0 && !full(&shares, &steps) {
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
    let mut more = beyond(view, &shares, &stuck);
    if full(&shares, &steps) {
        more.0 += shares.tied_down;
    }
    note_stuck(view, &shares, &stuck, homeless);
    trade(view, &mut steps);
    Chosen { steps, more }
}

/// Takes what should leave a draining node and fits nowhere out of the count: the others' shares
/// are what they can have.
fn part_homeless(view: &mut View<'_>) -> Vec<Item> {
    let mut homeless = Vec::new();
    for source in 0..view.nodes.len() {
        if view.receives[source] {
            continue;
        }
        let items = core::mem::take(&mut view.movable[source]);
        for item in items {
            if (0..view.nodes.len()).any(|node| view.fits(&item, node)) {
                view.movable[source].push(item);
            } else {
                homeless.push(item);
            }
        }
    }
    homeless
}

/// One step out of `source`; false when there is none.
fn give_away(
    view: &mut View<'_>,
    shares: &mut Shares,
    steps: &mut Vec<Step>,
    source: usize,
) -> bool {
    let found = best(view, shares, &[source]);
    if found.is_none() && !view.receives[source] {
        if give_way(view, shares, steps, source, true) {
            return true;
        }
        // Whoever has not told yet, as after a change of leader, may have room within its share.
        let all_told = (0..view.nodes.len()).all(|node| !view.receives[node] || view.told(node));
        return all_told
            && (overfill(view, shares, steps, source)
                || give_way(view, shares, steps, source, false));
    }
    if let Some((place, target)) = found {
        steps.push(take(view, shares, place, target));
    }
    found.is_some()
}

/// Which of a source's items need to be looked at. Of those of one topic that may go everywhere and
/// differ in size alone, the smallest is the cheapest wherever it goes; so a node with thousands of
/// them costs one look at each, not one for each target.
fn candidates(items: &[Item], everywhere: Option<u64>) -> Vec<usize> {
    let mut places = Vec::new();
    let mut smallest: Option<usize> = None;
    for (place, item) in items.iter().enumerate() {
        if smallest.is_some_and(|of| items[of].key.topic != item.key.topic) {
            places.extend(smallest.take());
        }
        if !item.plain || everywhere.is_none_or(|room| item.bytes > room) {
            places.push(place);
        } else if smallest.is_none_or(|of| item.bytes < items[of].bytes) {
            smallest = Some(place);
        }
    }
    places.extend(smallest);
    places
}

/// The cheapest step out of `sources`, of a draining one the one that can go to fewest.
fn best(view: &View<'_>, shares: &Shares, sources: &[usize]) -> Option<(Place, usize)> {
    let targets: Vec<usize> = (0..view.nodes.len())
        .filter(|n| shares.wants(view, *n))
        .collect();
    // What all targets have room for; unknown where one has not told.
    let everywhere = targets.iter().map(|target| view.room_at(*target)).min();
    let everywhere = everywhere?;
    let mut found: Option<((Tightness, Cost), Place, usize)> = None;
    for source in sources {
        let items = &view.movable[*source];
        let places = candidates(items, everywhere);
        let pairs = places.len().saturating_mul(targets.len());
        shares.looked(pairs.saturating_add(items.len() / PASSED_PER_LOOK));
        for place in places {
            let item = &items[place];
            let options: Vec<usize> = targets
                .iter()
                .copied()
                .filter(|target| view.fits(item, *target))
                .collect();
            let tightness = if view.receives[*source] || options.len() == targets.len() {
                (targets.len(), Reverse(0))
            } else {
                (options.len(), Reverse(item.bytes))
            };
            if found.as_ref().is_some_and(|(of, ..)| of.0 < tightness) {
                continue;
            }
            for target in options {
                let cost = (tightness, cost(view, item, target));
                if found.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    found = Some((cost, (*source, place), target));
                }
            }
        }
    }
    found.map(|(_, place, target)| (place, target))
}

fn cost(view: &View<'_>, item: &Item, target: usize) -> Cost {
    (
        view.family_cost(item, target),
        view.spread_cost(item, target),
        item.replaces.is_none(),
        item.bytes,
        view.load[target],
        item.key,
        target,
    )
}

/// Lets a step chosen before go to another node, so that something of `source` fits where that was
/// bound for; `within` the others' shares or above them.
fn give_way(
    view: &mut View<'_>,
    shares: &mut Shares,
    steps: &mut Vec<Step>,
    source: usize,
    within: bool,
) -> bool {
    let places = view.movable[source].len().min(GIVE_WAY_MAX);
    shares.looked(places.saturating_mul(steps.len()));
    for place in 0..places {
        let item = &view.movable[source][place];
        let found = steps.iter().enumerate().find_map(|(at, step)| {
            if !view.fits_without(item, step.target, step.item.bytes) {
                return None;
            }
            let others = (0..view.nodes.len()).filter(|other| {
                *other != step.target
                    && (!within || shares.wants(view, *other))
                    && view.fits(&step.item, *other)
            });
            let other = others.min_by_key(|other| view.load[*other])?;
            Some((at, other))
        });
        if let Some((at, other)) = found {
            let target = steps[at].target;
            view.relocate(&steps[at].item, target, other);
            steps[at].target = other;
            shares.filled(view, other);
            steps.push(take(view, shares, (source, place), target));
            return true;
        }
    }
    false
}

/// Fills a node above its share, the one that holds least of those with room.
fn overfill(
    view: &mut View<'_>,
    shares: &mut Shares,
    steps: &mut Vec<Step>,
    source: usize,
) -> bool {
    let looked: &View<'_> = view;
    let pairs = looked.movable[source]
        .len()
        .saturating_mul(looked.nodes.len());
    shares.looked(pairs);
    let items = looked.movable[source].iter().enumerate();
    let found = items.flat_map(|(place, item)| {
        let fits = (0..looked.nodes.len()).filter(move |target| looked.fits(item, *target));
        fits.map(move |target| {
            (
                looked.load[target],
                cost(looked, item, target),
                place,
                target,
            )
        })
    });
    let Some((_, _, place, target)) = found.min() else {
        return false;
    };
    steps.push(take(view, shares, (source, place), target));
    true
}

fn take(view: &mut View<'_>, shares: &mut Shares, (source, place): Place, target: usize) -> Step {
    // In order, so that those of one topic stay together.
    let item = view.movable[source].remove(place);
    view.relocate(&item, source, target);
    shares.filled(view, target);
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

/// How many partitions have to move beyond the steps, and their bytes.
fn beyond(view: &View<'_>, shares: &Shares, stuck: &[bool]) -> (usize, u64) {
    let (mut count, mut bytes) = (0, 0_u64);
    for node in (0..view.nodes.len()).filter(|n| !stuck[*n]) {
        let mut sizes: Vec<u64> = view.movable[node].iter().map(|item| item.bytes).collect();
        // What leaves by choice is the least.
        sizes.sort_unstable();
        sizes.truncate(shares.surplus(view, node));
        count += sizes.len();
        bytes = sizes
            .iter()
            .fold(bytes, |sum, size| sum.saturating_add(*size));
    }
    (count, bytes)
}

/// Partitions of one node that go nowhere, by what is missing.
#[derive(Default)]
struct Missing {
    place: usize,
    telling: usize,
    room: usize,
    largest: u64,
    roomiest: Option<(u64, usize)>,
}

impl Missing {
    fn add(&mut self, bytes: u64, want: Want) {
        match want {
            Want::Place => self.place += 1,
            Want::Telling => self.telling += 1,
            Want::Room(node, room) => {
                self.room += 1;
                self.largest = self.largest.max(bytes);
                self.roomiest = self.roomiest.max(Some((room, node)));
            }
        }
    }

    fn notes(self, view: &mut View<'_>, node: usize) {
        let node = view.nodes[node].clone();
        if self.place > 0 {
            let (node, partitions) = (node.clone(), self.place);
            view.note(PlanNote::NoPlace { node, partitions });
        }
        if self.telling > 0 {
            let (node, partitions) = (node.clone(), self.telling);
            view.note(PlanNote::Untold { node, partitions });
        }
        if self.room > 0 {
            let roomiest = self.roomiest;
            view.note(PlanNote::NoRoom {
                node,
                partitions: self.room,
                largest: self.largest,
                roomiest: roomiest.map(|(room, at)| (view.nodes[at].clone(), room)),
            });
        }
    }
}

fn note_stuck(view: &mut View<'_>, shares: &Shares, stuck: &[bool], homeless: Vec<Item>) {
    let mut missing: Vec<Missing> = Vec::new();
    missing.resize_with(view.nodes.len(), Missing::default);
    for item in homeless {
        let want = view.want(&item, 0..view.nodes.len());
        missing[item.owner].add(item.bytes, want);
    }
    for node in (0..view.nodes.len()).filter(|n| stuck[*n]) {
        // What is on its way to it cannot leave yet; that is no want of a place.
        let mut items: Vec<&Item> = view.movable[node].iter().collect();
        items.sort_by_key(|item| (item.bytes, item.key));
        items.truncate(shares.surplus(view, node));
        for item in items {
            let targets = (0..view.nodes.len())
                .filter(|target| !view.receives[node] || shares.wants(view, *target));
            missing[node].add(item.bytes, view.want(item, targets));
        }
    }
    for (node, missing) in missing.into_iter().enumerate() {
        missing.notes(view, node);
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
