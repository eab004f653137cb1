//! What a run of `freeze` came to: its points, as a table, as JSON and as plots.
//!
//! What this file keeps true: quantiles come from every sample; the model stands beside what was measured;
//! a figure that has no samples is shown as `-`.

use super::{FreezeArgs, bars};
use crate::load::Timings;
use crate::plot::{Chart, Series};
use crate::report::bars::BarReport;
use crate::report::machine::Machine;
use crate::report::{self, MoveFigures, Spread, mib, ms, render, spread_ms, table};
use narad_core::defaults::{FREEZE_BUDGET_MS, LAG_BOUND_MAX_BYTES, PASSES_MAX};
use narad_core::moves::CatchUpLimits;
use narad_core::moves::convergence::Convergence;
use narad_wire::client::MoveView;
use serde_json::{Value, json};

/// Tails of a catch-up that are put beside the model.
const TAILS_SHOWN: usize = 40;

/// One W/B and size: its moves and what clients saw.
#[derive(Debug)]
pub struct Point {
    /// Bytes that were filled in before the first move.
    pub size: u64,
    /// W/B that was asked for.
    pub ratio: f64,
    /// B that was set, in bytes/s; 0 where nothing limits it.
    pub bandwidth: u64,
    /// Whether a B was set.
    pub throttled: bool,
    /// The moves, as their targets told.
    pub moves: Vec<MoveView>,
    /// The bare steps beside each move, in µs; empty where they were not replayed.
    pub bare_us: Vec<f64>,
    /// How much the log grew by what the writer had acknowledged during moves, in bytes, and how long
    /// those took, in s.
    pub written: (u64, f64),
    /// What clients saw while nothing moved, and during moves.
    pub seen: [Timings; 2],
    /// Produce and consume calls that failed during moves.
    pub failed_calls: u64,
    /// Acknowledged records.
    pub acked: u64,
    /// Acknowledged records that are not in the partition, or with other content.
    pub lost: u64,
}

impl Point {
    pub(super) fn new(size: u64, ratio: f64, bandwidth: u64) -> Self {
        Self {
            size,
            ratio,
            bandwidth,
            throttled: bandwidth > 0,
            moves: Vec::new(),
            bare_us: Vec::new(),
            written: (0, 0.0),
            seen: Default::default(),
            failed_calls: 0,
            acked: 0,
            lost: 0,
        }
    }

    /// W/B that was reached, by what the writer had acknowledged.
    #[must_use]
    pub fn reached(&self) -> f64 {
        let (bytes, seconds) = self.written;
        match self.bandwidth {
            0 => 0.0,
            b => bytes as f64 / seconds.max(1e-3) / b as f64,
        }
    }

    /// The moves that flipped.
    pub(super) fn flipped(&self) -> impl Iterator<Item = &MoveView> {
        self.moves.iter().filter(|one| one.outcome == "flipped")
    }

    /// Medians of the tails: before the first pass, and behind each.
    fn tails(&self) -> Vec<f64> {
        let longest = self.flipped().map(|one| one.tails.len()).max().unwrap_or(0);
        (0..longest.min(TAILS_SHOWN))
            .map(|at| {
                let tails = self.flipped().filter_map(|one| one.tails.get(at).copied());
                Spread::of(tails).p50 as f64
            })
            .collect()
    }

    /// S x (W/B)^i, as many as there are tails; W/B as reached.
    fn model(&self) -> Vec<f64> {
        let tails = self.tails();
        let first = tails.first().copied().unwrap_or(0.0);
        (0..tails.len())
            .map(|at| first * self.reached().powi(i32::try_from(at).unwrap_or(i32::MAX)))
            .collect()
    }

