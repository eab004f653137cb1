//! Appends: bandwidth of batches, time of one small durable append, and how many share a sync.
//!
//! What this file keeps true: an append counts when it is durable; the raw loop writes as many bytes in
//! as many requests, and syncs as often. As the raw loop's bytes, batches are made before the clock runs;
//! making them, the one copy and the checksum that a node pays when it takes records out of a message, is
//! measured as a figure of its own.

use super::pairs::{Sample, Turns, Watch, median, take_turns};
use super::place::{Place, records};
use super::raw::{Aligned, RawFile, Space};
use super::{Figures, StorageBenchError};
use crate::report::bars::{Bar, Bound, Pairs};
use futures::future::try_join_all;
use narad_storage::{AppendError, Batch, Log, Options, Record};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 1024;
/// What runs behind an append (zeros, the list) ends before the other side's turn.
const REST: Duration = Duration::from_millis(25);
/// Appends of one turn of the latency.
const SINGLE_APPENDS: usize = 40;
/// Space of the raw loop for small writes; it goes round in it.
const SINGLE_SPACE_BYTES: u64 = 64 << 20;
/// Appenders that wait together.
const APPENDERS: usize = 64;
/// Appends of each in one turn.
const APPENDS_EACH: usize = 20;

/// A bandwidth that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Bytes of a batch.
    pub batch: usize,
    /// Batches that wait together.
    pub depth: usize,
    /// Bytes of one turn.
    pub turn_bytes: usize,
}

/// 64 KiB and 1 MiB batches, one at a time: each is one write and one sync for the raw loop.
pub const BARS: [Shape; 2] = [
    Shape {
        name: "append 64 KiB",
        batch: 64 << 10,
        depth: 1,
        turn_bytes: 2 << 20,
    },
    Shape {
        name: "append 1 MiB",
        batch: 1 << 20,
        depth: 1,
        turn_bytes: 16 << 20,
    },
];

/// The same, four at a time: the raw loop writes four at once and syncs once. For comparison only.
pub const FIGURES: [Shape; 2] = [
    Shape {
        name: "append 64 KiB x 4",
        batch: 64 << 10,
        depth: 4,
        turn_bytes: 8 << 20,
    },
    Shape {
        name: "append 1 MiB x 4",
        batch: 1 << 20,
        depth: 4,
        turn_bytes: 32 << 20,
    },
];

/// Least share of the raw loop's bandwidth.
const BANDWIDTH: Bound = Bound::AtLeast(0.85);
/// Most times of the raw loop's time for one block.
const LATENCY: Bound = Bound::AtMost(1.3);
/// Least appends that share a sync.
const SHARED: Bound = Bound::AtLeast(16.0);

