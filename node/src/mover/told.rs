//! What a source told in a move, kept durably until the move is over (rule R12).
//!
//! What this file keeps true: a file is replaced as a whole; one that cannot be read or belongs to
//! another move counts as nothing told, which only makes a promotion wait.

use super::limits::TOLD_FILE_MAX_BYTES;
use narad_core::ids::{MoveId, PartitionKey};
use narad_core::moves::target::Told;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

fn dir(root: &Path) -> PathBuf {
    root.join("moves")
}

fn path(root: &Path, key: PartitionKey, move_id: MoveId) -> PathBuf {
    dir(root).join(format!("t{}-p{}-m{move_id}.json", key.topic, key.partition))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    glommio::executor().spawn_blocking(work).await
}

/// What was saved in this move.
pub(super) async fn load(root: &Path, key: PartitionKey, move_id: MoveId) -> Option<Told> {
    let path = path(root, key, move_id);
    blocking(move || {
        let mut bytes = Vec::new();
        File::open(&path)
            .ok()?
            .take(TOLD_FILE_MAX_BYTES)
            .read_to_end(&mut bytes)
            .ok()?;
        serde_json::from_slice::<Told>(&bytes)
            .ok()
            .filter(|told| told.move_id == move_id)
    })
    .await
}

/// Saves durably.
///
/// # Errors
/// The disk's; the former content stands then.
pub(super) async fn save(root: &Path, key: PartitionKey, told: &Told) -> io::Result<()> {
    let path = path(root, key, told.move_id);
    let bytes = serde_json::to_vec(told).map_err(io::Error::other)?;
    let dir = dir(root);
    blocking(move || {
        fs::create_dir_all(&dir)?;
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        fs::rename(&new, &path)?;
        File::open(&dir)?.sync_all()
    })
    .await
}

/// Forgets what was told in a move that is over. A file that stays behind harms nothing.
pub(super) async fn forget(root: &Path, key: PartitionKey, move_id: MoveId) {
    let path = path(root, key, move_id);
    blocking(move || {
        let _ = fs::remove_file(path);
    })
    .await;
}

/// Forgets every file whose move `runs` does not know.
pub(super) async fn forget_others(root: &Path, running: Vec<(PartitionKey, MoveId)>) {
    let keep: Vec<PathBuf> = running
        .into_iter()
        .map(|(key, id)| path(root, key, id))
        .collect();
    let dir = dir(root);
    blocking(move || {
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        for entry in entries.flatten() {
            if !keep.contains(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    })
    .await;
}
