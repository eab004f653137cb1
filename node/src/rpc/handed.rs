//! Leases that were taken for a caller who may not have them yet.
//!
//! What this file keeps true: records that did not reach their consumer are due again at once and
//! not only when their leases end. They are given back when the call is dropped, when the answer
//! cannot be sent, and when the connection ends before the caller has released the answer's
//! receipt. A node that passes records on holds their owner's receipt until its own caller has the
//! answer, so they also come back when that node goes away in between.
//!
//! A caller that gives a call up while the answer is on its way to it releases the receipt as one
//! that has read it does; those leases end by their time.

use crate::messages::{Delivered, LeaseRef, Settle, ShardRequest};
use crate::shard::limits::PEER_CALL_MS;
use crate::shard::peers;
use crate::shard::shard::Shard;
use crate::shard::task;
use narad_core::ids::TopicId;
use narad_core::meta::Member;
use narad_schema::client_capnp::receipt;
use narad_wire::rpc::Line;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Who leased them.
enum Source {
    /// This shard of this node.
    Shard(usize),
    /// Another node, under this name of the topic; its receipt is held as long as ours is.
    Node(Arc<Member>, String, Option<receipt::Client>),
}

struct Part {
    source: Source,
    leases: Vec<LeaseRef>,
}

/// Gives its leases back when it is dropped, unless they were [taken](Handed::taken).
pub(crate) struct Handed {
    shard: Rc<Shard>,
    topic: TopicId,
    parts: Vec<Part>,
}

fn leases(records: &[Delivered]) -> Vec<LeaseRef> {
    records.iter().map(|one| one.lease).collect()
}

impl Handed {
    /// Nothing yet.
    pub(crate) fn new(shard: &Rc<Shard>, topic: TopicId) -> Self {
        Self {
            shard: shard.clone(),
            topic,
            parts: Vec::new(),
        }
    }

    /// Records that a shard of this node leased.
    pub(crate) fn by_shard(
        shard: &Rc<Shard>,
        topic: TopicId,
        at: usize,
        records: &[Delivered],
    ) -> Self {
        let mut handed = Self::new(shard, topic);
        handed.add(Source::Shard(at), records);
        handed
    }

    /// Records that another node leased.
    pub(crate) fn by_node(
        shard: &Rc<Shard>,
        topic: TopicId,
        (member, name): (&Arc<Member>, &str),
        records: &[Delivered],
        receipt: Option<receipt::Client>,
    ) -> Self {
        let mut handed = Self::new(shard, topic);
        let source = Source::Node(member.clone(), name.to_owned(), receipt);
        handed.add(source, records);
        handed
    }

    fn add(&mut self, source: Source, records: &[Delivered]) {
        if !records.is_empty() {
            let leases = leases(records);
            self.parts.push(Part { source, leases });
        }
    }

    /// Takes over what another one holds.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.parts.append(&mut other.parts);
    }

    /// Whether there is nothing to give back.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The consumer has them.
    pub(crate) fn taken(mut self) {
        self.parts.clear();
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        for part in std::mem::take(&mut self.parts) {
            let (shard, topic) = (self.shard.clone(), self.topic);
            task::spawn("giving leases back", async move {
                give_back(&shard, topic, part).await;
            });
        }
    }
}

async fn give_back(shard: &Rc<Shard>, topic: TopicId, part: Part) {
    let Part { source, leases } = part;
    tracing::debug!(%topic, records = leases.len(), "records that did not reach their consumer are given back");
    match source {
        Source::Shard(at) => {
            // A shard that is gone has taken its leases along.
            let _ = shard.ctx.shards[at]
                .ask(|answer| ShardRequest::Settle {
                    topic,
                    settle: Settle::Undeliver,
                    leases,
                    answer,
                })
                .await;
        }
        Source::Node(member, name, receipt) => {
            let deadline = Duration::from_millis(PEER_CALL_MS);
            let back = Settle::Undeliver;
            let given = peers::settle(&shard.pool, &member, &name, back, &leases, deadline).await;
            if let Err(error) = given {
                tracing::debug!(node = %member.id, %error, "leases come back by their timeout");
            }
            drop(receipt);
        }
    }
}

/// What a caller holds until it has the answer.
pub(crate) struct Receipt {
    held: RefCell<Option<Handed>>,
    line: Line,
}

impl Receipt {
    /// For leases that go out over a connection with this end.
    pub(crate) fn new(handed: Handed, line: Line) -> Self {
        Self {
            held: RefCell::new(Some(handed)),
            line,
        }
    }
}

impl receipt::Server for Receipt {}

impl Drop for Receipt {
    fn drop(&mut self) {
        let Some(handed) = self.held.take() else {
            return;
        };
        if self.line.has_ended() {
            drop(handed);
        } else {
            handed.taken();
        }
    }
}
