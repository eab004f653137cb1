//! Bounds of the data plane and of the RPC servers, each with its reason.
//!
//! What this file keeps true: no queue, task set, retry or wait of a shard is without a number
//! here, and numbers that depend on one another are tied by assertions.

use narad_core::defaults::{ELECTION_MAX_MS, FREEZE_TTL_MS, HEARTBEAT_MS, RECORD_MAX_BYTES};
use narad_core::dispatch;
use narad_storage::limits::{GROUP_BYTES, MAX_FRAME_PAYLOAD_BYTES, MAX_FRAME_RECORDS};
use narad_wire::limits::{BATCH_MAX_BYTES, BATCH_MAX_RECORDS, CLIENT_ATTEMPT_MS, READ_MAX_BYTES};

/// Requests of one shard that may be worked on at once; further ones wait in its channel. Parked
/// consumers are not among them.
pub(crate) const SHARD_TASKS_MAX: usize = 4_096;
/// Connections that one shard serves at once; further ones wait in the kernel's backlog.
pub(crate) const CONNECTIONS_MAX: usize = 4_096;
/// Calls of one connection that may run at once; further ones wait in the order they came. Enough
/// to fill group commits, small enough that one client cannot take a shard's memory
/// (calls x batch bytes).
pub(crate) const CALLS_PER_CONNECTION: usize = 128;
/// Calls of one connection that may wait for their turn; beyond that they are answered `busy`.
pub(crate) const CALLS_WAITING_PER_CONNECTION: usize = 4_096;

/// Bytes of content after which a batch is split before it goes into a log: with what a log adds to
/// each record it stays within one frame, and one group commit takes it whole.
pub(crate) const PUT_BYTES: usize = 2 << 20;
/// Most that a log, the ingress WAL included, adds to one record's content in a frame, in bytes.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 64;
/// Nodes that a node which is leaving offers a batch to before it refuses it.
pub(crate) const FORWARDS_MAX: usize = 3;
/// Nodes that may pass records on, one after the other: two that leave at once, and one that knows so.
pub(crate) const FORWARD_HOPS_MAX: u8 = 2;

/// Settings that one call may name: more than there are.
pub(crate) const SETTINGS_MAX: u32 = 64;
/// Bytes of records, and of what the calls cost that bring them, that one shard has taken and not
/// placed yet; beyond that produce calls are answered `busy`. The bound that keeps memory from
/// growing when the disk is slower than the clients, whatever their number.
pub(crate) const PRODUCE_PENDING_BYTES: usize = 256 << 20;
/// Bytes of records that other nodes' dispatchers have sent to one shard and that are not appended yet.
pub(crate) const DISPATCHED_PENDING_BYTES: usize = 64 << 20;
/// Bytes of all other calls (names, leases) that one shard has taken and not answered yet.
pub(crate) const CALLS_PENDING_BYTES: usize = 32 << 20;
/// What such a call costs beside its names and leases.
pub(crate) const CALL_COST_BYTES: usize = 1 << 10;
/// Bytes of records that one connection is owed in answers; a consume or replay call waits beyond it,
/// so a peer that asks and does not read holds no more than this and one answer.
pub(crate) const ANSWERS_OWED_MAX: u64 = 32 << 20;
/// What a record on its way costs beside its bytes.
pub(crate) const RECORD_COST_BYTES: usize = 96;
/// How far ahead of this node's clock the time of a record may lie, in ms: more than clocks are apart
/// and than a zone is off, and far less than a time in another unit.
pub(crate) const TIME_AHEAD_MAX_MS: u64 = 24 * 60 * 60 * 1_000;

/// Partitions that one batch is offered to before it goes into the ingress WAL.
pub(crate) const REROUTES_MAX: usize = 4;

/// Consumers of one connection that may be parked at once: a peer parks one for each of its clients.
pub(crate) const PARKED_PER_CONNECTION: usize = 1_024;
/// Consumers that may be parked on one shard at once; further ones are answered `busy`. They have
/// this bound of their own because one of them stays for as long as a minute, and what makes
/// records or moves a partition must never wait behind it.
pub(crate) const PARKED_MAX: usize = 2_048;

