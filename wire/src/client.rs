//! The Rust client: admin calls, a producer and a consumer that go to the owners directly, replay.
//!
//! What this file keeps true: a client needs the address of one living node and learns the others;
//! nobody has to know about moves: what a move turns away is sent again, to the new owner or to
//! any node; records may come twice, none is lost silently.
//!
//! Everything here runs on one thread of any executor ([`Runtime`](crate::runtime::Runtime)).
//!
//! ```no_run
//! use narad_wire::client::{Client, ConsumerOptions, ProducerOptions, Record};
//!
//! # async fn example() -> Result<(), narad_wire::error::WireError> {
//! let client = Client::new(vec!["127.0.0.1:7420".into()]);
//! let producer = client.producer("orders", ProducerOptions::default());
//! let receipt = producer.send(Record::new(b"two pizzas".to_vec()), None).await?;
//! println!("stored: {:?}", receipt.await?);
//!
//! let mut consumer = client.consumer("orders", ConsumerOptions::default());
//! let batch = consumer.next().await?;
//! consumer.ack(&batch).await;
//! # Ok(())
//! # }
//! ```
//!
//! `wire/examples/work_queue.rs` is a whole program: produce, work, give back, replay.

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
    FreezeSplitView, LocationView, LossView, LostCopyView, LostPartitionView, MemberView,
    MembersView, MoveView, MovesView, NodeView, PartitionView, PlanStepView, PlanView,
    TopicSettingsView, TopicView,
};
pub use consumer::{Consumer, ConsumerOptions, Settled};
pub use handle::{Client, ClientOptions};
pub use model::{Delivery, Lease, Produced, ReplayBatch, Replayed};
pub use producer::{Producer, ProducerOptions, Receipt};
pub use replayer::Replay;
