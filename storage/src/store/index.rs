//! The sparse index of a segment: from its footer, or made again from its bytes.
//!
//! What this file keeps true: an index only says where to begin looking; a missing or damaged footer
//! costs a scan, never a record.

use super::append::push_point;
use super::recover::scan_file;
use super::state::Store;
use crate::disk::{self, DiskFile};
use crate::error::StorageError;
use crate::format::list::{IndexPoint, Totals, decode_footer, encode_footer, footer_len};
use crate::limits::{IO_CHUNK_BYTES, TRIM_BLOCK_BYTES};
use crate::scan::ScanEvent;
use narad_core::copy::SegmentId;
use narad_core::ids::{Offset, WallMs};

/// Where a sealed segment's footer begins.
pub(crate) const fn footer_at(durable_len: u64) -> u64 {
    durable_len.next_multiple_of(TRIM_BLOCK_BYTES)
}

/// Writes the footer of a sealed segment, trims the file to it and syncs it.
pub(crate) async fn write_footer(
    file: &DiskFile,
    seed: u32,
    durable_len: u64,
    points: &[IndexPoint],
) -> Result<(), StorageError> {
    let bytes = disk::buffer_of(&encode_footer(seed, durable_len, points), TRIM_BLOCK_BYTES);
    let at = footer_at(durable_len);
    let end = at + bytes.len() as u64;
    file.write(bytes, at).await?;
    file.truncate(end).await?;
    file.sync().await
}

impl Store {
    /// Makes sure that the index of a segment covers it.
    pub(crate) async fn ensure_index(&self, id: SegmentId) -> Result<(), StorageError> {
        let (totals, unindexed, sealed) = {
            let state = self.state.borrow();
            let Some(i) = state.position_of(id) else {
                return Ok(());
            };
            let s = &state.segments[i];
            let sealed = !(state.active && i + 1 == state.segments.len());
            (s.totals, s.unindexed, sealed)
        };
        if unindexed == 0 {
            return Ok(());
        }
        let Some(file) = self.file_of(id).await? else {
            return Ok(());
        };
        let seed = self.ident(id).seed();
        if sealed && let Some(points) = self.read_footer(&file, seed, totals.len).await? {
            self.set_index(id, points, true);
            return Ok(());
        }
        let mut points = Vec::new();
        let ident = self.ident(id);
        let (scanner, bytes) = scan_file(
            &file,
            ident,
            Totals::empty(id.base),
            unindexed,
            &mut |event| {
                if let ScanEvent::Frame {
                    pos,
                    header,
                    before,
                } = event
                {
                    push_point(
                        &mut points,
                        IndexPoint {
                            base: header.base,
                            pos,
                            time_before: before.last_time,
                        },
                    );
                }
            },
        )
        .await?;
        drop(scanner);
        self.state.borrow_mut().work.read_bytes += bytes;
        self.set_index(id, points, false);
        Ok(())
    }

    fn set_index(&self, id: SegmentId, mut points: Vec<IndexPoint>, whole: bool) {
        let mut state = self.state.borrow_mut();
        let Some(i) = state.position_of(id) else {
            return;
        };
        let segment = &mut state.segments[i];
        if segment.unindexed == 0 {
            return;
        }
        if !whole {
            points.append(&mut segment.index);
        }
        segment.index = points;
        segment.unindexed = 0;
        segment.footed |= whole;
    }

    async fn read_footer(
        &self,
        file: &DiskFile,
        seed: u32,
        durable_len: u64,
    ) -> Result<Option<Vec<IndexPoint>>, StorageError> {
        let at = footer_at(durable_len);
        let page = TRIM_BLOCK_BYTES as usize;
        let head = file.read(at, page).await?;
        let Some(len) = footer_len(&head).map(|len| len.next_multiple_of(page)) else {
            return Ok(None);
        };
        if len <= head.len() {
            return Ok(decode_footer(&head, seed, durable_len));
        }
        if len > IO_CHUNK_BYTES {
            return Ok(None);
        }
        let bytes = file.read(at, len).await?;
        Ok(decode_footer(&bytes, seed, durable_len))
    }

    /// Position from which to look for the frame that holds `offset`.
    pub(crate) fn locate(&self, id: SegmentId, offset: Offset) -> u64 {
        let state = self.state.borrow();
        let Some(i) = state.position_of(id) else {
            return 0;
        };
        let index = &state.segments[i].index;
        match index.partition_point(|p| p.base <= offset) {
            // Where the index is not whole, frames may stand in front of its first.
            0 if state.segments[i].unindexed > 0 => 0,
            0 => index.first().map_or(0, |p| p.pos),
            n => index[n - 1].pos,
        }
    }

    /// Offset in a segment from which to look for the first record at or after `time`.
    pub(crate) fn locate_time(&self, id: SegmentId, time: WallMs) -> Offset {
        let state = self.state.borrow();
        let Some(i) = state.position_of(id) else {
            return id.base;
        };
        let index = &state.segments[i].index;
        // The last point before which every record is older than `time`.
        match index.partition_point(|p| p.time_before < time) {
            0 => id.base,
            n => index[n - 1].base,
        }
    }
}
