//! What a run shows: tables of models, mutations and coverage.
//!
//! What this file keeps true: it only formats.

use crate::action::FaultKind;
use crate::explore::Explored;
use crate::walk::Coverage;
use std::fmt::Write;

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
pub fn explored(name: &str, found: &Explored) -> String {
    let c = &found.count;
    format!(
        "{name:<18} {:>9} states {:>10} steps {:>6} continued  depth {:>3}  {}  flips {} promotions {} \
         cancels {} rollbacks {} reclaims {}",
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
