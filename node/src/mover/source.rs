//! Calls of the target to the source of one move.
//!
//! What this file keeps true: a typed refusal becomes the refusal that the source's own machine
//! gave; everything else (no connection, no answer in time, an answer that cannot be understood)
//! is "unreachable", never a refusal.

use super::limits::{CHECK_CALL_MS, FREEZE_CALL_MS, SESSION_CALL_MS, SMALL_CALL_MS};
use crate::context::NodeContext;
use narad_core::copy::{Manifest, SegmentState};
use narad_core::ids::{Epoch, HandoffId, MoveId, NodeId, PartitionKey, RaftIndex};
use narad_core::moves::SourceRefusal;
use narad_core::moves::target::TargetInput;
use narad_schema::peer_capnp::peer;
use narad_wire::convert::{
    CopyManifest, check, read_copy_manifest, read_manifest, write_partition_key, write_segment,
};
use narad_wire::error::{ErrorCode, WireError, WireFault};
use narad_wire::pool::PeerPool;
use narad_wire::rpc::call;
use std::sync::Arc;
use std::time::Duration;

/// Why a call to the source gave nothing.
#[derive(Debug)]
pub(super) enum CallError {
    /// No answer.
    Unreachable(String),
    /// The source's machine refused.
    Refused(SourceRefusal),
}

/// The owner has no address here.
#[derive(Debug, thiserror::Error)]
#[error("the owner {0} is not a member")]
pub(super) struct NotMember(NodeId);

impl From<NotMember> for CallError {
    fn from(error: NotMember) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<CallError> for TargetInput {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(why) => Self::SourceUnreachable { why },
            CallError::Refused(refusal) => Self::SourceRefused(refusal),
        }
    }
}

/// A frozen source's answer.
pub(super) struct Capture {
    /// The final capture.
    pub(super) manifest: Manifest,
    /// How long the source waited for appends in flight.
    pub(super) settle_us: u64,
}

/// The owner of one partition, as seen from the target of its move.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) ctx: Arc<NodeContext>,
    pub(super) pool: PeerPool,
    pub(super) key: PartitionKey,
    pub(super) move_id: MoveId,
    pub(super) owner: NodeId,
}

impl Source {
    /// Where the owner's bulk channel listens.
    pub(super) fn bulk_addr(&self) -> Result<String, NotMember> {
        let state = self.ctx.state();
        let member = state.members.get(&self.owner);
        member
            .map(|member| member.bulk_addr.clone())
            .ok_or_else(|| NotMember(self.owner.clone()))
    }

    fn addr(&self) -> Result<String, CallError> {
        let state = self.ctx.state();
        let member = state.members.get(&self.owner);
        member
            .map(|member| member.addr.clone())
            .ok_or_else(|| NotMember(self.owner.clone()).into())
    }

    async fn peer(&self) -> Result<(peer::Client, String), CallError> {
        let addr = self.addr()?;
        match self.pool.peer(&self.owner, &addr).await {
            Ok(peer) => Ok((peer, addr)),
            Err(error) => Err(CallError::Unreachable(error.to_string())),
        }
    }

    fn judge<T>(&self, addr: &str, result: Result<T, WireError>) -> Result<T, CallError> {
        result.map_err(|error| {
            if error.connection_lost() {
                self.pool.failed(addr);
            }
            match error.fault().and_then(refusal) {
                Some(refusal) => CallError::Refused(refusal),
                None => CallError::Unreachable(error.to_string()),
            }
        })
    }

