//! The measure: a plain io_uring loop on an O_DIRECT file, with nothing in it but requests.
//!
//! What this file keeps true: every request is whole or the run fails; a buffer outlives its requests,
//! because every call waits for all that it has submitted before it returns, failed or not.

use io_uring::{IoUring, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Requests in flight at once, at most.
pub const RING_ENTRIES: u32 = 64;
/// Alignment of buffers and positions: the largest logical block of any disk.
pub const ALIGN: usize = 4096;
/// Written at once when space is prepared.
const FILL_BYTES: usize = 1 << 20;

/// In which state the space is that a loop writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Reserved with the file's length, never written.
    Preallocated,
    /// Written before, and synced.
    Written,
}

/// Bytes at an aligned address.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    /// `len` bytes with a pattern that no disk takes for zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes: Vec<u8> = (0..len + ALIGN).map(|i| (i % 251) as u8).collect();
        let from = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, from, len }
    }

    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

/// An O_DIRECT file and a ring of its own.
pub struct RawFile {
    file: File,
    ring: IoUring,
}

impl RawFile {
    /// Makes a file of `len` bytes whose space is in this state.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, space: Space, len: u64) -> io::Result<Self> {
        let mut raw = Self::open_with(path, true)?;
        nix::fcntl::fallocate(
            &raw.file,
            nix::fcntl::FallocateFlags::empty(),
            0,
            i64::try_from(len).map_err(io::Error::other)?,
        )?;
        if space == Space::Written {
            let fill = Aligned::new(FILL_BYTES);
            let mut at = 0;
            while at < len {
                let part = (len - at).min(FILL_BYTES as u64) as usize;
                raw.write_at_once(&[(&fill.get()[..part], at)])?;
                at += part as u64;
            }
        }
        raw.file.sync_all()?;
        Ok(raw)
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .custom_flags(nix::libc::O_DIRECT)
            .open(path)?;
        Ok(Self {
            file,
            ring: IoUring::new(RING_ENTRIES)?,
        })
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.file.as_raw_fd())
    }

    /// Writes all pieces at once and waits for all.
    ///
    /// # Errors
    /// The system's; a short write is one.
    ///
    /// # Panics
    /// With more pieces than [`RING_ENTRIES`].
    pub fn write_at_once(&mut self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        assert!(pieces.len() <= RING_ENTRIES as usize, "more than the ring");
        let fd = self.fd();
        let requests = pieces.iter().map(|(bytes, at)| {
            let entry = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(*at);
            (entry.build(), bytes.len() as i32)
        });
        let requests: Vec<_> = requests.collect();
        // SAFETY: the pieces are borrowed until this function returns, and `submit` waits for every
        // request before it does.
        unsafe { submit(&mut self.ring, &requests) }
    }

    /// Makes what was written durable (fdatasync).
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&mut self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC);
        // SAFETY: the request refers to no memory.
        unsafe { submit(&mut self.ring, &[(entry.build(), 0)]) }
    }

    /// Reads `len` bytes from the start, with one request in flight for each buffer at any time.
    ///
    /// # Errors
    /// The system's; a short read is one.
    ///
    /// # Panics
    /// With more buffers than [`RING_ENTRIES`].
    pub fn read_through(&mut self, len: u64, buffers: &mut [Aligned]) -> io::Result<()> {
        let depth = buffers.len();
        assert!(depth <= RING_ENTRIES as usize, "more than the ring");
        let mut next = 0_u64;
        let (mut flying, mut failed) = (0_usize, None);
        let mut free: Vec<usize> = (0..depth).collect();
        while flying > 0 || (next < len && failed.is_none()) {
            while failed.is_none() && next < len {
                let Some(slot) = free.pop() else { break };
                let part = (len - next).min(buffers[slot].len as u64) as usize;
                let target = &mut buffers[slot].get_mut()[..part];
                let entry = opcode::Read::new(self.fd(), target.as_mut_ptr(), part as u32)
                    .offset(next)
                    .build()
                    .user_data((slot as u64) << 32 | part as u64);
                // SAFETY: a slot's buffer is used by one request at a time, and the loop ends only
                // when no request is in flight.
                unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
                next += part as u64;
                flying += 1;
            }
            wait(&self.ring, 1);
            for done in self.ring.completion() {
                flying -= 1;
                let (slot, part) = (done.user_data() >> 32, done.user_data() as u32);
                free.push(slot as usize);
                if let Err(error) = whole(done.result(), part as i32) {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Submits requests and waits for all of them; each has to return its number.
///
/// # Safety
/// Memory that the requests refer to lives until this returns.
unsafe fn submit(ring: &mut IoUring, requests: &[(squeue::Entry, i32)]) -> io::Result<()> {
    for (at, (entry, _)) in requests.iter().enumerate() {
        let entry = entry.clone().user_data(at as u64);
        // SAFETY: the caller's promise; every one pushed is waited for below.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    }
    let (mut left, mut failed) = (requests.len(), None);
    while left > 0 {
        wait(ring, left);
        for done in ring.completion() {
            left -= 1;
            let wanted = requests[done.user_data() as usize].1;
            if let Err(error) = whole(done.result(), wanted) {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Submits, and waits for `count` requests.
fn wait(ring: &IoUring, count: usize) {
    while let Err(error) = ring.submit_and_wait(count) {
        match error.kind() {
            io::ErrorKind::Interrupted
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::WouldBlock => {}
            _ => {
                // The kernel may still write to buffers of requests in flight: nothing may be freed.
                eprintln!("narad-bench: io_uring does not answer any more: {error}");
                std::process::abort();
            }
        }
    }
}

fn whole(result: i32, wanted: i32) -> io::Result<()> {
    match result {
        n if n == wanted => Ok(()),
        n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
        n => Err(io::Error::other(format!(
            "only {n} of {wanted} bytes were transferred"
        ))),
    }
}
