//! What the disk, the wire and the processor give by themselves.
//!
//! What this file keeps true: the disk is read and written past the page cache; written bytes are synced
//! before the clock stops; what is written is removed.

use crate::cpu;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::ptr::NonNull;
use std::time::Instant;

/// Bytes of one request.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// Requests that are under way at a time, to see what the disk can do.
const DEPTH: usize = 4;

/// A buffer that O_DIRECT takes, on one huge page where the system gives one, as the product's.
pub(crate) struct Aligned(NonNull<u8>);

/// One huge page.
const LAYOUT: Layout = match Layout::from_size_align(2 << 20, 2 << 20) {
    Ok(layout) => layout,
    Err(_) => panic!("a huge page is a valid allocation"),
};

const _: () = assert!(CHUNK_BYTES <= LAYOUT.size());

impl Aligned {
    pub(crate) fn new() -> Self {
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc(LAYOUT) };
        let at = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(LAYOUT));
        // SAFETY: the allocation is that long and aligned. Advice that is refused changes nothing; it comes
        // before the zeros, which are the first touch of memory that the system has just given out.
        unsafe {
            nix::libc::madvise(at.as_ptr().cast(), LAYOUT.size(), nix::libc::MADV_HUGEPAGE);
            at.as_ptr().write_bytes(0, LAYOUT.size());
        }
        Self(at)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is longer, was zeroed, and is borrowed through `self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), CHUNK_BYTES) }
    }
}

// SAFETY: the buffer owns its memory and hands it out through `&mut self` only.
unsafe impl Send for Aligned {}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and not freed before.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) }
    }
}

/// A file for O_DIRECT.
pub(crate) fn open(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .create(write)
        .custom_flags(nix::libc::O_DIRECT | nix::libc::O_CLOEXEC)
        .open(path)
}

/// A new file with its space reserved.
pub(crate) fn reserved(path: &Path, bytes: u64) -> io::Result<File> {
    let _ = std::fs::remove_file(path);
    let file = open(path, true)?;
    let len = i64::try_from(bytes).map_err(io::Error::other)?;
    nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, len)?;
    Ok(file)
}

/// Makes the file that the bare loops send.
pub(crate) fn source_file(path: &Path, bytes: u64) -> io::Result<()> {
    let file = reserved(path, bytes)?;
    let mut buffer = Aligned::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (0..bytes).step_by(CHUNK_BYTES) {
        for word in buffer.bytes().chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all_at(buffer.bytes(), at)?;
    }
    file.sync_all()
}

/// Bytes per second over all chunks of a file, by several threads that take turns.
fn by_chunks(
    bytes: u64,
    work: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
    end: impl FnOnce() -> io::Result<()>,
) -> io::Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..DEPTH)
            .map(|first| {
                let work = &work;
                scope.spawn(move || {
                    let mut buffer = Aligned::new();
                    let begin = (first * CHUNK_BYTES) as u64;
                    for at in (begin..bytes).step_by(DEPTH * CHUNK_BYTES) {
                        work(buffer.bytes(), at)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
        })
    })?;
    end()?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

/// Reading a file.
pub(crate) fn disk_read(path: &Path, bytes: u64) -> io::Result<f64> {
    let file = open(path, false)?;
    by_chunks(
        bytes,
        |buffer, at| file.read_exact_at(buffer, at),
        || Ok(()),
    )
}

/// Writing a file and syncing it.
pub(crate) fn disk_write(path: &Path, bytes: u64) -> io::Result<f64> {
    let file = reserved(path, bytes)?;
    let speed = by_chunks(
        bytes,
        |buffer, at| file.write_all_at(buffer, at),
        || file.sync_data(),
    );
    std::fs::remove_file(path)?;
    speed
}

/// Sending from memory into memory over loopback.
pub(crate) fn loopback(streams: usize, bytes: u64) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let each = bytes / streams as u64;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..streams {
            let mut out = TcpStream::connect(addr)?;
            let (mut inward, _) = listener.accept()?;
            threads.push(scope.spawn(move || {
                let mut buffer = Aligned::new();
                let mut left = each;
                while left > 0 {
                    let len = left.min(CHUNK_BYTES as u64) as usize;
                    out.write_all(&buffer.bytes()[..len])?;
                    left -= len as u64;
                }
                Ok(())
            }));
            threads.push(scope.spawn(move || {
                let mut buffer = Aligned::new();
                while inward.read(buffer.bytes())? > 0 {}
                Ok(())
            }));
        }
        threads.into_iter().try_for_each(|thread| {
            let joined: io::Result<()> = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")));
            joined
        })
    })?;
    Ok((each * streams as u64) as f64 / began.elapsed().as_secs_f64())
}

/// Seconds of processor time that the checksum of a GiB takes.
pub(crate) fn checksum() -> f64 {
    const PARTS: u32 = 256;
    let mut buffer = Aligned::new();
    buffer.bytes()[0] = 1;
    let before = cpu::thread();
    let mut sum = 0;
    for _ in 0..PARTS {
        sum = crc32c::crc32c_append(sum, buffer.bytes());
    }
    std::hint::black_box(sum);
    let gib = f64::from(PARTS) * CHUNK_BYTES as f64 / f64::from(1 << 30);
    (cpu::thread() - before) / gib
}
