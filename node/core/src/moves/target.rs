//! The target's worker for one move: everything from the local check to the flip, as one stepped
//! machine with at most one operation outstanding.
//!
//! What this file keeps true:
//! * everything that can be done before the freeze is done before it; in the freeze there is the
//!   tail, its check, the rename and the flip;
//! * a flip whose answer is lost leaves the installed copy in place until a barrier tells
//!   (the machine asks for ever); only a definite refusal rolls it back, into the staging;
//! * a handoff that this worker cannot finish is cancelled, never left to a clock;
//! * the worker ends only when the metadata shows it (flip, other move, no topic), or the node stops.

mod catchup;
mod handoff;
mod messages;
mod progress;
mod staged;
mod steps;
mod verdict;

pub use messages::{
    CopyRange, MoveOutcome, ProposeOutcome, Report, TargetEffect, TargetInput, Told,
};
pub use progress::{MovePhase, MoveProgress};
use steps::{
    Attempt, FREEZE_AGAIN_MS, FREEZE_ASKS_MAX, HANDOFF_RETRY_MS, LEADER_RETRY_MS, LOCAL_RETRY_MS,
    NOT_YET_QUIET, ROOM_RETRY_MS, ROOM_TRIES, SOURCE_RETRY_MS, State, Step, backoff,
};
pub use verdict::{Confirmed, OwnerLife, Verdict, flip_verdict};

