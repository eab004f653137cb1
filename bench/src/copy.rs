//! `narad-bench copy`: how fast a partition is copied and what that costs at each side, beside what the
//! disk, the wire and a copy without the product give.
//!
//! What this file keeps true: everything was measured in turns, in one run, on the same disk; every copy
//! is a whole move with its syncs, and its content is looked up at the end; the nodes are ended and
//! all data is removed, whatever happens.

mod bare;
mod outcome;

pub use outcome::Outcome;

use crate::freeze::{FreezeError, Mover, Partition, call, program, text_lines};
use crate::node::{Cluster, NodeError};
use crate::report::machine::Machine;
use crate::servers::Servers;
use crate::stop::Stop;
use crate::units::parse_bytes;
use crate::{cpu, raw};
use bare::{Copied, Way};
use outcome::Round;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct CopyArgs {
    /// The narad program (default: the one beside this program)
    #[arg(long, value_name = "PATH")]
    pub narad: Option<PathBuf>,
    /// Where data goes; a directory on a real disk with room for six times --size
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Bytes of a copy
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub size: u64,
    /// Rounds: in each, everything is measured once
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub rounds: u32,
    /// Streams of the bare copies; the product has two a move
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub streams: u8,
    /// Text whose lines become records (default: the sources that cargo has downloaded)
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Where copy.json, copy.txt and the plot go
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Exit with 1 when a bar falls short
    #[arg(long)]
    pub check: bool,
    /// Leave data and logs of the nodes in place
    #[arg(long)]
    pub keep: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The nodes.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A move.
    #[error(transparent)]
    Move(Box<FreezeError>),
    /// The disk of this process.
    #[error(transparent)]
    Storage(#[from] narad_storage::StorageError),
    /// A raw measurement.
    #[error("{path}: {error}; name a directory on a real disk with --dir")]
    Raw {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl From<FreezeError> for CopyError {
    fn from(error: FreezeError) -> Self {
        Self::Move(Box::new(error))
    }
}

/// How long the nodes have to remove the old copy of a move.
const REMOVED_WITHIN: Duration = Duration::from_millis(500);

/// A cluster whose source sends in one way, and its partition.
struct Side<'a> {
    cluster: &'a Cluster,
    partition: Partition<'a>,
}

impl<'a> Side<'a> {
    fn new(cluster: &'a Cluster, mover: &'a Mover, size: u64) -> Self {
        let partition = Partition::new(mover, "copy".into(), size, 0.0, 0);
        Self { cluster, partition }
    }

    /// One move, with what it cost.
    async fn copy(&mut self) -> Result<Copied, CopyError> {
        // Removing the copy of the move before is not a part of this one.
        glommio::timer::sleep(REMOVED_WITHIN).await;
        let before = self.cluster.processes().map(|(id, pid)| (id, cpu::of(pid)));
        let before: Vec<(String, f64)> = before.collect();
        self.partition.one_move().await?;
        let Some(moved) = self.partition.last_move() else {
            return Ok(Copied::default());
        };
        let gib = moved.bytes_done as f64 / f64::from(1 << 30);
        let used = |node: &str| {
            let now = self.cluster.processes().find(|(id, _)| id == node);
            let then = before.iter().find(|(id, _)| id == node);
            match (now, then) {
                (Some((_, pid)), Some((_, then))) => (cpu::of(pid) - then) / gib,
                _ => f64::NAN,
            }
        };
        Ok(Copied {
            bytes_per_s: moved.bytes_done as f64 / (moved.elapsed_ms.max(1) as f64 / 1e3),
            source_cpu: used(&moved.source),
            target_cpu: used(&moved.target),
        })
    }
}

async fn mover(args: &CopyArgs, cluster: &Cluster, stop: &Stop) -> Result<Mover, FreezeError> {
    let servers = Rc::new(Servers::new(&cluster.servers()));
    let mover = Mover::new(servers, text_lines(args.input.as_ref())?, stop.clone()).await?;
    call("lifting the throttle", mover.throttle(0).await)?;
    call("pausing the controller", mover.paused(Some(true)).await)?;
    Ok(mover)
}

/// Runs everything.
///
/// # Errors
/// [`CopyError`].
pub async fn run(args: &CopyArgs, stop: &Stop) -> Result<Outcome, CopyError> {
    let machine = Machine::of(&args.dir);
    let narad = program(args.narad.as_ref());
    let mut splice = Cluster::start(&narad, &args.dir, 2)?;
    splice.keep = args.keep;
    let dir = splice.dir().to_owned();
    let mut read_send = Cluster::start_with(&narad, &dir, 2, &["--copy-path", "read-send"])?;
    read_send.keep = args.keep;
    narad_storage::prepare_executor(&dir).await?;
    let source = dir.join("raw-source");
    at(&source, raw::source_file(&source, args.size))?;
    let movers = [
        mover(args, &splice, stop).await?,
        mover(args, &read_send, stop).await?,
    ];
    let mut sides = [
        Side::new(&splice, &movers[0], args.size),
        Side::new(&read_send, &movers[1], args.size),
    ];
    for side in &mut sides {
        // The first one fills the partition; it does not count.
        side.copy().await?;
    }
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        eprintln!("copy: round {} of {}", round + 1, args.rounds);
        movers[0].go_on()?;
        rounds.push(one_round(args, &dir, &source, &mut sides).await?);
    }
    let mut lost = 0;
    for side in sides {
        lost += side.partition.end().await?.lost;
    }
    Ok(Outcome::new(args, machine, rounds, lost))
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T, CopyError> {
    result.map_err(|error| CopyError::Raw {
        path: path.to_owned(),
        error,
    })
}

async fn one_round(
    args: &CopyArgs,
    dir: &Path,
    source: &Path,
    sides: &mut [Side<'_>; 2],
) -> Result<Round, CopyError> {
    let target = dir.join("raw-target");
    let (size, streams) = (args.size, usize::from(args.streams));
    let [splice, read_send] = sides;
    Ok(Round {
        splice: splice.copy().await?,
        bare_splice: bare::copy(source, &target, size, streams, Way::Splice).await?,
        read_send: read_send.copy().await?,
        bare_read_send: bare::copy(source, &target, size, streams, Way::ReadSend).await?,
        disk_read: at(source, raw::disk_read(source, size))?,
        disk_write: at(&target, raw::disk_write(&target, size))?,
        loopback: at(dir, raw::loopback(streams, size))?,
        rsync: rsync(source, &target, size),
        checksum_cpu: raw::checksum(),
    })
}

/// What rsync gives between two files of this disk, where it is installed.
fn rsync(from: &Path, to: &Path, bytes: u64) -> Option<f64> {
    let began = Instant::now();
    let status = Command::new("rsync")
        .args(["--whole-file", "--fsync"])
        .args([from, to])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let took = began.elapsed().as_secs_f64();
    let _ = std::fs::remove_file(to);
    status.ok()?.success().then_some(bytes as f64 / took)
}
