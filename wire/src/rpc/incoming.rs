//! Reads messages off a stream.
//!
//! A message that fills most of what was read stays where it was read to, and its memory is used again
//! after it; small ones are copied out. One read usually takes a whole message, asks for a little
//! more than that, and so tells the stream that nothing is left.
//!
//! What this file keeps true: no message is longer than the limit of its reader, once it is there in memory of no more than twice
//! its length, and shows nothing but its own bytes; a connection that has nothing to say holds no memory.
//!
//! The format is that of a stream of Cap'n Proto messages (capnproto.org/encoding.html,
//! "Serialization over a stream"): the count of segments less one and the length of each in words,
//! as u32 and padded to a word, then the segments.

use super::memory;
use crate::limits;
use capnp::message::{Reader, ReaderOptions, ReaderSegments};
use capnp::{Error, Result, Word};
use futures::io::AsyncRead;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The segments of a message, in memory that is used again.
pub(super) struct Held {
    words: Vec<Word>,
    /// Where each segment begins and ends, in bytes.
    segments: Vec<(usize, usize)>,
}

impl ReaderSegments for Held {
    fn get_segment(&self, id: u32) -> Option<&[u8]> {
        let (begin, end) = *self.segments.get(id as usize)?;
        Some(&Word::words_to_bytes(&self.words)[begin..end])
    }

    fn len(&self) -> usize {
        self.segments.len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        memory::give(std::mem::take(&mut self.words));
    }
}

/// What a message's beginning says.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    /// It takes this many bytes to tell.
    Short(usize),
    Whole {
        /// Where each segment begins and ends, in bytes from the message's beginning.
        segments: Vec<(usize, usize)>,
        /// Length of all, in bytes.
        len: usize,
    },
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let four = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(four) as usize
}

/// # Errors
/// When no message that is allowed begins like this.
fn head(bytes: &[u8], options: &ReaderOptions) -> Result<Head> {
    if bytes.len() < 8 {
        return Ok(Head::Short(8));
    }
    let count = u32_at(bytes, 0).saturating_add(1);
    if count > limits::MESSAGE_MAX_SEGMENTS {
        return Err(Error::failed(format!(
            "a message of {count} segments; {} are allowed",
            limits::MESSAGE_MAX_SEGMENTS
        )));
    }
    // One word has the count and the first length, each further word two lengths.
    let table = (count / 2 + 1) * 8;
    if bytes.len() < table {
        return Ok(Head::Short(table));
    }
    let mut segments = Vec::with_capacity(count);
    let mut end = table;
    for segment in 0..count {
        let begin = end;
        // At most 512 lengths of 32 GiB each: no overflow.
        end += u32_at(bytes, 4 + segment * 4) * 8;
        segments.push((begin, end));
    }
    if let Some(limit) = options.traversal_limit_in_words
        && (end - table) / 8 > limit
    {
        return Err(Error::failed(format!(
            "a message of {} words; {limit} are allowed",
            (end - table) / 8
        )));
    }
    Ok(Head::Whole { segments, len: end })
}

/// The reading half of a connection.
pub(super) struct Incoming<R> {
    read: R,
    options: ReaderOptions,
    /// What is read into; empty while nothing is there.
    words: Vec<Word>,
    /// Where the next message begins in it, in bytes; a multiple of 8.
    at: usize,
    /// Where what was read ends in it, in bytes.
    filled: usize,
    /// Length of the message before, in bytes: the next one is often alike.
    last: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub(super) fn new(read: R, options: ReaderOptions) -> Self {
        Self {
            read,
            options,
            words: Vec::new(),
            at: 0,
            filled: 0,
            last: 0,
        }
    }

