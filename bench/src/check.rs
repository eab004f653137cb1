//! `narad-bench check`: load on a running cluster until told to stop, then proof by content.
//!
//! What this file keeps true: the last line is `lost: N`, and the exit is a failure when a record is
//! lost, wrong, or cannot be accounted for; moves that happen meanwhile are reported with their freezes.

use crate::ledger::Totals;
use crate::limits::{LOST_SHOWN, MOVES_EVERY, PROGRESS_EVERY};
use crate::lines::{Lines, LinesError};
use crate::load::{self, Load, LoadError};
use crate::replay::{self, Replayed};
use crate::report::{MoveFigures, Spread, mib, render, spread_ms, table};
use crate::servers::Servers;
use crate::stop::Stop;
use crate::units::parse_bytes;
use narad_wire::client::MoveView;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Consumers at work.
const CONSUMERS: usize = 2;
/// Between two looks at whether the run has come to its end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The topic; it must exist
    #[arg(long)]
    pub topic: String,
    /// Text whose lines become records: a file, or a directory with .rs, .md and .txt files
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// How fast to produce, as in 2MiB/s
    #[arg(long, default_value = "2MiB/s", value_parser = parse_bytes)]
    pub rate: u64,
    /// Stop producing after so many seconds (default: at SIGTERM or ctrl-c)
    #[arg(long)]
    pub seconds: Option<u64>,
    /// How long consumers may take for the rest once nothing is produced any more
    #[arg(long, default_value_t = 90, value_name = "SECONDS")]
    pub drain_seconds: u64,
}

/// Why a check has no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No lines.
    #[error(transparent)]
    Lines(#[from] LinesError),
    /// The load could not go on.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Everything that a check has found.
#[derive(Debug)]
pub struct Outcome {
    /// By the ledger.
    pub totals: Totals,
    /// The moves of the time of the run.
    pub moves: MoveFigures,
    /// Produce calls, in µs.
    pub produce_us: Spread,
    /// What the logs hold.
    pub replayed: Replayed,
    /// Whether consumers got everything within the time.
    pub drained: bool,
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time of producing.
    pub produced_for: Duration,
    /// Calls that failed and were repeated.
    pub failed_calls: u64,
    /// Records sent again after a lost answer.
    pub sent_again: u64,
    /// Numbers of some lost records.
    pub lost_numbers: Vec<usize>,
}

impl Outcome {
    /// Lost by any measure.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.totals.lost.max(self.totals.lost_in_log)
    }

    /// Whether nothing is lost, wrong or unaccounted for.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let totals = &self.totals;
        self.lost() == 0
            && totals.wrong == 0
            && self.replayed.skipped == 0
            && self.drained
            && totals.acked > 0
    }
}

/// Runs the check.
///
/// # Errors
/// [`CheckError`] when it cannot be carried through.
pub async fn run(
    args: &CheckArgs,
    servers: Rc<Servers>,
    stop: &Stop,
) -> Result<Outcome, CheckError> {
    let mut lines = Lines::load(&args.input)?;
    let topic = servers.next().describe_topic(&args.topic).await;
    let topic = topic.map_err(|error| LoadError::Call {
        what: "looking at the topic",
        error,
    })?;
    let load = Load::new(&args.topic, None, run_name());
    let seen = Rc::new(RefCell::new(BTreeMap::new()));
    let running_moves = Rc::new(Cell::new(0));
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|_| {
            let (load, servers) = (load.clone(), servers.clone());
            glommio::spawn_local(async move { load::consume(&load, &servers).await })
        })
        .collect();
    let watcher = {
        let (load, servers) = (load.clone(), servers.clone());
        let (seen, running) = (seen.clone(), running_moves.clone());
        glommio::spawn_local(async move { watch_moves(&load, &servers, &seen, &running).await })
    };
    let began = Instant::now();
    let ender = {
        let (load, stop, seconds) = (load.clone(), stop.clone(), args.seconds);
        glommio::spawn_local(async move {
            end_in_time(&load, &stop, seconds, began, &running_moves).await
        })
    };
    load::produce(&load, &servers, &mut lines, args.rate, None).await;
    let produced_for = began.elapsed();
    let drained = drain(&load, Duration::from_secs(args.drain_seconds)).await;
    load.done.set(true);
    for consumer in consumers {
        consumer.await;
    }
    watcher.await;
    ender.await;
    if let Some(error) = load.failure.borrow_mut().take() {
        return Err(error.into());
    }
    eprintln!("check: reading all partitions back");
    let partitions = u32::try_from(topic.partitions.len()).expect("partitions are numbered by u32");
    let replayed = replay::all(&load, &servers, partitions).await?;
    let ledger = load.ledger.borrow();
    let finished: Vec<MoveView> = seen.borrow().values().cloned().collect();
    Ok(Outcome {
        totals: ledger.totals(true),
        moves: MoveFigures::of(&finished),
        produce_us: Spread::from(&*load.produce_us.borrow()),
        replayed,
        drained,
        bytes: load.acked_bytes.get(),
        produced_for,
        failed_calls: load.failed_calls.get(),
        sent_again: load.sent_again.get(),
        lost_numbers: ledger.lost_numbers(LOST_SHOWN),
    })
}

