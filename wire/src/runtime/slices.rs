//! Who gets the processor first: short time slices for threads that somebody waits for; those that copy give way.
//!
//! What this file keeps true: only the length of a slice changes, and nothing fails where it cannot: the policy and
//! the priority of a thread stay what whoever started the process has given it. (A thread without privileges that
//! has gone into the class for idle time does not get out of it again, and the kernel's own threads for its requests
//! would stay there as well, so that class is used for nothing here.)
//!
//! A thread that copies computes for milliseconds at a time. Where it shares a processor with one that serves
//! calls, a call would wait for the end of its slice (3 ms by default). A thread that has asked for a short slice gets
//! the processor as soon as it is woken, and gives it back sooner: both have as much of it as before. On
//! processors of their own nothing changes.

use nix::libc::{self, SYS_sched_getattr, SYS_sched_setattr, sched_attr};
use std::io;

/// Slice that is asked for, in µs: what a call takes a few times over; the scheduler's least is 100.
pub const SHORT_SLICE_US: u64 = 200;

/// Asks for short time slices for the calling thread. Linux 6.12 or newer grants it to threads of the normal policy,
/// without privileges (`sched_runtime` in sched_setattr(2)); older ones take no notice.
pub fn short_slices() {
    if let Err(error) = ask(SHORT_SLICE_US) {
        tracing::debug!(%error, "time slices stay as they are");
    }
}

/// Lets another thread that waits for this processor have it first; returns at once when none does. For threads that copy,
/// between two pieces: the scheduler would let them compute to the end of their slice.
pub fn give_way() {
    // It cannot fail on Linux, and there would be nothing to do about it.
    std::thread::yield_now();
}

fn normal(attr: &sched_attr) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH]
        .iter()
        .any(|policy| *policy as u32 == attr.sched_policy)
}

const SIZE: u32 = size_of::<sched_attr>() as u32;

/// What the scheduler has for the calling thread.
fn current() -> io::Result<sched_attr> {
    // SAFETY: all fields are numbers.
    let mut attr: sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the structure is as long as its size says and lives until the call ends.
    let done = unsafe { libc::syscall(SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) };
    match done {
        0 => Ok(attr),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ask(slice_us: u64) -> io::Result<()> {
    let mut attr = current()?;
    if !normal(&attr) {
        // Real-time threads have no such slice.
        return Ok(());
    }
    attr.sched_runtime = slice_us * 1_000;
    set(&mut attr)
}

fn set(attr: &mut sched_attr) -> io::Result<()> {
    attr.size = SIZE;
    let attr: *const sched_attr = attr;
    // SAFETY: 0 is the calling thread; the structure lives until the call ends and is only read.
    let done = unsafe { libc::syscall(SYS_sched_setattr, 0, attr, 0) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_changes_and_nothing_else() {
        std::thread::spawn(|| {
            let before = current().unwrap();
            ask(SHORT_SLICE_US).unwrap();
            let after = current().unwrap();
            assert_eq!(after.sched_policy, before.sched_policy);
            assert_eq!(after.sched_nice, before.sched_nice);
            assert_eq!(after.sched_flags, before.sched_flags);
            // A kernel that knows no such slice says none, before and after.
            let granted = after.sched_runtime == SHORT_SLICE_US * 1_000;
            assert!(granted || after.sched_runtime == before.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
