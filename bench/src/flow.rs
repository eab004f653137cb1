//! `narad-bench flow`: produce, consume and ack together, against produce alone; and what moves cost others.
//!
//! What this file keeps true: a flow ends when every record that it produced is acked; a record that does
//! not come is a failed run, not a slow one.

pub mod moving;

use crate::limits::{CALL_DEADLINE, PAIRS_MIN};
use crate::produce::bars::slots;
use crate::report::bars::{Bar, BarReport, Bound, Pairs};
use crate::report::machine::Machine;
use crate::rig::bench_cluster::{ClusterArgs, Measured};
use crate::rig::callers::{CONSUME_ROUND, ProduceCaller};
use crate::rig::drive::{self, Slot, Until};
use crate::rig::{RigError, call};
use crate::stop::Stop;
use crate::units::parse_bytes;
use hdrhistogram::Histogram;
use narad_wire::client::Lease;
use narad_wire::client::calls::{self, Settle};
use narad_wire::error::WireError;
use narad_wire::rpc::{Link, connect_link};
use narad_wire::runtime::Glommio;
use serde_json::{Map, Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The topic of a run.
pub const TOPIC: &str = "narad-bench-flow";
/// Its partitions, for each node.
const PARTITIONS: u32 = 4;
/// Bytes of a record.
const RECORD_BYTES: usize = 1 << 10;
/// Records of a produce call.
const BATCH: usize = 100;
/// Produce calls at a time.
const PRODUCERS: usize = 16;
/// Consumers, each with one call at a time.
const CONSUMERS: usize = 8;
/// Least share of produce alone.
const SHARE: f64 = 0.4;
/// Without a record for this long, a flow has lost one.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct FlowArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
    /// Nodes of the clusters that are measured one after the other; the bar is that of the first
    #[arg(long, default_value = "1,3", value_delimiter = ',', value_name = "N,…")]
    pub nodes: Vec<usize>,
    /// Pairs, at least 9
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub pairs: usize,
    /// Bytes that one measurement produces
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub bytes: u64,
    /// Measure others' times of calls while eight partitions of so many bytes each move; 0: do not
    #[arg(long, default_value = "128MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub moving: u64,
    /// Exit with 1 when a bar falls short
    #[arg(long)]
    pub check: bool,
}

/// Consumers that count what they ack.
pub struct Consumers {
    acked: Cell<u64>,
    stopped: Cell<bool>,
    last: Cell<Instant>,
    consume: RefCell<Histogram<u64>>,
    ack: RefCell<Histogram<u64>>,
    failure: RefCell<Option<WireError>>,
}

impl Consumers {
    fn new() -> Rc<Self> {
        let times = || RefCell::new(Histogram::new(3).expect("three digits are allowed"));
        Rc::new(Self {
            acked: Cell::default(),
            stopped: Cell::default(),
            last: Cell::new(Instant::now()),
            consume: times(),
            ack: times(),
            failure: RefCell::default(),
        })
    }

    /// Runs one over this connection until it is stopped.
    async fn run(self: Rc<Self>, link: Rc<Link>, topic: &'static str) {
        while !self.stopped.get() {
            if let Err(error) = self.round(&link, topic).await {
                self.failure.borrow_mut().get_or_insert(error);
                return;
            }
        }
    }

    async fn round(&self, link: &Link, topic: &str) -> Result<(), WireError> {
        let addr = Rc::from("");
        let node = link.node();
        let since = Instant::now();
        let got =
            calls::consume(&Glommio, node, &addr, CALL_DEADLINE, topic, CONSUME_ROUND).await?;
        if got.is_empty() {
            return Ok(());
        }
        note(&self.consume, since);
        let leases: Vec<Lease> = got.iter().map(|one| one.lease).collect();
        let since = Instant::now();
        let settled =
            calls::settle(&Glommio, node, CALL_DEADLINE, topic, &leases, Settle::Ack).await?;
        note(&self.ack, since);
        let acked = settled.iter().filter(|result| result.is_ok()).count() as u64;
        self.acked.set(self.acked.get() + acked);
        self.last.set(Instant::now());
        Ok(())
    }

    fn times(&self) -> Value {
        let of = |times: &RefCell<Histogram<u64>>| {
            let times = times.borrow();
            json!({
                "p50_us": times.value_at_quantile(0.5),
                "p99_us": times.value_at_quantile(0.99),
                "max_us": times.max(),
            })
        };
        json!({"consume": of(&self.consume), "ack": of(&self.ack)})
    }
}

fn note(times: &RefCell<Histogram<u64>>, since: Instant) {
    let us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    times
        .borrow_mut()
        .record(us.max(1))
        .expect("the histogram grows");
}

