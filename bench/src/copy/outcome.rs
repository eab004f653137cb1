//! What a run of `copy` came to.
//!
//! What this file keeps true: ratios are of one round; a figure that was not measured is `-`.

use super::CopyArgs;
use super::bare::Copied;
use crate::plot::{Chart, Series};
use crate::report::bars::{Bar, BarReport, Bound, Pairs};
use crate::report::machine::Machine;
use crate::report::{self, mib, render, table};
use serde_json::json;

/// Everything once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) splice: Copied,
    pub(super) bare_splice: Copied,
    pub(super) read_send: Copied,
    pub(super) bare_read_send: Copied,
    /// Bytes/s.
    pub(super) disk_read: f64,
    pub(super) disk_write: f64,
    pub(super) loopback: f64,
    pub(super) rsync: Option<f64>,
    /// Processor seconds a GiB.
    pub(super) checksum_cpu: f64,
}

type Of<T> = fn(&Round) -> T;

/// The copies: what each is called.
const COPIES: [(&str, Of<Copied>); 4] = [
    ("narad, splice", |r| r.splice),
    ("bare splice loop", |r| r.bare_splice),
    ("narad, read + send", |r| r.read_send),
    ("bare read + send loop", |r| r.bare_read_send),
];

/// The limits.
const LIMITS: [(&str, Of<Option<f64>>); 4] = [
    ("disk read", |r| Some(r.disk_read)),
    ("disk write and sync", |r| Some(r.disk_write)),
    ("loopback", |r| Some(r.loopback)),
    ("rsync, file to file", |r| r.rsync),
];

/// Everything.
#[derive(Debug)]
pub struct Outcome {
    report: BarReport,
    rounds: Vec<Round>,
    size: u64,
    lost: u64,
}

/// Both ways are held against the bare splice loop: it is what the hardware gives for the least work.
fn bars(rounds: &[Round], lost: u64) -> Vec<Bar> {
    let ratios = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let mut bars = Vec::new();
    let bare = COPIES[1].1;
    for (way, of) in [("splice", COPIES[0].1), ("read + send", COPIES[2].1)] {
        bars.push(Bar::paired(
            format!("B / bare splice loop, {way}"),
            &ratios(&|r| of(r).bytes_per_s / bare(r).bytes_per_s),
            Bound::AtLeast(0.9),
        ));
        bars.push(Bar::paired(
            format!("CPU a GiB at the source / bare splice loop, {way}"),
            &ratios(&|r| of(r).source_cpu / bare(r).source_cpu),
            Bound::AtMost(1.25),
        ));
        bars.push(Bar::paired(
            format!("CPU a GiB at the target without checksum / bare splice loop, {way}"),
            &ratios(&|r| (of(r).target_cpu - r.checksum_cpu) / bare(r).target_cpu),
            Bound::AtMost(1.25),
        ));
    }
    let lost = Bar::single("records lost", "count", lost as f64, Bound::AtMost(0.0));
    bars.push(lost);
    bars
}

impl Outcome {
    pub(super) fn new(args: &CopyArgs, machine: Machine, rounds: Vec<Round>, lost: u64) -> Self {
        let copied = |copied: Copied| {
            json!({
                "bytes_per_s": copied.bytes_per_s,
                "source_cpu_s_per_gib": copied.source_cpu,
                "target_cpu_s_per_gib": copied.target_cpu,
            })
        };
        let figures = json!({
            "size_bytes": args.size,
            "streams": args.streams,
            "rounds": rounds.iter().map(|r| json!({
                "splice": copied(r.splice),
                "bare_splice": copied(r.bare_splice),
                "read_send": copied(r.read_send),
                "bare_read_send": copied(r.bare_read_send),
                "disk_read_bytes_per_s": r.disk_read,
                "disk_write_bytes_per_s": r.disk_write,
                "loopback_bytes_per_s": r.loopback,
                "rsync_bytes_per_s": r.rsync,
                "checksum_cpu_s_per_gib": r.checksum_cpu,
            })).collect::<Vec<_>>(),
            "lost": lost,
        });
        let report = BarReport {
            command: "copy",
            machine,
            bars: bars(&rounds, lost),
            figures,
        };
        Self {
            report,
            rounds,
            size: args.size,
            lost,
        }
    }

