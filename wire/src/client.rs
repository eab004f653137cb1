//! The Rust client: admin calls, a producer and a consumer that go to the owners directly, replay.
//!
//! What this file keeps true: a client needs the address of one living node and learns the others;
//! nobody has to know about moves: what a move turns away is sent again, to the new owner or to
//! any node; records may come twice, none is lost silently.
//!
//! Everything here runs on one thread of any executor ([`Runtime`](crate::runtime::Runtime)).

mod admin;
pub mod calls;
mod consumer;
mod deliver;
mod handle;
mod locator;
mod model;
mod producer;
mod replayer;

pub use crate::convert::Record;
pub use crate::view::{
    FreezeSplitView, LocationView, LossView, LostPartitionView, MemberView, MembersView, MoveView,
    MovesView, NodeView, PartitionView, PlanStepView, PlanView, TopicSettingsView, TopicView,
};
pub use consumer::{Consumer, ConsumerOptions, Settled};
pub use handle::{Client, ClientOptions};
pub use model::{Delivery, Lease, Produced, ReplayBatch, Replayed};
pub use producer::{Producer, ProducerOptions, Receipt};
pub use replayer::Replay;
