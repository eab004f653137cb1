//! Identities, offsets and clocks: the newtypes that every other part of Narad speaks in.
//!
//! What this file keeps true: two things that must never be mixed up (an epoch and an offset, a
//! move id and a handoff id, milliseconds of one clock and of another) are different types, and
//! every one of them has a stable text and JSON form.

use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// Identity of one life of a topic: the Raft log index of its creation. The same name made
    /// again is another incarnation and shares nothing with the old one.
    TopicId(u64)
);
number!(
    /// Index of a partition inside its topic, from 0.
    PartitionIndex(u32)
);
number!(
    /// Number of ownership changes of a partition; it fences every append. The first owner has 1.
    Epoch(u64)
);
number!(
    /// Position of a record in a partition, from 0. As a bound it is exclusive.
    Offset(u64)
);
number!(
    /// Identity of one move: the Raft log index at which its target was set (rule R5).
    MoveId(u64)
);
number!(
    /// Identity of one permission to freeze: the Raft log index of its BeginHandoff (rule R5).
    HandoffId(u64)
);
number!(
    /// A Raft log index.
    RaftIndex(u64)
);
number!(
    /// A Raft term.
    RaftTerm(u64)
);
number!(
    /// Identity of one life of a node process, drawn at random at its start.
    NodeIncarnation(u64)
);
number!(
    /// Identity of a cluster, drawn at random when it was founded; 0 never is one.
    ClusterId(u64)
);
number!(
    /// Identity of one replacement of a lost quorum, drawn at random; 0 never is one.
    RecoveryId(u64)
);
number!(
    /// How many times a node has been marked dead (rule R6); 0 for a node that never was.
    DeathGeneration(u64)
);
number!(
    /// Identity of one life of an ingress WAL (one shard of one node), drawn at random when the WAL
    /// is made. With a sequence it identifies a dispatched record.
    WalId(u64)
);
number!(
    /// Position of a record in an ingress WAL, from 1. 0 means "none".
    WalSeq(u64)
);
number!(
    /// Proof of a lease; never repeats across restarts or owners.
    Nonce(u64)
);
number!(
    /// Index of a shard executor inside a node, from 0.
    ShardIndex(u32)
);
number!(
    /// Milliseconds of a monotonic clock that counts suspend (CLOCK_BOOTTIME). Never compared
    /// across machines.
    MonoMs(u64)
);
number!(
    /// Milliseconds since the Unix epoch, UTC. For record times only, never for fencing.
    WallMs(u64)
);

impl Offset {
    /// The offset `count` records later.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl Epoch {
    /// The epoch of the next owner.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl MonoMs {
    /// The instant `ms` milliseconds later, saturating.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`, 0 when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The same instant on a clock on which `now` is [`Self::REBASED_NOW`]. Distances that no rule
    /// tells apart any more (longer than the longest time of the table) become equal. For model
    /// checks, where two states that differ in the date alone are one.
    #[must_use]
    pub fn rebased(self, now: Self) -> Self {
        let (zero, far) = (Self::REBASED_NOW.0, Self::REBASED_NOW.0 / 2);
        let later = (zero + self.since(now)).min(zero + far);
        Self(later - now.since(self).min(far))
    }

    /// See [`Self::rebased`].
    pub const REBASED_NOW: Self = Self(4 * crate::defaults::FORCE_PROMOTE_AFTER_MS);
}

/// A node, by the operator's own string: 1 to 64 characters out of `a-z A-Z 0-9 . _ -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub String);

/// A topic's name: 1 to 128 characters out of `a-z A-Z 0-9 . _ -`, not starting with `.` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicName(pub String);

/// Maps of names are asked with a text, without making a name of it: both compare the same way.
impl core::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Why a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Empty, or longer than the maximum given.
    Length {
        /// Longest allowed, in characters.
        max: usize,
    },
    /// A character outside `a-z A-Z 0-9 . _ -`, or a forbidden first one.
    Character,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { max } => write!(f, "must have 1 to {max} characters"),
            Self::Character => write!(
                f,
                "may hold only letters, digits, '.', '_' and '-', and may not start with '.' or '-'"
            ),
        }
    }
}

fn check_name(text: &str, max: usize) -> Result<(), NameError> {
    if text.is_empty() || text.len() > max {
        return Err(NameError::Length { max });
    }
    if text.starts_with(['.', '-'])
        || !text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    {
        return Err(NameError::Character);
    }
    Ok(())
}

impl NodeId {
    /// Longest node id, in characters.
    pub const MAX_LEN: usize = 64;

    /// Checks and wraps `text`.
    ///
    /// # Errors
    /// [`NameError`] when it is not a valid node id.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_name(text, Self::MAX_LEN)?;
        Ok(Self(text.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TopicName {
    /// Longest topic name, in characters.
    pub const MAX_LEN: usize = 128;

    /// Checks and wraps `text`.
    ///
    /// # Errors
    /// [`NameError`] when it is not a valid topic name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_name(text, Self::MAX_LEN)?;
        Ok(Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One partition of one topic incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionKey {
    /// The topic's incarnation.
    pub topic: TopicId,
    /// The partition inside it.
    pub partition: PartitionIndex,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}/{}", self.topic, self.partition)
    }
}

/// Identity of one copy of a partition on disk: what may be deleted is named by all three, never
/// as "the partition's directory" (rule R2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CopyId {
    /// The partition.
    pub key: PartitionKey,
    /// The epoch under which this copy was (or will be) owned.
    pub epoch: Epoch,
}

impl fmt::Display for CopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.epoch)
    }
}

/// Where a dispatched record came from; the owner recognises a repeated dispatch by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The ingress WAL.
    pub wal: WalId,
    /// Sequence of the last record of the batch in that WAL.
    pub seq: WalSeq,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_escape_a_path_or_a_table_are_refused() {
        assert!(NodeId::parse("narad-4").is_ok());
        assert!(TopicName::parse("orders.v2_eu").is_ok());
        for bad in ["", ".", "..", ".hidden", "-flag", "a/b", "a b", "a\n", "é"] {
            assert!(NodeId::parse(bad).is_err(), "{bad:?}");
            assert!(TopicName::parse(bad).is_err(), "{bad:?}");
        }
        let long = "x".repeat(129);
        assert_eq!(TopicName::parse(&long), Err(NameError::Length { max: 128 }));
    }
}
