//! Random walks: one seed, one setup, one list of actions; and what is left of a failing list when
//! everything is taken out that does not matter.
//!
//! What this file keeps true: a walk's actions are all that happened, so the list alone repeats it.

use crate::action::{Action, FaultKind, How, Span};
use crate::check::Violation;
use crate::limits::SHRINK_TRIES_MAX;
use crate::rng::Rng;
use crate::setup::Setup;
use crate::world::{Count, World};
use narad_core::meta::Command;
use narad_core::moves::target::{MovePhase, TargetEffect};
use std::collections::BTreeMap;

/// How often each fault met each phase of a move.
pub type Coverage = BTreeMap<(&'static str, FaultKind), u64>;

/// How often each fault was injected.
pub type Faults = BTreeMap<FaultKind, u64>;

/// A walk that has ended.
#[derive(Clone, Debug)]
pub struct Walk {
    /// What was done.
    pub actions: Vec<Action>,
    /// The promise that was broken.
    pub violation: Option<Violation>,
    /// What happened.
    pub count: Count,
    /// Faults by phase.
    pub coverage: Coverage,
    /// Faults by kind.
    pub faults: Faults,
    /// The state at the end.
    pub fingerprint: u128,
}

/// The heading of a phase.
#[must_use]
pub const fn phase_text(phase: MovePhase) -> &'static str {
    match phase {
        MovePhase::Waiting => "waiting",
        MovePhase::Opening => "opening",
        MovePhase::CatchUp => "catch-up",
        MovePhase::Freezing => "freezing",
        MovePhase::Finalizing => "finalizing",
        MovePhase::Flipping => "flipping",
        MovePhase::Unknown => "unknown",
        MovePhase::RollingBack => "rolling-back",
        MovePhase::TakingOver => "taking-over",
        MovePhase::Ended => "closing",
    }
}

/// How readily an action is picked.
fn weight(action: Action) -> usize {
    match action {
        Action::Work(_, _, How::Ok) | Action::Timer(..) => 24,
        Action::Apply(_) | Action::Ack(..) | Action::Confirm(_) | Action::Restart(_) => 12,
        Action::Salvage(..) | Action::Reclaim(_, _, How::Ok) | Action::Interrupted(..) => 8,
        Action::Produce(..) | Action::Deliver(..) | Action::Dispatch(_, How::Ok) => 6,
        Action::AckLease(..) => 3,
        Action::Advance(_) | Action::Beat(_, _, How::Ok) | Action::Heal(_) => 4,
        Action::Plan(How::Ok) | Action::Report(..) | Action::Reopen(..) => 4,
        Action::Tick(..) | Action::CreateTopic | Action::Remove(_) | Action::Call(_) => 4,
        Action::Commit(_) | Action::StepDown(_) | Action::MoveTo(..) => 2,
        _ => 1,
    }
}

/// Whether a move is where moves are seldom: faults are picked more readily then.
fn is_rare(world: &World) -> bool {
    let seldom = |phase| {
        matches!(
            phase,
            MovePhase::Unknown | MovePhase::RollingBack | MovePhase::TakingOver
        )
    };
    (0..world.nodes.len())
        .any(|n| (0..world.keys.len()).any(|p| world.phase(n, p).is_some_and(seldom)))
}

/// Whether the worker is about to make its move known.
fn is_flip(world: &World, n: usize, p: usize) -> bool {
    let worker = world.nodes[n].parts[p].worker.as_ref();
    matches!(
        worker.and_then(|worker| worker.pending.as_ref()),
        Some(
            TargetEffect::Install { .. }
                | TargetEffect::Propose(
                    Command::CompleteMove { .. } | Command::ForcePromote { .. }
                )
        )
    )
}

