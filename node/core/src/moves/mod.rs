//! The move of a live partition: the owner's side ([`source`]), the target's side ([`target`]),
//! when to stop copying ([`convergence`]), the lease that fences a moving partition's owner
//! ([`lease`]) and how long that owner has been dead ([`owner_watch`]).
//!
//! What this module keeps true: the freeze ends through the metadata only, an unknown outcome is
//! never treated as a refusal, and nothing that a disk holds is thrown away on a local view.

pub mod convergence;
pub mod lease;
pub mod owner_watch;
pub mod source;
pub mod target;

pub use convergence::CatchUpLimits;
pub use lease::MoveLease;
pub use owner_watch::OwnerWatch;
pub use source::{
    AckRefusal, AppendRefusal, SourceEffect, SourceInput, SourcePartition, SourceRefusal,
    StopReason,
};
pub use target::{FoundInstalled, MoveOutcome, TargetEffect, TargetInput, TargetMove};

#[cfg(test)]
mod explore;
