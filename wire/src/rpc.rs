//! Cap'n Proto connections: both sides, over any stream, and their glommio shortcuts.
//!
//! What this file keeps true: many small messages are read in one system call, and large ones are not copied to
//! be sent; the length of messages is bounded by what a call and an answer may need; the end of a connection is
//! noticed at once, not at the next call ([`Link::is_closed`]).
//!
//! Cancellation: dropping the future of a call cancels the handler at the server at an unknown
//! point. Handlers whose work must not be cut in half run it in a task of their own.

mod caught;
mod door;
mod incoming;
mod line;
mod link;
mod memory;
mod network;
mod outgoing;
mod room;

pub use caught::{OwnDispatch, new_client, panic_is_caught};
pub use door::Door;
pub use line::Line;
pub use link::{Link, reader_options, serve_over};
pub use room::{deliveries_room, outcomes_room, records_room, with_room};

use crate::error::WireError;
use crate::runtime::{Glommio, Runtime, Socket, tune, within};
use narad_schema::client_capnp::node;
use std::future::Future;
use std::time::Duration;

/// Connects and returns the connection; it ends when the [`Link`] is dropped.
///
/// # Errors
/// [`WireError::Connect`] when no connection is made within `deadline`.
pub async fn connect_link<R: Runtime>(
    runtime: &R,
    addr: &str,
    deadline: Duration,
) -> Result<Link, WireError> {
    connect_door(runtime, addr, deadline, Door::Shard).await
}

/// As [`connect_link`], to one part of the node.
///
/// # Errors
/// As [`connect_link`].
pub async fn connect_door<R: Runtime>(
    runtime: &R,
    addr: &str,
    deadline: Duration,
    door: Door,
) -> Result<Link, WireError> {
    let failed = |message: String| WireError::Connect {
        addr: addr.to_owned(),
        message,
        retry_after_ms: 0,
    };
    let attempt = within(runtime, deadline, async {
        let connected = async {
            let mut stream = runtime.connect(addr, deadline).await?;
            door.say(&mut stream).await?;
            Ok::<_, std::io::Error>(stream)
        };
        connected.await.map_err(|error| failed(error.to_string()))
    });
    let stream = attempt.await.map_err(|error| match error {
        WireError::Timeout { after_ms } => failed(format!("no answer within {after_ms} ms")),
        other => other,
    })?;
    let (link, driver) = Link::over(runtime.clone(), stream);
    runtime.spawn(Box::pin(driver));
    Ok(link)
}

/// Connects on the glommio executor of this thread. The connection lives until the node goes
/// away: where it should end earlier, use [`connect_link`].
///
/// # Errors
/// [`WireError::Connect`] when no connection is made within `deadline`.
pub async fn connect(addr: &str, deadline: Duration) -> Result<node::Client, WireError> {
    Ok(connect_link(&Glommio, addr, deadline).await?.detach())
}

/// Serves one accepted glommio connection until the peer goes away or the future is dropped, which
/// cuts the connection. Ok when the peer closed it. `line` has ended before anything that the peer held
/// is dropped because of the end.
///
/// # Errors
/// [`WireError`] when the connection broke or the peer broke the protocol; nothing to do but log.
pub async fn serve(
    stream: glommio::net::TcpStream,
    bootstrap: node::Client,
    line: Line,
) -> Result<(), WireError> {
    tune(&stream).map_err(|error| WireError::Disconnected {
        message: error.to_string(),
    })?;
    serve_over(Socket::from(stream), bootstrap, line).await
}

/// [`within`] on the glommio executor of this thread.
///
/// # Errors
/// [`WireError::Timeout`] (unknown outcome for changes), or what `f` failed with.
pub async fn with_deadline<F, T, E>(deadline: Duration, f: F) -> Result<T, WireError>
where
    F: Future<Output = Result<T, E>>,
    E: Into<WireError>,
{
    within(&Glommio, deadline, f).await
}

/// Sends a request and reads its answer with `read` within a deadline, on glommio:
/// `call(deadline, request.send(), |r| Ok(r.get_index()))`. `read` checks the `error` field with
/// [`convert::check`](crate::convert::check).
///
/// # Errors
/// [`WireError`]; see [`with_deadline`].
pub async fn call<T, O>(
    deadline: Duration,
    sent: capnp::capability::RemotePromise<O>,
    read: impl FnOnce(O::Reader<'_>) -> Result<T, WireError>,
) -> Result<T, WireError>
where
    O: capnp::traits::Pipelined + capnp::traits::Owned + 'static + Unpin,
{
    call_on(&Glommio, deadline, sent, read).await
}

/// [`call`] on any executor.
///
/// # Errors
/// [`WireError`]; see [`within`].
pub async fn call_on<R, T, O>(
    runtime: &R,
    deadline: Duration,
    sent: capnp::capability::RemotePromise<O>,
    read: impl FnOnce(O::Reader<'_>) -> Result<T, WireError>,
) -> Result<T, WireError>
where
    R: Runtime,
    O: capnp::traits::Pipelined + capnp::traits::Owned + 'static + Unpin,
{
    let response = within(runtime, deadline, sent.promise).await?;
    read(response.get()?)
}
