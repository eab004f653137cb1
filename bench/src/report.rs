//! Figures of a run for people and for programs: freezes, bandwidth, and tables of them.
//!
//! What this file keeps true: quantiles come from histograms of every sample, never from averages;
//! an empty sample is shown as `-`, not as 0. [`bars`] has what every benchmark with bounds prints.

pub mod bars;
pub mod machine;

use crate::plot::{Chart, PlotError};
use bars::BarReport;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hdrhistogram::Histogram;
use narad_wire::client::{FreezeSplitView, MoveView};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// p50, p99 and the largest of a sample, in its own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl Spread {
    /// Of these values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = u64>) -> Self {
        // Three digits, growing by itself: the range of a freeze is not known in advance.
        let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
        for value in values {
            histogram.record(value).expect("the histogram grows");
        }
        Self::from(&histogram)
    }
}

impl From<&Histogram<u64>> for Spread {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            max: histogram.max(),
        }
    }
}

/// A part of a freeze: its name and how to read it, in µs.
pub type Part = (&'static str, fn(&FreezeSplitView) -> u64);

/// The six parts of a freeze.
pub const PARTS: [Part; 6] = [
    ("settle", |split| split.settle_us),
    ("drain", |split| split.drain_us),
    ("persist", |split| split.persist_us),
    ("install", |split| split.install_us),
    ("flip", |split| split.flip_us),
    ("takeover", |split| split.takeover_us),
];

/// What the moves of a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MoveFigures {
    /// Moves that ended with a new owner.
    pub moves: u64,
    /// Moves that ended otherwise.
    pub not_flipped: u64,
    /// Bytes that went to the new owners.
    pub bytes: u64,
    /// B: all bytes over the time of all moves, in bytes/s.
    pub bytes_per_s: u64,
    /// Moves whose tail came below the lag bound before the freeze.
    pub converged: u64,
    /// Whole freezes, in µs.
    pub freeze_us: Spread,
    /// Parts of them, in µs, in the order of [`PARTS`].
    pub split_us: Vec<(&'static str, Spread)>,
    /// Copy passes.
    pub passes: Spread,
    /// Bytes left at the end of the last pass.
    pub tail_bytes: Spread,
}

impl MoveFigures {
    /// Of finished moves.
    #[must_use]
    pub fn of(finished: &[MoveView]) -> Self {
        let flipped: Vec<&MoveView> = finished
            .iter()
            .filter(|one| one.outcome == "flipped")
            .collect();
        let bytes: u64 = flipped.iter().map(|one| one.bytes_done).sum();
        let elapsed_ms: u64 = flipped.iter().map(|one| one.elapsed_ms).sum();
        let frozen = |one: &&&MoveView| one.freeze_us > 0;
        Self {
            moves: flipped.len() as u64,
            not_flipped: (finished.len() - flipped.len()) as u64,
            bytes,
            bytes_per_s: bytes
                .saturating_mul(1_000)
                .checked_div(elapsed_ms)
                .unwrap_or(0),
            converged: flipped.iter().filter(|one| one.converged).count() as u64,
            freeze_us: Spread::of(flipped.iter().filter(frozen).map(|one| one.freeze_us)),
            split_us: PARTS
                .iter()
                .map(|(name, part)| {
                    let values = flipped.iter().filter(frozen).map(|one| part(&one.split));
                    (*name, Spread::of(values))
                })
                .collect(),
            passes: Spread::of(flipped.iter().map(|one| u64::from(one.passes))),
            tail_bytes: Spread::of(flipped.iter().filter_map(|one| one.tails.last().copied())),
        }
    }
}

/// A table; heads that begin with `>` are set to the right.
#[must_use]
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads.iter().map(|head| head.trim_start_matches('>')));
    for (at, head) in heads.iter().enumerate() {
        let column = table.column_mut(at).expect("a head makes a column");
        column.set_padding((0, 2));
        if head.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table as text, without blanks at the ends of lines.
#[must_use]
pub fn render(table: &Table) -> String {
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Microseconds as milliseconds with two digits, or `-`.
#[must_use]
pub fn ms(us: u64, samples: u64) -> String {
    if samples == 0 {
        return "-".to_owned();
    }
    format!("{:.2}", us as f64 / 1e3)
}

/// p50 / p99 / max in milliseconds.
#[must_use]
pub fn spread_ms(spread: &Spread) -> String {
    let Spread {
        count,
        p50,
        p99,
        max,
    } = *spread;
    format!(
        "{} / {} / {}",
        ms(p50, count),
        ms(p99, count),
        ms(max, count)
    )
}

/// Why results were not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A plot.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A file.
    #[error("cannot write {path}: {error}; name another directory with --out")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// What a benchmark that moves partitions came to.
pub trait Outcome {
    /// Bars and figures.
    fn report(&self) -> &BarReport;

    /// For people; the last line is `lost: N`.
    fn text(&self) -> String;

    /// Records lost.
    fn lost(&self) -> u64;

    /// Plots, each with the name of its files.
    fn charts(&self) -> Vec<(&'static str, Chart)>;

    /// Writes all of it into `dir`, which is made where it is missing.
    ///
    /// # Errors
    /// [`SaveError`].
    fn save(&self, dir: &Path) -> Result<(), SaveError> {
        let report = self.report();
        let write = |ending: &str, content: String| {
            let path = dir.join(format!("{}.{ending}", report.command));
            std::fs::create_dir_all(dir)
                .and_then(|()| std::fs::write(&path, content))
                .map_err(|error| SaveError::File { path, error })
        };
        write("json", format!("{:#}\n", report.json()))?;
        write("txt", format!("{}\n", self.text()))?;
        for (name, chart) in self.charts() {
            chart.save(dir, name)?;
        }
        Ok(())
    }
}

/// Bytes as MiB with one digit.
#[must_use]
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flipped(freeze_us: u64, bytes_done: u64) -> MoveView {
        MoveView {
            outcome: "flipped".into(),
            freeze_us,
            bytes_done,
            elapsed_ms: 500,
            passes: 2,
            tails: vec![9_000, 40],
            converged: true,
            split: FreezeSplitView {
                drain_us: freeze_us / 2,
                ..FreezeSplitView::default()
            },
            ..MoveView::default()
        }
    }

    #[test]
    fn figures_add_up() {
        let mut moves: Vec<MoveView> = (1..=4).map(|n| flipped(n * 100, 1_000)).collect();
        moves.push(MoveView {
            outcome: "cancelled".into(),
            ..MoveView::default()
        });
        let figures = MoveFigures::of(&moves);
        assert_eq!(
            (figures.moves, figures.not_flipped, figures.bytes),
            (4, 1, 4_000)
        );
        assert_eq!(figures.bytes_per_s, 2_000);
        assert_eq!((figures.freeze_us.count, figures.freeze_us.max), (4, 400));
        assert_eq!(
            figures.split_us[1],
            ("drain", Spread::of([50, 100, 150, 200]))
        );
        assert_eq!(figures.tail_bytes.max, 40);
    }

    #[test]
    fn nothing_is_shown_as_nothing() {
        assert_eq!(spread_ms(&Spread::default()), "- / - / -");
        assert_eq!(spread_ms(&Spread::of([1_500])), "1.50 / 1.50 / 1.50");
        assert_eq!(MoveFigures::of(&[]).bytes_per_s, 0);
    }
}
