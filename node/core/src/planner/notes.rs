//! What an operator should know about a plan: what holds it up, in words that say what to do.
//!
//! What this file keeps true: a note names nodes, counts and bytes; whoever shows it may put names
//! in the place of keys, but need not look anything else up.

use crate::ids::{NodeId, PartitionKey};
use core::fmt;

/// What an operator should know about a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanNote {
    /// There is nothing to do: every receiver owns its share.
    Balanced {
        /// Moves that run; they count at their targets.
        moving: usize,
    },
    /// The operator has paused rebalancing: no target is set.
    Paused,
    /// No member is alive and not draining.
    NoReceiver,
    /// Partitions stay on a dead node: their data is on its disk alone.
    OwnerDead {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
    },
    /// Moves wait for a dead source to come back, or for their target to promote its copy.
    SourceDead {
        /// The source.
        node: NodeId,
        /// How many moves.
        moves: usize,
    },
    /// An operator's own move waits for its dead target.
    ManualTargetDead {
        /// The partition.
        key: PartitionKey,
        /// The target.
        target: NodeId,
    },
    /// Further steps wait until running moves end.
    Waiting {
        /// How many.
        steps: usize,
    },
    /// Further partitions should move, and where to is worked out when these have.
    More {
        /// How many.
        partitions: usize,
    },
    /// Partitions that should leave a node but may go nowhere now: every node that could take them
    /// still keeps an old copy of them.
    NoPlace {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
    },
    /// Partitions that should leave a node and for which no other has disk room.
    NoRoom {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
        /// Bytes of the largest of them.
        largest: u64,
        /// The node with the most room for one of them, and how much.
        roomiest: Option<(NodeId, u64)>,
    },
    /// Partitions that should leave a node, but their size, or the room of the nodes that could
    /// take them, has not been told to this leader yet.
    Untold {
        /// The node.
        node: NodeId,
        /// How many partitions.
        partitions: usize,
    },
}

impl fmt::Display for PlanNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balanced { moving: 0 } => {
                f.write_str("balanced: owned counts are within one of each other")
            }
            Self::Balanced { moving } => write!(
                f,
                "{moving} moves are running; counted at their targets, owned counts are within one \
                 of each other"
            ),
            Self::Paused => f.write_str("rebalancing is paused; no move is started"),
            Self::NoReceiver => f.write_str(
                "no member is alive and not draining; start a node or cancel a decommission",
            ),
            Self::OwnerDead { node, partitions } => write!(
                f,
                "{partitions} partitions stay on {node}, which is dead: their data is on its disk \
                 alone; start it again"
            ),
            Self::SourceDead { node, moves } => write!(
                f,
                "{moves} moves wait for their source {node}, which is dead, or for their target to \
                 promote a complete copy"
            ),
            Self::ManualTargetDead { key, target } => manual_target_dead(f, key, target),
            Self::Waiting { steps } => write!(f, "{steps} more moves wait for running ones to end"),
            Self::More { partitions } => write!(
                f,
                "{partitions} more partitions have to move; where to is worked out later"
            ),
            Self::NoPlace { node, partitions } => write!(
                f,
                "{partitions} partitions of {node} fit nowhere now: the other nodes still keep old \
                 copies of them"
            ),
            Self::NoRoom {
                node,
                partitions,
                largest,
                roomiest,
            } => {
                write!(
                    f,
                    "no node has room for {partitions} partitions of {node}: the largest needs {}, ",
                    Size(*largest)
                )?;
                match roomiest {
                    Some((at, room)) => write!(f, "the most room is {} on {at}", Size(*room)),
                    None => f.write_str("and there is no other node"),
                }
            }
            Self::Untold { node, partitions } => write!(
                f,
                "{partitions} partitions of {node} wait until their sizes, and the room on other \
                 nodes, are told to this leader"
            ),
        }
    }
}

/// The sentence of [`PlanNote::ManualTargetDead`] about a partition, by key or by name.
///
/// # Errors
/// Those of the formatter.
pub fn manual_target_dead(
    f: &mut impl fmt::Write,
    partition: &dyn fmt::Display,
    target: &NodeId,
) -> fmt::Result {
    write!(
        f,
        "the manual move of {partition} waits for its target {target}, which is dead; start it or \
         cancel the move"
    )
}

/// Bytes for people: one decimal of the largest unit that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let step = (self.0.max(1).ilog2() / 10) as usize;
        if step == 0 {
            return write!(f, "{} B", self.0);
        }
        let (unit, shift) = (units[step], step * 10);
        let tenths = ((self.0 >> (shift - 10)) * 10) >> 10;
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}
