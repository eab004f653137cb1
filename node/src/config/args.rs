//! What an operator may say: flags, `NARAD_*` variables and the keys of the TOML file are the same
//! list, in this one struct.
//!
//! What this file keeps true: a knob has one name everywhere (`--freeze-ttl-ms`,
//! `NARAD_FREEZE_TTL_MS`, `freeze_ttl_ms`), and a flag beats a variable, which beats the file.

use serde::Deserialize;
use std::path::PathBuf;

macro_rules! serve_args {
    ($($(#[$meta:meta])* $field:ident: $kind:ty,)*) => {
        /// Arguments of `narad serve`. Everything is optional here; [`crate::config::Config`] says
        /// what is missing.
        #[derive(Clone, Debug, Default, clap::Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ServeArgs {
            $($(#[$meta])* pub $field: $kind,)*
        }

        impl ServeArgs {
            /// Takes what is absent here from `file`.
            #[must_use]
            pub fn or(self, file: Self) -> Self {
                Self { $($field: self.$field.or(file.$field),)* }
            }
        }
    };
}

serve_args! {
    /// Id of this node: 1 to 64 letters, digits, '.', '_' or '-'.
    #[arg(long, value_name = "ID", env = "NARAD_NODE_ID")]
    node_id: Option<String>,
    /// Where this node keeps its data.
    #[arg(long, value_name = "DIR", env = "NARAD_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Where clients and peers connect.
    #[arg(long, value_name = "HOST:PORT", env = "NARAD_LISTEN")]
    listen: Option<String>,
    /// Where other nodes fetch partition bytes; default: the port after --listen.
    #[arg(long, value_name = "HOST:PORT", env = "NARAD_BULK")]
    bulk: Option<String>,
    /// Admin port (health, metrics, cluster); default: none.
    #[arg(long, value_name = "HOST:PORT", env = "NARAD_HTTP")]
    http: Option<String>,
    /// Host that others reach this node by, when it is not the one it binds.
    #[arg(long, value_name = "HOST", env = "NARAD_ADVERTISE")]
    advertise: Option<String>,
    /// The founding members, this node among them; the same list on each of them. The first start
    /// waits until all of them run.
    #[arg(long, value_name = "ID=HOST:PORT", value_delimiter = ',', env = "NARAD_PEERS")]
    peers: Option<Vec<String>>,
    /// Any members of a running cluster to join.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', env = "NARAD_JOIN")]
    join: Option<Vec<String>>,
    /// Shard executors; default: one less than the CPUs, at least 1.
    #[arg(long, value_name = "N", env = "NARAD_SHARDS")]
    shards: Option<u32>,
    /// CPUs for the executors, the control core first ("0-3,6"), or "none" to pin nothing.
    #[arg(long, value_name = "LIST|none", env = "NARAD_CPUS")]
    cpus: Option<String>,
    /// A TOML file with any of these settings, by the same names with '_'.
    #[arg(long, value_name = "FILE", env = "NARAD_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Allow to bind beyond loopback: there is no access control, whoever reaches a port may use it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", env = "NARAD_INSECURE")]
    insecure: Option<bool>,
    /// Interval of heartbeats to the leader, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_HEARTBEAT_MS")]
    heartbeat_ms: Option<u64>,
    /// Shortest Raft election timeout, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_ELECTION_MIN_MS")]
    election_min_ms: Option<u64>,
    /// Longest Raft election timeout, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_ELECTION_MAX_MS")]
    election_max_ms: Option<u64>,
    /// How long an answered heartbeat lets the owner of a moving partition append, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_MOVE_LEASE_MS")]
    move_lease_ms: Option<u64>,
    /// Allowance for clock drift between two machines over a lease, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_CLOCK_DRIFT_MS")]
    clock_drift_ms: Option<u64>,
    /// Silence after which a node counts as dead, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_DEAD_AFTER_MS")]
    dead_after_ms: Option<u64>,
    /// Silence after which a target may promote the copy of a dead source, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_FORCE_PROMOTE_AFTER_MS")]
    force_promote_after_ms: Option<u64>,
    /// How often the leader plans when nothing happens, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_PLANNER_TICK_MS")]
    planner_tick_ms: Option<u64>,
    /// How long a graceful stop may take, in ms.
    #[arg(long, value_name = "MS", help_heading = "Timing", env = "NARAD_STOP_TIMEOUT_MS")]
    stop_timeout_ms: Option<u64>,
    /// A freeze without progress for this long is cancelled, in ms.
    #[arg(long, value_name = "MS", help_heading = "Moves", env = "NARAD_FREEZE_TTL_MS")]
    freeze_ttl_ms: Option<u64>,
    /// How long a freeze should last, in ms.
    #[arg(long, value_name = "MS", help_heading = "Moves", env = "NARAD_FREEZE_BUDGET_MS")]
    freeze_budget_ms: Option<u64>,
    /// Largest tail at which a move freezes, in bytes.
    #[arg(long, value_name = "BYTES", help_heading = "Moves", env = "NARAD_LAG_BOUND_MAX_BYTES")]
    lag_bound_max_bytes: Option<u64>,
    /// Most catch-up passes of a move.
    #[arg(long, value_name = "N", help_heading = "Moves", env = "NARAD_PASSES_MAX")]
    passes_max: Option<u32>,
    /// Moves in flight in the whole cluster.
    #[arg(long, value_name = "N", help_heading = "Moves", env = "NARAD_MAX_IN_FLIGHT_MOVES")]
    max_in_flight_moves: Option<usize>,
    /// Moves in flight into one node.
    #[arg(long, value_name = "N", help_heading = "Moves", env = "NARAD_MAX_MOVES_IN")]
    max_moves_in: Option<usize>,
    /// Moves in flight out of one node.
    #[arg(long, value_name = "N", help_heading = "Moves", env = "NARAD_MAX_MOVES_OUT")]
    max_moves_out: Option<usize>,
    /// How segments are sent to other nodes: splice, read-send, or auto (splice where the kernel and the
    /// file system can).
    #[arg(long, value_name = "WAY", help_heading = "Moves", env = "NARAD_COPY_PATH")]
    copy_path: Option<String>,
    /// The cluster is never shrunk below this many voters.
    #[arg(long, value_name = "N", help_heading = "Cluster", env = "NARAD_MIN_VOTERS")]
    min_voters: Option<usize>,
    /// Learners become voters while there are fewer voters than this.
    #[arg(long, value_name = "N", help_heading = "Cluster", env = "NARAD_MAX_VOTERS")]
    max_voters: Option<usize>,
    /// Bytes after which a segment is sealed.
    #[arg(long, value_name = "BYTES", help_heading = "Storage", env = "NARAD_SEGMENT_BYTES")]
    segment_bytes: Option<u64>,
    /// Memory for recently written records, in bytes a partition.
    #[arg(long, value_name = "BYTES", help_heading = "Storage", env = "NARAD_CACHE_BYTES")]
    cache_bytes: Option<u64>,
    /// Most bytes of this node's ingress WALs; default: 10 % of the disk.
    #[arg(long, value_name = "BYTES", help_heading = "Storage", env = "NARAD_WAL_CAP_BYTES")]
    wal_cap_bytes: Option<u64>,
    /// Bytes/s at which each shard reads sealed segments again, to find decay early; 0: never;
    /// default: 8 MiB/s.
    #[arg(long, value_name = "BYTES/S", help_heading = "Storage", env = "NARAD_SCRUB_BYTES_PER_S")]
    scrub_bytes_per_s: Option<u64>,
    /// How long after one round of reading sealed segments again the next begins, counted from beginning to
    /// beginning; default: a day.
    #[arg(long, value_name = "MS", help_heading = "Storage", env = "NARAD_SCRUB_EVERY_MS")]
    scrub_every_ms: Option<u64>,
    /// Changes of the metadata after which a snapshot of it takes their place in Raft's log; default: 4096.
    #[arg(long, value_name = "N", help_heading = "Storage", env = "NARAD_SNAPSHOT_ENTRIES")]
    snapshot_entries: Option<u64>,
}
