//! Every bound of this crate, with its reason.
//!
//! What this file keeps true: no queue, buffer, retry or wait in this crate is without a number
//! here, and numbers that depend on one another are tied by assertions.

/// What is gathered of a message's small pieces before they are written, in bytes: a message of many segments
/// is then one system call, or few. What does not fit leaves from where it is.
pub const RPC_WRITE_BUFFER_BYTES: usize = 64 << 10;
/// So much of that memory a connection keeps while it has nothing to write, in bytes.
pub const RPC_WRITE_KEPT_BYTES: usize = 4 << 10;
/// Least bytes that are asked for in one read of an RPC connection: one system call carries many small
/// calls.
pub const RPC_READ_BUFFER_BYTES: usize = 16 << 10;
/// Largest memory of a message that is used again, in bytes; a batch of 100 records of 1 KiB fits into half of
/// it. What a larger message has beyond the first read goes to where it stays.
pub const MESSAGE_KEPT_BYTES: usize = 256 << 10;
/// Memory of messages that a thread keeps to use it again, in bytes: 64 batches of 100 KiB under way.
pub const MESSAGES_KEPT_BYTES: usize = 8 << 20;
/// Most segments of a message; the RPC library allows as many.
pub const MESSAGE_MAX_SEGMENTS: usize = 511;
/// What a call or an answer takes in a message beside its records, in bytes, with a topic's longest name.
pub const MESSAGE_FRAME_BYTES: usize = 1 << 10;
/// Most bytes that a message begins with, whatever its maker expects: the longest batch, handed out.
pub const ROOM_MAX_BYTES: usize = BATCH_MAX_BYTES
    + BATCH_MAX_RECORDS * (RECORD_WIRE_BYTES + DELIVERY_WIRE_BYTES)
    + MESSAGE_FRAME_BYTES;

const _: () = {
    assert!(RPC_READ_BUFFER_BYTES.is_power_of_two() && MESSAGE_KEPT_BYTES.is_power_of_two());
    assert!(RPC_READ_BUFFER_BYTES < MESSAGE_KEPT_BYTES);
    assert!(MESSAGES_KEPT_BYTES >= 16 * MESSAGE_KEPT_BYTES);
    assert!(RPC_WRITE_KEPT_BYTES < RPC_WRITE_BUFFER_BYTES);
    assert!(ROOM_MAX_BYTES < CALL_LIMIT_WORDS * 8 && READ_MAX_BYTES <= BATCH_MAX_BYTES);
};

/// Most records of one `produce` or `append` call.
pub const BATCH_MAX_RECORDS: usize = 10_000;
/// Most bytes (keys and values) of one `produce` or `append` call. Bounded by bytes as well as by
/// count, so that no batch of allowed records can outgrow what a peer takes.
pub const BATCH_MAX_BYTES: usize = 4 << 20;
/// Most bytes of one Raft message body.
pub const RAFT_BODY_MAX_BYTES: usize = 2 << 20;
/// Most bytes that a `consume` or `replay` answer carries, whatever was asked for.
pub const READ_MAX_BYTES: usize = 4 << 20;
/// Longest park of a long poll, in ms.
pub const WAIT_MAX_MS: u32 = 60_000;

/// What a record takes in a message beside its key and value, at most: its place in the list, and the
/// padding of both.
pub const RECORD_WIRE_BYTES: usize = 40;
/// What the outcome of a record takes in an answer, where it is no fault: its place in the list, and two numbers.
pub const OUTCOME_WIRE_BYTES: usize = 32;
/// What a delivered or replayed record takes beside that: its place, its lease, its counts.
pub const DELIVERY_WIRE_BYTES: usize = 56;
/// Longest answer that is read, and most of it that is walked over, in words of 8 bytes. The library's
/// default of 64 MiB ends the *connection* of whoever asks for all topics of a large cluster.
pub const ANSWER_LIMIT_WORDS: usize = (256 << 20) / 8;
/// The same for the calls that a node serves. The message is in memory before anybody can say that it is too
/// large, for each connection one; so this is no more than leaves room for a batch of several times the
/// size that is allowed, which is then answered in words.
pub const CALL_LIMIT_WORDS: usize = (32 << 20) / 8;
/// Deepest nesting of a message; the interfaces nest to less than ten.
pub const NESTING_LIMIT: i32 = 32;

