//! Ctrl-c and SIGTERM: the first asks a run to come to its end, the second ends the process.
//!
//! What this file keeps true: signals are blocked before any other thread exists and taken by one
//! thread only.

use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
                while signals.wait().is_ok() {
                    if wanted.0.swap(true, Ordering::SeqCst) {
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