    fn json(&self) -> Value {
        let spread = |seen: &Timings| {
            json!({
                "produce_us": Spread::from(&seen.produce_us),
                "delivery_us": Spread::from(&seen.delivery_us),
            })
        };
        json!({
            "size_bytes": self.size,
            "wanted_ratio": self.ratio,
            "reached_ratio": self.reached(),
            "bandwidth_bytes_per_s": self.bandwidth,
            "moves": MoveFigures::of(&self.moves),
            "freezes_us": self.moves.iter().map(|one| one.freeze_us).collect::<Vec<_>>(),
            "bare_us": self.bare_us,
            "tails": self.tails(),
            "tails_model": self.model(),
            "outside": spread(&self.seen[0]),
            "inside": spread(&self.seen[1]),
            "failed_calls": self.failed_calls,
            "acked": self.acked,
            "lost": self.lost,
        })
    }
}

/// The lag bound of a move that measured this B, with the product's defaults.
pub(super) fn lag_bound(bytes_per_s: u64) -> u64 {
    let mut convergence = Convergence::new(CatchUpLimits {
        freeze_budget_ms: FREEZE_BUDGET_MS,
        lag_bound_max_bytes: LAG_BOUND_MAX_BYTES,
        passes_max: PASSES_MAX,
    });
    if bytes_per_s > 0 {
        // A second at that speed.
        convergence.pass_done(bytes_per_s, 1_000_000);
    }
    convergence.lag_bound()
}

/// Everything.
#[derive(Debug)]
pub struct Outcome {
    report: BarReport,
    points: Vec<Point>,
}

impl Outcome {
    pub(super) fn new(args: &FreezeArgs, machine: Machine, points: Vec<Point>) -> Self {
        let figures = json!({
            "bandwidth_bytes_per_s": args.bandwidth,
            "moves_a_point": args.moves,
            "points": points.iter().map(Point::json).collect::<Vec<_>>(),
        });
        let report = BarReport {
            command: "freeze",
            machine,
            bars: bars::of(&points),
            figures,
        };
        Self { report, points }
    }

    fn points_table(&self) -> String {
        let mut out = table(&[
            ">MiB",
            ">W/B",
            ">reached",
            ">moves",
            ">B MiB/s",
            ">passes",
            ">tail KiB",
            ">conv",
            ">freeze ms p50/p99/max",
            ">settle/drain/persist/install/flip/takeover",
            ">produce",
            ">delivery",
            ">lost",
        ]);
        for point in &self.points {
            let moves = MoveFigures::of(&point.moves);
            let parts = moves.split_us.iter();
            let parts: Vec<String> = parts.map(|(_, p)| ms(p.p50, p.count)).collect();
            let p99 = |of: fn(&Timings) -> Spread| {
                let [outside, inside] = [&point.seen[0], &point.seen[1]].map(of);
                format!(
                    "{} / {}",
                    ms(outside.p99, outside.count),
                    ms(inside.p99, inside.count)
                )
            };
            out.add_row(vec![
                mib(point.size),
                point.ratio.to_string(),
                format!("{:.2}", point.reached()),
                format!("{}/{}", moves.moves, point.moves.len()),
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
                p99(|seen| Spread::from(&seen.produce_us)),
                p99(|seen| Spread::from(&seen.delivery_us)),
                point.lost.to_string(),
            ]);
        }
        render(&out)
    }

    fn tails_table(&self) -> String {
        let mut out = table(&[">W/B", "KiB left behind each pass, measured | S x (W/B)^i"]);
        for point in self.points.iter().filter(|p| p.throttled && p.ratio > 0.0) {
            let pairs = point.tails().into_iter().zip(point.model());
            let pairs: Vec<String> = pairs
                .take(10)
                .map(|(tail, model)| format!("{:.0} | {:.0}", tail / 1024.0, model / 1024.0))
                .collect();
            out.add_row(vec![point.ratio.to_string(), pairs.join("   ")]);
        }
        render(&out)
    }

