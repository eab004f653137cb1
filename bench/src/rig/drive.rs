//! Driving calls: as many at a time as wanted, or as many a second.
//!
//! What this file keeps true: at a wanted rate the time of a call counts from when it was due, not from
//! when there was room to send it, so a server that stalls cannot hide it by being asked less often.

use super::RigError;
use super::callers::Caller;
use super::cpu::Cpu;
use crate::stop::Stop;
use hdrhistogram::Histogram;
use narad_wire::error::WireError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Calls at a wanted rate that may be under way; further ones wait, and their time counts.
const OPEN_IN_FLIGHT: usize = 4_096;

/// What a measurement came to.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Calls that were answered.
    pub calls: u64,
    /// Records that they were for.
    pub records: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Seconds on the clock, from the first call to the last answer.
    pub seconds: f64,
    /// Processor seconds of the processes that answered, where they are known.
    pub cpu_seconds: Option<f64>,
    /// Times of the calls, in µs.
    pub times: Histogram<u64>,
}

impl Slot {
    /// Calls a second.
    #[must_use]
    pub fn calls_per_s(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    /// Records a second.
    #[must_use]
    pub fn records_per_s(&self) -> f64 {
        self.records as f64 / self.seconds
    }

    /// Bytes a second.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Processor seconds for a million records.
    #[must_use]
    pub fn cpu_s_per_million(&self) -> Option<f64> {
        Some(self.cpu_seconds? * 1e6 / self.records as f64)
    }

    /// A quantile of the times, in µs.
    #[must_use]
    pub fn us(&self, quantile: f64) -> u64 {
        self.times.value_at_quantile(quantile)
    }
}

/// How long calls are made.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// For this time.
    Time(Duration),
    /// For so many calls.
    Calls(u64),
}

struct Tally {
    calls: Cell<u64>,
    records: Cell<u64>,
    failed: Cell<u64>,
    last: RefCell<String>,
    times: RefCell<Histogram<u64>>,
}

impl Tally {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            calls: Cell::new(0),
            records: Cell::new(0),
            failed: Cell::new(0),
            last: RefCell::default(),
            times: RefCell::new(Histogram::new(3).expect("three digits are allowed")),
        })
    }

    fn note(&self, since: Instant, result: Result<u64, WireError>) {
        match result {
            Ok(records) => {
                self.calls.set(self.calls.get() + 1);
                self.records.set(self.records.get() + records);
                let us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.times
                    .borrow_mut()
                    .record(us.max(1))
                    .expect("the histogram grows");
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                *self.last.borrow_mut() = error.to_string();
            }
        }
    }

    fn slot(
        &self,
        record_bytes: u64,
        seconds: f64,
        cpu: (Option<f64>, Option<f64>),
    ) -> Result<Slot, RigError> {
        let (calls, failed) = (self.calls.get(), self.failed.get());
        if failed > 0 || calls == 0 {
            return Err(RigError::Calls {
                failed,
                calls: calls + failed,
                last: self.last.borrow().clone(),
            });
        }
        Ok(Slot {
            calls,
            records: self.records.get(),
            bytes: self.records.get() * record_bytes,
            seconds,
            cpu_seconds: cpu.0.zip(cpu.1).map(|(before, after)| after - before),
            times: self.times.borrow().clone(),
        })
    }
}

/// Keeps `concurrent` calls under way, each over a connection of its own as far as there are so many.
///
/// # Errors
/// [`RigError::Calls`] when one failed, [`RigError::Stopped`].
pub async fn closed<C: Caller + 'static>(
    caller: &Rc<C>,
    concurrent: usize,
    until: Until,
    cpu: &Cpu,
    stop: &Stop,
) -> Result<Slot, RigError> {
    let tally = Tally::new();
    let begun = Rc::new(Cell::new(0_u64));
    let before = cpu.seconds();
    let began = Instant::now();
    let mut tasks = Vec::with_capacity(concurrent);
    for at in 0..concurrent {
        let (caller, tally, begun) = (caller.clone(), tally.clone(), begun.clone());
        let stop = stop.clone();
        tasks.push(glommio::spawn_local(async move {
            loop {
                let more = match until {
                    Until::Time(time) => began.elapsed() < time,
                    Until::Calls(calls) => begun.get() < calls,
                };
                if !more || stop.wanted() || tally.failed.get() > 0 {
                    return;
                }
                begun.set(begun.get() + 1);
                let since = Instant::now();
                let result = caller.call(at).await;
                tally.note(since, result);
            }
        }));
    }
    for task in tasks {
        task.await;
    }
    let seconds = began.elapsed().as_secs_f64();
    if stop.wanted() {
        return Err(RigError::Stopped);
    }
    tally.slot(caller.record_bytes(), seconds, (before, cpu.seconds()))
}

/// Makes `rate` calls a second for `time`, over `connections` in turn.
///
/// # Errors
/// As [`closed`].
pub async fn open<C: Caller + 'static>(
    caller: &Rc<C>,
    connections: usize,
    rate: f64,
    time: Duration,
    watched: (&Cpu, &Stop),
) -> Result<Slot, RigError> {
    let calls = (rate * time.as_secs_f64()).ceil().max(1.0) as usize;
    open_while(caller, connections, rate, |n| n < calls, watched).await
}

/// Makes `rate` calls a second, over `connections` in turn, as long as `more` says so, which is asked
/// before each with the number of those before it.
///
/// # Errors
/// As [`closed`].
pub async fn open_while<C: Caller + 'static>(
    caller: &Rc<C>,
    connections: usize,
    rate: f64,
    more: impl Fn(usize) -> bool,
    (cpu, stop): (&Cpu, &Stop),
) -> Result<Slot, RigError> {
    let tally = Tally::new();
    let room = std::sync::Arc::new(Semaphore::new(OPEN_IN_FLIGHT));
    let before = cpu.seconds();
    let began = Instant::now();
    for n in (0..).take_while(|n| more(*n)) {
        let due = began + Duration::from_secs_f64(n as f64 / rate);
        let early = due.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            glommio::timer::sleep(early).await;
        }
        if stop.wanted() || tally.failed.get() > 0 {
            break;
        }
        let permit = room.clone().acquire_owned().await;
        let (caller, tally) = (caller.clone(), tally.clone());
        glommio::spawn_local(async move {
            let _permit = permit;
            let result = caller.call(n % connections).await;
            tally.note(due, result);
        })
        .detach();
    }
    let all = u32::try_from(OPEN_IN_FLIGHT).expect("it fits");
    let _ended = room.acquire_many(all).await;
    if stop.wanted() {
        return Err(RigError::Stopped);
    }
    let seconds = began.elapsed().as_secs_f64();
    tally.slot(caller.record_bytes(), seconds, (before, cpu.seconds()))
}
