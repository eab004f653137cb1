//! SIGTERM and SIGINT: the first asks for a graceful stop, the second ends the process at once.
//!
//! What this file keeps true: the signals are blocked before any other thread exists, so none of
//! them interrupts an executor; only the thread that waits for them sees them.

use nix::sys::signal::{SigSet, Signal};
use std::io;

/// Blocks SIGTERM and SIGINT for this thread and all that it will spawn, and ignores SIGPIPE (a
/// peer that goes away is an error of that connection). Call it before any thread is spawned.
///
/// # Errors
/// What the system said.
pub fn block() -> io::Result<SigSet> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    let ignore = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::SigIgn,
        nix::sys::signal::SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: no handler function is installed, the disposition is "ignore".
    unsafe { nix::sys::signal::sigaction(Signal::SIGPIPE, &ignore) }?;
    Ok(set)
}

/// Waits for the signals of `set` on a thread of its own: `stop` is called at the first.
///
/// # Errors
/// What the system said when the thread could not be made.
pub fn watch(set: SigSet, stop: impl FnOnce(Signal) + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut stop = Some(stop);
            // Ends with the process.
            while let Ok(signal) = set.wait() {
                match stop.take() {
                    Some(stop) => stop(signal),
                    None => {
                        tracing::warn!(%signal, "the second signal: ending at once");
                        std::process::exit(128 + signal as i32);
                    }
                }
            }
        })
        .map(|_| ())
}
