//! Where things are under a data directory, and deleting them by identity.
//!
//! What this file keeps true: a real copy's directory name carries topic incarnation, partition and
//! epoch, and only that very directory is ever deleted for it (rule R2).

use crate::disk;
use crate::error::StorageError;
use crate::format::FormatError;
use crate::format::meta;
use crate::format::segment::file_name;
use crate::limits::{FORMAT_VERSION, META_SLOT_BYTES};
use crate::removal;
use narad_core::copy::{InstallMark, SegmentId};
use narad_core::ids::{CopyId, Epoch, MoveId, Offset, PartitionIndex, PartitionKey, TopicId};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const STAGED_FILE: &str = "staged.json";
const PARTITIONS: &str = "partitions";
const STAGING: &str = "staging";
const ASIDE: &str = "aside";
pub(crate) const DAMAGED: &str = "damaged";

/// Directory of a real copy.
#[must_use]
pub fn partition_dir(root: &Path, copy: CopyId) -> PathBuf {
    partitions_root(root).join(format!(
        "t{}-p{}-e{}",
        copy.key.topic, copy.key.partition, copy.epoch
    ))
}

/// Directory of a copy in progress.
#[must_use]
pub fn staging_dir(root: &Path, key: PartitionKey, move_id: MoveId) -> PathBuf {
    staging_root(root).join(format!("t{}-p{}-m{move_id}", key.topic, key.partition))
}

pub(crate) fn partitions_root(root: &Path) -> PathBuf {
    root.join(PARTITIONS)
}

pub(crate) fn staging_root(root: &Path) -> PathBuf {
    root.join(STAGING)
}

/// A free name for staging that is set aside.
pub(crate) fn aside_dir(root: &Path, key: PartitionKey, move_id: MoveId, number: u32) -> PathBuf {
    root.join(ASIDE).join(format!(
        "t{}-p{}-m{move_id}-{number}",
        key.topic, key.partition
    ))
}

/// The name in `damaged/` for a staged segment that its source has lost; its directory is made. `None` where this move
/// has kept one of that name already: the first was the good one, and a source that contradicts itself each time
/// must not fill the disk with copies.
pub(crate) async fn damaged_segment(
    root: &Path,
    key: PartitionKey,
    move_id: MoveId,
    id: SegmentId,
) -> Result<Option<PathBuf>, StorageError> {
    let name = format!("t{}-p{}-m{move_id}", key.topic, key.partition);
    let dir = root.join(DAMAGED).join(name);
    let path = dir.join(file_name(id));
    if disk::exists(&path).await? {
        return Ok(None);
    }
    disk::create_dir(&dir).await?;
    Ok(Some(path))
}

fn parse(name: &str, last: char) -> Option<(PartitionKey, u64)> {
    let mut parts = name.split('-');
    let topic = parts.next()?.strip_prefix('t')?.parse().ok()?;
    let partition = parts.next()?.strip_prefix('p')?.parse().ok()?;
    let number = parts.next()?.strip_prefix(last)?.parse().ok()?;
    let key = PartitionKey {
        topic: TopicId(topic),
        partition: PartitionIndex(partition),
    };
    let exact = format!("t{topic}-p{partition}-{last}{number}") == name;
    (parts.next().is_none() && exact).then_some((key, number))
}

/// The partition whose directory (real, in progress or set aside) has this name.
pub(crate) fn key_of_name(name: &str) -> Option<PartitionKey> {
    let aside = name.rsplit_once('-').and_then(|(n, _)| parse(n, 'm'));
    let found = parse(name, 'e').or_else(|| parse(name, 'm')).or(aside);
    found.map(|(key, _)| key)
}

/// A real copy that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCopy {
    /// Its identity, from the directory's name.
    pub copy: CopyId,
    /// Its directory.
    pub path: PathBuf,
    /// How it was installed, while its flip is not known (rule R3).
    pub install: Option<InstallMark>,
    /// High-watermark as its meta file says; exact while it carries an install mark.
    pub hwm: Offset,
    /// Offset after its last durable record as the meta file says; exact while it carries a mark.
    pub end: Offset,
}

/// A copy in progress that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundStaging {
    /// The partition.
    pub key: PartitionKey,
    /// The move that made it.
    pub move_id: MoveId,
    /// Its directory.
    pub path: PathBuf,
}

