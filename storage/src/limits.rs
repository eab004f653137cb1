//! Every bound of the storage crate, with its reason.
//!
//! What this file keeps true: nothing in this crate grows without one of these limits, and limits
//! that depend on each other are tied together by assertions at compile time.

use std::time::Duration;

/// Newest on-disk format that this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Smallest logical block of a disk; every position that is written is a multiple of it.
pub const MIN_BLOCK_BYTES: u64 = 512;

/// Largest logical block that is supported, and the unit to which files are trimmed (a page of the
/// file system), so that trimming never rewrites a block that holds acked bytes.
pub const TRIM_BLOCK_BYTES: u64 = 4096;

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 72;

/// Frames start at multiples of this.
pub const FRAME_ALIGN_BYTES: usize = 8;

/// Bytes of a segment header (it is padded to a whole block).
pub const SEGMENT_HEADER_BYTES: usize = 64;

/// Default for the largest record, key and value together.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// Largest payload of one frame; a reader may have to hold one frame in memory.
pub const MAX_FRAME_PAYLOAD_BYTES: usize = 4 << 20;

/// Most records in one frame.
pub const MAX_FRAME_RECORDS: usize = 1 << 16;

/// A group write takes further frames while it is smaller than this: large enough for the disk's
/// full bandwidth, small enough that an append never waits long for its neighbours' bytes.
pub const GROUP_BYTES: usize = 4 << 20;

/// What stands before a record's key and value in a payload: three numbers of at most ten bytes each.
pub const RECORD_HEAD_MAX_BYTES: usize = 30;

/// What usually does: room that a batch has for each of its records.
pub const RECORD_HEAD_BYTES: usize = 12;

/// A batch that may become this long lies in memory that the disk takes as it is, and is a piece of its
/// own in a request: below it, copying costs less than one more piece.
pub const DIRECT_MIN_BYTES: usize = 64 << 10;

/// A batch is written as one request up to [`IO_CHUNK_BYTES`] and this many times less of it: 1 MiB of
/// records with what their frame adds. The kernel splits what a disk cannot take at once.
pub const DIRECT_SLACK_SHARE: usize = 8;

/// A group from this size on begins and ends on a page ([`TRIM_BLOCK_BYTES`], at least the physical block
/// of every disk): half a page in the mean is lost for it. A write of 1 MiB that began 512 bytes behind a
/// page took four times as long as one on the page, on a disk of 4096-byte physical blocks.
pub const PAGE_GROUP_BYTES: usize = 64 << 10;

/// The checksum of a batch from this size on is made while it is filled, and joined to what stands before
/// it: less work than going over the bytes again.
pub const COMBINE_MIN_BYTES: usize = 64 << 10;

/// A group of twice this or more is written in pieces of about this: the first are on their way to the
/// disk while the rest is laid out.
pub const GROUP_CHUNK_BYTES: usize = 512 << 10;

/// Groups of several pieces that an executor has under way in one request each; others are written piece by
/// piece. A log has one at a time, and more logs than this keep a disk busy in any case.
pub const GATHER_DEPTH: u32 = 64;

/// Pieces of one such request: what the kernel takes (`UIO_MAXIOV`). A group of batches of the size for which
/// it is meant has far fewer.
pub const GATHER_PIECES_MAX: usize = 1024;

/// How often, a millisecond apart, the end of an executor looks whether its last groups are written before it lets the
/// kernel keep their memory: as long as a disk that is not broken takes.
pub const GATHER_END_LOOKS: u32 = 30_000;

/// A frame's checksum is computed in steps of this, which the processor still has at hand from copying: three
/// streams of 8 KiB, the largest step of the `crc32c` crate. 32 KiB went through it at 23 GB/s, 24 KiB at 28.
pub const CRC_STEP_BYTES: usize = 24 << 10;

/// Buffers that an executor keeps for its next groups: what one group of [`GROUP_BYTES`] needs.
pub const SPARE_BUFFERS: usize = 9;

/// Smaller buffers are not kept.
pub const SPARE_MIN_BYTES: usize = 128 << 10;

/// Appends that wait in memory for one log, in bytes; more are refused as busy.
pub const QUEUE_BYTES: usize = 32 << 20;

/// One request to the disk is at most this long (larger reads have hung on old kernels).
pub const IO_CHUNK_BYTES: usize = 1 << 20;

/// Writes of one group, or reads of one scan, that are in flight at once.
pub const IO_DEPTH: usize = 4;

/// Distance between entries of the sparse offset and time index, in bytes of the segment.
pub const INDEX_STEP_BYTES: u64 = 64 << 10;

/// Bytes of one slot of the partition meta file.
pub const META_SLOT_BYTES: usize = 4096;

/// Most re-dispatch marks that one partition keeps; the longest unused are dropped first. One mark
/// belongs to one shard of one life of a node's WAL.
pub const MAX_MARKS: usize = 1 << 14;

/// Most segments of one log: 256 MiB each make 16 TiB.
pub const MAX_SEGMENTS: usize = 1 << 16;

/// Largest `segments.list`: what [`MAX_SEGMENTS`] and [`MAX_MARKS`] need.
pub const MAX_LIST_BYTES: usize = 16 << 20;

/// No frame begins at a higher offset, so that sums of offsets and counts never overflow.
pub const MAX_OFFSET: u64 = u64::MAX >> 1;

/// Most bytes, and most records, of one segment that a file of ours can name: far above what a disk holds,
/// and so small that sums over all segments of a log fit.
pub const MAX_SEGMENT_SUM: u64 = 1 << 46;

