//! The metadata that Raft replicates: members, topics, assignments, and the commands that change
//! them: [`MetaState::apply`] holds the rules.
//!
//! What this module keeps true: every guard is evaluated here, when a command is applied, so a
//! duplicate or late command can only fail; the result depends on the state, the command and its
//! log index alone.

mod apply;
mod apply_forget;
mod apply_member;
mod apply_move;
mod apply_topic;
mod changes;
mod command;
mod heritage;
mod invariants;
mod placement;
mod state;

#[cfg(test)]
pub(crate) mod tests;

pub use command::{Command, Refusal, Reply};
pub use heritage::{Heritage, LogPoint, Recovery, Stranger};
pub use state::{
    Assignment, EndedEpoch, EpochEnd, Holdings, Member, MemberStatus, MetaState, MoveTarget,
    Setting, Topic, TopicSettings,
};
