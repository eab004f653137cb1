//! [`Runtime`] on glommio, and the socket options that every RPC connection wants.

use super::{Runtime, Socket};
use crate::limits;
use futures::future::{FutureExt, LocalBoxFuture};
use glommio::net::TcpStream;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The glommio executor of the current thread. Tasks run in the task queue of whoever spawns them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glommio;

impl Runtime for Glommio {
    type Stream = Socket;

    fn connect(
        &self,
        addr: &str,
        deadline: Duration,
    ) -> LocalBoxFuture<'static, io::Result<Socket>> {
        let addr = addr.to_owned();
        async move { Ok(connect(&addr, deadline).await?.into()) }.boxed_local()
    }

    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
        glommio::timer::sleep(time).boxed_local()
    }

    fn spawn(&self, task: LocalBoxFuture<'static, ()>) {
        glommio::spawn_local(task).detach();
    }
}

/// Numeric addresses at once; names on the executor's blocking thread.
async fn resolve(addr: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(addr) = addr.parse() {
        return Ok(vec![addr]);
    }
    let name = addr.to_owned();
    let found: Vec<SocketAddr> = glommio::executor()
        .spawn_blocking(move || name.to_socket_addrs().map(Iterator::collect))
        .await?;
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(found)
}

/// A connection to `host:port`; see [`Runtime::connect`].
pub(crate) async fn connect(addr: &str, deadline: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + deadline;
    let mut last = None;
    for addr in resolve(addr).await? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(addr, left).await {
            Ok(stream) => {
                tune(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = Some(io::Error::from(error)),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::TimedOut)))
}

/// No delay for small messages, and an end to connections whose other side has vanished.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // SAFETY: the descriptor belongs to `stream`, which is borrowed for longer than `fd` is used.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    setsockopt(&fd, sockopt::KeepAlive, &true)?;
    setsockopt(&fd, sockopt::TcpKeepIdle, &limits::KEEPALIVE_IDLE_S)?;
    setsockopt(&fd, sockopt::TcpKeepInterval, &limits::KEEPALIVE_INTERVAL_S)?;
    setsockopt(&fd, sockopt::TcpKeepCount, &limits::KEEPALIVE_PROBES)?;
    setsockopt(&fd, sockopt::TcpUserTimeout, &limits::TCP_USER_TIMEOUT_MS)?;
    Ok(())
}
