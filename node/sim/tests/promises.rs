//! The promises, explored in small worlds and walked through at random, and the rules switched off.

use narad_sim::explore::explore;
use narad_sim::models;
use narad_sim::report;
use narad_sim::walk::{Coverage, Faults, shrink, walk};

#[test]
fn the_models_keep_the_promises() {
    for (setup, limits) in models::explored(false) {
        let found = explore(&setup, limits);
        report::say(&report::explored(&setup, &found));
        report::say(&format!("    {}", report::faults(&found.faults)));
        assert!(found.exhausted, "{} is too large for the suite", setup.name);
        if let Some((violation, actions)) = found.failure {
            panic!("{}: {violation} after {actions:?}", setup.name);
        }
        assert!(found.count.flips > 0, "{} never flips", setup.name);
    }
}

/// Seeds of each kind of walk.
const SEEDS: u64 = 800;

#[test]
fn walks_keep_the_promises() {
    let mut coverage = Coverage::new();
    let mut faults = Faults::new();
    let (mut walks, mut flips, mut promotions, mut removals) = (0, 0, 0, 0);
    let mut given_up = 0;
    for setup in models::walks() {
        // Where flips go wrong is where moves seldom are: more of them, for every fault there.
        let more = if setup.unknown { 3 } else { 1 };
        for seed in 1..=SEEDS * more {
            let walked = walk(&setup, seed, 400);
            if let Some(violation) = &walked.violation {
                let actions = shrink(&setup, &walked.actions, violation);
                let test = report::as_test(&setup, "found", &actions, violation);
                panic!("{} seed {seed}: {violation}\n{test}", setup.name);
            }
            walks += 1;
            flips += walked.count.flips;
            promotions += walked.count.promotions;
            removals += walked.count.removals;
            given_up += walked.count.given_up;
            for (cell, met) in walked.coverage {
                *coverage.entry(cell).or_insert(0) += met;
            }
            for (kind, met) in walked.faults {
                *faults.entry(kind).or_insert(0) += met;
            }
        }
    }
    report::say(&format!(
        "{walks} walks by {SEEDS} seeds: {flips} flips, {promotions} promotions, {removals} removals, {given_up} given up"
    ));
    report::say(&report::faults(&faults));
    report::say(&report::coverage(&coverage));
    let empty = report::empty_cells(&coverage);
    assert!(empty.is_empty(), "faults that never met a phase: {empty:?}");
    // Walks that never get anywhere would check nothing.
    assert!(walks >= 2_000);
    assert!(flips > 1_000 && promotions > 10 && removals > 20 && given_up > 10);
}

#[test]
fn the_same_seed_gives_the_same_walk() {
    for setup in models::walks() {
        for seed in 1..=5 {
            let (one, two) = (walk(&setup, seed, 300), walk(&setup, seed, 300));
            assert_eq!(one.actions, two.actions);
            assert_eq!(one.fingerprint, two.fingerprint);
        }
    }
}