    fn ratios(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.throttled)
    }

    fn freeze_chart(&self) -> Chart {
        let line = |name: &str, colour, dashed, of: &dyn Fn(&Point) -> f64| Series {
            name: name.into(),
            points: self
                .ratios()
                .map(|point| (point.ratio, of(point)))
                .collect(),
            dashed,
            colour,
        };
        let freeze = |point: &Point| MoveFigures::of(&point.moves).freeze_us;
        let at_rest = self.ratios().find(|point| point.ratio == 0.0);
        let at_rest = at_rest.map_or(0.0, |point| freeze(point).p50 as f64 / 1e3);
        let tail_over_b = |point: &Point| {
            let tail = MoveFigures::of(&point.moves).tail_bytes.p50 as f64;
            at_rest + tail / point.bandwidth as f64 * 1e3
        };
        Chart {
            title: "How long a moving partition takes no appends".into(),
            x: "W/B: write rate over copy bandwidth".into(),
            y: "freeze, ms".into(),
            falling: false,
            series: vec![
                line("p50", 0, false, &|p| freeze(p).p50 as f64 / 1e3),
                line("p99", 1, false, &|p| freeze(p).p99 as f64 / 1e3),
                line("max", 2, false, &|p| freeze(p).max as f64 / 1e3),
                line("freeze at 0 + tail / B", 3, true, &tail_over_b),
            ],
        }
    }

    fn tails_chart(&self) -> Chart {
        let mut series = Vec::new();
        for (at, point) in self.ratios().filter(|p| p.ratio > 0.0).enumerate() {
            let kib = |tails: Vec<f64>| {
                let tails = tails.into_iter().enumerate();
                tails.map(|(i, t)| (i as f64, t / 1024.0)).collect()
            };
            for (name, tails, dashed) in [
                (format!("W/B = {}", point.ratio), point.tails(), false),
                (format!("{} by the model", point.ratio), point.model(), true),
            ] {
                series.push(Series {
                    name,
                    points: kib(tails),
                    dashed,
                    colour: at,
                });
            }
        }
        Chart {
            title: "What is left behind each pass".into(),
            x: "passes".into(),
            y: "tail, KiB".into(),
            falling: true,
            series,
        }
    }

    fn sizes_chart(&self) -> Chart {
        let sizes = || self.points.iter().filter(|point| !point.throttled);
        let line = |name: &str, colour, of: &dyn Fn(&Point) -> f64| Series {
            name: name.into(),
            points: sizes()
                .map(|p| (p.size as f64 / f64::from(1 << 20), of(p)))
                .collect(),
            dashed: false,
            colour,
        };
        Chart {
            title: "Freeze without writes, against the partition's size".into(),
            x: "size, MiB".into(),
            y: "ms".into(),
            falling: false,
            series: vec![
                line("freeze, p50", 0, &|p| {
                    MoveFigures::of(&p.moves).freeze_us.p50 as f64 / 1e3
                }),
                line("freeze, max", 1, &|p| {
                    MoveFigures::of(&p.moves).freeze_us.max as f64 / 1e3
                }),
                line("the same steps bare, p50", 2, &|p| {
                    Spread::of(p.bare_us.iter().map(|us| *us as u64)).p50 as f64 / 1e3
                }),
            ],
        }
    }
}

impl report::Outcome for Outcome {
    fn report(&self) -> &BarReport {
        &self.report
    }

    /// The points, how the tails shrank, the bars.
    fn text(&self) -> String {
        format!(
            "{}\n\nparts of the freeze are medians in ms; produce and delivery are p99 in ms, outside / during \
             moves\n\n{}\n\n{}\n\nlost: {}",
            self.points_table(),
            self.tails_table(),
            self.report.text(),
            self.lost()
        )
    }

    fn lost(&self) -> u64 {
        self.points.iter().map(|point| point.lost).sum()
    }

    fn charts(&self) -> Vec<(&'static str, Chart)> {
        vec![
            ("freeze", self.freeze_chart()),
            ("freeze-tails", self.tails_chart()),
            ("freeze-sizes", self.sizes_chart()),
        ]
    }
}
