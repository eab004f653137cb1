//! The few file operations that every part of the store needs, without blocking the executor.

use super::error::StoreError;
use glommio::io::{BufferedFile, Directory};
use std::io;
use std::path::Path;

/// Syncs a directory.
pub(super) async fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let open = Directory::open(dir)
        .await
        .map_err(StoreError::io(dir, "open the directory"))?;
    open.sync()
        .await
        .map_err(StoreError::io(dir, "sync the directory"))?;
    open.close()
        .await
        .map_err(StoreError::io(dir, "close the directory"))
}

/// Writes all of `bytes` at `at`.
pub(super) async fn write_all(
    file: &BufferedFile,
    path: &Path,
    mut bytes: Vec<u8>,
    mut at: u64,
) -> Result<(), StoreError> {
    while !bytes.is_empty() {
        let len = bytes.len();
        let rest = bytes.clone();
        let written = file
            .write_at(bytes, at)
            .await
            .map_err(StoreError::io(path, "write"))?;
        if written == 0 {
            return Err(StoreError::io(path, "write")(io::Error::from(
                io::ErrorKind::WriteZero,
            )));
        }
        assert!(written <= len, "the kernel wrote more than it was given");
        at += written as u64;
        bytes = rest[written..].to_vec();
    }
    Ok(())
}