/// Everything under a data directory that belongs to partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Real copies.
    pub copies: Vec<FoundCopy>,
    /// Copies in progress.
    pub stagings: Vec<FoundStaging>,
    /// Copies in progress that were set aside.
    pub asides: Vec<PathBuf>,
    /// Directories that nobody knows; they are left alone.
    pub unknown: Vec<PathBuf>,
}

/// Lists real copies and copies in progress.
///
/// # Errors
/// The disk's error, or [`StorageError::NewerVersion`] for a copy of a newer program.
pub async fn scan(root: &Path) -> Result<Found, StorageError> {
    let base = root.to_path_buf();
    disk::blocking("scan", root, move || scan_now(&base))
        .await?
        .map_err(newer)
}

/// The real copies of one partition: by the names of the directories, reading those of the partition
/// alone, however many others there are.
///
/// # Errors
/// As [`scan`].
pub async fn copies_of(root: &Path, key: PartitionKey) -> Result<Vec<FoundCopy>, StorageError> {
    let base = partitions_root(root);
    disk::blocking("list", root, move || -> io::Result<Scan<Vec<FoundCopy>>> {
        let mut copies = Vec::new();
        for name in disk::list_dir_now(&base)? {
            let Some((of, epoch)) = parse(&name, 'e').filter(|(of, _)| *of == key) else {
                continue;
            };
            match copy_now(&base.join(&name), of, Epoch(epoch))? {
                Ok(copy) => copies.push(copy),
                Err(newer) => return Ok(Err(newer)),
            }
        }
        Ok(Ok(copies))
    })
    .await?
    .map_err(newer)
}

fn newer((path, found): (PathBuf, u32)) -> StorageError {
    StorageError::NewerVersion {
        path,
        found,
        supported: FORMAT_VERSION,
    }
}

/// What was found, or the path and version of what a newer program wrote.
type Scan<T> = Result<T, (PathBuf, u32)>;

fn copy_now(path: &Path, key: PartitionKey, epoch: Epoch) -> io::Result<Scan<FoundCopy>> {
    let bytes = disk::read_small_now(&path.join("meta"), 2 * META_SLOT_BYTES)?;
    let meta = match meta::decode_file(&bytes.unwrap_or_default()) {
        Ok(file) => file.newest,
        Err(FormatError::Newer(version)) => return Ok(Err((path.to_path_buf(), version))),
        Err(FormatError::Damaged(_)) => None,
    };
    Ok(Ok(FoundCopy {
        copy: CopyId { key, epoch },
        path: path.to_path_buf(),
        install: meta.and_then(|m| m.install),
        hwm: meta.map_or(Offset(0), |m| m.hwm),
        end: meta.map_or(Offset(0), |m| m.durable_end),
    }))
}

fn scan_now(root: &Path) -> io::Result<Scan<Found>> {
    let mut found = Found::default();
    for name in disk::list_dir_now(&partitions_root(root))? {
        let path = partitions_root(root).join(&name);
        let Some((key, epoch)) = parse(&name, 'e') else {
            found.unknown.push(path);
            continue;
        };
        match copy_now(&path, key, Epoch(epoch))? {
            Ok(copy) => found.copies.push(copy),
            Err(newer) => return Ok(Err(newer)),
        }
    }
    for name in disk::list_dir_now(&staging_root(root))? {
        let path = staging_root(root).join(&name);
        match parse(&name, 'm') {
            Some((key, id)) => found.stagings.push(FoundStaging {
                key,
                move_id: MoveId(id),
                path,
            }),
            None => found.unknown.push(path),
        }
    }
    let aside = root.join(ASIDE);
    found.asides = disk::list_dir_now(&aside)?
        .iter()
        .map(|name| aside.join(name))
        .collect();
    Ok(Ok(found))
}

/// Deletes what was set aside of a partition, durably: its owner serves again.
///
/// # Errors
/// The disk's error.
pub async fn delete_asides(root: &Path, key: PartitionKey) -> Result<(), StorageError> {
    let dir = root.join(ASIDE);
    let prefix = format!("t{}-p{}-m", key.topic, key.partition);
    for name in disk::list_dir(&dir).await? {
        if name.starts_with(&prefix) {
            let grave = root.join("deleting").join(format!("{ASIDE}-{name}"));
            bury(&dir.join(name), &grave).await?;
        }
    }
    Ok(())
}

