//! A panic ends the process.
//!
//! What this file keeps true: a broken invariant never leaves a node half-alive, with one executor
//! gone and the others answering; everything acked is durable, so ending at once loses nothing.

use std::panic::PanicHookInfo;

/// Installs the hook. Call it once, before any thread is spawned.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        tracing::error!(
            thread = name,
            "{what}{place}; an invariant of this node is broken, so it ends now"
        );
        eprintln!("narad: thread {name} panicked{place}: {what}");
        eprintln!(
            "narad: an invariant of this node is broken, so the process ends now; everything acked is durable"
        );
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }));
}
