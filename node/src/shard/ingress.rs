//! Records on their way into this shard's ingress WAL, and what a node that is leaving does instead.
//!
//! What this file keeps true: a record is counted as waiting from before the decision to take it in
//! until the WAL counts it itself, so that no summary misses it; nothing is taken in for others any
//! more once the node knows that it is leaving, another node takes it instead; what another node
//! may have taken is never offered to a second one.

use crate::clock::mono_ms;
use crate::messages::ShardSummary;
use crate::shard::faults;
use crate::shard::limits::{FORWARD_HOPS_MAX, FORWARDS_MAX, PEER_APPEND_MS};
use crate::shard::peers;
use crate::shard::produce::Placed;
use crate::shard::shard::Shard;
use narad_core::ids::{PartitionIndex, WalSeq};
use narad_core::meta::Member;
use narad_storage::{AppendError, Record, WalEntry};
use narad_wire::error::{ErrorCode, WireError, WireFault};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Records that are on their way into a WAL.
struct Entering<'a> {
    all: &'a Cell<u64>,
    records: u64,
}

impl<'a> Entering<'a> {
    fn begin(all: &'a Cell<u64>, records: usize) -> Self {
        let records = records as u64;
        all.set(all.get() + records);
        Self { all, records }
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.records);
    }
}

impl Shard {
    /// Whether this node is done with records. Whoever asks before [`Shard::put_into_wal`] awaits nothing
    /// between the two.
    pub(crate) fn is_leaving(&self) -> bool {
        self.ctx.state().is_leaving(&self.ctx.id)
    }

    /// Puts records into this shard's WAL, durably.
    pub(crate) async fn put_into_wal(&self, entries: Vec<WalEntry>) -> Result<WalSeq, AppendError> {
        let _entering = Entering::begin(&self.entering, entries.len());
        let at = mono_ms();
        let first = self.wal().append(entries).await?;
        self.dispatchers.arrived(first, at);
        Ok(first)
    }

    /// What this shard holds, under the metadata of this moment.
    pub(crate) fn summary(&self) -> ShardSummary {
        let state = self.ctx.state();
        let held = self
            .copies
            .borrow()
            .keys()
            .filter(|copy| {
                state
                    .assignment(copy.key)
                    .is_none_or(|a| a.epoch != copy.epoch || !self.owns(a))
            })
            .count();
        ShardSummary {
            applied: state.applied,
            undispatched: self.dispatchers.pending_records() + self.entering.get(),
            waiting_for: self.dispatchers.waiting_for_dead(),
            held_copies: u32::try_from(held).unwrap_or(u32::MAX),
            partition_bytes: self
                .open_partitions()
                .iter()
                .inspect(|open| open.tell_commits())
                .map(|open| (open.key(), open.log.stats().bytes))
                .collect(),
        }
    }

    /// Lets another node take records, which `hops` nodes have passed on already: one outcome a record.
    pub(crate) async fn forward(
        self: &Rc<Self>,
        topic: &str,
        named: Option<PartitionIndex>,
        records: &[Record],
        hops: u8,
    ) -> Vec<Placed> {
        let nodes = self.receivers();
        if hops >= FORWARD_HOPS_MAX {
            // Nodes that all leave, each with an older view of the others, would go round.
            return refused(
                &faults::leaving(nodes.first().map(|node| &**node)),
                records.len(),
            );
        }
        let mut node = nodes.first().cloned();
        for member in &nodes {
            let deadline = Duration::from_millis(PEER_APPEND_MS);
            let sent = {
                let request = peers::Produce {
                    topic,
                    named,
                    records,
                    hops: hops + 1,
                };
                peers::produce(&self.pool, member, request, deadline).await
            };
            match sent {
                Ok(placed) if placed.len() == records.len() => return placed,
                Ok(placed) => {
                    let fault = faults::internal(
                        "forwarding",
                        format!(
                            "{} outcomes for {} records from {}",
                            placed.len(),
                            records.len(),
                            member.id
                        ),
                    );
                    return refused(&fault, records.len());
                }
                Err(error) if untaken(&error) => {
                    tracing::debug!(node = %member.id, %error, "another node takes the records");
                    node = Some(member.clone());
                }
                Err(WireError::Fault(fault)) => return refused(&fault, records.len()),
                Err(error) => {
                    let fault = faults::unknown_forward(&member.addr, &error);
                    return refused(&fault, records.len());
                }
            }
        }
        let fault = faults::leaving(node.as_deref());
        refused(&fault, records.len())
    }

    /// Other nodes that take records, each time from another one on.
    fn receivers(&self) -> Vec<Arc<Member>> {
        let state = self.ctx.state();
        let mut nodes: Vec<Arc<Member>> = state
            .members
            .values()
            .filter(|member| member.id != self.ctx.id && state.can_receive(&member.id))
            .cloned()
            .collect();
        if !nodes.is_empty() {
            let first = self.next_turn() % nodes.len();
            nodes.rotate_left(first);
        }
        nodes.truncate(FORWARDS_MAX);
        nodes
    }
}

fn refused(fault: &WireFault, records: usize) -> Vec<Placed> {
    vec![Placed::Refused(Box::new(fault.clone())); records]
}

/// Whether the node has taken nothing for sure.
fn untaken(error: &WireError) -> bool {
    match error {
        WireError::Connect { .. } => true,
        WireError::Fault(fault) => matches!(
            fault.code,
            ErrorCode::ShuttingDown
                | ErrorCode::Unavailable
                | ErrorCode::Busy
                | ErrorCode::NotMember
        ),
        WireError::Timeout { .. } | WireError::Disconnected { .. } | WireError::Protocol { .. } => {
            false
        }
    }
}
