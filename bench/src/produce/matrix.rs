//! The table of rates: records a second for numbers of clients and batch sizes, and times of calls at half
//! of each rate.
//!
//! What this file keeps true: a rate is the median of several runs with its spread; times are taken at a
//! fixed rate, from when each call was due.

use super::{Bench, PARTITIONS, RECORD_BYTES, TOPIC};
use crate::report::bars::Pairs;
use crate::report::{render, table};
use crate::rig::callers::ProduceCaller;
use crate::rig::drive::{self, Until};
use crate::rig::{RigError, call};
use serde::Serialize;
use std::rc::Rc;

/// Runs of each cell.
const RUNS: usize = 5;
/// Calls at a time.
const CONCURRENT: [usize; 3] = [1, 64, 512];
/// Records of a call.
const BATCHES: [usize; 2] = [1, 100];
/// Share of the median rate at which times are taken.
const TIMED_AT: f64 = 0.5;

/// One cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Calls at a time.
    pub concurrent: usize,
    /// Records of a call.
    pub batch: usize,
    /// Records a second.
    pub records_per_s: Option<Pairs>,
    /// Processor seconds of all nodes for a million records.
    pub cpu_s_per_million: Option<Pairs>,
    /// Calls a second at which the times were taken.
    pub timed_calls_per_s: f64,
    /// Median time of a call, in µs.
    pub p50_us: u64,
    /// 99th percentile, in µs.
    pub p99_us: u64,
    /// Largest, in µs.
    pub max_us: u64,
}

/// Measures all cells on this cluster.
///
/// # Errors
/// [`RigError`].
pub async fn measure(bench: &Bench<'_>, nodes: usize) -> Result<Vec<Row>, RigError> {
    let mut rows = Vec::new();
    let partitions = PARTITIONS * u32::try_from(nodes).unwrap_or(1);
    for concurrent in CONCURRENT {
        for batch in BATCHES {
            eprintln!("measuring: {nodes} nodes, {concurrent} clients, batches of {batch}");
            bench.cluster.fresh(TOPIC, partitions).await?;
            let servers = bench.cluster.servers();
            let shape = (batch, RECORD_BYTES);
            let caller = ProduceCaller::connect(servers, concurrent, TOPIC, shape).await;
            let caller = Rc::new(call("connecting", caller)?);
            let cpu = bench.cluster.cpu();
            let until = Until::Time(bench.args.slot());
            let mut slots = Vec::new();
            for run in 0..=RUNS {
                let slot = drive::closed(&caller, concurrent, until, cpu, bench.stop).await?;
                if run > 0 {
                    slots.push(slot);
                }
            }
            let rates: Vec<f64> = slots.iter().map(drive::Slot::records_per_s).collect();
            let cpus: Option<Vec<f64>> = slots.iter().map(drive::Slot::cpu_s_per_million).collect();
            let rates = Pairs::of(&rates);
            let rate = rates.map_or(1.0, |r| r.median) / batch as f64 * TIMED_AT;
            let watched = (cpu, bench.stop);
            let time = bench.args.slot() * 2;
            let timed = drive::open(&caller, concurrent, rate, time, watched).await?;
            rows.push(Row {
                nodes,
                concurrent,
                batch,
                records_per_s: rates,
                cpu_s_per_million: cpus.and_then(|cpus| Pairs::of(&cpus)),
                timed_calls_per_s: rate,
                p50_us: timed.us(0.5),
                p99_us: timed.us(0.99),
                max_us: timed.times.max(),
            });
        }
    }
    Ok(rows)
}

/// For people.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let mut out = table(&[
        ">nodes",
        ">clients",
        ">batch",
        ">records/s",
        ">lowest .. highest",
        ">CPU s/million",
        ">timed at calls/s",
        ">p50 ms",
        ">p99 ms",
        ">max ms",
    ]);
    let whole = |value: f64| format!("{value:.0}");
    let ms = |us: u64| format!("{:.2}", us as f64 / 1_000.0);
    for row in rows {
        let rate = row.records_per_s;
        out.add_row(vec![
            row.nodes.to_string(),
            row.concurrent.to_string(),
            row.batch.to_string(),
            rate.map_or_else(|| "-".into(), |r| whole(r.median)),
            rate.map_or_else(
                || "-".into(),
                |r| format!("{} .. {}", whole(r.lowest), whole(r.highest)),
            ),
            row.cpu_s_per_million
                .map_or_else(|| "-".into(), |c| format!("{:.1}", c.median)),
            whole(row.timed_calls_per_s),
            ms(row.p50_us),
            ms(row.p99_us),
            ms(row.max_us),
        ]);
    }
    render(&out)
}
