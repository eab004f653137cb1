//! Moves: all running and latest finished ones, and an operator's own.
//!
//! What this file keeps true: a move is shown even when its target cannot be asked, from the
//! metadata alone; an operator's move names the state it was decided on, so that it cannot undo
//! what happened since.

use crate::context::NodeContext;
use crate::messages::MoverRequest;
use crate::rpc::node::NodeServer;
use crate::rpc::refusal::{self, done};
use crate::rpc::reply::{malformed, text, unproposed};
use crate::shard::limits::PEER_STATS_MS;
use crate::shard::lookup::topic_of;
use crate::shard::shard::Shard;
use crate::shard::{faults, peers};
use futures::future::join_all;
use narad_core::ids::{MoveId, NodeId, PartitionIndex, PartitionKey};
use narad_core::meta::{Assignment, Command, MemberStatus, MetaState, Refusal, Reply};
use narad_schema::client_capnp::node;
use narad_wire::client::{MoveView, MovesView};
use narad_wire::error::{ErrorCode, WireFault};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Running and latest finished moves whose target is this node.
pub(crate) async fn local(ctx: &NodeContext) -> MovesView {
    let (moves, finished) = ctx
        .mover
        .ask(|answer| MoverRequest::Moves { answer })
        .await
        .unwrap_or_default();
    MovesView { moves, finished }
}

/// The moves of the whole cluster: every living node is asked for those into it.
pub(crate) async fn all(shard: &Rc<Shard>) -> MovesView {
    let state = shard.ctx.state();
    let asked = state.members.values().map(|member| async move {
        if member.id == shard.ctx.id {
            return local(&shard.ctx).await;
        }
        if member.status == MemberStatus::Dead {
            return MovesView::default();
        }
        let deadline = Duration::from_millis(PEER_STATS_MS);
        peers::local_moves(&shard.pool, member, deadline)
            .await
            .unwrap_or_default()
    });
    let mut all = MovesView::default();
    for view in join_all(asked).await {
        all.moves.extend(view.moves);
        all.finished.extend(view.finished);
    }
    add_untold(&state, &mut all);
    all.moves
        .sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    all.finished.sort_by_key(|one| one.move_id);
    all
}

/// Moves that the metadata knows and no target told: it is dead, unreachable, or has not begun.
fn add_untold(state: &MetaState, all: &mut MovesView) {
    let told: HashSet<u64> = all.moves.iter().map(|one| one.move_id).collect();
    for (key, assignment) in state.assignments() {
        let Some(target) = &assignment.target else {
            continue;
        };
        if told.contains(&target.move_id.0) {
            continue;
        }
        let alive = state
            .members
            .get(&target.node)
            .is_some_and(|member| member.status == MemberStatus::Alive);
        all.moves.push(MoveView {
            topic: state
                .topics
                .get(&key.topic)
                .map_or_else(String::new, |topic| topic.name.0.clone()),
            partition: key.partition.0,
            source: assignment.owner.0.clone(),
            target: target.node.0.clone(),
            move_id: target.move_id.0,
            handoff_id: target.handoff.map_or(0, |id| id.0),
            phase: "waiting".into(),
            manual: target.manual,
            last_error: if alive {
                "the target has not told anything about it yet".into()
            } else {
                "the target is dead".into()
            },
            ..MoveView::default()
        });
    }
}

struct Named {
    state: Arc<MetaState>,
    key: PartitionKey,
    assignment: Assignment,
}

/// The partition that an operator names, as it is after a barrier.
async fn named(server: &NodeServer, topic: &str, partition: u32) -> Result<Named, WireFault> {
    let ctx = &server.shard.ctx;
    ctx.barrier().await.map_err(|e| unproposed(&e))?;
    let state = ctx.state();
    let found = topic_of(&state, topic)?;
    let index = PartitionIndex(partition);
    let assignment = found
        .partitions
        .get(partition as usize)
        .cloned()
        .ok_or_else(|| faults::unknown_partition(topic, index, found.partitions.len()))?;
    Ok(Named {
        key: PartitionKey {
            topic: found.id,
            partition: index,
        },
        state,
        assignment,
    })
}

/// Refuses what the metadata would refuse for certain, without an entry in the Raft log.
fn may_begin(named: &Named, topic: &str, target: &NodeId) -> Result<(), WireFault> {
    let Named {
        state,
        key,
        assignment,
    } = named;
    let refuse = |refusal| Err(refusal::fault(&refusal));
    if state.removed.contains_key(target) {
        return refuse(Refusal::MemberRemoved);
    }
    if !state.members.contains_key(target) {
        return refuse(Refusal::UnknownMember);
    }
    if *target == assignment.owner {
        let fault = refusal::fault(&Refusal::TargetIsOwner);
        return Err(match &assignment.target {
            None => fault,
            Some(running) => fault.hint(format!(
                "it is moving to {}: narad cluster cancel-move {topic}/{} makes it stay",
                running.node, key.partition
            )),
        });
    }
    if !state.is_alive(&assignment.owner) {
        return refuse(Refusal::OwnerDead);
    }
    if !state.can_receive(target) {
        return refuse(Refusal::CannotReceive);
    }
    Ok(())
}

