//! Plans as operators see them: steps with sizes, what comes later, and why there is not more.
//!
//! What this file keeps true: only a leader shows a plan, because only it knows the disks; a list that is cut
//! short says how much there is in all; topics have their names.

use super::core::Core;
use super::views::{shown, topic_name};
use crate::limits;
use narad_core::ids::{NodeId, PartitionKey};
use narad_core::meta::MetaState;
use narad_core::planner::{
    DrainHold, Plan, PlanNote, PlannedMove, drain_blocks, drain_status, manual_target_dead,
};
use narad_wire::client::{PlanStepView, PlanView};
use narad_wire::error::{ErrorCode, WireError, WireFault};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No plan can be told where no leader is known, or too many ask for one.
pub(super) fn no_leader() -> WireFault {
    WireFault::new(
        ErrorCode::Unavailable,
        "no leader can be asked for the plan now",
    )
    .hint(
        "try again in a moment; narad cluster members shows whether a majority of the voters runs",
    )
    .retry_after_ms(500)
}

/// Why the leader gave no plan: what it said, or that it cannot be reached.
pub(super) fn unanswered(error: WireError) -> WireFault {
    match error {
        WireError::Fault(_) | WireError::Protocol { .. } => error.into_fault(),
        unreached => no_leader().detail(unreached.to_string()),
    }
}

impl Core {
    /// The plan of draining `node` off, with what holds it and what keeps it from ending.
    pub(super) fn drain_plan_view(&self, node: &NodeId) -> PlanView {
        let state = self.state();
        let plan = self.plan_drained(&state, node);
        let beats = self.beats.borrow();
        let mut view = describe(&state, &plan, beats.sizes());
        let mut drained = (*state).clone();
        if let Some(member) = drained.members.get_mut(node) {
            Arc::make_mut(member).draining = true;
        }
        let told = beats.told(node, &state).map(|told| &told.drain);
        let group = self.group();
        let mut holds = drain_status(&drained, node, told, Some(&plan), group.view());
        let blocks = drain_blocks(&drained, node, &holds, group.view());
        view.blocked
            .extend(blocks.iter().map(|block| format!("{node} {block}")));
        // What the notes of the plan have told already.
        holds.retain(|hold| {
            !matches!(
                hold,
                DrainHold::Paused
                    | DrainHold::NoRoom { .. }
                    | DrainHold::NoPlace(_)
                    | DrainHold::SizesUntold(_)
            )
        });
        let holds = shown(&holds);
        view.notes
            .extend(holds.iter().map(|hold| format!("{node} {hold}")));
        view
    }
}

/// A plan for operators: at most [`limits::PLAN_STEPS_MAX`] of its steps, and how many there are.
pub(super) fn describe(
    state: &MetaState,
    plan: &Plan,
    sizes: &BTreeMap<PartitionKey, u64>,
) -> PlanView {
    let bytes = |step: &PlannedMove| sizes.get(&step.key).copied().unwrap_or(0);
    let list = |steps: &[PlannedMove], most: usize| {
        let steps = steps.iter().take(most);
        let shown = steps.map(|step| PlanStepView {
            topic: topic_name(state, step.key),
            partition: step.key.partition.0,
            from: step.owner.0.clone(),
            to: step.target.0.clone(),
            reason: step.reason.to_string(),
            bytes: bytes(step),
        });
        shown.collect::<Vec<PlanStepView>>()
    };
    let mut notes: Vec<String> = plan.notes.iter().map(|n| note(state, n)).collect();
    for cancel in &plan.cancels {
        notes.push(format!(
            "{}/{}: the running move or its handoff is taken back, because {}",
            topic_name(state, cancel.key),
            cancel.key.partition,
            cancel.reason
        ));
    }
    let worked_out = plan.steps.len() + plan.later.len();
    if worked_out > limits::PLAN_STEPS_MAX {
        let more = worked_out - limits::PLAN_STEPS_MAX;
        notes.push(format!("{more} more steps are not shown"));
    }
    let untold = plan.notes.iter().map(|note| match note {
        PlanNote::Untold { partitions, .. } => *partitions,
        _ => 0,
    });
    let more = plan.more + untold.sum::<usize>();
    let steps = list(&plan.steps, limits::PLAN_STEPS_MAX);
    let all = plan.steps.iter().chain(&plan.later);
    PlanView {
        later: list(&plan.later, limits::PLAN_STEPS_MAX - steps.len()),
        steps,
        total_steps: (worked_out + more) as u64,
        total_bytes: all.fold(plan.more_bytes, |sum, step| sum.saturating_add(bytes(step))),
        notes,
        blocked: Vec::new(),
    }
}

/// A note with names in the place of ids.
fn note(state: &MetaState, note: &PlanNote) -> String {
    let PlanNote::ManualTargetDead { key, target } = note else {
        return note.to_string();
    };
    let partition = format!("{}/{}", topic_name(state, *key), key.partition);
    let mut text = String::new();
    // A text takes whatever is written to it.
    let _ = manual_target_dead(&mut text, &partition, target);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{Epoch, PartitionIndex, RaftIndex, TopicId};
    use narad_core::planner::MoveReason;

    fn steps(first: u32, count: u32) -> Vec<PlannedMove> {
        let step = |partition| PlannedMove {
            key: PartitionKey {
                topic: TopicId(7),
                partition: PartitionIndex(partition),
            },
            owner: NodeId("n1".into()),
            epoch: Epoch(1),
            replaces: None,
            seen: RaftIndex(1),
            target: NodeId("n2".into()),
            reason: MoveReason::Drain,
        };
        (first..first + count).map(step).collect()
    }

    #[test]
    fn a_list_that_is_cut_short_says_how_much_there_is() {
        let plan = Plan {
            steps: steps(0, 8),
            later: steps(8, 2_992),
            more: 2_000,
            more_bytes: 20_000,
            notes: vec![PlanNote::Untold {
                node: NodeId("n3".into()),
                partitions: 7,
            }],
            ..Plan::default()
        };
        let all = plan.steps.iter().chain(&plan.later);
        let sizes = all.map(|step| (step.key, 10)).collect();
        let view = describe(&MetaState::default(), &plan, &sizes);
        assert_eq!((view.steps.len(), view.later.len()), (8, 992));
        assert_eq!((view.total_steps, view.total_bytes), (5_007, 50_000));
        assert_eq!(view.later[0].bytes, 10);
        assert!(
            view.notes
                .iter()
                .any(|note| note.starts_with("2000 more steps"))
        );
    }
}
