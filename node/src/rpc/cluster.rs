//! Members, plan, decommission, forgetting, pause and throttle: the control core's answers, handed on.
//!
//! What this file keeps true: changes go through Raft and are answered when they are applied here;
//! a dry run changes nothing.

use crate::control::pacing::UNLIMITED;
use crate::control::views;
use crate::messages::ControlRequest;
use crate::rpc::node::NodeServer;
use crate::rpc::refusal::{self, done};
use crate::rpc::reply::{malformed, stopping, text, unproposed};
use narad_core::ids::{DeathGeneration, NodeId};
use narad_core::meta::{Command, Refusal, Reply};
use narad_schema::client_capnp::node;
use narad_wire::client::{LossView, MembersView, PlanView};
use narad_wire::error::WireFault;

/// The members and Raft's standing.
pub(crate) async fn members(server: &NodeServer) -> Result<MembersView, WireFault> {
    let _permit = server.gate.enter().await?;
    server
        .shard
        .ctx
        .control
        .ask(|answer| ControlRequest::Members { answer })
        .await
        .map_err(stopping)?
}

/// What the planner would do now; as if `draining` were draining.
pub(crate) async fn plan(
    server: &NodeServer,
    draining: Option<NodeId>,
) -> Result<PlanView, WireFault> {
    let _permit = server.gate.enter().await?;
    ask_plan(server, draining).await
}

async fn ask_plan(server: &NodeServer, draining: Option<NodeId>) -> Result<PlanView, WireFault> {
    server
        .shard
        .ctx
        .control
        .ask(|answer| ControlRequest::Plan { draining, answer })
        .await
        .map_err(stopping)?
}

/// Sets or clears the drain flag, or only shows what would follow.
pub(crate) async fn decommission(
    server: &NodeServer,
    params: &node::DecommissionParams,
) -> Result<PlanView, WireFault> {
    let _permit = server.gate.enter().await?;
    let (id, cancel, dry_run) = {
        let params = params.get().map_err(malformed)?;
        let id = node_id(&text(params.get_node())?)?;
        (id, params.get_cancel(), params.get_dry_run())
    };
    let ctx = &server.shard.ctx;
    views::known(ctx, &id, ctx.barrier()).await?;
    if !dry_run {
        let command = Command::SetDraining {
            id: id.clone(),
            draining: !cancel,
        };
        let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
        done(reply)?;
    }
    // The flag is set: a plan that cannot be shown now must not make it look as if it were not.
    match ask_plan(server, (!cancel).then_some(id)).await {
        Ok(plan) => Ok(plan),
        Err(fault) if dry_run => Err(fault),
        Err(fault) => Ok(PlanView {
            notes: vec![format!("done; the plan cannot be shown now: {fault}")],
            ..PlanView::default()
        }),
    }
}

/// The limit on copies as clients see it: bytes/s (0: no fixed one) and whether it is adaptive.
pub(crate) type Limit = (u64, bool);

/// Reads the limit on copies, after setting it where one is given.
pub(crate) async fn throttle(server: &NodeServer, set: Option<Limit>) -> Result<Limit, WireFault> {
    let _permit = server.gate.enter().await?;
    let ctx = &server.shard.ctx;
    if let Some((rate, adaptive)) = set {
        let bytes_per_s = match (rate, adaptive) {
            (_, true) => None,
            (0, false) => Some(UNLIMITED),
            (rate, false) => Some(rate),
        };
        let command = Command::SetThrottle { bytes_per_s };
        let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
        done(reply)?;
    }
    Ok(match ctx.state().throttle_bytes_per_s {
        None => (0, true),
        Some(UNLIMITED) => (0, false),
        Some(rate) => (rate, false),
    })
}

fn node_id(text: &str) -> Result<NodeId, WireFault> {
    NodeId::parse(text).map_err(|error| {
        crate::shard::faults::invalid(
            format!("the node id {text:?} {error}"),
            "see narad cluster members for the ids",
        )
    })
}

/// Whether rebalancing is paused, after setting it where that is wanted.
pub(crate) async fn pause(server: &NodeServer, set: Option<bool>) -> Result<bool, WireFault> {
    let _permit = server.gate.enter().await?;
    let ctx = &server.shard.ctx;
    if let Some(paused) = set {
        let command = Command::SetRebalancePaused { paused };
        let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
        done(reply)?;
    }
    Ok(ctx.state().rebalance_paused)
}

/// What giving up a dead node loses; with `acceptLoss` it is given up.
pub(crate) async fn forget(
    server: &NodeServer,
    params: &node::ForgetParams,
) -> Result<(LossView, bool), WireFault> {
    let _permit = server.gate.enter().await?;
    let ctx = &server.shard.ctx;
    let (id, accept, seen) = {
        let params = params.get().map_err(malformed)?;
        (
            node_id(&text(params.get_node())?)?,
            params.get_accept_loss(),
            params.get_deaths(),
        )
    };
    let node = id.clone();
    let loss = ctx
        .control
        .ask(|answer| ControlRequest::Loss {
            node: node.clone(),
            answer,
        })
        .await
        .map_err(stopping)??;
    if !accept {
        return Ok((loss, false));
    }
    // The list comes from the leader, so this node's own state, which may be older, is not asked.
    let command = Command::ForgetMember {
        id,
        deaths: DeathGeneration(if seen == 0 { loss.deaths } else { seen }),
    };
    let (_, reply) = ctx.propose(command).await.map_err(|e| unproposed(&e))?;
    match reply {
        // Waiting, which is what else to do about an old copy, does not help here.
        Reply::Refused {
            refusal: Refusal::TargetHoldsOldCopy,
        } => {
            let fault = refusal::fault(&Refusal::TargetHoldsOldCopy);
            Err(match views::heirless(&ctx.state(), &node) {
                Some(why) => WireFault::new(fault.code, why)
                    .hint("see narad cluster forget without --accept-loss")
                    .detail(fault.detail),
                None => fault.hint("try again: it has changed since"),
            })
        }
        Reply::Refused {
            refusal: Refusal::OtherDeath,
        } => {
            let fault = refusal::fault(&Refusal::OtherDeath);
            let why = format!("{node} was heard since its loss was listed: nothing was changed");
            Err(WireFault::new(fault.code, why)
                .hint("list what would be lost now: narad cluster forget without --accept-loss")
                .detail(fault.detail))
        }
        reply => done(reply).map(|_| (loss, true)),
    }
}
