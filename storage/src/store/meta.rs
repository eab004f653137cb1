//! Writing the two-slot meta file.
//!
//! What this file keeps true: one write at a time, each to the slot that does not hold the newest
//! intact generation; the append path never waits for it.

use super::state::Store;
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::meta::Meta;
use crate::limits::META_SLOT_BYTES;
use std::path::Path;
use std::rc::Rc;

pub(crate) const META_FILE: &str = "meta";

/// Opens the meta file of a directory, making it when it is missing.
pub(crate) async fn open_meta(dir: &Path) -> Result<Rc<DiskFile>, StorageError> {
    let path = dir.join(META_FILE);
    let whole = 2 * META_SLOT_BYTES as u64;
    let file = DiskFile::create_synced(&path).await?;
    if file.len().await? < whole {
        file.allocate(whole).await?;
        disk::sync_dir(dir).await?;
    }
    Ok(file)
}

/// Writes one slot durably.
pub(crate) async fn write_slot(file: &DiskFile, meta: &Meta) -> Result<(), StorageError> {
    let bytes = disk::buffer_of(&meta.encode(), file.block());
    file.write_durably(bytes, meta.slot() * META_SLOT_BYTES as u64)
        .await
}

impl Store {
    /// The open meta file, with its space reserved.
    pub(crate) async fn open_meta_file(&self) -> Result<Rc<DiskFile>, StorageError> {
        let open = self.meta_file.borrow().clone();
        if let Some(file) = open {
            return Ok(file);
        }
        let file = open_meta(&self.dir).await?;
        *self.meta_file.borrow_mut() = Some(file.clone());
        Ok(file)
    }

    /// Makes frontier, start, fence, install mark and the known durable end durable. A failure leaves
    /// the old slot intact and may be tried again.
    pub(crate) async fn persist_meta(&self) -> Result<(), StorageError> {
        let Ok(_permit) = self.meta_lock.acquire_permit(1).await else {
            unreachable!("the meta lock is never closed");
        };
        let file = self.open_meta_file().await?;
        let meta = {
            let mut state = self.state.borrow_mut();
            state.meta_dirty = false;
            Meta {
                owner: self.owner,
                epoch: self.epoch,
                generation: state.meta_generation + 1,
                start: state.start,
                hwm: state.hwm(),
                durable_end: state.durable,
                frontier: state.frontier,
                fence: state.fence,
                install: state.install,
            }
        };
        let result = write_slot(&file, &meta).await;
        let mut state = self.state.borrow_mut();
        match result {
            Ok(()) => state.meta_generation = meta.generation,
            Err(_) => state.meta_dirty = true,
        }
        result
    }
}
