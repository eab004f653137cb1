//! What moves into this node look like from outside: running ones, the latest finished ones, and
//! the parts of each freeze.
//!
//! What this file keeps true: the history is bounded; every figure was measured, none is made up.

use super::limits::HISTORY;
use crate::context::NodeContext;
use crate::metrics::{FreezeLabel, FreezePart, Metrics, MoveLabel, MoveOutcome as Ended};
use narad_core::moves::MoveOutcome;
use narad_core::moves::target::{MovePhase, MoveProgress};
use narad_wire::view::{FreezeSplitView, MoveView};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Times of one freeze, measured at the target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freeze {
    /// When the source was asked to freeze: the freeze is shorter than what is counted from here.
    pub(super) asked: Option<Instant>,
    /// When the flip was asked for, and when it was known.
    pub(super) flip: Option<(Instant, Instant)>,
    /// Its parts.
    pub(super) split: FreezeSplitView,
    /// Bytes drained.
    pub(super) bytes: u64,
    /// From asking until the shard served.
    pub(super) whole_us: u64,
}

impl Freeze {
    /// The shard serves since then: perhaps before the mover knew of the flip, since the applied metadata
    /// is published to all executors at once.
    pub(super) fn served(&mut self, since: Instant) {
        if let Some((began, known)) = self.flip {
            self.split.flip_us = us(known.min(since).saturating_duration_since(began));
            self.split.takeover_us = us(since.saturating_duration_since(known));
        }
        if let Some(asked) = self.asked {
            self.whole_us = us(since.saturating_duration_since(asked));
        }
    }
}

/// Microseconds since `from`.
pub(super) fn us_since(from: Instant) -> u64 {
    us(from.elapsed())
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The name of a phase in a view.
fn phase_name(phase: MovePhase) -> &'static str {
    match phase {
        MovePhase::Waiting => "waiting",
        MovePhase::Opening => "open",
        MovePhase::CatchUp => "catch_up",
        MovePhase::Freezing => "freeze",
        MovePhase::Finalizing => "finalize",
        MovePhase::Flipping => "flip",
        MovePhase::Unknown => "flip_unknown",
        MovePhase::RollingBack => "roll_back",
        MovePhase::TakingOver => "serve",
        MovePhase::Ended => "done",
    }
}

/// What the shell knows of a move beside its machine.
pub(super) struct Facts<'a> {
    pub(super) ctx: &'a NodeContext,
    pub(super) began: Instant,
    /// Bytes of the copy that runs.
    pub(super) live_bytes: u64,
    /// All that was copied, and the time that it took.
    pub(super) copied: Copied,
    pub(super) freeze: Freeze,
}

/// What was copied in the life of a worker, in all passes and drains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    /// Bytes.
    pub(super) bytes: u64,
    /// Time spent copying them, in microseconds.
    pub(super) us: u64,
}