/// Bandwidth of one shape.
///
/// # Errors
/// Of the disk.
pub async fn bandwidth(
    place: &Place,
    shape: &Shape,
    space: Space,
    pairs: usize,
    figures: &mut Figures,
) -> Result<Bar, StorageBenchError> {
    let log = place.log(&Options::default()).await?;
    let path = place.dir().join("raw");
    let turns = pairs as u64 + 1;
    let mut raw = RawFile::create(&path, space, turns * shape.turn_bytes as u64)?;
    let buffers: Vec<Aligned> = (0..shape.depth)
        .map(|_| Aligned::new(shape.batch))
        .collect();
    let at = Cell::new(0_u64);
    let seed = Cell::new(0_u64);
    let makings = RefCell::new(Vec::new());
    let before = log.stats();
    let measured = take_turns(
        pairs,
        || {
            seed.set(seed.get() + 1);
            append_all(log.clone(), *shape, seed.get(), &makings)
        },
        || {
            let watch = Watch::start();
            for _ in 0..shape.turn_bytes / (shape.batch * shape.depth) {
                let pieces: Vec<_> = buffers
                    .iter()
                    .map(|buffer| {
                        let pos = at.replace(at.get() + shape.batch as u64);
                        (buffer.get(), pos)
                    })
                    .collect();
                raw.write_at_once(&pieces)?;
                raw.sync()?;
            }
            Ok(watch.stop(shape.turn_bytes as u64))
        },
    );
    let measured: Turns = measured.await?;
    let stats = log.stats();
    // The first turn warms up.
    let making = makings.into_inner().split_off(1);
    let with_making = with_making(&measured, &making);
    let making = Turns {
        log: making,
        raw: Vec::new(),
    };
    let making = making.sides();
    let name = format!("{}, {}", shape.name, space_name(space));
    figures.add(
        &name,
        json!({
            "sides": measured.sides(),
            "bandwidth": Pairs::of(&measured.bandwidth()),
            "making_mib_s": making.log_mib_s,
            "making_cpu_s_gib": making.log_cpu_s_gib,
            "bandwidth_with_making_batches": Pairs::of(&with_making.bandwidth()),
            "writes": stats.writes - before.writes,
            "syncs": stats.syncs - before.syncs,
            "written_bytes": stats.written_bytes - before.written_bytes,
            "padding_bytes": stats.padding_bytes - before.padding_bytes,
            "filled_bytes": stats.filled_bytes - before.filled_bytes,
        }),
    );
    place.remove(log).await?;
    std::fs::remove_file(&path)?;
    Ok(Bar::paired(name, &measured.bandwidth(), BANDWIDTH))
}

/// The log's turns as if making the batches belonged to them.
fn with_making(turns: &Turns, making: &[Sample]) -> Turns {
    let log = turns.log.iter().zip(making).map(|(log, making)| Sample {
        seconds: log.seconds + making.seconds,
        cpu_seconds: log.cpu_seconds + making.cpu_seconds,
        ..*log
    });
    Turns {
        log: log.collect(),
        raw: turns.raw.clone(),
    }
}

const fn space_name(space: Space) -> &'static str {
    match space {
        Space::Preallocated => "preallocated",
        Space::Written => "written",
    }
}

async fn append_all(
    log: Log,
    shape: Shape,
    seed: u64,
    makings: &RefCell<Vec<Sample>>,
) -> Result<Sample, StorageBenchError> {
    let batches = shape.turn_bytes / shape.batch;
    let made: Vec<Vec<Record>> = (0..batches as u64)
        .map(|n| records(seed << 16 | n, shape.batch / RECORD_BYTES, RECORD_BYTES))
        .collect();
    let making = Watch::start();
    let ready: Vec<Batch> = made
        .iter()
        .map(|records| records.iter().map(Record::as_ref).collect())
        .collect();
    let making = making.stop(shape.turn_bytes as u64);
    drop(made);
    let watch = Watch::start();
    let mut waiting = ready.into_iter();
    let lanes: Vec<Vec<Batch>> = (0..shape.depth)
        .map(|_| waiting.by_ref().take(batches / shape.depth).collect())
        .collect();
    try_join_all(lanes.into_iter().map(|lane| appender(log.clone(), lane))).await?;
    let sample = watch.stop(shape.turn_bytes as u64);
    makings.borrow_mut().push(making);
    glommio::timer::sleep(REST).await;
    Ok(sample)
}

async fn appender(log: Log, batches: Vec<Batch>) -> Result<(), AppendError> {
    for batch in batches {
        log.append(batch, None).await?;
    }
    Ok(())
}

