//! The thread that appends to the log: a write and its sync are one trip there and back.
//!
//! Keeps true: what is answered with success is durable; appends happen in the order in which they were
//! asked for, one at a time.
//!
//! A ring would do the same in two trips: neither a buffered write nor a sync ends at once there, so each goes to a
//! thread of the kernel's. A leader and a voter make both trips before an entry is committed, and the owner
//! of a partition that moves is frozen meanwhile.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

struct Job {
    file: Arc<File>,
    bytes: Vec<u8>,
    at: u64,
    done: oneshot::Sender<io::Result<()>>,
}

/// The thread; it ends with this.
pub(super) struct Writer {
    jobs: Sender<Job>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Writer> {
        let (jobs, asked) = channel::<Job>();
        let thread = std::thread::Builder::new().name("raft-log".into());
        thread.spawn(move || {
            // A new thread inherits the CPU of its maker's, which may be pinned.
            reset_affinity();
            while let Ok(job) = asked.recv() {
                let written = job.file.write_all_at(&job.bytes, job.at);
                let synced = written.and_then(|()| job.file.sync_data());
                // Nobody waits any more: the node is going down.
                let _ = job.done.send(synced);
            }
        })?;
        Ok(Writer { jobs })
    }

    /// Writes all of `bytes` at `at` and syncs the file. After an error nothing is known about what is on disk.
    /// Dropping the future does not stop the write.
    pub(super) async fn append(&self, file: &Arc<File>, bytes: Vec<u8>, at: u64) -> io::Result<()> {
        let gone = || io::Error::other("the thread of the log has ended");
        let (done, answer) = oneshot::channel();
        let file = file.clone();
        let job = Job {
            file,
            bytes,
            at,
            done,
        };
        self.jobs.send(job).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn reset_affinity() {
    let mut cpus = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        // In range by construction.
        let _ = cpus.set(cpu);
    }
    // The kernel keeps to those that the process may use.
    if let Err(error) = sched_setaffinity(Pid::from_raw(0), &cpus) {
        tracing::debug!(%error, "cannot reset the CPU affinity of the thread of the Raft log");
    }
}

/// A segment's file, for this thread.
pub(super) fn open(path: &Path) -> io::Result<Arc<File>> {
    let options = std::fs::OpenOptions::new().write(true).open(path);
    options.map(Arc::new)
}