/// A name that tells the records of this run from those of others.
fn run_name() -> String {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    format!("{:x}-{:x}", since.as_millis(), std::process::id())
}

/// Sets the load's stop when the person or the clock wants it, and prints progress meanwhile.
async fn end_in_time(
    load: &Load,
    stop: &Stop,
    seconds: Option<u64>,
    began: Instant,
    moves: &Cell<usize>,
) {
    let mut next_line = PROGRESS_EVERY;
    while !load.done.get() {
        if stop.wanted()
            || seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds))
        {
            load.stop.set(true);
        }
        if began.elapsed() >= next_line {
            next_line += PROGRESS_EVERY;
            let (acked, delivered) = load.ledger.borrow().progress();
            eprintln!(
                "check: {:>4} s  acknowledged {acked}  delivered {delivered}  behind {}  moving {}  retried calls {}",
                began.elapsed().as_secs(),
                acked - delivered,
                moves.get(),
                load.failed_calls.get()
            );
        }
        glommio::timer::sleep(LOOK_EVERY).await;
    }
}

/// Waits until every acknowledged record was delivered.
async fn drain(load: &Load, within: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < within && !load.failed() {
        if load.ledger.borrow().complete() {
            return true;
        }
        glommio::timer::sleep(LOOK_EVERY).await;
    }
    load.ledger.borrow().complete()
}

/// Collects finished moves, so that none falls out of the nodes' bounded memory of them.
async fn watch_moves(
    load: &Load,
    servers: &Servers,
    seen: &RefCell<BTreeMap<u64, MoveView>>,
    running: &Cell<usize>,
) {
    let mut before: Option<u64> = None;
    loop {
        let last = load.done.get();
        if let Ok(view) = servers.next().moves().await {
            running.set(view.moves.len());
            // Moves that were over when the run began are not of this run.
            let newest = view
                .finished
                .iter()
                .map(|one| one.move_id)
                .max()
                .unwrap_or(0);
            let before = *before.get_or_insert(newest);
            for one in view.finished {
                if one.move_id > before && one.topic == load.topic {
                    seen.borrow_mut().insert(one.move_id, one);
                }
            }
        }
        if last {
            return;
        }
        glommio::timer::sleep(MOVES_EVERY).await;
    }
}

impl Outcome {
    /// For programs.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        json!({
            "records": self.totals,
            "bytes": self.bytes,
            "produced_for_ms": u64::try_from(self.produced_for.as_millis()).unwrap_or(u64::MAX),
            "produce_us": self.produce_us,
            "failed_calls": self.failed_calls,
            "sent_again": self.sent_again,
            "moves": self.moves,
            "replayed": self.replayed.records,
            "unreadable": self.replayed.skipped,
            "drained": self.drained,
            "lost": self.lost(),
        })
    }

    /// For people; the last line is `lost: N`.
    #[must_use]
    pub fn text(&self) -> String {
        let totals = &self.totals;
        let mut rows = table(&["", ">"]);
        let mut row = |name: &str, value: String| {
            rows.add_row(vec![name.to_owned(), value]);
        };
        row(
            "moves",
            format!("{} ({} converged)", self.moves.moves, self.moves.converged),
        );
        if self.moves.not_flipped > 0 {
            row(
                "moves that ended otherwise",
                self.moves.not_flipped.to_string(),
            );
        }
        row("moved bytes", format!("{} MiB", mib(self.moves.bytes)));
        row(
            "B, copy over the whole move",
            format!("{} MiB/s", mib(self.moves.bytes_per_s)),
        );
        row(
            "freeze p50 / p99 / max",
            format!("{} ms", spread_ms(&self.moves.freeze_us)),
        );
        for (part, spread) in &self.moves.split_us {
            row(&format!("  {part}"), format!("{} ms", spread_ms(spread)));
        }
        row(
            "produced",
            format!("{} ({} MiB)", totals.acked, mib(self.bytes)),
        );
        row(
            "produce call p50 / p99 / max",
            format!("{} ms", spread_ms(&self.produce_us)),
        );
        row("delivered", totals.delivered.to_string());
        row("duplicates", totals.duplicates.to_string());
        row("found in the logs", self.replayed.records.to_string());
        row("answers unknown at the end", totals.unknown.to_string());
        row("wrong content", totals.wrong.to_string());
        let mut text = render(&rows);
        if !self.drained {
            text.push_str(
                "\nconsumers did not get everything in time; --drain-seconds gives them more",
            );
        }
        if self.replayed.skipped > 0 {
            text.push_str(&format!(
                "\n{} records in the logs are unreadable",
                self.replayed.skipped
            ));
        }
        if !self.lost_numbers.is_empty() {
            text.push_str(&format!(
                "\nnever delivered, among others: {:?}",
                self.lost_numbers
            ));
        }
        text.push_str(&format!("\nlost: {}", self.lost()));
        text
    }
}
