//! The steps of a freeze without the product around them: the same round trips, syncs, renames and one
//! Raft write, on the same disk and over loopback.
//!
//! What this file keeps true: nothing is done here that a freeze with an empty tail does not do, and
//! what can go side by side there goes side by side here.
//!
//! One replay is: the round trip of the freeze; list and meta file written over and synced, side by side;
//! the rename of a directory and the syncs of both parents; and one Raft write of a cluster of three, asked
//! for by a node that does not lead: the command goes to the leader, who sends it to both voters and
//! writes and syncs it meanwhile, as they do; with the first voter's answer and its own sync it is committed, and the
//! leader's answer says so.

use crate::raw::{Aligned, CHUNK_BYTES, reserved};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Bytes of a question and of its answer: a small capture, a command.
const MESSAGE_BYTES: usize = 512;
/// Bytes of a small file and of an entry.
const BLOCK_BYTES: usize = 4_096;
/// Entries that are written before the file begins anew; their blocks are reserved.
const ENTRIES: u64 = 128;

const _: () = assert!(ENTRIES as usize * BLOCK_BYTES <= CHUNK_BYTES);

/// What the other side does before it answers.
#[derive(Clone, Copy)]
enum Work {
    Nothing,
    Append,
}

/// A file whose blocks are there, written over in place and past the page cache.
struct Blocks {
    file: File,
    block: Aligned,
    next: u64,
}

impl Blocks {
    fn new(path: &Path, count: u64) -> io::Result<Self> {
        let bytes = count * BLOCK_BYTES as u64;
        let (file, mut block) = (reserved(path, bytes)?, Aligned::new());
        file.write_all_at(&block.bytes()[..bytes as usize], 0)?;
        file.sync_all()?;
        Ok(Self {
            file,
            block,
            next: 0,
        })
    }

    fn write(&mut self, count: u64) -> io::Result<()> {
        let at = self.next % count * BLOCK_BYTES as u64;
        self.file
            .write_all_at(&self.block.bytes()[..BLOCK_BYTES], at)?;
        self.next += 1;
        self.file.sync_data()
    }
}

/// Another node: answers on a socket, and has a log of its own.
struct Other {
    stream: TcpStream,
}

/// Both ends of a connection over loopback.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let outward = TcpStream::connect(listener.local_addr()?)?;
    let (inward, _) = listener.accept()?;
    for side in [&outward, &inward] {
        side.set_nodelay(true)?;
    }
    Ok((outward, inward))
}

/// A thread that does `work` for each message and answers it, until its socket ends or the work fails.
fn answering(
    name: &str,
    mut work: impl FnMut(u8) -> io::Result<()> + Send + 'static,
) -> io::Result<Other> {
    let (stream, mut inward) = pair()?;
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || {
        let mut message = [0; MESSAGE_BYTES];
        while inward.read_exact(&mut message).is_ok() {
            if work(message[0]).is_err() || inward.write_all(&message).is_err() {
                return;
            }
        }
    })?;
    Ok(Other { stream })
}

impl Other {
    /// Answers, and appends to its log first when it is asked to.
    fn voter(log: &Path) -> io::Result<Self> {
        let mut log = Blocks::new(log, ENTRIES)?;
        answering("bare-voter", move |work| {
            if work == Work::Append as u8 {
                log.write(ENTRIES)?;
            }
            Ok(())
        })
    }

    /// Has two voters, and answers once it and one of them have appended.
    fn leader(log: &Path, mut voters: [Self; 2]) -> io::Result<Self> {
        let mut log = Blocks::new(log, ENTRIES)?;
        let mut owed = [0_u32; 2];
        answering("bare-leader", move |_| {
            for (voter, owed) in voters.iter_mut().zip(&mut owed) {
                voter.ask(Work::Append)?;
                *owed += 1;
            }
            log.write(ENTRIES)?;
            // An answer of the round before, of the slower voter, is not one of this.
            while owed.iter().all(|owed| *owed > 0) {
                for at in readable(&voters)? {
                    voters[at].answer()?;
                    owed[at] -= 1;
                }
            }
            Ok(())
        })
    }

    fn ask(&mut self, work: Work) -> io::Result<()> {
        self.stream.write_all(&[work as u8; MESSAGE_BYTES])
    }

    fn answer(&mut self) -> io::Result<()> {
        self.stream.read_exact(&mut [0; MESSAGE_BYTES])
    }
}

/// Which of them have something to read; waits until one has.
fn readable(others: &[Other; 2]) -> io::Result<Vec<usize>> {
    let mut fds = [0, 1].map(|at| PollFd::new(others[at].stream.as_fd(), PollFlags::POLLIN));
    poll(&mut fds, PollTimeout::NONE)?;
    let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    Ok((0..fds.len()).filter(|at| ready(&fds[*at])).collect())
}

/// Writes its file whenever it is told to, beside its caller.
struct Beside {
    go: SyncSender<()>,
    done: Receiver<io::Result<()>>,
}

impl Beside {
    fn start(mut file: Blocks) -> io::Result<Self> {
        let (go, told) = sync_channel(1);
        let (tell, done) = sync_channel(1);
        std::thread::Builder::new()
            .name("bare-beside".into())
            .spawn(move || {
                while told.recv().is_ok() {
                    if tell.send(file.write(1)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { go, done })
    }

    fn begin(&self) {
        // A thread that is gone shows when it is waited for.
        let _ = self.go.send(());
    }

    fn wait(&self) -> io::Result<()> {
        self.done
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("a thread is gone")))
    }
}

/// Everything that a replay needs, made ahead as a move makes it ahead.
pub(super) struct Bare {
    from: PathBuf,
    to: PathBuf,
    list: Blocks,
    meta: Beside,
    source: Other,
    leader: Other,
}

impl Bare {
    /// Below `dir`, which is on the disk of the nodes.
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        let dir = dir.join("bare");
        let from = dir.join("staging").join("copy");
        std::fs::create_dir_all(&from)?;
        std::fs::create_dir_all(dir.join("partitions"))?;
        let voters = [
            Other::voter(&dir.join("voter-1"))?,
            Other::voter(&dir.join("voter-2"))?,
        ];
        let bare = Self {
            list: Blocks::new(&from.join("list"), 1)?,
            meta: Beside::start(Blocks::new(&from.join("meta"), 1)?)?,
            source: Other::voter(&dir.join("source"))?,
            leader: Other::leader(&dir.join("leader"), voters)?,
            to: dir.join("partitions").join("copy"),
            from,
        };
        for parent in [&bare.from, &bare.to] {
            sync_parent(parent)?;
        }
        Ok(bare)
    }

    /// Once through; how long it took.
    pub(super) fn replay(&mut self) -> io::Result<Duration> {
        let began = Instant::now();
        self.source.ask(Work::Nothing)?;
        self.source.answer()?;
        self.meta.begin();
        self.list.write(1)?;
        self.meta.wait()?;
        std::fs::rename(&self.from, &self.to)?;
        sync_parent(&self.to)?;
        sync_parent(&self.from)?;
        self.leader.ask(Work::Append)?;
        self.leader.answer()?;
        let took = began.elapsed();
        std::fs::rename(&self.to, &self.from)?;
        sync_parent(&self.from)?;
        Ok(took)
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::Bare;
    use std::path::Path;

    #[test]
    fn the_steps_can_be_repeated() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../target")
            .join(format!("bare-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut bare = Bare::new(&dir).unwrap();
        for _ in 0..3 {
            assert!(!bare.replay().unwrap().is_zero());
        }
        assert!(dir.join("bare/staging/copy/list").exists());
        drop(bare);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
