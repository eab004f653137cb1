//! What operators see: members with roles and what holds their removal, and the plan.
//!
//! What this file keeps true: every node answers from what it has applied; what only the leader
//! knows (what nodes have told it) is shown by the leader and forwarded to it by the others.

use super::core::Core;
use super::plans;
use super::registration::refused;
use crate::context::NodeContext;
use crate::messages::ProposeError;
use narad_core::ids::{NodeId, PartitionKey, RaftIndex};
use narad_core::meta::{EpochEnd, Member, MemberStatus, MetaState};
use narad_core::planner::{DrainHold, Plan};
use narad_wire::client::{
    LossView, LostCopyView, LostPartitionView, MemberView, MembersView, PlanView,
};
use narad_wire::error::{ErrorCode, WireFault};
use std::rc::Rc;

impl Core {
    /// The members, asked of the leader where there is one: it alone knows what nodes have told.
    pub(super) async fn members(&self) -> Result<MembersView, WireFault> {
        if self.leads() {
            return Ok(self.members_view(false));
        }
        let Some((addr, _forwarded)) = self.whom_to_ask() else {
            return Ok(self.members_view(true));
        };
        match self.call_members(&addr).await {
            Ok(view) => Ok(view),
            Err(error) => {
                tracing::debug!(%error, "the leader's view is not to be had; answering with this node's");
                Ok(self.members_view(true))
            }
        }
    }

    /// The leader's address, when it is another node and not too many views are being forwarded
    /// (two nodes that take each other for the leader must not ask in circles without a bound).
    fn whom_to_ask(&self) -> Option<(String, tokio::sync::SemaphorePermit<'_>)> {
        if self.leads() {
            return None;
        }
        let (leader, addr) = self.leader()?;
        if leader == *self.id() {
            return None;
        }
        Some((addr, self.forwarded.try_acquire().ok()?))
    }

    /// The members, as applied here. `local`: this node does not lead, so it may be behind.
    fn members_view(&self, local: bool) -> MembersView {
        let state = self.state();
        let status = self.raft.status();
        let holdings = state.holdings();
        let leader = status.leader.map(|(id, _)| id).unwrap_or_default();
        let drains = state.members.values().any(|member| member.draining);
        let plan = (drains && self.leads()).then(|| self.plan_found(&state));
        let members = state
            .members
            .values()
            .map(|member| {
                let held = holdings.get(&member.id).copied().unwrap_or_default();
                let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let mut view = self.member_view(&state, member, plan.as_deref());
                view.owned = count(held.owned);
                view.inbound = count(held.inbound);
                view.outbound = count(held.outbound);
                view.role = if member.id.as_str() == leader {
                    "leader"
                } else if status.membership.voters.contains_key(member.id.as_str()) {
                    "voter"
                } else if status.membership.learners.contains_key(member.id.as_str()) {
                    "learner"
                } else {
                    "none"
                }
                .to_owned();
                view
            })
            .collect();
        MembersView {
            members,
            leader,
            term: status.term,
            applied: state.applied.0,
            local,
        }
    }

    fn member_view(&self, state: &MetaState, member: &Member, plan: Option<&Plan>) -> MemberView {
        let told = self.beats.borrow().told(&member.id, state).cloned();
        let told = told.as_ref();
        let held = if member.draining {
            shown(&self.holds(state, &member.id, plan)).join("; ")
        } else {
            String::new()
        };
        MemberView {
            id: member.id.0.clone(),
            addr: member.addr.clone(),
            bulk_addr: member.bulk_addr.clone(),
            http_addr: member.http_addr.clone(),
            status: match member.status {
                MemberStatus::Alive => "alive",
                MemberStatus::Dead => "dead",
            }
            .to_owned(),
            draining: member.draining,
            shards: member.shards,
            version: member.version.clone(),
            disk_free_bytes: told.map(|told| told.disk_free_bytes),
            disk_used_bytes: told.map(|told| told.disk_used_bytes),
            undispatched: told.map(|told| told.drain.undispatched),
            held,
            incarnation: member.incarnation.0,
            ..MemberView::default()
        }
    }

    /// What the planner would do now, or with `draining` drained.
    pub(super) async fn plan_view(
        self: &Rc<Self>,
        draining: Option<NodeId>,
    ) -> Result<PlanView, WireFault> {
        if let Some(node) = &draining {
            known(&self.ctx, node, self.barrier()).await?;
        }
        if let Some((addr, _forwarded)) = self.whom_to_ask() {
            let asked = self.call_plan(&addr, draining.as_ref()).await;
            return asked.map_err(plans::unanswered);
        }
        // One that was cut off may take itself for the leader still.
        if !self.leads() || self.raft.read_barrier().await.is_err() {
            return Err(plans::no_leader());
        }
        Ok(match &draining {
            Some(node) => self.drain_plan_view(node),
            None => {
                let state = self.state();
                let plan = self.plan_shown(&state);
                plans::describe(&state, &plan, self.beats.borrow().sizes())
            }
        })
    }

