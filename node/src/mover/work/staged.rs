//! The staged copy of one move: opening, filling, finishing and installing it.
//!
//! What this file keeps true: the staging is open in one place only; after a failure of its own
//! disk only what a restart would find counts; what a source told, and all that is staged, is durable
//! before a freeze or a promotion.

use super::{Work, failed};
use crate::messages::ShardRequest;
use crate::mover::history::us_since;
use crate::mover::limits::TOLD_MS;
use crate::mover::receive::{CopyError, Receive};
use crate::mover::told::Saved;
use crate::mover::{Mover, told};
use narad_core::copy::{InstallMark, Manifest, SegmentId};
use narad_core::ids::{CopyId, HandoffId};
use narad_core::moves::target::{CopyRange, TargetInput, Told};
use narad_storage::{StageError, Staging};
use std::time::{Duration, Instant};

/// Why a copy stopped, as the worker is told.
enum Stop {
    /// This node's disk has no room: another node may have.
    NoRoom(String),
    /// Anything that may be better the next time.
    Other(String),
}

impl From<CopyError> for Stop {
    fn from(error: CopyError) -> Self {
        let why = error.to_string();
        match error {
            CopyError::Stage(StageError::Full { .. }) => Self::NoRoom(why),
            _ => Self::Other(why),
        }
    }
}

impl Work {
    /// Opens the staging of this move, taking over what an earlier move of the partition staged.
    pub(super) async fn opened(&self) -> Result<Staging, StageError> {
        let Mover { root, options, .. } = &*self.mover;
        Staging::open_or_adopt(root, self.key, self.move_id, options).await
    }

    /// The staging, opened again when an operation that was stopped or failed had taken it.
    pub(super) async fn staging(&self) -> Result<Staging, StageError> {
        let open = self.staging.borrow_mut().take();
        match open {
            Some(staging) => Ok(staging),
            None => self.opened().await,
        }
    }

    pub(super) fn put(&self, staging: Staging) {
        self.staging.replace(Some(staging));
    }

    pub(super) async fn open_staging(&self) -> TargetInput {
        self.staging.replace(None);
        match self.opened().await {
            Ok(staging) => {
                let staged = staging.progress();
                self.put(staging);
                let saved = told::load(&self.mover.root, self.key, self.move_id).await;
                let told = saved.told.clone();
                self.saved.replace(saved);
                TargetInput::StagingReady { staged, told }
            }
            Err(error) => failed(error),
        }
    }