    /// Opens the session.
    pub(super) async fn open(&self, epoch: Epoch) -> Result<CopyManifest, CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.open_copy_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_epoch(epoch.0);
        request.get().set_move_id(self.move_id.0);
        request.get().set_target(&self.ctx.id.0);
        let deadline = Duration::from_millis(SESSION_CALL_MS);
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())?;
            read_copy_manifest(answer.get_manifest()?)
        })
        .await;
        self.judge(&addr, result)
    }

    /// Asks how the source stands.
    pub(super) async fn refresh(&self) -> Result<CopyManifest, CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.refresh_copy_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_move_id(self.move_id.0);
        let deadline = Duration::from_millis(SESSION_CALL_MS);
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())?;
            read_copy_manifest(answer.get_manifest()?)
        })
        .await;
        self.judge(&addr, result)
    }

    /// Whether a staged prefix is the source's.
    pub(super) async fn matches(&self, segment: &SegmentState) -> Result<bool, CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.check_prefix_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_move_id(self.move_id.0);
        write_segment(request.get().init_segment(), segment);
        let deadline = Duration::from_millis(CHECK_CALL_MS);
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())?;
            Ok(answer.get_match())
        })
        .await;
        self.judge(&addr, result)
    }

    /// Freezes the source and takes its final capture.
    pub(super) async fn freeze(&self, handoff_id: HandoffId) -> Result<Capture, CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.freeze_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_move_id(self.move_id.0);
        request.get().set_handoff_id(handoff_id.0);
        let ttl_ms = self.ctx.config.moves.freeze_ttl_ms;
        let deadline = Duration::from_millis(FREEZE_CALL_MS.min(ttl_ms / 5 * 4));
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())?;
            Ok(Capture {
                manifest: read_manifest(answer.get_capture()?)?,
                settle_us: answer.get_settle_us(),
            })
        })
        .await;
        self.judge(&addr, result)
    }

    /// Tells the source that the drain makes progress.
    pub(super) async fn renew(&self, handoff_id: HandoffId) -> Result<(), CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.renew_freeze_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_handoff_id(handoff_id.0);
        let deadline = Duration::from_millis(SMALL_CALL_MS);
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())
        })
        .await;
        self.judge(&addr, result)
    }

    /// Closes the session, if the source can be reached.
    pub(super) async fn close(&self) {
        let closing = async {
            let (peer, addr) = self.peer().await?;
            let mut request = peer.close_copy_request();
            write_partition_key(request.get().init_partition(), self.key);
            request.get().set_move_id(self.move_id.0);
            let deadline = Duration::from_millis(SMALL_CALL_MS);
            let result = call(deadline, request.send(), |answer| {
                check(answer.has_error(), answer.get_error())
            })
            .await;
            self.judge(&addr, result)
        };
        // The source closes sessions by itself when it learns that their move is over.
        if let Err(error) = closing.await {
            tracing::debug!(key = %self.key, move_id = %self.move_id, ?error, "session not closed by hand");
        }
    }

    /// Whether the owner says that it serves this epoch.
    pub(super) async fn serves(&self, epoch: Epoch) -> Result<bool, CallError> {
        let (peer, addr) = self.peer().await?;
        let mut request = peer.serves_request();
        write_partition_key(request.get().init_partition(), self.key);
        request.get().set_epoch(epoch.0);
        let deadline = Duration::from_millis(SESSION_CALL_MS);
        let result = call(deadline, request.send(), |answer| {
            check(answer.has_error(), answer.get_error())?;
            Ok(answer.get_serves())
        })
        .await;
        self.judge(&addr, result)
    }
}

#[derive(serde::Deserialize)]
struct Detail {
    reason: String,
    #[serde(default)]
    current: Option<u64>,
}

/// The refusal that a fault stands for, if it is one of the source's machine.
fn refusal(fault: &WireFault) -> Option<SourceRefusal> {
    if fault.code == ErrorCode::NotOwner {
        return Some(SourceRefusal::NotOwner);
    }
    let detail: Detail = serde_json::from_str(&fault.detail).ok()?;
    match detail.reason.as_str() {
        "not_yet" => Some(SourceRefusal::NotYet {
            applied: RaftIndex(detail.current.unwrap_or(0)),
        }),
        "no_session" => Some(SourceRefusal::NoSession),
        "other_move" => Some(SourceRefusal::OtherMove {
            current: detail.current.map(MoveId),
        }),
        "other_handoff" => Some(SourceRefusal::OtherHandoff {
            current: detail.current.map(HandoffId),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_machine_counts_as_one() {
        let fault = |code, detail: &str| WireFault::new(code, "x").detail(detail);
        assert_eq!(
            refusal(&fault(
                ErrorCode::Refused,
                r#"{"reason":"no_session","current":null}"#
            )),
            Some(SourceRefusal::NoSession)
        );
        assert_eq!(
            refusal(&fault(
                ErrorCode::Refused,
                r#"{"reason":"other_handoff","current":7}"#
            )),
            Some(SourceRefusal::OtherHandoff {
                current: Some(HandoffId(7))
            })
        );
        assert_eq!(
            refusal(&fault(
                ErrorCode::Unavailable,
                r#"{"reason":"not_yet","current":41}"#
            )),
            Some(SourceRefusal::NotYet {
                applied: RaftIndex(41)
            })
        );
        // As an older release says it.
        assert_eq!(
            refusal(&fault(ErrorCode::Unavailable, r#"{"reason":"not_yet"}"#)),
            Some(SourceRefusal::NotYet {
                applied: RaftIndex(0)
            })
        );
        assert_eq!(
            refusal(&fault(ErrorCode::NotOwner, "")),
            Some(SourceRefusal::NotOwner)
        );
        for unclear in ["", "not json", r#"{"reason":"x"}"#] {
            assert_eq!(refusal(&fault(ErrorCode::Internal, unclear)), None);
        }
    }
}
