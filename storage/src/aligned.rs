//! Memory of a large batch, laid out so that the disk takes it as it is.
//!
//! What this file keeps true: the memory is the global allocator's, never an executor's own, so it may
//! be dropped on any thread; while a write is under way nobody else can reach it.

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

    /// For writing: nobody can change it until it is taken [`Shared::back`].
    pub(crate) fn share(self) -> Shared {
        Shared(Rc::new(self.0))
    }
}

/// An [`Aligned`] that is being written.
pub(crate) struct Shared(Rc<DmaBuffer>);

impl Shared {
    /// What is written.
    pub(crate) fn buffer(&self) -> Rc<DmaBuffer> {
        self.0.clone()
    }

    /// The memory again; `None` in the rare case that the runtime has not let go of it.
    pub(crate) fn back(self) -> Option<Aligned> {
        Rc::try_unwrap(self.0).ok().map(Aligned)
    }
}
