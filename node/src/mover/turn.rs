//! The turn of a move to be handed over: few at once into a node.
//!
//! What this file keeps true: a turn is held from the preparation of the install until the new owner serves, or
//! until the move does anything else that may take long; nobody waits for one longer than
//! [`TURN_WAIT_MS`]. A move without a turn is right, too, only slower.

use super::limits::{TURN_PASS_BYTES, TURN_WAIT_MS};
use futures::future::{Either, select};
use narad_core::moves::target::TargetEffect;
use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where a move stands.
enum Held {
    Nothing,
    /// The permit goes back when this is dropped.
    Turn(#[allow(dead_code, reason = "held for its drop")] OwnedSemaphorePermit),
    /// It has waited long enough and goes on without.
    Exempt,
}

/// The turn of one move.
pub(super) struct Turn {
    turns: Arc<Semaphore>,
    held: RefCell<Held>,
}

impl Turn {
    pub(super) fn new(turns: Arc<Semaphore>) -> Self {
        Self {
            turns,
            held: RefCell::new(Held::Nothing),
        }
    }

    /// Waits for a turn, unless the move has one. Whether there was any waiting: the source went on then.
    /// Dropping the future gives up the place.
    pub(super) async fn waited(&self) -> bool {
        if !matches!(*self.held.borrow(), Held::Nothing) {
            return false;
        }
        if let Ok(permit) = self.turns.clone().try_acquire_owned() {
            self.held.replace(Held::Turn(permit));
            return false;
        }
        let permit = pin!(self.turns.clone().acquire_owned());
        let over = pin!(glommio::timer::sleep(Duration::from_millis(TURN_WAIT_MS)));
        let held = match select(permit, over).await {
            Either::Left((Ok(permit), _)) => Held::Turn(permit),
            // Nobody closes it.
            Either::Left((Err(_), _)) | Either::Right(_) => Held::Exempt,
        };
        self.held.replace(held);
        true
    }

    /// The move does this next: gives the turn back where that is no part of a handover.
    pub(super) fn before(&self, effect: &TargetEffect) {
        let keeps = match effect {
            TargetEffect::RefreshSource
            | TargetEffect::PrepareInstall { .. }
            | TargetEffect::Propose(_)
            | TargetEffect::FreezeSource { .. }
            | TargetEffect::FinishStaging { .. }
            | TargetEffect::Install { .. }
            | TargetEffect::Serve { .. }
            | TargetEffect::QueryBarrier
            | TargetEffect::Interrupt
            | TargetEffect::Report(_) => true,
            TargetEffect::CopyRanges { ranges, renew, .. } => {
                // Their bounds are what a peer has claimed.
                let bytes = ranges.iter().fold(0_u64, |sum, range| {
                    sum.saturating_add(range.to.saturating_sub(range.from))
                });
                renew.is_some() || bytes <= TURN_PASS_BYTES
            }
            TargetEffect::CheckLocal
            | TargetEffect::OpenStaging
            | TargetEffect::OpenSource
            | TargetEffect::CheckPrefixes { .. }
            | TargetEffect::SetAside { .. }
            | TargetEffect::ResetStaging { .. }
            | TargetEffect::TrimStaging { .. }
            | TargetEffect::RollBack { .. }
            | TargetEffect::CloseSource
            | TargetEffect::Wait { .. }
            | TargetEffect::Done { .. } => false,
        };
        if !keeps {
            self.held.replace(Held::Nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use glommio::LocalExecutor;
    use narad_core::copy::Manifest;
    use narad_core::ids::{Epoch, MoveId, Offset};
    use narad_core::moves::target::Told;

    fn pass(bytes: u64) -> TargetEffect {
        use narad_core::copy::SegmentId;
        use narad_core::moves::target::CopyRange;
        let range = CopyRange {
            segment: SegmentId {
                base: Offset(0),
                epoch: Epoch(1),
            },
            from: 0,
            to: bytes,
        };
        TargetEffect::CopyRanges {
            ranges: vec![range],
            throttled: true,
            renew: None,
            told: Told {
                move_id: MoveId(1),
                manifest: Manifest::default(),
            },
        }
    }

    #[test]
    fn few_have_a_turn_and_keep_it_through_a_handover() {
        LocalExecutor::default().run(async {
            let turns = Arc::new(Semaphore::new(1));
            let (first, second) = (Turn::new(turns.clone()), Turn::new(turns.clone()));
            assert!(!first.waited().await);
            assert!(!first.waited().await, "it has it already");
            let mut waits = Box::pin(second.waited());
            assert!(waits.as_mut().now_or_never().is_none());
            for kept in [
                TargetEffect::RefreshSource,
                pass(TURN_PASS_BYTES),
                TargetEffect::QueryBarrier,
            ] {
                first.before(&kept);
                assert_eq!(turns.available_permits(), 0);
            }
            let mut nonsense = pass(u64::MAX);
            if let TargetEffect::CopyRanges { ranges, .. } = &mut nonsense {
                let backwards = narad_core::moves::target::CopyRange {
                    from: 1,
                    to: 0,
                    ..ranges[0]
                };
                ranges.extend([ranges[0], backwards]);
            }
            first.before(&nonsense);
            assert!(waits.await, "the tail has grown");
            assert!(!second.waited().await);
            drop(second);
            assert_eq!(turns.available_permits(), 1);
        });
    }

    #[test]
    fn nobody_waits_for_ever() {
        LocalExecutor::default().run(async {
            let turns = Arc::new(Semaphore::new(1));
            let (first, second) = (Turn::new(turns.clone()), Turn::new(turns.clone()));
            assert!(!first.waited().await);
            assert!(second.waited().await);
            assert!(!second.waited().await, "it goes on without");
            second.before(&TargetEffect::CloseSource);
            drop(first);
            assert!(!second.waited().await);
        });
    }
}
