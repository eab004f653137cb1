//! The admin port: health, readiness, metrics and the cluster over plain HTTP.
//!
//! What this module keeps true: a bounded number of threads answers, none of them on an executor;
//! every error is JSON with what to do next, under a status that says whether to try again.

pub(crate) mod ready;
mod routes;

use crate::context::NodeContext;
use crate::limits;
use routes::Reply;
use std::net::TcpListener;
use std::sync::Arc;
use tiny_http::{Header, Request, Response, Server};

/// A running admin port.
pub struct AdminServer {
    server: Arc<Server>,
}

impl AdminServer {
    /// Answers on `listener`.
    ///
    /// # Errors
    /// What the system said.
    pub fn start(listener: TcpListener, ctx: Arc<NodeContext>) -> std::io::Result<Self> {
        let server =
            Arc::new(Server::from_listener(listener, None).map_err(std::io::Error::other)?);
        for index in 0..limits::HTTP_THREADS {
            let (server, ctx) = (server.clone(), ctx.clone());
            std::thread::Builder::new()
                .name(format!("http {index}"))
                .spawn(move || {
                    // Ends when the server is unblocked for the stop.
                    while let Ok(request) = server.recv() {
                        answer(&ctx, request);
                    }
                })?;
        }
        Ok(Self { server })
    }

    /// Takes no more requests. Those that are being answered end with the process.
    pub fn stop(self) {
        for _ in 0..limits::HTTP_THREADS {
            self.server.unblock();
        }
    }
}

fn answer(ctx: &Arc<NodeContext>, request: Request) {
    let reply = routes::route(ctx, request.method(), request.url());
    let Reply {
        status,
        content_type,
        body,
    } = reply;
    let mut response = Response::from_string(body).with_status_code(status);
    for (name, value) in [
        ("Content-Type", content_type),
        ("Cache-Control", "no-store"),
    ] {
        let header = Header::from_bytes(name, value).expect("a constant header is valid");
        response = response.with_header(header);
    }
    // Whoever asked may have gone.
    if let Err(error) = request.respond(response) {
        tracing::debug!(%error, "an admin answer was not taken");
    }
}
