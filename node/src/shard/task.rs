//! Tasks of their own for work that its asker may not cut short.
//!
//! What this file keeps true: whoever asked may go away, the work goes on to its end. In a node a
//! panic ends the whole process (its panic hook aborts); where no such hook is set it is logged and
//! ends that task alone, and its answer channel closes, which the asker sees.

use futures::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

/// Runs `work` on its own. A caller that goes away does not cut it in half.
pub(crate) fn spawn(what: &'static str, work: impl Future<Output = ()> + 'static) {
    glommio::spawn_local(async move {
        if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
            tracing::error!(what, reason = %text(&*panic), "a task panicked; this is a bug");
        }
    })
    .detach();
}

/// Runs `work` on its own and waits for it; `None` when it panicked.
pub(crate) async fn run<T: 'static>(
    what: &'static str,
    work: impl Future<Output = T> + 'static,
) -> Option<T> {
    let (answer, done) = tokio::sync::oneshot::channel();
    spawn(what, async move {
        let _ = answer.send(work.await);
    });
    done.await.ok()
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| "no message".into())
}
