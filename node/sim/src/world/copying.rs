//! Sessions and copies: the target's operations on its staging and its calls to the source.
//!
//! What this file keeps true: a call that got no answer is "unreachable", never a refusal; what is
//! copied in the freeze is durable only once it is finished; an install replaces nothing.

use super::World;
use super::target::failed;
use crate::action::How;
use crate::check::Check;
use crate::disk::{Copy, Staging, len};
use crate::mutation::Mutation;
use crate::world::LateCall;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{Epoch, HandoffId, MoveId};
use narad_core::moves::target::{CopyRange, TargetInput, Told};
use narad_core::moves::{SourceEffect, SourceInput};

fn unreachable() -> TargetInput {
    TargetInput::SourceUnreachable { why: "cut".into() }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("small")
}

impl World {
    fn move_of(&self, n: usize, p: usize) -> MoveId {
        let worker = self.nodes[n].parts[p].worker.as_ref();
        worker.expect("asked for by a worker").machine.move_id()
    }

    /// The owner that the move is from, if a call gets through.
    fn source_of(&self, n: usize, p: usize, how: How) -> Option<usize> {
        let worker = self.nodes[n].parts[p].worker.as_ref()?;
        let source = self.index_of(worker.machine.from());
        (source != n && how != How::Lost && self.reach(n, source)).then_some(source)
    }

    pub(crate) fn check_local(&self, n: usize, p: usize) -> TargetInput {
        match self.nodes[n].parts[p].copies.keys().next() {
            Some(epoch) if !self.off(Mutation::R1) => TargetInput::LocalOccupied {
                copy: self.copy_id(p, *epoch),
            },
            _ => TargetInput::LocalClear,
        }
    }

    pub(crate) fn open_staging(&mut self, n: usize, p: usize) -> TargetInput {
        let move_id = self.move_of(n, p);
        let part = self.part(n, p);
        let staging = part.staging.get_or_insert_default();
        staging.move_id = move_id;
        staging.finished = None;
        if std::mem::take(&mut staging.failed) {
            staging.segments = staging.durable.clone();
        }
        self.staging_ready(n, p)
    }

    fn staging_ready(&self, n: usize, p: usize) -> TargetInput {
        let move_id = self.move_of(n, p);
        let part = &self.nodes[n].parts[p];
        let segments = part.staging.as_ref().map(|s| &s.segments);
        let mut told = part.told.clone();
        if self.off(Mutation::R12)
            && let Some(told) = &mut told
        {
            told.move_id = move_id;
        }
        TargetInput::StagingReady {
            staged: segments.map_or_else(Vec::new, |s| {
                s.states(self.setup.record_bytes, self.off(Mutation::R4))
            }),
            told: told.filter(|told| told.move_id == move_id),
        }
    }

    pub(crate) fn start_over(&mut self, n: usize, p: usize, keep: bool) -> TargetInput {
        let move_id = self.move_of(n, p);
        let part = self.part(n, p);
        let old = part.staging.replace(Staging {
            move_id,
            ..Staging::default()
        });
        if keep {
            part.aside.extend(old);
        }
        self.staging_ready(n, p)
    }

    pub(crate) fn trim(&mut self, n: usize, p: usize, keep: &[SegmentId]) -> TargetInput {
        let kept = |base: u64| keep.iter().any(|id| id.base.0 == base);
        if let Some(staging) = &mut self.part(n, p).staging {
            staging.segments.0.retain(|(base, _)| kept(*base));
            staging.durable.0.retain(|(base, _)| kept(*base));
        }
        self.staging_ready(n, p)
    }

    pub(crate) fn ask_source(&mut self, n: usize, p: usize, open: bool, how: How) -> TargetInput {
        let move_id = self.move_of(n, p);
        let input = if open {
            let worker = self.nodes[n].parts[p].worker.as_ref();
            SourceInput::OpenSession {
                epoch: worker.expect("asks").machine.epoch(),
                move_id,
                target: self.nodes[n].id.clone(),
            }
        } else {
            SourceInput::Refresh { move_id }
        };
        let Some(source) = self.source_of(n, p, how) else {
            return unreachable();
        };
        if how == How::Twice {
            self.calls.push(LateCall {
                n: source,
                p,
                input: input.clone(),
            });
        }
        let answer = self.feed_source(source, p, input);
        if how == How::NoReply {
            return unreachable();
        }
        match answer {
            Some(SourceEffect::AnswerManifest { .. }) => match self.manifest(source, p) {
                Some(manifest) => {
                    self.ghost().told.insert(p, manifest.hwm.0);
                    self.told_so(n, p, manifest, open)
                }
                None => unreachable(),
            },
            Some(SourceEffect::AnswerRefused(refusal)) => TargetInput::SourceRefused(refusal),
            _ => unreachable(),
        }
    }

