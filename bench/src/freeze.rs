//! `narad-bench freeze`: how long a moving partition takes no appends, against W/B.
//!
//! What this file keeps true: every row starts from the same amount of data; a move is ordered and
//! waited for through the client interface; every acknowledged record is looked up afterwards, by
//! content; the nodes are ended and their data is removed, whatever happens.

use crate::lines::{Lines, LinesError};
use crate::load::{self, Load, LoadError};
use crate::node::{Cluster, NodeError};
use crate::replay;
use crate::report::{MoveFigures, PARTS, Spread, mib, ms, render, spread_ms, table};
use crate::servers::Servers;
use crate::stop::Stop;
use crate::units::parse_bytes;
use hdrhistogram::Histogram;
use narad_core::ids::PartitionIndex;
use narad_wire::client::{MoveView, TopicSettingsView};
use narad_wire::error::{ErrorCode, WireError};
use serde::Serialize;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Nodes of the cluster: a source and a target.
const NODES: usize = 2;
/// The topic; made anew for each row.
const TOPIC: &str = "freeze";
/// A partition that the writer has made this many hundredths of `--size` large is made anew.
const GROWN_PERCENT: u64 = 150;
/// Between two looks at a move.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A move may take this many times as long as its bytes need at B, and a minute.
const PATIENCE: u32 = 20;
/// How long the old copy of the move before may still lie at the target.
const RECLAIM_WITHIN: Duration = Duration::from_secs(60);
/// How long accepted records may take from one node's WAL into the partition.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);
/// How long the writer runs before a move, so that the source has measured W.
const WARM_UP: Duration = Duration::from_secs(3);

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct FreezeArgs {
    /// The narad program (default: the one beside this program)
    #[arg(long, value_name = "PATH")]
    pub narad: Option<PathBuf>,
    /// Where data goes; a directory on a real disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Bytes in the partition before its first move
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub size: u64,
    /// B, set with the product's throttle
    #[arg(long, default_value = "16MiB/s", value_parser = parse_bytes, value_name = "RATE")]
    pub bandwidth: u64,
    /// Moves of a row
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub moves: u32,
    /// W/B of the rows
    #[arg(
        long,
        default_value = "0,0.5,0.9,1.5",
        value_delimiter = ',',
        value_name = "RATIO,…"
    )]
    pub ratios: Vec<f64>,
    /// Text whose lines become records (default: the sources that cargo has downloaded)
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
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
    /// Ctrl-c.
    #[error("interrupted")]
    Interrupted,
    /// No text was named and none was found.
    #[error("cargo has left no sources to read; name a text file with --input")]
    NoText,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// W/B that was asked for.
    pub wanted_ratio: f64,
    /// What the writer reached, over the set B.
    pub reached_ratio: f64,
    /// The moves.
    pub moves: MoveFigures,
    /// The writer's calls while a move ran, in µs.
    pub produce_us: Spread,
    /// Acknowledged records.
    pub acked: u64,
    /// Acknowledged records that the logs do not hold, or hold with other content.
    pub lost: u64,
}

fn call<T>(what: &'static str, result: Result<T, WireError>) -> Result<T, FreezeError> {
    result.map_err(|error| FreezeError::Call { what, error })
}

/// What a run needs all along.
struct Bench<'a> {
    args: &'a FreezeArgs,
    servers: Rc<Servers>,
    nodes: Vec<String>,
    lines: Lines,
    stop: &'a Stop,
}

/// Runs all rows.
///
/// # Errors
/// [`FreezeError`].
pub async fn run(args: &FreezeArgs, stop: &Stop) -> Result<Vec<Row>, FreezeError> {
    let input = args
        .input
        .clone()
        .or_else(cargo_sources)
        .ok_or(FreezeError::NoText)?;
    let lines = Lines::load(&input)?;
    let mut cluster = Cluster::start(&program(args), &args.dir, NODES)?;
    cluster.keep = args.keep;
    if args.keep {
        eprintln!("freeze: data and logs are in {}", cluster.dir().display());
    }
    let servers = Rc::new(Servers::new(&cluster.servers()));
    call(
        "setting the throttle",
        servers.next().throttle(Some(args.bandwidth)).await,
    )?;
    let mut bench = Bench {
        args,
        servers,
        nodes: cluster.ids(),
        lines,
        stop,
    };
    let mut rows = Vec::new();
    for ratio in &args.ratios {
        rows.push(bench.row(*ratio).await?);
    }
    Ok(rows)
}

fn program(args: &FreezeArgs) -> PathBuf {
    let beside = || {
        let own = std::env::current_exe().unwrap_or_default();
        own.with_file_name("narad")
    };
    args.narad.clone().unwrap_or_else(beside)
}

