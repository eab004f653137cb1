//! The segment files of an open log: appending groups of entries, cutting the end, removing the beginning.
//!
//! Keeps true: only the last segment is ever written; a segment is durable (header, length and directory entry) before
//! its first frame, and completely synced before the next one is created; removal goes from the outside in, each step
//! synced, so that a crash never leaves a hole.

use super::error::StoreError;
use super::files::{Closing, sync_dir, wait_for_room, write_all};
use super::frame::{self, SegmentHeader};
use super::memory::{Encoded, Place};
use super::recover::{FoundSegment, segment_path};
use super::writer::{self, Writer};
use crate::raft::limits::SEGMENT_BYTES;
use glommio::io::{BufferedFile, OpenOptions};
use rand::Rng;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

struct Segment {
    header: SegmentHeader,
    path: PathBuf,
    file: Rc<BufferedFile>,
    /// The same file, for the thread that appends.
    out: Arc<File>,
    /// Offset behind the last frame; everything below is synced.
    end: u64,
}

/// Reads entries of one segment, even if it is removed meanwhile.
pub(super) struct SegmentReader {
    file: Rc<BufferedFile>,
    path: PathBuf,
    segment_id: u64,
}

impl SegmentReader {
    /// The segment's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The JSON of an entry, its checksum verified.
    pub(super) async fn read(
        &self,
        index: u64,
        place: Place,
        len: usize,
    ) -> Result<Vec<u8>, StoreError> {
        let bytes = self
            .file
            .read_at(place.offset, frame::frame_bytes(len))
            .await;
        let bytes = bytes.map_err(StoreError::io(&self.path, "read"))?;
        match frame::frame_at(&bytes, 0, self.segment_id) {
            Some(found) if found.index == index => Ok(found.payload.to_vec()),
            _ => Err(StoreError::corrupt(
                &self.path,
                place.offset,
                format!("entry {index} was there and does not read back"),
            )),
        }
    }
}

/// The segments of a log, oldest first.
pub(super) struct Segments {
    dir: PathBuf,
    list: VecDeque<Segment>,
    closing: Closing,
    writer: Writer,
}

async fn open_file(path: &Path) -> Result<BufferedFile, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .buffered_open(path)
        .await;
    file.map_err(StoreError::io(path, "open"))
}

async fn remove(segment: Segment, dir: &Path) -> Result<(), StoreError> {
    glommio::io::remove(&segment.path)
        .await
        .map_err(StoreError::io(&segment.path, "remove"))?;
    sync_dir(dir).await
}

async fn new_segment(dir: &Path, first_index: u64) -> Result<Segment, StoreError> {
    let path = segment_path(dir, first_index);
    let header = SegmentHeader {
        first_index,
        segment_id: rand::rng().random(),
    };
    let file = open_file(&path).await?;
    file.truncate(0)
        .await
        .map_err(StoreError::io(&path, "empty"))?;
    file.pre_allocate(SEGMENT_BYTES, false)
        .await
        .map_err(StoreError::io(&path, "allocate"))?;
    // Zeros to the end: a sync behind an append then writes the appended block and nothing else. Into space
    // that is only reserved, each one would have the file system record as well what is written by now.
    let mut whole = header.encode().to_vec();
    whole.resize(SEGMENT_BYTES as usize, 0);
    write_all(&file, &path, whole, 0).await?;
    file.fdatasync()
        .await
        .map_err(StoreError::io(&path, "sync"))?;
    sync_dir(dir).await?;
    let out = writer::open(&path).map_err(StoreError::io(&path, "open"))?;
    Ok(Segment {
        header,
        path,
        file: Rc::new(file),
        out,
        end: frame::HEADER_BYTES as u64,
    })
}

impl Segments {
    /// Opens the files that recovery kept.
    pub(super) async fn open(
        dir: &Path,
        found: Vec<FoundSegment>,
        closing: Closing,
    ) -> Result<Segments, StoreError> {
        let mut list = VecDeque::new();
        let last = found.len().saturating_sub(1);
        for (
            number,
            FoundSegment {
                path,
                header,
                end,
                capacity,
            },
        ) in found.into_iter().enumerate()
        {
            let file = open_file(&path).await?;
            if number == last && capacity < SEGMENT_BYTES {
                // Only faster: a full disk must not keep a node from starting.
                if let Err(error) = file.pre_allocate(SEGMENT_BYTES, false).await {
                    tracing::warn!(%error, file = %path.display(), "the last log segment could not be allocated");
                }
            }
            let out = writer::open(&path).map_err(StoreError::io(&path, "open"))?;
            list.push_back(Segment {
                header,
                path,
                file: Rc::new(file),
                out,
                end,
            });
        }
        Ok(Segments {
            dir: dir.to_owned(),
            list,
            closing,
            writer: Writer::start().map_err(StoreError::io(dir, "start the thread of"))?,
        })
    }

