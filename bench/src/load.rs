//! Load with a content ledger: one producer, some consumers, and what they have seen.
//!
//! What this file keeps true: a record is in the ledger before it is sent; an answer that was lost
//! leaves it unknown and it is sent again; consumers acknowledge only what the ledger has seen.

use crate::ledger::{Delivery, Ledger};
use crate::limits::{
    BATCH_BYTES, BATCH_EVERY, BATCH_RECORDS, CONSUME_BYTES, CONSUME_RECORDS, CONSUME_WAIT,
    PRODUCE_IN_FLIGHT, RETRIES, RETRY_PAUSE,
};
use crate::lines::Lines;
use crate::servers::Servers;
use hdrhistogram::Histogram;
use narad_wire::client::Record;
use narad_wire::error::WireError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A call failed for good.
    #[error("{what}: {error}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// The last error.
        error: WireError,
    },
    /// A batch was refused again and again.
    #[error("producing failed {RETRIES} times in a row, last with: {error}")]
    Refused {
        /// The last error.
        error: WireError,
    },
}

/// How a load is shaped.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Lines are put together until a record has so many bytes; 0: a record a line.
    pub record_bytes: usize,
    /// A batch is so much time's worth of the rate: how coarse the writer is.
    pub batch_every: Duration,
    /// Produce calls in flight.
    pub in_flight: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            record_bytes: 0,
            batch_every: BATCH_EVERY,
            in_flight: PRODUCE_IN_FLIGHT,
        }
    }
}

/// What clients saw in one kind of time: while a partition moves, or while it does not.
#[derive(Debug)]
pub struct Timings {
    /// Produce calls until everything of them is acknowledged, in µs.
    pub produce_us: Histogram<u64>,
    /// From the sending of a record to its first delivery, in µs.
    pub delivery_us: Histogram<u64>,
}

impl Default for Timings {
    fn default() -> Self {
        let empty = || Histogram::new(3).expect("three digits are allowed");
        Self {
            produce_us: empty(),
            delivery_us: empty(),
        }
    }
}

impl Timings {
    /// Takes another's samples over.
    pub fn add(&mut self, other: &Self) {
        self.produce_us.add(&other.produce_us).expect("both grow");
        self.delivery_us.add(&other.delivery_us).expect("both grow");
    }
}

/// What all tasks of a run share. One executor, so cells are enough; no borrow lives across a wait.
pub struct Load {
    /// Topic.
    pub topic: String,
    /// The one partition that is written to, or wherever the cluster puts records.
    pub partition: Option<u32>,
    /// The ledger.
    pub ledger: RefCell<Ledger>,
    /// Bytes that were acknowledged.
    pub acked_bytes: Cell<u64>,
    /// Times of produce calls, in µs, while [`Load::measure`] is set.
    pub produce_us: RefCell<Histogram<u64>>,
    /// Whether times of produce calls are recorded.
    pub measure: Cell<bool>,
    /// What clients saw while nothing moved, and during moves; while [`Load::measure`] is set.
    pub seen: RefCell<[Timings; 2]>,
    /// A move is running.
    pub moving: Cell<bool>,
    /// Records sent again after a lost answer.
    pub sent_again: Cell<u64>,
    /// Calls that failed and were repeated.
    pub failed_calls: Cell<u64>,
    /// No more is produced.
    pub stop: Cell<bool>,
    /// Consumers end.
    pub done: Cell<bool>,
    /// Why the run cannot go on, once that is so.
    pub failure: RefCell<Option<LoadError>>,
    in_flight: Cell<usize>,
    shape: Shape,
    began: Instant,
    /// When each record was sent, in µs since the beginning, by number.
    sent_us: RefCell<Vec<u64>>,
}

fn us_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

impl Load {
    /// A load on a topic; `run` is the name of the run in every record.
    #[must_use]
    pub fn new(topic: &str, partition: Option<u32>, run: String) -> Rc<Self> {
        Self::shaped(topic, partition, run, Shape::default())
    }

