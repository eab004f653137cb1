//! The first start of a founding member.
//!
//! What this file keeps true: a directory that holds no Raft log becomes part of a cluster only
//! when every other founder was asked and each has an empty disk as well; one founder with the
//! metadata of a cluster is enough that nobody founds another. A disk that was wiped under an old
//! id is recognised by those who remember it, before this node casts a vote.

use super::core::Core;
use crate::limits;
use crate::raft::RaftPeer;
use narad_core::ids::NodeId;
use serde::{Deserialize, Serialize};
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

/// Number of the question among Raft's messages, far from those of Raft itself. It is answered
/// from the disk, also by a node that takes none of Raft's messages yet.
pub(super) const ASK_KIND: u16 = 1_000;

/// What one founder has on its disk. Raft's role or leader would not tell: a founder that has just
/// been restarted has applied nothing and knows no leader, however much its log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Other {
    /// Entries beyond the founding one, or a snapshot: there is a cluster.
    Runs,
    /// Nothing, or nothing but the founding entry, which is the same on every founder.
    Fresh,
}

/// Index of the entry that founding writes.
const FOUNDING_INDEX: u64 = 0;

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
                    Some(Other::Runs) => {
                        tracing::warn!(
                            "this node's disk is empty, but {id} has the metadata of a cluster: nothing is \
                             founded, and this node waits until that cluster has a leader and decides about \
                             it. If its disk was wiped, bring its old --data-dir back, or start it under a \
                             new --node-id with --join {addr}"
                        );
                        return Ok(Founding::Exists);
                    }
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
        let answer = match self.call_founding(id, addr).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::info!(%id, addr, %error, "this founder does not tell what it has on its disk");
                return None;
            }
        };
        serde_json::from_slice(&answer)
            .inspect_err(
                |error| tracing::warn!(%id, addr, %error, "this founder's answer cannot be read"),
            )
            .ok()
    }

    /// What this node tells other founders about its disk.
    pub(super) fn founding_answer(&self) -> Vec<u8> {
        let status = self.raft.status();
        let runs = status.snapshot.is_some()
            || status.purged.is_some()
            || status.last_log.is_some_and(|last| last > FOUNDING_INDEX)
            || status.leader.is_some();
        let answer = if runs { Other::Runs } else { Other::Fresh };
        serde_json::to_vec(&answer).expect("a word is JSON")
    }
}