const _: () = {
    assert!(CALL_LIMIT_WORDS * 8 >= 6 * (BATCH_MAX_BYTES + BATCH_MAX_RECORDS * RECORD_WIRE_BYTES));
    assert!(CALL_LIMIT_WORDS * 8 >= 6 * RAFT_BODY_MAX_BYTES);
    assert!(ANSWER_LIMIT_WORDS * 8 >= 16 * READ_MAX_BYTES);
};

/// Idle time before the kernel probes a silent RPC connection, in s.
pub const KEEPALIVE_IDLE_S: u32 = 5;
/// Interval of those probes, in s.
pub const KEEPALIVE_INTERVAL_S: u32 = 2;
/// Unanswered probes that end the connection.
pub const KEEPALIVE_PROBES: u32 = 4;
/// Sent bytes that stay unacknowledged this long end the connection, in ms. Shorter than dead-after
/// (15 s), so that calls to a vanished machine end before its death is decided.
pub const TCP_USER_TIMEOUT_MS: u32 = 12_000;

const _: () = {
    assert!((TCP_USER_TIMEOUT_MS as u64) < narad_core::defaults::DEAD_AFTER_MS);
    assert!(
        (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) as u64 * 1_000
            < narad_core::defaults::DEAD_AFTER_MS
    );
};

/// How long closing a connection may take before it is cut, in ms.
pub const CLOSE_GRACE_MS: u64 = 1_000;

/// Ranges of the bulk channel start and end at multiples of this, in bytes: what O_DIRECT needs.
pub const BULK_ALIGN: u64 = 512;
/// Bytes of one splice, and the size asked of a pipe: larger reads have hung on old kernels, and a
/// pipe of 64 KiB halves the throughput.
pub const BULK_CHUNK_BYTES: usize = 1 << 20;
/// Least bytes of one read where what is being read at once is bounded: below, the calls cost more than the bytes.
pub const BULK_READ_MIN_BYTES: usize = 64 << 10;
/// Bytes of a stream for which its reader is woken, where it waits for more: below, a piece is a dozen wake-ups; above,
/// copying them out would not overlap with the rest's arrival.
pub const BULK_WAKE_BYTES: usize = 128 << 10;
/// Under a rate limit, so much time's worth is paid for at once, in µs: a short tail takes as long as
/// its bytes need, and a stream holds the others up no longer than that.
pub const BULK_QUANTUM_US: u64 = 10_000;
/// Least bytes paid for at once: a page.
pub const BULK_QUANTUM_MIN_BYTES: usize = 4 << 10;
/// So much time that was not used may be made up for under a rate limit, in µs: round trips between
/// two passes do not cost bandwidth, and a burst is no longer than a freeze may be.
pub const BULK_BURST_US: u64 = 5_000;
/// So much lateness of a thread that has more to send may be made up for under a rate limit, in µs: a
/// busy machine oversleeps by some milliseconds each time. What is made up for comes at full speed, so
/// it is no more than that.
pub const BULK_LATE_US: u64 = 20_000;
/// Longest range of one request, in bytes: bounds what a closed session can still cost.
pub const RANGE_MAX_BYTES: u64 = 64 << 20;
/// Copy sessions that a node serves at once; moves out of a node are far fewer.
pub const BULK_MAX_SESSIONS: usize = 256;

