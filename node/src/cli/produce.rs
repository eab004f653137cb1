//! `narad produce`: lines or generated records into a topic.
//!
//! What this file keeps true: every record that was read is acknowledged, or the command fails and
//! names the first one that is not. A batch whose answer was lost is sent again (at least once),
//! and that is told.

use super::args::ProduceArgs;
use super::connect::Session;
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::lines::{BATCH_BYTES, Batch, Bounds, Source};
use super::output::{Out, Progress};
use super::totals::Totals;
use super::units;
use futures::FutureExt;
use futures::future::select;
use futures::stream::{FuturesUnordered, StreamExt};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Produced, Record};
use narad_wire::error::{WireError, WireFault};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Calls in flight: enough to share group commits, few enough that a lost connection leaves few
/// answers unknown.
const IN_FLIGHT: usize = 4;
/// A batch that is refused for this long with reasons that pass by themselves fails the command.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// First and longest pause before a batch is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What has happened so far.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    bytes: u64,
    committed: u64,
    accepted: u64,
    sent_again: u64,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`] naming the first record that was not acknowledged.
pub async fn run(session: &Session, args: ProduceArgs, interrupt: &mut Interrupt) -> CliResult {
    let source = match (&args.file, args.count, args.size) {
        (Some(path), _, _) => Source::file(path)?,
        (None, Some(count), Some(size)) => Source::Generated {
            count,
            size: usize::try_from(size).unwrap_or(usize::MAX),
        },
        _ => Source::Stdin,
    };
    // Wrong topics are found before anything is read.
    let topic = session.describe_topic(&args.topic).await?;
    if let Some(partition) = args.partition
        && partition as usize >= topic.partitions.len()
    {
        return Err(CliError::new(
            "unknownPartition",
            format!("topic {} has no partition {partition}", args.topic),
            format!(
                "its partitions are 0 to {}",
                topic.partitions.len().saturating_sub(1)
            ),
        ));
    }
    let info = session.info().await?;
    let record_max = match topic.settings.max_record_bytes {
        0 => info.max_record_bytes,
        limit => limit.min(info.max_record_bytes),
    };
    let key_bytes = args.key.as_ref().map_or(0, String::len);
    let bounds = Bounds {
        record_max: (record_max as usize).saturating_sub(key_bytes),
        batch_bytes: batch_bytes(args.rate),
        key_bytes,
    };
    let began = Instant::now();
    let mut tally = Tally::default();
    let result = pump(session, &args, source, bounds, interrupt, &mut tally).await;
    report(session.json, &tally, began.elapsed())?;
    result
}

async fn pump(
    session: &Session,
    args: &ProduceArgs,
    source: Source,
    bounds: Bounds,
    interrupt: &mut Interrupt,
    tally: &mut Tally,
) -> CliResult {
    let progress = Progress::new(session.json);
    let began = Instant::now();
    let mut batches = source.start(bounds);
    let mut running = FuturesUnordered::new();
    let mut failure: Option<CliError> = None;
    let (mut reading, mut read_bytes) = (true, 0_u64);
    while reading || !running.is_empty() {
        let room = reading && running.len() < IN_FLIGHT;
        let early = early(args.rate, read_bytes, began);
        match next_event(room, early, &mut batches, &mut running, interrupt).await {
            Event::Read(Ok(batch)) => {
                read_bytes += batch.bytes(bounds.key_bytes) as u64;
                running.push(send(session, args, batch).boxed_local());
            }
            Event::Read(Err(error)) => {
                failure.get_or_insert(error);
                reading = false;
            }
            Event::End => reading = false,
            Event::Interrupted => {
                failure.get_or_insert(CliError::interrupted(
                    "what is counted above is durable",
                    "go on with the records behind it",
                ));
                reading = false;
            }
            Event::Sent(sent) => reading &= settle(sent, tally, &mut failure),
        }
        let speed = units::per_second(tally.bytes, began.elapsed());
        progress.say(format!(
            "{} records acknowledged, {}",
            units::count(tally.records),
            units::rate(speed)
        ));
    }
    failure.map_or(Ok(()), Err)
}

/// Bytes of a batch: a tenth of a second's worth at most, so that a slow rate is steady.
fn batch_bytes(rate: Option<u64>) -> usize {
    match rate {
        Some(rate) if rate > 0 => usize::try_from(rate / 10)
            .unwrap_or(usize::MAX)
            .clamp(1, BATCH_BYTES),
        _ => BATCH_BYTES,
    }
}

/// Counts a batch; false when no more should be read.
fn settle(done: Sent, tally: &mut Tally, failure: &mut Option<CliError>) -> bool {
    tally.records += done.committed + done.accepted;
    tally.committed += done.committed;
    tally.accepted += done.accepted;
    tally.bytes += done.bytes;
    tally.sent_again += done.sent_again;
    if let Some(error) = done.failure {
        failure.get_or_insert(error);
        return false;
    }
    true
}

/// What happens next to a command that reads and sends.
enum Event {
    /// A batch was read, or could not be.
    Read(CliResult<Batch>),
    /// The input is at its end.
    End,
    /// The person wants to stop.
    Interrupted,
    /// A batch is done.
    Sent(Sent),
}

/// Waits for whatever comes first. An input that waits (a terminal, a pipe) or a pause for the rate
/// never keeps finished calls from counting.
async fn next_event<F: Future<Output = Sent>>(
    room: bool,
    early: Duration,
    batches: &mut mpsc::Receiver<CliResult<Batch>>,
    running: &mut FuturesUnordered<F>,
    interrupt: &mut Interrupt,
) -> Event {
    let read = async {
        if !room {
            return futures::future::pending().await;
        }
        let next = async {
            if !early.is_zero() {
                glommio::timer::sleep(early).await;
            }
            batches.recv().await
        };
        match interrupt.unless(next).await {
            Some(Some(batch)) => Event::Read(batch),
            Some(None) => Event::End,
            None => Event::Interrupted,
        }
    };
    let sent = async {
        match running.next().await {
            Some(sent) => Event::Sent(sent),
            None => futures::future::pending().await,
        }
    };
    select(pin!(read), pin!(sent)).await.factor_first().0
}

/// How much too early the next batch would be for the wanted rate.
fn early(rate: Option<u64>, bytes: u64, began: Instant) -> Duration {
    match rate {
        Some(rate) if rate > 0 => {
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            due.saturating_sub(began.elapsed())
        }
        _ => Duration::ZERO,
    }
}

/// How one batch ended.
#[derive(Default)]
struct Sent {
    committed: u64,
    accepted: u64,
    bytes: u64,
    sent_again: u64,
    failure: Option<CliError>,
}

async fn send(session: &Session, args: &ProduceArgs, batch: Batch) -> Sent {
    let mut sent = Sent::default();
    let first = batch.first;
    let key = args.key.as_deref().map(|key| key.as_bytes().to_vec());
    let mut records: Vec<(u64, Record)> = (first..)
        .zip(batch.values)
        .map(|(line, value)| {
            let record = Record {
                key: key.clone(),
                ..Record::new(value)
            };
            (line, record)
        })
        .collect();
    let began = Instant::now();
    let mut pause = PAUSE.0;
    loop {
        let calls: Vec<Record> = records.iter().map(|(_, record)| record.clone()).collect();
        let error = match session
            .produce_once(&args.topic, &calls, args.partition.map(PartitionIndex))
            .await
        {
            Ok(results) => {
                let refused = take_results(&mut records, results, &mut sent);
                if records.is_empty() {
                    return sent;
                }
                match refused {
                    Some(fault) => WireError::Fault(fault),
                    None => WireError::Protocol {
                        message: "fewer results than records".into(),
                    },
                }
            }
            Err(error) => error,
        };
        if !error.is_transient() || began.elapsed() >= GIVE_UP_AFTER {
            let lines = (records[0].0, records[records.len() - 1].0);
            sent.failure = Some(not_acknowledged(lines, error));
            return sent;
        }
        if error.outcome_unknown() {
            sent.sent_again += records.len() as u64;
        }
        glommio::timer::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Takes acknowledged records out; what is left was refused, and the first reason is returned.
fn take_results(
    records: &mut Vec<(u64, Record)>,
    results: Vec<Result<Produced, WireFault>>,
    sent: &mut Sent,
) -> Option<WireFault> {
    let mut results = results.into_iter();
    let mut worst: Option<WireFault> = None;
    records.retain(|(_, record)| match results.next() {
        Some(Ok(produced)) => {
            match produced {
                Produced::Committed { .. } => sent.committed += 1,
                Produced::Accepted => sent.accepted += 1,
            }
            sent.bytes += record.bytes() as u64;
            false
        }
        Some(Err(fault)) => {
            let lasting = !WireError::Fault(fault.clone()).is_transient();
            if worst.is_none() || lasting {
                worst = Some(fault);
            }
            true
        }
        None => true,
    });
    worst
}

fn not_acknowledged((from, to): (u64, u64), error: WireError) -> CliError {
    let unknown = error.outcome_unknown();
    let inner = CliError::from(error);
    let which = if from == to {
        format!("record {from}")
    } else {
        format!("records {from} to {to}")
    };
    let verb = if unknown {
        "may not be stored"
    } else {
        "is not stored"
    };
    CliError {
        message: format!("{which}: {verb}: {}", inner.message),
        ..inner
    }
}

fn report(as_json: bool, tally: &Tally, took: Duration) -> CliResult {
    let totals = Totals {
        records: tally.records,
        bytes: tally.bytes,
        took,
    };
    if as_json {
        let mut out = Out::new();
        out.json(&totals.json(&[
            ("committed", tally.committed),
            ("accepted", tally.accepted),
            ("sent_again", tally.sent_again),
        ]))?;
        return out.flush();
    }
    let mut text = format!(
        "{} records acknowledged ({})",
        units::count(tally.records),
        totals.volume()
    );
    if tally.accepted > 0 {
        text.push_str(&format!(
            "; {} of them are durable here and on their way to their partition",
            units::count(tally.accepted)
        ));
    }
    if tally.sent_again > 0 {
        text.push_str(&format!(
            "; {} were sent again after a lost answer and may be there twice",
            units::count(tally.sent_again)
        ));
    }
    eprintln!("narad: {text}");
    Ok(())
}
