//! Topics: create, list, describe, locate, delete.
//!
//! What this file keeps true: what is listed is the metadata applied on this node, behind a barrier
//! where things are given up for not being listed; figures of partitions are asked from their owners with a short deadline, and marked as unknown where the
//! owner did not answer.

use crate::context::NodeContext;
use crate::messages::{PartitionStat, ShardRequest};
use crate::rpc::node::NodeServer;
use crate::rpc::refusal::done;
use crate::rpc::reply::{malformed, text, unproposed};
use crate::shard::limits::{PEER_STATS_MS, SETTINGS_MAX};
use crate::shard::lookup::{lookup, topic_name};
use crate::shard::shard::Shard;
use crate::shard::{faults, peers};
use futures::future::join_all;
use narad_core::ids::{ClusterId, NodeId, RecoveryId, TopicId};
use narad_core::meta::{
    Assignment, Command, Member, MemberStatus, MetaState, Setting, Topic, TopicSettings,
};
use narad_schema::client_capnp::node;
use narad_wire::convert::{
    read_settings_view, setting_from_wire, settings_from_view, settings_to_view,
};
use narad_wire::error::WireFault;
use narad_wire::view::{FarewellView, LocationView, MemberView, PartitionView, TopicView};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

/// A topic as clients see it, with what is known of its partitions.
fn view(topic: &Topic, stats: &HashMap<u32, PartitionStat>) -> TopicView {
    TopicView {
        id: topic.id.0,
        name: topic.name.0.clone(),
        parent: topic
            .parent
            .as_ref()
            .map_or_else(String::new, |parent| parent.0.clone()),
        settings: settings_to_view(&topic.settings),
        partitions: (0u32..)
            .zip(&topic.partitions)
            .map(|(index, assignment)| partition_view(index, assignment, stats.get(&index)))
            .collect(),
    }
}

fn partition_view(
    index: u32,
    assignment: &Assignment,
    stat: Option<&PartitionStat>,
) -> PartitionView {
    // A figure of another epoch says nothing about this one.
    let stat = stat.filter(|stat| stat.copy.epoch == assignment.epoch);
    let target = assignment.target.as_ref();
    PartitionView {
        index,
        owner: assignment.owner.0.clone(),
        epoch: assignment.epoch.0,
        target: target.map_or_else(String::new, |t| t.node.0.clone()),
        move_id: target.map_or(0, |t| t.move_id.0),
        handoff_id: target.and_then(|t| t.handoff).map_or(0, |id| id.0),
        start: stat.map_or(0, |s| s.start.0),
        hwm: stat.map_or(0, |s| s.hwm.0),
        frontier: stat.map_or(0, |s| s.frontier.0),
        bytes: stat.map_or(0, |s| s.bytes),
        known: stat.is_some(),
    }
}

/// A member from the metadata alone.
fn member_view(state: &MetaState, member: &Member) -> MemberView {
    let holdings = state.holdings().remove(&member.id).unwrap_or_default();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    MemberView {
        id: member.id.0.clone(),
        addr: member.addr.clone(),
        bulk_addr: member.bulk_addr.clone(),
        http_addr: member.http_addr.clone(),
        status: match member.status {
            MemberStatus::Alive => "alive".into(),
            MemberStatus::Dead => "dead".into(),
        },
        draining: member.draining,
        owned: count(holdings.owned),
        inbound: count(holdings.inbound),
        outbound: count(holdings.outbound),
        shards: member.shards,
        version: member.version.clone(),
        incarnation: member.incarnation.0,
        ..MemberView::default()
    }
}

/// All topics, without figures, as applied here: before a start has caught up, that may be fewer than
/// there are. Nothing may be given up because it is not among them; see [`farewell`].
pub(crate) fn list(ctx: &NodeContext) -> Vec<TopicView> {
    all(&ctx.state())
}

