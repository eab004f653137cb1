//! What other executors, the admin port and peers ask the control core.
//!
//! What this file keeps true: requests never wait behind each other's network calls; Raft's own
//! messages have a bound of their own, so that a flood of proposals cannot cost an election.

use super::ControlError;
use super::core::Core;
use crate::limits;
use crate::messages::{Answer, ControlRequest, ProposeError};
use crate::raft::{RaftHandleError, RaftMessage, RaftMessageKind, TransferError, Unfit};
use narad_core::ids::{ClusterId, NodeId};
use narad_wire::error::{ErrorCode, WireFault};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Takes requests until all who could send one are gone.
pub(super) fn start(core: Rc<Core>, mut requests: mpsc::Receiver<ControlRequest>) {
    let raft_calls = Arc::new(Semaphore::new(limits::RAFT_IN_FLIGHT));
    let calls = Arc::new(Semaphore::new(limits::CONTROL_IN_FLIGHT));
    glommio::spawn_local(async move {
        while let Some(request) = requests.recv().await {
            let bound = match &request {
                ControlRequest::Raft { .. }
                | ControlRequest::Beat { .. }
                | ControlRequest::ReadIndexHere { .. }
                | ControlRequest::HandOver { .. } => &raft_calls,
                ControlRequest::Propose { .. }
                | ControlRequest::ProposeHere { .. }
                | ControlRequest::Barrier { .. }
                | ControlRequest::Join { .. }
                | ControlRequest::Members { .. }
                | ControlRequest::Plan { .. }
                | ControlRequest::Loss { .. }
                | ControlRequest::Moves { .. }
                | ControlRequest::Topic { .. }
                | ControlRequest::TransferLeader { .. }
                | ControlRequest::Connection { .. } => &calls,
            };
            let Ok(permit) = bound.clone().try_acquire_owned() else {
                refuse(request);
                continue;
            };
            let core = core.clone();
            glommio::spawn_local(async move {
                answer(&core, request).await;
                drop(permit);
            })
            .detach();
        }
    })
    .detach();
}

fn busy() -> WireFault {
    WireFault::new(ErrorCode::Busy, "the control core has too much to do")
        .hint("try again in a moment")
        .retry_after_ms(100)
}

fn overloaded() -> ProposeError {
    ProposeError::Unavailable {
        reason: "the control core has too much to do".into(),
    }
}

/// Answers a request for which there is no room.
fn refuse(request: ControlRequest) {
    match request {
        ControlRequest::Raft { answer, .. } => send(answer, Err(busy())),
        ControlRequest::Propose { answer, .. } | ControlRequest::ProposeHere { answer, .. } => {
            send(answer, Err(overloaded()));
        }
        ControlRequest::Barrier { answer } | ControlRequest::ReadIndexHere { answer } => {
            send(answer, Err(overloaded()));
        }
        ControlRequest::Beat { answer, .. } => send(answer, Err(overloaded())),
        ControlRequest::Join { answer, .. } => send(answer, Err(busy())),
        ControlRequest::Members { answer } => send(answer, Err(busy())),
        ControlRequest::Plan { answer, .. } => send(answer, Err(busy())),
        ControlRequest::Loss { answer, .. } => send(answer, Err(busy())),
        ControlRequest::Moves { answer } => send(answer, Err(busy())),
        ControlRequest::Topic { answer, .. } => send(answer, Err(busy())),
        ControlRequest::HandOver { answer } => send(answer, ()),
        ControlRequest::TransferLeader { answer, .. } => send(answer, Err(busy())),
        ControlRequest::Connection { .. } => {}
    }
}

/// The asker may have gone: then the answer is for nobody.
fn send<T>(answer: Answer<T>, value: T) {
    let _ = answer.send(value);
}

async fn reply<T>(answer: Answer<T>, value: impl Future<Output = T>) {
    send(answer, value.await);
}

