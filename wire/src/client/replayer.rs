//! Replay: a partition's records from an offset, without leases, batch after batch.
//!
//! What this file keeps true: offsets go up without a gap except for what retention has deleted or
//! the owner could not read, and both are told; a move in between is not noticed.

use super::calls::{self, ReplayRequest};
use super::handle::Client;
use super::locator::Locator;
use super::model::ReplayBatch;
use crate::error::WireError;
use crate::limits;
use crate::runtime::Runtime;
use narad_core::ids::{Offset, PartitionIndex, WallMs};

/// A replay under way.
pub struct Replay<R: Runtime> {
    locator: Locator<R>,
    ask: ReplayRequest,
    done: bool,
    skipped: u64,
}

impl<R: Runtime> Client<R> {
    /// Replays a partition from `from` up to `to` or, with `None`, up to what is visible when the
    /// end is reached.
    #[must_use]
    pub fn replay(
        &self,
        topic: &str,
        partition: PartitionIndex,
        from: Offset,
        to: Option<Offset>,
    ) -> Replay<R> {
        Replay {
            locator: Locator::new(self.clone(), topic),
            ask: ReplayRequest {
                partition,
                from,
                from_time: WallMs(0),
                to: to.unwrap_or(Offset(u64::MAX)),
                max_records: limits::REPLAY_BATCH_RECORDS,
                max_bytes: limits::REPLAY_BATCH_BYTES,
            },
            done: false,
            skipped: 0,
        }
    }
}

impl<R: Runtime> Replay<R> {
    /// Begins at the first record of this time or later instead, if that is behind where it would
    /// begin.
    #[must_use]
    pub fn from_time(mut self, time: WallMs) -> Self {
        self.ask.from_time = time;
        self
    }

    /// The next batch, or `None` at the end. A batch may be empty where records could not be read.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`WireError`] when neither the owner nor any other node could answer.
    pub async fn next(&mut self) -> Result<Option<ReplayBatch>, WireError> {
        if self.done {
            return Ok(None);
        }
        let batch = match self.at_owner().await {
            Some(batch) => batch,
            None => {
                let client = self.locator.client();
                client.replay_once(self.locator.topic(), self.ask).await?
            }
        };
        if batch.next < self.ask.from {
            return Err(WireError::Protocol {
                message: format!("a replay from {} goes on at {}", self.ask.from, batch.next),
            });
        }
        let stands_still = batch.next == self.ask.from && batch.records.is_empty();
        self.done = batch.is_done(self.ask.to) || stands_still;
        self.ask.from = batch.next;
        // Found; what follows is read by offset, whatever its time.
        self.ask.from_time = WallMs(0);
        self.skipped += batch.skipped;
        if self.done && batch.records.is_empty() && batch.skipped == 0 {
            return Ok(None);
        }
        Ok(Some(batch))
    }

    /// Where the next batch begins.
    #[must_use]
    pub fn position(&self) -> Offset {
        self.ask.from
    }

    /// Records so far that could not be read.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// One attempt at the owner; any failure sends us to any node, which knows better.
    async fn at_owner(&self) -> Option<ReplayBatch> {
        let placement = self.locator.fresh().await.ok()?;
        let addr = placement.owner(self.ask.partition)?;
        let client = self.locator.client();
        let asked = async {
            let node = client.pool().node(addr).await?;
            let deadline = client.options().attempt;
            let topic = self.locator.topic();
            calls::replay(client.runtime(), &node, deadline, topic, self.ask).await
        };
        match asked.await {
            Ok(batch) => Some(batch),
            Err(error) => {
                if error.connection_lost() {
                    client.pool().failed(addr);
                }
                self.locator.suspect();
                None
            }
        }
    }
}
