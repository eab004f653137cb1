//! What a Raft directory holds at start-up: read, checked, and its torn tail cut, with ordinary blocking I/O.
//!
//! Keeps true: the entries handed on are exactly those between the purge mark and the end of the log, without a hole;
//! a torn tail is cut physically, so that its bytes can never be taken for entries later; damage to anything that was
//! durable is an error and changes nothing.

use super::error::StoreError;
use super::frame::{self, HeaderError, ScanEnd, SegmentHeader};
use super::slots;
use super::snapshot;
use crate::raft::types::{Entry, LogId, SnapshotMeta, Vote};
use std::fs;
use std::path::{Path, PathBuf};

/// Prefix and suffix of a segment's file name; between them is its first index.
const SEGMENT_PREFIX: &str = "log-";
const SEGMENT_SUFFIX: &str = ".seg";

/// An entry and where it is.
pub(super) struct Located {
    /// The entry.
    pub(super) entry: Entry,
    /// First index of its segment.
    pub(super) segment: u64,
    /// Offset of its frame in the segment.
    pub(super) offset: u64,
    /// Length of its JSON.
    pub(super) len: u32,
}

/// A segment that stays.
pub(super) struct FoundSegment {
    /// Its file.
    pub(super) path: PathBuf,
    /// Its header.
    pub(super) header: SegmentHeader,
    /// Offset behind its last frame.
    pub(super) end: u64,
    /// Length of the file.
    pub(super) capacity: u64,
}

/// The content of a Raft directory.
pub struct Recovered {
    pub(super) segments: Vec<FoundSegment>,
    pub(super) entries: Vec<Located>,
    pub(super) vote: Option<Vote>,
    pub(super) vote_sequence: u64,
    pub(super) purged: Option<LogId>,
    pub(super) purged_sequence: u64,
    pub(super) committed: Option<LogId>,
    pub(super) committed_sequence: u64,
    /// What the snapshot on disk covers.
    pub(super) snapshot: Option<SnapshotMeta>,
}

/// Path of the segment that starts at `first_index`.
pub(super) fn segment_path(dir: &Path, first_index: u64) -> PathBuf {
    dir.join(format!("{SEGMENT_PREFIX}{first_index:020}{SEGMENT_SUFFIX}"))
}

/// Syncs the directory that holds `path`.
pub(super) fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let dir = path.parent().expect("a file in a directory");
    fs::File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(StoreError::io(dir, "sync the directory"))
}

fn create_dirs(dir: &Path) -> Result<(), StoreError> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_dirs(parent)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(StoreError::io(dir, "create the directory")(error))
        }
        _ => sync_parent(dir),
    }
}

fn check_identity(dir: &Path, node_id: &str) -> Result<(), StoreError> {
    let path = dir.join("identity");
    match slots::read::<String>(&path)? {
        Some(found) if found.value == node_id => Ok(()),
        Some(found) => Err(StoreError::WrongNode {
            path,
            found: found.value,
            wanted: node_id.to_owned(),
        }),
        None => slots::write_blocking(&path, 1, &node_id),
    }
}

