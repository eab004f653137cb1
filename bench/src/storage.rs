//! `narad-bench storage`: the log on this disk, against a raw io_uring loop on the same disk.
//!
//! What this file keeps true: every bar of a ratio is the median of pairs that took turns in this run;
//! the raw loop's space is in the state that the bar's name says; everything written is removed.

pub mod append;
pub mod opening;
pub mod pairs;
pub mod place;
pub mod raw;
pub mod reading;

use crate::limits::PAIRS_MIN;
use crate::report::bars::{Bar, BarReport};
use crate::report::machine::Machine;
use crate::stop::Stop;
use crate::units::parse_bytes;
use narad_storage::{AppendError, StorageError};
use place::Place;
use raw::Space;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct StorageArgs {
    /// A directory on the disk that is measured; not tmpfs
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Pairs of each bar, at least 9
    #[arg(long, default_value_t = 31, value_name = "N")]
    pub pairs: usize,
    /// Size of the small partition that is opened
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub small: u64,
    /// Size of the large partition that is opened; 0 leaves opening out
    #[arg(long, default_value = "10GiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub large: u64,
    /// Only bars whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Exit with 1 when a bar falls short
    #[arg(long)]
    pub check: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum StorageBenchError {
    /// The log.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An append.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The raw loop.
    #[error("the raw loop failed: {0}; --dir names another disk")]
    Raw(#[from] std::io::Error),
    /// Too few pairs.
    #[error(
        "--pairs {0} is too few for a median that one disturbance does not move; use {PAIRS_MIN} or more"
    )]
    TooFewPairs(usize),
    /// Nothing is left to do.
    #[error("no bar has '{0}' in its name")]
    NoBar(String),
    /// By a signal.
    #[error("stopped by a signal")]
    Stopped,
}

/// Everything measured beside the bars, by name.
#[derive(Debug, Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Notes a figure.
    pub fn add(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }
}

/// Runs all bars.
///
/// # Errors
/// [`StorageBenchError`].
pub async fn run(args: &StorageArgs, stop: &Stop) -> Result<BarReport, StorageBenchError> {
    if args.pairs < PAIRS_MIN {
        return Err(StorageBenchError::TooFewPairs(args.pairs));
    }
    let place = Place::new(&args.dir)?;
    narad_storage::prepare_executor(place.dir()).await?;
    let machine = Machine::of(place.dir());
    let mut figures = Figures::default();
    let mut bars: Vec<Bar> = Vec::new();
    let pairs = args.pairs;
    let wanted = |name: &str| {
        args.only
            .as_ref()
            .is_none_or(|text| name.contains(text.as_str()))
    };
    for shape in append::BARS.iter().chain(&append::FIGURES) {
        if wanted(shape.name) {
            progress(stop, shape.name)?;
            let bar = append::bandwidth(&place, shape, Space::Preallocated, pairs, &mut figures);
            let bar = bar.await?;
            if shape.depth == 1 {
                bars.push(bar);
            }
        }
    }
    if wanted("one 1 KiB append") {
        progress(stop, "one 1 KiB append")?;
        bars.push(append::single(&place, Space::Written, pairs, &mut figures).await?);
    }
    if wanted("appenders") {
        progress(stop, "appenders")?;
        bars.push(append::shared(&place, pairs, &mut figures).await?);
    }
    if wanted("sequential read") {
        progress(stop, "sequential read")?;
        bars.push(reading::sequential(&place, pairs, &mut figures).await?);
    }
    if wanted("opening") && args.large > 0 {
        progress(stop, "opening")?;
        let opened = opening::growth(&place, args.small, args.large, stop, &mut figures).await?;
        bars.extend(opened);
    }
    if bars.is_empty() {
        return Err(StorageBenchError::NoBar(
            args.only.clone().unwrap_or_default(),
        ));
    }
    Ok(BarReport {
        command: "storage",
        machine,
        bars,
        figures: Value::Object(figures.0),
    })
}

fn progress(stop: &Stop, what: &str) -> Result<(), StorageBenchError> {
    if stop.wanted() {
        return Err(StorageBenchError::Stopped);
    }
    eprintln!("measuring: {what}");
    Ok(())
}
