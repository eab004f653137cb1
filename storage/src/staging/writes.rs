//! The writes of a copy that are under way.
//!
//! What this file keeps true: at most [`STAGE_DEPTH`] of one copy, and with a gate no more bytes of all
//! copies together than it lets pass; a write that may not overtake another waits for it; each stays
//! listed until it has ended.

use super::{StageBuf, Staging};
use crate::error::{StageError, StorageError};
use crate::limits::STAGE_DEPTH;
use futures::FutureExt as _;

impl Staging {
    /// Sends verified bytes to the disk.
    pub(super) async fn put(
        &mut self,
        i: usize,
        at: u64,
        bytes: StageBuf,
    ) -> Result<(), StageError> {
        if !self.segments[i].is_aligned(at, bytes.len()) {
            // This write shares a block with the one before: it may not overtake it.
            self.drain().await?;
        }
        while self.pending.len() >= STAGE_DEPTH {
            self.one_done().await?;
        }
        let pass = match &self.gate {
            Some(gate) => Some(gate.pass(bytes.len() as u64).await),
            None => None,
        };
        let (file, buffer, pos) = self.segments[i].place(at, bytes);
        self.queued += 1;
        self.segments[i].last_write = self.queued;
        self.pending.push_back(glommio::spawn_local(async move {
            let written = file.write(buffer, pos).await;
            drop(pass);
            written
        }));
        self.reap()?;
        self.checkpoint_on()
    }

    /// Takes note of writes that have ended, without waiting: a slow copy has room for many, and a
    /// checkpoint would wait for it to fill.
    fn reap(&mut self) -> Result<(), StorageError> {
        while let Some(task) = self.pending.front_mut()
            && let Some(result) = task.now_or_never()
        {
            self.ended(&result);
            result?;
        }
        Ok(())
    }

    /// Waits for the oldest write. It stays listed until it has ended, also when this is dropped midway.
    async fn one_done(&mut self) -> Result<(), StorageError> {
        let Some(task) = self.pending.front_mut() else {
            return Ok(());
        };
        let result = task.await;
        self.ended(&result);
        result
    }

    fn ended(&mut self, oldest: &Result<(), StorageError>) {
        self.pending.pop_front();
        self.written += 1;
        self.failed |= oldest.is_err();
    }

    /// Waits for every write, also behind one that failed, and tells the first failure.
    pub(super) async fn drain(&mut self) -> Result<(), StorageError> {
        let mut first = Ok(());
        while !self.pending.is_empty() {
            first = first.and(self.one_done().await);
        }
        first
    }
}
