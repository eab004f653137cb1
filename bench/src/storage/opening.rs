//! Opening: the counted work of opening a large partition against a small one, after a crash.
//!
//! What this file keeps true: both have an active segment of the same length that nothing describes yet;
//! what is counted is what recovery itself says it has read.

use super::append::RECORD_BYTES;
use super::place::{Place, records};
use super::{Figures, StorageBenchError};
use crate::report::bars::{Bar, Bound};
use crate::stop::Stop;
use narad_storage::{Log, Options, RecoveryReport};
use serde_json::json;
use std::time::{Duration, Instant};

/// Bytes of one append while the log is filled.
const BATCH_BYTES: usize = 1 << 20;
/// Appends of that size in the active segment of both.
const ACTIVE_BATCHES: u64 = 24;
/// Between two looks whether the list names what was sealed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens a log of `small` bytes, grows it to `large`, and opens it again.
///
/// # Errors
/// Of the disk.
pub async fn growth(
    place: &Place,
    small: u64,
    large: u64,
    stop: &Stop,
    figures: &mut Figures,
) -> Result<Vec<Bar>, StorageBenchError> {
    let options = Options::default();
    let copy = place.copy();
    let mut log = Log::create(place.dir(), copy, &options).await?;
    let mut reports: Vec<RecoveryReport> = Vec::new();
    let mut times = Vec::new();
    for bytes in [small, large] {
        fill(&log, bytes, stop).await?;
        listed(&log).await?;
        // Nothing is closed or trimmed, as after a crash.
        drop(log);
        let began = Instant::now();
        let (again, report) = Log::open(place.dir(), copy, &options).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        figures.add(
            &format!("opening {} MiB", bytes >> 20),
            json!({
                "bytes": again.stats().bytes,
                "segments": report.segments,
                "scanned_segments": report.scanned_segments,
                "bytes_read": report.bytes_read,
                "ms": times.last(),
            }),
        );
        reports.push(report);
        log = again;
    }
    place.remove(log).await?;
    let growth = |of: fn(&RecoveryReport) -> f64| of(&reports[1]) / of(&reports[0]);
    Ok(vec![
        Bar::single(
            "opening, bytes read, large / small",
            "ratio",
            growth(|r| r.bytes_read as f64),
            Bound::AtMost(1.0),
        ),
        Bar::single(
            "opening, segments scanned, large / small",
            "ratio",
            growth(|r| r.scanned_segments as f64),
            Bound::AtMost(1.0),
        ),
    ])
}

/// Appends until the log is that large and its active segment has the agreed length.
async fn fill(log: &Log, bytes: u64, stop: &Stop) -> Result<(), StorageBenchError> {
    let segments = bytes / Options::default().segment_bytes;
    let mut n = log.hwm().0;
    let mut active = 0;
    while (log.stats().segments as u64) <= segments || active < ACTIVE_BATCHES {
        if stop.wanted() {
            return Err(StorageBenchError::Stopped);
        }
        let before = log.stats().segments;
        let batch = records(n, BATCH_BYTES / RECORD_BYTES, RECORD_BYTES);
        n += batch.len() as u64;
        log.append(batch, None).await?;
        active = match log.stats().segments {
            now if now > before => 1,
            _ => active + 1,
        };
    }
    Ok(())
}

/// Waits until the list names every sealed segment, which happens in the background.
async fn listed(log: &Log) -> Result<(), StorageBenchError> {
    let file = log.dir().join("segments.list");
    let sealed = log.stats().segments as u64 - 1;
    while std::fs::metadata(&file).map_or(0, |m| m.len()) < 64 + 96 * sealed {
        glommio::timer::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