const _: () = {
    assert!((BULK_CHUNK_BYTES as u64).is_multiple_of(BULK_ALIGN));
    assert!((BULK_READ_MIN_BYTES as u64).is_multiple_of(BULK_ALIGN));
    assert!((BULK_QUANTUM_MIN_BYTES as u64).is_multiple_of(BULK_ALIGN));
    assert!(BULK_BURST_US <= narad_core::defaults::FREEZE_BUDGET_MS * 1_000);
    assert!(RANGE_MAX_BYTES.is_multiple_of(BULK_CHUNK_BYTES as u64));
    assert!(BULK_MAX_SESSIONS > 8 * narad_core::defaults::MAX_MOVES_OUT);
};

/// For connecting to a node and for its first answer, each, in ms.
pub const CONNECT_DEADLINE_MS: u64 = 2_000;
/// Wait after the first failed attempt to connect, in ms.
pub const BACKOFF_MIN_MS: u64 = 50;
/// Longest wait between two attempts, in ms: a node that is back is found within a second.
pub const BACKOFF_MAX_MS: u64 = 1_000;
/// A live connection younger than this is not the one that a caller saw failing, in ms.
pub const POOL_YOUNG_MS: u64 = 100;
/// Addresses that a pool remembers; more than any cluster has nodes.
pub const POOL_MAX_ADDRS: usize = 1_024;

const _: () = {
    assert!(BACKOFF_MIN_MS <= BACKOFF_MAX_MS);
    assert!(2 * CONNECT_DEADLINE_MS < narad_core::defaults::MOVE_LEASE_MS);
};

/// Smallest pipe that is asked for when the user's limit is reached, in bytes.
pub const PIPE_MIN_BYTES: usize = 64 << 10;
/// Bulk streams that a node serves at once, a thread each: every move out with several streams.
pub const BULK_MAX_STREAMS: usize = 32;
/// Ranges that a receiver may ask for ahead of reading them.
pub const BULK_PIPELINE: usize = 16;
/// Silence that ends a bulk stream, at both sides, in ms: shorter than a freeze's time to live would
/// cut slow links, longer would hold threads.
pub const BULK_IDLE_MS: u64 = 30_000;
/// How long a stream that is turned away may take to send its request, in ms.
pub const BULK_REFUSE_MS: u64 = 200;
/// Pause after a failed accept (no descriptors left), in ms.
pub const BULK_ACCEPT_PAUSE_MS: u64 = 50;

const _: () = {
    assert!(BULK_MAX_STREAMS >= 4 * narad_core::defaults::MAX_MOVES_OUT);
    assert!(
        BULK_MAX_STREAMS <= 64,
        "a plain user gets 64 pipes of 1 MiB"
    );
};

/// A client's call, all attempts together, in ms.
pub const CLIENT_DEADLINE_MS: u64 = 30_000;
/// One attempt of a question at one node, in ms: a stalled node costs no more than that.
pub const CLIENT_ATTEMPT_MS: u64 = 5_000;
/// Pause of a client after it has asked every node in vain, in ms; at least and at most.
pub const CLIENT_PAUSE_MS: u64 = 50;
/// See [`CLIENT_PAUSE_MS`].
pub const CLIENT_PAUSE_MAX_MS: u64 = 1_000;
/// Least time of another attempt, in ms: one that can hardly be answered would only hide why the
/// ones before it failed, and leave a change in doubt.
pub const CLIENT_LEAST_ATTEMPT_MS: u64 = 100;
/// Node addresses that a client remembers.
pub const CLIENT_MAX_SERVERS: usize = 256;

const _: () = {
    assert!(CLIENT_ATTEMPT_MS > CONNECT_DEADLINE_MS && CLIENT_DEADLINE_MS > 2 * CLIENT_ATTEMPT_MS);
    assert!(CLIENT_PAUSE_MS <= CLIENT_PAUSE_MAX_MS);
    assert!(CLIENT_LEAST_ATTEMPT_MS < CLIENT_ATTEMPT_MS);
};

