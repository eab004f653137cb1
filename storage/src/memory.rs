//! How long the programs' allocator keeps freed memory.
//!
//! What this file keeps true: memory of buffers that come and go with every request stays with the process;
//! given back to the system in a short rest, its pages would have to be cleared and mapped again for the
//! next request, which costs more than the disk.

use crate::limits::FREED_MEMORY_KEPT_MS;
use std::ffi::c_long;

/// The allocator's option `purge_delay`. Its bindings name only the options that its first version had; this
/// number has stayed the same since the option came.
const PURGE_DELAY: i32 = 15;

/// Makes the allocator keep freed memory for [`FREED_MEMORY_KEPT_MS`], where `MIMALLOC_PURGE_DELAY` is not
/// set. For programs whose global allocator is mimalloc; the first call of their main function, while there
/// is one thread.
pub fn keep_freed() {
    // SAFETY: sets a number in the allocator's table of options, which has one with this index; no other
    // thread reads it meanwhile.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, FREED_MEMORY_KEPT_MS as c_long) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        let read = || {
            // SAFETY: reads a number in the allocator's table of options.
            unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }
        };
        // Of all options only this one stands at a second before anybody sets it.
        assert_eq!(read(), 1_000);
        keep_freed();
        assert_eq!(read(), FREED_MEMORY_KEPT_MS as c_long);
    }
}
