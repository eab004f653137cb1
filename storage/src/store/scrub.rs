//! Reading sealed segments again in the background, to meet decay before a consumer or a move does.
//!
//! What this file keeps true: it never changes a segment's bytes; what it finds becomes the segment's
//! description (digest, readable and missing records), so that a damaged partition can still be moved as
//! it is; it stays below the given rate; about a log that was closed meanwhile it says nothing and writes nothing,
//! since whoever closed it may be removing its files, or have opened them anew.

use super::recover::{Damage, scan_error};
use super::state::Store;
use crate::error::StorageError;
use crate::format::list::Totals;
use crate::limits::{MAX_HOLES, TRIM_BLOCK_BYTES};
use crate::scan::{FrameScanner, ScanEvent};
use narad_core::copy::SegmentId;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Segments read.
    pub segments: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Segments whose bytes are not what was written, and are now described as they are.
    pub changed: Vec<SegmentId>,
    /// Damage in those segments.
    pub damage: Vec<Damage>,
}

/// Keeps reading below a rate.
struct Pace {
    since: Instant,
    bytes: u64,
    bytes_per_s: u64,
}

impl Pace {
    async fn took(&mut self, bytes: u64) {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        let spent = self.since.elapsed();
        if due > spent {
            glommio::timer::sleep(due - spent).await;
        }
    }
}

impl Store {
    /// Reads every sealed segment once; see [`crate::Log::scrub`].
    pub(crate) async fn scrub(
        self: &Rc<Self>,
        bytes_per_s: u64,
    ) -> Result<ScrubReport, StorageError> {
        let mut report = ScrubReport::default();
        let mut pace = Pace {
            since: Instant::now(),
            bytes: 0,
            bytes_per_s: bytes_per_s.max(1),
        };
        let sealed: Vec<SegmentId> = {
            let state = self.state.borrow();
            let count = state.segments.len() - usize::from(state.active);
            state.segments[..count].iter().map(|s| s.id).collect()
        };
        for id in sealed {
            self.scrub_one(id, &mut pace, &mut report).await?;
        }
        self.still_open()?;
        if !report.changed.is_empty() {
            self.persist_list().await?;
        }
        Ok(report)
    }

    async fn scrub_one(
        self: &Rc<Self>,
        id: SegmentId,
        pace: &mut Pace,
        report: &mut ScrubReport,
    ) -> Result<(), StorageError> {
        let known = {
            let state = self.state.borrow();
            state.position_of(id).map(|i| state.segments[i].totals)
        };
        // Retention may have deleted it meanwhile.
        let Some(known) = known else { return Ok(()) };
        let Some(file) = self.file_of(id).await? else {
            return Ok(());
        };
        let ident = self.ident(id);
        let mut scanner = FrameScanner::new(ident);
        let mut damage = Vec::new();
        let mut sink = |event| {
            if let ScanEvent::Hole(hole) = event
                && damage.len() < MAX_HOLES
            {
                damage.push(Damage {
                    segment: id,
                    at: hole.before.len,
                    from: hole.from,
                    until: hole.until.unwrap_or(hole.from),
                });
            }
        };
        while scanner.fed() < known.len {
            let at = scanner.fed();
            let begin = at - at % TRIM_BLOCK_BYTES;
            let want = (known.len - begin).min(self.options.io_chunk_bytes as u64);
            let want = want.next_multiple_of(TRIM_BLOCK_BYTES) as usize;
            self.still_open()?;
            let bytes = file.read(begin, want).await?;
            let upto = bytes.len().min((known.len - begin) as usize);
            let skip = (at - begin) as usize;
            if skip >= upto {
                break;
            }
            scanner
                .feed(&bytes[skip..upto], &mut sink)
                .map_err(|e| scan_error(file.path(), ident, &e))?;
            report.bytes += (upto - skip) as u64;
            pace.took((upto - skip) as u64).await;
        }
        scanner.finish(&mut sink);
        self.still_open()?;
        report.segments += 1;
        if scanner.fed() == known.len && scanner.digest() == known.digest {
            return Ok(());
        }
        let found = scanner.totals();
        let lost = known.end.0.saturating_sub(found.end.0);
        tracing::error!(segment = %ident, missing = found.missing + lost, "segment has decayed");
        report.changed.push(id);
        report.damage.append(&mut damage);
        let mut state = self.state.borrow_mut();
        if let Some(i) = state.position_of(id) {
            // Offsets and times stay what they were; so does the length, where the file still has it.
            state.segments[i].totals = Totals {
                len: found.len,
                digest: found.digest,
                records: found.records,
                missing: found.missing + lost,
                ..known
            };
        }
        Ok(())
    }
}
