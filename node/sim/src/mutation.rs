//! Rules that can be switched off, one at a time, to prove that the checks would notice.
//!
//! What this file keeps true: the real decision code is not touched; a rule is switched off where
//! the world hands something to it or carries out what it asked for.

use std::fmt;

macro_rules! mutations {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal),+ $(,)?) => {
        /// One rule that does not hold.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mutation {
            $($(#[doc = $doc])* $name),+
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// In a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text),+
                }
            }
        }
    };
}

mutations! {
    /// The flip's guard takes whatever handoff is recorded for the one that is named.
    FlipWithoutHandoffId = "the flip's guard does not compare the handoff id",
    /// The owner opens again when its clock runs out, without asking Raft.
    ResumeOnTtl = "a freeze ends on the clock alone",
    /// A flip without an answer is rolled back.
    UnknownIsRejected = "a flip whose answer is lost is rolled back",
    /// The capture does not wait for appends in flight.
    NoSettle = "the capture does not wait for appends in flight",
    /// A promotion does not ask whether the copy reaches what the owner had told.
    PromoteWithoutGate = "promotion without comparing with the told high-watermark",
    /// A copy that the local view does not give to this node is deleted at once.
    ReclaimOnLocalView = "copies are reclaimed on the local view, without a barrier",
    /// A restarted owner forgets the recorded handoff.
    ForgetFreeze = "a restarted owner starts unfrozen",
    /// A leader answers heartbeats without confirming itself.
    DeposedLeaderAnswers = "a deposed leader answers heartbeats",
    /// The lease is not looked at before the ack.
    NoLeaseBeforeAck = "the lease is not checked again before the ack",
    /// R1.
    R1 = "R1: a session and an install beside an old copy",
    /// R2.
    R2 = "R2: deletes the partition's directory, not the copy",
    /// R3.
    R3 = "R3: the install mark is forgotten, the unknown copy reclaimed",
    /// R4.
    R4 = "R4: staged bytes count without their digest",
    /// R5.
    R5 = "R5: handoff ids repeat, a second begin is taken",
    /// R6.
    R6 = "R6: a promotion does not name a death",
    /// R7.
    R7 = "R7: only the latest ended epoch is remembered",
    /// R8.
    R8 = "R8: no check before the ack, no settle before the salvage",
    /// R9.
    R9 = "R9: salvage starts at the wrong one of the two points",
    /// R10.
    R10 = "R10: a lease counts before its commit index is applied",
    /// R11.
    R11 = "R11: a node that is marked dead gets a lease",
    /// R12.
    R12 = "R12: what an earlier move was told promotes under a new one",
    /// R13.
    R13 = "R13: only the session's memory asks for a lease",
    /// R14.
    R14 = "R14: targets are set while the owner is dead",
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
