//! A panic ends the process.
//!
//! What this file keeps true: a broken invariant never leaves a node half-alive, with one executor
//! gone and the others answering; everything acked is durable, so ending at once loses nothing.
//!
//! One panic is none of ours and breaks nothing: a helper thread of the runtime that ends a system
//! call (the removal of a large file) after its executor has stopped finds nobody to tell.

use std::panic::PanicHookInfo;

/// Installs the hook. Call it once, before any thread is spawned.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        let file = info.location().map_or("", std::panic::Location::file);
        if is_late_helper(file, what) {
            tracing::debug!("a helper thread has outlived its executor");
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
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

/// Whether this is the panic of a helper thread whose executor has stopped. The thread has done what
/// it was asked and ends; the executor, which would wait for the answer, is gone.
fn is_late_helper(file: &str, what: &str) -> bool {
    what == "failed to send response" && file.ends_with("src/sys/blocking.rs")
}

#[cfg(test)]
mod tests {
    use super::is_late_helper;
    use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_helper_that_outlives_its_executor_is_known_by_its_panic() {
        let (tell, told) = mpsc::channel();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let file = info.location().map_or("", std::panic::Location::file);
            let what = info.payload_as_str().unwrap_or("");
            let _ = tell.send((file.to_owned(), what.to_owned()));
        }));
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
            .spawn(|| async {
                // Begun, and still under way when the executor ends.
                let slow = glommio::executor()
                    .spawn_blocking(|| std::thread::sleep(Duration::from_millis(500)));
                let mut slow = Box::pin(slow);
                let _ = futures::poll!(&mut slow);
                glommio::timer::sleep(Duration::from_millis(100)).await;
            });
        executor.expect("it starts").join().expect("it ends");
        let (file, what) = told
            .recv_timeout(Duration::from_secs(60))
            .expect("the helper panics; the exception in the hook is not needed any more");
        std::panic::set_hook(before);
        assert!(is_late_helper(&file, &what), "{file}: {what}");
        assert!(!is_late_helper(
            "node/src/shard/shard.rs",
            "failed to send response"
        ));
        assert!(!is_late_helper(&file, "another one"));
    }
}
