//! The breadth-first explorer: every interleaving within a setup's bounds.
//!
//! What this file keeps true: each state is expanded once; the first violation found is one of the
//! shortest, as long as a whole level fits into memory (then the rest goes depth first, over the same
//! states); a state that cannot go on, and a sample of the others, is continued fairly to its end.

use crate::action::Action;
use crate::check::Violation;
use crate::limits::LEVEL_MAX;
use crate::setup::Setup;
use crate::walk::Faults;
use crate::world::{Count, World};
use std::collections::HashSet;

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most states.
    pub states: usize,
    /// One state in so many is continued fairly to its end; 0 for the last ones alone.
    pub sample: u128,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps taken.
    pub steps: u64,
    /// Fair continuations run.
    pub continued: u64,
    /// Longest run that was followed.
    pub depth: usize,
    /// Nothing within the bounds was left out.
    pub exhausted: bool,
    /// What happened along all steps.
    pub count: Count,
    /// Faults by kind, along all steps.
    pub faults: Faults,
    /// A broken promise and the actions that lead to it.
    pub failure: Option<(Violation, Vec<Action>)>,
}

struct Entry {
    world: World,
    at: u32,
    depth: usize,
}

struct Search {
    limits: Limits,
    seen: HashSet<u128>,
    parents: Vec<(u32, Action)>,
    found: Explored,
}

/// Explores a setup.
#[must_use]
pub fn explore(setup: &Setup, limits: Limits) -> Explored {
    let world = World::new(setup.clone());
    let mut search = Search {
        limits,
        seen: HashSet::from([world.fingerprint()]),
        parents: vec![(0, Action::Redo)],
        found: Explored {
            states: 1,
            steps: 0,
            continued: 0,
            depth: 0,
            exhausted: true,
            count: Count::default(),
            faults: Faults::new(),
            failure: None,
        },
    };
    let mut level = vec![Entry {
        world,
        at: 0,
        depth: 0,
    }];
    while !level.is_empty() && search.found.failure.is_none() {
        if level.len() > LEVEL_MAX {
            search.dive(level);
            break;
        }
        let mut next = Vec::new();
        for entry in level {
            search.expand(entry, &mut next);
            if search.found.failure.is_some() {
                break;
            }
        }
        level = next;
    }
    search.found.states = search.seen.len();
    search.found
}

impl Search {
    /// Goes on depth first: what waits is then bounded by the depth.
    fn dive(&mut self, mut waiting: Vec<Entry>) {
        while let Some(entry) = waiting.pop() {
            self.expand(entry, &mut waiting);
            if self.found.failure.is_some() {
                return;
            }
        }
    }

    fn expand(&mut self, entry: Entry, next: &mut Vec<Entry>) {
        let Entry { world, at, depth } = entry;
        self.found.depth = self.found.depth.max(depth);
        let mut moved = false;
        for action in world.actions() {
            let mut successor = world.clone();
            successor.step(action);
            self.found.steps += 1;
            if let Some(fault) = action.fault() {
                *self.found.faults.entry(fault).or_insert(0) += 1;
            }
            if let Some(violation) = &successor.violation {
                self.fail(violation.clone(), at, Some(action));
                return;
            }
            let fingerprint = successor.fingerprint();
            moved = true;
            if !self.seen.insert(fingerprint) {
                continue;
            }
            if self.seen.len() >= self.limits.states {
                self.found.exhausted = false;
                continue;
            }
            self.parents.push((at, action));
            let here = u32::try_from(self.parents.len() - 1).expect("bounded");
            self.tally(&world.count, &successor.count);
            if self.limits.sample > 0 && fingerprint.is_multiple_of(self.limits.sample) {
                self.end(&successor, here);
            }
            next.push(Entry {
                world: successor,
                at: here,
                depth: depth + 1,
            });
        }
        if !moved {
            self.end(&world, at);
        }
    }

    fn tally(&mut self, before: &Count, after: &Count) {
        let all = &mut self.found.count;
        all.flips += after.flips - before.flips;
        all.promotions += after.promotions - before.promotions;
        all.cancels += after.cancels - before.cancels;
        all.rollbacks += after.rollbacks - before.rollbacks;
        all.reclaims += after.reclaims - before.reclaims;
        all.removals += after.removals - before.removals;
    }

    fn end(&mut self, world: &World, at: u32) {
        let mut world = world.clone();
        world.finish();
        self.found.continued += 1;
        if let Some(violation) = world.violation {
            self.fail(violation, at, None);
        }
    }

    fn fail(&mut self, violation: Violation, at: u32, last: Option<Action>) {
        let mut actions: Vec<Action> = last.into_iter().collect();
        let mut at = at;
        while at != 0 {
            let (parent, action) = self.parents[at as usize];
            actions.push(action);
            at = parent;
        }
        actions.reverse();
        if self.found.failure.is_none() {
            self.found.failure = Some((violation, actions));
        }
    }
}
