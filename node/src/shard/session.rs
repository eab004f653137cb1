//! The copy session of one partition as its owner serves it: the shell around the owner's machine.
//!
//! What this file keeps true: each effect of the machine is carried out in order, right after the
//! input that caused it; ranges are given to the bulk channel below durable lengths only; and the
//! session's pin on retention lives exactly as long as the session.

use crate::clock::mono_ms;
use crate::messages::{Answer, CaptureView, SessionView};
use crate::shard::faults;
use crate::shard::partition::Partition;
use narad_core::copy::{Manifest, SegmentState};
use narad_core::ids::{Epoch, HandoffId, MoveId, NodeId};
use narad_core::meta::{Command, Reply};
use narad_core::moves::{SourceEffect, SourceInput, SourceRefusal};
use narad_storage::Pin;
use narad_wire::error::{ErrorCode, WireFault};
use std::rc::Rc;
use std::time::Instant;

/// Freeze calls that may wait for one capture: the target repeats its call when it loses an answer.
const FREEZE_CALLS_MAX: usize = 16;

/// The open session and the calls that wait for a capture.
#[derive(Default)]
pub(crate) struct Sessions {
    open: Option<OpenSession>,
    freezes: Vec<FreezeCall>,
    settle_us: u64,
}

impl Sessions {
    /// Nobody copies this partition.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none() && self.freezes.is_empty()
    }
}

struct OpenSession {
    move_id: MoveId,
    token: u64,
    _floor: Pin,
}

struct FreezeCall {
    handoff_id: HandoffId,
    answer: Answer<Result<CaptureView, WireFault>>,
}

/// Who waits for the answer of the input that is being stepped.
enum Caller {
    /// Nobody.
    None,
    /// A call that is answered with the manifest.
    View(Answer<Result<SessionView, WireFault>>),
    /// A call that is answered with success.
    Done(Answer<Result<(), WireFault>>),
}

impl Partition {
    /// Feeds an input that nobody waits for.
    pub(crate) fn step(self: &Rc<Self>, input: SourceInput) {
        self.step_for(input, Caller::None);
    }

    fn step_for(self: &Rc<Self>, input: SourceInput, mut caller: Caller) {
        let effects = self.source.borrow_mut().step(mono_ms(), input);
        for effect in effects {
            self.perform(effect, &mut caller);
        }
    }

    fn perform(self: &Rc<Self>, effect: SourceEffect, caller: &mut Caller) {
        match effect {
            SourceEffect::AnswerManifest { move_id } => {
                let view = self.session_view(move_id);
                if let Caller::View(answer) = std::mem::replace(caller, Caller::None) {
                    let _ = answer.send(view);
                }
            }
            SourceEffect::AnswerDone => match std::mem::replace(caller, Caller::None) {
                Caller::Done(answer) => {
                    let _ = answer.send(Ok(()));
                }
                Caller::View(_) | Caller::None => {}
            },
            SourceEffect::AnswerRefused(refusal) => {
                let fault = self.refused(&refusal);
                match std::mem::replace(caller, Caller::None) {
                    Caller::Done(answer) => {
                        let _ = answer.send(Err(fault));
                    }
                    Caller::View(answer) => {
                        let _ = answer.send(Err(fault));
                    }
                    Caller::None => {}
                }
            }
            SourceEffect::PinFloor { move_id } => self.pin(move_id),
            SourceEffect::SessionClosed { move_id } => self.unpin(move_id),
            SourceEffect::BeginSettle { handoff_id } => self.begin_settle(handoff_id),
            SourceEffect::AnswerCapture { handoff_id } => self.answer_capture(handoff_id),
            SourceEffect::FreezeRefused {
                handoff_id,
                refusal,
            } => {
                let fault = self.refused(&refusal);
                for call in self.take_freezes(handoff_id) {
                    let _ = call.answer.send(Err(fault.clone()));
                }
            }
            SourceEffect::ProposeCancel { handoff_id } => self.propose_cancel(handoff_id),
            SourceEffect::Unfreeze { handoff_id } => {
                tracing::info!(copy = %self.copy, handoff = %handoff_id, "handoff cancelled: the partition takes records again");
            }
            SourceEffect::StopServing { reason } => {
                tracing::info!(copy = %self.copy, ?reason, "this node stops serving the partition");
                self.stopped.replace(Some(reason));
                self.wakes.due.add(self.key());
                self.wakes.arrivals.notify_waiters();
            }
        }
    }