/// The real copy of a partition on this node, of whatever epoch.
pub(crate) async fn real_copy(
    root: &Path,
    key: PartitionKey,
) -> Result<Option<CopyId>, StorageError> {
    let base = partitions_root(root);
    disk::blocking("list", root, move || real_copy_now(&base, key)).await
}

/// As [`real_copy`], on this thread, below the root of the partitions.
pub(crate) fn real_copy_now(base: &Path, key: PartitionKey) -> io::Result<Option<CopyId>> {
    let names = disk::list_dir_now(base)?;
    Ok(names
        .iter()
        .filter_map(|name| parse(name, 'e'))
        .find(|(k, _)| *k == key)
        .map(|(key, epoch)| CopyId {
            key,
            epoch: Epoch(epoch),
        }))
}

/// Deletes one real copy, durably. Only the directory of exactly this identity is touched; the caller has
/// closed its log. First it is renamed, so that a crash never leaves half a copy under a real name.
///
/// # Errors
/// [`StorageError::NoSuchCopy`], or the disk's error.
pub async fn delete_copy(root: &Path, copy: CopyId) -> Result<(), StorageError> {
    let path = partition_dir(root, copy);
    if !disk::exists(&path).await? {
        return Err(StorageError::NoSuchCopy { copy, path });
    }
    let grave = root.join("deleting").join(format!(
        "t{}-p{}-e{}",
        copy.key.topic, copy.key.partition, copy.epoch
    ));
    bury(&path, &grave).await
}

/// Moves one real copy out of the way, durably, into `damaged/`, where no node looks for copies and
/// nothing is deleted. The caller has closed its log. Returns where it is.
///
/// # Errors
/// [`StorageError::NoSuchCopy`], or the disk's error.
pub async fn set_copy_aside(root: &Path, copy: CopyId) -> Result<PathBuf, StorageError> {
    let path = partition_dir(root, copy);
    if !disk::exists(&path).await? {
        return Err(StorageError::NoSuchCopy { copy, path });
    }
    let dir = root.join(DAMAGED);
    disk::create_dir(&dir).await?;
    let to = dir.join(format!(
        "t{}-p{}-e{}",
        copy.key.topic, copy.key.partition, copy.epoch
    ));
    // An epoch of a partition has one copy on a disk, so the name is free.
    disk::rename(&path, &to).await?;
    Ok(to)
}

/// Deletes one copy in progress, durably. Deleting what is not there is fine.
///
/// # Errors
/// The disk's error.
pub async fn delete_staging(
    root: &Path,
    key: PartitionKey,
    move_id: MoveId,
) -> Result<(), StorageError> {
    let path = staging_dir(root, key, move_id);
    if !disk::exists(&path).await? {
        return Ok(());
    }
    let grave = root
        .join("deleting")
        .join(format!("t{}-p{}-m{move_id}", key.topic, key.partition));
    bury(&path, &grave).await
}

async fn bury(path: &Path, grave: &Path) -> Result<(), StorageError> {
    if disk::exists(grave).await? {
        removal::remove_tree(grave).await?;
    }
    if let Some(parent) = grave.parent() {
        disk::create_dir(parent).await?;
    }
    disk::rename(path, grave).await?;
    removal::remove_tree(grave).await
}

/// Finishes deletions that a crash has interrupted; call once at start.
///
/// # Errors
/// The disk's error.
pub async fn finish_deletions(root: &Path) -> Result<(), StorageError> {
    let dir = root.join("deleting");
    for name in disk::list_dir(&dir).await? {
        removal::remove_tree(&dir.join(name)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_round_trip_and_look_alikes_are_refused() {
        let copy = CopyId {
            key: PartitionKey {
                topic: TopicId(7),
                partition: PartitionIndex(3),
            },
            epoch: Epoch(2),
        };
        let path = partition_dir(Path::new("/d"), copy);
        assert_eq!(path, Path::new("/d/partitions/t7-p3-e2"));
        assert_eq!(parse("t7-p3-e2", 'e'), Some((copy.key, 2)));
        for bad in [
            "t7-p3-e02",
            "t7-p3-e2-x",
            "t7-p3-m2",
            "t7-p3",
            "",
            "t+7-p3-e2",
        ] {
            assert_eq!(parse(bad, 'e'), None, "{bad}");
        }
    }
}
