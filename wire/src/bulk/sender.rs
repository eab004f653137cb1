//! The two ways in which a range gets from an O_DIRECT file into a socket.
//!
//! What this file keeps true: both leave the page cache alone, both read at most one chunk at a
//! time, and both send exactly the bytes of the range or say how many they sent. A pipe that still
//! holds bytes is never used again.

use crate::limits;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// How ranges are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPath {
    /// splice(2) from the file through a pipe into the socket: the bytes are not copied by the CPU.
    Splice,
    /// pread(2) with O_DIRECT into an aligned buffer, then send(2).
    PreadSend,
}

impl CopyPath {
    /// Name for logs, metrics and the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Splice => "splice",
            Self::PreadSend => "read-send",
        }
    }
}

/// Opens a segment for reading past the page cache.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT | nix::libc::O_CLOEXEC)
        .open(path)
}

/// A pipe with room for one chunk, or for less where the kernel refuses that much.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

/// Pipes that are in no use, kept for the next stream: a user may own only so many large ones.
#[derive(Debug, Default)]
pub(super) struct PipePool {
    idle: Mutex<Vec<Pipe>>,
    warned: AtomicBool,
}

impl PipePool {
    pub(super) fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.lock().pop() {
            return Ok(pipe);
        }
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let mut want = limits::BULK_CHUNK_BYTES;
        let capacity = loop {
            let size = i32::try_from(want).expect("a chunk fits in 31 bits");
            match fcntl(&write, FcntlArg::F_SETPIPE_SZ(size)) {
                Ok(got) => break usize::try_from(got).unwrap_or(want).min(want),
                Err(_) if want > limits::PIPE_MIN_BYTES => want /= 2,
                // Whatever a new pipe has: two pages at the least, even past the user's limit.
                Err(_) => {
                    let got = fcntl(&write, FcntlArg::F_GETPIPE_SZ)?;
                    break usize::try_from(got).unwrap_or(limits::PIPE_MIN_BYTES);
                }
            }
        };
        if capacity < limits::BULK_CHUNK_BYTES && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                capacity_bytes = capacity,
                wanted_bytes = limits::BULK_CHUNK_BYTES,
                "the user's limit for pipes is reached: copies out of this node run slower; raise \
                 fs.pipe-user-pages-soft or fs.pipe-max-size"
            );
        }
        Ok(Pipe {
            read,
            write,
            capacity,
        })
    }

    /// Gives an empty pipe back.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut idle = self.lock();
        if idle.len() < limits::BULK_MAX_STREAMS {
            idle.push(pipe);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Pipe>> {
        self.idle.lock().expect("no holder of this lock can panic")
    }
}

/// Size and alignment of a huge page, in bytes, where there is one.
const HUGE_BYTES: usize = 2 << 20;
/// Room for one huge page, wherever the mapping begins.
const MAP_BYTES: usize = 2 * HUGE_BYTES;

const _: () = assert!(limits::BULK_CHUNK_BYTES <= HUGE_BYTES);

/// A buffer that O_DIRECT can read into, on one huge page where the system gives one: the kernel then
/// looks up one page a read and a send and not 256 small ones, which were half of what both cost.
pub(super) struct AlignedBuf {
    map: NonNull<nix::libc::c_void>,
    at: NonNull<u8>,
}

impl AlignedBuf {
    fn new() -> io::Result<Self> {
        use nix::libc;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, wherever the kernel likes; nothing else is touched.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), MAP_BYTES, prot, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let begin = map.cast::<u8>();
        // SAFETY: less than a huge page further on, and the mapping has two.
        let at = unsafe { begin.add(begin.align_offset(HUGE_BYTES)) };
        // Before the first touch. Where it is refused the pages are small, and all else is the same.
        // SAFETY: one huge page from `at` on is inside the mapping.
        unsafe { libc::madvise(at.cast(), HUGE_BYTES, libc::MADV_HUGEPAGE) };
        match (NonNull::new(map), NonNull::new(at)) {
            (Some(map), Some(at)) => Ok(Self { map, at }),
            _ => unreachable!("nothing is mapped at zero"),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a chunk fits behind `at` in the mapping, which is zeros at first and borrowed through
        // `self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), limits::BULK_CHUNK_BYTES) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` at this length and not unmapped before; no borrow outlives `self`.
        unsafe { nix::libc::munmap(self.map.as_ptr(), MAP_BYTES) };
    }
}

// SAFETY: the buffer owns its memory and hands it out through `&mut self` only.
unsafe impl Send for AlignedBuf {}

/// What one stream sends through.
pub(super) enum Sender {
    Splice(Pipe),
    Pread(AlignedBuf),
}

