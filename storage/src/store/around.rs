//! Reading around what the disk refuses.
//!
//! What this file keeps true: only blocks that the disk itself refuses are given up, and only while it
//! answers for others: a disk that is gone has lost nothing.

use crate::disk::DiskFile;
use crate::error::StorageError;
use crate::limits::TRIM_BLOCK_BYTES;
use nix::libc::{EILSEQ, EIO, ENODATA};
use std::rc::Rc;

/// `len` bytes at `at`, of which the disk has refused some, block by block: zeros, in which no frame is
/// found, stand for those that it refuses again.
///
/// # Errors
/// `refused` when the disk answers for no block, or when that was no refusal of a block.
pub(super) async fn read_blocks(
    file: &Rc<DiskFile>,
    at: u64,
    len: u64,
    refused: StorageError,
) -> Result<Vec<u8>, StorageError> {
    if !is_of_a_block(&refused) {
        return Err(refused);
    }
    let block = TRIM_BLOCK_BYTES as usize;
    let mut bytes = Vec::with_capacity(len as usize);
    let mut answered = false;
    for pos in (at..at + len).step_by(block) {
        match file.read(pos, block).await {
            Ok(read) => {
                answered = true;
                bytes.extend_from_slice(&read);
                if read.len() < block {
                    break;
                }
            }
            Err(error) if is_of_a_block(&error) => bytes.resize(bytes.len() + block, 0),
            Err(error) => return Err(error),
        }
    }
    // A refusal of all of them may be one of the whole disk; every file begins with its header.
    if !answered && file.read(0, block).await.is_err() {
        return Err(refused);
    }
    Ok(bytes)
}

/// Whether an error says that the medium cannot give a block back: what the kernel makes of a failed, an
/// unreadable and a badly checksummed one.
fn is_of_a_block(error: &StorageError) -> bool {
    let code = error.os_error().and_then(std::io::Error::raw_os_error);
    code.is_some_and(|code| [EIO, ENODATA, EILSEQ].contains(&code))
}
