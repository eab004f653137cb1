//! Who gets the processor first: short time slices for threads that somebody waits for; those that copy stand behind.
//!
//! What this file keeps true: nothing fails where the system does not grant it; the policy of a thread stays
//! what whoever started the process has given it, and so does its priority, but for a thread that copies while
//! it stands behind, and only where it can go back: a thread without privileges that has lowered its priority,
//! or has gone into the class for idle time, stays there for ever.
//!
//! A thread that copies computes for milliseconds at a time. Where it shares a processor with one that serves
//! calls, a call would wait for the end of its slice (3 ms by default). A thread that has asked for a short
//! slice gets the processor as soon as it is woken, and gives it back sooner, as long as it has had no more
//! than its share. With a dozen threads that copy beside it that share is small; so those lower their priority
//! while somebody may be disturbed. On processors of their own nothing changes.

use nix::libc::{self, SYS_sched_getattr, SYS_sched_setattr, c_int, sched_attr};
use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

/// Slice that is asked for, in µs: what a call takes a few times over; the scheduler's least is 100.
pub const SHORT_SLICE_US: u64 = 200;

/// Asks for short time slices for the calling thread. Linux 6.12 or newer grants it to threads of the normal policy,
/// without privileges (`sched_runtime` in sched_setattr(2)); older ones take no notice.
pub fn short_slices() {
    if let Err(error) = ask(SHORT_SLICE_US) {
        tracing::debug!(%error, "time slices stay as they are");
    }
}

/// By how much a thread's priority is lower while it stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A third of the weight of others: one thread that does all of its kind.
    Little,
    /// A ninth: one of a dozen.
    Much,
}

impl Behind {
    /// In steps of setpriority(2), each of a quarter of the weight.
    const fn steps(self) -> c_int {
        match self {
            Self::Little => 5,
            Self::Much => 10,
        }
    }
}

thread_local! {
    /// The priority that this thread goes back to, and how it stands behind meanwhile.
    static BEFORE: Cell<Option<(c_int, Behind)>> = const { Cell::new(None) };
}

/// For threads that copy, between two pieces: the calling thread stands behind others from now on, or as it did
/// before it first did (`None`). Where it could not go back again, it lets another thread that waits for this
/// processor have it once, instead.
pub fn stand(behind: Option<Behind>) {
    match (behind, BEFORE.get()) {
        (None, None) => {}
        (None, Some((before, behind))) => {
            if let Err(error) = set_priority(0, before) {
                tracing::debug!(%error, "a thread that copies still stands behind others");
                return;
            }
            BEFORE.set(None);
            if behind == Behind::Little {
                bring_helpers(before);
            }
        }
        (Some(_), Some(_)) => {}
        (Some(behind), None) => {
            let Some(now) = priority().filter(|_| comes_back()) else {
                std::thread::yield_now();
                return;
            };
            if set_priority(0, now + behind.steps()).is_ok() {
                BEFORE.set(Some((now, behind)));
            }
        }
    }
}

/// Whether a thread of this process may raise its priority again to what it was; found out by one that does it.
fn comes_back() -> bool {
    static COMES_BACK: OnceLock<bool> = OnceLock::new();
    *COMES_BACK.get_or_init(|| {
        let tried = std::thread::Builder::new().spawn(|| {
            let now = priority()?;
            (set_priority(0, now + 1).is_ok() && set_priority(0, now).is_ok()).then_some(())
        });
        let done = tried.ok().and_then(|thread| thread.join().ok()).flatten();
        if done.is_none() {
            tracing::info!(
                "copies cannot stand behind other work with their priority; set LimitNICE=+0, or ulimit -e 20, if calls \
                 suffer from them"
            );
        }
        done.is_some()
    })
}

/// Of the calling thread. On Linux it is a thread's own.
fn priority() -> Option<c_int> {
    nix::errno::Errno::clear();
    // SAFETY: it takes and gives numbers; 0 is the calling thread.
    let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // -1 is a priority as well.
    (nix::errno::Errno::last_raw() == 0).then_some(priority)
}

/// Of a thread; 0 is the calling one.
fn set_priority(thread: libc::id_t, priority: c_int) -> io::Result<()> {
    // SAFETY: it takes numbers.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, priority) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's workers for the calling thread's requests have the priority that it had when they were made,
/// and stay for some seconds: a sync that somebody waits for would be done by one that stands behind. Some
/// hundred µs.
fn bring_helpers(priority: c_int) {
    let name = format!("iou-wrk-{}", nix::unistd::gettid());
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    for thread in threads.flatten() {
        let comm = std::fs::read_to_string(thread.path().join("comm"));
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if let (Ok(comm), Some(id)) = (comm, id)
            && comm.trim_end() == name
            && let Err(error) = set_priority(id, priority)
        {
            tracing::debug!(%error, "a worker of the kernel stands behind others for now");
        }
    }
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

    #[test]
    fn a_thread_stands_behind_and_comes_back_or_lets_others_by() {
        std::thread::spawn(|| {
            let before = priority().unwrap();
            for behind in [Behind::Much, Behind::Little] {
                for _ in 0..2 {
                    stand(Some(behind));
                    let lower = if comes_back() { behind.steps() } else { 0 };
                    // 19 is the lowest there is.
                    assert_eq!(priority(), Some((before + lower).min(19)));
                }
                stand(None);
                assert_eq!(priority(), Some(before));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn other_threads_stay_where_they_are() {
        let before = priority();
        std::thread::spawn(|| stand(Some(Behind::Much)))
            .join()
            .unwrap();
        assert_eq!(priority(), before);
    }
}
