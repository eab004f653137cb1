//! The disk of a node: copies by their identity, a staging, what a source told, the ingress WAL.
//!
//! What this file keeps true: what a crash takes is what was not synced; a record is a number that
//! no other record has.

use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{Epoch, MoveId, Offset, Origin, WalId, WalSeq};
use std::collections::BTreeMap;

/// A record.
pub type Record = u32;

/// Segments in offset order: first offset, records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segments(pub Vec<(u64, Vec<Record>)>);

fn digest(records: &[Record]) -> u32 {
    records.iter().fold(0x811c_9dc5, |digest, record| {
        (digest ^ record).wrapping_mul(16_777_619)
    })
}

/// A length as a number of bytes.
#[must_use]
pub fn len(records: &[Record]) -> u64 {
    records.len() as u64
}

impl Segments {
    /// Offset after the last record; `start` when there is none.
    #[must_use]
    pub fn end(&self, start: u64) -> u64 {
        self.0
            .last()
            .map_or(start, |(base, records)| base + len(records))
    }

    /// Appends a record; a segment holds `most`.
    pub fn push(&mut self, start: u64, record: Record, most: u64) {
        let end = self.end(start);
        match self.0.last_mut() {
            Some((_, records)) if len(records) < most => records.push(record),
            _ => self.0.push((end, vec![record])),
        }
    }

    /// Every record with its offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        self.0.iter().flat_map(|(base, records)| {
            records
                .iter()
                .enumerate()
                .map(move |(at, record)| (base + at as u64, *record))
        })
    }

    /// The records of one segment.
    #[must_use]
    pub fn segment(&self, base: u64) -> Option<&Vec<Record>> {
        self.0.iter().find(|(at, _)| *at == base).map(|(_, r)| r)
    }

    /// As the owner, or the staging, describes them, a record counting as `unit` bytes. Blind: digests
    /// are left out (R4 off).
    #[must_use]
    pub fn states(&self, unit: u64, blind: bool) -> Vec<SegmentState> {
        let last = self.0.len().saturating_sub(1);
        self.0
            .iter()
            .enumerate()
            .map(|(at, (base, records))| SegmentState {
                id: SegmentId {
                    base: Offset(*base),
                    epoch: Epoch(1),
                },
                durable_len: len(records) * unit,
                digest: if blind { 0 } else { digest(records) },
                end: Offset(base + len(records)),
                sealed: at < last,
            })
            .collect()
    }

    /// Whether these are the first bytes of that segment here.
    #[must_use]
    pub fn has_prefix(&self, state: &SegmentState, unit: u64, blind: bool) -> bool {
        let Some(records) = self.segment(state.id.base.0) else {
            return false;
        };
        let wanted = usize::try_from(state.durable_len / unit).unwrap_or(usize::MAX);
        records.len() >= wanted && (blind || digest(&records[..wanted]) == state.digest)
    }
}

/// A real copy of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copy {
    /// Retention's lower bound.
    pub start: u64,
    /// What is in the files; all of it survives.
    pub segments: Segments,
    /// Exclusive bound of what consumers see.
    pub hwm: u64,
    /// The frontier on the disk.
    pub frontier: u64,
    /// Records from the first up to the second stay hidden until an append passes them.
    pub fence: Option<(u64, u64)>,
    /// Highest dispatched sequence, by WAL.
    pub marks: BTreeMap<WalId, WalSeq>,
    /// While the flip is not known.
    pub mark: Option<InstallMark>,
}

impl Copy {
    /// Offset after the last record.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.segments.end(self.start)
    }

    /// Opened again: what is in the files is visible, but for what a fence hides.
    pub fn recover(&mut self) {
        let end = self.end();
        self.hwm = match self.fence {
            Some((from, to)) if to == end => from,
            _ => end,
        };
    }

    /// A durable append.
    pub fn append(&mut self, record: Record, most: u64) {
        self.segments.push(self.start, record, most);
        self.hwm = self.end();
        self.fence = None;
    }

    /// The records at or above `from` that a recovered copy shows.
    pub fn shown_from(&self, from: u64) -> impl Iterator<Item = Record> + '_ {
        let mut bound = self.end();
        if let Some((hidden, to)) = self.fence
            && to == bound
        {
            bound = hidden;
        }
        self.segments
            .iter()
            .filter(move |(at, _)| *at >= from && *at < bound)
            .map(|(_, record)| record)
    }

    /// As the owner tells it, with the frontier of its memory.
    #[must_use]
    pub fn manifest(&self, frontier: u64, unit: u64, blind: bool) -> Manifest {
        Manifest {
            segments: self.segments.states(unit, blind),
            start: Offset(self.start),
            hwm: Offset(self.hwm),
            frontier: Offset(frontier),
            marks: self
                .marks
                .iter()
                .map(|(wal, seq)| Origin {
                    wal: *wal,
                    seq: *seq,
                })
                .collect(),
            fence: self.fence.map(|(from, to)| (Offset(from), Offset(to))),
        }
    }

    /// Whether the oldest segment is sealed and all of it was shown.
    #[must_use]
    pub fn may_retain(&self) -> bool {
        let first = self.segments.0.first();
        let shown = first.is_some_and(|(base, records)| base + len(records) <= self.hwm);
        shown && self.segments.0.len() > 1
    }

    /// Retention takes the oldest segment, unless it is the active one. What it held.
    pub fn retain(&mut self) -> Vec<Record> {
        if !self.may_retain() {
            return Vec::new();
        }
        let (base, records) = self.segments.0.remove(0);
        self.start = base + len(&records);
        self.frontier = self.frontier.max(self.start);
        records
    }
}

/// A staged copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Staging {
    /// Whose it is.
    pub move_id: MoveId,
    /// What is in the files.
    pub segments: Segments,
    /// What a crash leaves of it.
    pub durable: Segments,
    /// Its end state and mark are written.
    pub finished: Option<(Manifest, InstallMark)>,
    /// A write of it failed: until it is opened again it does nothing.
    pub failed: bool,
}

/// A record of the ingress WAL; durable when it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WalRecord {
    /// Its sequence.
    pub seq: WalSeq,
    /// The record.
    pub record: Record,
    /// Its partition, by the world's numbers.
    pub p: usize,
    /// The client named the partition.
    pub pinned: bool,
}
