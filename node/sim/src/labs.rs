//! Where each mutation is looked for: a model that is explored, or walks by seed.
//!
//! What this file keeps true: every mutation has its place here, and the check that is expected to
//! notice it; the same place without the mutation breaks nothing.

use crate::check::Check;
use crate::explore::{Limits, explore};
use crate::models;
use crate::mutation::Mutation;
use crate::setup::Setup;
use crate::walk::walk;

/// How to look.
#[derive(Clone, Debug)]
pub enum Lab {
    /// Explore at most so many states.
    Explore(Setup, usize),
    /// Walk so many seeds, each so many steps.
    Walk(Setup, u64, usize),
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
        | Mutation::UnknownIsRejected
        | Mutation::NoSettle
        | Mutation::ReclaimOnLocalView
        | Mutation::ForgetFreeze
        | Mutation::R3
        | Mutation::R5 => Lab::Explore(models::complete(1, 1), 600_000),
        _ => Lab::Walk(models::walk_promotions(), 20_000, 400),
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
        Lab::Walk(setup, seeds, steps) => {
            let setup = setup.without(mutation);
            (1..=seeds).find_map(|seed| {
                let walked = walk(&setup, seed, steps);
                let violation = walked.violation?;
                Some(Caught {
                    check: violation.check,
                    what: violation.what,
                    place: format!("{} seed {seed}", setup.name),
                    actions: walked.actions.len(),
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
                "{rule:<66} {check:<9} {:<34} {:>3} actions  {what}",
                caught.place, caught.actions
            )
        }
        None => format!("{rule:<66} NOT CAUGHT"),
    }
}
