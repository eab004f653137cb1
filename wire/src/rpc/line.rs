//! How a connection stands, for those who serve it.
//!
//! What this file keeps true: a capability that the peer releases is dropped while its connection
//! stands; one that is dropped because the connection ended finds it ended already, so its owner can
//! tell a peer that is done from one that is gone. And a peer that asks and does not read is noticed:
//! what is owed to it is known to within what other answers wait at the moment.

use futures::io::{AsyncRead, AsyncWrite};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Standing {
    ended: Cell<bool>,
    /// Bytes that were written to it.
    written: Cell<u64>,
    /// What that will be once everything that is owed is written, at least.
    owed_to: Cell<u64>,
    moved: Notify,
}

/// How one connection stands. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Line(Rc<Standing>);

impl Line {
    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended.get()
    }

    /// An answer of this many bytes is about to be sent.
    pub fn owe(&self, bytes: u64) {
        let from = self.0.owed_to.get().max(self.0.written.get());
        self.0.owed_to.set(from.saturating_add(bytes));
    }

    /// Bytes that are owed and not written yet.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.0.owed_to.get().saturating_sub(self.0.written.get())
    }

    /// Waits until less than this is owed, or the connection has ended.
    pub async fn room(&self, bytes: u64) {
        while self.owed() >= bytes && !self.has_ended() {
            let moved = self.0.moved.notified();
            if self.owed() < bytes || self.has_ended() {
                return;
            }
            moved.await;
        }
    }

    fn end(&self) {
        self.0.ended.set(true);
        self.0.moved.notify_waiters();
    }

    fn wrote(&self, bytes: usize) {
        self.0.written.set(self.0.written.get() + bytes as u64);
        self.0.moved.notify_waiters();
    }
}

/// Ends the line when it is dropped.
pub(super) struct EndGuard(pub(super) Line);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A stream that tells how it stands.
pub(super) struct Watched<S> {
    stream: S,
    line: Line,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, line: Line) -> Self {
        Self { stream, line }
    }

    fn note<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.line.end();
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
            self.line.end();
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
        self.line.wrote(*result.as_ref().unwrap_or(&0));
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, from));
        self.line.wrote(*result.as_ref().unwrap_or(&0));
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

#[cfg(test)]
mod tests {
    use super::Line;
    use futures::FutureExt;

    #[test]
    fn a_peer_that_does_not_read_is_noticed_and_one_that_reads_is_not() {
        let line = Line::default();
        line.room(100).now_or_never().expect("nothing is owed");
        line.owe(60);
        line.owe(60);
        let mut waits = Box::pin(line.room(100));
        assert!(waits.as_mut().now_or_never().is_none());
        line.wrote(21);
        waits.as_mut().now_or_never().expect("99 are owed");
        // What else is written counts for nothing later.
        line.wrote(1_000);
        assert_eq!(line.owed(), 0);
        line.owe(100);
        let mut waits = Box::pin(line.room(100));
        assert!(waits.as_mut().now_or_never().is_none());
        line.end();
        waits.as_mut().now_or_never().expect("nobody is there");
        assert!(line.has_ended());
    }
}
