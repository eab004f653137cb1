//! The bars of produce.
//!
//! What this file keeps true: both sides of a pair are measured back to back, and who goes first changes
//! from pair to pair; what is compared with the disk is compared for the same number of bytes.

use super::{Bench, PARTITIONS, RECORD_BYTES, TOPIC};
use crate::report::bars::{Bar, Bound, Pairs};
use crate::rig::callers::{EchoCaller, ProduceCaller};
use crate::rig::cpu::Cpu;
use crate::rig::drive::{self, Slot, Until};
use crate::rig::{RigError, call, disk};
use serde_json::{Map, Value, json};
use std::rc::Rc;
use std::time::Duration;

/// Clients of the bars about small calls, one call each.
const CLIENTS: usize = 64;
/// Batches at a time where bytes a second are measured: (records, bytes of each, batches at a time).
const SHAPES: [(usize, usize, usize, &str); 3] = [
    (
        100,
        RECORD_BYTES,
        64,
        "batches of 100: share of the raw disk",
    ),
    (
        1_000,
        RECORD_BYTES,
        16,
        "batches of 1,000: share of the raw disk",
    ),
    (1, 1 << 20, 16, "records of 1 MiB: share of the raw disk"),
];
/// Least share of the raw disk; the one of large records is only told.
const DISK_SHARE: f64 = 0.6;
/// Share of the peak rate at which times of calls are compared.
const QUIET: f64 = 0.1;
/// How many durable writes a produce may take beyond an echo, at the 99th percentile.
const WRITES_BEYOND_ECHO: f64 = 3.0;

const RATE: &str = "64 clients: calls a second, share of the echo";
const CPU: &str = "64 clients: server CPU a record, times the echo";
const TAIL: &str = "p99 at a tenth of the peak: of echo p99 + 3 raw durable writes";

/// All of them that are asked for.
///
/// # Errors
/// [`RigError`].
pub async fn all(
    bench: &Bench<'_>,
    figures: &mut Map<String, Value>,
) -> Result<Vec<Bar>, RigError> {
    let mut bars = Vec::new();
    let args = bench.args;
    if args.wants(RATE) || args.wants(CPU) || args.wants(TAIL) {
        let small = Small::connect(bench).await?;
        let peak = small.against_echo(bench, &mut bars, figures).await?;
        if args.wants(TAIL) {
            bars.push(small.quiet(bench, peak, figures).await?);
        }
    }
    for shape in SHAPES.iter().filter(|shape| args.wants(shape.3)) {
        bars.extend(against_disk(bench, *shape, figures).await?);
    }
    Ok(bars)
}

/// Both sides of the bars about small calls.
struct Small {
    echo: Rc<EchoCaller>,
    own_echo: Rc<EchoCaller>,
    produce: Rc<ProduceCaller>,
    echo_cpu: Cpu,
    own_echo_cpu: Cpu,
}

impl Small {
    async fn connect(bench: &Bench<'_>) -> Result<Self, RigError> {
        bench.cluster.fresh(TOPIC, PARTITIONS).await?;
        let echo = EchoCaller::connect(bench.echo.addr(), CLIENTS, RECORD_BYTES).await;
        let own = EchoCaller::connect(bench.own_echo.addr(), CLIENTS, RECORD_BYTES).await;
        let servers = bench.cluster.servers();
        let produce = ProduceCaller::connect(servers, CLIENTS, TOPIC, (1, RECORD_BYTES)).await;
        Ok(Self {
            echo: Rc::new(call("connecting to the echo", echo)?),
            own_echo: Rc::new(call("connecting to the echo", own)?),
            produce: Rc::new(call("connecting", produce)?),
            echo_cpu: Cpu::of(vec![bench.echo.pid()]),
            own_echo_cpu: Cpu::of(vec![bench.own_echo.pid()]),
        })
    }

