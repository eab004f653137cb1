//! What the leader's clocks are told, what they want done, and the times that they work with.
//!
//! What this file keeps true: the default times are ordered; times out of order never reach a
//! machine.

use crate::defaults::{
    CLOCK_DRIFT_MS, DEAD_AFTER_MS, FORCE_PROMOTE_AFTER_MS, HEARTBEAT_MS, MEMBERS_MAX, MOVE_LEASE_MS,
};
use crate::ids::{NodeId, NodeIncarnation, RaftIndex, RaftTerm};
use crate::meta::{Command, MetaState};
use core::fmt;

/// The times that fence each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timings {
    /// Interval of heartbeats.
    pub heartbeat_ms: u64,
    /// Lease of an answered heartbeat, from its sending.
    pub lease_ms: u64,
    /// Allowance for drift between two clocks over a lease.
    pub drift_ms: u64,
    /// Silence after which a member is marked dead.
    pub dead_after_ms: u64,
    /// Silence after which its partitions' targets may promote.
    pub force_promote_after_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat_ms: HEARTBEAT_MS,
            lease_ms: MOVE_LEASE_MS,
            drift_ms: CLOCK_DRIFT_MS,
            dead_after_ms: DEAD_AFTER_MS,
            force_promote_after_ms: FORCE_PROMOTE_AFTER_MS,
        }
    }
}

impl Timings {
    /// Whether they hold the order on which the safety of a forced promotion rests.
    #[must_use]
    pub const fn are_ordered(&self) -> bool {
        self.heartbeat_ms > 0
            && self.heartbeat_ms < self.lease_ms
            && self.lease_ms.saturating_add(self.drift_ms) < self.dead_after_ms
            && self.dead_after_ms < self.force_promote_after_ms
    }
}

/// Heartbeats that may wait for their answer: a few of every member; more is a flood.
pub const BEATS_WAITING_MAX: usize = 4 * MEMBERS_MAX;

/// The shell's name for one heartbeat that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BeatId(pub u64);

/// The machine's name for one quorum round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundId(pub u64);

/// What happens to the machine.
#[derive(Debug)]
pub enum LivenessInput<'a> {
    /// This node leads, in this term.
    Leading {
        /// The term.
        term: RaftTerm,
    },
    /// This node does not lead (any more).
    Following,
    /// This state is applied here. Told always, leading or not.
    Applied(&'a MetaState),
    /// A heartbeat has arrived.
    Beat {
        /// Name for the answer.
        beat: BeatId,
        /// Who sent it.
        node: &'a NodeId,
        /// Which life of it.
        incarnation: NodeIncarnation,
    },
    /// A quorum round has ended.
    Round {
        /// Which.
        round: RoundId,
        /// The read index that it confirmed; `None` when it failed.
        commit: Option<RaftIndex>,
    },
    /// A proposal for `node` has ended.
    Proposed {
        /// For whom it was.
        node: NodeId,
        /// How.
        end: ProposalEnd,
    },
    /// Time passes; at least once a heartbeat interval.
    Tick,
}

/// How a proposal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalEnd {
    /// It is in the log at this index: applied, or refused by a guard.
    Logged(RaftIndex),
    /// It is certainly not in the log.
    NotProposed,
    /// It may be in the log, now or later; it is repeated until that is known.
    Unknown,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessEffect {
    /// Answer a heartbeat.
    Answer {
        /// Which.
        beat: BeatId,
        /// Commit index that must be applied at the sender before the lease counts (R10).
        commit: RaftIndex,
        /// Lease from the sending of the beat, in ms; 0 renews nothing.
        lease_ms: u64,
        /// The leader's term.
        term: RaftTerm,
        /// Whether the sender's process is the registered one.
        registered: bool,
    },
    /// Refuse a heartbeat: this node does not lead, or too many wait.
    Refuse {
        /// Which.
        beat: BeatId,
        /// This node leads; the sender should try again later.
        busy: bool,
    },
    /// Run a quorum round (a ReadIndex that starts now) and tell its end.
    StartRound {
        /// Its name.
        round: RoundId,
    },
    /// Propose a death or a revival here, as leader, and tell its end.
    Propose {
        /// For whom.
        node: NodeId,
        /// The command.
        command: Command,
    },
}

/// Why a copy may not be promoted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromoteHold {
    /// This node does not lead.
    NotLeading,
    /// The owner is not marked dead, or it was another death.
    NotDead,
    /// This leader has not waited long enough by its own clock.
    Wait {
        /// How long it has to wait yet, in ms.
        left_ms: u64,
    },
}

impl fmt::Display for PromoteHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeading => f.write_str("this node does not lead"),
            Self::NotDead => f.write_str("the owner is not dead, or it was another death"),
            Self::Wait { left_ms } => write!(
                f,
                "this leader has to hear nothing of the owner for {left_ms} ms more"
            ),
        }
    }
}
