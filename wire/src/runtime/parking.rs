//! An executor does not sleep while a task of it can run.
//!
//! An executor of glommio 0.9 takes turns: it looks at its rings, runs tasks until there are none or something has
//! completed in the ring for what is urgent, and sleeps where it ran none. When a completion that no task waits
//! for, such as the preemption timer's, comes after the look and before the first task, no task runs, and
//! the executor takes that for "there are none": it sleeps, whatever can run, until something else
//! happens. Measured with three such executors a processor that call their blocking threads and write to a
//! disk: one in about 60 slept for good, and with this one in 60 was kept from a sleep. (Found upstream too, and
//! mended there in a version that is not released: a turn that was cut short no longer ends in a sleep.)
//!
//! What this file keeps true: the sleep after a turn in which no queue of tasks was even looked at is refused, as if
//! a signal had come; every other sleep is as it was.
//!
//! How it is told: each look at the rings makes one timer that counts completions, and there is one look before the
//! tasks and one before a sleep. Between those two the number of looks at queues goes up, unless the
//! turn was cut short.

use nix::errno::Errno;
use std::cell::Cell;
use std::ffi::{c_int, c_uint};

thread_local! {
    /// Between the last two looks at the rings the executor looked for tasks.
    static LOOKED: Cell<bool> = const { Cell::new(true) };
    /// Sleeps that were refused.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// glommio makes a timer; one that counts `events` belongs to a look at the rings. Only an executor calls this,
/// outside its tasks. Takes the executor's statistics, which nobody else reads.
pub fn timer_is_made(events: c_uint) {
    if events > 0 {
        let looks = glommio::executor().executor_stats().scheduler_runs();
        LOOKED.set(looks > 0);
    }
}

/// glommio is about to sleep until something completes: what it gets to hear instead, if it must not.
#[must_use]
pub fn refusal() -> Option<c_int> {
    if LOOKED.get() {
        return None;
    }
    REFUSED.set(REFUSED.get() + 1);
    // As when a signal ends a sleep: glommio begins its next turn.
    Some(-(Errno::EINTR as c_int))
}

/// Sleeps of this thread's executors that were refused so far; 0 where the program is linked without the hooks.
#[must_use]
pub fn refused() -> u64 {
    REFUSED.get()
}

#[cfg(test)]
mod tests {
    use super::refused;
    use glommio::{LocalExecutorBuilder, Placement};
    use std::time::Duration;

    /// About as long as a turn takes until its first task.
    const PREEMPT: Duration = Duration::from_micros(20);
    /// Without the hooks the executor sleeps for good within a thousand; where turns are short it takes longer until
    /// one is cut short.
    const CALLS: std::ops::Range<u64> = 20_000..2_000_000;
    /// Longer than that is for good.
    const HANG: Duration = Duration::from_secs(90);

    #[test]
    fn an_executor_whose_turns_are_cut_short_runs_what_it_has() {
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .preempt_timer(PREEMPT)
            .spawn(|| async {
                for call in 0..CALLS.end {
                    let answer = glommio::executor().spawn_blocking(move || call).await;
                    assert_eq!(answer, call);
                    if call >= CALLS.start && refused() > 0 {
                        break;
                    }
                }
                refused()
            })
            .unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(executor.join().unwrap()));
        let refused = told
            .recv_timeout(HANG)
            .expect("it sleeps while it has work");
        assert!(refused > 0, "no turn was cut short");
    }
}
