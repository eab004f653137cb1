//! Several pieces of memory that lie behind one another in a file, written by one request.
//!
//! A group of large batches is a dozen pieces. The runtime writes one piece a request; each costs the executor a task, a
//! walk through the file system and a completion, and a group that took several requests a sync of its own. So an
//! executor has a ring beside the runtime's for these: `IORING_OP_WRITEV`, told to the runtime through an eventfd.
//!
//! What this file keeps true: memory that the kernel may still read is held by the ring until the
//! completion is there, whoever stops waiting, and the ring does not end before; requests under way are bounded; without a ring
//! (an old kernel, no memory for it) the caller is told, and writes piece by piece.

use crate::limits::{GATHER_DEPTH, GATHER_END_LOOKS, GATHER_PIECES_MAX};
use futures::channel::oneshot;
use glommio::io::{BufferedFile, DmaBuffer};
use io_uring::{IoUring, opcode, types};
use nix::libc::iovec;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Bytes of an eventfd's counter.
const COUNTER_BYTES: usize = 8;
/// How often completions are looked for where nothing tells of them.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The ring of one executor.
struct Gather {
    ring: RefCell<IoUring>,
    under_way: RefCell<Vec<Option<UnderWay>>>,
    /// The kernel refused a request, which stands in the ring still: the ring is not entered any more.
    refused: Cell<bool>,
}

/// What the kernel reads from, and who waits.
struct UnderWay {
    /// Points into the buffers.
    pieces: Vec<iovec>,
    buffers: Vec<Rc<DmaBuffer>>,
    done: oneshot::Sender<io::Result<usize>>,
}

thread_local! {
    /// The ring of the executor with this number; none where it could not be made. A thread may run one executor after the other.
    static GATHER: RefCell<Option<(usize, Option<Rc<Gather>>)>> = const { RefCell::new(None) };
}

/// Writes the buffers one behind the other from `pos` on, and says how many bytes were written. The file, the position and
/// all lengths are as for one aligned write. `None`: there is no ring, or no room in it, or there are too many buffers, and
/// nothing was done.
///
/// Dropping the future does not end the write.
pub(super) async fn write(
    file: RawFd,
    buffers: &[Rc<DmaBuffer>],
    pos: u64,
) -> Option<io::Result<usize>> {
    if buffers.len() > GATHER_PIECES_MAX {
        return None;
    }
    let gather = of_executor()?;
    let done = gather.start(file, buffers, pos)?;
    drop(gather);
    // Whoever reaps ends with the executor, and this future with it.
    Some(
        done.await
            .unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into())),
    )
}

fn of_executor() -> Option<Rc<Gather>> {
    let id = glommio::executor().id();
    GATHER.with_borrow_mut(|gather| {
        if let Some((of, ring)) = gather
            && *of == id
        {
            return ring.clone();
        }
        let made = Gather::new()
            .inspect_err(|error| tracing::warn!(%error, "groups are written piece by piece"))
            .ok();
        *gather = Some((id, made.clone()));
        made
    })
}

impl Gather {
    fn new() -> io::Result<Rc<Self>> {
        // Without interrupts where the kernel can: the executor enters it often, and before it sleeps.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .build(GATHER_DEPTH)
            .or_else(|_| IoUring::new(GATHER_DEPTH))?;
        let events = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        ring.submitter().register_eventfd(events.as_raw_fd())?;
        let mut under_way = Vec::new();
        under_way.resize_with(GATHER_DEPTH as usize, || None);
        let gather = Rc::new(Self {
            ring: RefCell::new(ring),
            under_way: RefCell::new(under_way),
            refused: Cell::new(false),
        });
        let events = std::os::fd::OwnedFd::from(events).into_raw_fd();
        // SAFETY: an open descriptor that nobody else has from here on; the ring keeps its own reference.
        let events = unsafe { BufferedFile::from_raw_fd(events) };
        glommio::spawn_local(reap(Rc::downgrade(&gather), events)).detach();
        Ok(gather)
    }

    fn start(
        &self,
        file: RawFd,
        buffers: &[Rc<DmaBuffer>],
        pos: u64,
    ) -> Option<oneshot::Receiver<io::Result<usize>>> {
        if self.refused.get() {
            return None;
        }
        let mut under_way = self.under_way.borrow_mut();
        let at = under_way.iter().position(Option::is_none)?;
        let (done, receiver) = oneshot::channel();
        let buffers = buffers.to_vec();
        let pieces = buffers.iter().map(|buffer| iovec {
            iov_base: buffer.as_ptr().cast_mut().cast(),
            iov_len: buffer.len(),
        });
        let request = UnderWay {
            pieces: pieces.collect(),
            buffers,
            done,
        };
        let count = u32::try_from(request.pieces.len()).ok()?;
        let entry = opcode::Writev::new(types::Fd(file), request.pieces.as_ptr(), count)
            .offset(pos)
            .build()
            .user_data(at as u64);
        under_way[at] = Some(request);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the list of pieces and the buffers that it names are in `under_way` until the completion was
        // seen; nobody writes to a buffer that is shared.
        let pushed = unsafe { ring.submission().push(&entry) };
        assert!(
            pushed.is_ok(),
            "each request is handed over before the next"
        );
        let submitted = ring.submit();
        if matches!(submitted, Ok(1)) {
            return Some(receiver);
        }
        tracing::warn!(?submitted, "groups are written piece by piece");
        self.refused.set(true);
        under_way[at] = None;
        None
    }