    /// The next message; `None` when the peer has ended the stream behind a whole one.
    ///
    /// # Errors
    /// What the stream says, the end of the stream within a message, and bytes that are no message.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Reader<Held>>>> {
        loop {
            let read = &Word::words_to_bytes(&self.words)[self.at..self.filled];
            let needed = match head(read, &self.options)? {
                Head::Short(needed) => needed,
                Head::Whole { segments, len } if read.len() >= len => {
                    let held = self.take(segments, len);
                    return Poll::Ready(Ok(Some(Reader::new(held, self.options))));
                }
                Head::Whole { len, .. } => len,
            };
            self.make_room(needed);
            let room = &mut Word::words_to_bytes_mut(&mut self.words)[self.filled..];
            match Pin::new(&mut self.read).poll_read(cx, room) {
                Poll::Pending => {
                    self.rest();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) if self.filled == self.at => {
                    self.rest();
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
                }
                Poll::Ready(Ok(bytes)) => self.filled += bytes,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Nothing is there: no memory is held for it.
    fn rest(&mut self) {
        if self.filled == self.at {
            memory::give(std::mem::take(&mut self.words));
            (self.at, self.filled) = (0, 0);
        }
    }

    /// Room behind what was read, for all of a message of this length, at least.
    fn make_room(&mut self, needed: usize) {
        let space = self.words.len() * 8;
        let read = self.filled - self.at;
        if self.at + needed <= space && self.filled < space {
            return;
        }
        // A little more than the message: a read that does not fill it has found the end of what is there.
        // Memory that one would not stay in is not taken for it.
        let want = self.last + 8;
        let wanted = read == 0 && want <= limits::MESSAGE_KEPT_BYTES;
        self.move_to(memory::take(if wanted { want.max(needed) } else { needed }));
    }

    /// Goes on in other memory.
    fn move_to(&mut self, mut words: Vec<Word>) {
        let left = &Word::words_to_bytes(&self.words)[self.at..self.filled];
        Word::words_to_bytes_mut(&mut words)[..left.len()].copy_from_slice(left);
        let len = left.len();
        memory::give(std::mem::replace(&mut self.words, words));
        (self.at, self.filled) = (0, len);
    }

    /// The message of this length, which is there.
    fn take(&mut self, mut segments: Vec<(usize, usize)>, len: usize) -> Held {
        self.last = len;
        let begin = self.at;
        self.at += len;
        if 2 * len < self.words.len() * 8 {
            let message = &Word::words_to_bytes(&self.words)[begin..begin + len];
            let mut words = if len < limits::RPC_READ_BUFFER_BYTES / 2 {
                Word::allocate_zeroed_vec(len / 8)
            } else {
                memory::take(len)
            };
            Word::words_to_bytes_mut(&mut words)[..len].copy_from_slice(message);
            self.rest();
            return Held { words, segments };
        }
        for (from, to) in &mut segments {
            *from += begin;
            *to += begin;
        }
        let words = std::mem::take(&mut self.words);
        let left = &Word::words_to_bytes(&words)[self.at..self.filled];
        if !left.is_empty() {
            self.words = memory::take(left.len());
            Word::words_to_bytes_mut(&mut self.words)[..left.len()].copy_from_slice(left);
        }
        let left = left.len();
        (self.at, self.filled) = (0, left);
        Held { words, segments }
    }
}

impl<R> Drop for Incoming<R> {
    fn drop(&mut self) {
        memory::give(std::mem::take(&mut self.words));
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, Incoming, head};
    use crate::limits;
    use capnp::message::{Builder, HeapAllocator, ReaderOptions};
    use capnp::serialize;
    use futures::io::AsyncRead;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    /// Gives so many bytes at a time, and says before each piece that nothing is there.
    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        piece: usize,
        dry: bool,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.dry = !self.dry;
            if self.dry {
                return Poll::Pending;
            }
            let len = self.piece.min(into.len()).min(self.bytes.len() - self.at);
            into[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
            self.at += len;
            Poll::Ready(Ok(len))
        }
    }

    fn reader(bytes: Vec<u8>, piece: usize) -> Incoming<Pieces> {
        let pieces = Pieces {
            bytes,
            at: 0,
            piece,
            dry: false,
        };
        Incoming::new(pieces, ReaderOptions::new())
    }

    fn next(incoming: &mut Incoming<Pieces>) -> capnp::Result<Option<Vec<u8>>> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = incoming.poll_next(&mut cx) {
                let Some(message) = result? else {
                    return Ok(None);
                };
                return Ok(Some(
                    message.get_root::<capnp::data::Reader<'_>>()?.to_vec(),
                ));
            }
        }
    }

    /// A message of so many bytes, in segments that begin with `first` words.
    fn message(len: usize, first: u32) -> (Vec<u8>, Vec<u8>) {
        let allocator = HeapAllocator::new().first_segment_words(first);
        let mut message = Builder::new(allocator);
        let content: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        let root: capnp::any_pointer::Builder<'_> = message.init_root();
        root.initn_as::<capnp::data::Builder<'_>>(u32::try_from(len).unwrap())
            .copy_from_slice(&content);
        (serialize::write_message_to_words(&message), content)
    }

    #[test]
    fn messages_of_all_sizes_come_out_as_they_went_in_however_they_are_cut() {
        let sizes = [
            0, 1, 700, 8_000, 17_000, 104_000, 104_000, 30, 104_000, 300_000, 600_000, 5,
        ];
        for piece in [7, 8, 4_096, 16_384, 100_000, usize::MAX] {
            let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
            for (number, len) in sizes.into_iter().enumerate() {
                let (encoded, content) = message(len, if number % 2 == 0 { 1 } else { 1 << 14 });
                bytes.extend(encoded);
                wanted.push(content);
            }
            let mut incoming = reader(bytes, piece);
            for content in wanted {
                let got = next(&mut incoming).unwrap().expect("another message");
                assert!(
                    got == content,
                    "{} bytes in pieces of {piece}",
                    content.len()
                );
            }
            assert_eq!(next(&mut incoming).unwrap(), None);
            assert!(incoming.words.is_empty(), "nothing is held for nothing");
        }
    }

    #[test]
    fn messages_that_are_kept_are_not_written_over() {
        let mut incoming = reader(Vec::new(), usize::MAX);
        let mut kept = Vec::new();
        for round in 0..50usize {
            let (encoded, content) = message(1_000 + round * 4_001, 1 << 14);
            incoming.read.bytes.extend(encoded);
            let mut cx = Context::from_waker(Waker::noop());
            let message = loop {
                if let Poll::Ready(message) = incoming.poll_next(&mut cx) {
                    break message.unwrap().expect("another message");
                }
            };
            kept.push((message, content));
            if round % 3 == 0 {
                kept.swap_remove(round / 2 % kept.len());
            }
        }
        for (message, content) in kept {
            let root = message.get_root::<capnp::data::Reader<'_>>().unwrap();
            assert!(root == &content[..], "{} bytes", content.len());
        }
    }

    #[test]
    fn a_stream_that_ends_in_a_message_is_an_error_and_so_are_bytes_that_are_none() {
        let (encoded, _) = message(1_000, 16);
        for len in [1, 7, 8, 9, encoded.len() - 1] {
            let mut incoming = reader(encoded[..len].to_vec(), usize::MAX);
            let error = next(&mut incoming).unwrap_err();
            assert!(error.extra.contains("end of file"), "{error}");
        }
        let mut incoming = reader(vec![0xff; 4_096], usize::MAX);
        next(&mut incoming).unwrap_err();
    }

    #[test]
    fn what_a_beginning_announces_is_bounded_before_memory_is_taken() {
        let options = ReaderOptions {
            traversal_limit_in_words: Some(1_000),
            nesting_limit: 8,
        };
        let announced = |count: u32, words: u32| {
            let mut bytes = (count - 1).to_le_bytes().to_vec();
            bytes.resize((count as usize / 2 + 1) * 8, 0);
            for segment in 0..count as usize {
                bytes[4 + segment * 4..][..4].copy_from_slice(&words.to_le_bytes());
            }
            head(&bytes, &options)
        };
        assert!(matches!(
            announced(1, 1_000),
            Ok(Head::Whole { len: 8_008, .. })
        ));
        announced(1, 1_001).unwrap_err();
        announced(2, 501).unwrap_err();
        announced(511, u32::MAX).unwrap_err();
        let most = u32::try_from(limits::MESSAGE_MAX_SEGMENTS).unwrap();
        assert!(matches!(announced(most, 1), Ok(Head::Whole { .. })));
        announced(most + 1, 0).unwrap_err();
        assert_eq!(head(&[0xff; 8], &options).map_err(|_| ()), Err(()));
        assert_eq!(
            head(&[1, 0, 0, 0, 9, 0, 0, 0], &options).unwrap(),
            Head::Short(16)
        );
    }
}