/// Longest that the look-up of a topic that is not known here waits for a leader, in ms: longer than an
/// election takes, shorter than a client's patience with one node.
pub(crate) const LOOKUP_WAIT_MS: u64 = 3_000;
/// Longest that a first append waits for its log to be made and told to Raft, in ms; afterwards the
/// records go through the ingress WAL while the log is being made.
pub(crate) const OPEN_WAIT_MS: u64 = 2_000;
/// Longest that the mover's request to serve waits for the flip to be applied here, in ms.
pub(crate) const FLIP_WAIT_MS: u64 = 5_000;
/// Logs opened at once when a shard starts.
pub(crate) const OPENS_AT_ONCE: usize = 8;
/// Pause before an open, a salvage, a reclaim or a read for consumers that failed is tried again, in ms.
pub(crate) const RECONCILE_RETRY_MS: u64 = 1_000;
/// Refused reads of a partition with no longer a pause between them, in ms, are one matter: several tries.
pub(crate) const READ_LULL_MS: u64 = 10 * RECONCILE_RETRY_MS;
/// How long a read that the disk refuses is tried, in ms, before its records are passed over as damaged: sixty
/// tries, longer than a controller's reset or the change of a path takes.
pub(crate) const READ_PATIENCE_MS: u64 = 60 * RECONCILE_RETRY_MS;
/// Offsets of a partition at which refusals are timed: bad places are few, and a disk that refuses everything needs no
/// longer list.
pub(crate) const UNREAD_PLACES_MAX: usize = 64;
/// Interval at which everything is compared with the metadata even when nothing changed, in ms: a
/// safety net, every change wakes the loop by itself.
pub(crate) const RECONCILE_TICK_MS: u64 = 2_000;

/// How long a changed frontier may stay unwritten, in ms (DESIGN 6 promises 100).
pub(crate) const FRONTIER_FLUSH_MS: u64 = 50;
/// Frontiers written at once by one flush.
pub(crate) const FLUSHES_AT_ONCE: usize = 16;
/// Interval of the check of freezes and of proposals that are to be repeated, in ms. Far below the
/// freeze's time-to-live.
pub(crate) const SOURCE_TICK_MS: u64 = 250;
/// Interval of retention, in ms.
pub(crate) const RETENTION_TICK_MS: u64 = 10_000;
/// Interval at which idle logs are looked for, in ms; one that did nothing for as long is trimmed.
pub(crate) const IDLE_TICK_MS: u64 = 10_000;
/// Pause after logs had to close files because there were too many, in ms: what is in use is closed with the
/// append or read that uses it.
pub(crate) const FILES_PAUSE_MS: u64 = 5;
/// After a start, scrubbing waits for what is more urgent, in ms.
pub(crate) const SCRUB_FIRST_MS: u64 = 60_000;
/// Pause between two partitions, in ms, so that many small ones do not run in a burst.
pub(crate) const SCRUB_PAUSE_MS: u64 = 20;
/// How often a scrub looks whether its partition is still open, in ms.
pub(crate) const SCRUB_LOOK_MS: u64 = 1_000;
/// Longest that closing logs may take when the node stops, in ms; what is not closed is recovered.
pub(crate) const STOP_GRACE_MS: u64 = 10_000;
/// Interval at which the ingress WAL's checkpoint is written, in ms; what is lost with it is only
/// delivered again and recognised.
pub(crate) const WAL_CHECKPOINT_MS: u64 = 500;
/// How often a WAL is looked at for an error of the disk that has stopped it, and how long a recovery
/// that failed is waited with, in ms: shorter than a client's patience, longer than a recovery.
pub(crate) const WAL_REPAIR_MS: u64 = 500;

/// Records that a salvage reads and puts into the WAL at once.
pub(crate) const SALVAGE_RECORDS: usize = 4_096;
/// Bytes that a salvage reads and puts into the WAL at once.
pub(crate) const SALVAGE_BYTES: usize = 1 << 20;

/// Shortest sleep of a parked consumer, in ms: a record that is due and cannot be delivered must not
/// make it spin.
pub(crate) const PARK_MIN_MS: u64 = 10;
/// Longest sleep of a parked consumer before it looks again, in ms: a lease that ends wakes it
/// earlier.
pub(crate) const PARK_SLICE_MS: u64 = 1_000;
/// How long one poll of another node parks there, in ms.
pub(crate) const REMOTE_PARK_MS: u32 = 500;
/// How long what a poll brought when nobody waited for it is kept for the next who asks, in ms: some times what a consumer
/// takes from one call to the next.
pub(crate) const POLL_HOLD_MS: u64 = 10;
/// Polls of other nodes that nobody waits for, and results of such, that a shard keeps at most: one for each consumer that
/// comes back at once.
pub(crate) const POLLS_STAND_BY_MAX: usize = 256;
/// A poll of another node that is to answer at once, and does not for this long, in ms, holds the poll of
/// the next one up no longer: far longer than an answer from memory takes.
pub(crate) const REMOTE_HURRY_MS: u64 = 50;
/// How long a consumer that does not want to wait waits for the last of the other nodes, in ms.
pub(crate) const REMOTE_NOW_MS: u64 = 1_000;
/// Most other nodes that one parked consumer polls at once.
pub(crate) const REMOTE_POLLS_MAX: usize = 16;