    fn told_so(&self, n: usize, p: usize, mut manifest: Manifest, open: bool) -> TargetInput {
        if self.off(Mutation::PromoteWithoutGate) {
            let staging = self.nodes[n].parts[p].staging.as_ref();
            let staged = staging.map_or(0, |s| s.segments.end(0));
            manifest.hwm.0 = manifest.hwm.0.min(staged);
        }
        let write_bytes_per_s = 0;
        if open {
            TargetInput::SourceOpened {
                manifest,
                write_bytes_per_s,
            }
        } else {
            TargetInput::Refreshed {
                manifest,
                write_bytes_per_s,
            }
        }
    }

    /// The source's open copy, if the bulk channel serves this session.
    fn served_to(&self, source: usize, n: usize, p: usize) -> Option<&Copy> {
        let part = &self.nodes[source].parts[p];
        let side = &part.source.as_ref()?.side;
        if side.session() != Some(self.move_of(n, p)) {
            return None;
        }
        part.copies.get(&side.copy().epoch)
    }

    pub(crate) fn check_prefixes(
        &mut self,
        n: usize,
        p: usize,
        staged: &[SegmentState],
        how: How,
    ) -> TargetInput {
        let source = self.source_of(n, p, how);
        let Some(copy) = source.and_then(|source| self.served_to(source, n, p)) else {
            return unreachable();
        };
        let (unit, blind) = (self.setup.record_bytes, self.off(Mutation::R4));
        TargetInput::PrefixesChecked {
            matching: staged
                .iter()
                .filter(|state| copy.segments.has_prefix(state, unit, blind))
                .map(|state| state.id)
                .collect(),
        }
    }

    pub(crate) fn copy(
        &mut self,
        n: usize,
        p: usize,
        ranges: &[CopyRange],
        renew: Option<HandoffId>,
        told: Told,
        how: How,
    ) -> TargetInput {
        self.part(n, p).told = Some(told);
        let source = self.source_of(n, p, how);
        if let (Some(handoff_id), Some(source)) = (renew, source) {
            self.feed_source(source, p, SourceInput::RenewFreeze { handoff_id });
        }
        let from = source.and_then(|source| self.served_to(source, n, p));
        let unit = self.setup.record_bytes;
        let mut copied = Vec::new();
        let mut whole = from.is_some() && matches!(how, How::Ok | How::Twice);
        for (count, range) in ranges.iter().enumerate() {
            let held = from.and_then(|copy| copy.segments.segment(range.segment.base.0));
            let Some(held) = held.filter(|held| at(range.to / unit) <= held.len()) else {
                whole = false;
                break;
            };
            if how == How::Half && count + 1 == ranges.len() {
                break;
            }
            copied.push((
                range.segment.base.0,
                held[at(range.from / unit)..at(range.to / unit)].to_vec(),
            ));
        }
        if matches!(how, How::Corrupt | How::NoRoom) {
            copied.clear();
        }
        let blind = self.off(Mutation::R4);
        let bytes: u64 = copied.iter().map(|(_, held)| len(held) * unit).sum();
        let staging = self.part(n, p).staging.get_or_insert_default();
        for (base, records) in copied {
            match staging.segments.0.iter_mut().find(|(at, _)| *at == base) {
                Some((_, held)) => held.extend(records),
                None => {
                    let place = staging.segments.0.partition_point(|(at, _)| *at < base);
                    staging.segments.0.insert(place, (base, records));
                }
            }
        }
        if renew.is_none() {
            staging.durable = staging.segments.clone();
        }
        let staged = staging.segments.states(unit, blind);
        if how == How::NoRoom {
            let why = "the disk is full".into();
            TargetInput::NoRoom { staged, why }
        } else if whole {
            TargetInput::Copied {
                staged,
                bytes: bytes.max(1),
                elapsed_us: bytes.max(1),
            }
        } else {
            TargetInput::CopyFailed {
                staged,
                why: "the stream broke".into(),
            }
        }
    }

