//! Writes messages to a stream: what is small is gathered, what is large goes out from where it is,
//! together with what was gathered before it.
//!
//! What this file keeps true: bytes leave in the order in which they came; a message of one large segment is
//! one write where the stream takes several pieces at once, and elsewhere, but for the first one, no write of its few first
//! bytes alone; a connection that has nothing to say holds little memory.

use crate::limits;
use futures::io::AsyncWrite;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The writing half of a connection.
pub(super) struct Outgoing<W> {
    write: W,
    gathered: Vec<u8>,
    /// So many of the gathered bytes are written.
    written: usize,
    /// The stream was seen to take one piece at a time only.
    one_by_one: bool,
}

impl<W: AsyncWrite + Unpin> Outgoing<W> {
    pub(super) fn new(write: W) -> Self {
        Self {
            write,
            gathered: Vec::new(),
            written: 0,
            one_by_one: false,
        }
    }

    fn gather(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
    }

    fn wrote(result: io::Result<usize>) -> io::Result<usize> {
        match result {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            other => other,
        }
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.gathered.len() {
            let rest = &self.gathered[self.written..];
            let result = ready!(Pin::new(&mut self.write).poll_write(cx, rest));
            self.written += Self::wrote(result)?;
        }
        self.clear();
        Poll::Ready(Ok(()))
    }

    fn clear(&mut self) {
        self.written = 0;
        self.gathered.clear();
        if self.gathered.capacity() > limits::RPC_WRITE_KEPT_BYTES {
            self.gathered = Vec::new();
        }
    }

    /// What was gathered and `bytes` together; how many of `bytes` were taken.
    fn poll_both(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let rest = &self.gathered[self.written..];
            if rest.is_empty() {
                self.clear();
                return Pin::new(&mut self.write).poll_write(cx, bytes);
            }
            let ahead = rest.len();
            let both = [IoSlice::new(rest), IoSlice::new(bytes)];
            let result = ready!(Pin::new(&mut self.write).poll_write_vectored(cx, &both));
            let wrote = Self::wrote(result)?;
            if wrote > ahead {
                self.one_by_one = false;
                self.clear();
                return Poll::Ready(Ok(wrote - ahead));
            }
            // Such a stream shall get the next ones in pieces that are worth a write each.
            self.one_by_one |= wrote == ahead;
            self.written += wrote;
        }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Outgoing<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let room = limits::RPC_WRITE_BUFFER_BYTES.saturating_sub(this.gathered.len());
        if bytes.len() <= room {
            this.gather(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        if this.one_by_one && this.gathered.len() > this.written && room > 0 {
            this.gather(&bytes[..room]);
            return Poll::Ready(Ok(room));
        }
        this.poll_both(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_empty(cx))?;
        Pin::new(&mut this.write).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_empty(cx))?;
        Pin::new(&mut this.write).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::Outgoing;
    use crate::limits;
    use futures::io::{AsyncWrite, AsyncWriteExt};
    use std::io::{self, IoSlice};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    /// Takes so many bytes in one write, says before each that it has no room, and counts writes.
    struct Taking {
        taken: Vec<u8>,
        most: usize,
        several: bool,
        full: bool,
        writes: Vec<usize>,
    }

    impl Taking {
        fn take(&mut self, cx: &Context<'_>, pieces: &[&[u8]]) -> Poll<io::Result<usize>> {
            self.full = !self.full;
            if self.full {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut left = self.most;
            for piece in pieces {
                let len = left.min(piece.len());
                self.taken.extend_from_slice(&piece[..len]);
                left -= len;
            }
            let took = self.most - left;
            self.writes.push(took);
            Poll::Ready(Ok(took))
        }
    }

    impl AsyncWrite for Taking {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            from: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.take(cx, &[from])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            from: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let several = self.several;
            let pieces: Vec<&[u8]> = from.iter().map(|piece| &**piece).collect();
            self.take(cx, if several { &pieces } else { &pieces[..1] })
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn outgoing(most: usize, several: bool) -> Outgoing<Taking> {
        Outgoing::new(Taking {
            taken: Vec::new(),
            most,
            several,
            full: false,
            writes: Vec::new(),
        })
    }

    fn send(out: &mut Outgoing<Taking>, pieces: &[Vec<u8>]) {
        glommio::LocalExecutor::default().run(async {
            for piece in pieces {
                out.write_all(piece).await.unwrap();
            }
            out.flush().await.unwrap();
        });
    }

    fn piece(len: usize, salt: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 13 + salt) as u8).collect()
    }

    #[test]
    fn bytes_leave_in_order_whatever_the_stream_takes_at_a_time() {
        for several in [true, false] {
            for most in [1_000, 64 << 10, usize::MAX] {
                let mut out = outgoing(most, several);
                let mut wanted = Vec::new();
                for round in 0..6 {
                    let sizes = [
                        8,
                        0,
                        30_000,
                        40_000,
                        8,
                        200_000,
                        limits::RPC_WRITE_BUFFER_BYTES,
                    ];
                    let pieces: Vec<_> = sizes.iter().map(|len| piece(*len, round)).collect();
                    send(&mut out, &pieces);
                    wanted.extend(pieces.concat());
                }
                assert!(
                    out.write.taken == wanted,
                    "{most} at a time, several: {several}"
                );
                assert!(out.gathered.capacity() <= limits::RPC_WRITE_KEPT_BYTES);
            }
        }
    }

    #[test]
    fn a_large_message_is_one_write_and_small_pieces_share_one() {
        let mut out = outgoing(usize::MAX, true);
        send(&mut out, &[piece(8, 0), piece(104_000, 1)]);
        send(&mut out, &[piece(8, 0), piece(1_000, 1), piece(2_000, 2)]);
        assert_eq!(out.write.writes, [104_008, 3_008]);
    }

    #[test]
    fn where_pieces_go_one_by_one_the_first_bytes_do_not_go_alone() {
        let mut out = outgoing(usize::MAX, false);
        // The first large message finds out.
        send(&mut out, &[piece(8, 0), piece(104_000, 1)]);
        out.write.writes.clear();
        send(&mut out, &[piece(8, 0), piece(104_000, 1)]);
        let buffer = limits::RPC_WRITE_BUFFER_BYTES;
        assert_eq!(out.write.writes, [buffer, 104_008 - buffer]);
    }

    #[test]
    fn a_stream_that_takes_nothing_is_broken() {
        let mut out = outgoing(0, true);
        glommio::LocalExecutor::default().run(async {
            out.write_all(&piece(8, 0)).await.unwrap();
            let error = out.flush().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        });
    }
}
