//! `narad-bench produce`: calls and records a second, processor time and times of calls, against a bare
//! Cap'n Proto echo and the bare disk.
//!
//! What this file keeps true: every bar is the median of pairs that took turns in this run; the first
//! pair warms up and is not counted; a run in which a call failed has no figures.

pub mod bars;
pub mod matrix;

use crate::limits::PAIRS_MIN;
use crate::report::bars::{Bar, BarReport};
use crate::report::machine::Machine;
use crate::rig::RigError;
use crate::rig::bench_cluster::{ClusterArgs, Measured};
use crate::rig::echo::{EchoKind, EchoProcess};
use crate::rig::place::Place;
use crate::stop::Stop;
use crate::units::parse_bytes;
use matrix::Row;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The topic of a run.
pub const TOPIC: &str = "narad-bench-produce";
/// Its partitions, for each node.
pub const PARTITIONS: u32 = 4;
/// Bytes of a small record.
pub const RECORD_BYTES: usize = 1 << 10;

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct ProduceArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
    /// Nodes of the clusters that are measured one after the other; the bars are those of the first
    #[arg(long, default_value = "1,3", value_delimiter = ',', value_name = "N,…")]
    pub nodes: Vec<usize>,
    /// Pairs of each bar, at least 9
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub pairs: usize,
    /// Length of one measurement, in ms
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    pub slot_ms: u64,
    /// Bytes that one measurement of batches writes
    #[arg(long, default_value = "128MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub bytes: u64,
    /// Only bars whose name contains this; "matrix" is the table of rates
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Exit with 1 when a bar falls short
    #[arg(long)]
    pub check: bool,
}

impl ProduceArgs {
    /// Whether this part is asked for.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|text| name.contains(text.as_str()))
    }

    /// Length of one measurement.
    #[must_use]
    pub fn slot(&self) -> Duration {
        Duration::from_millis(self.slot_ms)
    }
}

/// What a run has found.
pub struct Outcome {
    /// The bars.
    pub report: BarReport,
    /// The table of rates.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.report.text();
        if !self.rows.is_empty() {
            text.push_str("\n\n");
            text.push_str(&matrix::text(&self.rows));
        }
        text
    }
}

/// What all parts of a run share.
pub struct Bench<'a> {
    /// The arguments.
    pub args: &'a ProduceArgs,
    /// The cluster.
    pub cluster: &'a Measured,
    /// The bare echo.
    pub echo: &'a EchoProcess,
    /// The one with a node's connection code.
    pub own_echo: &'a EchoProcess,
    /// Room on the disk.
    pub place: &'a Place,
    /// Whether to end.
    pub stop: &'a Stop,
}

/// Runs everything.
///
/// # Errors
/// [`RigError`].
pub async fn run(args: &ProduceArgs, stop: &Stop) -> Result<Outcome, RigError> {
    if args.pairs < PAIRS_MIN {
        return Err(RigError::Usage(format!(
            "--pairs {} is too few for a median that one disturbance does not move; use {PAIRS_MIN} or more",
            args.pairs
        )));
    }
    let place = Place::new(&args.cluster.dir)?;
    let machine = Machine::of(place.dir());
    let start = |kind| EchoProcess::start(kind).map_err(RigError::Echo);
    let (echo, own_echo) = (start(EchoKind::Bare)?, start(EchoKind::Own)?);
    let sizes = if args.cluster.server.is_empty() {
        args.nodes.clone()
    } else {
        vec![args.cluster.server.len()]
    };
    let (mut bars, mut rows): (Vec<Bar>, Vec<Row>) = (Vec::new(), Vec::new());
    let mut figures = Map::new();
    for (turn, nodes) in sizes.into_iter().enumerate() {
        let cluster = Measured::start(&args.cluster, nodes).await?;
        let bench = Bench {
            args,
            cluster: &cluster,
            echo: &echo,
            own_echo: &own_echo,
            place: &place,
            stop,
        };
        if turn == 0 {
            bars.extend(bars::all(&bench, &mut figures).await?);
        }
        if args.wants("matrix") {
            rows.extend(matrix::measure(&bench, nodes).await?);
        }
        cluster.delete(TOPIC).await?;
    }
    figures.insert("matrix".into(), json!(rows));
    Ok(Outcome {
        report: BarReport {
            command: "produce",
            machine,
            bars,
            figures: Value::Object(figures),
        },
        rows,
    })
}