use crate::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use crate::ids::{CopyId, DeathGeneration, Epoch, MoveId, NodeId, Offset, PartitionKey, RaftIndex};
use crate::meta::Assignment;
use crate::moves::convergence::{CatchUpLimits, Convergence, Stall};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What a start finds of this move on the disk, when its copy is installed already (rule R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundInstalled {
    /// The installed copy.
    pub copy: CopyId,
    /// Its mark.
    pub mark: InstallMark,
    /// Offset after its last record.
    pub end: Offset,
    /// Its high-watermark.
    pub hwm: Offset,
}

/// The target's worker for one move.
#[derive(Clone, Debug, Hash)]
pub struct TargetMove {
    me: NodeId,
    key: PartitionKey,
    move_id: MoveId,
    /// The owner that this move takes the partition from.
    from: NodeId,
    /// Its epoch.
    epoch: Epoch,
    view_index: RaftIndex,
    view: Option<Assignment>,
    state: State,
    interrupting: bool,
    outcome: MoveOutcome,
    staged: Vec<SegmentState>,
    /// The staged bytes have been compared with the source's in this life of the worker.
    compared: bool,
    manifest: Manifest,
    told: Option<Told>,
    convergence: Convergence,
    ending: Option<Result<(), Stall>>,
    /// Bytes and time of the pass that just ended, until its tail is known.
    last_pass: Option<(u64, u64)>,
    staging_open: bool,
    /// This node's disk failed under the staging: it is opened again, and what is found then counts.
    reopen: bool,
    /// Staged segments that contradict the source's, where it cannot have written to them since.
    decayed: Vec<SegmentId>,
    /// The staged copy turned out not to be what the source captured: it is made anew once the
    /// source answers again, never before (it may be the last copy).
    broken: bool,
    attempt: Option<Attempt>,
    dead: Option<DeathGeneration>,
    source_failures: u32,
    local_failures: u32,
    leader_failures: u32,
    handoff_failures: u32,
    /// Copies in a row for which this node's disk had no room.
    room_failures: u32,
    progress: MoveProgress,
}

impl TargetMove {
    /// The worker for a move whose target is this node, as the applied metadata shows it.
    #[must_use]
    pub fn new(
        me: NodeId,
        key: PartitionKey,
        move_id: MoveId,
        index: RaftIndex,
        assignment: &Assignment,
    ) -> Self {
        let progress = MoveProgress::new(key, move_id, assignment.owner.clone());
        Self {
            me,
            key,
            move_id,
            from: assignment.owner.clone(),
            epoch: assignment.epoch,
            view_index: index,
            view: Some(assignment.clone()),
            state: State::New,
            interrupting: false,
            outcome: MoveOutcome::Superseded,
            staged: Vec::new(),
            compared: false,
            manifest: Manifest::default(),
            told: None,
            convergence: Convergence::default(),
            ending: None,
            last_pass: None,
            staging_open: false,
            reopen: false,
            decayed: Vec::new(),
            broken: false,
            attempt: None,
            dead: None,
            source_failures: 0,
            local_failures: 0,
            leader_failures: 0,
            handoff_failures: 0,
            room_failures: 0,
            progress,
        }
    }

    /// The worker for a copy that an earlier life of this process installed and whose flip is not
    /// known (rule R3), with the owner and the partition as the applied metadata shows them now.
    #[must_use]
    pub fn found_installed(
        me: NodeId,
        found: FoundInstalled,
        index: RaftIndex,
        assignment: Option<&Assignment>,
    ) -> Self {
        let epoch = Epoch(found.copy.epoch.0.saturating_sub(1));
        let placeholder = Assignment {
            owner: assignment.map_or_else(|| me.clone(), |a| a.owner.clone()),
            epoch,
            target: None,
            opened: true,
            ended: Vec::new(),
            changed: index,
            born: Assignment::first_epoch(),
        };
        let mut worker = Self::new(me, found.copy.key, found.mark.move_id, index, &placeholder);
        worker.view = assignment.cloned();
        worker.attempt = Some(Attempt {
            handoff_id: found.mark.handoff_id,
            promote: None,
            capture: None,
            captured_end: found.end,
            hwm: found.hwm,
            freeze_asks: 0,
        });
        worker
    }

    /// With other limits of the catch-up.
    #[must_use]
    pub fn with_limits(mut self, limits: CatchUpLimits) -> Self {
        self.convergence = Convergence::new(limits);
        self
    }

    /// The partition.
    #[must_use]
    pub fn key(&self) -> PartitionKey {
        self.key
    }

    /// The move.
    #[must_use]
    pub fn move_id(&self) -> MoveId {
        self.move_id
    }

    /// The owner that the partition is taken from.
    #[must_use]
    pub fn from(&self) -> &NodeId {
        &self.from
    }

    /// The epoch that the partition is taken from.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether it has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// How it stands, for people.
    #[must_use]
    pub fn progress(&self) -> MoveProgress {
        let mut progress = self.progress.clone();
        progress.phase = self.phase();
        progress.passes = self.convergence.passes();
        let lens = self.staged.iter().map(|s| s.durable_len);
        progress.bytes_done = lens.fold(0, u64::saturating_add);
        progress.bytes_left = staged::tail_bytes(&self.manifest, &self.staged);
        progress.bytes_per_s = self.convergence.bytes_per_s();
        progress.converged = self.ending.map(|ending| ending.is_ok());
        progress
    }

    /// The same worker without what only paces it or describes it to people: how many failures
    /// came in a row, how the passes went. For model checks, where two states that differ in
    /// these alone are one.
    #[must_use]
    pub fn without_pacing(&self) -> Self {
        let progress = MoveProgress::new(self.key, self.move_id, self.from.clone());
        let mut attempt = self.attempt.clone();
        if let Some(attempt) = &mut attempt {
            attempt.freeze_asks = 0;
        }
        Self {
            attempt,
            convergence: self.convergence.without_pacing(),
            last_pass: None,
            source_failures: 0,
            local_failures: 0,
            leader_failures: 0,
            handoff_failures: 0,
            room_failures: 0,
            progress,
            ..self.clone()
        }
    }

    /// Takes one input and says what to do next.
    pub fn step(&mut self, input: TargetInput) -> Vec<TargetEffect> {
        let mut out = Vec::new();
        if self.state == State::Ended {
            return out;
        }
        match input {
            TargetInput::AssignmentApplied { index, assignment } => {
                self.assignment(index, assignment, &mut out);
            }
            TargetInput::OwnerDeadLongEnough { deaths } => self.dead = Some(deaths),
            TargetInput::OwnerAlive => self.dead = None,
            TargetInput::Shutdown => self.end(MoveOutcome::Stopped, &mut out),
            TargetInput::Start => self.start(&mut out),
            result => self.result(result, &mut out),
        }
        out
    }

    fn start(&mut self, out: &mut Vec<TargetEffect>) {
        if self.state != State::New {
            return;
        }
        if self.attempt.is_some() {
            self.enter(Step::AskFlip, out);
            return;
        }
        // A handoff that an earlier life of this worker began: its capture is gone with it.
        let recorded = self.target_view().and_then(|t| t.handoff);
        if let Some(handoff_id) = recorded {
            self.attempt = Some(Attempt::for_handoff(handoff_id));
            self.enter(Step::Cancel, out);
            return;
        }
        self.enter(Step::CheckLocal, out);
    }

    fn target_view(&self) -> Option<&crate::meta::MoveTarget> {
        self.view
            .as_ref()?
            .target
            .as_ref()
            .filter(|t| t.node == self.me && t.move_id == self.move_id)
    }

    /// Whether the applied metadata no longer shows this move.
    fn over(&self) -> bool {
        self.target_view().is_none() || self.view.as_ref().is_none_or(|a| a.epoch != self.epoch)
    }

    /// Whether the applied metadata shows this node as the owner of the epoch that a flip would begin.
    fn owns_next(&self) -> bool {
        let next = self.epoch.next();
        let view = self.view.as_ref();
        view.is_some_and(|a| a.epoch == next && a.owner == self.me)
    }

    /// Whether the applied metadata shows that the handoff of this try is not recorded any more.
    fn handoff_lost(&self) -> bool {
        let Some(handoff_id) = self.attempt.as_ref().and_then(|a| a.handoff_id) else {
            return false;
        };
        self.view_index.0 >= handoff_id.0
            && self.target_view().and_then(|t| t.handoff) != Some(handoff_id)
    }

    /// Whether this try cannot succeed any more: its handoff is over, or the owner that was to be
    /// replaced lives.
    fn attempt_lost(&self) -> bool {
        let revived = self
            .attempt
            .as_ref()
            .is_some_and(|a| a.promote.is_some() && a.promote != self.dead);
        revived || self.handoff_lost()
    }

    fn assignment(
        &mut self,
        index: RaftIndex,
        assignment: Option<Assignment>,
        out: &mut Vec<TargetEffect>,
    ) {
        if index < self.view_index {
            return;
        }
        self.view_index = index;
        self.view = assignment;
        if self.interrupting {
            return;
        }
        let stop = match self.state {
            State::New | State::Ended => false,
            State::Busy(step) => {
                let frozen = matches!(step, Step::Freeze | Step::Drain);
                step.interruptible() && (self.over() || (frozen && self.handoff_lost()))
            }
            State::Pausing(step) => !step.past_install() && self.over(),
        };
        if stop {
            self.interrupting = true;
            out.push(TargetEffect::Interrupt);
        }
    }

    /// The answer to the outstanding effect.
    fn result(&mut self, input: TargetInput, out: &mut Vec<TargetEffect>) {
        self.interrupting = false;
        let step = match self.state {
            State::Pausing(step) => {
                if self.over() && !step.past_install() {
                    self.wind_up(out);
                } else {
                    self.enter(step, out);
                }
                return;
            }
            State::Busy(step) => step,
            State::New | State::Ended => return,
        };
        if self.over() && !step.past_install() && step != Step::GiveUp {
            self.wind_up(out);
            return;
        }
        match step {
            Step::GiveUp => self.given_up(step, input, out),
            Step::CheckLocal | Step::OpenStaging | Step::SetAside | Step::Reset | Step::Trim => {
                self.local_result(step, input, out)
            }
            Step::OpenSource | Step::CheckPrefixes | Step::Pass | Step::Refresh => {
                self.catchup_result(step, input, out)
            }
            Step::Prepare
            | Step::Begin
            | Step::AskHandoff
            | Step::Freeze
            | Step::Drain
            | Step::Finish
            | Step::Cancel => self.handoff_result(step, input, out),
            Step::Install
            | Step::Flip
            | Step::AskFlip
            | Step::RollBack
            | Step::Serve
            | Step::Close => self.flip_result(step, input, out),
        }
    }

    fn local_result(&mut self, step: Step, input: TargetInput, out: &mut Vec<TargetEffect>) {
        match input {
            TargetInput::LocalClear => {
                self.local_failures = 0;
                self.enter(Step::OpenStaging, out);
            }
            TargetInput::LocalOccupied { copy } => {
                let why = format!(
                    "this node still holds copy {copy}; it is salvaged and reclaimed first"
                );
                self.retry_local(Step::CheckLocal, why, out);
            }
            TargetInput::StagingReady { staged, told } => {
                self.local_failures = 0;
                self.staged = staged;
                self.staging_open = true;
                self.decayed.clear();
                if step == Step::OpenStaging {
                    self.compared = false;
                    self.reopen = false;
                    // What this worker has heard itself is as new as what is saved, or newer.
                    if self.told.is_none() {
                        self.told = told.filter(|t| t.move_id == self.move_id);
                    }
                    self.enter(Step::OpenSource, out);
                } else {
                    if step != Step::Trim {
                        self.broken = false;
                        self.compared = true;
                    }
                    self.compare(out);
                }
            }
            TargetInput::Failed { why } => self.retry_local(step, why, out),
            other => self.unexpected(step, &other, out),
        }
    }

    /// An answer that does not belong to the step: a defect of the shell. The step is repeated.
    fn unexpected(&mut self, step: Step, input: &TargetInput, out: &mut Vec<TargetEffect>) {
        let why = format!("step {step:?} was answered with {input:?}");
        self.retry_local(step, why, out);
    }

    fn pause(&mut self, then: Step, ms: u64, out: &mut Vec<TargetEffect>) {
        self.state = State::Pausing(then);
        out.push(TargetEffect::Wait { ms });
    }

    fn trouble(&mut self, why: String, out: &mut Vec<TargetEffect>) {
        self.progress.last_error = Some(why.clone());
        out.push(TargetEffect::Report(Report::Trouble { why }));
    }

    fn retry_local(&mut self, step: Step, why: String, out: &mut Vec<TargetEffect>) {
        self.trouble(why, out);
        let ms = backoff(LOCAL_RETRY_MS, &mut self.local_failures);
        self.pause(step, ms, out);
    }

    fn retry_leader(&mut self, step: Step, out: &mut Vec<TargetEffect>) {
        let ms = backoff(LEADER_RETRY_MS, &mut self.leader_failures);
        self.pause(step, ms, out);
    }

    /// This node's disk has no room: tried again a few times, then the slot is given up, so that the
    /// partition can go where there is room.
    fn no_room(&mut self, why: String, out: &mut Vec<TargetEffect>) {
        self.trouble(why, out);
        if self.room_failures < ROOM_TRIES {
            let ms = backoff(ROOM_RETRY_MS, &mut self.room_failures);
            self.pause(Step::OpenSource, ms, out);
        } else {
            self.enter(Step::GiveUp, out);
        }
    }

    /// What became of taking the target back. With an owner that is dead it is refused (R14): then
    /// the copy is tried again, because nobody else can get one.
    fn given_up(&mut self, step: Step, input: TargetInput, out: &mut Vec<TargetEffect>) {
        match input {
            TargetInput::Proposed(ProposeOutcome::Done { .. }) => {
                self.outcome = MoveOutcome::NoRoom;
                self.attempt = None;
                self.enter(Step::Close, out);
            }
            TargetInput::Proposed(_) if self.over() => self.wind_up(out),
            TargetInput::Proposed(_) => {
                self.room_failures = 0;
                self.retry_leader(Step::OpenSource, out);
            }
            other => self.unexpected(step, &other, out),
        }
    }

    fn wind_up(&mut self, out: &mut Vec<TargetEffect>) {
        self.outcome = if self.view.is_none() {
            MoveOutcome::TopicGone
        } else {
            MoveOutcome::Superseded
        };
        self.attempt = None;
        self.enter(Step::Close, out);
    }

    fn end(&mut self, outcome: MoveOutcome, out: &mut Vec<TargetEffect>) {
        self.state = State::Ended;
        self.outcome = outcome;
        out.push(TargetEffect::Done { outcome });
    }
}

#[cfg(test)]
mod tests;