/// Deadline of a call to another node that answers from memory, in ms.
pub(crate) const PEER_CALL_MS: u64 = 3_000;
/// Deadline of a call to another node that waits for its disk, in ms.
pub(crate) const PEER_APPEND_MS: u64 = 10_000;
/// Deadline of best-effort figures from another node, in ms.
pub(crate) const PEER_STATS_MS: u64 = 1_000;

/// Bytes read from an ingress WAL at once.
pub(crate) const DISPATCH_READ_BYTES: usize = 4 << 20;
/// Bytes of records that a dispatcher keeps in memory between reading and delivering them; what
/// does not fit is read again.
pub(crate) const DISPATCH_WINDOW_BYTES: usize = 16 << 20;

/// Appends to an ingress WAL whose time is remembered, for the dispatch lag.
pub(crate) const AGES_MAX: usize = 16_384;

/// Records that one consume moves to the dead-letter topic at most; the next one goes on.
pub(crate) const DEAD_LETTER_BATCH: usize = 256;

const _: () = {
    // A batch may exceed its bound by one record; a peer takes it all the same.
    assert!(
        dispatch::BATCH_BYTES as usize + RECORD_MAX_BYTES as usize <= BATCH_MAX_BYTES
            && dispatch::BATCH_RECORDS <= BATCH_MAX_RECORDS
    );
    assert!(DISPATCH_READ_BYTES <= DISPATCH_WINDOW_BYTES);
    // Every batch that a client may send, and every one that is dispatched, fits the logs' frames.
    assert!(PUT_BYTES <= GROUP_BYTES && RECORD_MAX_BYTES as usize <= PUT_BYTES);
    assert!(
        PUT_BYTES + BATCH_MAX_RECORDS * RECORD_OVERHEAD_BYTES <= MAX_FRAME_PAYLOAD_BYTES
            && BATCH_MAX_RECORDS <= MAX_FRAME_RECORDS
    );
    assert!(
        dispatch::BATCH_BYTES as usize
            + RECORD_MAX_BYTES as usize
            + dispatch::BATCH_RECORDS * RECORD_OVERHEAD_BYTES
            <= MAX_FRAME_PAYLOAD_BYTES
    );
    assert!(
        SALVAGE_BYTES + RECORD_MAX_BYTES as usize + SALVAGE_RECORDS * RECORD_OVERHEAD_BYTES
            <= MAX_FRAME_PAYLOAD_BYTES
    );
    assert!(PARKED_MAX < SHARD_TASKS_MAX);
    // One connection that fills its calls leaves room for others.
    assert!(
        PRODUCE_PENDING_BYTES >= 32 * (BATCH_MAX_BYTES + BATCH_MAX_RECORDS * RECORD_COST_BYTES)
    );
    assert!(
        DISPATCHED_PENDING_BYTES >= 8 * (BATCH_MAX_BYTES + BATCH_MAX_RECORDS * RECORD_COST_BYTES)
    );
    // Everything that one connection may have waiting fits, where the calls are small.
    assert!(CALLS_PENDING_BYTES >= 4 * CALLS_WAITING_PER_CONNECTION * CALL_COST_BYTES);
    assert!(SALVAGE_BYTES < READ_MAX_BYTES);
    assert!(ANSWERS_OWED_MAX as usize >= 4 * READ_MAX_BYTES);
    assert!(FRONTIER_FLUSH_MS * 2 <= 100);
    assert!(SOURCE_TICK_MS * 8 <= FREEZE_TTL_MS);
    assert!(PEER_CALL_MS > HEARTBEAT_MS);
    assert!(ELECTION_MAX_MS < LOOKUP_WAIT_MS && LOOKUP_WAIT_MS < CLIENT_ATTEMPT_MS);
    assert!((REMOTE_PARK_MS as u64) < PEER_CALL_MS);
    assert!(REMOTE_HURRY_MS < REMOTE_NOW_MS && REMOTE_NOW_MS < PEER_CALL_MS);
};
