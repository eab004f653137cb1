//! One partition that is moved again and again at one W/B: filled, written to, consumed, checked.
//!
//! What this file keeps true: a partition that the writer has made larger than half as much again is made
//! anew, so that the moves of a point compare; what clients saw during a move is kept apart from what
//! they saw before it; before a partition is dropped, every acknowledged record is looked up in it.

use super::moving::Mover;
use super::outcome::Point;
use super::{FreezeError, call};
use crate::load::{self, Load, Shape};
use crate::replay;
use crate::report::mib;
use narad_wire::client::{MoveView, TopicSettingsView};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a record, at least.
const RECORD_BYTES: usize = 1 << 10;
/// The writer sends so much time's worth at once: little beside a lag bound.
const BATCH_EVERY: Duration = Duration::from_millis(4);
/// Produce calls in flight.
const IN_FLIGHT: usize = 16;
/// A partition that the writer has made this many hundredths of its size is made anew.
const GROWN_PERCENT: u64 = 150;
/// More than this a record's frame does not add to a record of [`RECORD_BYTES`].
const OVERHEAD_MOST: f64 = 1.25;
/// How long the writer runs before a move, with the clients' calls measured.
const WARM_UP: Duration = Duration::from_millis(1_500);
/// How long accepted records may take from one node's WAL into the partition.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);
/// How long consumers may take for what is in the partition before a move.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is in the partition by now.
struct Filled {
    load: Rc<Load>,
    bytes: u64,
    /// Bytes of the log for each byte of the records: what the copy carries for what the writer sends.
    overhead: f64,
}

/// A partition under measurement.
pub(crate) struct Partition<'a> {
    mover: &'a Mover,
    topic: String,
    filled: Option<Filled>,
    lives: u32,
    point: Point,
}

impl<'a> Partition<'a> {
    /// Nothing is made yet. `bandwidth` is the B that is set, 0 for none.
    pub(crate) fn new(
        mover: &'a Mover,
        topic: String,
        size: u64,
        ratio: f64,
        bandwidth: u64,
    ) -> Self {
        Self {
            mover,
            topic,
            filled: None,
            lives: 0,
            point: Point::new(size, ratio, bandwidth),
        }
    }

    /// How long the bare steps took, beside the latest move.
    pub(super) fn bare(&mut self, took: Duration) {
        self.point.bare_us.push(took.as_micros() as f64);
    }

    /// The latest move.
    pub(crate) fn last_move(&self) -> Option<&MoveView> {
        self.point.moves.last()
    }

    fn overhead(&self) -> f64 {
        self.filled.as_ref().map_or(1.0, |filled| filled.overhead)
    }

    /// What the writer sends, in bytes of records a second, so that the log grows at W.
    fn rate(&self) -> u64 {
        (self.point.bandwidth as f64 * self.point.ratio / self.overhead()) as u64
    }

    /// One move, under its writer.
    pub(crate) async fn one_move(&mut self) -> Result<(), FreezeError> {
        self.mover.go_on()?;
        let load = match &self.filled {
            Some(filled) if filled.load.acked_bytes.get() * 100 < filled.bytes * GROWN_PERCENT => {
                filled.load.clone()
            }
            _ => {
                self.check_and_drop().await?;
                self.fill().await?
            }
        };
        let (owner, _) = self.mover.owner(&self.topic).await?;
        self.prefer(&owner);
        let rate = self.rate();
        load.stop.set(false);
        load.done.set(false);
        let writer = self.writer(&load, rate);
        let consumer = self.consumer(&load, rate);
        let moved = self.measured(&load, rate).await;
        load.stop.set(true);
        load.done.set(true);
        writer.await;
        consumer.await;
        moved?;
        fail(&load)
    }

    fn writer(&self, load: &Rc<Load>, rate: u64) -> glommio::Task<()> {
        let (load, servers) = (load.clone(), self.mover.servers.clone());
        let mut lines = self.mover.lines.clone();
        glommio::spawn_local(async move {
            if rate > 0 {
                load::produce(&load, &servers, &mut lines, rate, None).await;
            }
        })
    }

    fn consumer(&self, load: &Rc<Load>, rate: u64) -> glommio::Task<()> {
        let (load, servers) = (load.clone(), self.mover.servers.clone());
        glommio::spawn_local(async move {
            if rate > 0 {
                load::consume(&load, &servers).await;
            }
        })
    }