    /// Rate and processor time; the median of the rates is the peak.
    async fn against_echo(
        &self,
        bench: &Bench<'_>,
        bars: &mut Vec<Bar>,
        figures: &mut Map<String, Value>,
    ) -> Result<f64, RigError> {
        eprintln!("measuring: 64 clients, one record a call");
        let until = Until::Time(bench.args.slot());
        let (mut echoes, mut produces, mut owns) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..=bench.args.pairs {
            let (own, cpu) = (&self.own_echo, &self.own_echo_cpu);
            let own = drive::closed(own, CLIENTS, until, cpu, bench.stop).await?;
            let echo = async || {
                drive::closed(&self.echo, CLIENTS, until, &self.echo_cpu, bench.stop).await
            };
            let produce = async || {
                let cpu = bench.cluster.cpu();
                drive::closed(&self.produce, CLIENTS, until, cpu, bench.stop).await
            };
            let (one, other) = if turn % 2 == 0 {
                let one = echo().await?;
                (one, produce().await?)
            } else {
                let other = produce().await?;
                (echo().await?, other)
            };
            if turn > 0 {
                echoes.push(one);
                produces.push(other);
                owns.push(own);
            }
        }
        let pairs = || produces.iter().zip(&echoes);
        let rates: Vec<f64> = pairs()
            .map(|(p, e)| p.calls_per_s() / e.calls_per_s())
            .collect();
        bars.push(Bar::paired(RATE, &rates, Bound::AtLeast(0.6)));
        let cpus: Vec<f64> = pairs()
            .filter_map(|(p, e)| Some(p.cpu_s_per_million()? / e.cpu_s_per_million()?))
            .collect();
        // Nodes that run elsewhere do not tell their processor time.
        if cpus.len() == rates.len() {
            bars.push(Bar::paired(CPU, &cpus, Bound::AtMost(1.5)));
        }
        figures.insert("echo_64".into(), slots(&echoes));
        figures.insert("own_echo_64".into(), slots(&owns));
        figures.insert("produce_64".into(), slots(&produces));
        Ok(median(produces.iter().map(Slot::calls_per_s)))
    }

    /// Times of calls at a tenth of the peak.
    async fn quiet(
        &self,
        bench: &Bench<'_>,
        peak: f64,
        figures: &mut Map<String, Value>,
    ) -> Result<Bar, RigError> {
        let rate = peak * QUIET;
        eprintln!("measuring: times of calls at {rate:.0} calls/s");
        let time = bench.args.slot().max(Duration::from_millis(500)) * 2;
        let (mut ratios, mut told) = (Vec::new(), Vec::new());
        for turn in 0..=bench.args.pairs {
            let watched = (&self.echo_cpu, bench.stop);
            let echo = drive::open(&self.echo, CLIENTS, rate, time, watched).await?;
            let raw = disk::durable_writes(bench.place.dir(), time / 2)?;
            let watched = (bench.cluster.cpu(), bench.stop);
            let produce = drive::open(&self.produce, CLIENTS, rate, time, watched).await?;
            if turn == 0 {
                continue;
            }
            let allowed =
                echo.us(0.99) as f64 + WRITES_BEYOND_ECHO * raw.value_at_quantile(0.99) as f64;
            ratios.push(produce.us(0.99) as f64 / allowed);
            told.push(json!({
                "echo_p50_us": echo.us(0.5),
                "echo_p99_us": echo.us(0.99),
                "raw_write_p50_us": raw.value_at_quantile(0.5),
                "raw_write_p99_us": raw.value_at_quantile(0.99),
                "produce_p50_us": produce.us(0.5),
                "produce_p99_us": produce.us(0.99),
                "produce_cpu_s_per_million": produce.cpu_s_per_million(),
            }));
        }
        figures.insert("quiet".into(), json!({"calls_per_s": rate, "pairs": told}));
        Ok(Bar::paired(TAIL, &ratios, Bound::AtMost(1.0)))
    }
}

