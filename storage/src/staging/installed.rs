//! What an installed copy is, as the staging that it was knows.
//!
//! What this file keeps true: it says of a directory what a look into it would find, so that opening a
//! copy right after its install asks nothing of the disk; it is plain data and may cross executors.

use crate::format::meta::Meta;
use crate::limits::META_SLOT_BYTES;
use narad_core::copy::SegmentId;
use narad_core::ids::CopyId;

/// A copy that was installed a moment ago: hand it to [`crate::Log::open_installed`]. It holds as long as
/// nobody has opened, rolled back or deleted the copy.
#[derive(Clone, Debug)]
pub struct Installed {
    pub(crate) copy: CopyId,
    /// Segments, and up to where their bytes are known, in offset order.
    pub(crate) segments: Vec<(SegmentId, u64)>,
    pub(crate) list: Vec<u8>,
    pub(crate) meta: Vec<u8>,
}

impl Installed {
    pub(super) fn new(
        copy: CopyId,
        mut segments: Vec<(SegmentId, u64)>,
        list: Vec<u8>,
        meta: &Meta,
    ) -> Self {
        segments.sort_unstable();
        let mut slots = vec![0; 2 * META_SLOT_BYTES];
        let at = meta.slot() as usize * META_SLOT_BYTES;
        slots[at..at + META_SLOT_BYTES].copy_from_slice(&meta.encode());
        Self {
            copy,
            segments,
            list,
            meta: slots,
        }
    }

    /// Which copy.
    #[must_use]
    pub const fn copy(&self) -> CopyId {
        self.copy
    }
}
