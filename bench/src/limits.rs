//! Every bound of this crate, with its reason.
//!
//! What this file keeps true: no buffer, queue or wait of the crate is without a number here.

use std::time::Duration;

/// Most text kept in memory as a source of records: enough that a run of minutes repeats itself
/// little, small enough for any machine.
pub const TEXT_MAX_BYTES: usize = 64 << 20;
/// Longest record made out of a line; far below the record limit of 1 MiB with its prefix.
pub const LINE_MAX_BYTES: usize = 512 << 10;
/// Records of one produce call.
pub const BATCH_RECORDS: usize = 1_000;
/// Bytes of one produce call.
pub const BATCH_BYTES: usize = 512 << 10;
/// A batch of a load with a rate is so much time's worth.
pub const BATCH_EVERY: Duration = Duration::from_millis(100);
/// Produce calls in flight: enough to share group commits, few enough that a restart of a node
/// leaves few answers unknown.
pub const PRODUCE_IN_FLIGHT: usize = 4;
/// Records asked for by one consume call.
pub const CONSUME_RECORDS: u32 = 2_000;
/// Bytes asked for by one consume call.
pub const CONSUME_BYTES: u32 = 1 << 20;
/// How long a consume call parks.
pub const CONSUME_WAIT: Duration = Duration::from_millis(1_000);
/// Deadline of one call.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);
/// Pause after a failed call, so that a stopped node is not hammered.
pub const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often a definitely refused batch is tried again before the run fails.
pub const RETRIES: u32 = 300;
/// Between two lines of progress.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Between two looks at the moves.
pub const MOVES_EVERY: Duration = Duration::from_millis(500);
/// Pairs of measurements that a bar needs at least: with nine, one disturbed pair in four does not move
/// the median.
pub const PAIRS_MIN: usize = 9;
/// Lost records that are named.
pub const LOST_SHOWN: usize = 20;

const _: () = assert!(
    BATCH_BYTES + LINE_MAX_BYTES + 64 <= 4 << 20,
    "a batch fits one call"
);