    /// What giving up `node` would lose, asked of the leader, who knows what it told.
    pub(super) async fn loss_view(self: &Rc<Self>, node: NodeId) -> Result<LossView, WireFault> {
        if let Some((addr, _forwarded)) = self.whom_to_ask() {
            let asked = self.call_loss(&addr, &node).await;
            return asked.map_err(narad_wire::error::WireError::into_fault);
        }
        known(&self.ctx, &node, self.barrier()).await?;
        let state = self.state();
        let beats = self.beats.borrow();
        let told = beats.told(&node, &state);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let partitions = state.owned_by(&node).map(|(key, a)| LostPartitionView {
            topic: topic_name(&state, key),
            partition: key.partition.0,
            epoch: a.epoch.0,
            bytes: beats.sizes().get(&key).copied(),
            target: a
                .target
                .as_ref()
                .map_or_else(String::new, |t| t.node.0.clone()),
        });
        let partitions: Vec<LostPartitionView> = partitions.collect();
        let holdings = state.holdings().remove(&node).unwrap_or_default();
        Ok(LossView {
            copies: lost_copies(&state, &node),
            deaths: state.members.get(&node).map_or(0, |member| member.deaths.0),
            notes: loss_notes(&state, &node, &partitions),
            partitions,
            inbound: count(holdings.inbound),
            undispatched: told.map_or(0, |told| told.drain.undispatched),
            told: told.is_some(),
        })
    }
}

/// Fails when `node` is no member. That it is gone, nothing takes back; not knowing it counts only behind a
/// barrier: a node that has just started, or was cut off, knows too few. `barrier` is the caller's way to one, run
/// only where it is needed.
pub(crate) async fn known(
    ctx: &NodeContext,
    node: &NodeId,
    barrier: impl Future<Output = Result<RaftIndex, ProposeError>>,
) -> Result<(), WireFault> {
    let mentions =
        |state: &MetaState| state.members.contains_key(node) || state.removed.contains_key(node);
    if !mentions(&ctx.state()) {
        barrier.await.map_err(not_current)?;
    }
    let state = ctx.state();
    if state.members.contains_key(node) {
        return Ok(());
    }
    Err(no_member(&state, node))
}

/// Why `node` is no member, by a state that is known to be current.
fn no_member(state: &MetaState, node: &NodeId) -> WireFault {
    let fault = |text: String| WireFault::new(ErrorCode::NotMember, text);
    if state.forgotten.contains(node) {
        return fault(format!("{node} was given up while it was dead (narad cluster forget)"))
            .detail(refused::FORGOTTEN)
            .hint(
                "what only its disk holds is handed over by starting it once more, or by narad salvage; \
                 do not empty the disk before that",
            );
    }
    if state.removed.contains_key(node) {
        return fault(format!("{node} has left the cluster already"))
            .detail(refused::REMOVED)
            .hint("it can be switched off; its id is not used again");
    }
    fault(format!("there is no member {node}")).hint("see narad cluster members for the ids")
}

/// What is answered about a member that this node does not know, while it may only be behind.
fn not_current(why: ProposeError) -> WireFault {
    let text = format!("this node cannot tell who the members are now: {why}");
    WireFault::new(ErrorCode::Unavailable, text)
        .hint("ask another node, or try again in a moment")
        .retry_after_ms(100)
}

/// Old copies on the node's disk that the metadata still knows of.
fn lost_copies(state: &MetaState, node: &NodeId) -> Vec<LostCopyView> {
    let mut copies = Vec::new();
    for (key, assignment) in state.assignments() {
        for ended in assignment.ended.iter().filter(|one| one.owner == *node) {
            let (end, from) = match ended.end {
                EpochEnd::Completed { captured_end } => ("completed", captured_end.0),
                EpochEnd::Promoted { told_hwm } => ("promoted", told_hwm.0),
                EpochEnd::Forgotten => ("forgotten", 0),
            };
            copies.push(LostCopyView {
                topic: topic_name(state, key),
                partition: key.partition.0,
                epoch: ended.epoch.0,
                end: end.to_owned(),
                from,
            });
        }
    }
    copies
}

/// What an operator should know before a node is given up.
fn loss_notes(state: &MetaState, node: &NodeId, lost: &[LostPartitionView]) -> Vec<String> {
    let mut notes = Vec::new();
    if state.is_alive(node) {
        notes.push(format!(
            "{node} is alive: decommission it instead, which loses nothing"
        ));
    }
    let copied = lost.iter().filter(|one| !one.target.is_empty()).count();
    if copied > 0 {
        notes.push(format!(
            "{copied} of its partitions were moving: where the copy is complete its target takes over by \
             itself after a while (narad cluster moves shows it); giving the node up now gives those copies \
             up too"
        ));
    }
    if !lost.is_empty()
        && !state
            .members
            .keys()
            .any(|id| id != node && state.can_receive(id))
    {
        notes.push("no other member can take its partitions: start a node first".to_owned());
    }
    notes.extend(heirless(state, node));
    notes
}

/// Why `node` cannot be given up although there are receivers, and what to do about it.
pub(crate) fn heirless(state: &MetaState, node: &NodeId) -> Option<String> {
    let keys = state.heirless(node);
    let first = keys.first()?;
    let more = match keys.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    Some(format!(
        "every other member that takes partitions keeps an old copy of {}/{}{more}, which it can hand over to \
         a new owner only: start one more node, or cancel a decommission, and give {node} up then",
        topic_name(state, *first),
        first.partition
    ))
}

/// The holds in words. Leadership is moved away last, so it is named only when nothing else holds.
pub(super) fn shown(holds: &[DrainHold]) -> Vec<String> {
    let last = |hold: &DrainHold| matches!(hold, DrainHold::Leader);
    let only = holds.iter().all(last);
    holds
        .iter()
        .filter(|hold| only || !last(hold))
        .map(ToString::to_string)
        .collect()
}

/// The name of a partition's topic, or its incarnation when it is gone.
pub(super) fn topic_name(state: &MetaState, key: PartitionKey) -> String {
    state
        .topics
        .get(&key.topic)
        .map_or_else(|| format!("t{}", key.topic), |topic| topic.name.0.clone())
}
