//! The one table of defaults, tied together by const assertions: they stay right when a process
//! is stalled for a second.
//!
//! What this file keeps true: lease + clock drift < dead-after < force-promote-after, so that a
//! cut-off owner has fenced itself before anyone can promote.

/// Interval of a node's heartbeats to the leader, in ms.
pub const HEARTBEAT_MS: u64 = 1_000;
/// How long an answered heartbeat lets the owner of a moving partition append, in ms.
pub const MOVE_LEASE_MS: u64 = 6_000;
/// Allowance for drift between two machines' monotonic clocks over a lease, in ms.
pub const CLOCK_DRIFT_MS: u64 = 1_000;
/// Silence after which the leader marks a node dead, in ms.
pub const DEAD_AFTER_MS: u64 = 15_000;
/// Time after a death before the target may promote what it holds, in ms.
pub const FORCE_PROMOTE_AFTER_MS: u64 = 120_000;
/// Shortest and longest Raft election timeout, in ms.
pub const ELECTION_MIN_MS: u64 = 1_000;
/// See [`ELECTION_MIN_MS`].
pub const ELECTION_MAX_MS: u64 = 2_000;
/// A cluster is never shrunk below this many voters.
pub const MIN_VOTERS: usize = 3;
/// Learners are promoted while there are fewer voters than this.
pub const MAX_VOTERS: usize = 5;
/// Default visibility timeout of a delivered record, in ms.
pub const VISIBILITY_MS: u64 = 30_000;
/// Leases a partition.
pub const LEASES_MAX: usize = 1_024;
/// Records acked above the frontier, a partition.
pub const ACKED_AHEAD_MAX: usize = 1_024;
/// Most that a topic may set for either of the two: what one partition's lease table may cost in memory.
pub const LEASE_BOUND_MAX: u32 = 65_536;
/// Largest tail at which a move freezes, in bytes; the bound is what B moves in the freeze budget.
pub const LAG_BOUND_MAX_BYTES: u64 = 4 << 20;
/// How long a freeze should last, in ms.
pub const FREEZE_BUDGET_MS: u64 = 5;
/// A freeze without progress of the target for this long is cancelled through Raft, in ms.
pub const FREEZE_TTL_MS: u64 = 10_000;
/// Most passes of a catch-up; where the writer is clearly slower than the copy, most passes in a row
/// without a shorter tail.
pub const PASSES_MAX: u32 = 20;
/// A writer that reaches at most this share of the copy's bandwidth will be caught up with, in
/// percent: a tenth of what is left goes away with every other pass.
pub const SLOWER_PERCENT: u64 = 95;
/// A pass whose tail is at least this share of the one before stalls, in percent.
pub const STALL_PERCENT: u64 = 90;
/// Tails below this get one pass of grace before they count as stalled, in bytes.
pub const STALL_GRACE_BYTES: u64 = 16 << 20;
/// Moves in flight in the whole cluster.
pub const MAX_IN_FLIGHT_MOVES: usize = 8;
/// Moves in flight into one node.
pub const MAX_MOVES_IN: usize = 4;
/// Moves in flight out of one node.
pub const MAX_MOVES_OUT: usize = 4;
/// Bytes after which a segment is sealed.
pub const SEGMENT_BYTES: u64 = 256 << 20;
/// Free bytes that the appends of logs and ingress WALs leave on a disk: what closing files in order,
/// their lists and the Raft log need.
pub const APPEND_RESERVE_BYTES: u64 = 256 << 20;
/// Free bytes that copies leave on a target's disk. What they may not take is what the partitions that are
/// there already append until somebody makes room or retention does: three segments, and all that
/// copies still write while the planner has only heard of the disk as it was a heartbeat ago.
pub const STAGING_RESERVE_BYTES: u64 = 1 << 30;
/// Largest record (key and value) by default, in bytes.
pub const RECORD_MAX_BYTES: u32 = 1 << 20;
/// Most partitions of a topic.
pub const PARTITIONS_MAX: u32 = 10_000;
/// Share of the disk that a node's ingress WALs may use, in percent.
pub const WAL_CAP_PERCENT: u64 = 10;
/// Earlier incarnations of a node's process that the metadata remembers, to tell a late
/// registration; a process registers within seconds of its start, so a few are enough.
pub const PAST_INCARNATIONS: usize = 16;
/// Replaced quorums that the metadata remembers, and most there can be: each is an operator's worst
/// day. It also keeps the identities of topics below 2^53, which every JSON reader knows exactly.
pub const RECOVERIES_MAX: usize = 1_000;
/// Bits of a topic's identity that are its log index; above them is the number of recoveries.
pub const TOPIC_INDEX_BITS: u32 = 40;
/// Most topics; with the most partitions below it bounds the snapshot.
pub const TOPICS_MAX: usize = 10_000;
/// Most partitions of all topics together.
pub const ALL_PARTITIONS_MAX: usize = 100_000;
/// Most members, dead ones included.
pub const MEMBERS_MAX: usize = 1_000;
/// Longest address or version text of a member, in bytes.
pub const MEMBER_TEXT_MAX: usize = 256;
/// Longest visibility timeout, in ms: twelve hours.
pub const VISIBILITY_MAX_MS: u64 = 12 * 60 * 60 * 1_000;

/// A process may stall this long without anything being mistaken for a death, in ms.
const STALL_MS: u64 = 1_000;

const _: () = {
    assert!(HEARTBEAT_MS + STALL_MS < MOVE_LEASE_MS);
    assert!(MOVE_LEASE_MS + CLOCK_DRIFT_MS < DEAD_AFTER_MS);
    assert!(DEAD_AFTER_MS < FORCE_PROMOTE_AFTER_MS);
    assert!(ELECTION_MAX_MS + STALL_MS < MOVE_LEASE_MS);
    assert!(MIN_VOTERS <= MAX_VOTERS);
    assert!(MAX_MOVES_IN <= MAX_IN_FLIGHT_MOVES && MAX_MOVES_OUT <= MAX_IN_FLIGHT_MOVES);
    assert!(FREEZE_BUDGET_MS < FREEZE_TTL_MS && STALL_MS < FREEZE_TTL_MS);
    assert!(VISIBILITY_MS <= VISIBILITY_MAX_MS && RECORD_MAX_BYTES > 0);
    assert!(LEASES_MAX <= LEASE_BOUND_MAX as usize && ACKED_AHEAD_MAX <= LEASE_BOUND_MAX as usize);
    assert!(PARTITIONS_MAX as usize <= ALL_PARTITIONS_MAX);
    // A copy stops well before an append is refused.
    assert!(STAGING_RESERVE_BYTES >= APPEND_RESERVE_BYTES + 3 * SEGMENT_BYTES);
    assert!(STALL_PERCENT < SLOWER_PERCENT && SLOWER_PERCENT < 100 && PASSES_MAX > 0);
};
