//! The only door to the disk: O_DIRECT files on io_uring, and small files and directories on the
//! executor's blocking thread ([`names`]).
//!
//! What this file keeps true: the executor is never blocked; a write is whole or an error; every
//! operation can be made to fail, and be recorded, by the fault layer in test builds.

use crate::error::StorageError;
use crate::fault::{self, Op};
use crate::files::Counted;
use crate::limits::{
    IO_CHUNK_BYTES, MIN_BLOCK_BYTES, SPARE_BUFFERS, SPARE_MIN_BYTES, TRIM_BLOCK_BYTES,
};
use futures::future::join_all;
use glommio::GlommioError;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions, ReadResult};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

mod gather;
mod names;

pub(crate) use names::{
    available_bytes, create_dir, exists, list_dir, list_dir_now, read_small, read_small_now,
    remove_file, rename, rename_if, replace_file, sync_dir, sync_parent,
};

type Result<T> = std::result::Result<T, StorageError>;

/// Shortest wait that is one.
const SUBMIT_WAIT: Duration = Duration::from_micros(1);

/// Lets O_DIRECT reads work on this executor; call it before anything else of this crate, on every
/// executor, with a directory on the disk that will be used. On some disks the runtime decides from
/// a read of an empty file that polling for completions is supported; a file with content shows it
/// the truth.
///
/// # Errors
/// When no file can be written in `dir`.
pub async fn prepare_executor(dir: &Path) -> Result<()> {
    let path = dir.join(format!(
        ".probe-{}-{}",
        std::process::id(),
        glommio::executor().id()
    ));
    let file = path.clone();
    blocking("make directory", dir, {
        let dir = dir.to_path_buf();
        move || fs::create_dir_all(dir)
    })
    .await?;
    blocking("write", &path, move || {
        let mut out = fs::File::create(file)?;
        out.write_all(&[0x5a; 4096])?;
        out.sync_all()
    })
    .await?;
    let probe = DmaFile::open(&path)
        .await
        .map_err(|e| StorageError::io("open", &path, system_error(e)))?;
    let _ = probe.close().await;
    remove_file(&path).await
}

/// Keeps the system's error number, which the runtime's own conversion loses.
pub(crate) fn system_error(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::EnhancedIoError { source, .. } => source,
        other => other.into(),
    }
}

/// Runs `work` on the blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    op: &'static str,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    glommio::executor()
        .spawn_blocking(work)
        .await
        .map_err(|e| StorageError::io(op, path, e))
}

/// An open O_DIRECT file, for reading and writing.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: DmaFile,
    /// Every write is durable when it ends.
    synced: bool,
    /// The same file opened so that a write is durable when it ends; opened with the first such write.
    durable: RefCell<Option<(Rc<DmaFile>, Counted)>>,
    path: PathBuf,
    _counted: Counted,
}

impl DiskFile {
    /// Opens an existing file.
    pub(crate) async fn open(path: &Path) -> Result<Rc<Self>> {
        Self::open_with(path, false, false).await
    }

    /// Makes the file, or opens it when it exists. Its directory is not synced.
    pub(crate) async fn create(path: &Path) -> Result<Rc<Self>> {
        Self::open_with(path, true, false).await
    }

    /// As [`Self::create`], for a small file of which every write is one with [`Self::write_durably`].
    pub(crate) async fn create_synced(path: &Path) -> Result<Rc<Self>> {
        Self::open_with(path, true, true).await
    }

    async fn open_with(path: &Path, create: bool, synced: bool) -> Result<Rc<Self>> {
        let fail = |e| StorageError::io("open", path, e);
        fault::before(&Op::Open { path, create }).map_err(fail)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .mode(0o640)
            .custom_flags(if synced { nix::libc::O_DSYNC } else { 0 })
            .dma_open(path)
            .await
            .map_err(|e| fail(system_error(e)))?;
        fault::after(&Op::Open { path, create });
        let path = path.to_path_buf();
        Ok(Rc::new(Self {
            file,
            synced,
            durable: RefCell::default(),
            path,
            _counted: Counted::new(),
        }))
    }

