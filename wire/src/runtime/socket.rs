//! A TCP connection on glommio that takes several pieces in one write.
//!
//! What this file keeps true: it reads, writes and waits as glommio's own stream does; the only thing that is
//! added is that pieces which lie apart leave in one system call. glommio's own time limit for writes knows nothing of that
//! one; connections of this kind have none.

use futures::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

/// See the file.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self(stream)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A peer that is gone is an error, and no signal.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(self.0.as_raw_fd(), from, &[], flags, None) {
            Ok(bytes) => Poll::Ready(Ok(bytes)),
            // glommio waits for room, with what comes first.
            Err(Errno::EAGAIN | Errno::EINTR) => {
                let first = from.iter().find(|piece| !piece.is_empty());
                let first = first.map_or(&[][..], |piece| piece);
                Pin::new(&mut self.0).poll_write(cx, first)
            }
            Err(errno) => Poll::Ready(Err(errno.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}