/// Records and bytes after which a producer sends a batch: large enough to share a group commit,
/// small enough that several are under way.
pub const PRODUCER_BATCH_RECORDS: usize = 2_000;
/// See [`PRODUCER_BATCH_RECORDS`].
pub const PRODUCER_BATCH_BYTES: usize = 1 << 20;
/// How long a producer's batch waits for more records, in ms.
pub const PRODUCER_LINGER_MS: u64 = 2;
/// Batches of a producer on their way at a time.
pub const PRODUCER_IN_FLIGHT: usize = 16;
/// Most that may be set.
pub const PRODUCER_IN_FLIGHT_MAX: usize = 1_024;
/// Bytes that may wait in a producer.
pub const PRODUCER_PENDING_BYTES: usize = 64 << 20;
/// One attempt of a batch at one node, in ms.
pub const PRODUCER_ATTEMPT_MS: u64 = 10_000;
/// A batch without success for this long is given up, in ms: longer than a cluster needs to elect
/// a leader and to declare a node dead.
pub const PRODUCER_GIVE_UP_MS: u64 = 120_000;
/// What a waiting record costs beside its bytes.
pub const RECORD_COST_BYTES: usize = 128;
/// Shortest time between two questions where a topic's partitions are, in ms.
pub const LOCATE_PAUSE_MS: u64 = 100;
/// A picture of the partitions older than this is asked for anew when it is used, in ms.
pub const LOCATE_MAX_AGE_MS: u64 = 30_000;

const _: () = {
    assert!(PRODUCER_BATCH_RECORDS <= BATCH_MAX_RECORDS);
    assert!(PRODUCER_BATCH_BYTES <= BATCH_MAX_BYTES);
    assert!(PRODUCER_PENDING_BYTES >= 2 * PRODUCER_IN_FLIGHT * PRODUCER_BATCH_BYTES);
    assert!(PRODUCER_GIVE_UP_MS > 2 * narad_core::defaults::DEAD_AFTER_MS);
    assert!(PRODUCER_ATTEMPT_MS > CONNECT_DEADLINE_MS);
};

/// Records and bytes that a consumer asks for at a time.
pub const CONSUMER_BATCH_RECORDS: u32 = 500;
/// See [`CONSUMER_BATCH_RECORDS`].
pub const CONSUMER_BATCH_BYTES: u32 = 1 << 20;
/// How long a consumer's poll parks at a node, in ms: how long a poll of a former owner may linger.
pub const CONSUMER_WAIT_MS: u32 = 5_000;
/// How often a consumer looks where the partitions are, in ms.
pub const CONSUMER_LOOK_MS: u64 = 1_000;
/// Nodes that a consumer polls at a time.
pub const CONSUMER_MAX_POLLERS: usize = 256;
/// Failed polls in a row after which other nodes are asked for an owner's records.
pub const CONSUMER_UNREACHABLE_FAILURES: u32 = 2;

/// Records that may wait for an application whose pace is not known yet; few, because a record may
/// take it seconds.
pub const CONSUMER_FIRST_RECORDS: u32 = 8;
/// What waits for the application is this part of the visibility's work at most: as much again is
/// in its hands, and half of the time is left for what takes longer than the records before.
pub const CONSUMER_AHEAD_PART: u32 = 4;
/// Leases begin anew before they are handed out when their age and the work on them come to this part of
/// the visibility.
pub const CONSUMER_RENEW_PART: u32 = 2;

const _: () = {
    assert!(CONSUMER_AHEAD_PART > CONSUMER_RENEW_PART);
    assert!(CONSUMER_FIRST_RECORDS <= CONSUMER_BATCH_RECORDS);
    assert!(CONSUMER_WAIT_MS <= WAIT_MAX_MS);
    assert!(CONSUMER_BATCH_BYTES as usize <= READ_MAX_BYTES);
    assert!((CONSUMER_WAIT_MS as u64) < narad_core::defaults::VISIBILITY_MS);
};

/// Records and bytes of one answer of a replay.
pub const REPLAY_BATCH_RECORDS: u32 = 5_000;
/// See [`REPLAY_BATCH_RECORDS`].
pub const REPLAY_BATCH_BYTES: u32 = 2 << 20;

const _: () = assert!(REPLAY_BATCH_BYTES as usize <= READ_MAX_BYTES);