    fn spread(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<Pairs> {
        let values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        Pairs::of(&values)
    }

    fn chart(&self) -> Chart {
        let line = |at: usize, name: &str, dashed, of: &dyn Fn(&Round) -> Option<f64>| Series {
            name: name.to_owned(),
            points: self
                .rounds
                .iter()
                .enumerate()
                .filter_map(|(i, r)| Some((i as f64 + 1.0, of(r)? / f64::from(1 << 20))))
                .collect(),
            dashed,
            colour: at,
        };
        let copies = COPIES.iter().enumerate();
        let mut series: Vec<Series> = copies
            .map(|(at, (name, of))| line(at, name, false, &|r| Some(of(r).bytes_per_s)))
            .collect();
        let limits = LIMITS.iter().enumerate();
        series.extend(limits.map(|(at, (name, of))| line(at, name, true, of)));
        series.retain(|series| !series.points.is_empty());
        Chart {
            title: "Bandwidth of a copy, and what limits it".into(),
            x: "round".into(),
            y: "MiB/s".into(),
            falling: true,
            series,
        }
    }
}

impl report::Outcome for Outcome {
    fn report(&self) -> &BarReport {
        &self.report
    }

    fn text(&self) -> String {
        let mut out = table(&[
            "",
            ">MiB/s",
            ">q1 .. q3",
            ">CPU s/GiB at the source",
            ">at the target",
        ]);
        let speed = |p: Option<Pairs>| {
            p.map_or(["-".into(), "-".into()], |p| {
                let spread = format!("{} .. {}", mib(p.q1 as u64), mib(p.q3 as u64));
                [mib(p.median as u64), spread]
            })
        };
        let seconds = |p: Option<Pairs>| p.map_or("-".into(), |p| format!("{:.3}", p.median));
        for (name, of) in COPIES {
            let [median, spread] = speed(self.spread(|r| Some(of(r).bytes_per_s)));
            out.add_row(vec![
                name.to_owned(),
                median,
                spread,
                seconds(self.spread(|r| Some(of(r).source_cpu))),
                seconds(self.spread(|r| Some(of(r).target_cpu))),
            ]);
        }
        for (name, of) in LIMITS {
            let [median, spread] = speed(self.spread(of));
            out.add_row(vec![
                name.to_owned(),
                median,
                spread,
                "-".into(),
                "-".into(),
            ]);
        }
        let checksum = seconds(self.spread(|r| Some(r.checksum_cpu)));
        format!(
            "copies of {} MiB, each with its syncs; medians of {} rounds; the checksum alone costs {checksum} \
             CPU s/GiB\n\n{}\n\n{}\n\nlost: {}",
            mib(self.size),
            self.rounds.len(),
            render(&out),
            self.report.text(),
            self.lost
        )
    }

    fn lost(&self) -> u64 {
        self.lost
    }

    fn charts(&self) -> Vec<(&'static str, Chart)> {
        vec![("copy", self.chart())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_compare_within_a_round() {
        let copied = |b: f64, source_cpu, target_cpu| Copied {
            bytes_per_s: b,
            source_cpu,
            target_cpu,
        };
        let round = Round {
            splice: copied(95.0, 0.2, 0.6),
            bare_splice: copied(100.0, 0.2, 0.4),
            read_send: copied(80.0, 0.3, 0.4),
            bare_read_send: copied(100.0, 0.2, 0.4),
            disk_read: 200.0,
            disk_write: 150.0,
            loopback: 900.0,
            rsync: None,
            checksum_cpu: 0.1,
        };
        let bars = bars(&[round; 9], 0);
        let ok: Vec<bool> = bars.iter().map(|bar| bar.ok).collect();
        assert_eq!(ok, [true, true, true, false, false, true, true]);
        assert!((bars[2].value.unwrap() - 1.25).abs() < 1e-9);
    }
}
