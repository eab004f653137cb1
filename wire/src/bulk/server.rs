//! The sending side: an accept thread and a bounded number of serving threads.
//!
//! What this file keeps true: no executor ever waits for a disk or a socket of the bulk channel;
//! the threads run on any core that the process may use, not on the core of whoever started them;
//! every thread ends when the server is stopped.

use super::pacer::Pacer;
use super::reads::{ReadGate, Reading};
use super::sender::{CopyPath, PipePool, probe};
use super::serve::{refuse_busy, serve};
use super::session::SessionTable;
use crate::limits;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a [`BulkServer`] works.
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// A directory on the file system of the segments, for the probe.
    pub dir: PathBuf,
    /// The way to send; `None` probes whether splice works and takes the other way if not.
    pub path: Option<CopyPath>,
    /// Streams served at once, each by a thread; at most
    /// [`BULK_MAX_STREAMS`](crate::limits::BULK_MAX_STREAMS).
    pub max_streams: usize,
    /// A stream without a request, or whose receiver takes nothing, ends after this.
    pub idle: Duration,
}

impl BulkOptions {
    /// The defaults, for segments below `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            path: None,
            max_streams: limits::BULK_MAX_STREAMS,
            idle: Duration::from_millis(limits::BULK_IDLE_MS),
        }
    }
}

/// Counters of a [`BulkServer`], since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkStats {
    /// Bytes of segments sent.
    pub sent_bytes: u64,
    /// Ranges sent whole.
    pub ranges: u64,
    /// Requests refused.
    pub refused: u64,
    /// Ranges that broke off.
    pub interrupted: u64,
    /// Streams open now.
    pub streams: u64,
}

/// What the threads share.
pub(super) struct Shared {
    pub(super) sessions: Arc<SessionTable>,
    pub(super) path: CopyPath,
    pub(super) idle: Duration,
    pub(super) pipes: PipePool,
    pub(super) sent_bytes: AtomicU64,
    pub(super) ranges: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) interrupted: AtomicU64,
    stopping: AtomicBool,
    pacer: Pacer,
    reads: ReadGate,
    gives_way: AtomicBool,
    streams: Mutex<Streams>,
    max_streams: usize,
    cpus: CpuSet,
}

#[derive(Default)]
struct Streams {
    next: u64,
    open: HashMap<u64, TcpStream>,
    threads: HashMap<u64, JoinHandle<()>>,
}

impl Shared {
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits until the rate limit lets the next bytes through, at most `len`; returns how many.
    /// `inside`: they follow others of the same range.
    pub(super) fn pace(&self, len: usize, inside: bool) -> usize {
        let piece = self.pacer.quantum(len);
        self.pacer.pace(piece, inside, &self.stopping);
        piece
    }

    /// Bytes of one read, of `len` that are wanted.
    pub(super) fn piece(&self, len: usize) -> usize {
        self.reads.piece(len)
    }

    /// Waits until so many bytes more may be read from the disk; they are until the answer is dropped.
    pub(super) fn reading(&self, len: usize) -> Reading<'_> {
        self.reads.enter(len, &self.stopping)
    }

    /// Whether streams stand behind others that want the processor.
    pub(super) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams
            .lock()
            .expect("no holder of this lock can panic")
    }
}

/// The sending side of the bulk channel. Stop it with [`BulkServer::stop`]; dropping it stops it
/// as well.
pub struct BulkServer {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    accept: Option<JoinHandle<()>>,
}

