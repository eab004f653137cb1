//! The Rust client.
//!
//! What this file keeps true: one place to import a client's types from.

pub use crate::view::{
    FreezeSplitView, LocationView, MemberView, MembersView, MoveView, MovesView, NodeView,
    PartitionView, PlanStepView, PlanView, TopicSettingsView, TopicView,
};
