//! Deaths on purpose, so that a test can end the process between any two steps of a move.
//!
//! What this file keeps true: a release build has none of it; a debug build dies only when
//! `NARAD_DIE_BEFORE` names the step, by SIGKILL, so nothing is flushed or said first.

use narad_core::meta::Command;
use narad_core::moves::target::TargetEffect;

/// The name of a step at which a test may let the process die.
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

/// Ends this process before the effect is carried out, if the environment asks for it.
pub(super) fn die_before(effect: &TargetEffect) {
    if !cfg!(debug_assertions) {
        return;
    }
    let wanted = std::env::var("NARAD_DIE_BEFORE").ok();
    if wanted.is_some() && wanted.as_deref() == name(effect) {
        let me = nix::unistd::Pid::this();
        let _ = nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL);
    }
}
