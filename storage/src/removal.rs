//! Removing what is large, in steps.
//!
//! What this file keeps true: space goes back to the disk a little at a time, with rests, so that nothing else
//! waits long for it, and the copies that a process removes go one after another; whoever calls has seen to it
//! that half a file, or half a directory, left by a crash is taken for rest; a file that somebody still reads
//! keeps its bytes.
//!
//! A file system that tells the disk of freed space at once (`discard`) keeps some disks from everything else
//! meanwhile: a sync beside the removal of 256 MiB took 25 to 30 ms, and 2 ms at most beside its removal in steps of
//! 8 MiB with rests.

use crate::disk::{blocking, list_dir, sync_parent};
use crate::error::StorageError;
use crate::fault::{self, Op};
use crate::limits::{
    REMOVE_REST, REMOVE_REST_MAX, REMOVE_STEP_BYTES, REMOVE_TURN, REMOVE_TURN_LOOKS,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

type Result<T> = std::result::Result<T, StorageError>;

/// A copy is being removed by some executor of this process. When a node is drained many are removed at once,
/// and a fifth of the disk's time for each would be all of it. Segments that go one by one take no turn:
/// appends may wait for their space.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The only removal of a copy, until this is dropped.
struct Turn {
    /// Not where it was waited for too long: whoever has the turn may be slow, or have ended without giving it back.
    taken: bool,
}

impl Turn {
    /// Dropping the future takes no turn.
    async fn take() -> Self {
        for _ in 0..REMOVE_TURN_LOOKS {
            if !TAKEN.swap(true, Ordering::Acquire) {
                return Self { taken: true };
            }
            glommio::timer::sleep(REMOVE_TURN).await;
        }
        Self { taken: false }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.taken {
            TAKEN.store(false, Ordering::Release);
        }
    }
}

/// Of a file that nobody reads: gives its space back from the end, all of it. Nothing happens to a small one, to what
/// is no file, or is not there.
async fn shrink(path: &Path) -> Result<()> {
    let name = path.to_path_buf();
    let opened = blocking("remove", path, move || {
        let large = |meta: &fs::Metadata| meta.is_file() && meta.len() > REMOVE_STEP_BYTES;
        match fs::symlink_metadata(&name) {
            Ok(meta) if large(&meta) => {
                let file = fs::OpenOptions::new().write(true).open(&name)?;
                Ok(Some((Arc::new(file), meta.len())))
            }
            _ => Ok(None),
        }
    });
    let Some((file, mut len)) = opened.await? else {
        return Ok(());
    };
    while len > 0 {
        len = len.saturating_sub(REMOVE_STEP_BYTES);
        let (file, began) = (file.clone(), Instant::now());
        blocking("remove", path, move || file.set_len(len)).await?;
        let pause = (began.elapsed() * REMOVE_REST).min(REMOVE_REST_MAX);
        glommio::timer::sleep(pause).await;
    }
    Ok(())
}

/// A file that has lost its name, and keeps its space until [`Rest::remove`].
#[must_use = "its space is given back by a start after a crash, or here"]
#[derive(Debug)]
pub(crate) struct Rest(PathBuf);

/// Takes a file's name away, if it is there; what is left has one that a start after a crash removes. The directory
/// is not synced: until it is, the file may come back, and has to be whole then.
pub(crate) async fn take_name(path: &Path) -> Result<Option<Rest>> {
    let op = Op::Remove { path };
    fault::before(&op).map_err(|e| StorageError::io("remove", path, e))?;
    let (from, rest) = (path.to_path_buf(), path.with_extension("gone.tmp"));
    let to = rest.clone();
    let found = blocking("remove", path, move || match fs::rename(&from, &to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    });
    let found = found.await?;
    fault::after(&op);
    Ok(found.then_some(Rest(rest)))
}

impl Rest {
    /// Gives its space back.
    pub(crate) async fn remove(self) -> Result<()> {
        shrink(&self.0).await?;
        let path = self.0.clone();
        let gone = move || match fs::remove_file(path) {
            // Whoever opened the log anew has removed it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        blocking("remove", &self.0, gone).await
    }
}

/// Removes a directory with everything in it, durably.
pub(crate) async fn remove_tree(path: &Path) -> Result<()> {
    let op = Op::Remove { path };
    fault::before(&op).map_err(|e| StorageError::io("remove", path, e))?;
    let turn = Turn::take().await;
    for name in list_dir(path).await? {
        shrink(&path.join(name)).await?;
    }
    let dir = path.to_path_buf();
    blocking("remove", path, move || {
        fs::remove_dir_all(&dir)?;
        sync_parent(&dir)
    })
    .await?;
    drop(turn);
    fault::after(&op);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glommio::{LocalExecutorBuilder, Placement};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn removals_take_turns_on_all_executors() {
        static INSIDE: AtomicUsize = AtomicUsize::new(0);
        let executors = [(); 2].map(|()| {
            LocalExecutorBuilder::new(Placement::Unbound)
                .spawn(|| async {
                    let done = Rc::new(Cell::new(0));
                    let tasks = [(); 4].map(|()| {
                        let done = done.clone();
                        glommio::spawn_local(async move {
                            let _turn = Turn::take().await;
                            assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
                            glommio::timer::sleep(REMOVE_TURN).await;
                            INSIDE.fetch_sub(1, Ordering::SeqCst);
                            done.set(done.get() + 1);
                        })
                    });
                    for task in tasks {
                        task.await;
                    }
                    done.get()
                })
                .unwrap()
        });
        for executor in executors {
            assert_eq!(executor.join().unwrap(), 4);
        }
        assert!(!TAKEN.load(Ordering::Relaxed));
    }
}
