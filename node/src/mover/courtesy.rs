//! When the mover's thread stands behind others that want the processor.
//!
//! What this file keeps true: it never does while a move on it is in its handover, from before the source is asked to
//! freeze until the new owner serves; otherwise it does as the throttle says at the moment of each chunk.

use crate::pace::Pace;
use narad_core::meta::Command;
use narad_core::moves::target::TargetEffect;
use narad_wire::runtime::{Behind, stand};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Shared by the moves of the executor.
pub(super) struct Courtesy {
    pace: Arc<Pace>,
    /// Moves in their handover.
    hurried: Cell<u32>,
}

impl Courtesy {
    pub(super) fn new(pace: Arc<Pace>) -> Self {
        Self {
            pace,
            hurried: Cell::new(0),
        }
    }

    /// Before each chunk.
    pub(super) fn look(&self) {
        stand(self.wanted().then_some(Behind::Little));
    }

    fn wanted(&self) -> bool {
        self.hurried.get() == 0 && self.pace.gives_way.load(Ordering::Relaxed)
    }
}

/// Whether something is waited for: a frozen partition, or one that is without an owner who serves it.
fn hurries(effect: &TargetEffect) -> Option<bool> {
    match effect {
        TargetEffect::FreezeSource { .. }
        | TargetEffect::FinishStaging { .. }
        | TargetEffect::Install { .. }
        | TargetEffect::RollBack { .. }
        | TargetEffect::Serve { .. }
        | TargetEffect::Propose(
            Command::CompleteMove { .. }
            | Command::ForcePromote { .. }
            | Command::CancelHandoff { .. },
        ) => Some(true),
        TargetEffect::CopyRanges { renew, .. } => Some(renew.is_some()),
        // In a handover whose outcome is not known yet, or in the middle of nothing.
        TargetEffect::QueryBarrier
        | TargetEffect::Wait { .. }
        | TargetEffect::Interrupt
        | TargetEffect::Report(_) => None,
        TargetEffect::CheckLocal
        | TargetEffect::OpenStaging
        | TargetEffect::SetAside { .. }
        | TargetEffect::ResetStaging { .. }
        | TargetEffect::TrimStaging { .. }
        | TargetEffect::OpenSource
        | TargetEffect::CheckPrefixes { .. }
        | TargetEffect::RefreshSource
        | TargetEffect::PrepareInstall { .. }
        | TargetEffect::Propose(_)
        | TargetEffect::CloseSource
        | TargetEffect::Done { .. } => Some(false),
    }
}

/// What one move has to do with it; dropped with the move.
pub(super) struct Hurry {
    of: Rc<Courtesy>,
    held: Cell<bool>,
}

impl Hurry {
    pub(super) fn new(of: Rc<Courtesy>) -> Self {
        Self {
            of,
            held: Cell::new(false),
        }
    }

    /// The move does this next.
    pub(super) fn before(&self, effect: &TargetEffect) {
        if let Some(hurried) = hurries(effect) {
            self.set(hurried);
        }
    }

    fn set(&self, hurried: bool) {
        if self.held.replace(hurried) == hurried {
            return;
        }
        let all = self.of.hurried.get();
        self.of.hurried.set(if hurried { all + 1 } else { all - 1 });
        if hurried {
            self.of.look();
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.set(false);
        // Copies that go on say anew what they want.
        stand(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::HandoffId;

    #[test]
    fn one_handover_hurries_the_copies_beside_it() {
        let pace = Arc::new(Pace::default());
        let courtesy = Rc::new(Courtesy::new(pace.clone()));
        assert!(!courtesy.wanted());
        pace.gives_way.store(true, Ordering::Relaxed);
        assert!(courtesy.wanted());
        let freeze = TargetEffect::FreezeSource {
            handoff_id: HandoffId(1),
        };
        let (first, second) = (Hurry::new(courtesy.clone()), Hurry::new(courtesy.clone()));
        first.before(&freeze);
        first.before(&freeze);
        second.before(&freeze);
        second.before(&TargetEffect::QueryBarrier);
        first.before(&TargetEffect::CloseSource);
        assert!(!courtesy.wanted(), "the second one goes on");
        drop(first);
        drop(second);
        assert!(courtesy.wanted());
    }
}
