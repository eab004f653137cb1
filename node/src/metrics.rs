//! Counters, gauges and histograms of one node, in the form that Prometheus reads.
//!
//! What this file keeps true: base units (seconds, bytes), `_total` on counters, and labels out of
//! closed lists only, so the number of series does not grow with topics, partitions or peers.

mod data;
mod labels;

pub use labels::{
    Call, CallLabel, ConsumeLabel, ConsumeOutcome, Direction, DirectionLabel, FreezeLabel,
    FreezePart, MoveLabel, MoveOutcome, PathLabel, ProduceLabel, ProduceOutcome,
};

use narad_wire::error::{ErrorCode, WireFault, code_name};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Everything that one node counts. Clones of the parts share their values.
pub struct Metrics {
    registry: Registry,
    /// Answered calls of the data plane.
    pub calls: Family<CallLabel, Counter>,
    /// Records produced through this node.
    pub produced_records: Family<ProduceLabel, Counter>,
    /// Bytes of keys and values produced through this node, without what was refused.
    pub produced_bytes: Counter,
    /// Time until a produce call is answered.
    pub produce_seconds: Histogram,
    /// Bytes of sealed segments that were read again.
    pub scrubbed_bytes: Counter,
    /// Sealed segments found to be not what was written.
    pub decayed_segments: Counter,
    /// Records that another partition or the WAL took because the first choice was frozen.
    pub rerouted_records: Counter,
    /// Records delivered to consumers.
    pub delivered_records: Counter,
    /// Time until a consume call is answered.
    pub consume_seconds: Family<ConsumeLabel, Histogram>,
    /// Records given back because they did not reach their consumer.
    pub returned_records: Counter,
    /// Records acked.
    pub acked_records: Counter,
    /// Age of a record when it is delivered again.
    pub redelivery_age_seconds: Histogram,
    /// Deliveries of a record after the first.
    pub redelivered_records: Counter,
    /// Records passed over because their bytes are corrupt.
    pub skipped_records: Counter,
    /// Frontiers that acks have moved and that are not on the disk yet.
    pub unwritten_frontiers: Gauge,
    /// Time until a moved frontier is durable.
    pub frontier_seconds: Histogram,
    /// Reads for consumers that the disk refused.
    pub failed_reads: Counter,
    /// Records that retention deleted before they were acked.
    pub expired_records: Counter,
    /// Records dispatched to an owner.
    pub dispatched_records: Counter,
    /// Time from accepting a batch's oldest record until its owner has the batch.
    pub dispatch_lag_seconds: Histogram,
    /// Records waiting in this node's ingress WALs.
    pub undispatched_records: Gauge,
    /// Group commits.
    pub commits: Counter,
    /// Time until an append is durable.
    pub commit_seconds: Histogram,
    /// Partitions that this node owns, as applied here.
    pub owned_partitions: Gauge,
    /// Partitions open for appending.
    pub open_partitions: Gauge,
    /// Partitions whose log stopped after a failed write or sync.
    pub failed_partitions: Gauge,
    /// Ended copies that are not reclaimed yet.
    pub held_copies: Gauge,
    /// Moves whose target or source is this node, as applied here.
    pub moves_running: Family<DirectionLabel, Gauge>,
    /// Ended moves whose target was this node.
    pub moves_ended: Family<MoveLabel, Counter>,
    /// Moves that froze without converging.
    pub moves_not_converged: Counter,
    /// Handoffs cancelled because the freeze made no progress.
    pub freezes_cancelled: Counter,
    /// Duration of a move, from Open to serving.
    pub move_seconds: Histogram,
    /// Parts of a freeze.
    pub freeze_seconds: Family<FreezeLabel, Histogram>,
    /// Bytes read under one freeze.
    pub freeze_bytes: Histogram,
    /// Bytes of copies.
    pub copied_bytes: Family<DirectionLabel, Counter>,
    /// 1 for the way in which this node sends segments.
    pub copy_path: Family<PathLabel, Gauge>,
    /// 1 while this node leads.
    pub leader: Gauge,
    /// Raft term.
    pub term: Gauge,
    /// Index of the last applied metadata entry.
    pub applied_index: Gauge,
    /// Members that are alive.
    pub members_alive: Gauge,
    /// Members that are dead.
    pub members_dead: Gauge,
    /// Heartbeats that no leader answered.
    pub heartbeats_failed: Counter,
    /// Passes of the controller.
    pub controller_passes: Counter,
    /// Limit on copies in force, in bytes/s; 0: none.
    pub copy_limit: Gauge,
    /// Passes of the controller that only its tick brought about.
    pub controller_ticks: Counter,
    /// Targets set by the controller.
    pub planned_moves: Counter,
    /// Client and peer connections open now.
    pub connections: Gauge,
}

