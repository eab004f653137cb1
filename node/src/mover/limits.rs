//! Bounds of the mover, with their reasons.
//!
//! What this file keeps true: what a move costs in memory, calls and waiting is bounded here.

/// Largest range asked for at once, in bytes: with two streams alternating, the source reads the
/// next one from its disk while this one is on the wire.
pub(super) const RANGE_BYTES: u64 = 4 << 20;
/// Streams of one move: one waits at the source's disk while the other feeds the socket.
pub(super) const STREAMS: usize = 2;
/// Ranges asked for ahead on one stream: enough that a stream never waits for a request.
pub(super) const AHEAD: usize = 2;
/// Bytes of one read from the wire and of one write to the disk; larger requests have hung on old
/// kernels.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// The same at the least, where the bound on bytes under way is low.
pub(super) const CHUNK_MIN_BYTES: usize = 64 << 10;

/// Moves into this node that are handed over at once. What a handover costs is syncs, and eight at once wait
/// for one another in their freezes, and everybody's produce with them; two keep the disk as busy.
pub(super) const HANDOVERS: usize = 2;
/// Longest wait for a turn, in ms: whoever holds it may be waiting for a source that is gone.
pub(super) const TURN_WAIT_MS: u64 = 1_000;
/// A pass of at most so many bytes does not give the turn up: what was written while it was waited for.
pub(super) const TURN_PASS_BYTES: u64 = 16 << 20;

/// Deadline for opening and refreshing a session, in ms: a manifest from memory.
pub(super) const SESSION_CALL_MS: u64 = 5_000;
/// Deadline for comparing a prefix, in ms: the source may read a whole segment.
pub(super) const CHECK_CALL_MS: u64 = 60_000;
/// Deadline for a freeze, in ms: appends in flight settle; below the freeze's time to live, so that
/// a lost answer is noticed before the owner gives the handoff up.
pub(super) const FREEZE_CALL_MS: u64 = 8_000;
/// Deadline for renewing and closing, in ms: nothing depends on the answer.
pub(super) const SMALL_CALL_MS: u64 = 2_000;
/// A drain renews the freeze at most this often, in ms.
pub(super) const RENEW_MS: u64 = 1_000;

/// A long pass has what is staged made durable this often, in ms: what a crash costs. It happens
/// behind the copy.
pub(super) const CHECKPOINT_MS: u64 = 1_000;
/// While passes follow one another, what the source told is made durable this often, in ms, and once
/// more before the freeze or a promotion: a crash in between is as if it had come before that answer.
pub(super) const TOLD_MS: u64 = 250;

/// The same trouble of a move is logged this often, in ms.
pub(super) const TROUBLE_LOG_MS: u64 = 30_000;

/// Finished moves that are remembered.
pub(super) const HISTORY: usize = 64;
/// How often the clocks of dead owners are looked at, in ms.
pub(super) const TICK_MS: u64 = 500;
/// How often left-over staging is looked at, in ms.
pub(super) const JANITOR_MS: u64 = 30_000;
/// Staging of a move that was given up is kept this long for the next move of the partition to
/// this node, in ms.
pub(super) const KEEP_STAGING_MS: u64 = 300_000;
/// Largest file of what a source told, in bytes: a manifest without segments, with its marks.
pub(super) const TOLD_FILE_MAX_BYTES: u64 = 4 << 20;
/// Bytes that a target may take at once although its limit would spread them: what the streams of one
/// move have sent ahead of each other. The sources keep the rate meanwhile.
pub(super) const THROTTLE_SAVED_BYTES: u64 = STREAMS as u64 * AHEAD as u64 * RANGE_BYTES;
/// Longest single wait for the rate limit, in ms: a changed limit counts within that time.
pub(super) const THROTTLE_WAIT_MS: u64 = 200;

const _: () = {
    assert!(FREEZE_CALL_MS < narad_core::defaults::FREEZE_TTL_MS);
    assert!(RENEW_MS * 4 < narad_core::defaults::FREEZE_TTL_MS);
    assert!(RANGE_BYTES <= narad_wire::limits::RANGE_MAX_BYTES);
    assert!(AHEAD <= narad_wire::limits::BULK_PIPELINE);
    assert!(RANGE_BYTES.is_multiple_of(CHUNK_BYTES as u64));
    assert!(CHUNK_BYTES.is_multiple_of(CHUNK_MIN_BYTES));
};