impl Sender {
    pub(super) fn new(path: CopyPath, pipes: &PipePool) -> io::Result<Self> {
        Ok(match path {
            CopyPath::Splice => Self::Splice(pipes.take()?),
            CopyPath::PreadSend => Self::Pread(AlignedBuf::new()?),
        })
    }

    /// Bytes that one [`Sender::send`] moves at most.
    pub(super) fn chunk(&self) -> usize {
        match self {
            Self::Splice(pipe) => pipe.capacity.min(limits::BULK_CHUNK_BYTES),
            Self::Pread(_) => limits::BULK_CHUNK_BYTES,
        }
    }

    /// Sends at most `len` bytes from `from` on; `more`: others follow. What `turn` gives is held while the file is
    /// read, and not while the socket takes the bytes. Returns how many bytes, which may be fewer than asked for but
    /// are all sent.
    pub(super) fn send<T>(
        &mut self,
        file: &File,
        from: u64,
        len: usize,
        more: bool,
        socket: &TcpStream,
        turn: impl FnOnce() -> T,
    ) -> Result<usize, SendError> {
        let len = len.min(self.chunk());
        match self {
            Self::Splice(pipe) => splice_chunk(pipe, file, from, len, more, socket, turn),
            Self::Pread(buf) => {
                let bytes = &mut buf.bytes()[..len];
                let held = turn();
                let got = retry(|| file.read_at(bytes, from)).map_err(SendError::Read)?;
                drop(held);
                if got == 0 {
                    return Err(SendError::Read(io::ErrorKind::UnexpectedEof.into()));
                }
                let mut out = socket;
                out.write_all(&bytes[..got]).map_err(SendError::Socket)?;
                Ok(got)
            }
        }
    }

    /// Gives a pipe back after a stream that ended between two ranges.
    pub(super) fn recycle(self, pipes: &PipePool) {
        if let Self::Splice(pipe) = self {
            pipes.put(pipe);
        }
    }
}

/// Where a range broke off. After either, the stream is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("reading the segment: {0}")]
    Read(io::Error),
    #[error("sending: {0}")]
    Socket(io::Error),
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn splice_chunk<T>(
    pipe: &Pipe,
    file: &File,
    from: u64,
    len: usize,
    more: bool,
    socket: &TcpStream,
    turn: impl FnOnce() -> T,
) -> Result<usize, SendError> {
    let Ok(mut offset) = i64::try_from(from) else {
        return Err(SendError::Read(io::ErrorKind::InvalidInput.into()));
    };
    let flags = SpliceFFlags::SPLICE_F_MOVE;
    let held = turn();
    let (segment, to) = (file.as_fd(), pipe.write.as_fd());
    let got = retry(|| Ok(splice(segment, Some(&mut offset), to, None, len, flags)?))
        .map_err(SendError::Read)?;
    drop(held);
    if got == 0 {
        return Err(SendError::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    let flags = if more {
        flags | SpliceFFlags::SPLICE_F_MORE
    } else {
        flags
    };
    let mut left = got;
    while left > 0 {
        let (from, to) = (pipe.read.as_fd(), socket.as_fd());
        let sent = retry(|| Ok(splice(from, None, to, None, left, flags)?));
        let sent = sent.map_err(SendError::Socket)?;
        if sent == 0 {
            return Err(SendError::Socket(io::ErrorKind::WriteZero.into()));
        }
        left -= sent;
    }
    Ok(got)
}

/// Whether splice works on this kernel and on the file system of `dir`: a few real bytes go from a
/// file through a pipe into a socket and are compared.
pub(super) fn probe(dir: &Path, pipes: &PipePool) -> io::Result<()> {
    use std::io::Read;
    let path = dir.join(format!(".bulk-probe-{}", std::process::id()));
    let bytes: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    let result = (|| {
        let mut file = File::create(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let file = open_direct(&path)?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let out = TcpStream::connect(listener.local_addr()?)?;
        let (mut inward, _) = listener.accept()?;
        let pipe = pipes.take()?;
        for (from, more) in [(0, true), (4096, false)] {
            splice_chunk(&pipe, &file, from, 4096, more, &out, || ())
                .map_err(|error| io::Error::other(error.to_string()))?;
        }
        drop(out);
        let mut arrived = Vec::new();
        inward.read_to_end(&mut arrived)?;
        if arrived != bytes {
            return Err(io::Error::other("spliced bytes differ from the file's"));
        }
        pipes.put(pipe);
        Ok(())
    })();
    let removed = std::fs::remove_file(&path);
    result.and(removed)
}
