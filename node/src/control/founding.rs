//! The first start of a founding member.
//!
//! What this file keeps true: a directory that holds no Raft log becomes part of a cluster only
//! when every other founder was asked and none knows this node already; a disk that was wiped
//! under an old id is recognised by those who remember it, before this node casts a vote.

use super::core::Core;
use crate::limits;
use crate::raft::RaftPeer;
use narad_core::ids::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How a founder became certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Founding {
    /// There is no cluster yet: this node has founded it with the others.
    Founded,
    /// The cluster runs already; it decides whether it knows this directory.
    Exists,
}

/// What one founder answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// It leads or follows in a running cluster, or knows this node as a member.
    Runs,
    /// It knows nothing yet.
    Fresh,
}

impl Core {
    /// Finds out whether the cluster exists; founds it when every founder says that it does not.
    pub(super) async fn found(
        self: &Rc<Self>,
        founders: &[(NodeId, String)],
    ) -> Result<Founding, super::ControlError> {
        let mut missing: BTreeSet<usize> = (0..founders.len())
            .filter(|&at| founders[at].0 != *self.id())
            .collect();
        let mut told = 0_u32;
        while !missing.is_empty() {
            for at in missing.clone() {
                let (id, addr) = &founders[at];
                match self.ask_founder(id, addr).await {
                    Some(Other::Runs) => return Ok(Founding::Exists),
                    Some(Other::Fresh) => {
                        missing.remove(&at);
                    }
                    None => {}
                }
            }
            if missing.is_empty() {
                break;
            }
            // Once at the start and then every few seconds.
            if told.is_multiple_of(limits::FOUNDING_TELL_EVERY) {
                let waits: Vec<&str> = missing.iter().map(|&at| founders[at].0.as_str()).collect();
                tracing::info!(
                    waiting_for = waits.join(","),
                    "the founders have not all been seen yet; start them"
                );
            }
            told += 1;
            glommio::timer::sleep(Duration::from_millis(limits::RETRY_MAX_MS)).await;
        }
        self.open.set(true);
        let members: BTreeMap<String, RaftPeer> = founders
            .iter()
            .map(|(id, addr)| (id.0.clone(), RaftPeer { addr: addr.clone() }))
            .collect();
        self.raft
            .initialize(members)
            .await
            .map_err(|error| super::ControlError::Refused(error.to_string()))?;
        tracing::info!(founders = founders.len(), "founding the cluster");
        Ok(Founding::Founded)
    }

    async fn ask_founder(&self, id: &NodeId, addr: &str) -> Option<Other> {
        let answered = match self.call_identity(addr).await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::debug!(%id, addr, %error, "this founder does not answer yet");
                return None;
            }
        };
        if answered != *id {
            tracing::warn!(%id, addr, %answered, "another node answers at a founder's address; check --peers");
            return None;
        }
        let view = self.call_members(addr).await.ok()?;
        let knows = view.members.iter().any(|m| m.id == self.id().as_str());
        Some(if knows || !view.leader.is_empty() {
            Other::Runs
        } else {
            Other::Fresh
        })
    }
}
