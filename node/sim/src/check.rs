//! The promises, one file each.
//!
//! What this file keeps true: a checker only looks; the first promise that is broken ends the run.

mod p1;
mod p2;
mod p3;
mod p4;
mod p5;
mod p6;
mod p7;
mod p8;
mod p9;

use crate::world::World;
use narad_core::meta::MetaState;
use std::fmt;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// No acked record is lost.
    P1,
    /// One appender a partition and epoch.
    P2,
    /// The copy's HWM is the source's; a move exposes nothing hidden.
    P3,
    /// The frontier never passes an unacked record, and moves along.
    P4,
    /// Every move ends.
    P5,
    /// A plan never undoes or repeats a running one, and reaches a fixpoint.
    P6,
    /// A drained node leaves with nothing.
    P7,
    /// Produce always has a way.
    P8,
    /// Nothing is deleted while it is the only copy.
    P9,
    /// The metadata's own invariants.
    Metadata,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub check: Check,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}

impl World {
    pub(crate) fn violate(&mut self, check: Check, what: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { check, what });
        }
    }

    /// What must hold of every state.
    pub(crate) fn check_state(&mut self) {
        self.check_kept();
        self.check_frontiers();
        self.check_ways();
    }

    /// What must hold at rest.
    pub(crate) fn check_rest(&mut self) {
        self.check_readable();
        self.check_deliverable();
        self.check_ended();
        self.check_plan_rests();
    }

    /// What must hold between two versions of the metadata.
    pub(crate) fn check_metadata(&mut self, before: &MetaState) {
        let checked = self
            .last()
            .check_invariants()
            .and_then(|()| before.check_successor(self.last()));
        // With a rule switched off it is the promises that are to notice.
        if let Err(what) = checked
            && self.setup.mutation.is_none()
        {
            self.violate(Check::Metadata, what);
        }
        self.check_plan(before);
    }
}
