//! `narad consume`: leases records, prints them one a line, and acknowledges what was printed.
//!
//! What this file keeps true: nothing is acknowledged before it has left for the reader; when the
//! reader goes away or the person interrupts, what was not printed is given back. Only with --follow is
//! an interrupt the end that was wanted.

use super::args::ConsumeArgs;
use super::connect::Session;
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::{Out, Progress};
use super::replay::put_bytes;
use super::totals::Totals;
use super::units;
use narad_wire::client::calls::{ConsumeRequest, Settle};
use narad_wire::client::{Delivery, Lease};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Records asked for at a time.
const BATCH_RECORDS: u32 = 1_000;
/// Bytes asked for at a time.
const BATCH_BYTES: u32 = 1 << 20;
/// How long one call parks: with --follow it is only a matter of how often an idle connection
/// speaks; without, an answer that is empty after this long means that there is nothing to get.
const PARK_MS: u32 = 1_000;
/// Leases kept for giving back with --no-ack; older ones end by their time.
const HELD_MAX: usize = 65_536;

/// Giving back at once.
const GIVE_BACK: Settle = Settle::Nack { delay_ms: 0 };

#[derive(Default)]
struct Tally {
    printed: u64,
    bytes: u64,
    acked: u64,
    again: u64,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`] of a call or of the output.
pub async fn run(session: &Session, args: ConsumeArgs, interrupt: &mut Interrupt) -> CliResult {
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut held = Vec::new();
    let result = pump(session, &args, interrupt, &mut tally, &mut held).await;
    if !held.is_empty() {
        give_back(session, &args.topic, &held).await;
    }
    report(session.json, args.no_ack, &tally, began.elapsed());
    result
}

/// The totals, beside the records: on standard error.
fn report(as_json: bool, no_ack: bool, tally: &Tally, took: Duration) {
    let totals = Totals {
        records: tally.printed,
        bytes: tally.bytes,
        took,
    };
    if as_json {
        let own = [
            ("acknowledged", tally.acked),
            ("delivered_again", tally.again),
        ];
        eprintln!("{}", totals.json(&own));
        return;
    }
    let mut text = format!("{} records printed", units::count(tally.printed));
    if !no_ack {
        text.push_str(&format!(", {} acknowledged", units::count(tally.acked)));
    }
    text.push_str(&format!(" ({})", totals.volume()));
    if tally.again > 0 {
        text.push_str(&format!(
            "; {} will be delivered again: their lease had ended",
            units::count(tally.again)
        ));
    }
    eprintln!("narad: {text}");
}

async fn pump(
    session: &Session,
    args: &ConsumeArgs,
    interrupt: &mut Interrupt,
    tally: &mut Tally,
    held: &mut Vec<Lease>,
) -> CliResult {
    let mut out = Out::new();
    let progress = Progress::beside_results(session.json);
    let began = Instant::now();
    loop {
        let left = args.count.map_or(u64::MAX, |count| count - tally.printed);
        if left == 0 {
            return Ok(());
        }
        if interrupt.wanted() {
            return if args.follow {
                Ok(())
            } else {
                Err(cut_short())
            };
        }
        let max_records = u32::try_from(left).unwrap_or(u32::MAX).min(BATCH_RECORDS);
        let visibility_ms = args.visibility_ms.unwrap_or(0);
        // The call is not dropped on ctrl-c: it may just be bringing leases.
        let ask = ConsumeRequest {
            max_records,
            max_bytes: BATCH_BYTES,
            wait_ms: PARK_MS,
            visibility_ms,
            local_only: false,
        };
        let deliveries = session.consume_once(&args.topic, ask).await?;
        if deliveries.is_empty() {
            if args.follow {
                continue;
            }
            return Ok(());
        }
        let printed = print(&mut out, session.json, &deliveries);
        let (shown, unseen) =
            deliveries.split_at(if printed.is_ok() { deliveries.len() } else { 0 });
        let leases = |of: &[Delivery]| of.iter().map(|one| one.lease).collect::<Vec<_>>();
        held.extend(leases(unseen));
        printed?;
        tally.printed += shown.len() as u64;
        tally.bytes += shown
            .iter()
            .map(|one| one.record.bytes() as u64)
            .sum::<u64>();
        progress.show(format!(
            "{} records printed, {}",
            units::count(tally.printed),
            units::rate(units::per_second(tally.bytes, began.elapsed()))
        ));
        if args.no_ack {
            held.extend(leases(shown));
            let surplus = held.len().saturating_sub(HELD_MAX);
            held.drain(..surplus);
            continue;
        }
        ack(session, &args.topic, &leases(shown), tally).await?;
    }
}

fn cut_short() -> CliError {
    CliError::interrupted(
        "there may be more than what is counted above",
        "run it again for the rest",
    )
}

fn print(out: &mut Out, as_json: bool, deliveries: &[Delivery]) -> CliResult {
    for one in deliveries {
        if as_json {
            out.json(&delivery_json(one))?;
        } else {
            out.raw_line(&one.record.value)?;
        }
    }
    out.flush()
}

fn delivery_json(one: &Delivery) -> Value {
    let mut line = Map::new();
    line.insert("partition".into(), one.lease.partition.0.into());
    line.insert("offset".into(), one.lease.offset.0.into());
    line.insert("deliveries".into(), one.deliveries.into());
    put_bytes(&mut line, one.record.key.as_deref(), &one.record.value);
    line.insert("time_ms".into(), one.record.time.0.into());
    Value::Object(line)
}

async fn ack(session: &Session, topic: &str, leases: &[Lease], tally: &mut Tally) -> CliResult {
    let results = session.settle_once(topic, leases, Settle::Ack).await?;
    let mut failure = None;
    for result in results {
        match result {
            Ok(()) => tally.acked += 1,
            Err(fault) => {
                tally.again += 1;
                // A lease that has ended is how the queue works; anything else is worth a word.
                if fault.code != narad_wire::error::ErrorCode::StaleLease {
                    failure = Some(fault);
                }
            }
        }
    }
    match failure {
        Some(fault) if !narad_wire::error::code_is_transient(fault.code) => {
            Err(CliError::from(fault))
        }
        _ => Ok(()),
    }
}

/// Gives leases back at once instead of letting them run out.
async fn give_back(session: &Session, topic: &str, leases: &[Lease]) {
    for part in leases.chunks(BATCH_RECORDS as usize) {
        if session.settle_once(topic, part, GIVE_BACK).await.is_err() {
            eprintln!(
                "narad: some records could not be given back; they come again when their leases end"
            );
            return;
        }
    }
}
