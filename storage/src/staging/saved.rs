//! `staged.json`: where a copy in progress stands, so that a restart resumes.
//!
//! What this file keeps true: it is written after the bytes it speaks of are durable, and replaced as a
//! whole. Its digests are compared with the source's before they count (rule R4), so a damaged one
//! costs a copy, not a record.

use super::Staging;
use crate::error::StorageError;
use crate::format::list::{ListEntry, Marks, Totals};
use crate::limits::FORMAT_VERSION;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset, WalId, WalSeq, WallMs};
use narad_core::moves::target::Told;
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    version: u32,
    pub(crate) segments: Vec<SavedSegment>,
    /// WAL, sequence, offset after the batch.
    marks: Vec<(u64, u64, u64)>,
    #[serde(default)]
    pub(crate) told: Option<Told>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedSegment {
    base: u64,
    epoch: u64,
    len: u64,
    digest: u32,
    end: u64,
    records: u64,
    missing: u64,
    first_time_ms: u64,
    last_time_ms: u64,
}

impl SavedSegment {
    fn of(id: SegmentId, t: &Totals) -> Self {
        Self {
            base: id.base.0,
            epoch: id.epoch.0,
            len: t.len,
            digest: t.digest,
            end: t.end.0,
            records: t.records,
            missing: t.missing,
            first_time_ms: t.first_time.0,
            last_time_ms: t.last_time.0,
        }
    }

    pub(crate) const fn id(&self) -> SegmentId {
        SegmentId {
            base: Offset(self.base),
            epoch: Epoch(self.epoch),
        }
    }

    pub(crate) const fn totals(&self) -> Totals {
        Totals {
            len: self.len,
            digest: self.digest,
            end: Offset(self.end),
            records: self.records,
            missing: self.missing,
            first_time: WallMs(self.first_time_ms),
            last_time: WallMs(self.last_time_ms),
        }
    }
}

impl Saved {
    pub(crate) fn of(staging: &Staging) -> Self {
        Self::from_parts(
            staging.segments.iter().map(|s| (s.id(), *s.safe())),
            &staging.marks,
            staging.told.clone(),
        )
    }

    fn from_parts(
        segments: impl Iterator<Item = (SegmentId, Totals)>,
        marks: &Marks,
        told: Option<Told>,
    ) -> Self {
        Self {
            version: FORMAT_VERSION,
            segments: segments.map(|(id, t)| SavedSegment::of(id, &t)).collect(),
            marks: marks.iter().map(|(w, (s, e))| (w.0, s.0, e.0)).collect(),
            told,
        }
    }

    /// What a finished copy is as a staged one.
    pub(crate) fn of_list(entries: &[ListEntry], marks: &Marks, told: Option<Told>) -> Self {
        Self::from_parts(entries.iter().map(|e| (e.id, e.totals)), marks, told)
    }

    pub(crate) fn marks(&self) -> Marks {
        self.marks
            .iter()
            .map(|(w, s, e)| (WalId(*w), (WalSeq(*s), Offset(*e))))
            .collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads it; one that cannot be read counts as nothing staged.
    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self, StorageError> {
        let mut saved: Self = match serde_json::from_slice(bytes) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "staged manifest unreadable");
                return Ok(Self::default());
            }
        };
        if saved.version > FORMAT_VERSION {
            return Err(StorageError::NewerVersion {
                path: path.to_path_buf(),
                found: saved.version,
                supported: FORMAT_VERSION,
            });
        }
        let possible = |s: &SavedSegment| s.totals().possible(s.id().base);
        saved.segments.retain(possible);
        Ok(saved)
    }
}
