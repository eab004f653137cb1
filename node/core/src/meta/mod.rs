//! The metadata that Raft replicates: members, topics, assignments, and the commands that change
//! them. The rules are in [`apply`]; the shapes in [`state`] and [`command`].
//!
//! What this module keeps true: every guard is evaluated here, when a command is applied, so a
//! duplicate or late command can only fail; the result depends on the state, the command and its
//! log index alone.

mod apply;
mod command;
mod state;

pub use command::{Command, Refusal, Reply};
pub use state::{
    Assignment, EndedEpoch, EpochEnd, Member, MemberStatus, MetaState, MoveTarget, Topic,
    TopicSettings,
};
