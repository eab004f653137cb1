//! Comparing what is staged with what the source says: what is left to copy, what may stay.
//!
//! What this file keeps true: a staged segment counts only if the source has it under the same
//! identity, at least as long, and with the same digest at the same length.

use super::CopyRange;
use crate::copy::{Manifest, SegmentId, SegmentState};
use crate::ids::Offset;
use alloc::vec::Vec;

/// How the staged bytes relate to the source's, as far as its manifest tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Equal wherever both speak of the same length; `ask` of the staged prefixes are shorter than
    /// the source's, so only the source can tell.
    Prefix {
        /// Number of such prefixes.
        ask: usize,
    },
    /// The source no longer keeps the first of the staged segments.
    Stale,
    /// The bytes are not the source's.
    Diverged,
}

fn find(manifest: &Manifest, id: SegmentId) -> Option<&SegmentState> {
    manifest.segments.iter().find(|s| s.id == id)
}

fn is_stale(manifest: &Manifest, segment: &SegmentState) -> bool {
    find(manifest, segment.id).is_none()
        && segment.end <= manifest.start
        && manifest
            .segments
            .first()
            .is_none_or(|first| segment.id < first.id)
}

/// Compares.
pub(super) fn compare(manifest: &Manifest, staged: &[SegmentState]) -> Comparison {
    let mut ask = 0;
    let mut stale = false;
    for segment in staged.iter().filter(|s| s.durable_len > 0) {
        match find(manifest, segment.id) {
            None if is_stale(manifest, segment) => stale = true,
            None => return Comparison::Diverged,
            Some(own) if own.durable_len < segment.durable_len => return Comparison::Diverged,
            Some(own) if own.durable_len > segment.durable_len => ask += 1,
            Some(own) if own.digest != segment.digest => return Comparison::Diverged,
            Some(_) => {}
        }
    }
    if stale {
        Comparison::Stale
    } else {
        Comparison::Prefix { ask }
    }
}

/// Whether the source writes to this segment no more.
pub(super) fn is_sealed(manifest: &Manifest, id: SegmentId) -> bool {
    find(manifest, id).is_some_and(|own| own.sealed)
}

/// Staged segments that contradict what the source says of them now, although it does not write to
/// them: its disk may have lost what is staged here.
pub(super) fn decayed(manifest: &Manifest, staged: &[SegmentState]) -> Vec<SegmentId> {
    let contradicts = |s: &&SegmentState| match find(manifest, s.id) {
        None => !is_stale(manifest, s),
        Some(own) if own.sealed => {
            let equal = own.durable_len == s.durable_len && own.digest == s.digest;
            !equal && own.durable_len <= s.durable_len
        }
        Some(_) => false,
    };
    let held = staged.iter().filter(|s| s.durable_len > 0);
    held.filter(contradicts).map(|s| s.id).collect()
}

/// Staged prefixes that are shorter than the source's.
pub(super) fn to_ask(manifest: &Manifest, staged: &[SegmentState]) -> Vec<SegmentState> {
    staged
        .iter()
        .filter(|s| s.durable_len > 0)
        .filter(|s| find(manifest, s.id).is_some_and(|own| own.durable_len > s.durable_len))
        .copied()
        .collect()
}

/// Staged segments that the source still keeps.
pub(super) fn kept(manifest: &Manifest, staged: &[SegmentState]) -> Vec<SegmentId> {
    staged
        .iter()
        .filter(|s| !is_stale(manifest, s))
        .map(|s| s.id)
        .collect()
}

fn staged_len(staged: &[SegmentState], id: SegmentId) -> u64 {
    staged
        .iter()
        .find(|s| s.id == id)
        .map_or(0, |s| s.durable_len)
}

/// What is left to copy, in order.
pub(super) fn ranges(manifest: &Manifest, staged: &[SegmentState]) -> Vec<CopyRange> {
    manifest
        .segments
        .iter()
        .map(|segment| CopyRange {
            segment: segment.id,
            from: staged_len(staged, segment.id),
            to: segment.durable_len,
        })
        .filter(|range| range.from < range.to)
        .collect()
}

/// Bytes left to copy. The lengths are a peer's: their sum may be too large for a number.
pub(super) fn tail_bytes(manifest: &Manifest, staged: &[SegmentState]) -> u64 {
    let ranges = ranges(manifest, staged);
    let lens = ranges.iter().map(|range| range.to - range.from);
    lens.fold(0, u64::saturating_add)
}

