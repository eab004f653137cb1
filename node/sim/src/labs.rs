//! Where each mutation is looked for: a model that is explored, or walks by seed.
//!
//! What this file keeps true: every mutation has its place here, and the check that is expected to
//! notice it; the same place without the mutation breaks nothing.

use crate::check::Check;
use crate::explore::{Limits, explore};
use crate::models;
use crate::mutation::Mutation;
use crate::scenarios;
use crate::setup::Setup;

/// How to look.
#[derive(Clone, Debug)]
pub enum Lab {
    /// Explore at most so many states.
    Explore(Box<Setup>, usize),
    /// Play every scenario that is about it.
    Play,
}

/// A mutation that was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// By which check.
    pub check: Check,
    /// What it said.
    pub what: String,
    /// Where.
    pub place: String,
    /// Actions that lead there.
    pub actions: usize,
}

/// Where a mutation is looked for.
#[must_use]
pub fn lab(mutation: Mutation) -> Lab {
    match mutation {
        Mutation::FlipWithoutHandoffId
        | Mutation::ResumeOnTtl
        | Mutation::NoSettle
        | Mutation::ReclaimOnLocalView
        | Mutation::ForgetFreeze
        | Mutation::R5 => Lab::Explore(Box::new(models::complete(1, 1)), 600_000),
        Mutation::PromoteWithoutGate
        | Mutation::UnknownIsRejected
        | Mutation::R3
        | Mutation::DeposedLeaderAnswers
        | Mutation::NoLeaseBeforeAck
        | Mutation::R1
        | Mutation::R2
        | Mutation::R4
        | Mutation::R6
        | Mutation::R7
        | Mutation::R8
        | Mutation::R9
        | Mutation::R10
        | Mutation::R11
        | Mutation::R12
        | Mutation::R13
        | Mutation::R14 => Lab::Play,
    }
}

/// Looks for it.
#[must_use]
pub fn catch(mutation: Mutation) -> Option<Caught> {
    match lab(mutation) {
        Lab::Explore(setup, states) => {
            let setup = setup.without(mutation);
            let found = explore(&setup, Limits { states, sample: 16 });
            let (violation, actions) = found.failure?;
            Some(Caught {
                check: violation.check,
                what: violation.what,
                place: format!("model {}, {} states", setup.name, found.states),
                actions: actions.len(),
            })
        }
        Lab::Play => {
            let about = scenarios::ALL
                .iter()
                .filter(|s| s.about.contains(&mutation));
            about.into_iter().find_map(|scenario| {
                let (violation, actions) = scenarios::play(scenario, Some(mutation));
                let violation = violation?;
                Some(Caught {
                    check: violation.check,
                    what: violation.what,
                    place: format!("scenario: {}", scenario.name),
                    actions,
                })
            })
        }
    }
}

/// One line of the table.
#[must_use]
pub fn line(mutation: Mutation, caught: Option<&Caught>) -> String {
    let rule = format!("{mutation}");
    match caught {
        Some(caught) => {
            let check = format!("{:?}", caught.check);
            let what: String = caught.what.chars().take(90).collect();
            format!(
                "{rule:<66} {check:<9} {:<60.60} {:>3} actions  {what}",
                caught.place, caught.actions
            )
        }
        None => format!("{rule:<66} NOT CAUGHT"),
    }
}