    /// The file as one whose writes are durable when they end, unless it cannot be had.
    async fn durable(&self) -> Option<Rc<DmaFile>> {
        if let Some((file, _)) = &*self.durable.borrow() {
            return Some(file.clone());
        }
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(nix::libc::O_DSYNC)
            .dma_open(&self.path)
            .await;
        match opened {
            Ok(file) => {
                let file = Rc::new(file);
                self.durable.replace(Some((file.clone(), Counted::new())));
                Some(file)
            }
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "synced in two steps");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes to which positions and lengths of writes must be aligned.
    pub(crate) fn block(&self) -> u64 {
        self.file
            .alignment()
            .clamp(MIN_BLOCK_BYTES, TRIM_BLOCK_BYTES)
    }

    /// Writes the whole buffer at `pos`; both must be aligned.
    pub(crate) async fn write(&self, buffer: Rc<DmaBuffer>, pos: u64) -> Result<()> {
        self.write_to(&self.file, buffer, pos).await
    }

    /// As [`Self::write`], then [`Self::sync`], in one request: the kernel hands a sync to a thread of its
    /// own, and an executor is woken once instead of twice. A disk that can write through its cache may do
    /// just that, so what was written before counts as durable only if it changed the file's metadata, as
    /// filling reserved space does.
    pub(crate) async fn write_durably(&self, buffer: Rc<DmaBuffer>, pos: u64) -> Result<()> {
        if self.synced {
            self.write_to(&self.file, buffer, pos).await?;
        } else if let Some(file) = self.durable().await {
            self.write_to(&file, buffer, pos).await?;
        } else {
            self.write(buffer, pos).await?;
            return self.sync().await;
        }
        self.told_as_sync()
    }

    async fn write_to(&self, file: &DmaFile, buffer: Rc<DmaBuffer>, pos: u64) -> Result<()> {
        let op = self.op_of(&buffer, pos);
        fault::before(&op).map_err(|e| StorageError::io("write", &self.path, e))?;
        self.write_begun(file, &buffer, pos).await
    }

    /// As [`Self::write_to`], of which the fault layer knows already.
    async fn write_begun(&self, file: &DmaFile, buffer: &Rc<DmaBuffer>, pos: u64) -> Result<()> {
        let written = file
            .write_rc_at(buffer.clone(), pos)
            .await
            .map_err(|e| StorageError::io("write", &self.path, system_error(e)))?;
        self.whole(written, buffer.len(), pos)?;
        fault::after(&self.op_of(buffer, pos));
        Ok(())
    }

    fn op_of<'a>(&'a self, buffer: &'a DmaBuffer, pos: u64) -> Op<'a> {
        Op::Write {
            path: &self.path,
            pos,
            bytes: buffer.as_bytes(),
        }
    }

    fn whole(&self, written: usize, len: usize, pos: u64) -> Result<()> {
        if written == len {
            return Ok(());
        }
        let short = format!("only {written} of {len} bytes at {pos} were written");
        let short = io::Error::new(io::ErrorKind::WriteZero, short);
        Err(StorageError::io("write", &self.path, short))
    }

    /// Writes the buffers, each as for [`Self::write`], one behind the other from `pos` on; durably or not yet. In one
    /// request where that is possible. When this returns, failed or not, nothing of it is under way.
    pub(crate) async fn write_together(
        &self,
        buffers: &[Rc<DmaBuffer>],
        pos: u64,
        durably: bool,
    ) -> Result<()> {
        let begins = buffers.iter().scan(pos, |at, buffer| {
            *at += buffer.len() as u64;
            Some(*at - buffer.len() as u64)
        });
        let pieces: Vec<_> = buffers.iter().zip(begins).collect();
        let file = match durably && !self.synced {
            true => self.durable().await,
            false => None,
        };
        let durable = self.synced || file.is_some();
        let fd = file.as_deref().unwrap_or(&self.file).as_raw_fd();
        for (buffer, at) in &pieces {
            fault::before(&self.op_of(buffer, *at))
                .map_err(|e| StorageError::io("write", &self.path, e))?;
        }
        let Some(written) = gather::write(fd, buffers, pos).await else {
            let one_by_one = pieces.iter();
            let writes = one_by_one.map(|(b, at)| self.write_begun(&self.file, b, *at));
            let ended = join_all(writes).await;
            ended.into_iter().collect::<Result<()>>()?;
            return if durably { self.sync().await } else { Ok(()) };
        };
        let written = written.map_err(|e| StorageError::io("write", &self.path, e))?;
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        self.whole(written, len, pos)?;
        for (buffer, at) in &pieces {
            fault::after(&self.op_of(buffer, *at));
        }
        if !durably {
            return Ok(());
        }
        if !durable {
            return self.sync().await;
        }
        self.told_as_sync()
    }

    /// For the fault layer: what was written last was durable with it.
    fn told_as_sync(&self) -> Result<()> {
        let op = Op::Sync { path: &self.path };
        fault::before(&op).map_err(|e| StorageError::io("sync", &self.path, e))?;
        fault::after(&op);
        Ok(())
    }

    /// Reads up to `len` bytes at `pos` (fewer at the end of the file); both must be aligned.
    pub(crate) async fn read(&self, pos: u64, len: usize) -> Result<ReadResult> {
        let op = Op::Read {
            path: &self.path,
            pos,
            len,
        };
        let fail = |e| StorageError::io("read", &self.path, e);
        fault::before(&op).map_err(fail)?;
        let out = self
            .file
            .read_at_aligned(pos, len)
            .await
            .map_err(|e| fail(system_error(e)))?;
        fault::after(&op);
        Ok(out)
    }

    /// Makes everything written so far durable.
    pub(crate) async fn sync(&self) -> Result<()> {
        let op = Op::Sync { path: &self.path };
        let fail = |e| StorageError::io("sync", &self.path, e);
        fault::before(&op).map_err(fail)?;
        self.file
            .fdatasync()
            .await
            .map_err(|e| fail(system_error(e)))?;
        fault::after(&op);
        Ok(())
    }

    /// Reserves space from the start up to `len`; the file becomes at least that long.
    pub(crate) async fn allocate(&self, len: u64) -> Result<()> {
        let op = Op::Allocate {
            path: &self.path,
            len,
        };
        let fail = |e| StorageError::io("reserve space for", &self.path, e);
        fault::before(&op).map_err(fail)?;
        self.file
            .pre_allocate(len, false)
            .await
            .map_err(|e| fail(system_error(e)))?;
        fault::after(&op);
        Ok(())
    }

    /// Cuts or extends the file to `len`.
    pub(crate) async fn truncate(&self, len: u64) -> Result<()> {
        let op = Op::Truncate {
            path: &self.path,
            len,
        };
        let fail = |e| StorageError::io("truncate", &self.path, e);
        fault::before(&op).map_err(fail)?;
        self.file
            .truncate(len)
            .await
            .map_err(|e| fail(system_error(e)))?;
        fault::after(&op);
        Ok(())
    }

    /// Length of the file.
    pub(crate) async fn len(&self) -> Result<u64> {
        self.file
            .file_size()
            .await
            .map_err(|e| StorageError::io("look at", &self.path, system_error(e)))
    }
}

/// An aligned buffer of `len` bytes whose content is undefined until written.
pub(crate) fn buffer(len: usize) -> DmaBuffer {
    if len > IO_CHUNK_BYTES {
        glommio::allocate_dma_buffer_global(len)
    } else {
        glommio::allocate_dma_buffer(len)
    }
}

thread_local! {
    static SPARE: RefCell<VecDeque<DmaBuffer>> = const { RefCell::new(VecDeque::new()) };
}

/// A buffer for a piece of a group; its content is undefined. Large ones are used again, since groups of
/// one size follow each other: memory that the system has just given out is slow to write to.
pub(crate) fn write_buffer(len: usize) -> DmaBuffer {
    if len < SPARE_MIN_BYTES {
        return buffer(len);
    }
    SPARE
        .with_borrow_mut(|spare| {
            // The one used last: the processor still has some of it.
            let at = spare.iter().rposition(|b| b.len() == len)?;
            spare.remove(at)
        })
        .unwrap_or_else(|| glommio::allocate_dma_buffer_global(len))
}

/// Gives a buffer back that nobody writes from any more.
pub(crate) fn recycle(buffer: Rc<DmaBuffer>) {
    let Ok(buffer) = Rc::try_unwrap(buffer) else {
        return;
    };
    if buffer.len() < SPARE_MIN_BYTES {
        return;
    }
    SPARE.with_borrow_mut(|spare| {
        while spare.len() >= SPARE_BUFFERS {
            spare.pop_front();
        }
        spare.push_back(buffer);
    });
}

/// Lets requests that were made reach the disk now; otherwise they go when the executor has nothing else
/// to do.
pub(crate) async fn submit() {
    // The runtime hands requests over before it looks at timers; yielding alone does not make it.
    glommio::timer::sleep(SUBMIT_WAIT).await;
}

/// Writes these bytes at the start of the file, and zeros behind them up to `room` or the next block, durably;
/// returns where that ends.
pub(crate) async fn write_whole(file: &DiskFile, bytes: &[u8], room: u64) -> Result<u64> {
    let block = file.block();
    let end = room.max(bytes.len() as u64).next_multiple_of(block);
    if end <= IO_CHUNK_BYTES as u64 {
        file.write_durably(padded(bytes, end as usize), 0).await?;
        return Ok(end);
    }
    let mut at = 0;
    for piece in bytes.chunks(IO_CHUNK_BYTES) {
        file.write(buffer_of(piece, block), at).await?;
        at += (piece.len() as u64).next_multiple_of(block);
    }
    while at < room {
        let zeros = (room - at).min(IO_CHUNK_BYTES as u64);
        let len = (zeros as usize).next_multiple_of(block as usize);
        file.write(buffer_of(&vec![0; len], block), at).await?;
        at += len as u64;
    }
    file.sync().await?;
    Ok(at)
}

/// A buffer with these bytes, padded with zeros to a multiple of `block`.
pub(crate) fn buffer_of(bytes: &[u8], block: u64) -> Rc<DmaBuffer> {
    padded(bytes, bytes.len().next_multiple_of(block as usize))
}

/// A buffer of `len` bytes: these, and zeros behind them.
fn padded(bytes: &[u8], len: usize) -> Rc<DmaBuffer> {
    let mut out = buffer(len);
    let target = out.as_bytes_mut();
    target[..bytes.len()].copy_from_slice(bytes);
    target[bytes.len()..].fill(0);
    Rc::new(out)
}
