//! The metrics of produce, consume and the disk, by name.
//!
//! What this file keeps true: a name that was given stays.

use super::Metrics;
use prometheus_client::registry::Unit;

impl Metrics {
    pub(super) fn register_data(&mut self) {
        let r = &mut self.registry;
        r.register(
            "calls",
            "Answered calls of the data plane, by what the whole call was answered with: ok or an error's code",
            self.calls.clone(),
        );
        r.register(
            "produced_records",
            "Records produced through this node",
            self.produced_records.clone(),
        );
        r.register_with_unit(
            "produced",
            "Bytes of keys and values produced through this node, without what was refused",
            Unit::Bytes,
            self.produced_bytes.clone(),
        );
        r.register_with_unit(
            "produce",
            "Time until a produce call is answered",
            Unit::Seconds,
            self.produce_seconds.clone(),
        );
        r.register_with_unit(
            "scrubbed",
            "Bytes of sealed segments that were read again in the background",
            Unit::Bytes,
            self.scrubbed_bytes.clone(),
        );
        r.register(
            "decayed_segments",
            "Sealed segments that are not what was written any more",
            self.decayed_segments.clone(),
        );
        r.register(
            "rerouted_records",
            "Records that went elsewhere because the first choice took no appends",
            self.rerouted_records.clone(),
        );
        r.register(
            "delivered_records",
            "Records delivered to consumers",
            self.delivered_records.clone(),
        );
        r.register_with_unit(
            "consume",
            "Time until a consume call is answered, its wait for records included",
            Unit::Seconds,
            self.consume_seconds.clone(),
        );
        r.register(
            "returned_records",
            "Records given back because they did not reach their consumer",
            self.returned_records.clone(),
        );
        r.register("acked_records", "Records acked", self.acked_records.clone());
        r.register_with_unit(
            "redelivery_age",
            "Age of a record, by its time, when it is delivered again",
            Unit::Seconds,
            self.redelivery_age_seconds.clone(),
        );
        r.register(
            "redelivered_records",
            "Deliveries of a record after the first",
            self.redelivered_records.clone(),
        );
        r.register(
            "skipped_records",
            "Records passed over because their bytes are corrupt",
            self.skipped_records.clone(),
        );
        r.register(
            "unwritten_frontiers",
            "Partitions whose frontier acks have moved and that is not on the disk yet",
            self.unwritten_frontiers.clone(),
        );
        r.register_with_unit(
            "frontier",
            "Time from an ack that moves a frontier until it is durable",
            Unit::Seconds,
            self.frontier_seconds.clone(),
        );
        r.register(
            "failed_reads",
            "Reads for consumers that the disk refused; each is tried again",
            self.failed_reads.clone(),
        );
        r.register(
            "expired_records",
            "Records that retention deleted before they were acked",
            self.expired_records.clone(),
        );
        r.register(
            "dispatched_records",
            "Records dispatched from the ingress WALs to their owners",
            self.dispatched_records.clone(),
        );
        r.register_with_unit(
            "dispatch_lag",
            "Time from accepting a dispatched batch's oldest record until its owner has it",
            Unit::Seconds,
            self.dispatch_lag_seconds.clone(),
        );
        r.register(
            "undispatched_records",
            "Records waiting in the ingress WALs",
            self.undispatched_records.clone(),
        );
        r.register("commits", "Group commits", self.commits.clone());
        r.register_with_unit(
            "commit",
            "Time until an append is durable: its wait for the group commit, the write and the sync",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        r.register(
            "open_partitions",
            "Partitions open for appending",
            self.open_partitions.clone(),
        );
        r.register(
            "failed_partitions",
            "Partitions whose log stopped after a failed write or sync",
            self.failed_partitions.clone(),
        );
        r.register(
            "connections",
            "Client and peer connections open now",
            self.connections.clone(),
        );
    }
}
