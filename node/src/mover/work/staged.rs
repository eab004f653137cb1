//! The staged copy of one move: opening, filling, finishing and installing it.
//!
//! What this file keeps true: the staging is open in one place only; after a failure of its own
//! disk only what a restart would find counts; what a source told, and all that is staged, is durable
//! before a freeze or a promotion.

use super::{Work, failed};
use crate::messages::ShardRequest;
use crate::mover::history::us_since;
use crate::mover::limits::{TOLD_MS, TURN_PASS_BYTES};
use crate::mover::receive::{CopyError, Receive};
use crate::mover::{Mover, told};
use futures::future::{Either, join, select};
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

    pub(super) async fn start_over(&self, keep: bool, decayed: &[SegmentId]) -> TargetInput {
        if let Err(error) = self.forget_told().await {
            return failed(error);
        }
        let result = async {
            let Mover { root, options, .. } = &*self.mover;
            let mut staging = self.staging().await?;
            for kept in staging.keep_for_operator(root, decayed).await? {
                tracing::error!(
                    key = %self.key, kept = %kept.display(),
                    "the source holds a segment otherwise than it was when it was copied; the copied one is kept"
                );
            }
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
            let mut staging = self.staging().await.map_err(|e| e.to_string())?;
            self.vouch().await.map_err(|e| e.to_string())?;
            staging.keep(keep).await.map_err(|e| e.to_string())?;
            Ok::<_, String>(staging)
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

    /// Saves what the source told last, as every copy named it. To be called before staged bytes are
    /// made durable: a restart must never find more bytes than the answer that it finds speaks of, or it
    /// would take them for all that there was.
    async fn vouch(&self) -> std::io::Result<()> {
        let heard = self.heard.borrow().clone();
        match heard {
            Some(told) => self.save(told).await,
            None => Ok(()),
        }
    }

    /// What was told does not vouch for the staged bytes any more, also after a restart.
    async fn forget_told(&self) -> std::io::Result<()> {
        let forgotten = self.saved.borrow().forgotten();
        self.saved.replace(forgotten);
        self.heard.replace(None);
        told::forget(&self.mover.root, self.key, self.move_id).await
    }

    /// How long what was saved last counts as fresh, so that passes that follow one another do not save
    /// each time.
    fn fresh_for(&self) -> Duration {
        let at = self
            .saved_at
            .get()
            .filter(|_| self.saved.borrow().told.is_some());
        let since = at.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| {
            Duration::from_millis(TOLD_MS).saturating_sub(since)
        })
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
        self.heard.replace(Some(told));
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
            self.copy_unfrozen(&mut staging, ranges, throttled).await
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
        match self.vouch().await {
            Ok(()) => {
                if let Err(error) = staging.sync().await {
                    tracing::warn!(key = %self.key, %error, "staged bytes not synced");
                }
            }
            Err(error) => {
                tracing::warn!(key = %self.key, %error, "what the source told is not saved");
                staging.settle().await;
            }
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

    /// A pass. Nothing is waited for between two of them: what was told is saved beside the copy once
    /// that is due, and from then on the copy is made durable behind it, now and then here and as a
    /// whole before the freeze.
    async fn copy_unfrozen(
        &self,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttled: bool,
    ) -> Result<u64, Stop> {
        // Their bounds are what a peer has claimed.
        let own = ranges.iter().fold(0_u64, |sum, range| {
            sum.saturating_add(range.to.saturating_sub(range.from))
        });
        // One that is nearly done gives nothing up for those that have just begun.
        let others = if own > TURN_PASS_BYTES {
            self.promised()
        } else {
            0
        };
        let needed = own.saturating_add(others);
        if let Err(error) = staging.check_room(needed).await {
            return Err(CopyError::from(error).into());
        }
        let mut copying = std::pin::pin!(self.receive(staging, ranges, throttled, None));
        let due = std::pin::pin!(glommio::timer::sleep(self.fresh_for()));
        let (copied, saved) = match select(&mut copying, due).await {
            Either::Left((copied, _)) => (copied, Ok(())),
            Either::Right(((), _)) => join(copying, self.vouch()).await,
        };
        saved.map_err(|error| Stop::Other(format!("cannot save what the source told: {error}")))?;
        copied.map_err(Stop::from)
    }

    /// Bytes that moves into this node that began before this one still have to bring: of those that have no
    /// room together the older goes on.
    fn promised(&self) -> u64 {
        let running = self.mover.running.borrow();
        let views = running.values().map(|running| running.view.borrow());
        let older = views.filter(|view| view.move_id < self.move_id.0);
        older.fold(0, |sum, view| sum.saturating_add(view.bytes_left))
    }

    /// Whether what the source told last is saved, so that what it told of may be made durable.
    fn vouched(&self) -> bool {
        self.saved.borrow().told == *self.heard.borrow()
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
            courtesy: &self.mover.courtesy,
            renew: renew.map(|handoff_id| (&self.source, handoff_id)),
            interrupt: &self.interrupt,
            live_bytes: &self.live_bytes,
            metrics: &self.mover.ctx.metrics,
            vouched: &|| self.vouched(),
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
            self.heard.replace(Some(told));
            self.vouch().await.map_err(|e| e.to_string())?;
            let mut staging = self.staging().await.map_err(|e| e.to_string())?;
            match staging.prepare_install(next, &self.mover.root).await {
                Ok(()) => {
                    self.put(staging);
                    Ok(())
                }
                // Its files cannot be relied on: the worker has it opened again.
                Err(error) => {
                    staging.settle().await;
                    Err(error.to_string())
                }
            }
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
        let mut freeze = self.freeze.get();
        freeze.split.persist_us = us_since(began);
        self.freeze.set(freeze);
        match finished {
            Ok(()) => {
                self.put(staging);
                TargetInput::Finished
            }
            Err(
                error @ (StageError::Mismatch { .. }
                | StageError::Short { .. }
                | StageError::BadBytes { .. }
                | StageError::NotContiguous { .. }),
            ) => {
                self.put(staging);
                if let Err(error) = self.forget_told().await {
                    tracing::warn!(key = %self.key, %error, "what the source told is not forgotten");
                }
                TargetInput::Mismatch {
                    why: error.to_string(),
                }
            }
            // Its files cannot be relied on: the worker has it opened again.
            Err(error) => {
                staging.settle().await;
                failed(error)
            }
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

    /// Saves what the source told for the capture of an installed copy that is to be staged again, as
    /// [`Self::vouch`] does for other staged bytes; a worker that found it installed takes it from there.
    async fn vouch_for_installed(&self, copy: CopyId) -> Result<(), String> {
        if self.heard.borrow().is_none() {
            let root = &self.mover.root;
            let found = narad_storage::installed_manifest(root, copy, self.move_id).await;
            let manifest = found.map_err(|error| error.to_string())?;
            let saved = told::load(root, self.key, self.move_id).await;
            self.saved.replace(saved);
            self.heard.replace(manifest.map(|manifest| Told {
                move_id: self.move_id,
                manifest,
            }));
        }
        self.vouch().await.map_err(|error| error.to_string())
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
        if let Err(why) = self.vouch_for_installed(copy).await {
            return failed(why);
        }
        let root = &self.mover.root;
        match narad_storage::roll_back_install(root, copy, self.move_id).await {
            Ok(()) => TargetInput::RolledBack,
            Err(error) => failed(error),
        }
    }
}