async fn answer(core: &Rc<Core>, request: ControlRequest) {
    match request {
        ControlRequest::Raft {
            kind,
            body,
            cluster,
            answer,
        } => reply(answer, raft_message(core, kind, body, cluster)).await,
        ControlRequest::Propose { command, answer } => reply(answer, core.propose(command)).await,
        ControlRequest::ProposeHere { command, answer } => {
            reply(answer, core.propose_here(&command)).await;
        }
        ControlRequest::Barrier { answer } => reply(answer, core.barrier()).await,
        ControlRequest::ReadIndexHere { answer } => reply(answer, core.read_index_here()).await,
        ControlRequest::Beat { beat, answer } => match core.foreign(beat.cluster) {
            None => reply(answer, core.take_beat(beat)).await,
            Some(fault) => send(
                answer,
                Err(ProposeError::Unavailable {
                    reason: fault.message,
                }),
            ),
        },
        ControlRequest::Join { request, answer } => reply(answer, core.take_join(request)).await,
        ControlRequest::Members { answer } => reply(answer, core.members()).await,
        ControlRequest::Plan { draining, answer } => {
            reply(answer, core.plan_view(draining)).await;
        }
        ControlRequest::Loss { node, answer } => reply(answer, core.loss_view(node)).await,
        ControlRequest::Moves { answer } => {
            reply(answer, async {
                core.call_own_moves().await.map_err(|e| e.into_fault())
            })
            .await;
        }
        ControlRequest::Topic { name, answer } => {
            reply(answer, async {
                core.call_own_topic(&name).await.map_err(|e| e.into_fault())
            })
            .await;
        }
        ControlRequest::HandOver { answer } => reply(answer, hand_over(core)).await,
        ControlRequest::TransferLeader { to, answer } => {
            reply(answer, transfer(core, &to)).await;
        }
        ControlRequest::Connection { socket, permit } => {
            crate::rpc::control::serve(core.ctx.clone(), socket, permit);
        }
    }
}

async fn raft_message(
    core: &Rc<Core>,
    kind: u16,
    body: Vec<u8>,
    cluster: Option<ClusterId>,
) -> Result<Vec<u8>, WireFault> {
    if kind == super::founding::ASK_KIND {
        return Ok(core.founding_answer());
    }
    let Some(kind) = RaftMessageKind::from_number(kind) else {
        return Err(WireFault::new(
            ErrorCode::Unsupported,
            format!("Raft message kind {kind} is of a newer release"),
        )
        .hint("upgrade this node"));
    };
    if let Some(fault) = core.foreign(cluster) {
        return Err(fault);
    }
    if !core.open.get() {
        // A node whose disk was wiped has forgotten its votes: it must not vote before the cluster
        // has said that it knows this directory, or that it does not know this node.
        return Err(WireFault::new(
            ErrorCode::Unavailable,
            "this node is still finding out which cluster it belongs to",
        )
        .retry_after_ms(100));
    }
    let handled = core.raft.handle(RaftMessage { kind, body }).await;
    handled.map_err(|error| {
        let text = error.to_string();
        if let RaftHandleError::Unfit(unfit) = error {
            let id = core.id().to_string();
            core.fail(match unfit {
                Unfit::Diverged(reason) => ControlError::Diverged { id, reason },
                Unfit::Newer(reason) => ControlError::Newer(reason),
            });
        }
        WireFault::new(ErrorCode::Unavailable, text)
    })
}

/// Gives leadership to any other voter that is alive.
async fn hand_over(core: &Rc<Core>) {
    if !core.leads() {
        return;
    }
    match core.next_leader(None) {
        None => tracing::info!("stopping as the leader: there is no other voter to lead"),
        Some(to) => match transfer(core, &to).await {
            Ok(()) => tracing::info!(%to, "stopping: leadership has been handed over"),
            Err(error) => tracing::warn!(%to, %error, "stopping as the leader"),
        },
    }
}

async fn transfer(core: &Rc<Core>, to: &NodeId) -> Result<(), WireFault> {
    let limit = Duration::from_millis(limits::HAND_OVER_MS);
    core.raft
        .transfer_leader(to.as_str(), limit)
        .await
        .map_err(|error| {
            let code = match &error {
                TransferError::NotLeader => ErrorCode::NotLeader,
                TransferError::NotVoter(_) => ErrorCode::Invalid,
                TransferError::Behind { .. } => ErrorCode::Unavailable,
                TransferError::NotTaken { .. } => ErrorCode::UnknownOutcome,
                TransferError::Fatal(_) => ErrorCode::Internal,
            };
            let leader = core.leader().map(|(_, addr)| addr).unwrap_or_default();
            WireFault::new(code, error.to_string()).node(leader)
        })
}
