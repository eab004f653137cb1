//! One connection, as an object that knows when it has ended.

use super::caught::Caught;
use super::line::{EndGuard, Line, Watched};
use super::network::Network;
use crate::error::WireError;
use crate::limits;
use crate::runtime::Runtime;
use capnp::message::ReaderOptions;
use capnp_rpc::RpcSystem;
use capnp_rpc::rpc_twoparty_capnp::Side;
use futures::channel::oneshot;
use futures::future::{Either, select};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use narad_schema::client_capnp::node;
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// How messages are read on every connection of this program: calls at the server's side, answers at the
/// client's.
#[must_use]
pub fn reader_options(side: Side) -> ReaderOptions {
    let limit = match side {
        Side::Server => limits::CALL_LIMIT_WORDS,
        Side::Client => limits::ANSWER_LIMIT_WORDS,
    };
    ReaderOptions {
        traversal_limit_in_words: Some(limit),
        nesting_limit: limits::NESTING_LIMIT,
    }
}

fn system<S>(stream: S, side: Side, bootstrap: Option<capnp::capability::Client>) -> RpcSystem<Side>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (read, write) = stream.split();
    let network = Network::new(read, write, side, reader_options(side));
    RpcSystem::new(Box::new(network), bootstrap)
}

/// Sets the flag when the driver ends, also when it is dropped by a dying executor.
struct ClosedFlag(Rc<Cell<bool>>);

impl Drop for ClosedFlag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// The client's side of a connection. Dropping it ends the connection: calls in flight fail with
/// [`WireError::Disconnected`].
pub struct Link {
    node: node::Client,
    closed: Rc<Cell<bool>>,
    close: Option<oneshot::Sender<Closing>>,
}

/// What to do with a connection when its link is gone.
enum Closing {
    /// Leave it open until the peer goes away.
    Detached,
}

impl Link {
    /// A connection over any stream, and the future that drives it; nothing happens until that is
    /// spawned. The future ends when the connection does.
    pub fn over<R, S>(runtime: R, stream: S) -> (Self, impl Future<Output = ()> + 'static)
    where
        R: Runtime,
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut system = system(stream, Side::Client, None);
        let node: node::Client = system.bootstrap(Side::Server);
        let disconnector = system.get_disconnector();
        let closed = Rc::new(Cell::new(false));
        let (close, closing) = oneshot::channel();
        let flag = ClosedFlag(closed.clone());
        let driver = async move {
            let _flag = flag;
            let system = Caught::new(system);
            let mut system = match select(system, closing).await {
                Either::Left((Err(_), _)) => {
                    tracing::error!("a connection was ended because its peer's answer panicked");
                    return;
                }
                Either::Left((Ok(result), _)) => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                Either::Right((Ok(Closing::Detached), system)) => {
                    let _ = system.await;
                    return;
                }
                Either::Right((Err(oneshot::Canceled), system)) => system,
            };
            // A peer that takes nothing more must not keep this task alive for ever.
            let mut goodbye = select(Box::pin(disconnector), &mut system);
            let grace = runtime.sleep(Duration::from_millis(limits::CLOSE_GRACE_MS));
            let _ = select(&mut goodbye, grace).await;
        };
        let link = Self {
            node,
            closed,
            close: Some(close),
        };
        (link, driver)
    }

    /// The node at the other end.
    #[must_use]
    pub fn node(&self) -> &node::Client {
        &self.node
    }

    /// Whether the connection has ended, as far as this process knows.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Lets the connection live until the peer goes away.
    #[must_use]
    pub fn detach(mut self) -> node::Client {
        if let Some(close) = self.close.take() {
            let _ = close.send(Closing::Detached);
        }
        self.node.clone()
    }
}

/// Serves one connection over any stream until the peer goes away or the future is dropped. `line`
/// has ended before anything that the peer held is dropped because of the end.
///
/// # Errors
/// [`WireError`] when the connection broke or the peer broke the protocol.
pub async fn serve_over<S>(stream: S, bootstrap: node::Client, line: Line) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let stream = Watched::new(stream, line.clone());
    let system = system(stream, Side::Server, Some(bootstrap.client));
    let mut system = Caught::new(system);
    // Dropped before the system is, also when this future is dropped in the middle.
    let _ended = EndGuard(line);
    // The RPC library answers some impossible messages with a panic, which would take the whole
    // executor along: a peer's bytes end the peer's connection and nothing else.
    match (&mut system).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) if error.kind == capnp::ErrorKind::Disconnected => Ok(()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            tracing::error!("a connection was ended because serving it panicked");
            Err(WireError::Protocol {
                message: "serving the connection panicked".into(),
            })
        }
    }
}
