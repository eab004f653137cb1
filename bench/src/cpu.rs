//! Processor time of processes and threads.
//!
//! What this file keeps true: the time of a process is all of it, with its kernel's helpers and the
//! threads that have ended.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Seconds that this process has used.
pub(crate) fn own() -> f64 {
    used(UsageWho::RUSAGE_SELF)
}

/// Seconds that this thread has used.
pub(crate) fn thread() -> f64 {
    used(UsageWho::RUSAGE_THREAD)
}

fn used(who: UsageWho) -> f64 {
    getrusage(who).map_or(0.0, |usage| {
        let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        us as f64 / 1e6
    })
}

/// Seconds that another process has used; 0 when it is gone.
pub(crate) fn of(pid: u32) -> f64 {
    process(pid).unwrap_or(0.0)
}

/// Seconds that another process has used; `None` when it cannot be asked.
pub(crate) fn process(pid: u32) -> Option<f64> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let time = ClockId::pid_cpu_clock_id(pid)
        .and_then(clock_gettime)
        .ok()?;
    Some(time.num_nanoseconds() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_takes_time() {
        let (before, thread, other) =
            (super::own(), super::thread(), super::of(std::process::id()));
        let began = std::time::Instant::now();
        let mut sum = 0_u64;
        while began.elapsed() < std::time::Duration::from_millis(50) {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        assert!(std::hint::black_box(sum) > 0);
        assert!(super::own() > before);
        assert!(super::thread() > thread);
        assert!(super::of(std::process::id()) > other);
    }
}