    fn pin(&self, move_id: MoveId) {
        let floor = self.log.pin(self.log.start());
        self.sessions.borrow_mut().open = Some(OpenSession {
            move_id,
            token: rand::random::<u64>(),
            _floor: floor,
        });
        tracing::info!(copy = %self.copy, %move_id, "copy session opened");
    }

    fn unpin(&self, move_id: MoveId) {
        self.ctx.sessions.close(self.key(), move_id);
        self.sessions
            .borrow_mut()
            .open
            .take_if(|open| open.move_id == move_id);
        tracing::info!(copy = %self.copy, %move_id, "copy session closed");
    }

    /// The log goes away under this node's feet (closed for recovery, or not owned any more): the
    /// session ends and who waits is told to come again.
    pub(crate) fn retire(&self) {
        let (open, calls) = {
            let mut sessions = self.sessions.borrow_mut();
            (sessions.open.take(), std::mem::take(&mut sessions.freezes))
        };
        if let Some(open) = open {
            self.ctx.sessions.close(self.key(), open.move_id);
        }
        for call in calls {
            let _ = call.answer.send(Err(faults::opening(self.key())));
        }
    }

    /// Hands the durable lengths to the bulk channel, and opens the session there when it is not:
    /// the table has room for a bounded number of sessions.
    fn publish(&self, move_id: MoveId, manifest: &Manifest) -> Result<u64, WireFault> {
        let token = self
            .sessions
            .borrow()
            .open
            .as_ref()
            .map_or(0, |open| open.token);
        self.ctx
            .sessions
            .open(self.key(), move_id, token)
            .map_err(|full| faults::busy("the table of copy sessions").detail(full.to_string()))?;
        let segments = manifest
            .segments
            .iter()
            .filter_map(|segment| {
                let path = self.log.segment_path(segment.id)?;
                Some((segment.id, path, segment.durable_len))
            })
            .collect();
        self.ctx.sessions.publish(self.key(), move_id, segments);
        Ok(token)
    }

    fn session_view(&self, move_id: MoveId) -> Result<SessionView, WireFault> {
        let manifest = self.log.manifest();
        let bulk_token = self.publish(move_id, &manifest)?;
        Ok(SessionView {
            manifest,
            write_bytes_per_s: self.writes.borrow_mut().bytes_per_s(mono_ms()),
            bulk_token,
        })
    }

    fn begin_settle(self: &Rc<Self>, handoff_id: HandoffId) {
        let partition = self.clone();
        let began = Instant::now();
        glommio::spawn_local(async move {
            partition.settle().await;
            partition.sessions.borrow_mut().settle_us =
                u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            partition.follow();
            partition.step(SourceInput::Settled { handoff_id });
        })
        .detach();
    }

    fn take_freezes(&self, handoff_id: HandoffId) -> Vec<FreezeCall> {
        let mut sessions = self.sessions.borrow_mut();
        let (taken, kept) = std::mem::take(&mut sessions.freezes)
            .into_iter()
            .partition(|call| call.handoff_id == handoff_id);
        sessions.freezes = kept;
        taken
    }

    fn answer_capture(&self, handoff_id: HandoffId) {
        let calls = self.take_freezes(handoff_id);
        if let Some(reason) = self.log.failed() {
            let fault = faults::open_failed(self.copy, &reason);
            for call in calls {
                let _ = call.answer.send(Err(fault.clone()));
            }
            return;
        }
        let manifest = self.log.manifest();
        let (move_id, settle_us) = {
            let sessions = self.sessions.borrow();
            (
                sessions.open.as_ref().map(|open| open.move_id),
                sessions.settle_us,
            )
        };
        let published = move_id.map_or(Ok(0), |move_id| self.publish(move_id, &manifest));
        for call in calls {
            let _ = call.answer.send(published.clone().map(|_| CaptureView {
                manifest: manifest.clone(),
                settle_us,
            }));
        }
    }

    fn propose_cancel(self: &Rc<Self>, handoff_id: HandoffId) {
        tracing::warn!(copy = %self.copy, handoff = %handoff_id, "the freeze made no progress: asking to cancel its handoff");
        let ctx = self.ctx.clone();
        let key = self.key();
        let due = self.wakes.due.clone();
        glommio::spawn_local(async move {
            match ctx
                .propose(Command::CancelHandoff { key, handoff_id })
                .await
            {
                Ok((_, Reply::Done { .. })) => {
                    ctx.metrics.freezes_cancelled.inc();
                }
                Ok((_, Reply::Refused { refusal })) => {
                    tracing::info!(%key, ?refusal, "the handoff was over already");
                }
                Err(error) => {
                    tracing::warn!(%key, %error, "cancel of a handoff is not confirmed yet")
                }
            }
            due.add(key);
        })
        .detach();
    }

