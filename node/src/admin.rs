//! The admin port: health, readiness, metrics and the cluster over plain HTTP.
//!
//! What this module keeps true: a bounded number of threads answers, none of them on an executor,
//! each one connection at a time that ends in bounded time; every error is JSON with what to do
//! next, under a status that says whether to try again.

mod http;
mod orders;
pub(crate) mod ready;
mod routes;

use crate::context::NodeContext;
use crate::limits;
use http::{Connection, Rejected};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A running admin port.
pub struct AdminServer {
    shared: Arc<Shared>,
}

struct Shared {
    listener: TcpListener,
    stopping: AtomicBool,
    ctx: Arc<NodeContext>,
}

impl AdminServer {
    /// Answers on `listener`.
    ///
    /// # Errors
    /// What the system said.
    pub fn start(listener: TcpListener, ctx: Arc<NodeContext>) -> std::io::Result<Self> {
        // The threads wait in accept.
        listener.set_nonblocking(false)?;
        let shared = Arc::new(Shared {
            listener,
            stopping: AtomicBool::new(false),
            ctx,
        });
        let server = Self {
            shared: shared.clone(),
        };
        for index in 0..limits::HTTP_THREADS {
            let shared = shared.clone();
            let started = std::thread::Builder::new()
                .name(format!("http {index}"))
                .spawn(move || serve(&shared));
            if let Err(error) = started {
                server.stop();
                return Err(error);
            }
        }
        Ok(server)
    }

    /// Takes no more requests. Those that are being answered end with the process.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Ends every accept that waits, and those to come.
        let socket = self.shared.listener.as_raw_fd();
        if let Err(error) = nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Both) {
            tracing::debug!(%error, "the admin port's socket was not shut down");
        }
    }
}

fn serve(shared: &Shared) {
    while !shared.stopping.load(Ordering::Acquire) {
        match shared.listener.accept() {
            Ok((stream, _)) => answer(&shared.ctx, stream),
            Err(_) if shared.stopping.load(Ordering::Acquire) => return,
            Err(error) => {
                tracing::debug!(%error, "the admin port cannot take a connection");
                // Out of descriptors, say: it passes, or not, but not by asking at once.
                std::thread::sleep(Duration::from_millis(limits::HTTP_ACCEPT_PAUSE_MS));
            }
        }
    }
}

fn answer(ctx: &Arc<NodeContext>, stream: TcpStream) {
    let mut connection = Connection::new(stream);
    let (reply, head_only) = match connection.request() {
        Ok(asked) => (
            routes::route(ctx, &asked.method, &asked.url),
            asked.method == "HEAD",
        ),
        Err(Rejected::Answer(reply)) => (reply, false),
        Err(Rejected::Gone(error)) => {
            tracing::debug!(%error, "an admin request did not come whole");
            return;
        }
    };
    // Whoever asked may have gone.
    if let Err(error) = connection.answer(&reply, head_only) {
        tracing::debug!(%error, "an admin answer was not taken");
    }
}
