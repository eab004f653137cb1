//! Small files, directories and names, on the executor's blocking thread.
//!
//! What this file keeps true: what is said to be durable is, the directory entry with it; a small file is
//! replaced as a whole or not at all.

use super::blocking;
use crate::error::StorageError;
use crate::fault::{self, Op};
use std::cell::Cell;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

type Result<T> = std::result::Result<T, StorageError>;

thread_local! {
    static TEMPORARY: Cell<u64> = const { Cell::new(0) };
}

/// Replaces a small file as a whole, durably: written beside it, synced, renamed, directory synced.
pub(crate) async fn replace_file(path: &Path, bytes: Vec<u8>) -> Result<()> {
    let op = Op::Replace {
        path,
        bytes: &bytes,
    };
    fault::before(&op).map_err(|e| StorageError::io("replace", path, e))?;
    let target = path.to_path_buf();
    let content = bytes.clone();
    let number = TEMPORARY.with(|t| {
        t.set(t.get() + 1);
        t.get()
    });
    blocking("replace", path, move || {
        let temporary = target.with_extension(format!("{number}.tmp"));
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&content)?;
        file.sync_all()?;
        fs::rename(&temporary, &target)?;
        sync_parent(&target)
    })
    .await?;
    fault::after(&op);
    Ok(())
}

/// A whole small file, or `None` when there is none.
pub(crate) async fn read_small(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    let file = path.to_path_buf();
    blocking("read", path, move || read_small_now(&file, limit)).await
}

pub(crate) fn read_small_now(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("longer than the {limit} bytes that such a file may have"),
        ));
    }
    Ok(Some(bytes))
}

pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(parent)?.sync_all()
}

/// Makes entries of a directory durable.
pub(crate) async fn sync_dir(path: &Path) -> Result<()> {
    let op = Op::SyncDir { path };
    fault::before(&op).map_err(|e| StorageError::io("sync directory", path, e))?;
    let dir = path.to_path_buf();
    blocking("sync directory", path, move || {
        fs::File::open(dir)?.sync_all()
    })
    .await?;
    fault::after(&op);
    Ok(())
}

/// Makes a directory and its parents, durably.
pub(crate) async fn create_dir(path: &Path) -> Result<()> {
    fault::before(&Op::CreateDir { path })
        .map_err(|e| StorageError::io("make directory", path, e))?;
    let dir = path.to_path_buf();
    blocking("make directory", path, move || create_dir_now(&dir)).await?;
    fault::after(&Op::CreateDir { path });
    Ok(())
}

fn create_dir_now(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        create_dir_now(parent)?;
    }
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    sync_parent(dir)
}

/// Renames a file or directory and makes that durable on both sides.
pub(crate) async fn rename(from: &Path, to: &Path) -> Result<()> {
    rename_if(from, to, || Ok(None::<()>)).await.map(|_| ())
}

/// As [`rename`], unless `in_the_way` finds something, which is returned then: asked right before, on the
/// same thread.
pub(crate) async fn rename_if<T: Send + 'static>(
    from: &Path,
    to: &Path,
    in_the_way: impl FnOnce() -> io::Result<Option<T>> + Send + 'static,
) -> Result<Option<T>> {
    let op = Op::Rename { from, to };
    fault::before(&op).map_err(|e| StorageError::io("rename", from, e))?;
    let (source, target) = (from.to_path_buf(), to.to_path_buf());
    let found = blocking("rename", from, move || {
        if let Some(found) = in_the_way()? {
            return Ok(Some(found));
        }
        fs::rename(&source, &target)?;
        sync_parent(&target)?;
        if source.parent() != target.parent() {
            sync_parent(&source)?;
        }
        Ok(None)
    })
    .await?;
    if found.is_none() {
        fault::after(&op);
    }
    Ok(found)
}

/// Removes a file, if it is there. The directory is not synced.
pub(crate) async fn remove_file(path: &Path) -> Result<()> {
    let op = Op::Remove { path };
    fault::before(&op).map_err(|e| StorageError::io("remove", path, e))?;
    let file = path.to_path_buf();
    blocking("remove", path, move || match fs::remove_file(file) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    })
    .await?;
    fault::after(&op);
    Ok(())
}

/// Names in a directory; none when it does not exist.
pub(crate) async fn list_dir(path: &Path) -> Result<Vec<String>> {
    let dir = path.to_path_buf();
    blocking("list", path, move || list_dir_now(&dir)).await
}

pub(crate) fn list_dir_now(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Does the path exist?
pub(crate) async fn exists(path: &Path) -> Result<bool> {
    let file = path.to_path_buf();
    blocking("look at", path, move || file.try_exists()).await
}

/// Bytes that may still be written to the disk of `path`.
pub(crate) async fn available_bytes(path: &Path) -> Result<u64> {
    let dir = path.to_path_buf();
    let bytes = blocking("look at free space of", path, move || {
        let s = nix::sys::statvfs::statvfs(&dir).map_err(io::Error::from)?;
        Ok(s.blocks_available() as u64 * s.fragment_size() as u64)
    })
    .await?;
    Ok(fault::available(bytes))
}
