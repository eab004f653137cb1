//! `narad replay`: a partition's records from an offset, without leases.
//!
//! What this file keeps true: offsets are printed as they are in the log; records that can no
//! longer be read are counted and told, never passed over in silence; output that ends early is a failure,
//! and its totals say how far it goes.

use super::args::ReplayArgs;
use super::connect::Session;
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::{Out, Progress, bytes_for_json};
use super::totals::Totals;
use super::units;
use narad_core::ids::{Offset, PartitionIndex, WallMs};
use narad_wire::client::Record;
use narad_wire::client::calls::ReplayRequest;
use narad_wire::limits::READ_MAX_BYTES;
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Records asked for at a time.
const BATCH_RECORDS: u32 = 10_000;

/// Refuses a range that makes no sense, before any node is asked.
///
/// # Errors
/// [`CliError`] of wrong usage.
pub fn check(args: &ReplayArgs) -> CliResult {
    if args.to.is_some_and(|to| Some(to) < args.from) {
        return Err(CliError::usage(
            "--to lies before --from",
            "offsets count upwards",
        ));
    }
    Ok(())
}

/// How far it is.
struct Tally {
    printed: u64,
    bytes: u64,
    skipped: u64,
    /// Offset of the next record.
    at: u64,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`] of a call or of the output; also when records could not be read.
pub async fn run(session: &Session, args: ReplayArgs, interrupt: &mut Interrupt) -> CliResult {
    let began = Instant::now();
    let mut tally = Tally {
        printed: 0,
        bytes: 0,
        skipped: 0,
        at: args.from.unwrap_or(0),
    };
    let result = pump(session, &args, interrupt, &mut tally).await;
    report(session.json, &tally, began.elapsed());
    result?;
    if tally.skipped > 0 {
        return Err(CliError::new(
            "corrupt",
            format!(
                "{} records could not be read (checksum)",
                units::count(tally.skipped)
            ),
            "narad verify on the owner's data directory names the damaged frames",
        ));
    }
    Ok(())
}

async fn pump(
    session: &Session,
    args: &ReplayArgs,
    interrupt: &mut Interrupt,
    tally: &mut Tally,
) -> CliResult {
    let mut out = Out::new();
    let progress = Progress::beside_results(session.json);
    let began = Instant::now();
    let to = args.to.unwrap_or(u64::MAX);
    let mut from_time = WallMs(args.from_time.unwrap_or(0));
    while tally.at < to {
        let max_bytes = u32::try_from(READ_MAX_BYTES).expect("the limit fits");
        let ask = ReplayRequest {
            partition: PartitionIndex(args.partition),
            from: Offset(tally.at),
            from_time,
            to: Offset(to),
            max_records: BATCH_RECORDS,
            max_bytes,
        };
        let call = session.replay_once(&args.topic, ask);
        let Some(batch) = interrupt.unless(call).await else {
            out.flush()?;
            return Err(CliError::interrupted(
                "the records counted above are printed, the ones behind them are not",
                format!("go on with --from {}", tally.at),
            ));
        };
        let batch = batch?;
        from_time = WallMs(0);
        if tally.at < batch.start.0 {
            let (from, before) = (tally.at, batch.start.0.min(to));
            progress.note(&format!(
                "offsets {from} to {} are no longer kept (retention)",
                before - 1
            ));
        }
        for one in &batch.records {
            if session.json {
                out.json(&record_json(one.offset.0, &one.record))?;
            } else {
                out.raw_line(&one.record.value)?;
            }
            tally.bytes += one.record.bytes() as u64;
        }
        tally.printed += batch.records.len() as u64;
        tally.skipped += batch.skipped;
        let stands = batch.next.0 <= tally.at;
        tally.at = batch.next.0.max(tally.at);
        progress.show(format!(
            "{} records printed, {}",
            units::count(tally.printed),
            units::rate(units::per_second(tally.bytes, began.elapsed()))
        ));
        if stands || batch.is_done(Offset(to)) {
            break;
        }
    }
    out.flush()
}

/// The totals, beside the records: on standard error.
fn report(as_json: bool, tally: &Tally, took: Duration) {
    let totals = Totals {
        records: tally.printed,
        bytes: tally.bytes,
        took,
    };
    if as_json {
        let own = [("skipped", tally.skipped), ("next_offset", tally.at)];
        eprintln!("{}", totals.json(&own));
        return;
    }
    eprintln!(
        "narad: {} records printed ({}); the next offset is {}",
        units::count(tally.printed),
        totals.volume(),
        tally.at
    );
}

/// A record as a JSON line.
fn record_json(offset: u64, record: &Record) -> Value {
    let mut line = Map::new();
    line.insert("offset".into(), offset.into());
    put_bytes(&mut line, record.key.as_deref(), &record.value);
    line.insert("time_ms".into(), record.time.0.into());
    Value::Object(line)
}

/// Key and value as text, or as `key_hex` / `value_hex` when they are not UTF-8.
pub fn put_bytes(line: &mut Map<String, Value>, key: Option<&[u8]>, value: &[u8]) {
    if let Some(key) = key {
        let (suffix, text) = bytes_for_json(key);
        line.insert(format!("key{suffix}"), text.into());
    }
    let (suffix, text) = bytes_for_json(value);
    line.insert(format!("value{suffix}"), text.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_carry_bytes_that_are_no_text() {
        let line = record_json(7, &Record::new([0xfe]).key("k"));
        assert_eq!(line["offset"], 7);
        assert_eq!(line["key"], "k");
        assert_eq!(line["value_hex"], "fe");
        assert!(record_json(0, &Record::new("v")).get("key").is_none());
    }
}