/// What a staged copy alone recovers to: the offset after its last record, if its segments follow
/// one another without a hole from `start` on. `None` when there is a hole.
pub(super) fn covered_end(start: Offset, staged: &[SegmentState]) -> Option<Offset> {
    let mut held = staged.iter().filter(|s| s.durable_len > 0);
    let Some(first) = held.next() else {
        return Some(start);
    };
    if first.id.base > start {
        return None;
    }
    let mut end = first.end;
    for segment in held {
        if segment.id.base != end {
            return None;
        }
        end = segment.end;
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use alloc::vec;

    fn segment(base: u64, len: u64, digest: u32, end: u64) -> SegmentState {
        SegmentState {
            id: SegmentId {
                base: Offset(base),
                epoch: Epoch(1),
            },
            durable_len: len,
            digest,
            end: Offset(end),
            sealed: false,
        }
    }

    fn manifest(start: u64, segments: Vec<SegmentState>) -> Manifest {
        Manifest {
            segments,
            start: Offset(start),
            ..Manifest::default()
        }
    }

    #[test]
    fn only_the_source_can_vouch_for_a_shorter_prefix() {
        let m = manifest(0, vec![segment(0, 100, 7, 10), segment(10, 80, 8, 14)]);
        let staged = [segment(0, 100, 7, 10), segment(10, 40, 99, 12)];
        assert_eq!(compare(&m, &staged), Comparison::Prefix { ask: 1 });
        assert_eq!(to_ask(&m, &staged), vec![staged[1]]);
        assert_eq!(tail_bytes(&m, &staged), 40);
        assert_eq!(
            ranges(&m, &staged),
            vec![CopyRange {
                segment: staged[1].id,
                from: 40,
                to: 80
            }]
        );
    }

    #[test]
    fn another_digest_length_or_identity_is_another_copy() {
        let m = manifest(0, vec![segment(0, 100, 7, 10)]);
        assert_eq!(compare(&m, &[segment(0, 100, 6, 10)]), Comparison::Diverged);
        assert_eq!(compare(&m, &[segment(0, 120, 7, 12)]), Comparison::Diverged);
        assert_eq!(compare(&m, &[segment(3, 10, 7, 12)]), Comparison::Diverged);
        assert_eq!(compare(&m, &[]), Comparison::Prefix { ask: 0 });
    }

    #[test]
    fn only_what_the_source_cannot_have_written_since_counts_as_decayed() {
        let sealed = |base, len, digest, end| SegmentState {
            sealed: true,
            ..segment(base, len, digest, end)
        };
        let own = vec![
            sealed(0, 100, 7, 10),
            sealed(10, 100, 8, 20),
            sealed(20, 100, 9, 30),
            segment(30, 100, 10, 40),
        ];
        let m = manifest(0, own);
        let staged = [
            segment(0, 100, 7, 10),
            segment(10, 100, 88, 20),
            segment(20, 60, 99, 26),
            segment(30, 100, 1, 40),
            segment(40, 100, 1, 50),
        ];
        // A shorter prefix is asked for; the active segment may have been cut and written anew; one
        // that the source does not name at all is gone there.
        assert_eq!(decayed(&m, &staged), vec![staged[1].id, staged[4].id]);
        assert!(is_sealed(&m, staged[2].id) && !is_sealed(&m, staged[3].id));
    }

    #[test]
    fn what_retention_deleted_at_the_source_is_dropped_here() {
        let m = manifest(10, vec![segment(10, 50, 7, 20)]);
        let staged = [segment(0, 100, 6, 10), segment(10, 50, 7, 20)];
        assert_eq!(compare(&m, &staged), Comparison::Stale);
        assert_eq!(kept(&m, &staged), vec![staged[1].id]);
    }

    #[test]
    fn a_hole_covers_nothing() {
        assert_eq!(covered_end(Offset(5), &[]), Some(Offset(5)));
        let whole = [segment(0, 10, 1, 10), segment(10, 10, 1, 15)];
        assert_eq!(covered_end(Offset(5), &whole), Some(Offset(15)));
        let hole = [segment(0, 10, 1, 8), segment(10, 10, 1, 15)];
        assert_eq!(covered_end(Offset(5), &hole), None);
        assert_eq!(covered_end(Offset(5), &[segment(6, 10, 1, 8)]), None);
    }
}