/// A death takes long: when an owner is away, time passes more readily than the network heals.
fn weight_in(world: &World, (away, dead, rare): (bool, bool, bool), action: Action) -> usize {
    match action {
        Action::Crash(..) | Action::Cut(_) | Action::Mute(_) if rare => 1,
        Action::DeleteTopic | Action::SyncFails(..) if rare => 60,
        Action::CancelMove(_) if rare => 40,
        Action::Produce(..) | Action::StalePlan(_) if rare => 12,
        Action::Work(_, _, how) if rare && how != How::Ok => 24,
        // Not before the flip, or there is nothing to be seldom.
        Action::DeleteTopic if world.setup.unknown && !world.flip_asked() => 0,
        Action::Dispatch(_, how) | Action::Mark(_, _, how) | Action::Reclaim(_, _, how)
            if rare && how != How::Ok =>
        {
            12
        }
        Action::Advance(Span::Ttl) | Action::Tick(..) if rare => 12,
        Action::Work(n, p, how) if world.setup.unknown && is_flip(world, n, p) => match how {
            How::Ok => 10,
            _ => 40,
        },
        Action::Advance(Span::Promote) if dead => 24,
        Action::Advance(Span::Ttl) if away && !dead => 16,
        Action::Advance(Span::Promote) => 1,
        Action::Heal(_) | Action::Restart(_) if away && world.setup.deaths => 1,
        Action::Elect(_) if !world.has_leader() => 24,
        Action::Cut(_) if world.setup.deaths => 3,
        _ => weight(action),
    }
}

fn pick(rng: &mut Rng, world: &World, actions: &[Action]) -> Action {
    let owners = || {
        let assignments = world.last().assignments();
        assignments.map(|(_, a)| world.index_of(&a.owner))
    };
    let away = owners().any(|n| !world.in_quorum(n)) && world.has_leader();
    let dead = owners().any(|n| world.marked_dead(n)) && world.has_leader();
    let rare = is_rare(world);
    let weigh = |action: &Action| weight_in(world, (away, dead, rare), *action);
    let all: usize = actions.iter().map(weigh).sum();
    let mut at = rng.below(all.max(1));
    for action in actions {
        let weight = weigh(action);
        if at < weight {
            return *action;
        }
        at -= weight;
    }
    // Nothing but what has no weight.
    actions[0]
}

/// Walks `steps` actions from a seed, then continues fairly to the end.
#[must_use]
pub fn walk(setup: &Setup, seed: u64, steps: usize) -> Walk {
    let mut rng = Rng::new(seed);
    let mut world = World::new(setup.clone());
    let mut actions = Vec::new();
    let mut coverage = Coverage::new();
    let mut faults = Faults::new();
    while actions.len() < steps && world.violation.is_none() {
        let possible = world.actions();
        if possible.is_empty() {
            break;
        }
        let action = pick(&mut rng, &world, &possible);
        note(&world, action, &mut coverage);
        if let Some(fault) = action.fault() {
            *faults.entry(fault).or_insert(0) += 1;
        }
        world.step(action);
        actions.push(action);
    }
    let fingerprint = world.fingerprint();
    world.finish();
    Walk {
        actions,
        violation: world.violation.clone(),
        count: world.count,
        coverage,
        faults,
        fingerprint,
    }
}

fn note(world: &World, action: Action, coverage: &mut Coverage) {
    let Some(fault) = action.fault() else { return };
    for n in 0..world.nodes.len() {
        for p in 0..world.keys.len() {
            if let Some(phase) = world.phase(n, p) {
                *coverage.entry((phase_text(phase), fault)).or_insert(0) += 1;
            }
        }
    }
}

/// Does a list of actions, leaving out what is not possible, and continues fairly to the end.
#[must_use]
pub fn replay(setup: &Setup, actions: &[Action]) -> World {
    let mut world = World::new(setup.clone());
    for action in actions {
        if world.violation.is_some() {
            break;
        }
        if world.actions().contains(action) {
            world.step(*action);
        }
    }
    world.finish();
    world
}

/// The shortest list found that breaks the same promise.
#[must_use]
pub fn shrink(setup: &Setup, actions: &[Action], violation: &Violation) -> Vec<Action> {
    let mut best = actions.to_vec();
    let mut tries = 0;
    let mut chunk = best.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut smaller = false;
        while at < best.len() && tries < SHRINK_TRIES_MAX {
            let mut candidate = best.clone();
            candidate.drain(at..(at + chunk).min(best.len()));
            tries += 1;
            let world = replay(setup, &candidate);
            if world
                .violation
                .as_ref()
                .is_some_and(|v| v.check == violation.check)
            {
                best = candidate;
                smaller = true;
            } else {
                at += chunk;
            }
        }
        if tries >= SHRINK_TRIES_MAX || (chunk == 1 && !smaller) {
            return best;
        }
        chunk = (chunk / 2).max(1);
    }
}
