//! Bars: a figure, the bound that it has to keep, and whether it does; and the document around them that
//! every benchmark prints.
//!
//! What this file keeps true: a ratio is the median of pairs that were measured in turns, with its spread
//! beside it; too few pairs, or a figure that is no number, is a bar that is not kept.

use super::machine::Machine;
use super::{render, table};
use crate::limits::PAIRS_MIN;
use serde::Serialize;
use serde_json::{Value, json};

/// What a figure has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// This, or less.
    AtMost(f64),
    /// This, or more.
    AtLeast(f64),
}

impl Bound {
    /// Whether `value` keeps it.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// Values of several pairs or runs, in order of size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pairs {
    /// How many.
    pub count: usize,
    /// Smallest.
    pub lowest: f64,
    /// A quarter is not above it.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// A quarter is not below it.
    pub q3: f64,
    /// Largest.
    pub highest: f64,
}

impl Pairs {
    /// Of these values; `None` when there are none or one is no number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let high = (low + 1).min(sorted.len() - 1);
            sorted[low] * (1.0 - part) + sorted[high] * part
        };
        Some(Self {
            count: sorted.len(),
            lowest: at(0.0),
            q1: at(0.25),
            median: at(0.5),
            q3: at(0.75),
            highest: at(1.0),
        })
    }
}

/// A figure and its bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What it is about; unique in a report.
    pub name: String,
    /// The figure; `None` when there is none.
    pub value: Option<f64>,
    /// Its unit, as in `ratio` or `bytes`.
    pub unit: &'static str,
    /// What it has to keep.
    pub bound: Bound,
    /// Whether it does.
    pub ok: bool,
    /// What it is the median of, for a bar of pairs.
    pub pairs: Option<Pairs>,
}

impl Bar {
    /// A figure that was measured or counted once.
    #[must_use]
    pub fn single(name: impl Into<String>, unit: &'static str, value: f64, bound: Bound) -> Self {
        let value = Some(value).filter(|v| v.is_finite());
        Self {
            name: name.into(),
            value,
            unit,
            bound,
            ok: value.is_some_and(|v| bound.holds(v)),
            pairs: None,
        }
    }

    /// The median of the ratios of pairs; not kept with fewer than [`PAIRS_MIN`] of them.
    #[must_use]
    pub fn paired(name: impl Into<String>, ratios: &[f64], bound: Bound) -> Self {
        Self::median(name, "ratio", ratios, bound)
    }

    /// The median of several values in another unit; otherwise as [`Self::paired`].
    #[must_use]
    pub fn median(
        name: impl Into<String>,
        unit: &'static str,
        values: &[f64],
        bound: Bound,
    ) -> Self {
        let pairs = Pairs::of(values);
        let value = pairs.map(|p| p.median);
        Self {
            name: name.into(),
            value,
            unit,
            bound,
            ok: values.len() >= PAIRS_MIN && value.is_some_and(|v| bound.holds(v)),
            pairs,
        }
    }
}

/// What a benchmark prints: where it ran, its bars, and whatever else it has measured.
#[derive(Clone, Debug)]
pub struct BarReport {
    /// The command, as in `storage`.
    pub command: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// The bars.
    pub bars: Vec<Bar>,
    /// Everything else, for programs.
    pub figures: Value,
}

impl BarReport {
    /// Whether every bar is kept; a report without bars is not good.
    #[must_use]
    pub fn is_good(&self) -> bool {
        !self.bars.is_empty() && self.bars.iter().all(|bar| bar.ok)
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "format": 1,
            "command": self.command,
            "machine": self.machine,
            "bars": self.bars,
            "ok": self.is_good(),
            "figures": self.figures,
        })
    }

    /// The bars and the machine, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut rows = table(&["bar", ">value", ">bound", "unit", ">q1 .. q3", ">pairs", ""]);
        for bar in &self.bars {
            rows.add_row(vec![
                bar.name.clone(),
                bar.value.map_or_else(|| "-".into(), number),
                bar.bound.to_string(),
                bar.unit.to_owned(),
                bar.pairs.map_or_else(
                    || "-".into(),
                    |p| format!("{} .. {}", number(p.q1), number(p.q3)),
                ),
                bar.pairs
                    .map_or_else(|| "-".into(), |p| p.count.to_string()),
                if bar.ok { "ok" } else { "MISSED" }.to_owned(),
            ]);
        }
        format!("{}\n\n{}", self.machine.text(), render(&rows))
    }
}

/// Three digits that matter, and whole numbers as they are.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_the_median_of_enough_pairs() {
        let mut ratios = vec![0.9, 0.8, 0.95, 0.7, 1.0, 0.85, 0.99, 0.6, 0.2];
        let bar = Bar::paired("append", &ratios, Bound::AtLeast(0.85));
        assert_eq!((bar.value, bar.ok), (Some(0.85), true));
        let pairs = bar.pairs.unwrap();
        assert_eq!((pairs.count, pairs.lowest, pairs.highest), (9, 0.2, 1.0));
        assert!(!Bar::paired("append", &ratios, Bound::AtMost(0.8)).ok);
        ratios.pop();
        assert!(!Bar::paired("too few", &ratios, Bound::AtLeast(0.1)).ok);
        ratios.push(f64::NAN);
        let broken = Bar::paired("no number", &ratios, Bound::AtLeast(0.1));
        assert_eq!((broken.value, broken.ok), (None, false));
    }

    #[test]
    fn a_report_without_bars_is_not_good() {
        let mut report = BarReport {
            command: "none",
            machine: Machine::of(std::path::Path::new("/")),
            bars: Vec::new(),
            figures: json!({}),
        };
        assert!(!report.is_good());
        report
            .bars
            .push(Bar::single("count", "bytes", 4096.0, Bound::AtMost(4096.0)));
        assert!(report.is_good());
        assert_eq!(report.json()["bars"][0]["bound"]["at_most"], 4096.0);
        assert!(report.text().contains("<= 4096"), "{}", report.text());
        report.bars.push(Bar::single(
            "ratio",
            "ratio",
            f64::INFINITY,
            Bound::AtLeast(1.0),
        ));
        assert!(!report.is_good());
    }
}
