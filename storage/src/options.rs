//! What the caller may choose about a log.
//!
//! What this file keeps true: every default is right for a node in production; tests make things
//! small.

use crate::limits;
use narad_core::defaults::{APPEND_RESERVE_BYTES, STAGING_RESERVE_BYTES};

/// Settings of a log, staging area or WAL.
#[derive(Clone, Debug)]
pub struct Options {
    /// A segment is sealed when it would grow beyond this.
    pub segment_bytes: u64,
    /// Largest piece of space reserved ahead of the appends; the first is 1 MiB, then they double.
    pub extent_bytes: u64,
    /// Recent frames kept in memory, at most, by one log.
    pub cache_bytes: usize,
    /// Largest request to the disk; a multiple of 4096.
    pub io_chunk_bytes: usize,
    /// Largest record, key and value together.
    pub max_record_bytes: usize,
    /// Bytes that may wait to be written.
    pub queue_bytes: usize,
    /// Appends are refused as full while the disk has less free space than this.
    pub reserve_bytes: u64,
    /// Copies are refused as full while the disk has less free space than this: well above the reserve of
    /// appends, so that what arrives does not stop what is here.
    pub staging_reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 256 << 20,
            extent_bytes: 64 << 20,
            cache_bytes: 4 << 20,
            io_chunk_bytes: limits::IO_CHUNK_BYTES,
            max_record_bytes: limits::MAX_RECORD_BYTES,
            queue_bytes: limits::QUEUE_BYTES,
            reserve_bytes: APPEND_RESERVE_BYTES,
            staging_reserve_bytes: STAGING_RESERVE_BYTES,
        }
    }
}

impl Options {
    /// The settings with every value brought into its bounds.
    #[must_use]
    pub fn bounded(&self) -> Self {
        let page = limits::TRIM_BLOCK_BYTES;
        Self {
            segment_bytes: self.segment_bytes.max(2 * page),
            extent_bytes: self.extent_bytes.max(page).next_multiple_of(page),
            io_chunk_bytes: self
                .io_chunk_bytes
                .clamp(page as usize, limits::IO_CHUNK_BYTES)
                .next_multiple_of(page as usize),
            max_record_bytes: self
                .max_record_bytes
                .min(limits::MAX_FRAME_PAYLOAD_BYTES - 64),
            ..self.clone()
        }
    }
}
