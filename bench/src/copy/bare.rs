//! A copy without the product: the same streams, the same disk at both ends, the same writes at the
//! receiver, and nothing that looks at the bytes.
//!
//! What this file keeps true: sending threads splice, or read and send, as the product's do; the receiver
//! takes the streams on one executor into aligned buffers and writes past the page cache with as
//! many writes in flight; the clock stops after the sync.

use super::CopyError;
use crate::cpu;
use crate::raw::{Aligned, CHUNK_BYTES, open, reserved};
use futures::io::AsyncReadExt as _;
use glommio::io::{DmaFile, OpenOptions};
use glommio::net::TcpStream as Inward;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Bytes that one stream sends before it is the next one's turn, as in the product.
const RANGE_BYTES: u64 = 4 << 20;
/// Writes in flight, as in the product.
const WRITES: usize = 8;

/// How the bytes get from the file into the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// splice(2) through a pipe.
    Splice,
    /// pread(2) and send(2).
    ReadSend,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub(super) bytes_per_s: f64,
    /// Processor time a GiB.
    pub(super) source_cpu: f64,
    pub(super) target_cpu: f64,
}

/// Ranges of one stream.
fn ranges(stream: usize, streams: usize, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let begin = stream as u64 * RANGE_BYTES;
    (begin..bytes)
        .step_by(streams * RANGE_BYTES as usize)
        .map(move |at| (at, RANGE_BYTES.min(bytes - at)))
}

enum Sender {
    Splice { read: OwnedFd, write: OwnedFd },
    ReadSend(Aligned),
}

impl Sender {
    fn new(way: Way) -> io::Result<Self> {
        if way == Way::ReadSend {
            return Ok(Self::ReadSend(Aligned::new()));
        }
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let size = i32::try_from(CHUNK_BYTES).map_err(io::Error::other)?;
        fcntl(&write, FcntlArg::F_SETPIPE_SZ(size))?;
        Ok(Self::Splice { read, write })
    }

    fn send(&mut self, file: &File, at: u64, len: usize, mut out: &TcpStream) -> io::Result<()> {
        match self {
            Self::ReadSend(buffer) => {
                let bytes = &mut buffer.bytes()[..len];
                file.read_exact_at(bytes, at)?;
                out.write_all(bytes)
            }
            Self::Splice { read, write } => {
                let mut from = i64::try_from(at).map_err(io::Error::other)?;
                let end = from + len as i64;
                while from < end {
                    let want = (end - from) as usize;
                    let flags = SpliceFFlags::SPLICE_F_MOVE;
                    let got = splice(file, Some(&mut from), write.as_fd(), None, want, flags)?;
                    let mut left = got;
                    while left > 0 {
                        let flags = flags | SpliceFFlags::SPLICE_F_MORE;
                        left -= splice(read.as_fd(), None, out.as_fd(), None, left, flags)?;
                    }
                    if got == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(())
            }
        }
    }
}

/// Sends the ranges of one stream; the processor time that took.
fn send(
    file: &File,
    out: &TcpStream,
    way: Way,
    of: impl Iterator<Item = (u64, u64)>,
) -> io::Result<f64> {
    let before = cpu::thread();
    out.set_nodelay(true)?;
    let mut sender = Sender::new(way)?;
    for (begin, len) in of {
        for at in (begin..begin + len).step_by(CHUNK_BYTES) {
            let len = (begin + len - at).min(CHUNK_BYTES as u64) as usize;
            sender.send(file, at, len, out)?;
        }
    }
    out.shutdown(std::net::Shutdown::Write)?;
    Ok(cpu::thread() - before)
}

/// Receives one stream and writes it, with some of the writes in flight.
async fn receive(
    mut inward: Inward,
    file: Rc<DmaFile>,
    in_flight: usize,
    of: impl Iterator<Item = (u64, u64)>,
) -> io::Result<()> {
    let mut pending: VecDeque<glommio::Task<io::Result<()>>> = VecDeque::new();
    for (begin, len) in of {
        for at in (begin..begin + len).step_by(CHUNK_BYTES) {
            let len = (begin + len - at).min(CHUNK_BYTES as u64) as usize;
            let mut buffer = glommio::allocate_dma_buffer(len);
            inward.read_exact(buffer.as_bytes_mut()).await?;
            if pending.len() >= in_flight
                && let Some(oldest) = pending.pop_front()
            {
                oldest.await?;
            }
            let file = file.clone();
            pending.push_back(glommio::spawn_local(async move {
                let written = file.write_rc_at(Rc::new(buffer), at).await;
                written.map(drop).map_err(system)
            }));
        }
    }
    for write in pending {
        write.await?;
    }
    Ok(())
}

fn system(error: glommio::GlommioError<()>) -> io::Error {
    io::Error::other(error.to_string())
}

/// Copies `bytes` of `from` to `to`, which is removed again.
pub(super) async fn copy(
    from: &Path,
    to: &Path,
    bytes: u64,
    streams: usize,
    way: Way,
) -> Result<Copied, CopyError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| CopyError::Raw { path, error }
    };
    let file = open(from, false).map_err(at(from))?;
    reserved(to, bytes).map_err(at(to))?;
    let target = OpenOptions::new().read(true).write(true).dma_open(to).await;
    let target = Rc::new(target.map_err(|error| at(to)(system(error)))?);
    let (used, began) = (cpu::own(), Instant::now());
    let (receivers, senders) = start(file, &target, bytes, streams, way).map_err(at(to))?;
    for receiver in receivers {
        receiver.await.map_err(at(to))?;
    }
    let synced = target.fdatasync().await;
    let took = began.elapsed().as_secs_f64();
    let mut source = 0.0;
    for sender in senders {
        let joined = sender.join();
        let sent = joined.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")));
        source += sent.map_err(at(from))?;
    }
    synced.map_err(|error| at(to)(system(error)))?;
    std::fs::remove_file(to).map_err(at(to))?;
    let gib = bytes as f64 / f64::from(1 << 30);
    Ok(Copied {
        bytes_per_s: bytes as f64 / took,
        source_cpu: source / gib,
        target_cpu: (cpu::own() - used - source).max(0.0) / gib,
    })
}

type Receivers = Vec<glommio::Task<io::Result<()>>>;
type Senders = Vec<std::thread::JoinHandle<io::Result<f64>>>;

fn start(
    file: File,
    target: &Rc<DmaFile>,
    bytes: u64,
    streams: usize,
    way: Way,
) -> io::Result<(Receivers, Senders)> {
    use std::os::fd::{FromRawFd as _, IntoRawFd as _};
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for stream in 0..streams {
        let inward = TcpStream::connect(listener.local_addr()?)?;
        let (out, _) = listener.accept()?;
        inward.set_nonblocking(true)?;
        // SAFETY: the descriptor is a connected socket that nobody else owns from here on.
        let inward = unsafe { Inward::from_raw_fd(inward.into_raw_fd()) };
        let of = ranges(stream, streams, bytes);
        let in_flight = (WRITES / streams).max(1);
        let received = receive(inward, target.clone(), in_flight, of);
        receivers.push(glommio::spawn_local(received));
        let file = file.try_clone()?;
        let thread = std::thread::Builder::new().name("bare-sender".into());
        senders.push(thread.spawn(move || send(&file, &out, way, ranges(stream, streams, bytes)))?);
    }
    Ok((receivers, senders))
}
