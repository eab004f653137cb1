//! `narad-bench freeze`: how long a moving partition takes no appends, against W/B and size.
//!
//! What this file keeps true: what is compared was measured in turns, in one run; a move is ordered and
//! waited for through the client interface; every acknowledged record is looked up afterwards, by
//! content; the nodes are ended and their data is removed, whatever happens.

mod bare;
mod bars;
mod moving;
mod outcome;
mod partition;

pub use outcome::{Outcome, Point};

use crate::lines::{Lines, LinesError};
use crate::load::LoadError;
use crate::node::{Cluster, NodeError};
use crate::report::machine::Machine;
use crate::servers::Servers;
use crate::stop::Stop;
use crate::units::parse_bytes;
pub(crate) use moving::Mover;
use narad_wire::error::WireError;
pub(crate) use partition::Partition;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// After a move, until the next one.
const REST: Duration = Duration::from_secs(1);
/// Before each replay of the bare steps: a freeze comes once, after a while of other work, when the clock that
/// the file system keeps has gone on and nothing of it is in the caches. One replay right behind another
/// would be spared the inodes' writes and half of the time.
const REPLAY_REST: Duration = Duration::from_millis(200);
/// Replays of the bare steps of which the median stands beside a move: one that something disturbs says nothing.
const REPLAYS: usize = 5;

/// What the bare steps take here and now.
async fn typical(bare: &mut bare::Bare) -> std::io::Result<Duration> {
    let mut took = [Duration::ZERO; REPLAYS];
    for one in &mut took {
        glommio::timer::sleep(REPLAY_REST).await;
        *one = bare.replay()?;
    }
    took.sort_unstable();
    Ok(took[REPLAYS / 2])
}

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct FreezeArgs {
    /// The narad program (default: the one beside this program)
    #[arg(long, value_name = "PATH")]
    pub narad: Option<PathBuf>,
    /// Where data goes; a directory on a real disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub nodes: u8,
    /// A cluster that runs already, instead of one of its own: its addresses. Its throttle is set
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    pub server: Vec<String>,
    /// Moves of a point
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub moves: u32,
    /// W/B of the points
    #[arg(
        long,
        default_value = "0,0.1,0.25,0.5,0.75,0.9,0.95,1,1.25,2",
        value_delimiter = ',',
        value_name = "RATIO,…"
    )]
    pub ratios: Vec<f64>,
    /// Bytes in the partition of each W/B before its first move: a move takes S / B / (1 - W/B)
    #[arg(long, default_value = "8MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub size: u64,
    /// B of these, set with the product's throttle; low enough that the writer does not change it
    #[arg(long, default_value = "16MiB/s", value_parser = parse_bytes, value_name = "RATE")]
    pub bandwidth: u64,
    /// Sizes that are moved in turns, without writes and without a throttle
    #[arg(
        long,
        default_value = "64MiB,8GiB",
        value_delimiter = ',',
        value_parser = parse_bytes,
        value_name = "SIZE,…"
    )]
    pub sizes: Vec<u64>,
    /// Text whose lines become records (default: the sources that cargo has downloaded)
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Where freeze.json, freeze.txt and the plots go
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
pub enum FreezeError {
    /// The nodes.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The text.
    #[error(transparent)]
    Lines(#[from] LinesError),
    /// The load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The same steps without the product.
    #[error("cannot replay the bare steps: {0}; name another directory with --dir")]
    Bare(std::io::Error),
    /// A call to the cluster.
    #[error("{what}: {error}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// The error.
        error: WireError,
    },
    /// A move did not end.
    #[error(
        "move {move_id} is still in phase '{phase}' after {after_s} s ({last_error}); --keep leaves the nodes' logs"
    )]
    Stuck {
        /// Which.
        move_id: u64,
        /// Where it stands.
        phase: String,
        /// Its last error.
        last_error: String,
        /// How long it was waited for.
        after_s: u64,
    },
    /// Acknowledged records do not arrive in the partition.
    #[error(
        "{acked} records were acknowledged and only {found} are in the partition; --keep leaves the nodes' logs"
    )]
    Missing {
        /// Acknowledged.
        acked: u64,
        /// In the partition.
        found: u64,
    },
    /// One node only.
    #[error("the cluster has {0} node(s); a move needs two that live")]
    TooFew(usize),
    /// Ctrl-c.
    #[error("interrupted")]
    Interrupted,
    /// No text was named and none was found.
    #[error("cargo has left no sources to read; name a text file with --input")]
    NoText,
}