impl BulkServer {
    /// Serves `listener` from now on.
    ///
    /// # Errors
    /// When the accept thread cannot be started.
    pub fn start(
        listener: TcpListener,
        sessions: Arc<SessionTable>,
        options: BulkOptions,
    ) -> io::Result<Self> {
        let pipes = PipePool::default();
        let path = options.path.unwrap_or_else(|| choose(&options, &pipes));
        // The main thread's mask: what the operator allowed, whatever executor calls this.
        let cpus = sched_getaffinity(Pid::this())?;
        listener.set_nonblocking(false)?;
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            sessions,
            path,
            idle: options.idle.max(Duration::from_millis(1)),
            pipes,
            sent_bytes: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            pacer: Pacer::default(),
            reads: ReadGate::default(),
            gives_way: AtomicBool::new(false),
            streams: Mutex::default(),
            max_streams: options.max_streams.clamp(1, limits::BULK_MAX_STREAMS),
            cpus,
        });
        let accept = {
            let (shared, listener) = (shared.clone(), listener.clone());
            std::thread::Builder::new()
                .name("bulk-accept".into())
                .spawn(move || accept_loop(&shared, &listener))?
        };
        tracing::info!(path = path.as_str(), "bulk channel ready");
        Ok(Self {
            shared,
            listener,
            accept: Some(accept),
        })
    }

    /// How ranges are sent.
    #[must_use]
    pub fn path(&self) -> CopyPath {
        self.shared.path
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> BulkStats {
        BulkStats {
            sent_bytes: self.shared.sent_bytes.load(Ordering::Relaxed),
            ranges: self.shared.ranges.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            interrupted: self.shared.interrupted.load(Ordering::Relaxed),
            streams: self.shared.streams().open.len() as u64,
        }
    }

    /// Limits all streams together, in bytes/s; 0 lifts the limit. Takes effect at the next chunk.
    pub fn set_rate_bytes_per_s(&self, bytes_per_s: u64) {
        self.shared.pacer.set(bytes_per_s);
    }

    /// Bounds what all streams together read from the disk at once, in bytes, or to one chunk when that is
    /// more. Until the first call there is no bound; drains have none.
    pub fn set_reading_bytes(&self, most_bytes: u64) {
        self.shared.reads.set(most_bytes);
    }

    /// Whether streams stand behind other threads that want the processor with each chunk that is no drain's.
    pub fn set_gives_way(&self, gives_way: bool) {
        self.shared.gives_way.store(gives_way, Ordering::Relaxed);
    }

    /// Ends every stream and waits for the threads.
    pub fn stop(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        let Some(accept) = self.accept.take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.pacer.wake();
        self.shared.reads.wake();
        // Wakes a blocked accept on Linux; std has no such call for listeners.
        let _ =
            nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        let _ = accept.join();
        let threads = {
            let mut streams = self.shared.streams();
            for stream in streams.open.values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut streams.threads)
        };
        for thread in threads.into_values() {
            let _ = thread.join();
        }
    }
}

impl Drop for BulkServer {
    fn drop(&mut self) {
        self.stop_now();
    }
}

fn choose(options: &BulkOptions, pipes: &PipePool) -> CopyPath {
    match probe(&options.dir, pipes) {
        Ok(()) => CopyPath::Splice,
        Err(error) => {
            tracing::warn!(
                %error,
                dir = %options.dir.display(),
                "splice does not work here: ranges are read and sent instead"
            );
            CopyPath::PreadSend
        }
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    reset_affinity(&shared.cpus);
    loop {
        let accepted = listener.accept();
        if shared.is_stopping() {
            return;
        }
        match accepted {
            Ok((stream, _)) => start_stream(shared, stream),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a bulk stream");
                std::thread::sleep(Duration::from_millis(limits::BULK_ACCEPT_PAUSE_MS));
            }
        }
    }
}

/// A spawned thread inherits its maker's mask; ours may be pinned to a shard's core.
fn reset_affinity(cpus: &CpuSet) {
    if let Err(error) = sched_setaffinity(Pid::from_raw(0), cpus) {
        tracing::debug!(%error, "cannot reset the CPU affinity of a bulk thread");
    }
}

fn start_stream(shared: &Arc<Shared>, stream: TcpStream) {
    let mut streams = shared.streams();
    streams.threads.retain(|_, thread| !thread.is_finished());
    if streams.open.len() >= shared.max_streams {
        drop(streams);
        shared.refused.fetch_add(1, Ordering::Relaxed);
        refuse_busy(&stream);
        return;
    }
    let id = streams.next;
    streams.next += 1;
    let Ok(handle) = stream.try_clone() else {
        return;
    };
    streams.open.insert(id, handle);
    let of = shared.clone();
    let thread = std::thread::Builder::new()
        .name(format!("bulk-{id}"))
        .spawn(move || {
            reset_affinity(&of.cpus);
            if let Err(error) = serve(&of, &stream) {
                tracing::debug!(%error, "bulk stream ended");
            }
            // Both descriptors have to go before the other side sees the end.
            of.streams().open.remove(&id);
        });
    match thread {
        Ok(thread) => {
            streams.threads.insert(id, thread);
        }
        Err(error) => {
            streams.open.remove(&id);
            tracing::warn!(%error, "cannot start a bulk thread");
        }
    }
}
