//! `narad-bench throttle`: what moves cost others while copies adapt to them, and what that costs the moves.
//!
//! What this file keeps true: no moves, adaptive moves and unthrottled moves take turns within one run, under
//! one load that goes on all the time; a ratio is of slots of one turn; a record that does not come is a
//! failed run.

mod foreground;

use crate::limits::PAIRS_MIN;
use crate::report::bars::{Bar, BarReport, Bound, Pairs};
use crate::report::machine::Machine;
use crate::rig::bench_cluster::{ClusterArgs, Measured};
use crate::rig::callers::ProduceCaller;
use crate::rig::drive::{self, Until};
use crate::rig::{RigError, call, moves};
use crate::stop::Stop;
use crate::units::parse_bytes;
use foreground::{Running, Times};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The topic whose partitions move.
const MOVING: &str = "narad-bench-moving";
/// How many.
const PARTITIONS: u32 = 8;
/// The topic of the load.
const FOREGROUND: &str = "narad-bench-foreground";
/// Its partitions, for each node.
const FOREGROUND_PARTITIONS: u32 = 2;
/// Connections over which it comes.
const CONNECTIONS: usize = 16;
/// Bytes of a record that fills a moving partition.
const FILL_BYTES: usize = 512 << 10;
/// The load alone between two slots: old copies are reclaimed, and nodes learn what is usual for it.
const REST: Duration = Duration::from_secs(2);
/// What the foreground may take while things move, times what it takes otherwise.
const TIMES_MOST: f64 = 1.5;
/// What adaptive copies reach at least, as a share of unthrottled ones.
const SHARE_LEAST: f64 = 0.5;

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct ThrottleArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
    /// Turns, at least 9
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub turns: usize,
    /// Bytes of each of the eight partitions that move
    #[arg(long, default_value = "128MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub bytes: u64,
    /// Produce calls a second, one record of 1 KiB each
    #[arg(long, default_value_t = 1_000.0, value_name = "CALLS")]
    pub rate: f64,
    /// Seconds of a slot without moves
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    pub quiet: f64,
    /// Exit with 1 when a bar falls short
    #[arg(long)]
    pub check: bool,
}

/// What happens in a slot beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Quiet,
    Adaptive,
    Unthrottled,
}

const KINDS: [Kind; 3] = [Kind::Quiet, Kind::Adaptive, Kind::Unthrottled];

/// What one slot came to.
struct Measure {
    times: Times,
    /// Bytes a second that moved.
    bytes_per_s: f64,
    /// Orders that waited for an old copy.
    waited: usize,
}

/// One turn: a slot of each kind, in the order of [`KINDS`].
type Turn = [Measure; 3];

/// Runs everything.
///
/// # Errors
/// [`RigError`].
pub async fn run(args: &ThrottleArgs, stop: &Stop) -> Result<BarReport, RigError> {
    if args.turns < PAIRS_MIN {
        return Err(RigError::Usage(format!(
            "--turns {} is too few for a median; use {PAIRS_MIN} or more",
            args.turns
        )));
    }
    if !(args.rate >= 50.0 && args.quiet >= 1.0) {
        return Err(RigError::Usage(
            "a p99 needs --rate 50 and --quiet 1 at least".into(),
        ));
    }
    let machine = Machine::of(&args.cluster.dir);
    let cluster = Measured::start(&args.cluster, 2).await?;
    // The load of calls is another machine's: it is not to wait for the copies of nodes that happen to be here. Not
    // before the nodes are started, which would inherit it.
    narad_wire::runtime::short_slices();
    let client = cluster.client();
    let limit = call("looking at the throttle", client.copy_limit(None).await)?;
    let paused = client.pause_rebalance(None).await;
    let paused = call("looking at the controller", paused)?;
    let turns = all(args, &cluster, stop).await;
    // A cluster that is somebody's own is left as it was.
    let back = client.copy_limit(Some(limit)).await;
    call("setting the throttle back", back)?;
    let back = client.pause_rebalance(Some(paused)).await;
    call("setting the controller back", back)?;
    let turns = turns?;
    for topic in [MOVING, FOREGROUND] {
        cluster.delete(topic).await?;
    }
    Ok(BarReport {
        command: "throttle",
        machine,
        bars: bars(&turns),
        figures: figures(args, &turns),
    })
}

