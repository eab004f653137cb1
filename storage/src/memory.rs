//! How the process's allocator treats large buffers.
//!
//! What this file keeps true: memory of buffers that come and go with every request stays with the process;
//! given back to the system after each, its pages would have to be cleared and mapped again for the next,
//! which costs more than the disk.

use crate::limits::{ALLOCATOR_KEEPS_BYTES, ALLOCATOR_MAPS_BYTES};
use std::sync::Once;

/// Tells the allocator once, for the whole process; only where it is the GNU one.
pub(crate) fn keep_buffers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(target_env = "gnu")]
        {
            use nix::libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};
            // SAFETY: mallopt takes two numbers and locks the allocator itself.
            let done = unsafe {
                mallopt(M_MMAP_THRESHOLD, ALLOCATOR_MAPS_BYTES) == 1
                    && mallopt(M_TRIM_THRESHOLD, ALLOCATOR_KEEPS_BYTES) == 1
            };
            if !done {
                tracing::warn!("the allocator keeps no buffers; reading and writing cost more");
            }
        }
    });
}
