//! The load that must not notice that things move: produce calls at a fixed rate, and consumers that lease
//! and ack what they bring.
//!
//! What this file keeps true: a record carries which slot it belongs to and when it was sent, so that a
//! delivery counts for the slot in which its record was sent, however late it comes; the first delivery of a
//! record counts, and a slot ends only when every acknowledged record has been delivered.

use super::{CONNECTIONS, FOREGROUND};
use crate::limits::CALL_DEADLINE;
use crate::rig::bench_cluster::Measured;
use crate::rig::callers::{CONSUME_ROUND, Caller};
use crate::rig::drive::{self, Slot};
use crate::rig::{RigError, call};
use crate::stop::Stop;
use hdrhistogram::Histogram;
use narad_wire::client::calls::{self, Settle};
use narad_wire::client::{Lease, Record};
use narad_wire::error::WireError;
use narad_wire::rpc::{Link, connect_link};
use narad_wire::runtime::Glommio;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a record.
const RECORD_BYTES: usize = 1 << 10;
/// Consumers, each with one call at a time.
const CONSUMERS: usize = 4;
/// Without a delivery for this long, a record is lost.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// What one slot came to.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// Produce calls; their times count from when they were due.
    pub(super) produce: Slot,
    /// From the sending of a record to its first delivery, in µs.
    pub(super) delivery: Histogram<u64>,
}

impl Times {
    /// p99 of the produce calls, in µs.
    pub(super) fn produce_p99_us(&self) -> f64 {
        self.produce.us(0.99) as f64
    }

    /// p99 of the deliveries, in µs.
    pub(super) fn delivery_p99_us(&self) -> f64 {
        self.delivery.value_at_quantile(0.99) as f64
    }
}

struct Seen {
    slot: u32,
    /// By number: sent when, and whether it has come.
    records: Vec<(Duration, bool)>,
    delivered: u64,
    times: Histogram<u64>,
    last: Instant,
}

/// The load.
pub(super) struct Foreground {
    links: Vec<Link>,
    epoch: Instant,
    seen: RefCell<Seen>,
    stopped: Cell<bool>,
    failure: RefCell<Option<WireError>>,
}

/// The load with its consumers, until it is stopped.
pub(super) struct Running {
    load: Rc<Foreground>,
    consumers: Vec<glommio::Task<()>>,
    rate: f64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

impl Running {
    /// Connects, and starts the consumers. The topic is there.
    pub(super) async fn start(cluster: &Measured, rate: f64) -> Result<Self, RigError> {
        let addrs = || cluster.servers().iter().cycle();
        let mut links = Vec::new();
        for addr in addrs().take(CONNECTIONS) {
            let link = connect_link(&Glommio, addr, CALL_DEADLINE).await;
            links.push(call("connecting", link)?);
        }
        let load = Rc::new(Foreground {
            links,
            epoch: Instant::now(),
            seen: RefCell::new(Seen {
                slot: 0,
                records: Vec::new(),
                delivered: 0,
                times: histogram(),
                last: Instant::now(),
            }),
            stopped: Cell::new(false),
            failure: RefCell::default(),
        });
        let mut consumers = Vec::new();
        for addr in addrs().take(CONSUMERS) {
            let link = connect_link(&Glommio, addr, CALL_DEADLINE).await;
            let link = call("connecting", link)?;
            let load = load.clone();
            consumers.push(glommio::spawn_local(
                async move { load.consume(&link).await },
            ));
        }
        Ok(Self {
            load,
            consumers,
            rate,
        })
    }

    /// Produces as long as `more` says so, and waits until all of it is delivered.
    pub(super) async fn slot(
        &self,
        cluster: &Measured,
        more: impl Fn() -> bool,
        stop: &Stop,
    ) -> Result<Times, RigError> {
        self.load.begin();
        let watched = (cluster.cpu(), stop);
        let produce = drive::open_while(
            &self.load,
            CONNECTIONS,
            self.rate,
            |n| n == 0 || more(),
            watched,
        )
        .await?;
        let delivery = self.load.all_delivered(produce.records, stop).await?;
        Ok(Times { produce, delivery })
    }