    /// Lets the writer run, then moves; the clients' calls count from when the consumer is at the tail.
    async fn measured(&mut self, load: &Rc<Load>, rate: u64) -> Result<(), FreezeError> {
        if rate > 0 {
            self.caught_up(load).await?;
            load.measure.set(true);
            glommio::timer::sleep(WARM_UP).await;
        }
        let failed = load.failed_calls.get();
        let (began, before) = (Instant::now(), load.acked_bytes.get());
        load.moving.set(true);
        let bytes = before.max(1);
        let moved = self
            .mover
            .once(&self.topic, bytes, self.point.bandwidth)
            .await;
        load.moving.set(false);
        load.measure.set(false);
        let moved = moved?;
        let wrote = (load.acked_bytes.get() - before) as f64 * self.overhead();
        self.point.written.0 += wrote as u64;
        self.point.written.1 += began.elapsed().as_secs_f64();
        self.point.failed_calls += load.failed_calls.get() - failed;
        self.prefer(&moved.target);
        eprintln!(
            "{}: {} MiB, W/B {}: {}, {} passes, tail {} KiB, freeze {:.2} ms",
            self.topic,
            mib(moved.bytes_done),
            self.point.ratio,
            moved.outcome,
            moved.passes,
            moved.tails.last().copied().unwrap_or(0) >> 10,
            moved.freeze_us as f64 / 1e3,
        );
        self.point.moves.push(moved);
        fail(load)
    }

    /// Writers call the owner first, as a client that knows it does.
    fn prefer(&self, node: &str) {
        self.mover.servers.prefer(self.mover.addr(node));
    }

    async fn fill(&mut self) -> Result<Rc<Load>, FreezeError> {
        let settings = TopicSettingsView::default();
        let servers = &self.mover.servers;
        let created = servers.next().create_topic(&self.topic, 1, None, &settings);
        call("creating the topic", created.await)?;
        let (owner, _) = self.mover.owner(&self.topic).await?;
        self.prefer(&owner);
        self.lives += 1;
        let run = format!("{}-{}-{}", self.topic, self.lives, std::process::id());
        let shape = Shape {
            record_bytes: RECORD_BYTES,
            batch_every: BATCH_EVERY,
            in_flight: IN_FLIGHT,
        };
        let load = Load::shaped(&self.topic, Some(0), run, shape);
        load.measure.set(false);
        let consumer = self.consumer(&load, self.rate());
        let mut lines = self.mover.lines.clone();
        load::produce(&load, servers, &mut lines, 0, Some(self.point.size)).await;
        load.done.set(true);
        consumer.await;
        fail(&load)?;
        self.settled(&load).await?;
        let bytes = load.acked_bytes.get();
        let log_bytes = self.mover.log_bytes(&self.topic).await?;
        self.filled = Some(Filled {
            load: load.clone(),
            bytes,
            overhead: (log_bytes as f64 / bytes.max(1) as f64).clamp(1.0, OVERHEAD_MOST),
        });
        Ok(load)
    }

    /// Waits until every acknowledged record is in the partition: those that another node took come
    /// through its ingress WAL.
    async fn settled(&self, load: &Load) -> Result<(), FreezeError> {
        let acked = load.ledger.borrow().progress().0;
        let began = Instant::now();
        loop {
            let (_, hwm) = self.mover.owner(&self.topic).await?;
            if hwm.is_some_and(|hwm| hwm >= acked) {
                return Ok(());
            }
            if began.elapsed() >= SETTLE_WITHIN {
                let found = hwm.unwrap_or(0);
                return Err(FreezeError::Missing { acked, found });
            }
            self.mover.go_on()?;
            glommio::timer::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the consumer has what was acknowledged when this began, or for a while.
    async fn caught_up(&self, load: &Load) -> Result<(), FreezeError> {
        let wanted = load.ledger.borrow().progress().0;
        let began = Instant::now();
        while load.ledger.borrow().progress().1 < wanted && began.elapsed() < CAUGHT_UP_WITHIN {
            self.mover.go_on()?;
            fail(load)?;
            glommio::timer::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Looks every acknowledged record up, and deletes the topic.
    async fn check_and_drop(&mut self) -> Result<(), FreezeError> {
        let Some(filled) = self.filled.take() else {
            return Ok(());
        };
        let load = filled.load;
        self.settled(&load).await?;
        replay::all(&load, &self.mover.servers, 1).await?;
        let totals = load.ledger.borrow().totals(true);
        self.point.acked += totals.acked;
        self.point.lost += totals.lost_in_log + totals.wrong;
        for (all, seen) in self.point.seen.iter_mut().zip(&*load.seen.borrow()) {
            all.add(seen);
        }
        let deleted = self.mover.servers.next().delete_topic(&self.topic).await;
        call("deleting the topic", deleted)
    }

    /// The figures, once everything is checked.
    pub(crate) async fn end(mut self) -> Result<Point, FreezeError> {
        let (owner, _) = self.mover.owner(&self.topic).await?;
        self.prefer(&owner);
        self.check_and_drop().await?;
        Ok(self.point)
    }
}

/// What ended the load, if anything has.
fn fail(load: &Load) -> Result<(), FreezeError> {
    match load.failure.borrow_mut().take() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
