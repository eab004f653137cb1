//! Proposals and barriers of this node.
//!
//! What this file keeps true: a command is sent again only while it certainly was not proposed;
//! every other end without an answer is "unknown"; an answered command is applied here too before
//! the caller hears of it.

use super::core::Core;
use super::machine::{decode, encode};
use crate::limits;
use crate::messages::{ProposeError, Proposed};
use crate::raft::{BarrierError, ProposeError as RaftProposeError};
use narad_core::ids::{NodeId, RaftIndex};
use narad_core::meta::{Command, Reply};
use narad_wire::error::{ErrorCode, WireError};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// One attempt that gave no answer.
enum Attempt {
    /// Certainly not proposed.
    NotProposed {
        reason: String,
        /// Who leads, if the one who was asked said so.
        leader: Option<(NodeId, String)>,
    },
    /// Perhaps proposed.
    Unknown(String),
}

/// Growing pauses between attempts, within one bound.
pub(super) struct Retry {
    until: Instant,
    pause: Duration,
}

impl Retry {
    pub(super) fn within(ms: u64) -> Self {
        Self {
            until: Instant::now() + Duration::from_millis(ms),
            pause: Duration::from_millis(limits::RETRY_MIN_MS),
        }
    }

    /// Waits before the next attempt; `false` when the bound is reached.
    pub(super) async fn pause(&mut self) -> bool {
        if Instant::now() + self.pause >= self.until {
            return false;
        }
        glommio::timer::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(limits::RETRY_MAX_MS));
        true
    }
}

impl Core {
    /// Proposes through the leader, wherever it is; applied here when answered.
    pub(super) async fn propose(self: &Rc<Self>, command: Command) -> Proposed {
        let mut retry = Retry::within(limits::PROPOSE_RETRY_MS);
        let mut hint = None;
        loop {
            match self.attempt(&command, hint.take()).await {
                Ok((index, reply)) => {
                    return self.applied_here(index).await.map(|()| (index, reply));
                }
                Err(Attempt::Unknown(reason)) => return Err(ProposeError::Unknown { reason }),
                Err(Attempt::NotProposed { reason, leader }) => {
                    hint = leader;
                    if !retry.pause().await {
                        return Err(ProposeError::Unavailable { reason });
                    }
                }
            }
        }
    }

    async fn attempt(
        self: &Rc<Self>,
        command: &Command,
        hint: Option<(NodeId, String)>,
    ) -> Result<(RaftIndex, Reply), Attempt> {
        if self.leads() {
            return match self.propose_here(command).await {
                Ok(done) => Ok(done),
                Err(ProposeError::NotLeader { leader }) => Err(Attempt::NotProposed {
                    reason: "leadership has just changed".into(),
                    leader,
                }),
                Err(ProposeError::Unavailable { reason }) => Err(Attempt::NotProposed {
                    reason,
                    leader: None,
                }),
                Err(ProposeError::Unknown { reason }) => Err(Attempt::Unknown(reason)),
            };
        }
        let Some((leader, addr)) = hint
            .or_else(|| self.leader())
            .filter(|(id, _)| id != self.id())
        else {
            return Err(Attempt::NotProposed {
                reason: "no leader is known; a majority of the voters must run".into(),
                leader: None,
            });
        };
        self.call_propose(&leader, &addr, command)
            .await
            .map_err(|error| self.classify(&leader, &addr, error))
    }

    /// What a failed call says about the proposal.
    fn classify(&self, leader: &NodeId, addr: &str, error: WireError) -> Attempt {
        let not_proposed = match &error {
            WireError::Connect { .. } => true,
            WireError::Fault(fault) => match fault.code {
                // Answered before anything was proposed.
                ErrorCode::NotLeader
                | ErrorCode::Unavailable
                | ErrorCode::Busy
                | ErrorCode::ShuttingDown
                | ErrorCode::NotMember
                | ErrorCode::Invalid
                | ErrorCode::TooLarge
                | ErrorCode::Unsupported => true,
                _ => false,
            },
            WireError::Timeout { .. }
            | WireError::Disconnected { .. }
            | WireError::Protocol { .. } => false,
        };
        let reason = format!("the leader {leader} at {addr}: {error}");
        if !not_proposed {
            return Attempt::Unknown(reason);
        }
        let told = error.fault().map_or("", |fault| fault.node.as_str());
        Attempt::NotProposed {
            reason,
            leader: self.member_at(told),
        }
    }

