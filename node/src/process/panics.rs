//! A panic ends the process.
//!
//! What this file keeps true: a broken invariant never leaves a node half-alive, with one executor
//! gone and the others answering; everything acked is durable, so ending at once loses nothing.
//!
//! Two panics are none of ours and break nothing: a helper thread of the runtime that ends a system
//! call (the removal of a large file) after its executor has stopped finds nobody to tell; and the RPC
//! library answers some impossible messages with one, which is caught and ends their connection
//! ([`narad_wire::rpc::panic_is_caught`]).

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
        if narad_wire::rpc::panic_is_caught() {
            tracing::debug!("the RPC library panicked at {file}: {what}");
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
    use super::{abort_on_panic, is_late_helper};
    use futures::io::{AsyncRead, AsyncWrite};
    use glommio::net::TcpListener;
    use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
    use narad_schema::client_capnp::node;
    use narad_wire::rpc::{self, Line};
    use nix::sys::signal::Signal;
    use std::io;
    use std::os::unix::process::ExitStatusExt;
    use std::pin::Pin;
    use std::process::Command;
    use std::rc::Rc;
    use std::sync::mpsc;
    use std::task::{Context, Poll};
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

    /// What the process that panics is told by, and which of its two ways.
    const CHILD: &str = "NARAD_TEST_PANICS";

    /// A peer on whose bytes the RPC library panics.
    struct Impossible;

    impl AsyncRead for Impossible {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            panic!("an impossible message");
        }
    }

    impl AsyncWrite for Impossible {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            from: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(from.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A node with a broken invariant.
    struct Broken;

    impl node::Server for Broken {
        async fn info(
            self: Rc<Self>,
            _: node::InfoParams,
            _: node::InfoResults,
        ) -> Result<(), capnp::Error> {
            panic!("a broken invariant");
        }
    }

    async fn child(way: &str) {
        let bootstrap: node::Client = rpc::new_client(Broken);
        if way == "library" {
            let served = rpc::serve_over(Impossible, bootstrap, Line::default()).await;
            served.expect_err("the connection is ended");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address").to_string();
        glommio::spawn_local(async move {
            let stream = listener.accept().await.expect("a connection");
            let _ = rpc::serve(stream, bootstrap, Line::default()).await;
        })
        .detach();
        let wait = Duration::from_secs(60);
        let node = rpc::connect(&addr, wait).await.expect("connected");
        let _ = rpc::call(wait, node.info_request().send(), |_| Ok(())).await;
    }

    #[test]
    fn a_peers_impossible_message_ends_its_connection_and_a_broken_invariant_the_process() {
        if let Ok(way) = std::env::var(CHILD) {
            abort_on_panic();
            let executor = LocalExecutorBuilder::new(Placement::Unbound)
                .spawn(move || async move { child(&way).await });
            executor.expect("it starts").join().expect("it ends");
            return;
        }
        let run = |way: &str| {
            let name = concat!(
                "process::panics::tests::",
                "a_peers_impossible_message_ends_its_connection_and_a_broken_invariant_the_process"
            );
            let mut child = Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", "--nocapture", name]).env(CHILD, way);
            child.output().expect("it runs")
        };
        let library = run("library");
        let told = String::from_utf8_lossy(&library.stdout);
        assert!(library.status.success(), "{library:?}");
        assert!(told.contains("1 passed"), "{told}");
        let handler = run("handler");
        assert_eq!(
            handler.status.signal(),
            Some(Signal::SIGABRT as i32),
            "{handler:?}"
        );
        let told = String::from_utf8_lossy(&handler.stderr);
        assert!(told.contains("a broken invariant"), "{told}");
    }
}