/// Where cargo keeps the sources of dependencies.
fn cargo_sources() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let mut found = std::fs::read_dir(home.join("registry/src")).ok()?;
    found.find_map(|entry| Some(entry.ok()?.path()).filter(|path| path.is_dir()))
}

/// What the topics of one row add up to.
#[derive(Default)]
struct Sum {
    moves: Vec<MoveView>,
    produce_us: Option<Histogram<u64>>,
    written: u64,
    wrote_for: Duration,
    acked: u64,
    lost: u64,
}

impl Sum {
    fn take(&mut self, produce_us: &Histogram<u64>) {
        match &mut self.produce_us {
            Some(all) => all.add(produce_us).expect("both grow"),
            none => *none = Some(produce_us.clone()),
        }
    }
}

impl Bench<'_> {
    async fn row(&mut self, ratio: f64) -> Result<Row, FreezeError> {
        let rate = (self.args.bandwidth as f64 * ratio) as u64;
        let mut sum = Sum::default();
        while sum.moves.len() < self.args.moves as usize {
            self.topic(ratio, rate, &mut sum).await?;
        }
        let speed = sum.written as f64 / sum.wrote_for.as_secs_f64().max(0.001);
        Ok(Row {
            wanted_ratio: ratio,
            reached_ratio: if rate == 0 {
                0.0
            } else {
                speed / self.args.bandwidth as f64
            },
            moves: MoveFigures::of(&sum.moves),
            produce_us: sum
                .produce_us
                .as_ref()
                .map(Spread::from)
                .unwrap_or_default(),
            acked: sum.acked,
            lost: sum.lost,
        })
    }

    /// Makes the topic, fills it, moves it until the row is full or it has grown, checks it.
    async fn topic(&mut self, ratio: f64, rate: u64, sum: &mut Sum) -> Result<(), FreezeError> {
        let settings = TopicSettingsView::default();
        let created = self
            .servers
            .next()
            .create_topic(TOPIC, 1, None, &settings)
            .await;
        call("creating the topic", created)?;
        let load = Load::new(
            TOPIC,
            Some(0),
            format!("w{}-{}", sum.moves.len(), std::process::id()),
        );
        eprintln!("freeze: W/B {ratio}: filling {} MiB", mib(self.args.size));
        load.measure.set(false);
        load::produce(
            &load,
            &self.servers,
            &mut self.lines,
            0,
            Some(self.args.size),
        )
        .await;
        self.check(&load)?;
        self.settled(&load).await?;
        let filled = load.acked_bytes.get();
        let began = Instant::now();
        let writer = {
            let (load, servers) = (load.clone(), self.servers.clone());
            let mut lines = self.lines.clone();
            glommio::spawn_local(async move {
                if rate > 0 {
                    load::produce(&load, &servers, &mut lines, rate, None).await;
                }
            })
        };
        let moved = self.moves(&load, rate, filled, sum).await;
        load.stop.set(true);
        writer.await;
        sum.written += load.acked_bytes.get() - filled;
        sum.wrote_for += began.elapsed();
        moved?;
        self.check(&load)?;
        self.settled(&load).await?;
        replay::all(&load, &self.servers, 1).await?;
        let totals = load.ledger.borrow().totals(true);
        sum.acked += totals.acked;
        sum.lost += totals.lost_in_log + totals.wrong;
        sum.take(&load.produce_us.borrow());
        call(
            "deleting the topic",
            self.servers.next().delete_topic(TOPIC).await,
        )
    }

    async fn moves(
        &self,
        load: &Load,
        rate: u64,
        filled: u64,
        sum: &mut Sum,
    ) -> Result<(), FreezeError> {
        if rate > 0 {
            glommio::timer::sleep(WARM_UP).await;
        }
        load.measure.set(true);
        while sum.moves.len() < self.args.moves as usize {
            let one = self.one_move(load).await?;
            eprintln!(
                "freeze: move {} {}: {} MiB in {} ms, {} passes, freeze {} ms ({})",
                sum.moves.len() + 1,
                one.outcome,
                mib(one.bytes_done),
                one.elapsed_ms,
                one.passes,
                ms(one.freeze_us, 1),
                parts(&one)
            );
            sum.moves.push(one);
            self.check(load)?;
            if load.acked_bytes.get() * 100 >= filled * GROWN_PERCENT {
                break;
            }
        }
        load.measure.set(false);
        Ok(())
    }

    fn check(&self, load: &Load) -> Result<(), FreezeError> {
        if let Some(error) = load.failure.borrow_mut().take() {
            return Err(error.into());
        }
        if self.stop.wanted() {
            return Err(FreezeError::Interrupted);
        }
        Ok(())
    }

    /// Orders a move. Refused for a moment after a move back, until the old copy is reclaimed.
    async fn order(&self, target: &str) -> Result<u64, FreezeError> {
        let began = Instant::now();
        loop {
            let client = self.servers.next();
            match client.move_to(TOPIC, PartitionIndex(0), target).await {
                Err(error)
                    if error.code() == Some(ErrorCode::Refused)
                        && began.elapsed() < RECLAIM_WITHIN =>
                {
                    glommio::timer::sleep(LOOK_EVERY).await;
                }
                ordered => return call("ordering the move", ordered),
            }
        }
    }

    /// Waits until every acknowledged record is in the partition: those that the other node took
    /// come through its ingress WAL.
    async fn settled(&self, load: &Load) -> Result<(), FreezeError> {
        let acked = load.ledger.borrow().progress().0;
        let began = Instant::now();
        loop {
            let topic = self.servers.next().describe_topic(TOPIC).await;
            let topic = call("looking at the topic", topic)?;
            let partition = &topic.partitions[0];
            if partition.known && partition.hwm >= acked {
                return Ok(());
            }
            if began.elapsed() >= SETTLE_WITHIN {
                return Err(FreezeError::Missing {
                    acked,
                    found: partition.hwm,
                });
            }
            self.check(load)?;
            glommio::timer::sleep(LOOK_EVERY).await;
        }
    }

    /// Moves the partition to the other node and waits until that is over.
    async fn one_move(&self, load: &Load) -> Result<MoveView, FreezeError> {
        let topic = call(
            "looking at the topic",
            self.servers.next().describe_topic(TOPIC).await,
        )?;
        let owner = &topic.partitions[0].owner;
        let target = self
            .nodes
            .iter()
            .find(|id| *id != owner)
            .expect("there are two nodes");
        let move_id = self.order(target).await?;
        let bytes = load.acked_bytes.get().max(1);
        let needed = bytes as f64 / self.args.bandwidth as f64;
        let patience = Duration::from_secs_f64(60.0 + f64::from(PATIENCE) * needed);
        let began = Instant::now();
        loop {
            let view = call("looking at the moves", self.servers.next().moves().await)?;
            if let Some(done) = view.finished.iter().find(|one| one.move_id == move_id) {
                return Ok(done.clone());
            }
            self.check(load)?;
            if began.elapsed() > patience {
                let running = view.moves.into_iter().find(|one| one.move_id == move_id);
                let running = running.unwrap_or_default();
                return Err(FreezeError::Stuck {
                    move_id,
                    phase: running.phase,
                    last_error: running.last_error,
                    after_s: began.elapsed().as_secs(),
                });
            }
            glommio::timer::sleep(LOOK_EVERY).await;
        }
    }
}

