//! Every bound of the Raft part in one place, each with its reason. The assertions at the end tie the
//! dependent ones together, so that no entry can be accepted that could later not be sent.

use std::time::Duration;

/// Largest Raft message handed to the transport, in bytes. Peers bound their frames; this stays under it.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Largest proposal, in bytes. Metadata commands are small; a batch that needs more must be split.
pub const MAX_PROPOSAL_BYTES: usize = 256 << 10;

/// Largest log entry as JSON, in bytes: a proposal doubles at most, the rest is the log id.
pub const MAX_ENTRY_BYTES: usize = 2 * MAX_PROPOSAL_BYTES + (8 << 10);

/// Entries of one append message end before this many bytes of JSON; what is left is for its envelope.
pub const APPEND_BUDGET_BYTES: usize = MAX_MESSAGE_BYTES - (64 << 10);

/// Entries in one append message: bounds what a follower writes before it answers.
pub const MAX_APPEND_ENTRIES: u64 = 512;

/// Data bytes of one snapshot chunk. The header (vote, membership) has the rest of the message.
pub const SNAPSHOT_CHUNK_BYTES: usize = 512 << 10;

/// Largest snapshot taken or accepted, in bytes: it is held in memory while it is sent and received.
pub const MAX_SNAPSHOT_BYTES: u64 = 256 << 20;

/// A log segment is rolled when the next frame would pass this size. Small, because purging frees whole segments.
pub const SEGMENT_BYTES: u64 = 4 << 20;

/// Log entries kept decoded in memory, in bytes of their JSON; older ones are read from disk.
pub const ENTRY_CACHE_BYTES: usize = 16 << 20;

/// Longest node id, in bytes. It is part of the vote, which has to fit in one slot of its file.
pub const MAX_NODE_ID_BYTES: usize = 255;

/// Longest peer address, in bytes: membership entries of a large cluster stay far below one message.
pub const MAX_ADDR_BYTES: usize = 512;

/// First and longest wait before an unreachable peer is tried again, doubled in between.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// See [`BACKOFF_FIRST`]: short, because a peer that comes back should not miss heartbeats for long.
pub const BACKOFF_MAX: Duration = Duration::from_millis(1_000);

/// Time that one snapshot chunk may take, the installing of the last one included.
pub const SNAPSHOT_CHUNK_TIMEOUT_MS: u64 = 20_000;

/// Pause before a full disk is tried again.
pub const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);

/// A full disk is waited for this many pauses (five minutes: time for retention or an operator) before Raft stops.
pub const FULL_DISK_TRIES: u32 = 600;

/// Calls of this node that wait to enter the Raft core; more of them wait outside.
pub const CORE_CHANNEL: u64 = 4_096;

const _: () = assert!(
    MAX_ENTRY_BYTES < APPEND_BUDGET_BYTES,
    "one entry always fits in a message"
);
const _: () = assert!(APPEND_BUDGET_BYTES < MAX_MESSAGE_BYTES);
const _: () = assert!(
    SNAPSHOT_CHUNK_BYTES * 2 <= MAX_MESSAGE_BYTES,
    "room for the chunk's header"
);
const _: () = assert!((MAX_ENTRY_BYTES as u64) < SEGMENT_BYTES);
const _: () = assert!(MAX_ENTRY_BYTES < ENTRY_CACHE_BYTES);