    pub(crate) fn ask_freeze(
        &mut self,
        n: usize,
        p: usize,
        handoff_id: HandoffId,
        how: How,
    ) -> Option<TargetInput> {
        let waited = self.nodes[n].parts[p]
            .worker
            .as_ref()
            .is_some_and(|worker| worker.asked);
        let Some(source) = self.source_of(n, p, how).filter(|_| !waited) else {
            // Or the call's time is over, whatever becomes of it.
            return Some(unreachable());
        };
        let input = SourceInput::Freeze {
            move_id: self.move_of(n, p),
            handoff_id,
        };
        if self.nodes[source].parts[p].source.is_none() {
            return Some(unreachable());
        }
        if how == How::Twice {
            self.calls.push(LateCall {
                n: source,
                p,
                input: input.clone(),
            });
        }
        if let Some(worker) = &mut self.part(n, p).worker {
            worker.asked = how != How::NoReply;
        }
        self.feed_source(source, p, input);
        (how == How::NoReply).then(unreachable)
    }

    pub(crate) fn finish_staging(
        &mut self,
        n: usize,
        p: usize,
        capture: Manifest,
        mark: InstallMark,
        how: How,
    ) -> TargetInput {
        let (unit, blind) = (self.setup.record_bytes, self.off(Mutation::R4));
        let Some(staging) = &mut self.part(n, p).staging else {
            return failed("no staging");
        };
        let staged: Vec<SegmentState> = staging.segments.states(unit, blind);
        let same = |a: &SegmentState, b: &SegmentState| {
            (a.id, a.durable_len, a.digest, a.end) == (b.id, b.durable_len, b.digest, b.end)
        };
        let wanted: Vec<&SegmentState> = capture
            .segments
            .iter()
            .filter(|s| s.durable_len > 0)
            .collect();
        let equal =
            staged.len() == wanted.len() && staged.iter().zip(wanted).all(|(a, b)| same(a, b));
        if !equal || how == How::Corrupt {
            return TargetInput::Mismatch {
                why: "the digest".into(),
            };
        }
        staging.durable = staging.segments.clone();
        staging.finished = Some((capture, mark));
        TargetInput::Finished
    }

    pub(crate) fn install(&mut self, n: usize, p: usize, epoch: Epoch, how: How) -> TargetInput {
        // An heir's own empty log, made before it installs: the storage refuses, as it should.
        if self.nodes[n].parts[p].copies.contains_key(&epoch) {
            return failed("occupied by this very epoch");
        }
        let occupied = !self.nodes[n].parts[p].copies.is_empty();
        if occupied && !self.off(Mutation::R1) {
            self.violate(
                Check::P9,
                format!("install of p{p} beside a real copy at node {n}"),
            );
            return failed("occupied");
        }
        let part = self.part(n, p);
        let Some(staging) = part.staging.take() else {
            return failed("no staging");
        };
        let Some((capture, mark)) = staging.finished else {
            part.staging = Some(staging);
            return failed("not finished");
        };
        // A rule switched off (R1): it takes the place of whatever is there.
        part.copies.clear();
        let end = staging.segments.end(capture.start.0);
        let hwm = capture.hwm.0;
        part.copies.insert(
            epoch,
            Copy {
                start: capture.start.0,
                segments: staging.segments,
                hwm,
                frontier: capture.frontier.0,
                fence: (hwm < end).then_some((hwm, end)),
                marks: capture.marks.iter().map(|o| (o.wal, o.seq)).collect(),
                mark: Some(mark),
            },
        );
        if how == How::FailDone {
            return failed("the directory's sync");
        }
        TargetInput::Installed
    }

    pub(crate) fn roll_back(&mut self, n: usize, p: usize, epoch: Epoch) -> TargetInput {
        let move_id = self.move_of(n, p);
        let Some(held) = self.nodes[n].parts[p].copies.get(&epoch) else {
            return TargetInput::RolledBack;
        };
        // The storage takes back only what this very move installed and nobody has opened since.
        if held.mark.is_none_or(|mark| mark.move_id != move_id) {
            return failed("not installed by this move");
        }
        self.check_delete(n, p, epoch);
        let copy = self
            .part(n, p)
            .copies
            .remove(&epoch)
            .expect("looked at above");
        self.count.rollbacks += 1;
        let part = self.part(n, p);
        part.staging = Some(Staging {
            move_id,
            durable: copy.segments.clone(),
            segments: copy.segments,
            finished: None,
            failed: false,
        });
        TargetInput::RolledBack
    }

    pub(crate) fn close_source(&mut self, n: usize, p: usize, how: How) -> TargetInput {
        let move_id = self.move_of(n, p);
        if let Some(source) = self.source_of(n, p, how) {
            self.feed_source(source, p, SourceInput::CloseSession { move_id });
        }
        TargetInput::SourceClosed
    }
}
