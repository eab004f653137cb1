//! Making a torn tail unable to come back.
//!
//! What this file keeps true: after [`clear_from`] everything from the place on reads as zeros, also
//! after a power cut; bytes before it are never changed.

use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::limits::TRIM_BLOCK_BYTES;
use std::rc::Rc;

/// Clears a file of length `len` from byte `at` on, durably; returns its new length. The rest of the
/// page that holds `at` is written as zeros, what follows is cut off. (Cutting inside a page would let
/// the file system rewrite the page behind our back.)
pub(crate) async fn clear_from(
    file: &Rc<DiskFile>,
    at: u64,
    len: u64,
) -> Result<u64, StorageError> {
    let block = file.block();
    let end = at.next_multiple_of(TRIM_BLOCK_BYTES);
    let begin = at - at % block;
    if end > begin && begin < len {
        let mut bytes = vec![0; (end - begin) as usize];
        let keep = (at - begin) as usize;
        if keep > 0 {
            // Only bytes of the torn group itself share this block: a group begins on a fresh one.
            let old = file.read(begin, block as usize).await?;
            let have = keep.min(old.len());
            bytes[..have].copy_from_slice(&old[..have]);
        }
        file.write(disk::buffer_of(&bytes, block), begin).await?;
    }
    let new_len = if len > end {
        file.truncate(end).await?;
        end
    } else {
        len.max(end)
    };
    file.sync().await?;
    Ok(new_len)
}