impl Copied {
    /// With what the latest copy did.
    pub(super) fn and(self, bytes: u64, us: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_add(bytes),
            us: self.us.saturating_add(us),
        }
    }

    /// Bytes a second; 0 when nothing was copied.
    fn bytes_per_s(self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000 / u128::from(self.us.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// How long the source has been frozen, as far as the phase says that it is, in microseconds.
fn frozen_for_us(phase: MovePhase, freeze: &Freeze) -> u64 {
    let frozen = match phase {
        MovePhase::Freezing
        | MovePhase::Finalizing
        | MovePhase::Flipping
        | MovePhase::Unknown
        | MovePhase::TakingOver => freeze.whole_us == 0,
        MovePhase::Waiting
        | MovePhase::Opening
        | MovePhase::CatchUp
        | MovePhase::RollingBack
        | MovePhase::Ended => false,
    };
    freeze.asked.filter(|_| frozen).map_or(0, us_since)
}

/// A move as operators see it.
pub(super) fn view(progress: &MoveProgress, facts: &Facts<'_>) -> MoveView {
    let state = facts.ctx.state();
    let topic = state.topics.get(&progress.key.topic);
    let target = state
        .assignment(progress.key)
        .and_then(|a| a.target.as_ref())
        .filter(|t| t.move_id == progress.move_id);
    let elapsed_ms = us_since(facts.began) / 1_000;
    let so_far = facts.copied.bytes_per_s();
    MoveView {
        topic: topic.map_or_else(String::new, |topic| topic.name.0.clone()),
        partition: progress.key.partition.0,
        source: progress.from.0.clone(),
        target: facts.ctx.id.0.clone(),
        move_id: progress.move_id.0,
        phase: phase_name(progress.phase).into(),
        bytes_done: progress.bytes_done + facts.live_bytes,
        bytes_left: progress.bytes_left.saturating_sub(facts.live_bytes),
        bytes_per_s: progress.bytes_per_s.unwrap_or(so_far),
        write_bytes_per_s: progress.write_bytes_per_s,
        passes: progress.passes,
        converged: progress.converged.unwrap_or(false),
        elapsed_ms,
        freeze_us: facts.freeze.whole_us,
        split: facts.freeze.split,
        last_error: progress.last_error.clone().unwrap_or_default(),
        handoff_id: target.and_then(|t| t.handoff).map_or(0, |id| id.0),
        outcome: String::new(),
        tails: progress.tails.clone(),
        manual: target.is_some_and(|t| t.manual),
        frozen_for_us: frozen_for_us(progress.phase, &facts.freeze),
    }
}

/// The latest finished moves.
#[derive(Default)]
pub(super) struct History {
    finished: VecDeque<MoveView>,
}

impl History {
    /// All of them, latest last.
    pub(super) fn all(&self) -> Vec<MoveView> {
        self.finished.iter().cloned().collect()
    }

    /// Remembers one, and counts it.
    pub(super) fn add(
        &mut self,
        mut view: MoveView,
        outcome: MoveOutcome,
        freeze: &Freeze,
        promoted: bool,
        m: &Metrics,
    ) {
        let (name, label) = match outcome {
            MoveOutcome::Flipped | MoveOutcome::FlippedAndEnded if promoted => {
                ("promoted", Ended::Promoted)
            }
            MoveOutcome::Flipped | MoveOutcome::FlippedAndEnded => ("flipped", Ended::Flipped),
            MoveOutcome::Superseded => ("superseded", Ended::Superseded),
            MoveOutcome::NoRoom => ("no_room", Ended::NoRoom),
            MoveOutcome::TopicGone => ("cancelled", Ended::Cancelled),
            MoveOutcome::Stopped => return,
        };
        view.outcome = name.into();
        view.phase = "done".into();
        m.moves_ended
            .get_or_create(&MoveLabel { outcome: label })
            .inc();
        if outcome == MoveOutcome::Flipped {
            m.move_seconds.observe(view.elapsed_ms as f64 / 1_000.0);
            if !promoted && freeze.asked.is_some() {
                observe_freeze(freeze, m);
            }
            if !promoted && !view.converged {
                m.moves_not_converged.inc();
            }
        }
        if self.finished.len() == HISTORY {
            self.finished.pop_front();
        }
        self.finished.push_back(view);
    }
}

fn observe_freeze(freeze: &Freeze, m: &Metrics) {
    let split = &freeze.split;
    for (part, us) in [
        (FreezePart::Settle, split.settle_us),
        (FreezePart::Drain, split.drain_us),
        (FreezePart::Persist, split.persist_us),
        (FreezePart::Install, split.install_us),
        (FreezePart::Flip, split.flip_us),
        (FreezePart::Takeover, split.takeover_us),
        (FreezePart::Whole, freeze.whole_us),
    ] {
        m.freeze_seconds
            .get_or_create(&FreezeLabel { part })
            .observe(us as f64 / 1e6);
    }
    m.freeze_bytes.observe(freeze.bytes as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_short_passes_is_that_of_all_of_them() {
        assert_eq!(Copied::default().bytes_per_s(), 0);
        // Three passes, each too short to be measured alone.
        let all = Copied::default()
            .and(1_000, 500)
            .and(0, 100)
            .and(3_000, 1_400);
        assert_eq!(all.bytes_per_s(), 2_000_000);
        let most = Copied::default().and(u64::MAX, 1).and(1, 0);
        assert_eq!(most.bytes_per_s(), u64::MAX);
    }

    #[test]
    fn a_freeze_so_far_is_shown_while_the_source_is_frozen_and_not_before_or_after() {
        let asked = Instant::now() - Duration::from_millis(20);
        let frozen = Freeze {
            asked: Some(asked),
            ..Freeze::default()
        };
        for phase in [
            MovePhase::Freezing,
            MovePhase::Finalizing,
            MovePhase::Flipping,
            MovePhase::Unknown,
            MovePhase::TakingOver,
        ] {
            assert!(frozen_for_us(phase, &frozen) >= 20_000, "{phase:?}");
            // The permission is being recorded: nobody was asked yet.
            assert_eq!(frozen_for_us(phase, &Freeze::default()), 0, "{phase:?}");
        }
        for phase in [MovePhase::CatchUp, MovePhase::RollingBack, MovePhase::Ended] {
            assert_eq!(frozen_for_us(phase, &frozen), 0, "{phase:?}");
        }
        let served = Freeze {
            whole_us: 21_000,
            ..frozen
        };
        assert_eq!(frozen_for_us(MovePhase::TakingOver, &served), 0);
    }
}