    /// As [`Load::new`], of another shape.
    #[must_use]
    pub fn shaped(topic: &str, partition: Option<u32>, run: String, shape: Shape) -> Rc<Self> {
        Rc::new(Self {
            topic: topic.to_owned(),
            partition,
            ledger: RefCell::new(Ledger::new(run)),
            acked_bytes: Cell::new(0),
            produce_us: RefCell::new(Histogram::new(3).expect("three digits are allowed")),
            measure: Cell::new(true),
            seen: RefCell::default(),
            moving: Cell::new(false),
            sent_again: Cell::new(0),
            failed_calls: Cell::new(0),
            stop: Cell::new(false),
            done: Cell::new(false),
            failure: RefCell::new(None),
            in_flight: Cell::new(0),
            shape,
            began: Instant::now(),
            sent_us: RefCell::default(),
        })
    }

    /// A record was delivered for the first time.
    fn first_delivery(&self, number: usize) {
        if !self.measure.get() {
            return;
        }
        let Some(sent) = self.sent_us.borrow().get(number).copied() else {
            return;
        };
        let us = us_since(self.began).saturating_sub(sent);
        self.seen.borrow_mut()[usize::from(self.moving.get())]
            .delivery_us
            .record(us)
            .expect("the histogram grows");
    }

    /// Whether the run cannot go on.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    fn fail(&self, error: LoadError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.stop.set(true);
    }
}

/// A line, or as many as make a record of `bytes`.
fn payload(lines: &mut Lines, bytes: usize) -> Vec<u8> {
    let mut payload = lines.line().to_vec();
    while payload.len() < bytes {
        payload.push(b'\n');
        payload.extend_from_slice(lines.line());
    }
    payload
}