    fn refused(&self, refusal: &SourceRefusal) -> WireFault {
        match refusal {
            SourceRefusal::NotOwner => faults::not_owner(&self.ctx.state(), self.key()),
            SourceRefusal::NotYet { applied } => WireFault::new(
                ErrorCode::Unavailable,
                format!("what this call names is not applied here yet (at {applied})"),
            )
            .hint("ask again shortly")
            .retry_after_ms(20)
            .detail(move_detail("not_yet", Some(applied.0))),
            SourceRefusal::OtherMove { current } => WireFault::new(
                ErrorCode::Refused,
                format!("another move of partition {} is recorded", self.key()),
            )
            .hint("look at the assignment again")
            .detail(move_detail("other_move", current.map(|id| id.0))),
            SourceRefusal::NoSession => WireFault::new(
                ErrorCode::Refused,
                format!(
                    "no session of this move of partition {} is open here",
                    self.key()
                ),
            )
            .hint("open it again")
            .detail(move_detail("no_session", None)),
            SourceRefusal::OtherHandoff { current } => WireFault::new(
                ErrorCode::Refused,
                format!("that handoff of partition {} is over", self.key()),
            )
            .hint("look at the assignment again")
            .detail(move_detail("other_handoff", current.map(|id| id.0))),
        }
    }

    /// `openCopy`.
    pub(crate) fn open_copy(
        self: &Rc<Self>,
        epoch: Epoch,
        move_id: MoveId,
        target: NodeId,
        answer: Answer<Result<SessionView, WireFault>>,
    ) {
        self.follow();
        let input = SourceInput::OpenSession {
            epoch,
            move_id,
            target,
        };
        self.step_for(input, Caller::View(answer));
    }

    /// `refreshCopy`.
    pub(crate) fn refresh_copy(
        self: &Rc<Self>,
        move_id: MoveId,
        answer: Answer<Result<SessionView, WireFault>>,
    ) {
        self.follow();
        self.step_for(SourceInput::Refresh { move_id }, Caller::View(answer));
    }

    /// `checkPrefix`: reads and compares; the bytes are immutable below the durable length.
    pub(crate) async fn check_prefix(
        self: &Rc<Self>,
        move_id: MoveId,
        segment: SegmentState,
    ) -> Result<bool, WireFault> {
        self.follow();
        let session = self.source.borrow().in_session(move_id);
        session.map_err(|refusal| self.refused(&refusal))?;
        let digest = self
            .log
            .digest_prefix(segment.id, segment.durable_len)
            .await
            .map_err(|error| faults::read_failed(self.key(), &error))?;
        Ok(digest == Some(segment.digest))
    }

    /// `freeze`.
    pub(crate) fn freeze(
        self: &Rc<Self>,
        move_id: MoveId,
        handoff_id: HandoffId,
        answer: Answer<Result<CaptureView, WireFault>>,
    ) {
        self.follow();
        {
            let mut sessions = self.sessions.borrow_mut();
            if sessions.freezes.len() >= FREEZE_CALLS_MAX {
                let _ = answer.send(Err(faults::busy("the queue of freeze calls")));
                return;
            }
            sessions.freezes.push(FreezeCall { handoff_id, answer });
        }
        self.step(SourceInput::Freeze {
            move_id,
            handoff_id,
        });
    }

    /// `renewFreeze`.
    pub(crate) fn renew_freeze(
        self: &Rc<Self>,
        handoff_id: HandoffId,
        answer: Answer<Result<(), WireFault>>,
    ) {
        self.follow();
        self.step_for(
            SourceInput::RenewFreeze { handoff_id },
            Caller::Done(answer),
        );
    }

    /// `closeCopy`.
    pub(crate) fn close_copy(
        self: &Rc<Self>,
        move_id: MoveId,
        answer: Answer<Result<(), WireFault>>,
    ) {
        self.follow();
        self.step_for(SourceInput::CloseSession { move_id }, Caller::Done(answer));
    }

    /// Time passes.
    pub(crate) fn tick(self: &Rc<Self>) {
        self.follow();
        let due = self.source.borrow().next_deadline();
        if due.is_some_and(|due| mono_ms() >= due) {
            self.step(SourceInput::Tick);
        }
    }
}

fn move_detail(reason: &str, current: Option<u64>) -> String {
    let current = current.map_or_else(|| "null".into(), |id| id.to_string());
    format!(r#"{{"reason":"{reason}","current":{current}}}"#)
}
