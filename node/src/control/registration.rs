//! How this process becomes (again) a member of its cluster, and finds out that it is none.
//!
//! What this file keeps true: every start registers a new incarnation through the leader; before a
//! barrier of this start is applied nothing is confirmed, so no partition is opened for appending;
//! a node that was removed, or whose disk is another one, ends with a clear error.

use super::ControlError;
use super::core::Core;
use super::founding::Founding;
use super::propose::Retry;
use crate::config::Start;
use crate::limits;
use crate::messages::JoinRequest;
use narad_core::ids::RaftIndex;
use narad_wire::error::{ErrorCode, WireError, WireFault};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Machine-readable reasons of a refused registration, in the fault's `detail`.
pub(crate) mod refused {
    /// The member was removed.
    pub(crate) const REMOVED: &str = "member_removed";
    /// The member was given up while it was dead.
    pub(crate) const FORGOTTEN: &str = "member_forgotten";
    /// Another data directory is known under the id.
    pub(crate) const OTHER_DISK: &str = "other_disk";
    /// A newer process has registered.
    pub(crate) const REPLACED: &str = "old_incarnation";
    /// The data directory belongs to another cluster.
    pub(crate) const OTHER_CLUSTER: &str = "other_cluster";
    /// The data directory holds metadata that was lost with a quorum that was replaced.
    pub(crate) const DIVERGED: &str = "diverged";
}

/// Keeps this process registered for as long as it runs.
pub(super) fn start(core: Rc<Core>) {
    glommio::spawn_local(async move {
        if let Err(error) = keep_registered(&core).await {
            core.fail(error);
        }
    })
    .detach();
}

async fn keep_registered(core: &Rc<Core>) -> Result<(), ControlError> {
    let founder = enter(core).await? == Entry::LateFounder;
    let mut registered = core.registered.subscribe();
    loop {
        let index = match register(core, founder).await {
            // It was a member in this life, so its decommission was completed.
            Err(ControlError::Removed(id)) if *core.confirmed.borrow() => {
                return Err(ControlError::Left(id));
            }
            other => other?,
        };
        tracing::debug!(%index, "registered");
        core.registered.send_replace(true);
        confirm(core, index).await;
        // A heartbeat's answer may say that the leader does not know this incarnation.
        if registered.wait_for(|is| !is).await.is_err() {
            return Ok(());
        }
        tracing::warn!("the leader does not know this process; registering again");
    }
}

/// As what this process asks to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// A member, a joiner, or a founder that has founded.
    Member,
    /// A founder with an empty disk, of a cluster that exists.
    LateFounder,
}

/// Decides whether Raft's messages may be taken.
async fn enter(core: &Rc<Core>) -> Result<Entry, ControlError> {
    let status = core.raft.status();
    if status.last_log.is_some() || status.snapshot.is_some() {
        core.open.set(true);
        return Ok(Entry::Member);
    }
    match &core.ctx.config.start {
        Start::Restart => Err(ControlError::NeverMember),
        // The registration below decides.
        Start::Join(_) => Ok(Entry::Member),
        Start::Found(founders) => match core.found(founders).await? {
            Founding::Founded => Ok(Entry::Member),
            Founding::Exists => Ok(Entry::LateFounder),
        },
    }
}

fn request(core: &Core, founder: bool) -> JoinRequest {
    let ctx = &core.ctx;
    JoinRequest {
        node: ctx.id.clone(),
        addr: ctx.config.addr.clone(),
        bulk_addr: ctx.config.bulk_addr.clone(),
        http_addr: ctx.config.http_addr.clone(),
        incarnation: ctx.incarnation,
        disk: ctx.disk,
        shards: ctx.config.shards,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        founder,
        heritage: core.heritage(),
    }
}

/// Registers through whoever leads; asks for ever, because a member has nothing else to do.
async fn register(core: &Rc<Core>, founder: bool) -> Result<RaftIndex, ControlError> {
    let mut last_told = String::new();
    loop {
        let mut retry = Retry::within(limits::PROPOSE_RETRY_MS);
        loop {
            // Made anew each time: what is committed here may have grown.
            let request = request(core, founder);
            let error = match attempt(core, &request).await {
                Ok(index) => {
                    core.open.set(true);
                    return Ok(index);
                }
                Err(error) => error,
            };
            if let Some(fatal) = error.fault().and_then(|fault| verdict(core, fault)) {
                return Err(fatal);
            }
            let text = error.to_string();
            if text == last_told {
                tracing::debug!(error = text, "not registered yet");
            } else if strange(&error) {
                tracing::error!(
                    error = text,
                    "an address leads to another cluster, which refuses this node; nothing was changed, and this \
                     node goes on to look for its own"
                );
                last_told = text;
            } else {
                tracing::info!(error = text, "not registered yet; trying again");
                last_told = text;
            }
            if !retry.pause().await {
                break;
            }
        }
        if let (true, Start::Found(founders)) = (founder, &core.ctx.config.start)
            && let Some(lost) = core.founders_lost(founders).await
        {
            return Err(lost);
        }
    }
}

