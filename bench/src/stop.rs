//! Ctrl-c and SIGTERM: the first asks a run to come to its end, the second ends the process.
//!
//! What this file keeps true: signals are blocked before any other thread exists and taken by one
//! thread only.

use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Signals within this time of the first are the same wish: `timeout` signals a process and its group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Whether the run shall come to its end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes SIGINT and SIGTERM over.
    ///
    /// # Panics
    /// When the kernel refuses to block signals or no thread can be made.
    #[must_use]
    pub fn install() -> Self {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().expect("signals can be blocked");
        let stop = Self::default();
        let wanted = stop.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first: Option<Instant> = None;
                while signals.wait().is_ok() {
                    let first = *first.get_or_insert_with(Instant::now);
                    if wanted.0.swap(true, Ordering::SeqCst) && first.elapsed() >= ONE_WISH {
                        std::process::exit(1);
                    }
                }
            })
            .expect("a thread for signals can be made");
        stop
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
