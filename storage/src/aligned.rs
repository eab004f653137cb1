//! Memory of a large batch, laid out so that the disk takes it as it is.
//!
//! What this file keeps true: the memory is the global allocator's, never an executor's own, so it may
//! be dropped on any thread; while a write is under way nobody else can reach it.

use crate::disk::DiskFile;
use crate::error::StorageError;
use glommio::io::DmaBuffer;
use std::rc::Rc;

/// An aligned buffer that may cross threads.
#[derive(Debug)]
pub(crate) struct Aligned(DmaBuffer);

// SAFETY: the buffer's only parts are a pointer to memory of the global allocator and its layout (see
// `Aligned::new`, the only maker); it refers to no executor, and shared references only read it.
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// `len` bytes, at least one; their content is undefined until written.
    pub(crate) fn new(len: usize) -> Self {
        Self(glommio::allocate_dma_buffer_global(len))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_bytes_mut()
    }

    /// Gives up what is behind the first `len` bytes.
    pub(crate) fn trim(&mut self, len: usize) {
        self.0.trim_to_size(len);
    }

    /// Writes all of it at `pos`, both a multiple of the file's block, durably or not yet, and returns it;
    /// `None` in the rare case that the runtime has not let go of it.
    pub(crate) async fn write(
        self,
        file: &DiskFile,
        pos: u64,
        durably: bool,
    ) -> Result<Option<Self>, StorageError> {
        let shared = Rc::new(self.0);
        if durably {
            file.write_durably(shared.clone(), pos).await?;
        } else {
            file.write(shared.clone(), pos).await?;
        }
        Ok(Rc::try_unwrap(shared).ok().map(Self))
    }
}
