//! The owner's shell of a walk: appends in flight, settling, answers to Freeze calls.

use super::world::{Copy, World, manifest};
use crate::ids::{HandoffId, MonoMs};
use crate::meta::{Command, Reply};
use crate::moves::source::{SourceEffect, SourceInput, SourcePartition};
use crate::moves::target::TargetInput;
use alloc::vec::Vec;

pub(super) struct Source {
    pub(super) side: SourcePartition,
    inflight: Vec<u64>,
    settling: Option<HandoffId>,
}

impl Source {
    pub(super) fn busy(&self) -> bool {
        !self.inflight.is_empty()
    }
}

impl World {
    fn copy_mut(&mut self, at: usize) -> Option<&mut Copy> {
        let epoch = self.nodes[at].source.as_ref()?.side.copy().epoch;
        self.nodes[at].copies.get_mut(&epoch)
    }

    /// Opens the copy that the applied metadata gives to this node, if it is confirmed.
    pub(super) fn open_source(&mut self, at: usize) {
        let (index, assignment) = self.view_at(at);
        let node = &self.nodes[at];
        let Some(view) = assignment.filter(|a| a.owner == node.id && node.confirmed) else {
            return;
        };
        let copy = self.copy_id(view.epoch);
        // The former copy stays open until its appends in flight have settled (rule R8).
        if let Some(source) = &node.source
            && (source.side.copy() == copy || source.busy())
        {
            return;
        }
        let Some(held) = self.nodes[at].copies.get_mut(&view.epoch) else {
            return;
        };
        held.mark = None;
        let id = self.nodes[at].id.clone();
        self.nodes[at].source = Some(Source {
            side: SourcePartition::open(id, copy, index, Some(&view), self.now),
            inflight: Vec::new(),
            settling: None,
        });
    }

    pub(super) fn begin_append(&mut self, at: usize) {
        let now = self.now;
        let record = self.next_record;
        let node = &mut self.nodes[at];
        if !node.up {
            return;
        }
        let lease = node.lease.until();
        if let Some(source) = &mut node.source
            && source.side.may_append(now, lease).is_ok()
            && source.inflight.len() < 3
        {
            source.inflight.push(record);
            self.next_record += 1;
        }
    }

    /// The oldest append in flight becomes durable, visible, and acked if that is allowed.
    pub(super) fn end_append(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let lease = node.lease.until();
        let Some(source) = &mut node.source else {
            return;
        };
        if !node.up {
            return;
        }
        if !source.inflight.is_empty() {
            let record = source.inflight.remove(0);
            let may_ack = source.side.may_ack(now, lease).is_ok();
            let copy = source.side.copy();
            if let Some(held) = node.copies.get_mut(&copy.epoch) {
                held.records.push(record);
                held.hwm = held.records.len();
            }
            if may_ack {
                let view = self.view();
                let owner = &self.nodes[at].id;
                assert!(
                    view.owner == *owner && view.epoch == copy.epoch,
                    "P2: {owner} acks under epoch {} of {view:?}",
                    copy.epoch
                );
                self.acked.insert(record);
            }
        }
        self.settle(at);
    }

    fn settle(&mut self, at: usize) {
        if let Some(source) = &mut self.nodes[at].source
            && source.inflight.is_empty()
            && let Some(handoff_id) = source.settling.take()
        {
            self.feed_source(at, SourceInput::Settled { handoff_id });
        }
    }

    pub(super) fn tick_source(&mut self, at: usize) {
        let due = self.nodes[at]
            .source
            .as_ref()
            .and_then(|s| s.side.next_deadline());
        if self.nodes[at].up && due.is_some_and(|due: MonoMs| due <= self.now) {
            self.feed_source(at, SourceInput::Tick);
        }
    }

    /// Steps the owner's side; gives the effect that answers the call, if the input was one.
    pub(super) fn feed_source(&mut self, at: usize, input: SourceInput) -> Option<SourceEffect> {
        let now = self.now;
        let effects = self.nodes[at].source.as_mut()?.side.step(now, input);
        let mut answer = None;
        for effect in effects {
            match effect {
                SourceEffect::BeginSettle { handoff_id } => {
                    if let Some(source) = &mut self.nodes[at].source {
                        source.settling = Some(handoff_id);
                    }
                    self.settle(at);
                }
                SourceEffect::AnswerCapture { handoff_id } => {
                    let capture = self.copy_mut(at).map(|copy| manifest(copy));
                    if let Some(capture) = capture {
                        self.freeze_answered(at, handoff_id, TargetInput::Frozen { capture });
                    }
                }
                SourceEffect::FreezeRefused {
                    handoff_id,
                    refusal,
                } => self.freeze_answered(at, handoff_id, TargetInput::SourceRefused(refusal)),
                SourceEffect::ProposeCancel { handoff_id } => {
                    let command = Command::CancelHandoff {
                        key: self.key,
                        handoff_id,
                    };
                    self.propose_from(at, command);
                }
                SourceEffect::AnswerManifest { .. }
                | SourceEffect::AnswerDone
                | SourceEffect::AnswerRefused(_) => answer = Some(effect),
                SourceEffect::PinFloor { .. }
                | SourceEffect::SessionClosed { .. }
                | SourceEffect::Unfreeze { .. }
                | SourceEffect::StopServing { .. } => {}
            }
        }
        answer
    }

    /// A proposal of a node: applied, applied late, or lost, and its answer lost or not.
    pub(super) fn propose_from(&mut self, at: usize, command: Command) -> Option<Option<Reply>> {
        if !self.talks(at) || !self.leader_waited(&command) {
            return None;
        }
        if self.faults && self.rng.percent(10) {
            self.late_commands.push(command);
            return Some(None);
        }
        if self.faults && self.rng.percent(5) {
            self.late_commands.push(command.clone());
        }
        let reply = self.commit(&command);
        if self.faults && self.rng.percent(10) {
            return Some(None);
        }
        self.catch_up(at);
        Some(Some(reply))
    }

    /// A crash: what was in flight is durable or not, and nobody was told.
    pub(super) fn crash_source(&mut self, at: usize) {
        let Some(source) = self.nodes[at].source.take() else {
            return;
        };
        let epoch = source.side.copy().epoch;
        for record in source.inflight {
            if self.rng.percent(50)
                && let Some(copy) = self.nodes[at].copies.get_mut(&epoch)
            {
                copy.records.push(record);
                copy.hwm = copy.records.len();
            }
        }
    }
}