fn durations() -> Histogram {
    // 100 µs to about 105 s, doubling: a sync and a long move fall into the same scale.
    Histogram::new(exponential_buckets(0.000_1, 2.0, 21))
}

fn sizes() -> Histogram {
    // 4 KiB to 4 GiB, times four.
    Histogram::new(exponential_buckets(4_096.0, 4.0, 11))
}

fn long_durations() -> Histogram {
    // 10 ms to about 5.8 h, times two.
    Histogram::new(exponential_buckets(0.01, 2.0, 22))
}

impl Metrics {
    /// All of them, at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut made = Self {
            registry: Registry::with_prefix("narad"),
            calls: Family::default(),
            produced_records: Family::default(),
            produced_bytes: Counter::default(),
            produce_seconds: durations(),
            scrubbed_bytes: Counter::default(),
            decayed_segments: Counter::default(),
            rerouted_records: Counter::default(),
            delivered_records: Counter::default(),
            consume_seconds: Family::new_with_constructor(durations),
            returned_records: Counter::default(),
            acked_records: Counter::default(),
            redelivery_age_seconds: long_durations(),
            redelivered_records: Counter::default(),
            skipped_records: Counter::default(),
            unwritten_frontiers: Gauge::default(),
            frontier_seconds: durations(),
            failed_reads: Counter::default(),
            expired_records: Counter::default(),
            dispatched_records: Counter::default(),
            dispatch_lag_seconds: long_durations(),
            undispatched_records: Gauge::default(),
            commits: Counter::default(),
            commit_seconds: durations(),
            owned_partitions: Gauge::default(),
            open_partitions: Gauge::default(),
            failed_partitions: Gauge::default(),
            held_copies: Gauge::default(),
            moves_running: Family::default(),
            moves_ended: Family::default(),
            moves_not_converged: Counter::default(),
            freezes_cancelled: Counter::default(),
            move_seconds: long_durations(),
            freeze_seconds: Family::new_with_constructor(durations),
            freeze_bytes: sizes(),
            copied_bytes: Family::default(),
            copy_path: Family::default(),
            leader: Gauge::default(),
            term: Gauge::default(),
            applied_index: Gauge::default(),
            members_alive: Gauge::default(),
            members_dead: Gauge::default(),
            heartbeats_failed: Counter::default(),
            controller_passes: Counter::default(),
            copy_limit: Gauge::default(),
            controller_ticks: Counter::default(),
            planned_moves: Counter::default(),
            connections: Gauge::default(),
        };
        made.register_data();
        made.register_moves();
        made.register_cluster();
        made
    }

    fn register_moves(&mut self) {
        let r = &mut self.registry;
        r.register(
            "held_copies",
            "Copies of ended epochs that are not reclaimed yet",
            self.held_copies.clone(),
        );
        r.register(
            "moves_running",
            "Moves into and out of this node",
            self.moves_running.clone(),
        );
        r.register(
            "moves_ended",
            "Ended moves whose target was this node",
            self.moves_ended.clone(),
        );
        r.register(
            "moves_not_converged",
            "Moves that froze although the tail had stopped shrinking",
            self.moves_not_converged.clone(),
        );
        r.register(
            "freezes_cancelled",
            "Handoffs cancelled by this node because the freeze made no progress",
            self.freezes_cancelled.clone(),
        );
        r.register_with_unit(
            "move",
            "Duration of a move, from Open until the new owner serves",
            Unit::Seconds,
            self.move_seconds.clone(),
        );
        r.register_with_unit(
            "freeze",
            "Parts of a freeze and the whole of it",
            Unit::Seconds,
            self.freeze_seconds.clone(),
        );
        r.register_with_unit(
            "freeze_read",
            "Bytes copied under one freeze",
            Unit::Bytes,
            self.freeze_bytes.clone(),
        );
        r.register_with_unit(
            "copied",
            "Bytes of partition copies",
            Unit::Bytes,
            self.copied_bytes.clone(),
        );
        r.register(
            "copy_path",
            "1 for the way in which this node sends partition bytes: splice or read-send",
            self.copy_path.clone(),
        );
    }

    /// Notes that a call was answered, or is about to be.
    pub fn called<T>(&self, call: Call, answer: &Result<T, WireFault>) {
        let outcome = match answer {
            Ok(_) => code_name(ErrorCode::Ok),
            Err(fault) => code_name(fault.code),
        };
        let label = CallLabel { call, outcome };
        self.calls.get_or_create(&label).inc();
    }

    /// Notes the way in which this node sends segments.
    pub fn sends_by(&self, path: &'static str) {
        self.copy_path.get_or_create(&PathLabel { path }).set(1);
    }

    fn register_cluster(&mut self) {
        let r = &mut self.registry;
        r.register(
            "owned_partitions",
            "Partitions that this node owns",
            self.owned_partitions.clone(),
        );
        r.register("leader", "1 while this node leads", self.leader.clone());
        r.register("term", "Raft term", self.term.clone());
        r.register(
            "applied_index",
            "Index of the last applied metadata entry",
            self.applied_index.clone(),
        );
        r.register(
            "members_alive",
            "Members that are alive",
            self.members_alive.clone(),
        );
        r.register(
            "members_dead",
            "Members that are dead",
            self.members_dead.clone(),
        );
        r.register(
            "heartbeats_failed",
            "Heartbeats that no leader answered",
            self.heartbeats_failed.clone(),
        );
        r.register(
            "controller_passes",
            "Passes of the controller on this node",
            self.controller_passes.clone(),
        );
        r.register(
            "copy_limit_bytes_per_second",
            "Limit on copies into this node, and on those out of it, fixed or adaptive; 0: none",
            self.copy_limit.clone(),
        );
        r.register(
            "controller_ticks",
            "Passes of the controller on this node that only its tick brought about",
            self.controller_ticks.clone(),
        );
        r.register(
            "planned_moves",
            "Targets set by the controller on this node",
            self.planned_moves.clone(),
        );
    }

    /// All of them as text (OpenMetrics).
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string succeeds");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_base_units_and_totals() {
        let metrics = Metrics::new();
        metrics
            .produced_records
            .get_or_create(&ProduceLabel {
                outcome: ProduceOutcome::Committed,
            })
            .inc_by(3);
        metrics
            .freeze_seconds
            .get_or_create(&FreezeLabel {
                part: FreezePart::Whole,
            })
            .observe(0.004);
        metrics.called(Call::Produce, &Ok(()));
        let busy = WireFault::new(ErrorCode::Busy, "full");
        metrics.called(Call::Produce, &Err::<(), _>(busy));
        let text = metrics.render();
        for outcome in ["ok", "busy"] {
            let line = format!(r#"narad_calls_total{{call="Produce",outcome="{outcome}"}} 1"#);
            assert!(text.contains(&line), "{text}");
        }
        assert!(
            text.contains("narad_produced_records_total{outcome=\"Committed\"} 3"),
            "{text}"
        );
        assert!(text.contains("narad_produced_bytes_total 0"), "{text}");
        assert!(
            text.contains("narad_freeze_seconds_count{part=\"Whole\"} 1"),
            "{text}"
        );
    }

    #[test]
    fn every_executor_may_count() {
        fn shared<T: Send + Sync>() {}
        shared::<Metrics>();
    }
}
