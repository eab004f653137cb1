//! `narad-sim`: walks by seed, soaks, and the models.
//!
//! What this file keeps true: a failure is printed with its seed and a shrunk list of actions, and
//! ends with exit 1.

use clap::{Parser, Subcommand};
use narad_sim::explore::{Explored, explore};
use narad_sim::labs;
use narad_sim::limits::WALK_STEPS;
use narad_sim::models;
use narad_sim::mutation::Mutation;
use narad_sim::report;
use narad_sim::setup::Setup;
use narad_sim::walk::{Coverage, Faults, Walk, shrink, walk};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Deterministic simulator of Narad.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// One walk of every kind, with its actions.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Actions before the faults stop.
        #[arg(long, default_value_t = WALK_STEPS)]
        steps: usize,
    },
    /// Walks until the time is over, then the table of faults by phase.
    Soak {
        /// For how long, in minutes.
        #[arg(long)]
        minutes: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Actions of a walk.
        #[arg(long, default_value_t = WALK_STEPS)]
        steps: usize,
    },
    /// The same walk twice: exit 1 unless both traces are the same, byte for byte.
    Twice {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Actions before the faults stop.
        #[arg(long, default_value_t = WALK_STEPS)]
        steps: usize,
    },
    /// Explores the models to their last state.
    Model {
        /// Only those whose name holds this.
        name: Option<String>,
        /// Within the wide bounds (minutes) instead of those of the suite (seconds).
        #[arg(long)]
        wide: bool,
    },
    /// Switches every rule off, one at a time, and says which check notices.
    Mutations {
        /// Only those whose name holds this.
        name: Option<String>,
    },
}

fn main() -> ExitCode {
    let passed = match Cli::parse().what {
        What::Run { seed, steps } => models::walks().iter().all(|setup| run(setup, seed, steps)),
        What::Soak {
            minutes,
            seed,
            steps,
        } => soak(Duration::from_secs(minutes * 60), seed, steps),
        What::Twice { seed, steps } => {
            let same = |setup: &Setup| trace(setup, seed, steps) == trace(setup, seed, steps);
            let same = models::walks().iter().all(same);
            println!(
                "seed {seed}: {}",
                if same { "the same twice" } else { "DIFFERS" }
            );
            same
        }
        What::Model { name, wide } => explore_all(name.as_deref(), wide),
        What::Mutations { name } => mutate(name.as_deref()),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn trace(setup: &Setup, seed: u64, steps: usize) -> String {
    let walk = walk(setup, seed, steps);
    format!(
        "{:?} {:?} {:032x} {:?}",
        walk.actions, walk.violation, walk.fingerprint, walk.coverage
    )
}

fn run(setup: &Setup, seed: u64, steps: usize) -> bool {
    let walked = walk(setup, seed, steps);
    println!("{} seed {seed}:", setup.name);
    for action in &walked.actions {
        println!("  {action}");
    }
    println!("  then fairly to the end: {:?}", walked.count);
    told(setup, seed, &walked)
}

/// Prints a failure; true when there is none.
fn told(setup: &Setup, seed: u64, walked: &Walk) -> bool {
    let Some(violation) = &walked.violation else {
        return true;
    };
    println!("FAILED: {} seed {seed}: {violation}", setup.name);
    let actions = shrink(setup, &walked.actions, violation);
    let name = format!("{}_seed_{seed}", setup.name.replace('-', "_"));
    println!("as a test of node/sim/tests/found.rs:\n");
    print!("{}", report::as_test(setup, &name, &actions, violation));
    false
}

fn soak(time: Duration, first: u64, steps: usize) -> bool {
    let began = Instant::now();
    let setups = models::walks();
    let mut coverage = Coverage::new();
    let mut faults = Faults::new();
    let (mut walks, mut actions, mut flips, mut promotions) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut seed = first;
    while began.elapsed() < time {
        for setup in &setups {
            let walked = walk(setup, seed, steps);
            if !told(setup, seed, &walked) {
                return false;
            }
            walks += 1;
            actions += walked.actions.len() as u64;
            flips += u64::from(walked.count.flips);
            promotions += u64::from(walked.count.promotions);
            for (cell, met) in walked.coverage {
                *coverage.entry(cell).or_insert(0) += met;
            }
            for (kind, met) in walked.faults {
                *faults.entry(kind).or_insert(0) += met;
            }
        }
        seed += 1;
    }
    println!(
        "seeds {first}..{seed}: {walks} walks, {actions} actions, {flips} flips, {promotions} promotions"
    );
    println!("{}", report::faults(&faults));
    print!("{}", report::coverage(&coverage));
    let empty = report::empty_cells(&coverage);
    println!("empty cells: {}", empty.len());
    for cell in empty {
        println!("  {cell}");
    }
    true
}

fn shown(setup: &Setup, found: &Explored) -> bool {
    println!("{}", report::explored(setup, found));
    println!("    {}", report::faults(&found.faults));
    let Some((violation, actions)) = &found.failure else {
        return true;
    };
    println!("FAILED: {violation}");
    for action in actions {
        println!("  {action}");
    }
    false
}

fn explore_all(name: Option<&str>, wide: bool) -> bool {
    let mut passed = true;
    for (setup, limits) in models::explored(wide) {
        if name.is_some_and(|name| !setup.name.contains(name)) {
            continue;
        }
        passed &= shown(&setup, &explore(&setup, limits));
    }
    passed
}

fn mutate(name: Option<&str>) -> bool {
    let mut passed = true;
    for mutation in Mutation::ALL {
        if name.is_some_and(|name| !format!("{mutation:?}").contains(name)) {
            continue;
        }
        let caught = labs::catch(*mutation);
        passed &= caught.is_some();
        println!("{}", labs::line(*mutation, caught.as_ref()));
    }
    passed
}
