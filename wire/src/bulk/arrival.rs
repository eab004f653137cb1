//! How many bytes of a bulk stream have to be there before its reader is woken.
//!
//! What this file keeps true: a reader is woken when what it waits for is there, or [`BULK_WAKE_BYTES`] of it,
//! or the connection has ended; of bytes that come so slowly that the stream's idle time passes before, what is
//! there is read then, so only a stream that brings nothing at all counts as silent.
//!
//! Without the mark the kernel wakes the reader for every segment that arrives: a dozen wake-ups for a piece that is of
//! use only as a whole.
//!
//! [`BULK_WAKE_BYTES`]: crate::limits::BULK_WAKE_BYTES

use crate::limits::BULK_WAKE_BYTES;
use futures::io::AsyncReadExt;
use glommio::net::TcpStream;
use nix::libc::{self, c_int};
use nix::sys::socket::{MsgFlags, recv};
use std::io;
use std::os::fd::AsRawFd;

/// A connection, with the mark that its socket has.
pub(super) struct Arrival {
    pub(super) stream: TcpStream,
    mark: usize,
}

impl Arrival {
    pub(super) fn new(stream: TcpStream) -> Self {
        // What a new socket has.
        Self { stream, mark: 1 }
    }

    /// Reads once, when all of `into` is there or as much of it as a reader is woken for; 0: the other side has
    /// closed. Dropping the future loses nothing that it did not return.
    ///
    /// # Errors
    /// `TimedOut` when nothing came for the idle time of the stream; what the socket says.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wake_at(into.len().clamp(1, BULK_WAKE_BYTES));
        match self.stream.read(into).await {
            Err(error) if self.trickles(&error) => {
                self.wake_at(1);
                self.stream.read(into).await
            }
            other => other,
        }
    }

    /// Whether that was no silence: bytes came, if fewer than the mark.
    fn trickles(&self, error: &io::Error) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        error.kind() == io::ErrorKind::TimedOut
            && self.mark > 1
            && recv(self.stream.as_raw_fd(), &mut [0], flags).is_ok_and(|bytes| bytes > 0)
    }

    /// A system that refuses the mark wakes the reader more often, and that is all.
    fn wake_at(&mut self, bytes: usize) {
        if self.mark == bytes {
            return;
        }
        let mark = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let (socket, len) = (
            self.stream.as_raw_fd(),
            size_of::<c_int>() as libc::socklen_t,
        );
        // SAFETY: the descriptor belongs to the stream, and the option is a number that lives until the call ends. (The
        // nix crate does not name this option.)
        let done = unsafe {
            libc::setsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const mark).cast(),
                len,
            )
        };
        if done != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "a bulk stream is read as its bytes come");
        }
        self.mark = bytes;
    }
}