    /// The member that is reached at `addr`.
    pub(super) fn member_at(&self, addr: &str) -> Option<(NodeId, String)> {
        let state = self.state();
        let member = state.members.values().find(|member| member.addr == addr)?;
        Some((member.id.clone(), member.addr.clone()))
    }

    /// Proposes as the leader; refused elsewhere.
    pub(super) async fn propose_here(self: &Rc<Self>, command: &Command) -> Proposed {
        self.may_propose(command)?;
        if let Some(refusal) = self.refuses_room(command) {
            return Ok((self.state().applied, Reply::Refused { refusal }));
        }
        self.note_room(command);
        match self.raft.propose(encode(command)).await {
            Ok((index, answer)) => {
                let reply = decode(&answer).map_err(|reason| ProposeError::Unknown { reason })?;
                Ok((RaftIndex(index), reply))
            }
            Err(RaftProposeError::NotLeader { leader }) => Err(ProposeError::NotLeader {
                leader: leader.map(|(id, addr)| {
                    let addr = self.addr_of(&id, &addr);
                    (NodeId(id), addr)
                }),
            }),
            Err(error @ RaftProposeError::TooLarge(_)) => Err(ProposeError::Unavailable {
                reason: error.to_string(),
            }),
            Err(RaftProposeError::Unknown(reason)) => Err(ProposeError::Unknown { reason }),
            Err(RaftProposeError::Fatal(reason)) => {
                self.fail(super::ControlError::Stopped(reason.clone()));
                Err(ProposeError::Unknown { reason })
            }
        }
    }

    async fn applied_here(&self, index: RaftIndex) -> Result<(), ProposeError> {
        let limit = Duration::from_millis(limits::APPLY_WAIT_MS);
        match self.raft.wait_applied(index.0, limit).await {
            Ok(_) => Ok(()),
            Err(error) => Err(ProposeError::Unknown {
                reason: format!("it took effect, but this node has not applied it yet: {error}"),
            }),
        }
    }

    /// A barrier through the leader: everything committed before the call is applied here.
    pub(super) async fn barrier(&self) -> Result<RaftIndex, ProposeError> {
        let limit = Duration::from_millis(limits::BARRIER_RETRY_MS);
        match self.raft.barrier(limit).await {
            Ok(index) => Ok(RaftIndex(index)),
            Err(error) => Err(self.unconfirmed(error)),
        }
    }

    /// The read index, at the leader.
    pub(super) async fn read_index_here(&self) -> Result<RaftIndex, ProposeError> {
        match self.raft.leader_read_index().await {
            Ok(index) => Ok(RaftIndex(index)),
            Err(error) => Err(self.unconfirmed(error)),
        }
    }

    /// A barrier that was not passed, for whoever asked. A barrier changes nothing, so it is never
    /// "unknown".
    pub(super) fn unconfirmed(&self, error: BarrierError) -> ProposeError {
        match error {
            BarrierError::NotLeader { leader } => ProposeError::NotLeader {
                leader: leader.map(|(id, addr)| {
                    let addr = self.addr_of(&id, &addr);
                    (NodeId(id), addr)
                }),
            },
            BarrierError::Stopped(reason) => {
                self.fail(super::ControlError::Stopped(reason.clone()));
                ProposeError::Unavailable { reason }
            }
            error @ (BarrierError::Unconfirmed(_) | BarrierError::NotApplied { .. }) => {
                ProposeError::Unavailable {
                    reason: error.to_string(),
                }
            }
        }
    }
}