fn all(state: &MetaState) -> Vec<TopicView> {
    let none = HashMap::new();
    state
        .names
        .values()
        .filter_map(|id| state.topics.get(id).map(|topic| view(topic, &none)))
        .collect()
}

/// Whether a node was removed, and all topics, both behind a barrier: whoever asks throws away what
/// belongs to no topic.
pub(crate) async fn farewell(
    server: &NodeServer,
    params: &node::FarewellParams,
) -> Result<FarewellView, WireFault> {
    let _permit = server.gate.enter().await?;
    let params = params.get().map_err(malformed)?;
    let cluster = Some(ClusterId(params.get_cluster())).filter(|id| id.0 != 0);
    let recovery = Some(RecoveryId(params.get_recovery())).filter(|id| id.0 != 0);
    let node = text(params.get_node())?;
    let node = NodeId::parse(&node).map_err(|error| {
        faults::invalid(
            format!("the node id {node:?} {error}"),
            "name the node whose disk it is",
        )
    })?;
    let ctx = &server.shard.ctx;
    ctx.barrier().await.map_err(|e| unproposed(&e))?;
    let state = ctx.state();
    Ok(FarewellView {
        removed: state.removed.contains_key(&node),
        lost: state.joined_in_lost(&node, cluster, recovery),
        topics: all(&state),
    })
}

/// Makes a topic.
pub(crate) async fn create(
    server: &NodeServer,
    params: &node::CreateTopicParams,
) -> Result<TopicView, WireFault> {
    let _permit = server.gate.enter().await?;
    let command = read_create(params)?;
    let ctx = &server.shard.ctx;
    let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    let index = done(reply)?;
    let state = ctx.state();
    let topic = state
        .topics
        .get(&state.topic_id_at(index))
        .ok_or_else(|| faults::internal("create", "the topic was deleted at once"))?;
    Ok(view(topic, &HashMap::new()))
}

fn read_create(params: &node::CreateTopicParams) -> Result<Command, WireFault> {
    let params = params.get().map_err(malformed)?;
    let name = topic_name(&text(params.get_name())?)?;
    let parent = match text(params.get_parent())? {
        none if none.is_empty() => None,
        parent => Some(topic_name(&parent)?),
    };
    let settings =
        read_settings_view(params.get_settings().map_err(malformed)?).map_err(malformed)?;
    Ok(Command::CreateTopic {
        name,
        partitions: params.get_partitions(),
        parent,
        settings: settings_from_view(&settings).map_err(malformed)?,
    })
}

/// Changes settings of the topic that has this name now.
pub(crate) async fn alter(
    server: &NodeServer,
    params: &node::AlterTopicParams,
) -> Result<TopicView, WireFault> {
    let _permit = server.gate.enter().await?;
    let (name, settings, change) = read_alter(params)?;
    let ctx = &server.shard.ctx;
    let topic = lookup(ctx, &name).await?.id;
    let command = Command::SetTopicSettings {
        topic,
        settings,
        change,
    };
    let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    done(reply)?;
    let state = ctx.state();
    let topic = state.topics.get(&topic);
    let topic = topic.ok_or_else(|| faults::unknown_topic(&name))?;
    Ok(view(topic, &HashMap::new()))
}

fn read_alter(
    params: &node::AlterTopicParams,
) -> Result<(String, TopicSettings, Vec<Setting>), WireFault> {
    let params = params.get().map_err(malformed)?;
    let name = text(params.get_name())?;
    let settings =
        read_settings_view(params.get_settings().map_err(malformed)?).map_err(malformed)?;
    let settings = settings_from_view(&settings).map_err(malformed)?;
    let list = params.get_change().map_err(malformed)?;
    // Each of them once is all that makes sense.
    if list.is_empty() || list.len() > SETTINGS_MAX {
        return Err(faults::invalid(
            format!("{} settings to change", list.len()),
            "name each setting that is to be changed once",
        ));
    }
    let change = list.iter().map(|setting| {
        let setting = setting.map_err(|_| {
            faults::invalid(
                "a setting that this node does not know",
                "upgrade the node first",
            )
        })?;
        Ok(setting_from_wire(setting))
    });
    Ok((name, settings, change.collect::<Result<_, WireFault>>()?))
}

