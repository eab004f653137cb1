//! Deaths, standstills and lost answers on purpose, so that a test can put them between any two steps
//! of a move, or of a node's removal.
//!
//! What this file keeps true: a release build has none of it; a debug build dies only when
//! `NARAD_DIE_BEFORE` names the step, by SIGKILL, so nothing is flushed or said first. It stops
//! itself only at the first step that `NARAD_STOP_BEFORE` names (whoever wants it to go on sends
//! SIGCONT), and throws one answer away only when `NARAD_LOSE_REPLY` names the command.

use narad_core::meta::Command;
use narad_core::moves::target::TargetEffect;
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of a step at which a test may let the process die or stand still.
fn name(effect: &TargetEffect) -> Option<&'static str> {
    Some(match effect {
        TargetEffect::CopyRanges { renew: None, .. } => "pass",
        TargetEffect::Propose(Command::BeginHandoff { .. }) => "begin",
        TargetEffect::FreezeSource { .. } => "freeze",
        TargetEffect::CopyRanges { renew: Some(_), .. } => "drain",
        TargetEffect::FinishStaging { .. } => "finish",
        TargetEffect::Install { .. } => "install",
        TargetEffect::Propose(Command::CompleteMove { .. }) => "flip",
        TargetEffect::Serve { .. } => "serve",
        _ => return None,
    })
}

fn wanted(variable: &str, name: Option<&str>) -> bool {
    if !cfg!(debug_assertions) || name.is_none() {
        return false;
    }
    std::env::var(variable).ok().as_deref() == name
}

fn signal(signal: Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
}

/// Ends or stops this process before the effect is carried out, if the environment asks for it.
pub(crate) fn before(effect: &TargetEffect) {
    at(name(effect));
}

/// A step of a drained node's removal, named in the same variables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Removal {
    /// Leadership is about to be handed over.
    Transfer,
    /// The node is about to be taken out of Raft's membership.
    Expel,
    /// It is out of that, and about to be removed from the metadata.
    Remove,
}

/// Ends or stops this process before the step is carried out, if the environment asks for it.
pub(crate) fn before_removal(step: Removal) {
    at(Some(match step {
        Removal::Transfer => "transfer",
        Removal::Expel => "expel",
        Removal::Remove => "remove",
    }));
}

fn at(name: Option<&str>) {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    if wanted("NARAD_DIE_BEFORE", name) {
        signal(Signal::SIGKILL);
    }
    if wanted("NARAD_STOP_BEFORE", name) && !STOPPED.swap(true, Ordering::SeqCst) {
        signal(Signal::SIGSTOP);
        // Another thread may be the one that takes the signal: not a step further before it has.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Whether the answer to this command is to be taken for lost, once.
pub(crate) fn loses_reply(command: &Command) -> bool {
    static LOST: AtomicBool = AtomicBool::new(false);
    let name = matches!(command, Command::CompleteMove { .. }).then_some("flip");
    let lost = wanted("NARAD_LOSE_REPLY", name) && !LOST.swap(true, Ordering::SeqCst);
    if lost {
        tracing::warn!("this answer is thrown away on purpose");
    }
    lost
}
