//! Whether a connection has ended, for what its peer holds.
//!
//! What this file keeps true: a capability that the peer releases is dropped while its connection
//! stands; one that is dropped because the connection ended finds it ended already. So its owner can
//! tell a peer that is done from one that is gone.

use futures::io::{AsyncRead, AsyncWrite};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A flag that is set once, when the connection ends. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ended(Rc<Cell<bool>>);

impl Ended {
    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.get()
    }

    pub(super) fn set(&self) {
        self.0.set(true);
    }
}

/// Sets the flag when it is dropped.
pub(super) struct EndGuard(pub(super) Ended);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// A stream that sets the flag at its end and at its first error.
pub(super) struct Watched<S> {
    stream: S,
    ended: Ended,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, ended: Ended) -> Self {
        Self { stream, ended }
    }

    fn note<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.ended.set();
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, into));
        if matches!(result, Ok(0)) && !into.is_empty() {
            self.ended.set();
        }
        self.note(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, from));
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, from));
        self.note(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.note(result)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_close(cx));
        self.note(result)
    }
}
