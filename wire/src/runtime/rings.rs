//! How a program's rings tell that something is done.
//!
//! By default the kernel interrupts the thread that a ring belongs to with each completion, so that the
//! completion is posted at once: an inter-processor interrupt for every readable socket, where the thread
//! runs anyway and will look by itself. glommio looks at every turn of its loop and enters the kernel before
//! it sleeps, so it needs none of them; with `IORING_SETUP_COOP_TASKRUN` (Linux 5.19) the kernel posts
//! at the thread's next entry, whatever that is for.
//!
//! What this file keeps true: a ring that polls its device is made as it was asked for; a kernel
//! that does not know the flag makes the ring without it.
//!
//! A program gets this with [`runtime_hooks!`](crate::runtime_hooks).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// `IORING_SETUP_IOPOLL` of `linux/io_uring.h`: who waits asks the device, nothing interrupts.
const IOPOLL: u32 = 1 << 0;
/// `IORING_SETUP_COOP_TASKRUN`.
const COOP_TASKRUN: u32 = 1 << 8;

static AS_ASKED: AtomicBool = AtomicBool::new(false);

/// Makes the rings of this process as glommio asks for them, from now on: for what a node is compared with.
pub fn make_as_asked() {
    AS_ASKED.store(true, Ordering::Relaxed);
}

/// The beginning of `struct io_uring_params`.
#[derive(Debug)]
#[repr(C)]
pub struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
}

/// liburing's `io_uring_queue_init_params`.
pub type Init = unsafe extern "C" fn(c_uint, *mut c_void, *mut Params) -> c_int;

/// Makes a ring with the flag, or as it was asked for where that is not possible.
///
/// # Safety
/// As for `init`, which is called with the same ring and parameters: both point to what it wants, for the time
/// of the call.
pub unsafe fn init(init: Init, entries: c_uint, ring: *mut c_void, params: *mut Params) -> c_int {
    // SAFETY: the caller's promise.
    let asked = unsafe { (*params).flags };
    if asked & IOPOLL == 0 && !AS_ASKED.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        let made = unsafe {
            (*params).flags = asked | COOP_TASKRUN;
            init(entries, ring, params)
        };
        if made != -(nix::errno::Errno::EINVAL as c_int) {
            return made;
        }
    }
    // SAFETY: the caller's promise; a ring that was refused is as if it had not been tried.
    unsafe {
        (*params).flags = asked;
        init(entries, ring, params)
    }
}

#[cfg(test)]
mod tests {
    use super::{COOP_TASKRUN, IOPOLL, Params, init};
    use nix::errno::Errno;
    use std::ffi::{c_int, c_uint, c_void};

    /// Notes the flags of each try in the ring's place, and knows of `KNOWN` flags.
    unsafe extern "C" fn kernel<const KNOWN: u32>(
        _: c_uint,
        ring: *mut c_void,
        params: *mut Params,
    ) -> c_int {
        // SAFETY: the test's own list and parameters.
        let (tries, flags) = unsafe { (&mut *ring.cast::<Vec<u32>>(), (*params).flags) };
        tries.push(flags);
        if flags & !KNOWN == 0 {
            0
        } else {
            -(Errno::EINVAL as c_int)
        }
    }

    fn tries(known: super::Init, flags: u32) -> (c_int, Vec<u32>) {
        let mut tries = Vec::new();
        let mut params = Params {
            sq_entries: 0,
            cq_entries: 0,
            flags,
        };
        let ring = (&raw mut tries).cast();
        // SAFETY: `kernel` takes a list for a ring.
        let made = unsafe { init(known, 8, ring, &raw mut params) };
        (made, tries)
    }

    #[test]
    fn a_ring_is_made_with_the_flag_where_it_is_known_and_wanted() {
        let (new, old) = (kernel::<{ COOP_TASKRUN | IOPOLL }>, kernel::<IOPOLL>);
        assert_eq!(tries(new, 0), (0, vec![COOP_TASKRUN]));
        assert_eq!(tries(old, 0), (0, vec![COOP_TASKRUN, 0]));
        assert_eq!(tries(new, IOPOLL), (0, vec![IOPOLL]));
        let refused = tries(kernel::<0>, 4);
        assert_eq!(
            refused,
            (-(Errno::EINVAL as c_int), vec![COOP_TASKRUN | 4, 4])
        );
        super::make_as_asked();
        assert_eq!(tries(new, 0), (0, vec![0]));
    }
}
