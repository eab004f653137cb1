//! From a topic's name to its incarnation.
//!
//! What this file keeps true: a name that is not known here is looked up once more after a barrier,
//! so that a topic made through another node is found; known names never wait for anybody.

use crate::context::NodeContext;
use crate::shard::faults;
use narad_core::ids::TopicName;
use narad_core::meta::{MetaState, Topic};
use narad_wire::error::WireFault;
use std::sync::Arc;

/// A topic's name, checked.
pub(crate) fn topic_name(name: &str) -> Result<TopicName, WireFault> {
    TopicName::parse(name).map_err(|error| {
        faults::invalid(
            format!("the topic name {name:?} {error}"),
            "choose another name",
        )
    })
}

/// The topic of this name, as applied here.
pub(crate) fn topic_of(state: &MetaState, name: &str) -> Result<Arc<Topic>, WireFault> {
    let parsed = topic_name(name)?;
    state
        .topic_by_name(&parsed)
        .cloned()
        .ok_or_else(|| faults::unknown_topic(name))
}

/// The topic of this name, after a barrier if it is not known here yet.
pub(crate) async fn lookup(ctx: &NodeContext, name: &str) -> Result<Arc<Topic>, WireFault> {
    topic_name(name)?;
    match topic_of(&ctx.state(), name) {
        Ok(topic) => Ok(topic),
        Err(fault) => match ctx.barrier().await {
            Ok(_) => topic_of(&ctx.state(), name),
            // Without a leader nobody can tell more than this node knows.
            Err(_) => Err(fault),
        },
    }
}
