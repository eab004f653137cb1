//! From a topic's name to its incarnation.
//!
//! What this file keeps true: a name that is not known here is looked up once more after a barrier,
//! so that a topic made through another node is found; known names never wait for anybody; that there
//! is no such topic, for which producers give records up, is said only where a leader confirmed it.

use crate::context::NodeContext;
use crate::shard::faults;
use crate::shard::limits::LOOKUP_WAIT_MS;
use futures::future::{Either, select};
use glommio::timer::sleep;
use narad_core::ids::TopicName;
use narad_core::meta::{MetaState, Topic};
use narad_wire::error::WireFault;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const WAIT: Duration = Duration::from_millis(LOOKUP_WAIT_MS);

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
        Err(_) => match select(pin!(ctx.barrier()), pin!(sleep(WAIT))).await {
            Either::Left((Ok(_), _)) => topic_of(&ctx.state(), name),
            Either::Left((Err(error), _)) => Err(faults::unconfirmed_topic(name, error)),
            Either::Right(_) => {
                let why = format!("no answer within {LOOKUP_WAIT_MS} ms");
                Err(faults::unconfirmed_topic(name, why))
            }
        },
    }
}
