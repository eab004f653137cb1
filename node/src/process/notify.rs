//! Telling a service manager how the process is: the protocol of systemd's `Type=notify`.
//!
//! What this file keeps true: without `NOTIFY_SOCKET` nothing happens; a manager that cannot be told never
//! holds the node up.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What the manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The node serves: caught up, admitted, every shard answers.
    Ready,
    /// The node is stopping in order.
    Stopping,
}

/// Tells the manager, if there is one.
pub fn tell(state: State, status: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let state = match state {
        State::Ready => "READY=1",
        State::Stopping => "STOPPING=1",
    };
    let name = socket.as_bytes();
    let addr = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    let sent = addr.and_then(|addr| {
        let from = UnixDatagram::unbound()?;
        // A full queue is not waited for.
        from.set_nonblocking(true)?;
        from.send_to_addr(format!("{state}\nSTATUS={status}\n").as_bytes(), &addr)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "the service manager cannot be told how the node is");
    }
}