/// One round over everybody who may lead or know the leader.
async fn attempt(core: &Rc<Core>, request: &JoinRequest) -> Result<RaftIndex, WireError> {
    if core.leads() {
        return Ok(core.take_join(request.clone()).await?);
    }
    let mut last = WireError::Fault(WireFault::new(
        ErrorCode::Unavailable,
        "no leader is known; a majority of the voters must run",
    ));
    let mut asked = BTreeSet::new();
    let mut refusal = None;
    for addr in candidates(core) {
        let mut next = Some(addr);
        for _ in 0..limits::JOIN_HOPS {
            let Some(addr) = next.take().filter(|addr| asked.insert(addr.clone())) else {
                break;
            };
            match core.call_join(&addr, request).await {
                Ok((index, cluster)) => {
                    if let Some(cluster) = cluster {
                        core.remember(cluster).await;
                    }
                    return Ok(index);
                }
                Err(error) => {
                    let fault = error.fault();
                    if fault.is_some_and(|fault| verdict(core, fault).is_some()) {
                        return Err(error);
                    }
                    next = fault
                        .map(|f| f.node.clone())
                        .filter(|node| !node.is_empty());
                    if strange(&error) {
                        refusal = Some(error);
                    } else {
                        last = error;
                    }
                }
            }
        }
    }
    Err(refusal.unwrap_or(last))
}

/// Whether a node of another cluster has answered. That is an address that is wrong, and not the end of
/// a member, whose own cluster may only be down.
fn strange(error: &WireError) -> bool {
    error
        .fault()
        .is_some_and(|fault| fault.detail == refused::OTHER_CLUSTER)
}

/// Whom to ask, the likeliest leader first; never this node itself.
pub(super) fn candidates(core: &Core) -> Vec<String> {
    let mut list = Vec::new();
    list.extend(core.leader().map(|(_, addr)| addr));
    let state = core.state();
    list.extend(state.members.values().map(|member| member.addr.clone()));
    let membership = core.raft.membership();
    for peers in [&membership.voters, &membership.learners] {
        // Who was removed knows nothing any more.
        let stay = peers.iter().filter(|(id, _)| {
            !state
                .removed
                .contains_key(&narad_core::ids::NodeId((*id).clone()))
        });
        list.extend(stay.map(|(_, peer)| peer.addr.clone()));
    }
    match &core.ctx.config.start {
        Start::Found(founders) => {
            let stay = founders
                .iter()
                .filter(|(id, _)| !state.removed.contains_key(id));
            list.extend(stay.map(|(_, addr)| addr.clone()));
        }

        Start::Join(addrs) => list.extend(addrs.iter().cloned()),
        Start::Restart => {}
    }
    let mut seen = BTreeSet::from([core.ctx.config.addr.clone()]);
    list.retain(|addr| seen.insert(addr.clone()));
    list.truncate(limits::ADDRESSES_MAX);
    list
}

/// Whether a refusal is the end of this process.
fn verdict(core: &Core, fault: &WireFault) -> Option<ControlError> {
    let id = core.id().to_string();
    match fault.detail.as_str() {
        refused::FORGOTTEN => Some(ControlError::Forgotten(id)),
        refused::REMOVED => Some(ControlError::Removed(id)),
        // Refused before anything was asked: only removed nodes are.
        _ if fault.code == ErrorCode::NotMember => Some(ControlError::Removed(id)),
        refused::OTHER_CLUSTER if !core.heritage().has_log => Some(ControlError::Stranger {
            id,
            reason: fault.to_string(),
        }),
        refused::DIVERGED => Some(ControlError::Diverged {
            id,
            reason: fault.message.clone(),
        }),
        refused::REPLACED => Some(ControlError::Replaced(id)),
        refused::OTHER_DISK => Some(ControlError::OtherDisk {
            id,
            reason: fault.message.clone(),
        }),
        _ if fault.code == ErrorCode::Invalid => Some(ControlError::Refused(fault.to_string())),
        _ => None,
    }
}

/// Confirms what is applied here through a barrier, once a start.
async fn confirm(core: &Rc<Core>, registered: RaftIndex) {
    loop {
        let limit = Duration::from_millis(limits::BARRIER_RETRY_MS);
        // A joiner receives the log only now.
        let caught_up = core.raft.wait_applied(registered.0, limit).await;
        match caught_up.map_err(|error| core.unconfirmed(error)) {
            Ok(_) => match core.barrier().await {
                Ok(index) => {
                    if !core.confirmed.send_replace(true) {
                        tracing::info!(%index, "the metadata is confirmed; partitions may open");
                    }
                    return;
                }
                Err(error) => tracing::info!(%error, "not confirmed yet; trying again"),
            },
            Err(error) => tracing::info!(%error, "catching up with the cluster's log"),
        }
        glommio::timer::sleep(Duration::from_millis(limits::RETRY_MAX_MS)).await;
    }
}