    pub(super) async fn start_over(&self, keep: bool) -> TargetInput {
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

    pub(super) async fn trim(&self, keep: &[SegmentId]) -> TargetInput {
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

    pub(super) fn ready(&self, staging: Staging) -> TargetInput {
        let staged = staging.progress();
        self.put(staging);
        TargetInput::StagingReady {
            staged,
            told: self.saved.borrow().told.clone(),
        }
    }

    /// Saves what the source told, unless that is saved already.
    pub(super) async fn save(&self, told: Told) -> std::io::Result<()> {
        let saved = self.saved.borrow().clone();
        if saved.told.as_ref() != Some(&told) {
            let saved = told::save(&self.mover.root, self.key, &saved, told).await?;
            self.saved.replace(saved);
            self.saved_at.set(Some(Instant::now()));
        }
        Ok(())
    }

    /// Saves what the source told, unless something was saved a moment ago.
    async fn save_now_and_then(&self, told: Told) -> std::io::Result<()> {
        let fresh = self
            .saved_at
            .get()
            .is_some_and(|at| at.elapsed() < Duration::from_millis(TOLD_MS));
        if fresh && self.saved.borrow().told.is_some() {
            return Ok(());
        }
        self.save(told).await
    }

    pub(super) async fn copy(
        &self,
        ranges: &[CopyRange],
        throttled: bool,
        renew: Option<HandoffId>,
        told: Told,
    ) -> TargetInput {
        let began = Instant::now();
        self.live_bytes.set(0);
        self.copying.set(Some(began));
        let mut staging = match self.staging().await {
            Ok(staging) => staging,
            Err(error) => {
                self.copying.set(None);
                return failed(error);
            }
        };
        let copied = if renew.is_some() {
            // What was told in the freeze is saved with the end state, or before a promotion: a crash
            // until then is as if it had come before the answer.
            self.receive(&mut staging, ranges, throttled, renew)
                .await
                .map_err(Stop::from)
        } else {
            self.copy_unfrozen(&mut staging, ranges, throttled, told)
                .await
        };
        let bytes = self.live_bytes.replace(0);
        self.copying.set(None);
        self.copied
            .set(self.copied.get().and(bytes, us_since(began)));
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
            Err(stop) => self.copy_failed(staging, stop).await,
        }
    }

    /// What is staged after a copy that failed: if its own disk is the reason, only what a restart
    /// would find counts.
    async fn copy_failed(&self, mut staging: Staging, stop: Stop) -> TargetInput {
        // No write may be under way when the same files are opened again.
        if let Err(error) = staging.sync().await {
            tracing::warn!(key = %self.key, %error, "staged bytes not synced");
        }
        drop(staging);
        match self.opened().await {
            Ok(staging) => {
                let staged = staging.progress();
                self.put(staging);
                match stop {
                    Stop::NoRoom(why) => TargetInput::NoRoom { staged, why },
                    Stop::Other(why) => TargetInput::CopyFailed { staged, why },
                }
            }
            Err(error) => failed(error),
        }
    }

    /// A pass. Nothing is waited for between two of them: what was told is saved beside the copy, and
    /// the copy is made durable behind it, now and then here and as a whole before the freeze.
    async fn copy_unfrozen(
        &self,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttled: bool,
        told: Told,
    ) -> Result<u64, Stop> {
        let both = futures::future::join(
            self.receive(staging, ranges, throttled, None),
            self.save_now_and_then(told),
        );
        let (copied, saved) = both.await;
        saved.map_err(|error| Stop::Other(format!("cannot save what the source told: {error}")))?;
        copied.map_err(Stop::from)
    }

    pub(super) async fn receive(
        &self,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttled: bool,
        renew: Option<HandoffId>,
    ) -> Result<u64, CopyError> {
        let addr = self.source.bulk_addr()?;
        let mut streams = self.streams.take();
        let receive = Receive {
            addr: &addr,
            key: self.key,
            move_id: self.move_id,
            token: self.token.get(),
            throttle: throttled.then_some(&self.mover.throttle),
            background: &self.mover.background,
            renew: renew.map(|handoff_id| (&self.source, handoff_id)),
            interrupt: &self.interrupt,
            live_bytes: &self.live_bytes,
            metrics: &self.mover.ctx.metrics,
        };
        let result = receive.run(&mut streams, staging, ranges).await;
        self.streams.replace(streams);
        result
    }

    pub(super) async fn prepare(&self, next: CopyId, told: Told) -> TargetInput {
        if self.turn.waited().await {
            return TargetInput::WaitedForTurn;
        }
        let result = async {
            self.save(told).await.map_err(|e| e.to_string())?;
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

    pub(super) async fn finish(
        &self,
        capture: &Manifest,
        mark: InstallMark,
        next: CopyId,
    ) -> TargetInput {
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
            ) => {
                // What was told does not vouch for these bytes any more, also after a restart.
                told::forget(&self.mover.root, self.key, self.move_id).await;
                self.saved.replace(Saved::default());
                TargetInput::Mismatch {
                    why: error.to_string(),
                }
            }
            Err(error) => failed(error),
        }
    }

    pub(super) async fn install(&self, next: CopyId) -> TargetInput {
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
            Ok(installed) => {
                self.installed.replace(Some((next, installed)));
                TargetInput::Installed
            }
            Err(error) => failed(error),
        }
    }

    pub(super) async fn roll_back(&self, copy: CopyId) -> TargetInput {
        self.staging.replace(None);
        self.installed.replace(None);
        let forget = ShardRequest::Installed {
            copy,
            installed: None,
        };
        // Before anything changes: what the shard knows of the copy must never be older than the copy.
        if let Err(error) = self.mover.ctx.shard(self.key).send(forget).await {
            return failed(error);
        }
        let root = &self.mover.root;
        match narad_storage::roll_back_install(root, copy, self.move_id).await {
            Ok(()) => TargetInput::RolledBack,
            Err(error) => failed(error),
        }
    }
}
