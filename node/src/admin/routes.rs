//! What the admin port answers to which path.
//!
//! What this file keeps true: paths and JSON fields are stable (additions only); a change of the
//! cluster (in [`super::orders`]) is answered after it is applied on this node.

use super::orders;
use super::ready;
use crate::context::{NodeContext, Stopping};
use crate::messages::ControlRequest;
use narad_core::ids::TopicName;
use narad_core::meta::{MetaState, Topic};
use narad_wire::client::{PartitionView, TopicView};
use narad_wire::convert::settings_to_view;
use narad_wire::error::{ErrorCode, WireFault, code_name};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// An answer.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) body: String,
    /// The methods that the path takes, where it was another one.
    pub(super) allow: Option<&'static str>,
}

const JSON: &str = "application/json";
/// OpenMetrics, which Prometheus asks for and understands.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn json<T: Serialize>(status: u16, value: &T) -> Reply {
    let mut body = serde_json::to_string(value).expect("a view is JSON");
    body.push('\n');
    Reply {
        status,
        content_type: JSON,
        body,
        allow: None,
    }
}

pub(super) fn problem(status: u16, code: &str, message: &str, hint: &str) -> Reply {
    json(
        status,
        &json!({ "error": { "code": code, "message": message, "hint": hint } }),
    )
}

fn fault(fault: &WireFault) -> Reply {
    let status = match fault.code {
        ErrorCode::Invalid => 400,
        ErrorCode::NotMember | ErrorCode::UnknownTopic | ErrorCode::UnknownPartition => 404,
        ErrorCode::Refused | ErrorCode::TopicExists => 409,
        ErrorCode::UnknownOutcome | ErrorCode::Timeout => 504,
        ErrorCode::Busy
        | ErrorCode::Unavailable
        | ErrorCode::NotLeader
        | ErrorCode::ShuttingDown => 503,
        _ => 500,
    };
    problem(status, code_name(fault.code), &fault.message, &fault.hint)
}

pub(super) fn stopping() -> Reply {
    problem(
        503,
        "shuttingDown",
        "the node is shutting down",
        "use another node",
    )
}

/// Answers one request.
pub(super) fn route(ctx: &Arc<NodeContext>, method: &str, url: &str) -> Reply {
    let path = url.split(['?', '#']).next().unwrap_or("");
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["v1", "cluster", "members", id, "decommission"] => match method {
            "POST" => orders::decommission(ctx, id, url),
            "DELETE" => orders::keep(ctx, id),
            "GET" | "HEAD" => orders::dry_run(ctx, id),
            _ => not_allowed("GET, HEAD, POST, DELETE"),
        },
        ["v1", "cluster", "members", id, "forget"] => match method {
            "POST" => orders::forget(ctx, id, url),
            "GET" | "HEAD" => orders::loss(ctx, id),
            _ => not_allowed("GET, HEAD, POST"),
        },
        ["v1", "cluster", "pause"] => match method {
            "POST" => orders::pause(ctx, true),
            "DELETE" => orders::pause(ctx, false),
            "GET" | "HEAD" => json(200, &json!({ "paused": ctx.state().rebalance_paused })),
            _ => not_allowed("GET, HEAD, POST, DELETE"),
        },
        known if get(ctx, known).is_some() && !matches!(method, "GET" | "HEAD") => {
            not_allowed("GET, HEAD")
        }
        known => match get(ctx, known) {
            Some(answer) => answer(),
            None => problem(
                404,
                "unknownPath",
                &format!("there is nothing at {path}"),
                "see /healthz /readyz /metrics /v1/cluster/members /v1/cluster/moves /v1/cluster/plan \
                 /v1/cluster/pause /v1/topics",
            ),
        },
    }
}

fn not_allowed(allowed: &'static str) -> Reply {
    let message = format!("this path takes {allowed}");
    Reply {
        allow: Some(allowed),
        ..problem(405, "wrongMethod", &message, "change the method")
    }
}

/// What a GET of this path does, if there is such a path.
fn get<'a>(
    ctx: &'a Arc<NodeContext>,
    parts: &[&'a str],
) -> Option<Box<dyn FnOnce() -> Reply + 'a>> {
    Some(match *parts {
        ["healthz"] => Box::new(|| json(200, &json!({ "status": "ok" }))),
        ["readyz"] => Box::new(|| match ready::check(ctx) {
            Ok(()) => json(200, &json!({ "status": "ready" })),
            Err(reason) => problem(503, "notReady", &reason, "wait, or look at the node's log"),
        }),
        ["metrics"] => Box::new(|| Reply {
            status: 200,
            content_type: METRICS,
            body: ctx.metrics.render(),
            allow: None,
        }),
        ["v1", "cluster", "members"] => Box::new(|| {
            view(
                ctx.control
                    .ask_blocking(|answer| ControlRequest::Members { answer }),
            )
        }),
        ["v1", "cluster", "moves"] => Box::new(|| {
            view(
                ctx.control
                    .ask_blocking(|answer| ControlRequest::Moves { answer }),
            )
        }),
        ["v1", "cluster", "plan"] => Box::new(|| {
            view(ctx.control.ask_blocking(|answer| ControlRequest::Plan {
                draining: None,
                answer,
            }))
        }),
        ["v1", "topics"] => Box::new(|| json(200, &topics(&ctx.state()))),
        ["v1", "topics", name] => Box::new(move || topic(ctx, name)),
        _ => return None,
    })
}

pub(super) fn view<T: Serialize>(answer: Result<Result<T, WireFault>, Stopping>) -> Reply {
    match answer {
        Ok(Ok(view)) => json(200, &view),
        Ok(Err(error)) => fault(&error),
        Err(Stopping) => stopping(),
    }
}

fn topics(state: &MetaState) -> serde_json::Value {
    let list: Vec<TopicView> = state
        .topics
        .values()
        .map(|topic| topic_view(topic))
        .collect();
    json!({ "topics": list })
}

fn topic_view(topic: &Topic) -> TopicView {
    let partitions = (0..).zip(&topic.partitions).map(|(index, assignment)| {
        let target = assignment.target.as_ref();
        PartitionView {
            index,
            owner: assignment.owner.0.clone(),
            epoch: assignment.epoch.0,
            target: target.map(|t| t.node.0.clone()).unwrap_or_default(),
            move_id: target.map_or(0, |t| t.move_id.0),
            handoff_id: target.and_then(|t| t.handoff).map_or(0, |id| id.0),
            ..PartitionView::default()
        }
    });
    TopicView {
        id: topic.id.0,
        name: topic.name.0.clone(),
        parent: topic
            .parent
            .as_ref()
            .map(|p| p.0.clone())
            .unwrap_or_default(),
        settings: settings_to_view(&topic.settings),
        partitions: partitions.collect(),
    }
}

fn topic(ctx: &NodeContext, name: &str) -> Reply {
    let Ok(name) = TopicName::parse(name) else {
        return problem(400, "invalid", "this is not a topic name", "see /v1/topics");
    };
    if ctx.state().topic_by_name(&name).is_none() {
        return problem(
            404,
            "unknownTopic",
            &format!("there is no topic {name}"),
            "see /v1/topics",
        );
    }
    view(
        ctx.control
            .ask_blocking(|answer| ControlRequest::Topic { name, answer }),
    )
}