/// The parts of one freeze.
fn parts(one: &MoveView) -> String {
    let parts = PARTS.map(|(name, part)| format!("{name} {}", ms(part(&one.split), 1)));
    parts.join(", ")
}

/// All rows as one table; the last line is `lost: N`.
#[must_use]
pub fn text(args: &FreezeArgs, rows: &[Row]) -> String {
    let heads = [
        ">W/B",
        ">reached",
        ">moves",
        ">MiB",
        ">B MiB/s",
        ">passes",
        ">tail KiB",
        ">conv",
        "freeze ms p50/p99/max",
        "settle/drain/persist/install/flip/takeover",
        "produce ms p50/p99/max",
        ">lost",
    ];
    let mut out = table(&heads);
    for row in rows {
        let moves = &row.moves;
        let parts: Vec<String> = moves
            .split_us
            .iter()
            .map(|(_, part)| ms(part.p50, part.count))
            .collect();
        out.add_row(vec![
            row.wanted_ratio.to_string(),
            format!("{:.2}", row.reached_ratio),
            moves.moves.to_string(),
            mib(moves.bytes),
            mib(moves.bytes_per_s),
            format!("{}-{}", moves.passes.p50, moves.passes.max),
            format!(
                "{}-{}",
                moves.tail_bytes.p50 >> 10,
                moves.tail_bytes.max >> 10
            ),
            format!("{}/{}", moves.converged, moves.moves),
            spread_ms(&moves.freeze_us),
            parts.join(" / "),
            spread_ms(&row.produce_us),
            row.lost.to_string(),
        ]);
    }
    let lost: u64 = rows.iter().map(|row| row.lost).sum();
    format!(
        "partition {} MiB, B set to {} MiB/s, {} moves a row; parts of the freeze are medians in ms\n\n{}\nlost: {lost}",
        mib(args.size),
        mib(args.bandwidth),
        args.moves,
        render(&out)
    )
}
