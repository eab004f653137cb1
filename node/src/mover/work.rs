//! Carrying out what the worker of one move asks for.
//!
//! What this file keeps true: every effect is answered by exactly one input; a failure of this
//! node's disk, a failure of the wire and a refusal are told apart; what a source told is durable
//! before the worker builds on it.

mod staged;

use super::Mover;
use super::courtesy::Hurry;
use super::history::{Copied, Freeze, us_since};
use super::interrupt::Interrupt;
use super::source::Source;
use super::told::Saved;
use super::turn::Turn;
use crate::messages::{LocalCopies, ProposeError, ShardRequest};
use futures::future::join;
use narad_core::copy::SegmentState;
use narad_core::ids::{CopyId, Epoch, HandoffId, MoveId, NodeId, PartitionKey};
use narad_core::meta::{Command, Reply};
use narad_core::moves::target::{
    Confirmed, OwnerLife, ProposeOutcome, TargetEffect, TargetInput, Told,
};
use narad_storage::{Installed, Staging};
use narad_wire::bulk::BulkStream;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The hands of one move.
pub(super) struct Work {
    mover: Rc<Mover>,
    key: PartitionKey,
    move_id: MoveId,
    epoch: Epoch,
    source: Source,
    /// Open between operations; an operation takes it and puts it back.
    staging: RefCell<Option<Staging>>,
    streams: RefCell<Vec<BulkStream>>,
    token: Cell<u64>,
    saved: RefCell<Saved>,
    /// What the source told before the copy that was made last.
    heard: RefCell<Option<Told>>,
    /// When what the source told was saved last.
    saved_at: Cell<Option<Instant>>,
    turn: Turn,
    hurry: Hurry,
    /// What was installed, for the shard, which is told once the flip is on its way.
    installed: RefCell<Option<(CopyId, Installed)>>,
    pub(super) interrupt: Interrupt,
    /// Bytes received by the copy that runs.
    pub(super) live_bytes: Cell<u64>,
    /// What the copies before it did.
    copied: Cell<Copied>,
    /// When the copy that runs began.
    copying: Cell<Option<Instant>>,
    pub(super) freeze: Cell<Freeze>,
    /// The flip was asked for without the source.
    pub(super) promoted: Cell<bool>,
}

fn failed(why: impl std::fmt::Display) -> TargetInput {
    TargetInput::Failed {
        why: why.to_string(),
    }
}

impl Work {
    pub(super) fn new(
        mover: Rc<Mover>,
        key: PartitionKey,
        move_id: MoveId,
        epoch: Epoch,
        owner: NodeId,
    ) -> Self {
        let source = Source {
            ctx: mover.ctx.clone(),
            pool: mover.pool.clone(),
            key,
            move_id,
            owner,
        };
        Self {
            turn: Turn::new(mover.turns.clone()),
            hurry: Hurry::new(mover.courtesy.clone()),
            mover,
            key,
            move_id,
            epoch,
            source,
            staging: RefCell::new(None),
            streams: RefCell::new(Vec::new()),
            token: Cell::new(0),
            saved: RefCell::default(),
            heard: RefCell::new(None),
            saved_at: Cell::new(None),
            installed: RefCell::new(None),
            interrupt: Interrupt::default(),
            live_bytes: Cell::new(0),
            copied: Cell::default(),
            copying: Cell::default(),
            freeze: Cell::new(Freeze::default()),
            promoted: Cell::new(false),
        }
    }

    /// All that was copied until now, and the time that it took.
    pub(super) fn copied(&self) -> Copied {
        let running_us = self.copying.get().map_or(0, us_since);
        self.copied.get().and(self.live_bytes.get(), running_us)
    }

    /// Carries out an effect that wants an answer.
    pub(super) async fn perform(&self, effect: TargetEffect) -> TargetInput {
        self.turn.before(&effect);
        self.hurry.before(&effect);
        match effect {
            TargetEffect::CheckLocal => self.check_local().await,
            TargetEffect::OpenStaging => self.open_staging().await,
            TargetEffect::SetAside { decayed } => self.start_over(true, &decayed).await,
            TargetEffect::ResetStaging { decayed } => self.start_over(false, &decayed).await,
            TargetEffect::TrimStaging { keep } => self.trim(&keep).await,
            TargetEffect::OpenSource => self.open_source().await,
            TargetEffect::CheckPrefixes { staged } => self.check_prefixes(&staged).await,
            TargetEffect::RefreshSource => self.refresh().await,
            TargetEffect::CopyRanges {
                ranges,
                throttled,
                renew,
                told,
            } => self.copy(&ranges, throttled, renew, told).await,
            TargetEffect::PrepareInstall { next, told } => self.prepare(next, told).await,
            TargetEffect::Propose(command) => self.propose(command).await,
            TargetEffect::FreezeSource { handoff_id } => self.freeze_source(handoff_id).await,
            TargetEffect::FinishStaging {
                capture,
                mark,
                next,
            } => self.finish(&capture, mark, next).await,
            TargetEffect::Install { next } => self.install(next).await,
            TargetEffect::QueryBarrier => self.barrier().await,
            TargetEffect::RollBack { copy } => self.roll_back(copy).await,
            TargetEffect::Serve { copy } => self.serve(copy).await,
            TargetEffect::CloseSource => {
                self.source.close().await;
                TargetInput::SourceClosed
            }
            TargetEffect::Wait { ms } => {
                let sleep = glommio::timer::sleep(Duration::from_millis(ms));
                match self.interrupt.race(sleep).await {
                    Ok(()) => TargetInput::Timer,
                    Err(_) => TargetInput::Interrupted,
                }
            }
            TargetEffect::Interrupt | TargetEffect::Report(_) | TargetEffect::Done { .. } => {
                unreachable!("the task handles effects that want no answer")
            }
        }
    }

