//! Buffers for the chunks of a copy.
//!
//! What this file keeps true: a buffer is aligned and bounded, and what it holds behind its length is
//! zeros.

use crate::disk;
use crate::limits::STAGE_CHUNK_BYTES;
use glommio::io::DmaBuffer;

/// An aligned buffer for one chunk of a copy.
#[derive(Debug)]
pub struct StageBuf {
    pub(super) buffer: DmaBuffer,
    pub(super) len: usize,
}

impl StageBuf {
    /// A buffer of `len` bytes with undefined content. Bounded by [`STAGE_CHUNK_BYTES`].
    #[must_use]
    pub fn new(len: usize) -> Self {
        assert!(len <= STAGE_CHUNK_BYTES, "chunk of {len} bytes");
        let room = len.max(1).next_multiple_of(4096);
        let mut buffer = disk::buffer(room);
        buffer.as_bytes_mut()[len..].fill(0);
        Self { buffer, len }
    }

    /// A buffer with a copy of these bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut out = Self::new(bytes.len());
        out.as_mut().copy_from_slice(bytes);
        out
    }

    /// Bytes in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl AsRef<[u8]> for StageBuf {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.as_bytes()[..self.len]
    }
}

impl AsMut<[u8]> for StageBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_bytes_mut()[..self.len]
    }
}
