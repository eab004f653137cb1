//! One segment of a copy in progress.
//!
//! What this file keeps true: the scanner has seen exactly the staged bytes; `safe` is the last place
//! between two frames on a block boundary, from which copying can go on after a restart.

use crate::disk::{self, DiskFile};
use crate::error::{StageError, StorageError};
use crate::format::list::{IndexPoint, Totals, encode_footer};
use crate::format::segment::SegmentIdent;
use crate::limits::{FIRST_EXTENT_BYTES, MIN_BLOCK_BYTES, TRIM_BLOCK_BYTES};
use crate::options::Options;
use crate::scan::{FrameScanner, ScanEvent};
use crate::staging::StageBuf;
use crate::store::append::push_point;
use crate::store::index::{footer_at, write_footer};
use crate::store::recover::scan_file;
use glommio::io::DmaBuffer;
use narad_core::copy::{SegmentId, SegmentState};
use narad_core::ids::{Offset, Origin};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

#[derive(Debug)]
pub(super) struct StagedSegment {
    ident: SegmentIdent,
    pub(super) file: Rc<DiskFile>,
    pub(super) scanner: FrameScanner,
    safe: Totals,
    index: Vec<IndexPoint>,
    /// The index has points for the whole segment.
    indexed: bool,
    /// Bytes of the last, partial block.
    tail: Vec<u8>,
    allocated: u64,
    /// The file may hold other bytes up to here.
    stale_to: u64,
    dirty: bool,
    /// The footer is behind the bytes, and the file ends there.
    footer: bool,
    /// The footer is behind the bytes; room that was reserved may follow it.
    ended: bool,
    /// Number of the latest write, as the staging counts them.
    pub(super) last_write: u64,
}

/// What verifying a chunk gave.
pub(super) struct Taken {
    pub(super) bad: Option<(u64, String)>,
    pub(super) marks: Vec<(Origin, Offset)>,
}

impl StagedSegment {
    pub(super) fn new(ident: SegmentIdent, file: Rc<DiskFile>) -> Self {
        Self {
            ident,
            file,
            scanner: FrameScanner::new(ident),
            safe: Totals::empty(ident.id.base),
            index: Vec::new(),
            indexed: true,
            tail: Vec::new(),
            allocated: 0,
            stale_to: 0,
            dirty: false,
            footer: false,
            ended: false,
            last_write: 0,
        }
    }

    /// Goes on from a saved place.
    pub(super) async fn resume(
        ident: SegmentIdent,
        file: Rc<DiskFile>,
        saved: Totals,
    ) -> Result<Self, StorageError> {
        let mut segment = Self::new(ident, file);
        let len = segment.file.len().await?;
        segment.allocated = len;
        segment.stale_to = len;
        segment.safe = saved;
        segment.indexed = saved.len == 0;
        segment.scanner = FrameScanner::resume(ident, saved);
        let block = segment.file.block();
        let begin = saved.len - saved.len % block;
        if begin < saved.len {
            let bytes = segment.file.read(begin, block as usize).await?;
            let have = ((saved.len - begin) as usize).min(bytes.len());
            segment.tail = bytes[..have].to_vec();
        }
        Ok(segment)
    }

    pub(super) const fn id(&self) -> SegmentId {
        self.ident.id
    }

    pub(super) fn len(&self) -> u64 {
        self.scanner.fed()
    }

    pub(super) const fn safe(&self) -> &Totals {
        &self.safe
    }

    pub(super) fn state(&self) -> SegmentState {
        SegmentState {
            id: self.id(),
            durable_len: self.len(),
            digest: self.scanner.digest(),
            end: self.scanner.edge().end,
            sealed: false,
        }
    }

    /// Scans the next bytes. When it reports something bad, the segment went back to the last safe
    /// place before them: a damaged frame may have begun in an earlier chunk.
    pub(super) fn verify(
        &mut self,
        bytes: &[u8],
        known_damage: &mut BTreeSet<(SegmentId, u64)>,
    ) -> Taken {
        let mut taken = Taken {
            bad: None,
            marks: Vec::new(),
        };
        let id = self.ident.id;
        let before = self.safe;
        let index = &mut self.index;
        let mut sink = |event| match event {
            ScanEvent::Frame {
                pos,
                header,
                before,
            } => {
                push_point(
                    index,
                    IndexPoint {
                        base: header.base,
                        pos,
                        time_before: before.last_time,
                    },
                );
                taken.marks.extend(header.origin.map(|o| (o, header.end())));
            }
            ScanEvent::Hole(hole) => {
                // Once may be the wire; the same place again is what the source has.
                if known_damage.insert((id, hole.before.len)) {
                    taken.bad.get_or_insert_with(|| {
                        (hole.before.len, "frames with a wrong checksum".into())
                    });
                }
            }
            ScanEvent::Repeated { pos, header } => {
                let what = format!("a frame of offset {} comes again", header.base);
                taken.bad.get_or_insert((pos, what));
            }
        };
        // Places between frames are looked for at every block of the smallest size.
        let mut rest = bytes;
        while !rest.is_empty() {
            let to_block = MIN_BLOCK_BYTES - self.scanner.fed() % MIN_BLOCK_BYTES;
            let step = if self.scanner.between_frames() {
                to_block
            } else {
                to_block.max(
                    self.scanner
                        .until_frame_end()
                        .next_multiple_of(MIN_BLOCK_BYTES),
                )
            };
            let (now, later) = rest.split_at(rest.len().min(step as usize));
            if let Err(error) = self.scanner.feed(now, &mut sink) {
                taken.bad = Some((before.len, error.to_string()));
                break;
            }
            rest = later;
            let fed = self.scanner.fed();
            if fed.is_multiple_of(MIN_BLOCK_BYTES) && self.scanner.between_frames() {
                self.safe = self.scanner.totals();
            }
        }
        if taken.bad.is_some() {
            self.safe = before;
            self.rewind();
        }
        taken
    }

