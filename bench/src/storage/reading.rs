//! Sequential reads: a replay of a whole log against a raw loop over the same files.
//!
//! What this file keeps true: both sides read the same segment files; the log has nothing of them in
//! memory, checks every frame and hands out every record; both see every byte.

use super::append::RECORD_BYTES;
use super::pairs::{Sample, Turns, Watch, take_turns};
use super::place::{Place, records};
use super::raw::{Aligned, RawFile};
use super::{Figures, StorageBenchError};
use crate::report::bars::{Bar, Bound};
use narad_core::ids::Offset;
use narad_storage::{Log, Options};
use serde_json::json;
use std::path::PathBuf;

/// Least share of the raw loop's bandwidth.
const BANDWIDTH: Bound = Bound::AtLeast(0.85);
/// Records that are read.
const RECORDS: u64 = 96 << 10;
/// Records of one frame.
const FRAME_RECORDS: usize = 256;
/// Records of one read.
const READ_RECORDS: usize = 2_000;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Requests of the raw loop, bytes and how many at once: the largest that the log would use.
const RAW_REQUEST_BYTES: usize = 1 << 20;
const RAW_DEPTH: usize = 4;

/// Bandwidth of reading a log from its start.
///
/// # Errors
/// Of the disk.
pub async fn sequential(
    place: &Place,
    pairs: usize,
    figures: &mut Figures,
) -> Result<Bar, StorageBenchError> {
    let log = place.log(&Options::default()).await?;
    let copy = log.copy();
    for n in 0..RECORDS / FRAME_RECORDS as u64 {
        log.append(records(n, FRAME_RECORDS, RECORD_BYTES), None)
            .await?;
    }
    log.close().await?;
    let (log, _) = Log::open(place.dir(), copy, &Options::default()).await?;
    let manifest = log.manifest();
    let segments: Vec<(PathBuf, u64)> = manifest
        .segments
        .iter()
        .filter_map(|s| Some((log.segment_path(s.id)?, s.durable_len)))
        .collect();
    // Rings and buffers are made, and given back, outside the turns.
    let mut raw = Vec::with_capacity(segments.len());
    for (path, len) in &segments {
        raw.push((RawFile::open(path)?, *len));
    }
    let mut buffers: Vec<Aligned> = (0..RAW_DEPTH)
        .map(|_| Aligned::new(RAW_REQUEST_BYTES))
        .collect();
    let measured = take_turns(
        pairs,
        || read_all(log.clone()),
        || {
            let watch = Watch::start();
            let mut bytes = 0;
            for (file, len) in &mut raw {
                file.read_through(*len, &mut buffers)?;
                bytes += *len;
            }
            Ok(watch.stop(bytes))
        },
    );
    let measured: Turns = measured.await?;
    let name = "sequential read";
    figures.add(name, json!({"sides": measured.sides()}));
    place.remove(log).await?;
    Ok(Bar::paired(name, &measured.bandwidth(), BANDWIDTH))
}

async fn read_all(log: Log) -> Result<Sample, StorageBenchError> {
    let watch = Watch::start();
    let (mut next, mut seen, mut bytes) = (Offset(0), 0, 0);
    loop {
        let batch = log.read(next, READ_RECORDS, READ_BYTES).await?;
        if batch.next == next {
            break;
        }
        next = batch.next;
        seen += batch.records.len() as u64;
        bytes += batch
            .records
            .iter()
            .map(|(_, record)| record.get().value.len() as u64)
            .sum::<u64>();
    }
    assert_eq!(seen, RECORDS, "every record is read");
    Ok(watch.stop(bytes))
}