async fn all(args: &ThrottleArgs, cluster: &Measured, stop: &Stop) -> Result<Vec<Turn>, RigError> {
    let nodes = u32::try_from(cluster.servers().len()).unwrap_or(2);
    cluster.fresh(MOVING, PARTITIONS).await?;
    let topic = FOREGROUND_PARTITIONS * nodes.max(2);
    cluster.fresh(FOREGROUND, topic).await?;
    eprintln!("filling {PARTITIONS} partitions");
    let shape = (1, FILL_BYTES);
    let filler = ProduceCaller::connect(cluster.servers(), 8, MOVING, shape).await;
    let filler = Rc::new(call("connecting", filler)?);
    let calls = (args.bytes * u64::from(PARTITIONS) / FILL_BYTES as u64).max(1);
    drive::closed(&filler, 8, Until::Calls(calls), cluster.cpu(), stop).await?;
    let paused = cluster.client().pause_rebalance(Some(true)).await;
    call("pausing the controller", paused)?;

    let load = Running::start(cluster, args.rate).await?;
    let mut turns = Vec::new();
    for turn in 0..=args.turns {
        let mut slots: [Option<Measure>; 3] = [None, None, None];
        for at in 0..KINDS.len() {
            // Each kind comes first, second and third equally often.
            let at = (at + turn) % KINDS.len();
            let measure = slot(args, cluster, &load, KINDS[at], stop).await?;
            slots[at] = Some(measure);
        }
        let slots = slots.map(|slot| slot.expect("each kind had its slot"));
        eprintln!("turn {turn} of {}: {}", args.turns, told(&slots));
        // The first one warms up.
        if turn > 0 {
            turns.push(slots);
        }
    }
    load.end().await;
    Ok(turns)
}

async fn slot(
    args: &ThrottleArgs,
    cluster: &Measured,
    load: &Running,
    kind: Kind,
    stop: &Stop,
) -> Result<Measure, RigError> {
    let client = cluster.client();
    let limit = (0, kind != Kind::Unthrottled);
    let set = client.copy_limit(Some(limit)).await;
    call("setting the throttle", set)?;
    let rest = Instant::now();
    load.slot(cluster, || rest.elapsed() < REST, stop).await?;
    if kind == Kind::Quiet {
        let (began, time) = (Instant::now(), Duration::from_secs_f64(args.quiet));
        let times = load.slot(cluster, || began.elapsed() < time, stop).await?;
        return Ok(Measure {
            times,
            bytes_per_s: 0.0,
            waited: 0,
        });
    }
    let ordered = moves::order(cluster, MOVING).await?;
    let waited = ordered.waited;
    let (ended, waiter) = moves::watch(client, ordered);
    let times = load.slot(cluster, || !ended.get(), stop).await?;
    let (moves, seconds) = waiter.await?;
    let bytes: u64 = moves.iter().map(|one| one.bytes_done).sum();
    Ok(Measure {
        times,
        bytes_per_s: bytes as f64 / seconds,
        waited,
    })
}

fn told([quiet, adaptive, unthrottled]: &Turn) -> String {
    let one = |slot: &Measure| {
        format!(
            "{:.2} / {:.2} ms",
            slot.times.produce_p99_us() / 1e3,
            slot.times.delivery_p99_us() / 1e3
        )
    };
    format!(
        "p99 of produce / delivery {} without moves, {} adaptive at {:.0} MiB/s, {} unthrottled at {:.0} MiB/s",
        one(quiet),
        one(adaptive),
        adaptive.bytes_per_s / f64::from(1 << 20),
        one(unthrottled),
        unthrottled.bytes_per_s / f64::from(1 << 20),
    )
}