fn segment_files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for item in fs::read_dir(dir).map_err(StoreError::io(dir, "list"))? {
        let path = item.map_err(StoreError::io(dir, "list"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digits = name
            .strip_prefix(SEGMENT_PREFIX)
            .and_then(|rest| rest.strip_suffix(SEGMENT_SUFFIX));
        if let Some(first) = digits.and_then(|digits| digits.parse().ok()) {
            found.push((first, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads and repairs the directory. See the module's promise.
pub(super) fn recover(dir: &Path, node_id: &str) -> Result<Recovered, StoreError> {
    create_dirs(dir)?;
    check_identity(dir, node_id)?;
    let vote = slots::read::<Vote>(&dir.join("vote"))?;
    let purged = slots::read::<LogId>(&dir.join("purged"))?;
    let committed = slots::read::<LogId>(&dir.join("committed")).unwrap_or_else(|error| {
        tracing::warn!(%error, "the commit mark is unreadable; it is a hint only and starts anew");
        None
    });
    let mut found = Recovered {
        segments: Vec::new(),
        entries: Vec::new(),
        vote_sequence: vote.as_ref().map_or(0, |slot| slot.sequence),
        vote: vote.map(|slot| slot.value),
        purged_sequence: purged.as_ref().map_or(0, |slot| slot.sequence),
        purged: purged.map(|slot| slot.value),
        committed_sequence: committed.as_ref().map_or(0, |slot| slot.sequence),
        committed: committed.map(|slot| slot.value),
        snapshot: snapshot::check(dir)?,
    };
    read_segments(dir, &mut found)?;
    check_whole(dir, &found)?;
    Ok(found)
}

fn read_segments(dir: &Path, found: &mut Recovered) -> Result<(), StoreError> {
    let files = segment_files(dir)?;
    let keep_from = found
        .purged
        .as_ref()
        .map_or(0, |id| id.index.saturating_add(1));
    for (number, (first, path)) in files.iter().enumerate() {
        let next_first = files.get(number + 1).map(|(first, _)| *first);
        if next_first.is_some_and(|next| next <= keep_from) {
            remove(path)?;
            continue;
        }
        read_segment(found, *first, path, next_first, keep_from)?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), StoreError> {
    fs::remove_file(path).map_err(StoreError::io(path, "remove"))?;
    sync_parent(path)
}

fn read_segment(
    found: &mut Recovered,
    first: u64,
    path: &Path,
    next_first: Option<u64>,
    keep_from: u64,
) -> Result<(), StoreError> {
    let bytes = fs::read(path).map_err(StoreError::io(path, "read"))?;
    let header = match SegmentHeader::decode(&bytes) {
        Ok(header) if header.first_index == first => header,
        Ok(_) => {
            return Err(StoreError::corrupt(
                path,
                16,
                "the header names another first index than the file's name",
            ));
        }
        Err(HeaderError::Newer(version)) => {
            let supported = frame::SEGMENT_VERSION;
            return Err(StoreError::NewerFormat {
                path: path.to_owned(),
                found: version,
                supported,
            });
        }
        // A segment is made durable before its first frame: one that holds nothing was being created.
        Err(HeaderError::Damaged(_)) if next_first.is_none() && nothing_behind_header(&bytes) => {
            return remove(path);
        }
        Err(HeaderError::Damaged(what)) => return Err(StoreError::corrupt(path, 0, what)),
    };
    let before = found.entries.len();
    let mut unreadable = None;
    let (end, how) = frame::scan(
        &bytes,
        header,
        |offset, frame| match serde_json::from_slice::<Entry>(frame.payload) {
            Ok(entry) if entry.log_id.index == frame.index => {
                let (offset, len) = (offset as u64, frame.payload.len() as u32);
                found.entries.push(Located {
                    entry,
                    segment: first,
                    offset,
                    len,
                });
            }
            Ok(_) => {
                unreadable = Some((
                    offset,
                    "the entry names another index than its frame".to_owned(),
                ))
            }
            Err(error) => unreadable = Some((offset, format!("the entry does not parse: {error}"))),
        },
    );
    if let Some((offset, what)) = unreadable {
        return Err(StoreError::corrupt(path, offset as u64, what));
    }
    let last = first.saturating_add((found.entries.len() - before) as u64);
    let mut capacity = bytes.len() as u64;
    match (how, next_first) {
        (ScanEnd::Hole { witness }, _) => {
            return Err(StoreError::corrupt(
                path,
                end as u64,
                format!(
                    "no readable entry {last}, but the entry at byte {witness} was written after it was durable"
                ),
            ));
        }
        (_, Some(next)) if next != last => {
            return Err(StoreError::corrupt(
                path,
                end as u64,
                format!("entries end before {last}, the next segment starts at {next}"),
            ));
        }
        (ScanEnd::Torn, None) => {
            cut(path, end as u64, last)?;
            capacity = end as u64;
        }
        (ScanEnd::Clean | ScanEnd::Torn, _) => {}
    }
    let purged_here = (keep_from.saturating_sub(first) as usize).min(found.entries.len() - before);
    found.entries.drain(before..before + purged_here);
    if last <= keep_from && next_first.is_none() && keep_from > first {
        return remove(path);
    }
    found.segments.push(FoundSegment {
        path: path.to_owned(),
        header,
        end: end as u64,
        capacity,
    });
    Ok(())
}

fn nothing_behind_header(bytes: &[u8]) -> bool {
    bytes
        .get(frame::HEADER_BYTES..)
        .unwrap_or_default()
        .iter()
        .all(|byte| *byte == 0)
}

fn cut(path: &Path, end: u64, next_index: u64) -> Result<(), StoreError> {
    tracing::warn!(file = %path.display(), at = end, next_index, "cutting a torn tail: a write that was never confirmed");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(StoreError::io(path, "open"))?;
    file.set_len(end).map_err(StoreError::io(path, "cut"))?;
    file.sync_all().map_err(StoreError::io(path, "sync"))
}

/// The log as a whole: it follows the purge mark, reaches the commit mark, and has a vote behind it.
fn check_whole(dir: &Path, found: &Recovered) -> Result<(), StoreError> {
    let keep_from = found
        .purged
        .as_ref()
        .map_or(0, |id| id.index.saturating_add(1));
    if let Some(first) = found.segments.first()
        && first.header.first_index > keep_from
    {
        return Err(StoreError::corrupt(
            &first.path,
            0,
            format!(
                "entries {keep_from} to {} are missing before it",
                first.header.first_index - 1
            ),
        ));
    }
    let snapshot_end = found
        .snapshot
        .as_ref()
        .and_then(|meta| meta.last_log_id.as_ref())
        .map(|id| id.index);
    if let Some(purged) = &found.purged
        && snapshot_end.is_none_or(|end| end < purged.index)
    {
        let what = format!(
            "the log is purged up to {}, but the snapshot covers {snapshot_end:?}",
            purged.index
        );
        return Err(StoreError::corrupt(&dir.join("snapshot"), 0, what));
    }
    let next = found.entries.last().map_or(keep_from, |located| {
        located.entry.log_id.index.saturating_add(1)
    });
    if let Some(committed) = &found.committed
        && committed.index >= next
    {
        let path = found
            .segments
            .last()
            .map_or_else(|| dir.join("committed"), |segment| segment.path.clone());
        let end = found.segments.last().map_or(0, |segment| segment.end);
        return Err(StoreError::corrupt(
            &path,
            end,
            format!(
                "the log ends before {next}, but {} was durable and committed",
                committed.index
            ),
        ));
    }
    if found.vote.is_none() && next > 1 {
        return Err(StoreError::corrupt(
            &dir.join("vote"),
            0,
            "there is a log but no vote",
        ));
    }
    Ok(())
}
