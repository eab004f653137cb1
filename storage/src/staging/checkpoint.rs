//! Making a copy durable behind its back: while further bytes arrive.
//!
//! What this file keeps true: what a checkpoint saves was written before it is synced, and synced before
//! it is named; one is under way at a time, and whoever needs the files to himself waits for it; one
//! that failed stops the copy.

use super::Staging;
use super::saved::Saved;
use crate::disk::{self, DiskFile};
use crate::error::{StageError, StorageError};
use crate::layout;
use futures::future::join_all;
use std::cell::RefCell;
use std::rc::Rc;

/// A checkpoint that was asked for.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// The writes that it covers.
    upto: u64,
    files: Vec<Rc<DiskFile>>,
    dir: bool,
    saved: Vec<u8>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    task: glommio::Task<()>,
    result: Rc<RefCell<Option<Result<(), StorageError>>>>,
}

impl Staging {
    /// Asks that everything taken so far is made durable and saved, as [`Self::sync`] does, without waiting
    /// for it: it happens while further bytes are written. Nothing new is begun while one is under way. A
    /// failure shows at the next [`Self::write`] or [`Self::sync`].
    pub fn checkpoint(&mut self) {
        if self.checkpoint.is_some() || self.failed {
            return;
        }
        let dirty = self.segments.iter().filter(|s| s.is_dirty());
        self.checkpoint = Some(Checkpoint {
            upto: self.queued,
            files: dirty.map(|s| s.file.clone()).collect(),
            dir: std::mem::take(&mut self.dir_dirty),
            saved: Saved::of(self).encode(),
            running: None,
        });
    }

    /// Takes the checkpoint a step on, if one was asked for; never waits.
    pub(super) fn checkpoint_on(&mut self) -> Result<(), StageError> {
        let written = self.written;
        let dir = self.dir.clone();
        let Some(checkpoint) = &mut self.checkpoint else {
            return Ok(());
        };
        let Some(running) = &checkpoint.running else {
            if written >= checkpoint.upto {
                checkpoint.start(dir);
            }
            return Ok(());
        };
        let ended = running.result.borrow_mut().take();
        match ended {
            Some(result) => Ok(self.checkpoint_ended(result)?),
            None => Ok(()),
        }
    }

    /// Waits for a checkpoint that is under way; one that has not begun is dropped.
    pub(super) async fn checkpointed(&mut self) -> Result<(), StorageError> {
        let Some(checkpoint) = &mut self.checkpoint else {
            return Ok(());
        };
        let Some(running) = &mut checkpoint.running else {
            self.dir_dirty |= checkpoint.dir;
            self.checkpoint = None;
            return Ok(());
        };
        (&mut running.task).await;
        let result = running.result.borrow_mut().take().unwrap_or(Ok(()));
        self.checkpoint_ended(result)
    }

    fn checkpoint_ended(&mut self, result: Result<(), StorageError>) -> Result<(), StorageError> {
        if let Some(checkpoint) = self.checkpoint.take() {
            self.failed |= result.is_err();
            if result.is_ok() {
                for segment in &mut self.segments {
                    segment.synced(checkpoint.upto);
                }
            }
        }
        result
    }
}

impl Checkpoint {
    fn start(&mut self, dir: std::path::PathBuf) {
        let result = Rc::new(RefCell::new(None));
        let (files, sync_dir) = (std::mem::take(&mut self.files), self.dir);
        let (saved, told) = (std::mem::take(&mut self.saved), result.clone());
        let task = glommio::spawn_local(async move {
            let done = make_durable(&dir, &files, sync_dir, saved).await;
            told.replace(Some(done));
        });
        self.running = Some(Running { task, result });
    }
}

async fn make_durable(
    dir: &std::path::Path,
    files: &[Rc<DiskFile>],
    sync_dir: bool,
    saved: Vec<u8>,
) -> Result<(), StorageError> {
    let synced = join_all(files.iter().map(|file| file.sync())).await;
    synced.into_iter().collect::<Result<(), _>>()?;
    if sync_dir {
        disk::sync_dir(dir).await?;
    }
    disk::replace_file(&dir.join(layout::STAGED_FILE), saved).await
}
