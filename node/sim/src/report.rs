//! What a run shows: tables of models, mutations and coverage.
//!
//! What this file keeps true: it only formats.

use crate::action::{Action, FaultKind};
use crate::check::Violation;
use crate::explore::Explored;
use crate::setup::Setup;
use crate::walk::{Coverage, Faults};
use std::fmt::Write;
use std::io::Write as _;

/// The phases in the order of a move.
pub const PHASES: [&str; 10] = [
    "waiting",
    "opening",
    "catch-up",
    "freezing",
    "finalizing",
    "flipping",
    "unknown",
    "rolling-back",
    "taking-over",
    "closing",
];

/// One line about an explored model.
#[must_use]
pub fn explored(setup: &Setup, found: &Explored) -> String {
    let c = &found.count;
    let (nodes, partitions, faults) = (setup.nodes, setup.partitions, setup.faults);
    let bounds = format!("{nodes} nodes, {partitions} p, {faults} faults");
    format!(
        "{:<14} {bounds:<24} {:>9} states {:>10} steps {:>6} continued  depth {:>3}  {}  flips {} promotions {} \
         cancels {} rollbacks {} reclaims {}",
        setup.name,
        found.states,
        found.steps,
        found.continued,
        found.depth,
        if found.exhausted {
            "exhausted"
        } else {
            "bounded  "
        },
        c.flips,
        c.promotions,
        c.cancels,
        c.rollbacks,
        c.reclaims,
    )
}

/// Writes text for people, past the capture of a test's output.
pub fn say(text: &str) {
    // A test harness that closes its output wants to hear nothing.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Faults by kind, in one line.
#[must_use]
pub fn faults(faults: &Faults) -> String {
    let mut out = String::from("faults injected:");
    for (kind, heading) in FaultKind::ALL {
        let met = faults.get(&kind).copied().unwrap_or(0);
        let _ = write!(out, " {heading} {met}");
    }
    out
}

/// A failing run as a test that can be kept. `setup` is the function that makes its world.
#[must_use]
pub fn as_test(setup: &Setup, name: &str, actions: &[Action], violation: &Violation) -> String {
    let world = setup.name.replace('-', "_");
    let mut out = format!("#[test]\nfn {name}() {{\n    // {violation}\n    let actions = [\n");
    for action in actions {
        let _ = writeln!(out, "        {action},");
    }
    let _ = write!(
        out,
        "    ];\n    let world = replay(&models::{world}(), &actions);\n    \
         assert_eq!(world.violation, None);\n}}\n"
    );
    out
}

/// Whether a fault can meet a phase at all: bytes are on their way, or compared, in some only.
fn possible(phase: &str, kind: FaultKind) -> bool {
    let copies = matches!(phase, "waiting" | "opening" | "catch-up" | "finalizing");
    kind != FaultKind::Corrupt || copies
}

/// The table of faults by phase.
#[must_use]
pub fn coverage(coverage: &Coverage) -> String {
    let mut out = format!("{:<14}", "phase");
    for (_, heading) in FaultKind::ALL {
        let _ = write!(out, "{heading:>9}");
    }
    out.push('\n');
    for phase in PHASES {
        let _ = write!(out, "{phase:<14}");
        for (kind, _) in FaultKind::ALL {
            let met = coverage.get(&(phase, kind)).copied().unwrap_or(0);
            let _ = if met == 0 && !possible(phase, kind) {
                write!(out, "{:>9}", "-")
            } else {
                write!(out, "{met:>9}")
            };
        }
        out.push('\n');
    }
    out
}

/// Cells of the table that stayed empty.
#[must_use]
pub fn empty_cells(coverage: &Coverage) -> Vec<String> {
    let mut empty = Vec::new();
    for phase in PHASES {
        for (kind, heading) in FaultKind::ALL {
            if possible(phase, kind) && !coverage.contains_key(&(phase, kind)) {
                empty.push(format!("{phase} x {heading}"));
            }
        }
    }
    empty
}
