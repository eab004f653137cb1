//! The bare disk: how fast it takes bytes, and how long one small durable write takes.
//!
//! What this file keeps true: O_DIRECT into preallocated space, as the product writes; what is measured
//! includes the sync that makes it durable and nothing else; the file is removed.

use crate::storage::raw::{Aligned, RawFile, Space};
use hdrhistogram::Histogram;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of one request of the bandwidth loop.
const REQUEST_BYTES: usize = 1 << 20;
/// Requests at a time.
const DEPTH: usize = 4;
/// Bytes of a small write: what one record takes.
const SMALL_BYTES: usize = 4096;
/// Small writes that fit the file.
const SMALL_WRITES: u64 = 65_536;

/// Seconds for writing `bytes` and one sync at the end.
///
/// # Errors
/// The system's.
pub fn write_seconds(dir: &Path, bytes: u64) -> io::Result<f64> {
    let path = dir.join("bandwidth");
    let whole = bytes.next_multiple_of((REQUEST_BYTES * DEPTH) as u64);
    let mut file = RawFile::create(&path, Space::Preallocated, whole)?;
    let buffer = Aligned::new(REQUEST_BYTES);
    let began = Instant::now();
    let mut at = 0;
    while at < bytes {
        let pieces: [(&[u8], u64); DEPTH] =
            std::array::from_fn(|n| (buffer.get(), at + (n * REQUEST_BYTES) as u64));
        file.write_at_once(&pieces)?;
        at += (REQUEST_BYTES * DEPTH) as u64;
    }
    file.sync()?;
    let seconds = began.elapsed().as_secs_f64() * bytes as f64 / whole as f64;
    drop(file);
    std::fs::remove_file(path)?;
    Ok(seconds)
}

/// Times of small writes, each with a sync, one after the other for about `time`; in µs.
///
/// # Errors
/// The system's.
pub fn durable_writes(dir: &Path, time: Duration) -> io::Result<Histogram<u64>> {
    let path = dir.join("small");
    let len = SMALL_WRITES * SMALL_BYTES as u64;
    let mut file = RawFile::create(&path, Space::Preallocated, len)?;
    let buffer = Aligned::new(SMALL_BYTES);
    let mut times = Histogram::<u64>::new(3).expect("three digits are allowed");
    let began = Instant::now();
    for n in 0..SMALL_WRITES {
        if began.elapsed() >= time {
            break;
        }
        let one = Instant::now();
        file.write_at_once(&[(buffer.get(), n * SMALL_BYTES as u64)])?;
        file.sync()?;
        let us = u64::try_from(one.elapsed().as_micros()).unwrap_or(u64::MAX);
        times.record(us.max(1)).expect("the histogram grows");
    }
    drop(file);
    std::fs::remove_file(path)?;
    Ok(times)
}
