//! Carrying out what the worker of one move asks for.
//!
//! What this file keeps true: every effect is answered by exactly one input; a failure of this
//! node's disk, a failure of the wire and a refusal are told apart; what a source told is durable
//! before the worker builds on it.

use super::history::{Freeze, us_since};
use super::interrupt::Interrupt;
use super::receive::{CopyError, Receive};
use super::source::Source;
use super::{Mover, told};
use crate::messages::{LocalCopies, ProposeError, ShardRequest};
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{CopyId, Epoch, HandoffId, MoveId, NodeId, PartitionKey};
use narad_core::meta::{Command, Reply};
use narad_core::moves::target::{
    Confirmed, CopyRange, OwnerLife, ProposeOutcome, TargetEffect, TargetInput, Told,
};
use narad_storage::{StageError, Staging};
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
    saved: RefCell<Option<Told>>,
    pub(super) interrupt: Interrupt,
    /// Bytes received by the copy that runs.
    pub(super) live_bytes: Cell<u64>,
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
            mover,
            key,
            move_id,
            epoch,
            source,
            staging: RefCell::new(None),
            streams: RefCell::new(Vec::new()),
            token: Cell::new(0),
            saved: RefCell::new(None),
            interrupt: Interrupt::default(),
            live_bytes: Cell::new(0),
            freeze: Cell::new(Freeze::default()),
            promoted: Cell::new(false),
        }
    }

    /// Carries out an effect that wants an answer.
    pub(super) async fn perform(&self, effect: TargetEffect) -> TargetInput {
        match effect {
            TargetEffect::CheckLocal => self.check_local().await,
            TargetEffect::OpenStaging => self.open_staging().await,
            TargetEffect::SetAside => self.start_over(true).await,
            TargetEffect::ResetStaging => self.start_over(false).await,
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

    /// Opens the staging of this move, taking over what an earlier move of the partition staged.
    async fn opened(&self) -> Result<Staging, StageError> {
        let Mover { root, options, .. } = &*self.mover;
        Staging::open_or_adopt(root, self.key, self.move_id, options).await
    }

    /// The staging, opened again when an operation that was stopped or failed had taken it.
    async fn staging(&self) -> Result<Staging, StageError> {
        let open = self.staging.borrow_mut().take();
        match open {
            Some(staging) => Ok(staging),
            None => self.opened().await,
        }
    }

    fn put(&self, staging: Staging) {
        self.staging.replace(Some(staging));
    }

    async fn open_staging(&self) -> TargetInput {
        self.staging.replace(None);
        match self.opened().await {
            Ok(staging) => {
                let staged = staging.progress();
                self.put(staging);
                let told = told::load(&self.mover.root, self.key, self.move_id).await;
                self.saved.replace(told.clone());
                TargetInput::StagingReady { staged, told }
            }
            Err(error) => failed(error),
        }
    }

    async fn start_over(&self, keep: bool) -> TargetInput {
        let result = async {
            let Mover { root, options, .. } = &*self.mover;
            let mut staging = self.staging().await?;
            if !keep {
                staging.reset().await?;
                return Ok::<_, StageError>(staging);
            }
            let aside = staging.set_aside(root).await?;
            tracing::warn!(key = %self.key, aside = %aside.display(), "staged bytes that are not the source's are kept aside");
            Staging::open_or_create(root, self.key, self.move_id, options).await
        };
        match result.await {
            Ok(staging) => self.ready(staging),
            Err(error) => failed(error),
        }
    }

    async fn trim(&self, keep: &[SegmentId]) -> TargetInput {
        let result = async {
            let mut staging = self.staging().await?;
            staging.keep(keep).await?;
            Ok::<_, StageError>(staging)
        };
        match result.await {
            Ok(staging) => self.ready(staging),
            Err(error) => failed(error),
        }
    }

    fn ready(&self, staging: Staging) -> TargetInput {
        let staged = staging.progress();
        self.put(staging);
        TargetInput::StagingReady {
            staged,
            told: self.saved.borrow().clone(),
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

    /// Saves what the source told, unless that is saved already.
    async fn save(&self, told: Told, only_hwm: bool) -> std::io::Result<()> {
        let known = self.saved.borrow().as_ref().is_some_and(|saved| {
            *saved == told || (only_hwm && saved.manifest.hwm == told.manifest.hwm)
        });
        if known {
            return Ok(());
        }
        told::save(&self.mover.root, self.key, &told).await?;
        self.saved.replace(Some(told));
        Ok(())
    }

    async fn copy(
        &self,
        ranges: &[CopyRange],
        throttled: bool,
        renew: Option<HandoffId>,
        told: Told,
    ) -> TargetInput {
        let began = Instant::now();
        self.live_bytes.set(0);
        let mut staging = match self.staging().await {
            Ok(staging) => staging,
            Err(error) => return failed(error),
        };
        let copied = if renew.is_some() {
            // In the freeze the two go side by side.
            let both = futures::future::join(
                self.receive(&mut staging, ranges, throttled, renew),
                self.save(told, true),
            );
            let (copied, saved) = both.await;
            saved
                .map_err(|error| error.to_string())
                .and_then(|()| copied.map_err(|error| error.to_string()))
        } else {
            self.copy_unfrozen(&mut staging, ranges, throttled, told)
                .await
        };
        let bytes = self.live_bytes.replace(0);
        if renew.is_some() {
            let mut freeze = self.freeze.get();
            freeze.split.drain_us = us_since(began);
            freeze.bytes = bytes;
            self.freeze.set(freeze);
        }
        match copied {
            Ok(bytes) => {
                let staged = staging.progress();
                self.put(staging);
                TargetInput::Copied {
                    staged,
                    bytes,
                    elapsed_us: us_since(began),
                }
            }
            Err(why) => self.copy_failed(staging, why).await,
        }
    }

    /// What is staged after a copy that failed: if its own disk is the reason, only what a restart
    /// would find counts.
    async fn copy_failed(&self, mut staging: Staging, why: String) -> TargetInput {
        // No write may be under way when the same files are opened again.
        if let Err(error) = staging.sync().await {
            tracing::warn!(key = %self.key, %error, "staged bytes not synced");
        }
        drop(staging);
        match self.opened().await {
            Ok(staging) => {
                let staged = staging.progress();
                self.put(staging);
                TargetInput::CopyFailed { staged, why }
            }
            Err(error) => failed(error),
        }
    }

    /// What was told is durable before the copy begins, and the copy before it is told; also what
    /// came before a failure.
    async fn copy_unfrozen(
        &self,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttled: bool,
        told: Told,
    ) -> Result<u64, String> {
        self.save(told, false)
            .await
            .map_err(|error| format!("cannot save what the source told: {error}"))?;
        let copied = self.receive(staging, ranges, throttled, None).await;
        let synced = staging.sync().await;
        copied
            .map_err(|error| error.to_string())
            .and_then(|bytes| synced.map(|()| bytes).map_err(|error| error.to_string()))
    }

    async fn receive(
        &self,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttled: bool,
        renew: Option<HandoffId>,
    ) -> Result<u64, CopyError> {
        let mut streams = self.streams.take();
        let receive = Receive {
            source: &self.source,
            token: self.token.get(),
            throttle: throttled.then_some(&self.mover.throttle),
            renew,
            interrupt: &self.interrupt,
            live_bytes: &self.live_bytes,
            metrics: &self.mover.ctx.metrics,
        };
        let result = receive.run(&mut streams, staging, ranges).await;
        self.streams.replace(streams);
        result
    }

    async fn prepare(&self, next: CopyId, told: Told) -> TargetInput {
        let result = async {
            self.save(told, false).await.map_err(|e| e.to_string())?;
            let mut staging = self.staging().await.map_err(|e| e.to_string())?;
            let prepared = staging.prepare_install(next, &self.mover.root).await;
            self.put(staging);
            prepared.map_err(|error| error.to_string())
        };
        match result.await {
            Ok(()) => TargetInput::InstallPrepared,
            Err(why) => failed(why),
        }
    }

    async fn propose(&self, command: Command) -> TargetInput {
        let flip = matches!(command, Command::CompleteMove { .. });
        if matches!(command, Command::ForcePromote { .. }) {
            self.promoted.set(true);
        } else if flip {
            self.promoted.set(false);
        }
        let began = Instant::now();
        let outcome = match self.mover.ctx.propose(command).await {
            Ok((_, Reply::Done { index })) => ProposeOutcome::Done { index },
            Ok((_, Reply::Refused { refusal })) => ProposeOutcome::Refused(refusal),
            Err(ProposeError::Unavailable { .. } | ProposeError::NotLeader { .. }) => {
                ProposeOutcome::NotProposed
            }
            Err(ProposeError::Unknown { .. }) => ProposeOutcome::Unknown,
        };
        if flip {
            let mut freeze = self.freeze.get();
            freeze.split.flip_us = us_since(began);
            self.freeze.set(freeze);
        }
        TargetInput::Proposed(outcome)
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

    async fn finish(&self, capture: &Manifest, mark: InstallMark, next: CopyId) -> TargetInput {
        let began = Instant::now();
        let mut staging = match self.staging().await {
            Ok(staging) => staging,
            Err(error) => return failed(error),
        };
        let finished = staging.finish(capture, mark, next).await;
        self.put(staging);
        let mut freeze = self.freeze.get();
        freeze.split.persist_us = us_since(began);
        self.freeze.set(freeze);
        match finished {
            Ok(()) => TargetInput::Finished,
            Err(
                error @ (StageError::Mismatch { .. }
                | StageError::Short { .. }
                | StageError::BadBytes { .. }
                | StageError::NotContiguous { .. }),
            ) => TargetInput::Mismatch {
                why: error.to_string(),
            },
            Err(error) => failed(error),
        }
    }

    async fn install(&self, next: CopyId) -> TargetInput {
        let began = Instant::now();
        let result = async {
            let staging = self.staging().await?;
            staging.install(&self.mover.root, next).await
        };
        let installed = result.await;
        let mut freeze = self.freeze.get();
        freeze.split.install_us = us_since(began);
        self.freeze.set(freeze);
        match installed {
            Ok(()) => TargetInput::Installed,
            Err(error) => failed(error),
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

    async fn roll_back(&self, copy: CopyId) -> TargetInput {
        self.staging.replace(None);
        let root = &self.mover.root;
        match narad_storage::roll_back_install(root, copy, self.move_id).await {
            Ok(()) => TargetInput::RolledBack,
            Err(error) => failed(error),
        }
    }

    async fn serve(&self, copy: CopyId) -> TargetInput {
        let began = Instant::now();
        let asked = self
            .mover
            .ctx
            .shard(copy.key)
            .ask(|answer| ShardRequest::Serve { copy, answer })
            .await;
        let mut freeze = self.freeze.get();
        freeze.split.takeover_us = us_since(began);
        if let Some(asked) = freeze.asked {
            freeze.whole_us = us_since(asked);
        }
        self.freeze.set(freeze);
        match asked {
            Ok(Ok(())) => TargetInput::Serving,
            Ok(Err(fault)) => failed(fault),
            Err(error) => failed(error),
        }
    }
}
