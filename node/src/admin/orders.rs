//! What the admin port changes: decommission, forgetting, pausing; and what would follow.
//!
//! What this file keeps true: a change is answered after it is applied on this node; an unknown outcome is
//! told as such (504); what loses data says so and wants the word that accepts it.

use super::routes::{Reply, json, problem, stopping, view};
use crate::context::{NodeContext, Stopping};
use crate::messages::{ControlRequest, ProposeError};
use narad_core::ids::{DeathGeneration, NodeId};
use narad_core::meta::{Command, Refusal, Reply as Applied};
use serde_json::json;
use std::sync::Arc;

/// The query that accepts a loss.
const ACCEPT: &str = "accept_loss=true";
/// The query that starts a decommission only when it can end as things are.
const IF_POSSIBLE: &str = "if_possible=true";

/// Whether a URL has this in its query.
fn asks(url: &str, wanted: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|part| part == wanted)
}

fn node(id: &str) -> Result<NodeId, Box<Reply>> {
    NodeId::parse(id).map_err(|error| {
        let message = format!("{id:?} {error}");
        let hint = "see /v1/cluster/members for the ids";
        Box::new(problem(400, "invalid", &message, hint))
    })
}

/// Drains a node off; with [`IF_POSSIBLE`] only when nothing is known that keeps that from ending.
pub(super) fn decommission(ctx: &Arc<NodeContext>, id: &str, url: &str) -> Reply {
    let id = match node(id) {
        Ok(id) => id,
        Err(reply) => return *reply,
    };
    if asks(url, IF_POSSIBLE) {
        let planned = ctx.control.ask_blocking(|answer| ControlRequest::Plan {
            draining: Some(id.clone()),
            answer,
        });
        match planned {
            Ok(Ok(plan)) if plan.blocked.is_empty() => {}
            Ok(Ok(plan)) => {
                return problem(
                    409,
                    "refused",
                    &format!("it would not end: {}", plan.blocked.join("; ")),
                    &format!(
                        "do something about that first; without ?{IF_POSSIBLE} it is started and waits"
                    ),
                );
            }
            other => return view(other),
        }
    }
    drain(ctx, id, true)
}

/// A node that is drained off stays.
pub(super) fn keep(ctx: &Arc<NodeContext>, id: &str) -> Reply {
    match node(id) {
        Ok(id) => drain(ctx, id, false),
        Err(reply) => *reply,
    }
}

fn drain(ctx: &Arc<NodeContext>, id: NodeId, draining: bool) -> Reply {
    let command = Command::SetDraining {
        id: id.clone(),
        draining,
    };
    let status = if draining { 202 } else { 200 };
    change(
        ctx,
        command,
        status,
        &json!({ "id": id, "draining": draining }),
    )
}

/// The plan as if the node were draining, and what would hold its removal.
pub(super) fn dry_run(ctx: &Arc<NodeContext>, id: &str) -> Reply {
    let id = match node(id) {
        Ok(id) => id,
        Err(reply) => return *reply,
    };
    view(ctx.control.ask_blocking(|answer| ControlRequest::Plan {
        draining: Some(id),
        answer,
    }))
}

/// What giving the node up would lose.
pub(super) fn loss(ctx: &Arc<NodeContext>, id: &str) -> Reply {
    match node(id) {
        Ok(node) => view(
            ctx.control
                .ask_blocking(|answer| ControlRequest::Loss { node, answer }),
        ),
        Err(reply) => *reply,
    }
}

/// The list whose loss is accepted, if it is named: `deaths=N`.
fn deaths(url: &str) -> Result<Option<DeathGeneration>, Box<Reply>> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let named = query
        .split('&')
        .find_map(|part| part.strip_prefix("deaths="));
    let Some(named) = named else {
        return Ok(None);
    };
    let number = named.parse().map_err(|_| {
        let message = format!("deaths={named:?} is no number");
        Box::new(problem(400, "invalid", &message, "GET this path says it"))
    })?;
    Ok(Some(DeathGeneration(number)))
}

/// Gives a dead node up; with `deaths=N` only as it was when that was listed.
pub(super) fn forget(ctx: &Arc<NodeContext>, id: &str, url: &str) -> Reply {
    let id = match node(id) {
        Ok(id) => id,
        Err(reply) => return *reply,
    };
    if !asks(url, ACCEPT) {
        let message = format!("giving {id} up loses what only its disk holds");
        let hint = format!("GET this path lists it; POST it with ?{ACCEPT} to do it");
        return problem(400, "invalid", &message, &hint);
    }
    let deaths = match deaths(url) {
        Ok(deaths) => deaths,
        Err(reply) => return *reply,
    };
    let state = ctx.state();
    if let Some(why) = crate::control::views::heirless(&state, &id) {
        return problem(409, "refused", &why, "GET this path shows what is lost");
    }
    let now = state.members.get(&id).map(|member| member.deaths);
    let command = Command::ForgetMember {
        id: id.clone(),
        deaths: deaths.or(now).unwrap_or_default(),
    };
    change(ctx, command, 200, &json!({ "id": id, "forgotten": true }))
}

pub(super) fn pause(ctx: &Arc<NodeContext>, paused: bool) -> Reply {
    let command = Command::SetRebalancePaused { paused };
    change(ctx, command, 200, &json!({ "paused": paused }))
}

fn change(
    ctx: &Arc<NodeContext>,
    command: Command,
    status: u16,
    done: &serde_json::Value,
) -> Reply {
    let proposed = ctx
        .control
        .ask_blocking(|answer| ControlRequest::Propose { command, answer });
    match proposed {
        Err(Stopping) => stopping(),
        Ok(Ok((_, Applied::Done { .. }))) => json(status, done),
        Ok(Ok((_, Applied::Refused { refusal }))) => refused(&refusal),
        Ok(Err(ProposeError::Unknown { reason })) => problem(
            504,
            "unknownOutcome",
            &reason,
            "look at /v1/cluster/members before doing it again; repeating it is harmless",
        ),
        Ok(Err(error)) => problem(503, "unavailable", &error.to_string(), "try again"),
    }
}

fn refused(refusal: &Refusal) -> Reply {
    let (status, code) = match refusal {
        Refusal::UnknownMember => (404, "notMember"),
        Refusal::MemberRemoved => (410, "notMember"),
        _ => (409, "refused"),
    };
    problem(
        status,
        code,
        &refusal.to_string(),
        "see /v1/cluster/members",
    )
}