/// An operator's own move.
pub(crate) async fn move_to(
    server: &NodeServer,
    params: &node::MoveToParams,
) -> Result<MoveId, WireFault> {
    let _permit = server.gate.enter().await?;
    let (topic, partition, to) = {
        let params = params.get().map_err(malformed)?;
        (
            text(params.get_topic())?,
            params.get_partition(),
            text(params.get_to())?,
        )
    };
    let target = NodeId::parse(&to).map_err(|error| {
        faults::invalid(
            format!("the node id {to:?} {error}"),
            "see narad cluster members for the ids",
        )
    })?;
    let named = named(server, &topic, partition).await?;
    may_begin(&named, &topic, &target)?;
    let command = Command::SetTarget {
        key: named.key,
        owner: named.assignment.owner.clone(),
        epoch: named.assignment.epoch,
        replaces: named.assignment.target.as_ref().map(|t| t.move_id),
        seen: named.state.applied,
        target,
        manual: true,
    };
    let ctx = &server.shard.ctx;
    let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    match reply {
        Reply::Done { index } => Ok(MoveId(index.0)),
        Reply::Refused { refusal } => Err(overtaken(&ctx.state(), &topic, named.key, &refusal)
            .unwrap_or_else(|| refusal::fault(&refusal))),
    }
}

/// The one answer to an operator's move that something else was faster than, whatever that was: the planner,
/// the end of a move, another operator. `None` when it was refused for another reason.
fn overtaken(
    state: &MetaState,
    topic: &str,
    key: PartitionKey,
    refusal: &Refusal,
) -> Option<WireFault> {
    let overtaken = matches!(
        refusal,
        Refusal::NotOwner { .. } | Refusal::OtherMove { .. } | Refusal::ChangedSince { .. }
    );
    let now = state.assignment(key).filter(|_| overtaken)?;
    let place = match &now.target {
        None => format!("it is on {} now", now.owner),
        Some(target) => format!("it is on {} now and moves to {}", now.owner, target.node),
    };
    let changed = Refusal::ChangedSince {
        changed: now.changed,
    };
    Some(
        WireFault::new(
            ErrorCode::Refused,
            format!(
                "{topic}/{} was changed while this was ordered: {place}",
                key.partition
            ),
        )
        .hint("order it once more if it is still wanted; pause rebalancing to keep the planner off")
        .detail(serde_json::to_string(&changed).unwrap_or_default()),
    )
}

/// Ends the running move of a partition without a flip; takes a recorded handoff back first, which
/// can only cost a retry.
pub(crate) async fn cancel(
    server: &NodeServer,
    params: &node::CancelMoveParams,
) -> Result<(), WireFault> {
    let _permit = server.gate.enter().await?;
    let (topic, partition) = {
        let params = params.get().map_err(malformed)?;
        (text(params.get_topic())?, params.get_partition())
    };
    let named = named(server, &topic, partition).await?;
    let ctx = &server.shard.ctx;
    let key = named.key;
    let Some(target) = named.assignment.target else {
        return Err(WireFault::new(
            ErrorCode::Refused,
            format!("no move of {topic}/{partition} is running"),
        )
        .hint("see narad cluster moves"));
    };
    if let Some(handoff_id) = target.handoff {
        let command = Command::CancelHandoff { key, handoff_id };
        // Refused: it is over already, one way or the other; the next command tells which.
        ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    }
    let command = Command::ClearTarget {
        key,
        move_id: target.move_id,
        no_room: false,
    };
    let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    done(reply)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{Epoch, NodeIncarnation, RaftIndex, TopicName};
    use narad_core::meta::TopicSettings;

    fn state() -> (MetaState, PartitionKey) {
        let mut state = MetaState::default();
        let mut at = 0;
        let mut apply = |command: Command| {
            at += 1;
            let reply = state.apply(RaftIndex(at), &command);
            assert!(
                matches!(reply, Reply::Done { .. }),
                "{command:?}: {reply:?}"
            );
        };
        for id in ["n1", "n2"] {
            apply(Command::Register {
                id: NodeId(id.into()),
                addr: format!("{id}:1"),
                bulk_addr: format!("{id}:2"),
                http_addr: String::new(),
                incarnation: NodeIncarnation(1),
                disk: 1,
                shards: 1,
                version: "test".into(),
            });
        }
        apply(Command::CreateTopic {
            name: TopicName("orders".into()),
            partitions: 1,
            parent: None,
            settings: TopicSettings::default(),
        });
        let (key, _) = state.assignments().next().expect("a partition");
        (state, key)
    }

    #[test]
    fn whatever_was_faster_is_told_in_one_way_with_where_the_partition_is() {
        let (mut state, key) = state();
        let now = state.assignment(key).expect("it is there").clone();
        let target = NodeId(if now.owner.0 == "n1" { "n2" } else { "n1" }.into());
        let reply = state.apply(
            RaftIndex(9),
            &Command::SetTarget {
                key,
                owner: now.owner.clone(),
                epoch: now.epoch,
                replaces: None,
                seen: state.applied,
                target: target.clone(),
                manual: false,
            },
        );
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        let faster = [
            Refusal::NotOwner {
                owner: target.clone(),
                epoch: Epoch(2),
            },
            Refusal::OtherMove {
                current: Some(MoveId(9)),
            },
            Refusal::ChangedSince {
                changed: RaftIndex(9),
            },
        ];
        for refusal in faster {
            let fault = overtaken(&state, "orders", key, &refusal).expect("it was faster");
            assert_eq!(fault.code, ErrorCode::Refused, "{refusal:?}");
            assert!(fault.detail.contains("changed_since"), "{}", fault.detail);
            let place = format!("on {} now and moves to {target}", now.owner);
            assert!(fault.message.contains(&place), "{}", fault.message);
            assert!(fault.hint.contains("once more"), "{}", fault.hint);
        }
        // What has another reason keeps its own words.
        for refusal in [Refusal::CannotReceive, Refusal::HandoffRecorded] {
            assert_eq!(overtaken(&state, "orders", key, &refusal), None);
        }
    }
}