    /// Ends the consumers.
    pub(super) async fn end(self) {
        self.load.stopped.set(true);
        for task in self.consumers {
            task.await;
        }
    }
}

impl Foreground {
    fn begin(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.slot += 1;
        seen.records.clear();
        seen.delivered = 0;
        seen.times = histogram();
        seen.last = Instant::now();
    }

    /// A record that says to which slot it belongs and which one it is.
    fn record(&self) -> Record {
        let mut seen = self.seen.borrow_mut();
        let number = u32::try_from(seen.records.len()).expect("a slot takes seconds");
        seen.records.push((self.epoch.elapsed(), false));
        let mut value: Vec<u8> = (0..RECORD_BYTES).map(|n| (n * 7 % 251) as u8).collect();
        value[..4].copy_from_slice(&seen.slot.to_le_bytes());
        value[4..8].copy_from_slice(&number.to_le_bytes());
        Record::new(value)
    }

    fn note(&self, value: &[u8]) {
        let part = |at: usize| {
            let bytes = value.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let (Some(slot), Some(number)) = (part(0), part(4)) else {
            return;
        };
        let now = self.epoch.elapsed();
        let mut seen = self.seen.borrow_mut();
        if slot != seen.slot {
            // A second delivery: a slot ends only when all of it has come.
            return;
        }
        let Some((sent, came)) = seen.records.get_mut(number as usize) else {
            return;
        };
        if std::mem::replace(came, true) {
            return;
        }
        let us = now.saturating_sub(*sent).as_micros();
        let us = u64::try_from(us).unwrap_or(u64::MAX).max(1);
        seen.times.record(us).expect("the histogram grows");
        seen.delivered += 1;
        seen.last = Instant::now();
    }

    async fn all_delivered(&self, count: u64, stop: &Stop) -> Result<Histogram<u64>, RigError> {
        self.seen.borrow_mut().last = Instant::now();
        loop {
            if stop.wanted() {
                return Err(RigError::Stopped);
            }
            if let Some(error) = self.failure.take() {
                return call("consuming", Err(error));
            }
            {
                let seen = self.seen.borrow();
                if seen.delivered >= count {
                    return Ok(seen.times.clone());
                }
                if seen.last.elapsed() > STALLED_AFTER {
                    return Err(RigError::Usage(format!(
                        "{} of {count} acknowledged records were delivered, and no more came for {} s",
                        seen.delivered,
                        STALLED_AFTER.as_secs()
                    )));
                }
            }
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn consume(&self, link: &Link) {
        while !self.stopped.get() {
            if let Err(error) = self.round(link).await {
                self.failure.borrow_mut().get_or_insert(error);
                return;
            }
        }
    }

    async fn round(&self, link: &Link) -> Result<(), WireError> {
        let (addr, node) = (Rc::from(""), link.node());
        let got = calls::consume(
            &Glommio,
            node,
            &addr,
            CALL_DEADLINE,
            FOREGROUND,
            CONSUME_ROUND,
        )
        .await?;
        if got.is_empty() {
            return Ok(());
        }
        for delivery in &got {
            self.note(&delivery.record.value);
        }
        let leases: Vec<Lease> = got.iter().map(|one| one.lease).collect();
        let ack = Settle::Ack;
        for settled in
            calls::settle(&Glommio, node, CALL_DEADLINE, FOREGROUND, &leases, ack).await?
        {
            settled?;
        }
        Ok(())
    }
}

impl Caller for Foreground {
    async fn call(&self, at: usize) -> Result<u64, WireError> {
        let node = self.links[at % self.links.len()].node();
        let records = [self.record()];
        let records = calls::refs(&records);
        let results =
            calls::produce(&Glommio, node, CALL_DEADLINE, FOREGROUND, records, None).await?;
        for result in results {
            result?;
        }
        Ok(1)
    }

    fn record_bytes(&self) -> u64 {
        RECORD_BYTES as u64
    }
}