pub(crate) fn call<T>(what: &'static str, result: Result<T, WireError>) -> Result<T, FreezeError> {
    result.map_err(|error| FreezeError::Call { what, error })
}

/// The program beside this one, unless another one is named.
pub(crate) fn program(named: Option<&PathBuf>) -> PathBuf {
    let beside = || {
        let own = std::env::current_exe().unwrap_or_default();
        own.with_file_name("narad")
    };
    named.cloned().unwrap_or_else(beside)
}

/// Where cargo keeps the sources of dependencies.
fn cargo_sources() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let mut found = std::fs::read_dir(home.join("registry/src")).ok()?;
    found.find_map(|entry| Some(entry.ok()?.path()).filter(|path| path.is_dir()))
}

/// The text of the records.
pub(crate) fn text_lines(named: Option<&PathBuf>) -> Result<Lines, FreezeError> {
    let input = named.cloned().or_else(cargo_sources);
    Ok(Lines::load(&input.ok_or(FreezeError::NoText)?)?)
}

/// Runs everything.
///
/// # Errors
/// [`FreezeError`].
pub async fn run(args: &FreezeArgs, stop: &Stop) -> Result<Outcome, FreezeError> {
    let machine = Machine::of(&args.dir);
    let lines = text_lines(args.input.as_ref())?;
    let own = if args.server.is_empty() {
        let count = usize::from(args.nodes);
        let mut cluster = Cluster::start(&program(args.narad.as_ref()), &args.dir, count)?;
        cluster.keep = args.keep;
        Some(cluster)
    } else {
        None
    };
    let addresses = own
        .as_ref()
        .map_or_else(|| args.server.clone(), Cluster::servers);
    let servers = Rc::new(Servers::new(&addresses));
    let mover = Mover::new(servers, lines, stop.clone()).await?;
    // The bare steps are those of this machine's disk: of no meaning beside nodes elsewhere.
    let mut bare = match &own {
        Some(cluster) => Some(bare::Bare::new(cluster.dir()).map_err(FreezeError::Bare)?),
        None => None,
    };
    let before = call("looking at the throttle", mover.limit(None).await)?;
    let paused = call("looking at the controller", mover.paused(None).await)?;
    call("pausing the controller", mover.paused(Some(true)).await)?;
    let points = all(args, &mover, &mut bare).await;
    call(
        "setting the controller back",
        mover.paused(Some(paused)).await,
    )?;
    call("setting the throttle back", mover.limit(Some(before)).await)?;
    let mut points = points?;
    points.sort_by(|a, b| {
        (a.throttled, a.size)
            .cmp(&(b.throttled, b.size))
            .then(a.ratio.total_cmp(&b.ratio))
    });
    Ok(Outcome::new(args, machine, points))
}

async fn all(
    args: &FreezeArgs,
    mover: &Mover,
    bare: &mut Option<bare::Bare>,
) -> Result<Vec<Point>, FreezeError> {
    let mut points = Vec::new();
    call("lifting the throttle", mover.throttle(0).await)?;
    let mut sizes: Vec<Partition<'_>> = args
        .sizes
        .iter()
        .enumerate()
        .map(|(at, size)| Partition::new(mover, format!("freeze-size-{at}"), *size, 0.0, 0))
        .collect();
    for round in 0..args.moves {
        eprintln!("freeze: sizes, round {} of {}", round + 1, args.moves);
        for partition in &mut sizes {
            partition.one_move().await?;
            // Its old copy is being given back to the disk, which is no part of either side.
            glommio::timer::sleep(REST).await;
            if let Some(bare) = bare {
                partition.bare(typical(bare).await.map_err(FreezeError::Bare)?);
            }
        }
    }
    for partition in sizes {
        points.push(partition.end().await?);
    }
    call("setting the throttle", mover.throttle(args.bandwidth).await)?;
    let mut ratios: Vec<Partition<'_>> = args
        .ratios
        .iter()
        .enumerate()
        .map(|(at, ratio)| {
            let topic = format!("freeze-ratio-{at}");
            Partition::new(mover, topic, args.size, *ratio, args.bandwidth)
        })
        .collect();
    for round in 0..args.moves {
        eprintln!("freeze: W/B, round {} of {}", round + 1, args.moves);
        for partition in &mut ratios {
            partition.one_move().await?;
        }
    }
    for partition in ratios {
        points.push(partition.end().await?);
    }
    Ok(points)
}