    /// Takes notice of what is complete.
    fn drain(&self) {
        let mut ring = self.ring.borrow_mut();
        for completion in ring.completion() {
            let at = usize::try_from(completion.user_data()).expect("it was an index");
            let Some(request) = self.under_way.borrow_mut()[at].take() else {
                unreachable!("a request completes once");
            };
            // Whoever waits takes the memory back.
            drop((request.pieces, request.buffers));
            let result = completion.result();
            let _ = request.done.send(match usize::try_from(result) {
                Ok(written) => Ok(written),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            });
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.borrow().iter().all(Option::is_none)
    }
}

/// Tells whoever waits, until the ring is gone.
async fn reap(gather: Weak<Gather>, events: BufferedFile) {
    loop {
        let read = events.read_at(0, COUNTER_BYTES).await;
        let Some(gather) = gather.upgrade() else {
            return;
        };
        gather.drain();
        let Err(error) = read else {
            continue;
        };
        tracing::error!(%error, "groups are written piece by piece: nothing tells of completions");
        gather.refused.set(true);
        while !gather.is_idle() {
            glommio::timer::sleep(LOOK_EVERY).await;
            gather.drain();
        }
        return;
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        // Whoever read that is gone, or about to go.
        let _ = self.ring.get_mut().submitter().unregister_eventfd();
        // Not by entering the ring: a request that was refused would go with it.
        for _ in 0..GATHER_END_LOOKS {
            self.drain();
            if self.is_idle() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // A disk that does not answer: the kernel may read that memory for as long as the process lives.
        tracing::error!("a write has not ended with its executor");
        std::mem::forget(self.under_way.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TRIM_BLOCK_BYTES;
    use glommio::LocalExecutorBuilder;
    use glommio::io::{DmaFile, OpenOptions};
    use std::path::Path;

    const PIECE: usize = TRIM_BLOCK_BYTES as usize;

    fn pieces(count: usize, salt: usize) -> Vec<Rc<DmaBuffer>> {
        let piece = |number: usize| {
            let mut buffer = glommio::allocate_dma_buffer_global(PIECE);
            buffer.as_bytes_mut().fill((salt + number) as u8);
            Rc::new(buffer)
        };
        (0..count).map(piece).collect()
    }

    async fn file(path: &Path) -> DmaFile {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.dma_open(path).await.unwrap()
    }

    fn run<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
        let executor = LocalExecutorBuilder::default().spawn(move || async move { work().await });
        executor.unwrap().join().unwrap()
    }

    fn place(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("narad-gather-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir.join(name)
    }

    #[test]
    fn many_writes_at_once_put_every_piece_in_its_place_and_give_the_memory_back() {
        let path = place("many");
        let at = path.clone();
        run(async move || {
            let file = Rc::new(file(&at).await);
            // More than there is room for: those are refused, and nothing is written for them.
            let count = GATHER_DEPTH as usize + 8;
            let writes = (0..count).map(async |number| {
                let buffers = pieces(3, number);
                let pos = (number * 3 * PIECE) as u64;
                let written = write(file.as_raw_fd(), &buffers, pos).await;
                let back = buffers.into_iter().all(|b| Rc::try_unwrap(b).is_ok());
                assert!(back, "a completed write holds no memory");
                written.map(|written| written.unwrap())
            });
            let ended = futures::future::join_all(writes).await;
            let whole = ended.iter().filter(|w| **w == Some(3 * PIECE)).count();
            assert_eq!((whole, count - whole), (GATHER_DEPTH as usize, 8));
            let too_many = pieces(GATHER_PIECES_MAX + 1, 0);
            assert!(write(file.as_raw_fd(), &too_many, 0).await.is_none());
            // There is room again.
            let again = write(file.as_raw_fd(), &pieces(3, 0), 0).await;
            assert_eq!(again.unwrap().unwrap(), 3 * PIECE);
        });
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), GATHER_DEPTH as usize * 3 * PIECE);
        for (at, piece) in bytes.chunks(PIECE).enumerate() {
            assert_eq!(piece, [(at / 3 + at % 3) as u8; PIECE]);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_system_s_error_is_told_and_a_second_executor_of_a_thread_has_a_ring_of_its_own() {
        let path = place("read-only");
        std::fs::write(&path, [0; 4096]).unwrap();
        let at = path.clone();
        let thread = std::thread::spawn(move || {
            for _ in 0..2 {
                let executor = LocalExecutorBuilder::default().make().unwrap();
                executor.run(async {
                    let file = DmaFile::open(&at).await.unwrap();
                    let error = write(file.as_raw_fd(), &pieces(2, 0), 0).await;
                    let error = error.unwrap().unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(nix::libc::EBADF));
                });
            }
        });
        thread.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_write_that_nobody_waits_for_any_more_ends_before_its_memory_does() {
        let path = place("dropped");
        let at = path.clone();
        run(async move || {
            let file = file(&at).await;
            let buffers = pieces(64, 7);
            let held = Rc::downgrade(&buffers[0]);
            let mut waiting = Box::pin(write(file.as_raw_fd(), &buffers, 0));
            assert!(futures::poll!(&mut waiting).is_pending());
            drop(waiting);
            drop(buffers);
            assert!(held.upgrade().is_some(), "the ring holds it");
            file.close().await.unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap()[63 * PIECE..], vec![70; PIECE]);
        std::fs::remove_file(path).unwrap();
    }
}