/// Deletes the topic that has this name now.
pub(crate) async fn delete(server: &NodeServer, name: &str) -> Result<(), WireFault> {
    let _permit = server.gate.enter().await?;
    let ctx = &server.shard.ctx;
    let topic = lookup(ctx, name).await?.id;
    let (_, reply) = ctx
        .propose(Command::DeleteTopic { topic })
        .await
        .map_err(|e| unproposed(&e))?;
    done(reply)?;
    Ok(())
}

/// A topic with the figures of its partitions.
pub(crate) async fn describe(server: &NodeServer, name: &str) -> Result<TopicView, WireFault> {
    let _permit = server.gate.enter().await?;
    let topic = lookup(&server.shard.ctx, name).await?;
    let stats = stats(&server.shard, &topic).await;
    Ok(view(&topic, &stats))
}

/// Where a topic's partitions are.
pub(crate) async fn locate(ctx: &NodeContext, name: &str) -> Result<LocationView, WireFault> {
    let topic = lookup(ctx, name).await?;
    let state = ctx.state();
    let ids: BTreeSet<&NodeId> = topic
        .partitions
        .iter()
        .flat_map(|a| std::iter::once(&a.owner).chain(a.target.iter().map(|t| &t.node)))
        .collect();
    Ok(LocationView {
        topic: view(&topic, &HashMap::new()),
        nodes: ids
            .into_iter()
            .filter_map(|id| state.members.get(id))
            .map(|member| member_view(&state, member))
            .collect(),
    })
}

async fn stats(shard: &Rc<Shard>, topic: &Topic) -> HashMap<u32, PartitionStat> {
    let state = shard.ctx.state();
    let owners: BTreeSet<&NodeId> = topic.partitions.iter().map(|a| &a.owner).collect();
    let asked = owners.into_iter().map(|owner| {
        let member = state.members.get(owner).cloned();
        async move {
            if *owner == shard.ctx.id {
                return local_stats(&shard.ctx, topic.id).await;
            }
            let Some(member) = member.filter(|m| m.status == MemberStatus::Alive) else {
                return Vec::new();
            };
            let deadline = Duration::from_millis(PEER_STATS_MS);
            peers::local_partitions(&shard.pool, &member, topic.id, deadline)
                .await
                .unwrap_or_default()
        }
    });
    let mut stats: HashMap<u32, PartitionStat> = join_all(asked)
        .await
        .into_iter()
        .flatten()
        .map(|stat| (stat.copy.key.partition.0, stat))
        .collect();
    // A partition that was never appended to has no log, and that is known.
    for (index, assignment) in (0u32..).zip(&topic.partitions) {
        if !narad_core::copies::has_log(assignment) {
            stats.entry(index).or_insert_with(|| PartitionStat {
                copy: narad_core::ids::CopyId {
                    key: narad_core::ids::PartitionKey {
                        topic: topic.id,
                        partition: narad_core::ids::PartitionIndex(index),
                    },
                    epoch: assignment.epoch,
                },
                start: narad_core::ids::Offset(0),
                hwm: narad_core::ids::Offset(0),
                frontier: narad_core::ids::Offset(0),
                bytes: 0,
            });
        }
    }
    stats
}

/// The figures of this node's open partitions of a topic.
pub(crate) async fn local_stats(ctx: &NodeContext, topic: TopicId) -> Vec<PartitionStat> {
    let asked = ctx
        .shards
        .iter()
        .map(|shard| shard.ask(|answer| ShardRequest::Stats { topic, answer }));
    join_all(asked)
        .await
        .into_iter()
        .filter_map(Result::ok)
        .flatten()
        .collect()
}