/// Time of one durable append of 1 KiB against writing as many blocks to written space and syncing.
///
/// # Errors
/// Of the disk.
pub async fn single(
    place: &Place,
    space: Space,
    pairs: usize,
    figures: &mut Figures,
) -> Result<Bar, StorageBenchError> {
    let log = place.log(&Options::default()).await?;
    let path = place.dir().join("raw");
    let mut raw = RawFile::create(&path, space, SINGLE_SPACE_BYTES)?;
    // The log's own size of such a write, in whole blocks: found, not assumed.
    let before = log.stats();
    log.append(records(0, 1, RECORD_BYTES), None).await?;
    log.append(records(0, 1, RECORD_BYTES), None).await?;
    let second = log.stats();
    let first_block = 2 * (second.written_bytes - before.written_bytes);
    log.append(records(0, 1, RECORD_BYTES), None).await?;
    let len = log.stats().written_bytes - second.written_bytes;
    assert!(len > 0 && len < first_block, "an append writes its blocks");
    let buffer = Aligned::new(len as usize);
    let at = Cell::new(0_u64);
    let measured = take_turns(
        pairs,
        || append_one_by_one(log.clone()),
        || {
            let watch = Watch::start();
            let mut times = Vec::with_capacity(SINGLE_APPENDS);
            for _ in 0..SINGLE_APPENDS {
                let began = Instant::now();
                raw.write_at_once(&[(buffer.get(), at.get())])?;
                raw.sync()?;
                times.push(began.elapsed().as_secs_f64() * 1e6);
                at.set((at.get() + len) % (SINGLE_SPACE_BYTES - len));
            }
            Ok(Sample {
                each_us: median(&mut times),
                ..watch.stop((SINGLE_APPENDS * RECORD_BYTES) as u64)
            })
        },
    );
    let measured: Turns = measured.await?;
    let stats = log.stats();
    let name = format!("one 1 KiB append, {}", space_name(space));
    figures.add(
        &name,
        json!({
            "sides": measured.sides(),
            "bytes_a_write": len,
            "writes": stats.writes,
            "syncs": stats.syncs,
            "appends": stats.appends,
            "filled_bytes": stats.filled_bytes,
        }),
    );
    place.remove(log).await?;
    std::fs::remove_file(&path)?;
    Ok(Bar::paired(name, &measured.latency(), LATENCY))
}

async fn append_one_by_one(log: Log) -> Result<Sample, StorageBenchError> {
    let ready: Vec<_> = (0..SINGLE_APPENDS as u64)
        .map(|n| records(n, 1, RECORD_BYTES))
        .collect();
    let mut times = Vec::with_capacity(SINGLE_APPENDS);
    let watch = Watch::start();
    for batch in ready {
        let began = Instant::now();
        log.append(batch, None).await?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let sample = Sample {
        each_us: median(&mut times),
        ..watch.stop((SINGLE_APPENDS * RECORD_BYTES) as u64)
    };
    glommio::timer::sleep(REST).await;
    Ok(sample)
}

/// How many appends of 64 concurrent appenders share one fdatasync.
///
/// # Errors
/// Of the disk.
pub async fn shared(
    place: &Place,
    pairs: usize,
    figures: &mut Figures,
) -> Result<Bar, StorageBenchError> {
    let log = place.log(&Options::default()).await?;
    let mut each = Vec::with_capacity(pairs);
    let done = Rc::new(Cell::new(0_u64));
    let mut rates = Vec::with_capacity(pairs);
    for turn in 0..pairs as u64 {
        let before = log.stats();
        let began = Instant::now();
        let appenders = (0..APPENDERS as u64).map(|who| {
            let (log, done) = (log.clone(), done.clone());
            async move {
                for n in 0..APPENDS_EACH as u64 {
                    let seed = turn << 32 | who << 16 | n;
                    log.append(records(seed, 1, RECORD_BYTES), None).await?;
                    done.set(done.get() + 1);
                }
                Ok::<(), AppendError>(())
            }
        });
        try_join_all(appenders).await?;
        rates.push((APPENDERS * APPENDS_EACH) as f64 / began.elapsed().as_secs_f64());
        let after = log.stats();
        each.push((after.appends - before.appends) as f64 / (after.syncs - before.syncs) as f64);
    }
    assert_eq!(
        done.get(),
        log.hwm().0,
        "what was acked is visible, and nothing else"
    );
    let name = format!("{APPENDERS} appenders, appends a sync");
    figures.add(&name, json!({"appends_per_s": median(&mut rates)}));
    place.remove(log).await?;
    Ok(Bar::median(name, "appends/sync", &each, SHARED))
}