/// Makes the next batch, at most so many bytes of payload.
fn batch(load: &Load, lines: &mut Lines, max_bytes: usize) -> (Vec<usize>, Vec<Record>, usize) {
    let mut ledger = load.ledger.borrow_mut();
    let mut sent_us = load.sent_us.borrow_mut();
    let (mut numbers, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
    while records.len() < BATCH_RECORDS && bytes < max_bytes {
        let payload = payload(lines, load.shape.record_bytes);
        // Every fourth record has a key, so that both ways of routing are used.
        let key = (load.partition.is_none() && (numbers.len() % 4 == 0))
            .then(|| payload.iter().take(8).copied().collect::<Vec<u8>>());
        let (number, value) = ledger.next(key.as_deref(), &payload);
        sent_us.push(us_since(load.began));
        bytes += value.len();
        numbers.push(number);
        records.push(Record {
            key,
            ..Record::new(value)
        });
    }
    (numbers, records, bytes)
}

/// Produces until [`Load::stop`] or, with `limit`, until so many bytes are acknowledged; at `rate`
/// bytes/s, or as fast as it goes with 0. Returns when nothing is in flight any more.
pub async fn produce(
    load: &Rc<Load>,
    servers: &Rc<Servers>,
    lines: &mut Lines,
    rate: u64,
    limit: Option<u64>,
) {
    let began = Instant::now();
    let mut sent_bytes = 0_u64;
    // A moment's worth at most, so that slow rates are steady and not in bursts.
    let worth = rate as f64 * load.shape.batch_every.as_secs_f64();
    let max_bytes = match rate {
        0 => BATCH_BYTES,
        _ => (worth as usize).clamp(1, BATCH_BYTES),
    };
    while !load.stop.get() && limit.is_none_or(|limit| sent_bytes < limit) {
        if load.in_flight.get() >= load.shape.in_flight {
            glommio::timer::sleep(Duration::from_millis(1)).await;
            continue;
        }
        if rate > 0 {
            let due = Duration::from_secs_f64(sent_bytes as f64 / rate as f64);
            if let Some(early) = due.checked_sub(began.elapsed()) {
                glommio::timer::sleep(early.min(Duration::from_millis(100))).await;
                continue;
            }
        }
        let (numbers, records, bytes) = batch(load, lines, max_bytes);
        sent_bytes += bytes as u64;
        load.in_flight.set(load.in_flight.get() + 1);
        let (load, servers) = (load.clone(), servers.clone());
        glommio::spawn_local(async move {
            send(&load, &servers, numbers, records).await;
            load.in_flight.set(load.in_flight.get() - 1);
        })
        .detach();
    }
    while load.in_flight.get() > 0 {
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
}

/// Sends one batch until every record of it is acknowledged.
async fn send(load: &Load, servers: &Servers, mut numbers: Vec<usize>, mut records: Vec<Record>) {
    let mut failures = 0;
    let began = Instant::now();
    while !records.is_empty() {
        let error = match servers.produce(&load.topic, &records, load.partition).await {
            Ok(results) => {
                let mut refused = None;
                let mut results = results.into_iter();
                let mut again = Vec::new();
                for (number, record) in numbers.drain(..).zip(records.drain(..)) {
                    match results.next() {
                        Some(Ok(_)) => {
                            load.acked_bytes
                                .set(load.acked_bytes.get() + record.bytes() as u64);
                            load.ledger.borrow_mut().acked(number);
                        }
                        Some(Err(fault)) => {
                            refused = Some(WireError::Fault(fault));
                            again.push((number, record));
                        }
                        None => again.push((number, record)),
                    }
                }
                (numbers, records) = again.into_iter().unzip();
                if records.is_empty() {
                    break;
                }
                refused.unwrap_or(WireError::Protocol {
                    message: "fewer results than records".to_owned(),
                })
            }
            Err(error) => error,
        };
        failures += 1;
        load.failed_calls.set(load.failed_calls.get() + 1);
        if error.outcome_unknown() {
            load.sent_again
                .set(load.sent_again.get() + records.len() as u64);
        }
        if failures >= RETRIES || !(error.is_transient() || error.outcome_unknown()) {
            if !error.outcome_unknown() {
                let mut ledger = load.ledger.borrow_mut();
                numbers.iter().for_each(|number| ledger.refused(*number));
            }
            load.fail(LoadError::Refused { error });
            return;
        }
        glommio::timer::sleep(RETRY_PAUSE).await;
    }
    if load.measure.get() {
        let us = us_since(began);
        load.produce_us
            .borrow_mut()
            .record(us)
            .expect("the histogram grows");
        load.seen.borrow_mut()[usize::from(load.moving.get())]
            .produce_us
            .record(us)
            .expect("the histogram grows");
    }
}

/// Consumes, checks and acknowledges until [`Load::done`].
pub async fn consume(load: &Rc<Load>, servers: &Rc<Servers>) {
    let wait_ms = u32::try_from(CONSUME_WAIT.as_millis()).expect("a short wait");
    while !load.done.get() {
        let call = servers.consume(&load.topic, CONSUME_RECORDS, CONSUME_BYTES, wait_ms);
        let deliveries = match call.await {
            Ok(deliveries) => deliveries,
            Err(_) => {
                load.failed_calls.set(load.failed_calls.get() + 1);
                glommio::timer::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        if deliveries.is_empty() {
            continue;
        }
        let mut leases = Vec::with_capacity(deliveries.len());
        {
            let mut ledger = load.ledger.borrow_mut();
            for one in &deliveries {
                let seen = ledger.delivered(one.record.key.as_deref(), &one.record.value);
                if seen == Delivery::First
                    && let Some(number) = ledger.number_of(&one.record.value)
                {
                    load.first_delivery(number);
                }
                // Whatever it is, it is acknowledged: it would only come again, and the totals
                // tell of it.
                leases.push(one.lease);
            }
        }
        // A lost or refused acknowledgement means a duplicate later, nothing else.
        if servers.ack(&load.topic, &leases).await.is_err() {
            load.failed_calls.set(load.failed_calls.get() + 1);
        }
    }
}
