//! Ctrl-c and SIGTERM for client commands: the first asks the command to finish what it holds and
//! print its totals, the second ends the process at once.
//!
//! What this file keeps true: signals are blocked before any thread or executor starts and taken by
//! one thread only, so no system call of the command is interrupted half-way.

use nix::sys::signal::{SigSet, Signal};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Signals within this time of the first are the same wish: `timeout` signals a process and its group.
const ONE_WISH: Duration = Duration::from_secs(1);
/// Exit code after the second signal: failed.
const EXIT_AT_ONCE: i32 = 1;

/// Whether the person wants the command to end.
#[derive(Clone)]
pub struct Interrupt {
    wanted: watch::Receiver<bool>,
}

impl Interrupt {
    /// Takes SIGINT and SIGTERM over. Call it before any other thread exists.
    ///
    /// # Panics
    /// When the kernel refuses to block signals or no thread can be made.
    #[must_use]
    pub fn install() -> Self {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().expect("signals can be blocked");
        let (sender, wanted) = watch::channel(false);
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first: Option<Instant> = None;
                while signals.wait().is_ok() {
                    let first = *first.get_or_insert_with(Instant::now);
                    if sender.send_replace(true) && first.elapsed() >= ONE_WISH {
                        std::process::exit(EXIT_AT_ONCE);
                    }
                }
            })
            .expect("a thread for signals can be made");
        Self { wanted }
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn wanted(&self) -> bool {
        *self.wanted.borrow()
    }

    /// Waits for the signal.
    pub async fn signalled(&mut self) {
        // The sender lives in its thread until the process ends, so an error cannot be seen; were
        // it seen, nobody could interrupt any more, and that is an interrupt as well.
        let _ = self.wanted.wait_for(|wanted| *wanted).await;
    }

    /// Sleeps; true when it was cut short by a signal.
    pub async fn pause(&mut self, time: Duration) -> bool {
        self.unless(glommio::timer::sleep(time)).await.is_none()
    }

    /// Runs something until it ends (Some) or a signal comes first (None, and it is dropped).
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        use futures::future::{Either, select};
        let work = std::pin::pin!(work);
        let signal = std::pin::pin!(self.signalled());
        match select(work, signal).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(((), _)) => None,
        }
    }
}
