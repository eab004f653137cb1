//! The move as Raft sees it: target, handoff, flip, forced promotion.
//!
//! What this file keeps true: of all commands about one move only those that name its current
//! owner, target, move id and handoff id take effect (R5); a target is set and cleared only while
//! the owner lives (R14) and never to a node that still keeps an old copy (R1); every flip leaves
//! an entry for the copy that it ended (R7, R9); a forced promotion belongs to one death of the
//! owner (R6).
//!
//! Guards that can never become true again come first, so that a late command is told so.

use super::apply::Applied;
use super::apply_topic::owns;
use crate::ids::{HandoffId, MoveId, NodeId, PartitionKey, RaftIndex};
use crate::meta::{
    Assignment, Command, EndedEpoch, EpochEnd, MemberStatus, MetaState, MoveTarget, Refusal,
};

impl MetaState {
    pub(super) fn apply_move(&mut self, index: RaftIndex, command: &Command) -> Applied {
        match command {
            Command::SetTarget { key, .. } => {
                self.guard_set_target(command)?;
                let Command::SetTarget { target, manual, .. } = command else {
                    unreachable!("matched above")
                };
                let target = MoveTarget {
                    node: target.clone(),
                    move_id: MoveId(index.0),
                    handoff: None,
                    manual: *manual,
                };
                self.change(*key, |a| a.target = Some(target));
                self.changed(*key, index)
            }
            Command::ClearTarget { key, move_id, .. } => {
                let now = self.standing(*key)?;
                if running(now, *move_id)?.handoff.is_some() {
                    return Err(Refusal::HandoffRecorded);
                }
                self.living_owner(now)?;
                self.change(*key, |a| a.target = None);
                self.changed(*key, index)
            }
            Command::BeginHandoff {
                key,
                owner,
                target,
                move_id,
            } => {
                self.guard_begin_handoff(*key, owner, target, *move_id)?;
                self.set_handoff(*key, Some(HandoffId(index.0)));
                self.changed(*key, index)
            }
            Command::CancelHandoff { key, handoff_id } => {
                let now = self.standing(*key)?;
                let current = now.target.as_ref().and_then(|t| t.handoff);
                if current != Some(*handoff_id) {
                    return Err(Refusal::OtherHandoff { current });
                }
                self.set_handoff(*key, None);
                self.changed(*key, index)
            }
            Command::CompleteMove {
                key, captured_end, ..
            } => {
                self.guard_complete(command)?;
                let end = EpochEnd::Completed {
                    captured_end: *captured_end,
                };
                self.flip(*key, end);
                self.changed(*key, index)
            }
            Command::ForcePromote { key, told_hwm, .. } => {
                self.guard_promote(command)?;
                let end = EpochEnd::Promoted {
                    told_hwm: *told_hwm,
                };
                self.flip(*key, end);
                self.changed(*key, index)
            }
            _ => unreachable!("not a command about moves"),
        }
    }

    fn guard_set_target(&self, command: &Command) -> Result<(), Refusal> {
        let Command::SetTarget {
            key,
            owner,
            epoch,
            replaces,
            seen,
            target,
            manual: _,
        } = command
        else {
            unreachable!("called for SetTarget alone")
        };
        let now = self.standing(*key)?;
        owns(now, owner, *epoch)?;
        let current = now.target.as_ref().map(|t| t.move_id);
        if current != *replaces {
            return Err(Refusal::OtherMove { current });
        }
        if now.changed > *seen {
            return Err(Refusal::ChangedSince {
                changed: now.changed,
            });
        }
        if now.target.as_ref().is_some_and(|t| t.handoff.is_some()) {
            return Err(Refusal::HandoffRecorded);
        }
        self.living_owner(now)?;
        if target == owner {
            return Err(Refusal::TargetIsOwner);
        }
        self.member_status(target)?;
        if !self.can_receive(target) {
            return Err(Refusal::CannotReceive);
        }
        if now.ended.iter().any(|e| e.owner == *target) {
            return Err(Refusal::TargetHoldsOldCopy);
        }
        Ok(())
    }

