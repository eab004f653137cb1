//! P6: a plan never undoes or repeats a running one, and reaches a fixpoint.
//!
//! What this file keeps true: only a move whose target cannot receive, or whose owner or target is
//! dead, is touched by a plan; at rest nothing is planned and the counts are within one.

use super::Check;
use crate::world::World;
use narad_core::meta::{Command, MetaState};
use narad_core::planner::{PlanLimits, plan};
use std::collections::BTreeMap;

fn undone(state: &MetaState) -> Option<String> {
    let plan = plan(state, None, PlanLimits::default());
    let commands = plan.cancels.iter().map(|cancel| cancel.command());
    for command in commands.chain(plan.steps.iter().map(|step| step.command())) {
        let key = match &command {
            Command::SetTarget { key, .. }
            | Command::ClearTarget { key, .. }
            | Command::CancelHandoff { key, .. } => *key,
            _ => continue,
        };
        let assignment = state.assignment(key)?;
        let Some(target) = &assignment.target else {
            continue;
        };
        let well = state.can_receive(&target.node) && state.is_alive(&assignment.owner);
        if well {
            return Some(format!("a running move is touched: {command:?}"));
        }
    }
    None
}

impl World {
    /// After every command that changes what a plan sees.
    pub(crate) fn check_plan(&mut self, before: &MetaState) {
        let last = self.last();
        let same = before.members == last.members && before.topics == last.topics;
        if !self.setup.allow.plan || same {
            return;
        }
        if let Some(what) = undone(self.last()) {
            self.violate(Check::P6, what);
        }
    }

    /// At rest.
    pub(crate) fn check_plan_rests(&mut self) {
        let state = self.last();
        let mut owned: BTreeMap<_, usize> = state
            .members
            .values()
            .filter(|member| state.can_receive(&member.id))
            .map(|member| (member.id.clone(), 0))
            .collect();
        for (_, assignment) in state.assignments() {
            if let Some(count) = owned.get_mut(&assignment.owner) {
                *count += 1;
            }
        }
        let most = owned.values().max().copied().unwrap_or(0);
        let least = owned.values().min().copied().unwrap_or(0);
        if most > least + 1 {
            let what = format!("balanced, they say, with {owned:?}");
            self.violate(Check::P6, what);
        }
    }
}