/// Damaged places that one scan tells apart; further ones are counted with the last.
pub const MAX_HOLES: usize = 1 << 12;

/// Segment files that one log keeps open for reading.
pub const OPEN_SEGMENTS: usize = 4;

/// Decoded read-ahead of one log, in bytes: a replay reads the disk in large pieces and hands out
/// small batches.
pub const READ_AHEAD_BYTES: usize = 4 << 20;

/// Recent frames kept in memory over all logs of one executor, in bytes.
pub const EXECUTOR_CACHE_BYTES: usize = 64 << 20;

/// Bytes of a segment that one reader has requested ahead: [`IO_DEPTH`] requests of the largest size keep
/// a disk busy while the piece before them is decoded.
pub const READ_WINDOW_BYTES: u64 = (IO_DEPTH * IO_CHUNK_BYTES) as u64;

/// Bytes that all readers of one executor have requested ahead; beyond it a reader gets one small request
/// at a time.
pub const EXECUTOR_READ_AHEAD_BYTES: u64 = 64 << 20;

/// How long freed memory stays with the process, in ms: longer than the rests between bursts of work, and
/// short enough that memory of a busy hour is not kept for a day.
pub const FREED_MEMORY_KEPT_MS: u32 = 10_000;

/// Zeros are written ahead of small appends in units of this.
pub const FILL_BYTES: u64 = 512 << 10;

/// Groups that a segment has seen before zeros are written ahead of them: a partition that gets a few
/// records now and then is not worth it.
pub const FILL_AFTER_GROUPS: u64 = 12;

/// Larger groups pay for their sync themselves: zeros ahead of them would double what is written, and cost
/// more than the metadata that they save. Groups of 64 KiB took two thirds of the time with zeros ahead, on a
/// disk that writes 64 KiB in 50 µs and a block of metadata in 40.
pub const FILL_GROUP_BYTES: u64 = 128 << 10;

/// First piece of space that a new segment gets; a partition with few records stays small.
pub const FIRST_EXTENT_BYTES: u64 = 1 << 20;

/// Space reserved at once is at most the free space divided by this, so that many partitions do not take a
/// disk that is nearly full from each other.
pub const SPACE_SHARE: u64 = 16;

/// The active segment is described in `segments.list` again after this much growth, which bounds
/// what an open after a crash has to scan.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Largest chunk that staging takes at once.
pub const STAGE_CHUNK_BYTES: usize = 4 << 20;

/// Of a file that is removed, so much goes back to the disk at once.
pub const REMOVE_STEP_BYTES: u64 = 4 << 20;

/// Rest after each step, in times of what it took: a removal has at most a fifth of the disk's time, and so
/// have those of all copies of a process together.
pub const REMOVE_REST: u32 = 4;

/// Longest such rest: copies of 10 GiB are gone within two minutes also where each step takes long.
pub const REMOVE_REST_MAX: Duration = Duration::from_millis(40);

/// Between two looks of a copy's removal whether it is its turn.
pub const REMOVE_TURN: Duration = Duration::from_millis(5);

/// So many looks, a minute of them: then it goes on beside the other one.
pub const REMOVE_TURN_LOOKS: u32 = 12_000;

/// Chunks of a copy that are on their way to the disk at once.
pub const STAGE_DEPTH: usize = 8;

const _: () = {
    assert!(MAX_RECORD_BYTES + 64 <= MAX_FRAME_PAYLOAD_BYTES);
    assert!(RECORD_HEAD_BYTES <= RECORD_HEAD_MAX_BYTES && CRC_STEP_BYTES <= COMBINE_MIN_BYTES);
    assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));
    assert!((MIN_BLOCK_BYTES as usize).is_multiple_of(FRAME_ALIGN_BYTES));
    assert!(SEGMENT_HEADER_BYTES <= MIN_BLOCK_BYTES as usize);
    assert!(TRIM_BLOCK_BYTES.is_multiple_of(MIN_BLOCK_BYTES));
    assert!(MAX_SEGMENTS * 128 + MAX_MARKS * 32 <= MAX_LIST_BYTES);
    assert!(MAX_SEGMENT_SUM * (MAX_SEGMENTS as u64) <= MAX_OFFSET);
    assert!(QUEUE_BYTES >= GROUP_BYTES + MAX_FRAME_PAYLOAD_BYTES);
    assert!(IO_CHUNK_BYTES.is_multiple_of(TRIM_BLOCK_BYTES as usize));
    assert!(GROUP_CHUNK_BYTES.is_multiple_of(TRIM_BLOCK_BYTES as usize));
    assert!(2 * (GROUP_BYTES / DIRECT_MIN_BYTES + 1) < GATHER_PIECES_MAX);
    // A piece is smaller than twice that.
    assert!(2 * GROUP_CHUNK_BYTES <= IO_CHUNK_BYTES && CRC_STEP_BYTES <= GROUP_CHUNK_BYTES);
    assert!(SPARE_BUFFERS * GROUP_CHUNK_BYTES > GROUP_BYTES);
    assert!(FILL_BYTES.is_multiple_of(TRIM_BLOCK_BYTES));
    assert!(FILL_BYTES <= IO_CHUNK_BYTES as u64);
    assert!(EXECUTOR_READ_AHEAD_BYTES >= READ_WINDOW_BYTES);
    assert!(FIRST_EXTENT_BYTES.is_multiple_of(TRIM_BLOCK_BYTES));
};
