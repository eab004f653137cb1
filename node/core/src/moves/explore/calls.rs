//! Calls of the target to the source of a walk, and the copy: they get lost, late, doubled and cut.

use super::world::{World, manifest, segment};
use crate::copy::SegmentState;
use crate::ids::HandoffId;
use crate::moves::source::{SourceEffect, SourceInput};
use crate::moves::target::{CopyRange, TargetEffect, TargetInput, Told};
use alloc::vec::Vec;

pub(super) fn usize_of(offset: u64) -> usize {
    usize::try_from(offset).expect("fits")
}

impl World {
    /// The owner as the target's metadata names it, if a call gets through.
    pub(super) fn reach(&mut self, at: usize) -> Option<usize> {
        let owner = self.view_at(at).1?.owner;
        let source = self.index_of(&owner);
        let lost = self.faults && self.rng.percent(6);
        (self.talks(at) && self.talks(source) && source != at && !lost).then_some(source)
    }

    pub(super) fn unreachable() -> TargetInput {
        TargetInput::SourceUnreachable { why: "cut".into() }
    }

    pub(super) fn open_staging(&mut self, at: usize) -> TargetInput {
        let move_id = self.worker_move(at);
        let staging = self.nodes[at].staging.get_or_insert_default();
        staging.move_id = move_id;
        staging.finished = None;
        self.staging_ready(at)
    }

    pub(super) fn staging_ready(&self, at: usize) -> TargetInput {
        let staging = self.nodes[at].staging.as_ref().expect("opened");
        TargetInput::StagingReady {
            staged: segment(&staging.records),
            told: staging.told.clone(),
        }
    }

    pub(super) fn ask_source(&mut self, at: usize, effect: &TargetEffect) -> Option<TargetInput> {
        let move_id = self.worker_move(at);
        let worker = self.nodes[at].worker.as_ref()?;
        let open = *effect == TargetEffect::OpenSource;
        let call = if open {
            SourceInput::OpenSession {
                epoch: worker.machine.epoch(),
                move_id,
                target: self.nodes[at].id.clone(),
            }
        } else {
            SourceInput::Refresh { move_id }
        };
        let Some(source) = self.reach(at) else {
            return Some(Self::unreachable());
        };
        if self.faults && self.rng.percent(5) {
            self.late_calls.push((source, call.clone()));
        }
        let answer = self.feed_source(source, call);
        if self.faults && self.rng.percent(5) {
            return Some(Self::unreachable());
        }
        Some(match answer {
            Some(SourceEffect::AnswerManifest { .. }) => {
                let side = &self.nodes[source].source.as_ref()?.side;
                let manifest = manifest(self.nodes[source].copies.get(&side.copy().epoch)?);
                if open {
                    TargetInput::SourceOpened {
                        manifest,
                        write_bytes_per_s: 0,
                    }
                } else {
                    TargetInput::Refreshed {
                        manifest,
                        write_bytes_per_s: 0,
                    }
                }
            }
            Some(SourceEffect::AnswerRefused(refusal)) => TargetInput::SourceRefused(refusal),
            _ => Self::unreachable(),
        })
    }

    /// The source's records, if the bulk channel serves this session.
    pub(super) fn source_records(&mut self, at: usize) -> Option<Vec<u64>> {
        let move_id = self.worker_move(at);
        let source = self.reach(at)?;
        let side = &self.nodes[source].source.as_ref()?.side;
        if side.session() != Some(move_id) {
            return None;
        }
        let copy = self.nodes[source].copies.get(&side.copy().epoch)?;
        Some(copy.records.clone())
    }

    pub(super) fn check_prefixes(
        &mut self,
        at: usize,
        staged: &[SegmentState],
    ) -> Option<TargetInput> {
        let Some(records) = self.source_records(at) else {
            return Some(Self::unreachable());
        };
        let matching = staged
            .iter()
            .filter(|s| {
                let len = usize_of(s.durable_len);
                records.len() >= len && segment(&records[..len])[0].digest == s.digest
            })
            .map(|s| s.id)
            .collect();
        Some(TargetInput::PrefixesChecked { matching })
    }

    pub(super) fn copy(
        &mut self,
        at: usize,
        ranges: &[CopyRange],
        renew: Option<HandoffId>,
        told: Told,
    ) -> TargetInput {
        let records = self.source_records(at);
        let broken = self.faults && self.rng.percent(10);
        if let (Some(handoff_id), Some(source)) = (renew, self.reach(at)) {
            self.feed_source(source, SourceInput::RenewFreeze { handoff_id });
        }
        let staging = self.nodes[at].staging.as_mut().expect("open");
        staging.told = Some(told);
        let Some(records) = records else {
            return TargetInput::CopyFailed {
                staged: segment(&staging.records),
                why: "cut".into(),
            };
        };
        for range in ranges {
            let half = (range.to - range.from) / 2;
            let to = if broken { range.from + half } else { range.to };
            staging
                .records
                .extend(&records[usize_of(range.from)..usize_of(to)]);
        }
        if renew.is_none() {
            staging.durable = staging.records.len();
        }
        let staged = segment(&staging.records);
        if broken {
            return TargetInput::CopyFailed {
                staged,
                why: "reset".into(),
            };
        }
        TargetInput::Copied {
            staged,
            bytes: 2 << 20,
            elapsed_us: 1_000_000,
        }
    }

    pub(super) fn ask_freeze(&mut self, at: usize, handoff_id: HandoffId) -> Option<TargetInput> {
        let move_id = self.worker_move(at);
        // The call times out now and then, whatever became of it.
        if self.faults && self.rng.percent(15) {
            return Some(Self::unreachable());
        }
        let Some(source) = self.reach(at) else {
            return Some(Self::unreachable());
        };
        let call = SourceInput::Freeze {
            move_id,
            handoff_id,
        };
        if self.faults && self.rng.percent(5) {
            self.late_calls.push((source, call.clone()));
        }
        if self.nodes[source].source.is_none() {
            return Some(Self::unreachable());
        }
        self.feed_source(source, call);
        None
    }
}