    fn guard_begin_handoff(
        &self,
        key: PartitionKey,
        owner: &NodeId,
        target: &NodeId,
        move_id: MoveId,
    ) -> Result<(), Refusal> {
        let now = self.standing(key)?;
        owns(now, owner, now.epoch)?;
        let current = running_to(now, move_id, target)?;
        if current.handoff.is_some() {
            return Err(Refusal::HandoffRecorded);
        }
        // The controller cancels handoffs of dead nodes and into draining ones; without these two
        // guards it and the target would take turns.
        self.living_owner(now)?;
        if !self.can_receive(target) {
            return Err(Refusal::CannotReceive);
        }
        Ok(())
    }

    fn guard_complete(&self, command: &Command) -> Result<(), Refusal> {
        let Command::CompleteMove {
            key,
            owner,
            target,
            move_id,
            handoff_id,
            captured_end: _,
        } = command
        else {
            unreachable!("called for CompleteMove alone")
        };
        let now = self.standing(*key)?;
        owns(now, owner, now.epoch)?;
        let current = running_to(now, *move_id, target)?.handoff;
        if current != Some(*handoff_id) {
            return Err(Refusal::OtherHandoff { current });
        }
        Ok(())
    }

    fn guard_promote(&self, command: &Command) -> Result<(), Refusal> {
        let Command::ForcePromote {
            key,
            owner,
            epoch,
            target,
            move_id,
            deaths,
            staged_hwm,
            told_hwm,
        } = command
        else {
            unreachable!("called for ForcePromote alone")
        };
        let now = self.standing(*key)?;
        owns(now, owner, *epoch)?;
        running_to(now, *move_id, target)?;
        let member = &self.members[owner];
        if member.status != MemberStatus::Dead || member.deaths != *deaths {
            return Err(Refusal::OtherDeath);
        }
        if staged_hwm < told_hwm {
            return Err(Refusal::BehindTold);
        }
        Ok(())
    }

    fn living_owner(&self, now: &Assignment) -> Result<(), Refusal> {
        if self.is_alive(&now.owner) {
            Ok(())
        } else {
            Err(Refusal::OwnerDead)
        }
    }

    fn set_handoff(&mut self, key: PartitionKey, handoff: Option<HandoffId>) {
        self.change(key, |a| {
            a.target.as_mut().expect("the guard found the move").handoff = handoff;
        });
    }

    fn changed(&mut self, key: PartitionKey, index: RaftIndex) -> Applied {
        self.change(key, |a| a.changed = index);
        Ok(index)
    }

    /// The target becomes the owner; the old owner's copy waits for its reclaim.
    fn flip(&mut self, key: PartitionKey, end: EpochEnd) {
        self.change(key, |a| {
            let target = a.target.take().expect("the guard found the move");
            let old = core::mem::replace(&mut a.owner, target.node);
            a.ended.push(EndedEpoch {
                epoch: a.epoch,
                owner: old,
                end,
            });
            a.epoch = a.epoch.next();
            a.opened = false;
        });
    }
}

fn running(now: &Assignment, move_id: MoveId) -> Result<&MoveTarget, Refusal> {
    match &now.target {
        Some(target) if target.move_id == move_id => Ok(target),
        other => Err(Refusal::OtherMove {
            current: other.as_ref().map(|t| t.move_id),
        }),
    }
}

fn running_to<'a>(
    now: &'a Assignment,
    move_id: MoveId,
    target: &NodeId,
) -> Result<&'a MoveTarget, Refusal> {
    let current = running(now, move_id)?;
    if current.node != *target {
        return Err(Refusal::OtherMove {
            current: Some(current.move_id),
        });
    }
    Ok(current)
}