async fn against_disk(
    bench: &Bench<'_>,
    (records, bytes, concurrent, name): (usize, usize, usize, &'static str),
    figures: &mut Map<String, Value>,
) -> Result<Option<Bar>, RigError> {
    eprintln!("measuring: {name}");
    let (mut ratios, mut produces, mut raws) = (Vec::new(), Vec::new(), Vec::new());
    let mut bare = Bare::connect(bench, (records, bytes), concurrent).await?;
    let calls = (bench.args.bytes / (records * bytes) as u64).max(1);
    for turn in 0..=bench.args.pairs {
        bench.cluster.fresh(TOPIC, PARTITIONS).await?;
        let servers = bench.cluster.servers();
        let caller = ProduceCaller::connect(servers, concurrent, TOPIC, (records, bytes)).await;
        let caller = Rc::new(call("connecting", caller)?);
        // The logs are made by the first append, which is not what is measured.
        let cpu = bench.cluster.cpu();
        let first = Until::Calls(concurrent as u64);
        drive::closed(&caller, concurrent, first, cpu, bench.stop).await?;
        let produce = async || {
            let until = Until::Calls(calls);
            drive::closed(&caller, concurrent, until, cpu, bench.stop).await
        };
        let all = calls * (records * bytes) as u64;
        bare.carry(bench, calls, turn > 0).await?;
        let (slot, raw) = if turn % 2 == 0 {
            let raw = disk::write_seconds(bench.place.dir(), all)?;
            (produce().await?, raw)
        } else {
            let slot = produce().await?;
            (slot, disk::write_seconds(bench.place.dir(), all)?)
        };
        if turn > 0 {
            let raw_rate = all as f64 / raw;
            ratios.push(slot.bytes_per_s() / raw_rate);
            raws.push(raw_rate);
            produces.push(slot);
        }
    }
    let mut told = slots(&produces);
    told["raw_bytes_per_s"] = json!(Pairs::of(&raws));
    told["share_of_raw"] = json!(Pairs::of(&ratios));
    let carried: Vec<f64> = bare.slots.iter().map(Slot::bytes_per_s).collect();
    let share = |of: &[f64]| -> Vec<f64> { carried.iter().zip(of).map(|(c, o)| c / o).collect() };
    told["bare_calls_share_of_raw"] = json!(Pairs::of(&share(&raws)));
    let stored: Vec<f64> = produces.iter().map(Slot::bytes_per_s).collect();
    told["bare_calls_over_produce"] = json!(Pairs::of(&share(&stored)));
    told["bare_calls"] = slots(&bare.slots);
    figures.insert(format!("{records}_x_{bytes}"), told);
    let is_bar = bytes == RECORD_BYTES;
    Ok(is_bar.then(|| Bar::paired(name, &ratios, Bound::AtLeast(DISK_SHARE))))
}

/// The same calls to a process that answers them and stores nothing: what a node could pass on to the disk at most, with
/// the clients on this machine.
struct Bare {
    caller: Rc<ProduceCaller>,
    concurrent: usize,
    cpu: Cpu,
    slots: Vec<Slot>,
}

impl Bare {
    async fn connect(
        bench: &Bench<'_>,
        shape: (usize, usize),
        concurrent: usize,
    ) -> Result<Self, RigError> {
        let addr = [bench.own_echo.addr().to_owned()];
        let caller = ProduceCaller::connect(&addr, concurrent, TOPIC, shape).await;
        Ok(Self {
            caller: Rc::new(call("connecting to the echo", caller)?),
            concurrent,
            cpu: Cpu::of(vec![bench.own_echo.pid()]),
            slots: Vec::new(),
        })
    }

    async fn carry(&mut self, bench: &Bench<'_>, calls: u64, counts: bool) -> Result<(), RigError> {
        let until = Until::Calls(calls);
        let slot =
            drive::closed(&self.caller, self.concurrent, until, &self.cpu, bench.stop).await?;
        if counts {
            self.slots.push(slot);
        }
        Ok(())
    }
}

/// Measurements of one kind, for programs.
#[must_use]
pub fn slots(slots: &[Slot]) -> Value {
    let of = |figure: &dyn Fn(&Slot) -> f64| {
        let values: Vec<f64> = slots.iter().map(figure).collect();
        json!(Pairs::of(&values))
    };
    let cpus: Option<Vec<f64>> = slots.iter().map(Slot::cpu_s_per_million).collect();
    json!({
        "calls_per_s": of(&Slot::calls_per_s),
        "records_per_s": of(&Slot::records_per_s),
        "bytes_per_s": of(&Slot::bytes_per_s),
        "cpu_s_per_million_records": cpus.and_then(|cpus| Pairs::of(&cpus)),
        "p50_us": of(&|slot| slot.us(0.5) as f64),
        "p99_us": of(&|slot| slot.us(0.99) as f64),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    Pairs::of(&values).map_or(0.0, |pairs| pairs.median)
}