fn ratios(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> Vec<f64> {
    turns.iter().map(of).collect()
}

fn bars(turns: &[Turn]) -> Vec<Bar> {
    let produce = ratios(turns, |[quiet, adaptive, _]| {
        adaptive.times.produce_p99_us() / quiet.times.produce_p99_us()
    });
    let delivery = ratios(turns, |[quiet, adaptive, _]| {
        adaptive.times.delivery_p99_us() / quiet.times.delivery_p99_us()
    });
    let share = ratios(turns, |[_, adaptive, unthrottled]| {
        adaptive.bytes_per_s / unthrottled.bytes_per_s
    });
    vec![
        Bar::paired(
            "p99 of produce, 8 partitions moving / none",
            &produce,
            Bound::AtMost(TIMES_MOST),
        ),
        Bar::paired(
            "p99 of delivery, 8 partitions moving / none",
            &delivery,
            Bound::AtMost(TIMES_MOST),
        ),
        Bar::paired(
            "B of adaptive copies / of unthrottled ones",
            &share,
            Bound::AtLeast(SHARE_LEAST),
        ),
    ]
}

fn figures(args: &ThrottleArgs, turns: &[Turn]) -> Value {
    let of = |at: usize| {
        let values = |figure: &dyn Fn(&Measure) -> f64| {
            let values: Vec<f64> = turns.iter().map(|turn| figure(&turn[at])).collect();
            json!(Pairs::of(&values))
        };
        json!({
            "produce_p50_us": values(&|slot| slot.times.produce.us(0.5) as f64),
            "produce_p99_us": values(&|slot| slot.times.produce_p99_us()),
            "delivery_p50_us": values(&|slot| slot.times.delivery.value_at_quantile(0.5) as f64),
            "delivery_p99_us": values(&|slot| slot.times.delivery_p99_us()),
            "calls_per_s": values(&|slot| slot.times.produce.calls_per_s()),
            "moved_bytes_per_s": values(&|slot| slot.bytes_per_s),
            "orders_that_waited": turns.iter().map(|turn| turn[at].waited).sum::<usize>(),
        })
    };
    let unthrottled = ratios(turns, |[quiet, _, unthrottled]| {
        unthrottled.times.produce_p99_us() / quiet.times.produce_p99_us()
    });
    json!({
        "bytes_a_partition": args.bytes,
        "partitions": PARTITIONS,
        "calls_per_s": args.rate,
        "without_moves": of(0),
        "adaptive": of(1),
        "unthrottled": of(2),
        "produce_p99_unthrottled_over_none": Pairs::of(&unthrottled),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::drive::Slot;
    use hdrhistogram::Histogram;

    fn measure(p99_us: u64, bytes_per_s: f64) -> Measure {
        let mut times = Histogram::new(3).unwrap();
        times.record_n(p99_us, 1_000).unwrap();
        Measure {
            times: Times {
                produce: Slot {
                    calls: 1_000,
                    records: 1_000,
                    bytes: 1_000 << 10,
                    seconds: 1.0,
                    cpu_seconds: None,
                    times: times.clone(),
                },
                delivery: times,
            },
            bytes_per_s,
            waited: 0,
        }
    }

    #[test]
    fn bars_compare_slots_of_one_turn() {
        // The machine is slower in every turn, for all kinds alike.
        let turns: Vec<Turn> = (1..=9)
            .map(|n| {
                [
                    measure(n * 1_000, 0.0),
                    measure(n * 1_400, 60e6 / n as f64),
                    measure(n * 4_000, 100e6 / n as f64),
                ]
            })
            .collect();
        let values: Vec<_> = bars(&turns)
            .iter()
            .map(|b| (b.value.unwrap(), b.ok))
            .collect();
        let near = |at: usize, wanted: f64| (values[at].0 - wanted).abs() < 0.01 && values[at].1;
        assert!(near(0, 1.4) && near(1, 1.4) && near(2, 0.6), "{values:?}");
        let bad: Vec<Turn> = (0..9)
            .map(|_| {
                [
                    measure(1_000, 0.0),
                    measure(1_600, 4e6),
                    measure(2_000, 10e6),
                ]
            })
            .collect();
        assert!(bars(&bad).iter().all(|bar| !bar.ok));
        assert!(bars(&turns[..8]).iter().all(|bar| !bar.ok), "too few");
    }
}