    fn rewind(&mut self) {
        self.scanner = FrameScanner::resume(self.ident, self.safe);
        self.stale_to = self.stale_to.max(self.allocated);
        (self.footer, self.ended) = (false, false);
        let len = self.safe.len;
        self.index.retain(|p| p.pos < len);
        // The safe place may be inside a larger block of this disk; its bytes are read back.
        self.tail.clear();
        if !len.is_multiple_of(self.file.block()) {
            self.safe = Totals::empty(self.ident.id.base);
            self.scanner = FrameScanner::new(self.ident);
            self.index.clear();
            self.indexed = true;
        }
    }

    /// Makes sure that space up to `end` is reserved, and that the disk of `dir` keeps the reserve of copies: a
    /// copy may not take the room that the appends of the partitions beside it need.
    pub(super) async fn reserve(
        &mut self,
        dir: &Path,
        end: u64,
        options: &Options,
    ) -> Result<(), StageError> {
        let Some(needed) = end.checked_sub(self.allocated).filter(|n| *n > 0) else {
            return Ok(());
        };
        let free = disk::available_bytes(dir).await?;
        let available = free.saturating_sub(options.staging_reserve_bytes);
        if available < needed {
            return Err(StageError::Full { needed, available });
        }
        let most = options.extent_bytes;
        let step = self.allocated.clamp(FIRST_EXTENT_BYTES.min(most), most);
        let wanted = end
            .max(self.allocated + step.min(available))
            .next_multiple_of(TRIM_BLOCK_BYTES);
        let mut reached = wanted;
        let mut result = self.file.allocate(wanted).await;
        if result.as_ref().is_err_and(StorageError::is_full) {
            reached = end.next_multiple_of(TRIM_BLOCK_BYTES);
            result = self.file.allocate(reached).await;
        }
        match result {
            Ok(()) => self.allocated = reached,
            Err(error) if error.is_full() => {
                let available = 0;
                return Err(StageError::Full { needed, available });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The bytes can be written as they are.
    pub(super) fn is_aligned(&self, at: u64, len: usize) -> bool {
        let block = self.file.block();
        self.tail.is_empty() && at.is_multiple_of(block) && (len as u64).is_multiple_of(block)
    }

    /// Turns verified bytes into one aligned write.
    pub(super) fn place(&mut self, at: u64, bytes: StageBuf) -> (Rc<DiskFile>, Rc<DmaBuffer>, u64) {
        self.dirty = true;
        (self.footer, self.ended) = (false, false);
        let block = self.file.block();
        if self.is_aligned(at, bytes.len()) {
            let mut buffer = bytes.buffer;
            buffer.trim_to_size(bytes.len);
            return (self.file.clone(), Rc::new(buffer), at);
        }
        let begin = at - self.tail.len() as u64;
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes.as_ref());
        let partial = all.len() % block as usize;
        self.tail = all[all.len() - partial..].to_vec();
        (self.file.clone(), disk::buffer_of(&all, block), begin)
    }

    /// Makes the bytes durable; all writes are done.
    pub(super) async fn sync(&mut self) -> Result<(), StorageError> {
        if self.dirty {
            self.file.sync().await?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Writes the footer when the index is whole; clears what else the file holds behind the bytes.
    pub(super) async fn write_footer(&mut self) -> Result<(), StorageError> {
        if self.footer || self.len() == 0 {
            return Ok(());
        }
        let seed = self.ident.seed();
        let points: &[IndexPoint] = if self.indexed { &self.index } else { &[] };
        if self.indexed {
            write_footer(&self.file, seed, self.len(), points).await?;
        } else {
            self.file.truncate(footer_at(self.len())).await?;
        }
        self.allocated = footer_at(self.len());
        self.stale_to = 0;
        self.footer = true;
        Ok(())
    }

    /// Before the end state is written: nothing but these bytes, and their footer, is in the file. What
    /// was done before and still stands costs nothing.
    pub(super) async fn complete(&mut self) -> Result<(), StorageError> {
        if self.footer || self.ended {
            return self.sync().await;
        }
        let end = footer_at(self.len());
        let footer = (self.indexed && self.len() > 0).then(|| {
            let bytes = encode_footer(self.ident.seed(), self.len(), &self.index);
            disk::buffer_of(&bytes, TRIM_BLOCK_BYTES)
        });
        let whole = end + footer.as_ref().map_or(0, |bytes| bytes.len() as u64);
        // A footer that was written earlier ends before this one: the index only grows.
        if self.stale_to > whole {
            self.file.truncate(end).await?;
            self.allocated = end;
            self.dirty = true;
        }
        self.stale_to = whole;
        if let Some(bytes) = footer {
            self.file.write(bytes, end).await?;
            self.allocated = self.allocated.max(whole);
            self.dirty = true;
        }
        self.ended = true;
        self.sync().await
    }

    /// Everything up to this write, as the staging counts them, is durable.
    pub(super) const fn synced(&mut self, upto: u64) {
        if self.last_write <= upto {
            self.dirty = false;
        }
    }

    /// Has bytes that may not be durable.
    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The same segment with only its first `len` bytes, which are read again.
    pub(super) async fn cut(self, len: u64) -> Result<Self, StageError> {
        let mut safe = Totals::empty(self.ident.id.base);
        let from = safe;
        let (scanner, _) = scan_file(&self.file, self.ident, from, len, &mut |_| {}).await?;
        if scanner.between_frames() && scanner.fed() == len {
            safe = scanner.totals();
        }
        Ok(Self::resume(self.ident, self.file, safe).await?)
    }
}