    async fn check_local(&self) -> TargetInput {
        let key = self.key;
        let asked = self
            .mover
            .ctx
            .shard(key)
            .ask(|answer| ShardRequest::CheckLocal { key, answer })
            .await;
        match asked {
            Ok(LocalCopies::Clear) => TargetInput::LocalClear,
            Ok(LocalCopies::Occupied { copy } | LocalCopies::Unknown { copy }) => {
                TargetInput::LocalOccupied { copy }
            }
            Err(error) => failed(error),
        }
    }

    async fn open_source(&self) -> TargetInput {
        match self.interrupt.race(self.source.open(self.epoch)).await {
            Ok(Ok(copy)) => {
                self.token.set(copy.bulk_token);
                TargetInput::SourceOpened {
                    manifest: copy.manifest,
                    write_bytes_per_s: copy.write_bytes_per_s,
                }
            }
            Ok(Err(error)) => error.into(),
            Err(_) => TargetInput::Interrupted,
        }
    }

    async fn refresh(&self) -> TargetInput {
        match self.interrupt.race(self.source.refresh()).await {
            Ok(Ok(copy)) => {
                self.token.set(copy.bulk_token);
                TargetInput::Refreshed {
                    manifest: copy.manifest,
                    write_bytes_per_s: copy.write_bytes_per_s,
                }
            }
            Ok(Err(error)) => error.into(),
            Err(_) => TargetInput::Interrupted,
        }
    }

    async fn check_prefixes(&self, staged: &[SegmentState]) -> TargetInput {
        let mut matching = Vec::new();
        for segment in staged {
            match self.interrupt.race(self.source.matches(segment)).await {
                Ok(Ok(true)) => matching.push(segment.id),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => return error.into(),
                Err(_) => return TargetInput::Interrupted,
            }
        }
        TargetInput::PrefixesChecked { matching }
    }

    async fn propose(&self, command: Command) -> TargetInput {
        let flip = matches!(command, Command::CompleteMove { .. });
        if matches!(command, Command::BeginHandoff { .. }) {
            // The freeze of an earlier handoff is over, and this one's has not begun.
            self.freeze.set(Freeze::default());
        } else if matches!(command, Command::ForcePromote { .. }) {
            self.promoted.set(true);
            // What an earlier handoff of this move measured is not a part of this flip.
            self.freeze.set(Freeze::default());
        } else if flip {
            self.promoted.set(false);
        }
        let began = Instant::now();
        let lost = crate::failpoint::loses_reply(&command);
        // In this order: the flip is on its way to the control core before the shard has work.
        let asked = join(self.mover.ctx.propose(command), async {
            if flip {
                self.tell_installed();
            }
        });
        let (answer, ()) = asked.await;
        let outcome = match answer {
            _ if lost => ProposeOutcome::Unknown,
            Ok((_, Reply::Done { index })) => ProposeOutcome::Done { index },
            Ok((_, Reply::Refused { refusal })) => ProposeOutcome::Refused(refusal),
            Err(ProposeError::Unavailable { .. } | ProposeError::NotLeader { .. }) => {
                ProposeOutcome::NotProposed
            }
            Err(ProposeError::Unknown { .. }) => ProposeOutcome::Unknown,
        };
        if flip {
            let mut freeze = self.freeze.get();
            freeze.flip = Some((began, Instant::now()));
            freeze.split.flip_us = us_since(began);
            self.freeze.set(freeze);
        }
        TargetInput::Proposed(outcome)
    }

    /// Tells the shard what it will serve. Only saves it a look at the disk: one with a full queue may do without.
    fn tell_installed(&self) {
        if let Some((copy, installed)) = self.installed.take() {
            let installed = Some(installed);
            let shard = self.mover.ctx.shard(self.key);
            let _ = shard.try_send(ShardRequest::Installed { copy, installed });
        }
    }

    async fn freeze_source(&self, handoff_id: HandoffId) -> TargetInput {
        self.freeze.set(Freeze {
            asked: Some(Instant::now()),
            ..Freeze::default()
        });
        match self.interrupt.race(self.source.freeze(handoff_id)).await {
            Ok(Ok(capture)) => {
                let mut freeze = self.freeze.get();
                freeze.split.settle_us = capture.settle_us;
                self.freeze.set(freeze);
                TargetInput::Frozen {
                    capture: capture.manifest,
                }
            }
            Ok(Err(error)) => error.into(),
            Err(_) => TargetInput::Interrupted,
        }
    }

    async fn barrier(&self) -> TargetInput {
        let ctx = &self.mover.ctx;
        if let Err(error) = ctx.barrier().await {
            tracing::debug!(key = %self.key, %error, "no barrier");
            return TargetInput::Barrier(None);
        }
        let state = ctx.state();
        let assignment = state.assignment(self.key).cloned();
        let owner = assignment
            .as_ref()
            .and_then(|a| state.members.get(&a.owner))
            .map(|member| OwnerLife {
                status: member.status,
                deaths: member.deaths,
            });
        TargetInput::Barrier(Some(Confirmed { assignment, owner }))
    }

    async fn serve(&self, copy: CopyId) -> TargetInput {
        let asked = self
            .mover
            .ctx
            .shard(copy.key)
            .ask(|answer| ShardRequest::Serve { copy, answer })
            .await;
        match asked {
            Ok(Ok(since)) => {
                let mut freeze = self.freeze.get();
                freeze.served(since);
                self.freeze.set(freeze);
                TargetInput::Serving
            }
            Ok(Err(fault)) => failed(fault),
            Err(error) => failed(error),
        }
    }
}
