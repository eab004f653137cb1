//! The first start of a founding member.
//!
//! What this file keeps true: a directory that holds no Raft log becomes part of a cluster only as
//! the core's judgement over the other founders' disks allows; this node takes Raft's messages only
//! after it has the founding entry itself, so that none of its votes is without a log. A disk that
//! was wiped under an old id is recognised by those who remember it, before this node casts a vote.

use super::ControlError;
use super::core::Core;
use crate::limits;
use crate::raft::{RaftPeer, RaftStatus};
use narad_core::founding::{FounderDisk, Verdict, judge};
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

/// What one founder answers about its disk. Raft's role or leader would not tell: a founder that has
/// just been restarted has applied nothing and knows no leader, however much its log holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Runs { voters: BTreeSet<NodeId> },
    Voted,
    Founding,
    Empty,
}

/// Index of the entry that founding writes.
const FOUNDING_INDEX: u64 = 0;

/// What is on this node's own disk.
pub(super) fn own_disk(status: &RaftStatus) -> FounderDisk {
    if status.snapshot.is_some()
        || status.purged.is_some()
        || status.last_log.is_some_and(|last| last > FOUNDING_INDEX)
    {
        let voters = status.membership.voters.keys();
        FounderDisk::Runs {
            voters: voters.map(|id| NodeId(id.clone())).collect(),
        }
    } else if status.last_log.is_some() {
        FounderDisk::Founding
    } else if status.term > 0 {
        FounderDisk::Voted
    } else {
        FounderDisk::Empty
    }
}

impl Core {
    /// Finds out whether the cluster exists; founds it when every founder says that it does not.
    pub(super) async fn found(
        self: &Rc<Self>,
        founders: &[(NodeId, String)],
    ) -> Result<Founding, ControlError> {
        let mut answers = BTreeMap::new();
        let mut told = 0_u32;
        loop {
            self.ask_founders(founders, &mut answers).await;
            match self.judge_founders(founders, &answers) {
                Verdict::Found => break,
                Verdict::Exists { at } | Verdict::Lost { at, .. } => {
                    tracing::warn!(
                        "this node's disk is empty, but {at} has the metadata of a cluster: nothing is founded, \
                         and this node waits until that cluster has a leader and decides about it"
                    );
                    return Ok(Founding::Exists);
                }
                Verdict::Voted { at } if founders.len() == 1 => {
                    return Err(ControlError::LogLost(at.to_string()));
                }
                Verdict::Voted { at } => {
                    if told.is_multiple_of(limits::FOUNDING_TELL_EVERY) {
                        tracing::warn!(
                            "{at} has voted in some cluster and has no metadata log any more, so nothing is founded. \
                             Bring its raft directory back from where it went; if there never was a cluster, stop all \
                             founders, empty their --data-dir and start them again"
                        );
                    }
                }
                Verdict::Ask(waits) => {
                    if told.is_multiple_of(limits::FOUNDING_TELL_EVERY) {
                        let waits: Vec<&str> = waits.iter().map(NodeId::as_str).collect();
                        tracing::info!(
                            waiting_for = waits.join(","),
                            "the founders have not all been seen yet; start them"
                        );
                    }
                }
            }
            // Once at the start and then every few seconds.
            told += 1;
            glommio::timer::sleep(Duration::from_millis(limits::RETRY_MAX_MS)).await;
        }
        let members: BTreeMap<String, RaftPeer> = founders
            .iter()
            .map(|(id, addr)| (id.0.clone(), RaftPeer { addr: addr.clone() }))
            .collect();
        self.raft
            .initialize(members)
            .await
            .map_err(|error| ControlError::Refused(error.to_string()))?;
        self.open.set(true);
        tracing::info!(founders = founders.len(), "founding the cluster");
        Ok(Founding::Founded)
    }

    fn judge_founders(
        &self,
        founders: &[(NodeId, String)],
        answers: &BTreeMap<NodeId, FounderDisk>,
    ) -> Verdict {
        let ids: Vec<NodeId> = founders.iter().map(|(id, _)| id.clone()).collect();
        judge(self.id(), &own_disk(&self.raft.status()), &ids, answers)
    }

    /// Asks those whose answer is not known to be "nothing" yet; a vote may just be getting its log.
    async fn ask_founders(
        &self,
        founders: &[(NodeId, String)],
        answers: &mut BTreeMap<NodeId, FounderDisk>,
    ) {
        answers.retain(|_, disk| matches!(disk, FounderDisk::Empty | FounderDisk::Founding));
        for (id, addr) in founders {
            if id == self.id() || answers.contains_key(id) {
                continue;
            }
            if let Some(disk) = self.ask_founder(id, addr).await {
                answers.insert(id.clone(), disk);
            }
        }
    }

    /// Whether so many founders have empty disks that the cluster which this one found cannot have a
    /// leader any more. Answers of different moments may contradict each other, so several rounds
    /// in a row must agree.
    pub(super) async fn founders_lost(
        &self,
        founders: &[(NodeId, String)],
    ) -> Option<ControlError> {
        let mut lost = None;
        for _ in 0..limits::FOUNDING_LOST_ROUNDS {
            let mut answers = BTreeMap::new();
            self.ask_founders(founders, &mut answers).await;
            let Verdict::Lost { at, empty, voters } = self.judge_founders(founders, &answers)
            else {
                return None;
            };
            let empty: Vec<&str> = empty.iter().map(NodeId::as_str).collect();
            lost = Some(ControlError::QuorumLost {
                at: at.to_string(),
                empty: empty.join(", "),
                lost: empty.len(),
                voters,
            });
            glommio::timer::sleep(Duration::from_millis(limits::RETRY_MAX_MS)).await;
        }
        lost
    }

    async fn ask_founder(&self, id: &NodeId, addr: &str) -> Option<FounderDisk> {
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
        match serde_json::from_slice(&answer) {
            Ok(Answer::Runs { voters }) => Some(FounderDisk::Runs { voters }),
            Ok(Answer::Voted) => Some(FounderDisk::Voted),
            Ok(Answer::Founding) => Some(FounderDisk::Founding),
            Ok(Answer::Empty) => Some(FounderDisk::Empty),
            Err(error) => {
                tracing::warn!(%id, addr, %error, "this founder's answer cannot be read");
                None
            }
        }
    }

    /// What this node tells other founders about its disk.
    pub(super) fn founding_answer(&self) -> Vec<u8> {
        let answer = match own_disk(&self.raft.status()) {
            FounderDisk::Runs { voters } => Answer::Runs { voters },
            FounderDisk::Voted => Answer::Voted,
            FounderDisk::Founding => Answer::Founding,
            FounderDisk::Empty => Answer::Empty,
        };
        serde_json::to_vec(&answer).expect("a short answer is JSON")
    }
}
