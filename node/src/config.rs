//! The configuration of a node, resolved from flags, environment and file, and checked as a whole.
//!
//! What this file keeps true: nothing on disk or on the network is touched before a configuration
//! passed; every problem is told at once; timings that fence each other hold their order
//! (heartbeat, lease plus drift, dead-after, force-promote-after), whatever an operator sets.

mod args;
mod check;
mod place;

pub use args::ServeArgs;
pub use check::{ConfigErrors, ConfigProblem};

use narad_core::ids::NodeId;
use narad_wire::bulk::CopyPath;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How this node becomes part of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is one of the founders: all of them, with their addresses, this node included.
    Found(Vec<(NodeId, String)>),
    /// It joins through any of these members.
    Join(Vec<String>),
    /// It is a member already: its data directory knows the cluster.
    Restart,
}

/// Which CPUs the executors run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// Pinned to the CPUs that the process may use, control core first.
    Auto,
    /// Pinned to these, control core first.
    List(Vec<usize>),
    /// Not pinned: several nodes share a machine.
    None,
}

/// Timings, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Heartbeat to the leader.
    pub heartbeat_ms: u64,
    /// Shortest Raft election timeout.
    pub election_min_ms: u64,
    /// Longest Raft election timeout.
    pub election_max_ms: u64,
    /// Lease of the owner of a moving partition.
    pub move_lease_ms: u64,
    /// Clock drift allowed over a lease.
    pub clock_drift_ms: u64,
    /// Silence until a node is marked dead.
    pub dead_after_ms: u64,
    /// Silence until a target may promote.
    pub force_promote_after_ms: u64,
    /// The controller's safety-net tick.
    pub planner_tick_ms: u64,
    /// Longest graceful stop.
    pub stop_timeout_ms: u64,
}

impl Timings {
    /// Interval of the Raft leader's own heartbeats, in ms: four fit into the shortest election.
    #[must_use]
    pub fn raft_heartbeat_ms(&self) -> u64 {
        (self.election_min_ms / 4).max(10)
    }
}

/// Settings of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveSettings {
    /// A freeze without progress for this long is cancelled, in ms.
    pub freeze_ttl_ms: u64,
    /// How long a freeze should last, in ms.
    pub freeze_budget_ms: u64,
    /// Largest tail at which a move freezes, in bytes.
    pub lag_bound_max_bytes: u64,
    /// Most catch-up passes.
    pub passes_max: u32,
    /// Moves in flight in the cluster.
    pub max_in_flight: usize,
    /// Moves in flight into one node.
    pub max_in: usize,
    /// Moves in flight out of one node.
    pub max_out: usize,
    /// How segments are sent; `None`: found out at the start.
    pub copy_path: Option<CopyPath>,
}

/// Settings of the storage layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSettings {
    /// Bytes after which a segment is sealed.
    pub segment_bytes: u64,
    /// Memory for recently written records, in bytes a partition; `None` is the storage default.
    pub cache_bytes: Option<u64>,
    /// Most bytes of all ingress WALs of this node; `None`: 10 % of the disk.
    pub wal_cap_bytes: Option<u64>,
    /// Bytes/s at which each shard reads sealed segments again; 0: never.
    pub scrub_bytes_per_s: u64,
    /// From the beginning of one such round to that of the next, in ms.
    pub scrub_every_ms: u64,
    /// Raft entries after which a snapshot takes their place.
    pub snapshot_entries: u64,
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node_id: NodeId,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Where it listens for Cap'n Proto.
    pub listen: SocketAddr,
    /// Where it listens for the bulk channel.
    pub bulk: SocketAddr,
    /// Where the admin port listens, if there is one.
    pub http: Option<SocketAddr>,
    /// `host:port` under which others reach [`Config::listen`].
    pub addr: String,
    /// `host:port` under which others reach [`Config::bulk`].
    pub bulk_addr: String,
    /// `host:port` under which others reach [`Config::http`], or empty.
    pub http_addr: String,
    /// How it becomes a member.
    pub start: Start,
    /// Shard executors.
    pub shards: u32,
    /// CPU placement.
    pub cpus: Cpus,
    /// Timings.
    pub timings: Timings,
    /// Moves.
    pub moves: MoveSettings,
    /// Storage.
    pub storage: StorageSettings,
    /// Fewest voters that a removal may leave.
    pub min_voters: usize,
    /// Learners are promoted below this.
    pub max_voters: usize,
}

impl Config {
    /// Resolves and checks: flags and environment (clap has joined them in `args`), then the TOML
    /// file that they name. Reads that file and resolves host names; changes nothing.
    ///
    /// # Errors
    /// Every problem that was found, together.
    pub fn resolve(args: ServeArgs) -> Result<Self, ConfigErrors> {
        check::resolve(args)
    }
}

#[cfg(test)]
mod tests;
