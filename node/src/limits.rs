//! Every bound of the node's own queues, loops and buffers, with its reason.
//!
//! What this file keeps true: nothing in this crate grows with load or with a peer's wishes.

/// Requests that may wait for the control core: a burst of proposals of all shards and of a
/// peer's Raft messages; more than that means the core is stuck, and senders should wait.
pub const CONTROL_QUEUE: usize = 1_024;
/// Requests that may wait for one shard: connections times calls in flight, bounded so that a
/// slow disk pushes back instead of filling memory.
pub const SHARD_QUEUE: usize = 4_096;
/// Requests that may wait for the mover: only views.
pub const MOVER_QUEUE: usize = 64;
/// Requests that the control core works on at once; they wait for the network, not for the CPU.
pub const CONTROL_IN_FLIGHT: usize = 1_024;

/// Founding members and addresses to join through: a list for a person to write.
pub const ADDRESSES_MAX: usize = 64;
/// Most shard executors: each pins rings and a thread.
pub const SHARDS_MAX: u32 = 512;
/// Largest configuration file that is read, in bytes.
pub const CONFIG_FILE_MAX_BYTES: u64 = 1 << 20;
/// Largest `node.json` that is read, in bytes.
pub const NODE_FILE_MAX_BYTES: u64 = 64 << 10;

/// Threads that answer the admin port, each one connection at a time: a scrape and a few people,
/// with room for some clients that are slow.
pub const HTTP_THREADS: usize = 16;
/// Largest head of a request to the admin port, in bytes; browsers send a few KiB.
pub const HTTP_HEAD_MAX_BYTES: usize = 8 << 10;
/// Most headers of a request to the admin port.
pub const HTTP_HEADERS_MAX: usize = 64;
/// Largest body that is read, in bytes, and not looked at: no path takes one.
pub const HTTP_BODY_MAX_BYTES: usize = 4 << 10;
/// How long a client of the admin port may take to send its whole request, in ms.
pub const HTTP_READ_MS: u64 = 3_000;
/// How long it may take to read the whole answer, in ms; a large `/metrics` is some MiB.
pub const HTTP_WRITE_MS: u64 = 10_000;
/// How long an answered connection may stay until the client closes it, in ms.
pub const HTTP_LINGER_MS: u64 = 500;
/// Reads (of at most 1 KiB) from an answered connection before it is closed all the same.
pub const HTTP_LINGER_READS: usize = 256;
/// Pause after a connection could not be taken, in ms.
pub const HTTP_ACCEPT_PAUSE_MS: u64 = 50;
/// How long one call to another node's control core may take, in ms.
pub const PEER_CALL_MS: u64 = 5_000;
/// How long a proposal that was handed to the leader is waited for, in ms; then it is unknown.
pub const PROPOSE_CALL_MS: u64 = 12_000;
/// How long a proposal is retried while it was certainly not proposed, in ms: longer than an
/// election takes, shorter than a person's patience.
pub const PROPOSE_RETRY_MS: u64 = 15_000;
/// How long a barrier is retried, in ms.
pub const BARRIER_RETRY_MS: u64 = 15_000;
/// First wait between two attempts, in ms; it doubles up to [`RETRY_MAX_MS`].
pub const RETRY_MIN_MS: u64 = 20;
/// Longest wait between two attempts, in ms.
pub const RETRY_MAX_MS: u64 = 500;
/// How long this node waits until a committed entry is applied here before the outcome counts as
/// unknown, in ms.
pub const APPLY_WAIT_MS: u64 = 10_000;
/// How long a stopping node waits for leadership to go away, in ms.
pub const HAND_OVER_MS: u64 = 3_000;
/// How often the start looks whether the node is ready, in ms.
pub const READY_POLL_MS: u64 = 50;
/// Heartbeats of this node that may wait for their answers at once: one slow answer must not
/// delay the next beat, and more than a few mean that there is no leader.
pub const BEATS_IN_FLIGHT: usize = 4;
/// Raft messages of peers that are worked on at once; each peer sends a few at a time.
pub const RAFT_IN_FLIGHT: usize = 512;
/// How long a view waits for the leader or the own node, in ms; then it shows what is known here.
pub const VIEW_CALL_MS: u64 = 2_000;
/// Views that are asked of the leader at once.
pub const VIEWS_FORWARDED: usize = 16;
/// Entries that a learner may be behind when it is promoted.
pub const PROMOTE_LAG_MAX: u64 = 256;
/// Rounds over the founders after which the start says again whom it waits for.
pub const FOUNDING_TELL_EVERY: u32 = 20;
/// Rounds over the founders that must agree, half a second apart, before a founder with an empty disk
/// ends because the cluster cannot have a leader: while a cluster is being founded the answers of
/// one round may be of different moments.
pub const FOUNDING_LOST_ROUNDS: u32 = 4;
/// How long a join waits until a node is reached, in ms: a dead address must not hold up the others.
pub const JOIN_REACH_MS: u64 = 1_500;
/// How long the answer to a join is waited for, in ms: a barrier, a proposal and a change of Raft's
/// membership. It may be asked for again.
pub const JOIN_CALL_MS: u64 = 5_000;
/// Addresses that a redirected join is followed through in one attempt.
pub const JOIN_HOPS: usize = 4;
/// Owned partitions whose bytes one heartbeat tells; the next ones tell of the others, in turn.
pub const BEAT_PARTITIONS_MAX: usize = 10_000;
/// How long a leader does not choose a target again that had no room for a partition although it had told
/// so: long enough for other copies to end and retention to run, short enough that nobody has to order
/// it by hand.
pub const NO_ROOM_MS: u64 = 300_000;
/// Such pairs that a leader remembers; the oldest go first.
pub const NO_ROOM_MAX: usize = 1_024;
/// Steps that one plan shows.
pub const PLAN_STEPS_MAX: usize = 1_000;
/// Commands that one pass of the controller proposes at once.
pub const CONTROLLER_BATCH: usize = 64;

/// How long one batch of a salvage is offered to the cluster before the rest is left on the disk, in
/// ms: longer than an election and a move of leadership.
pub const SALVAGE_GIVE_UP_MS: u64 = 60_000;
/// Pause between two attempts of a salvage, in ms.
pub const SALVAGE_PAUSE_MS: u64 = 500;

/// Default for reading sealed segments again, in bytes/s a shard: a hundredth of what a disk does, and a
/// partition of 256 GiB in less than half a day.
pub const SCRUB_BYTES_PER_S: u64 = 8 << 20;

/// Default for how often every sealed segment is read again, in ms: a day.
pub const SCRUB_EVERY_MS: u64 = 24 * 3_600_000;

/// Default for how many Raft entries a snapshot takes the place of: some MiB of log at the most.
pub const SNAPSHOT_ENTRIES: u64 = 4_096;
/// What may be chosen for it: a snapshot is the whole metadata, and a start replays what is behind it.
pub const SNAPSHOT_ENTRIES_RANGE: (u64, u64) = (32, 1 << 20);
/// A snapshot leaves one in so many of these entries in the log, for peers that lag a little.
pub const SNAPSHOT_KEEP: u64 = 4;

const _: () = {
    assert!(RETRY_MIN_MS < RETRY_MAX_MS && RETRY_MAX_MS < PROPOSE_RETRY_MS);
    assert!(PROPOSE_RETRY_MS > narad_core::defaults::ELECTION_MAX_MS * 3);
    assert!(BARRIER_RETRY_MS > narad_core::defaults::ELECTION_MAX_MS * 3);
    assert!(CONTROL_QUEUE >= 64 && SHARD_QUEUE >= 64);
};
