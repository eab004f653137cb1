//! Scenarios: the hard cases, played step by step.
//!
//! What this file keeps true: a scenario is a list of actions like any other; a step that is not
//! possible in the world as it is ends the scenario with a panic, unless a rule is switched off.

use crate::action::{Action, How, Span};
use crate::check::Violation;
use crate::limits::PLAY_STEPS_MAX;
use crate::mutation::Mutation;
use crate::setup::{Allow, Setup};
use crate::world::World;
use narad_core::meta::Command;
use narad_core::moves::target::TargetEffect;

/// Where a worker is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Opening the session.
    Open,
    /// Copying, unfrozen.
    Pass,
    /// Asking the source how it stands.
    Refresh,
    /// Doing ahead what the freeze is to find done.
    Prepare,
    /// Recording the handoff.
    Begin,
    /// Asking the source to freeze.
    Freeze,
    /// Draining the tail.
    Drain,
    /// Writing the end state.
    Finish,
    /// Renaming.
    Install,
    /// Asking for the flip.
    Flip,
    /// Asking what became of it.
    AskFlip,
    /// Taking the install back.
    RollBack,
    /// Having it served.
    Serve,
}

/// A scenario that is being played.
pub struct Play {
    /// The world.
    pub world: World,
    /// What was done.
    pub actions: Vec<Action>,
    /// Who stays away at the end.
    pub absent: Option<usize>,
}

/// The world of the scenarios: three nodes, one partition at node 0 moving to node 1, node 2 leads.
#[must_use]
pub fn stage() -> Setup {
    Setup {
        name: "scenario",
        deaths: true,
        faults: 30,
        records: 30,
        commands: 100,
        advances: 60,
        eager: Vec::new(),
        chained: false,
        allow: Allow {
            wal: true,
            written: true,
            consume: true,
            retain: true,
            crash: vec![0, 1, 2],
            cut: vec![0, 1, 2],
            mute: vec![0, 1, 2],
            elect: vec![0, 1, 2],
            loss: true,
            late: true,
            redo: true,
            disk: true,
            advance: vec![Span::Second, Span::Lease, Span::Ttl, Span::Promote],
            move_to: vec![0, 1, 2],
            cancel: true,
            drain: vec![0, 1, 2],
            give_up: vec![0, 1, 2],
            topic: true,
            reclaim: true,
            plan: false,
            beat: vec![0, 1, 2],
        },
        ..Setup::quiet("scenario")
    }
}

impl Play {
    /// A scenario at its start.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            world: World::new(setup),
            actions: Vec::new(),
            absent: None,
        }
    }

    /// One action.
    pub fn act(&mut self, action: Action) -> &mut Self {
        if self.world.violation.is_some() {
            return self;
        }
        let possible = self.world.actions().contains(&action);
        if !possible && self.world.setup.mutation.is_some() {
            return self;
        }
        assert!(
            possible,
            "{action:?} is not possible after {:?}",
            self.actions
        );
        self.world.step(action);
        self.actions.push(action);
        self
    }

    /// One action, if it is possible.
    pub fn may(&mut self, action: Action) -> &mut Self {
        if self.can(action) {
            self.act(action);
        }
        self
    }

    /// The worker at `n` goes on for so many steps, and everybody applies what there is.
    pub fn go_on(&mut self, n: usize, steps: usize) -> &mut Self {
        for _ in 0..steps {
            let next = [Action::Timer(n, 0), Action::Work(n, 0, How::Ok)];
            match next.into_iter().find(|action| self.can(*action)) {
                Some(action) => self.act(action),
                None => break,
            };
            for node in 0..self.world.nodes.len() {
                self.apply(node);
            }
        }
        self
    }

    /// Whether the action can be taken.
    #[must_use]
    pub fn can(&self, action: Action) -> bool {
        self.world.actions().contains(&action)
    }

    /// The worker at `n` goes on until it wants to do this.
    pub fn until(&mut self, n: usize, at: At) -> &mut Self {
        for _ in 0..PLAY_STEPS_MAX {
            if self.world.violation.is_some() || self.is_at(n, at) {
                return self;
            }
            let worker = self.world.nodes[n].parts[0].worker.as_ref();
            let owner = worker.map_or(n, |w| self.world.index_of(w.machine.from()));
            let asked = worker.is_some_and(|w| w.asked);
            if asked && self.can(Action::Apply(owner)) {
                self.act(Action::Apply(owner));
                continue;
            }
            let next = [
                Action::Timer(n, 0),
                Action::Work(n, 0, How::Ok),
                Action::Interrupted(n, 0),
                Action::Apply(n),
            ];
            let wanted = next.into_iter().find(|action| self.can(*action));
            match wanted {
                Some(action) => self.act(action),
                None => break,
            };
        }
        let mutated = self.world.setup.mutation.is_some();
        assert!(
            mutated || self.world.violation.is_some(),
            "the worker does not get to {at:?} after {:?}",
            self.actions
        );
        self
    }

    fn is_at(&self, n: usize, at: At) -> bool {
        let Some(worker) = &self.world.nodes[n].parts[0].worker else {
            return false;
        };
        let Some(pending) = &worker.pending else {
            return false;
        };
        let here = match pending {
            TargetEffect::OpenSource => At::Open,
            TargetEffect::CopyRanges { renew: None, .. } => At::Pass,
            TargetEffect::CopyRanges { .. } => At::Drain,
            TargetEffect::RefreshSource => At::Refresh,
            TargetEffect::Propose(Command::BeginHandoff { .. }) => At::Begin,
            TargetEffect::Propose(Command::CompleteMove { .. } | Command::ForcePromote { .. }) => {
                At::Flip
            }
            TargetEffect::PrepareInstall { .. } => At::Prepare,
            TargetEffect::FinishStaging { .. } => At::Finish,
            TargetEffect::FreezeSource { .. } => At::Freeze,
            TargetEffect::Install { .. } => At::Install,
            TargetEffect::QueryBarrier => At::AskFlip,
            TargetEffect::RollBack { .. } => At::RollBack,
            TargetEffect::Serve { .. } => At::Serve,
            _ => return false,
        };
        here == at
    }

    /// The node applies everything.
    pub fn apply(&mut self, n: usize) -> &mut Self {
        while self.world.violation.is_none() && self.can(Action::Apply(n)) {
            self.act(Action::Apply(n));
        }
        self
    }

    /// A record is produced and acked.
    pub fn append(&mut self, n: usize) -> &mut Self {
        self.act(Action::Produce(n, 0)).act(Action::Ack(n, 0))
    }

    /// The node is cut off and marked dead, and its death is waited out.
    pub fn die(&mut self, n: usize) -> &mut Self {
        self.act(Action::Cut(n)).waited_out()
    }

    /// Time passes until who is away is dead for long enough.
    pub fn waited_out(&mut self) -> &mut Self {
        for span in [Span::Ttl, Span::Ttl] {
            self.act(Action::Advance(span));
        }
        for n in 0..self.world.nodes.len() {
            self.apply(n);
        }
        self.act(Action::Advance(Span::Promote))
    }

    /// The fair continuation; what was broken, if anything.
    #[must_use]
    pub fn end(mut self) -> (Option<Violation>, World, Vec<Action>) {
        self.world.finish_without(self.absent);
        (self.world.violation.clone(), self.world, self.actions)
    }
}

/// A named case, and the rules that it is about.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Rules without which it goes wrong.
    pub about: &'static [Mutation],
    /// What happens.
    pub script: fn(&mut Play),
}