    /// A reader for the segment that starts at `first_index`, if it is still there.
    pub(super) fn reader(&self, first_index: u64) -> Option<SegmentReader> {
        let segment = self
            .list
            .iter()
            .find(|segment| segment.header.first_index == first_index)?;
        let (file, path) = (segment.file.clone(), segment.path.clone());
        Some(SegmentReader {
            file,
            path,
            segment_id: segment.header.segment_id,
        })
    }

    /// Makes the next segment, waiting for room if there is none: nothing is lost by trying again.
    async fn create(&mut self, first_index: u64) -> Result<(), StoreError> {
        let dir = &self.dir;
        let made =
            wait_for_room(&self.closing, async || new_segment(dir, first_index).await).await?;
        self.list.push_back(made);
        Ok(())
    }

    /// Writes consecutive entries with as few syncs as segments allow, and tells where each one is.
    /// After an error nothing is known about what is on disk.
    pub(super) async fn append<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a Encoded>,
    ) -> Result<Vec<(u64, Place)>, StoreError> {
        let mut places = Vec::new();
        let mut group = Vec::new();
        for (index, json) in entries {
            let full = |segment: &Segment, group: &Vec<u8>| {
                segment.end + (group.len() + frame::frame_bytes(json.len())) as u64 > SEGMENT_BYTES
            };
            if self.list.back().is_none_or(|segment| full(segment, &group)) {
                self.write_group(&mut group).await?;
                self.create(*index).await?;
            }
            let segment = self.list.back().expect("one was just made");
            let offset = segment.end + group.len() as u64;
            places.push((
                *index,
                Place {
                    segment: segment.header.first_index,
                    offset,
                },
            ));
            frame::push_frame(
                &mut group,
                segment.header.segment_id,
                *index,
                segment.end,
                json,
            );
        }
        self.write_group(&mut group).await?;
        Ok(places)
    }

    async fn write_group(&mut self, group: &mut Vec<u8>) -> Result<(), StoreError> {
        if group.is_empty() {
            return Ok(());
        }
        let segment = self.list.back_mut().expect("a group has a segment");
        let bytes = std::mem::take(group);
        let len = bytes.len() as u64;
        let written = self.writer.append(&segment.out, bytes, segment.end).await;
        written.map_err(StoreError::io(&segment.path, "write and sync"))?;
        segment.end += len;
        Ok(())
    }

    /// Removes the entry at `from` and all that follow it, last segment first.
    pub(super) async fn cut(&mut self, from: Place) -> Result<(), StoreError> {
        while self
            .list
            .back()
            .is_some_and(|segment| segment.header.first_index > from.segment)
        {
            let segment = self.list.pop_back().expect("just seen");
            remove(segment, &self.dir).await?;
        }
        let segment = self.list.back_mut().expect("a place is in a segment");
        assert_eq!(
            segment.header.first_index, from.segment,
            "a place is in a segment that exists"
        );
        // Shrunk and grown again, so that what was behind the cut reads as zeros and can never be taken for entries.
        segment
            .file
            .truncate(from.offset)
            .await
            .map_err(StoreError::io(&segment.path, "cut"))?;
        segment
            .file
            .fdatasync()
            .await
            .map_err(StoreError::io(&segment.path, "sync"))?;
        segment
            .file
            .pre_allocate(SEGMENT_BYTES, false)
            .await
            .map_err(StoreError::io(&segment.path, "allocate"))?;
        segment.end = from.offset;
        Ok(())
    }

    /// Removes segments whose entries are all below `keep_from`; all segments if the log is `empty`.
    pub(super) async fn remove_below(
        &mut self,
        keep_from: u64,
        empty: bool,
    ) -> Result<(), StoreError> {
        loop {
            let next_first = self.list.get(1).map(|segment| segment.header.first_index);
            let gone = next_first.map_or(empty, |first| first <= keep_from);
            let Some(segment) = gone.then(|| self.list.pop_front()).flatten() else {
                return Ok(());
            };
            remove(segment, &self.dir).await?;
        }
    }
}