/// Runs everything.
///
/// # Errors
/// [`RigError`].
pub async fn run(args: &FlowArgs, stop: &Stop) -> Result<BarReport, RigError> {
    if args.pairs < PAIRS_MIN {
        return Err(RigError::Usage(format!(
            "--pairs {} is too few for a median; use {PAIRS_MIN} or more",
            args.pairs
        )));
    }
    let machine = Machine::of(&args.cluster.dir);
    let sizes = if args.cluster.server.is_empty() {
        args.nodes.clone()
    } else {
        vec![args.cluster.server.len()]
    };
    let (mut bars, mut figures) = (Vec::new(), Map::new());
    for (turn, nodes) in sizes.into_iter().enumerate() {
        let cluster = Measured::start(&args.cluster, nodes).await?;
        let (ratios, told) = pairs(args, &cluster, nodes, stop).await?;
        figures.insert(format!("nodes_{nodes}"), told);
        if turn == 0 {
            let name = "batched flow: share of batched produce alone";
            bars.push(Bar::paired(name, &ratios, Bound::AtLeast(SHARE)));
        }
        cluster.delete(TOPIC).await?;
    }
    if args.moving > 0 && args.cluster.server.is_empty() {
        let told = moving::measure(args, stop).await?;
        figures.insert("while_8_partitions_move".into(), told);
    }
    Ok(BarReport {
        command: "flow",
        machine,
        bars,
        figures: Value::Object(figures),
    })
}

/// For people: the bar, and everything else as it is told to programs.
#[must_use]
pub fn text(report: &BarReport) -> String {
    let figures = serde_json::to_string_pretty(&report.figures);
    format!("{}\n\n{}", report.text(), figures.unwrap_or_default())
}

async fn pairs(
    args: &FlowArgs,
    cluster: &Measured,
    nodes: usize,
    stop: &Stop,
) -> Result<(Vec<f64>, Value), RigError> {
    let calls = (args.bytes / (BATCH * RECORD_BYTES) as u64).max(1);
    let partitions = PARTITIONS * u32::try_from(nodes).unwrap_or(1);
    let (mut ratios, mut alones, mut flows) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rates, mut times) = (Vec::new(), Value::Null);
    for turn in 0..=args.pairs {
        eprintln!(
            "measuring: flow on {nodes} nodes, pair {turn} of {}",
            args.pairs
        );
        let alone = async || {
            cluster.fresh(TOPIC, partitions).await?;
            let caller = producer(cluster).await?;
            produce(&caller, calls, cluster, stop).await
        };
        let flow = async || {
            cluster.fresh(TOPIC, partitions).await?;
            flow(cluster, calls, stop).await
        };
        let (one, (slot, seconds, told)) = if turn % 2 == 0 {
            let one = alone().await?;
            (one, flow().await?)
        } else {
            let other = flow().await?;
            (alone().await?, other)
        };
        if turn > 0 {
            let rate = slot.records as f64 / seconds;
            ratios.push(rate / one.records_per_s());
            rates.push(rate);
            alones.push(one);
            flows.push(slot);
            times = told;
        }
    }
    let told = json!({
        "produce_alone": slots(&alones),
        "produce_in_flow": slots(&flows),
        "flow_records_per_s": Pairs::of(&rates),
        "share": Pairs::of(&ratios),
        "times_in_the_last_flow": times,
    });
    Ok((ratios, told))
}

async fn producer(cluster: &Measured) -> Result<Rc<ProduceCaller>, RigError> {
    let shape = (BATCH, RECORD_BYTES);
    let caller = ProduceCaller::connect(cluster.servers(), PRODUCERS, TOPIC, shape).await;
    Ok(Rc::new(call("connecting", caller)?))
}

async fn produce(
    caller: &Rc<ProduceCaller>,
    calls: u64,
    cluster: &Measured,
    stop: &Stop,
) -> Result<Slot, RigError> {
    drive::closed(caller, PRODUCERS, Until::Calls(calls), cluster.cpu(), stop).await
}

/// Produces while consumers take and ack: what was produced, and the seconds until all of it was acked.
async fn flow(cluster: &Measured, calls: u64, stop: &Stop) -> Result<(Slot, f64, Value), RigError> {
    let caller = producer(cluster).await?;
    let (consumers, tasks) = consume(cluster.servers(), TOPIC).await?;
    let began = Instant::now();
    let slot = produce(&caller, calls, cluster, stop).await?;
    consumers.last.set(Instant::now());
    while consumers.acked.get() < slot.records {
        if stop.wanted() {
            return Err(RigError::Stopped);
        }
        if let Some(error) = consumers.failure.take() {
            return call("consuming", Err(error));
        }
        if consumers.last.get().elapsed() > STALLED_AFTER {
            return Err(RigError::Usage(format!(
                "{} of {} records were acked, and no more came for {} s",
                consumers.acked.get(),
                slot.records,
                STALLED_AFTER.as_secs()
            )));
        }
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    consumers.stopped.set(true);
    for task in tasks {
        task.await;
    }
    Ok((slot, seconds, consumers.times()))
}

/// Starts the consumers.
async fn consume(
    servers: &[String],
    topic: &'static str,
) -> Result<(Rc<Consumers>, Vec<glommio::Task<()>>), RigError> {
    let consumers = Consumers::new();
    let mut tasks = Vec::new();
    for addr in servers.iter().cycle().take(CONSUMERS) {
        let link = connect_link(&Glommio, addr, CALL_DEADLINE).await;
        let link = Rc::new(call("connecting", link)?);
        tasks.push(glommio::spawn_local(consumers.clone().run(link, topic)));
    }
    Ok((consumers, tasks))
}
