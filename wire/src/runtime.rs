//! What this crate needs of an executor: a connection, a pause, a task.
//!
//! What this file keeps true: nothing else in RPC, pool and client knows which executor runs it.
//! Capabilities of Cap'n Proto are not `Send`, so everything stays on one thread.

use crate::error::WireError;
use futures::future::{Either, LocalBoxFuture, select};
use futures::io::{AsyncRead, AsyncWrite};
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

mod glommio_runtime;
mod hooks;
pub mod parking;
pub mod rings;
mod slices;
mod socket;

pub use glommio_runtime::Glommio;
pub(crate) use glommio_runtime::{connect, tune};
pub use slices::{Behind, SHORT_SLICE_US, short_slices, stand};
pub use socket::Socket;

/// An executor, as this crate uses it. Implementations are handles: cheap to clone, used from the
/// thread of their executor only.
pub trait Runtime: Clone + 'static {
    /// A connection. Reads and writes may be pending at the same time.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Connects to `host:port` with TCP_NODELAY set. Must not block the thread, not even to look a
    /// name up. Dropping the future gives the attempt up.
    fn connect(
        &self,
        addr: &str,
        deadline: Duration,
    ) -> LocalBoxFuture<'static, std::io::Result<Self::Stream>>;

    /// Completes after `time`.
    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()>;

    /// What leases are timed by; tests have a clock of their own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Runs a future on this thread until it completes, whoever waits for it.
    fn spawn(&self, task: LocalBoxFuture<'static, ()>);
}

/// Waits for `f`, but no longer than `deadline`. The future is dropped when the time is over; for
/// a call that cancels the handler at the other side at an unknown point, so the outcome of a
/// change is unknown.
///
/// # Errors
/// [`WireError::Timeout`], or what `f` failed with.
pub async fn within<R, F, T, E>(runtime: &R, deadline: Duration, f: F) -> Result<T, WireError>
where
    R: Runtime,
    F: Future<Output = Result<T, E>>,
    E: Into<WireError>,
{
    match select(pin!(f), runtime.sleep(deadline)).await {
        Either::Left((result, _)) => result.map_err(Into::into),
        Either::Right(((), _)) => Err(WireError::timeout(deadline)),
    }
}
