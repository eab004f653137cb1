//! Turns what an operator said into a [`Config`], or into all the reasons why not.
//!
//! What this file keeps true: no default hides a mistake (unknown keys, a node that is missing
//! from its own list of founders, ports that collide are told), and each problem says what to do.

use super::place::{advertised, binds, executors, start};
use super::{Config, MoveSettings, ServeArgs, StorageSettings, Timings};
use crate::limits;
use narad_core::defaults;
use narad_core::ids::NodeId;
use narad_wire::bulk::CopyPath;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The flag (its variable and file key have the same name).
    pub flag: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

/// Everything that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigProblem>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration cannot be used:")?;
        for problem in &self.0 {
            write!(f, "\n  {}: {}", problem.flag, problem.message)?;
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Problems(Vec<ConfigProblem>);

impl Problems {
    pub(super) fn add(&mut self, flag: &'static str, message: impl Into<String>) {
        self.0.push(ConfigProblem {
            flag,
            message: message.into(),
        });
    }

    pub(super) fn check(
        &mut self,
        holds: bool,
        flag: &'static str,
        message: impl FnOnce() -> String,
    ) {
        if !holds {
            self.add(flag, message());
        }
    }
}

pub(super) fn resolve(args: ServeArgs) -> Result<Config, ConfigErrors> {
    let mut problems = Problems::default();
    let args = match &args.config {
        None => args,
        Some(path) => {
            let file = read_file(path, &mut problems);
            args.or(file)
        }
    };
    let timings = timings(&args, &mut problems);
    let moves = moves(&args, &timings, &mut problems);
    let storage = storage(&args, &mut problems);
    let (min_voters, max_voters) = voters(&args, &mut problems);
    let node_id = node_id(&args, &mut problems);
    // What is opened below it is opened without a current directory.
    let data_dir = args.data_dir.as_ref().map(|dir| {
        std::path::absolute(dir).unwrap_or_else(|error| {
            problems.add("--data-dir", format!("is not a usable path: {error}"));
            dir.clone()
        })
    });
    if data_dir.is_none() {
        problems.add(
            "--data-dir",
            "is missing: say where this node keeps its data",
        );
    }
    let start = start(&args, &node_id, &mut problems);
    let binds = binds(&args, &mut problems);
    let (shards, cpus) = executors(&args, &mut problems);
    let addrs = binds
        .as_ref()
        .and_then(|binds| advertised(&args, binds, &start, node_id.as_ref(), &mut problems));
    if let (Some(node_id), Some(data_dir), Some(binds), Some(addrs), Some(start), true) = (
        node_id,
        data_dir,
        binds,
        addrs,
        start,
        problems.0.is_empty(),
    ) {
        let (addr, bulk_addr, http_addr) = addrs;
        return Ok(Config {
            node_id,
            data_dir,
            listen: binds.listen,
            bulk: binds.bulk,
            http: binds.http,
            addr,
            bulk_addr,
            http_addr,
            start,
            shards,
            cpus,
            timings,
            moves,
            storage,
            min_voters,
            max_voters,
        });
    }
    Err(ConfigErrors(problems.0))
}

/// What the file says; every key that is wrong is told, and the others count.
fn read_file(path: &Path, problems: &mut Problems) -> ServeArgs {
    let name = path.display();
    let text = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(limits::CONFIG_FILE_MAX_BYTES)
            .read_to_string(&mut text)?;
        Ok(text)
    });
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            problems.add("--config", format!("cannot read {name}: {error}"));
            return ServeArgs::default();
        }
    };
    let table: toml::Table = match toml::from_str(&text) {
        Ok(table) => table,
        Err(error) => {
            problems.add("--config", format!("{name}: {error}"));
            return ServeArgs::default();
        }
    };
    let mut all = ServeArgs::default();
    for (key, value) in table {
        let one = toml::Table::from_iter([(key.clone(), value)]);
        match one.try_into::<ServeArgs>() {
            Ok(one) => all = all.or(one),
            Err(error) => {
                let why = error.message().to_owned();
                problems.add("--config", format!("{name}: {key}: {why}"));
            }
        }
    }
    all
}

fn node_id(args: &ServeArgs, problems: &mut Problems) -> Option<NodeId> {
    let Some(text) = &args.node_id else {
        problems.add(
            "--node-id",
            "is missing: give this node a name that it keeps for ever",
        );
        return None;
    };
    NodeId::parse(text)
        .map_err(|error| problems.add("--node-id", format!("{text:?} {error}")))
        .ok()
}

fn timings(args: &ServeArgs, problems: &mut Problems) -> Timings {
    let t = Timings {
        heartbeat_ms: args.heartbeat_ms.unwrap_or(defaults::HEARTBEAT_MS),
        election_min_ms: args.election_min_ms.unwrap_or(defaults::ELECTION_MIN_MS),
        election_max_ms: args.election_max_ms.unwrap_or(defaults::ELECTION_MAX_MS),
        move_lease_ms: args.move_lease_ms.unwrap_or(defaults::MOVE_LEASE_MS),
        clock_drift_ms: args.clock_drift_ms.unwrap_or(defaults::CLOCK_DRIFT_MS),
        dead_after_ms: args.dead_after_ms.unwrap_or(defaults::DEAD_AFTER_MS),
        force_promote_after_ms: args
            .force_promote_after_ms
            .unwrap_or(defaults::FORCE_PROMOTE_AFTER_MS),
        planner_tick_ms: args.planner_tick_ms.unwrap_or(5_000),
        stop_timeout_ms: args.stop_timeout_ms.unwrap_or(30_000),
    };
    problems.check(t.heartbeat_ms >= 10, "--heartbeat-ms", || {
        "must be 10 or more".into()
    });
    problems.check(t.election_min_ms >= 100, "--election-min-ms", || {
        "must be 100 or more".into()
    });
    problems.check(
        t.election_max_ms > t.election_min_ms,
        "--election-max-ms",
        || format!("must be above --election-min-ms ({})", t.election_min_ms),
    );
    problems.check(
        t.move_lease_ms > t.heartbeat_ms.saturating_mul(2),
        "--move-lease-ms",
        || {
            format!(
                "must be above twice --heartbeat-ms ({}), or one late heartbeat fences an owner",
                t.heartbeat_ms
            )
        },
    );
    problems.check(
        t.move_lease_ms > t.election_max_ms,
        "--move-lease-ms",
        || {
            format!(
                "must be above --election-max-ms ({}), or every election fences owners",
                t.election_max_ms
            )
        },
    );
    problems.check(
        t.clock_drift_ms >= t.move_lease_ms / 100,
        "--clock-drift-ms",
        || "must be at least 1 % of --move-lease-ms: two machines' clocks differ that much".into(),
    );
    problems.check(
        t.dead_after_ms > t.move_lease_ms.saturating_add(t.clock_drift_ms),
        "--dead-after-ms",
        || {
            format!(
                "must be above --move-lease-ms + --clock-drift-ms ({}): an owner has to have \
                 fenced itself before it counts as dead",
                t.move_lease_ms.saturating_add(t.clock_drift_ms)
            )
        },
    );
    problems.check(
        t.force_promote_after_ms > t.dead_after_ms,
        "--force-promote-after-ms",
        || format!("must be above --dead-after-ms ({})", t.dead_after_ms),
    );
    problems.check(t.planner_tick_ms >= 100, "--planner-tick-ms", || {
        "must be 100 or more".into()
    });
    problems.check(t.stop_timeout_ms >= 100, "--stop-timeout-ms", || {
        "must be 100 or more".into()
    });
    for (flag, value) in [
        ("--force-promote-after-ms", t.force_promote_after_ms),
        ("--planner-tick-ms", t.planner_tick_ms),
        ("--stop-timeout-ms", t.stop_timeout_ms),
    ] {
        problems.check(value <= 7 * 86_400_000, flag, || {
            "must be a week or less".into()
        });
    }
    t
}

fn copy_path(args: &ServeArgs, problems: &mut Problems) -> Option<CopyPath> {
    let way = args.copy_path.as_deref().unwrap_or("auto");
    let known = [CopyPath::Splice, CopyPath::PreadSend];
    let chosen = known.into_iter().find(|path| path.as_str() == way);
    problems.check(chosen.is_some() || way == "auto", "--copy-path", || {
        format!("is {way:?}; it can be auto, splice or read-send")
    });
    chosen
}

fn moves(args: &ServeArgs, timings: &Timings, problems: &mut Problems) -> MoveSettings {
    let m = MoveSettings {
        freeze_ttl_ms: args.freeze_ttl_ms.unwrap_or(defaults::FREEZE_TTL_MS),
        freeze_budget_ms: args.freeze_budget_ms.unwrap_or(defaults::FREEZE_BUDGET_MS),
        lag_bound_max_bytes: args
            .lag_bound_max_bytes
            .unwrap_or(defaults::LAG_BOUND_MAX_BYTES),
        passes_max: args.passes_max.unwrap_or(defaults::PASSES_MAX),
        max_in_flight: args
            .max_in_flight_moves
            .unwrap_or(defaults::MAX_IN_FLIGHT_MOVES),
        max_in: args.max_moves_in.unwrap_or(defaults::MAX_MOVES_IN),
        max_out: args.max_moves_out.unwrap_or(defaults::MAX_MOVES_OUT),
        copy_path: copy_path(args, problems),
    };
    problems.check(
        m.freeze_budget_ms >= 1 && m.freeze_budget_ms < m.freeze_ttl_ms,
        "--freeze-budget-ms",
        || {
            format!(
                "must be 1 or more and below --freeze-ttl-ms ({})",
                m.freeze_ttl_ms
            )
        },
    );
    problems.check(
        m.freeze_ttl_ms >= 100 && m.freeze_ttl_ms < timings.force_promote_after_ms,
        "--freeze-ttl-ms",
        || {
            format!(
                "must be 100 or more and below --force-promote-after-ms ({})",
                timings.force_promote_after_ms
            )
        },
    );
    problems.check(
        (4_096..=1 << 30).contains(&m.lag_bound_max_bytes),
        "--lag-bound-max-bytes",
        || "must be 4096 to 1073741824".into(),
    );
    problems.check((1..=1_000).contains(&m.passes_max), "--passes-max", || {
        "must be 1 to 1000".into()
    });
    problems.check(
        (1..=256).contains(&m.max_in_flight),
        "--max-in-flight-moves",
        || "must be 1 to 256".into(),
    );
    for (flag, value) in [("--max-moves-in", m.max_in), ("--max-moves-out", m.max_out)] {
        problems.check((1..=m.max_in_flight).contains(&value), flag, || {
            format!("must be 1 to --max-in-flight-moves ({})", m.max_in_flight)
        });
    }
    m
}

fn storage(args: &ServeArgs, problems: &mut Problems) -> StorageSettings {
    let s = StorageSettings {
        segment_bytes: args.segment_bytes.unwrap_or(defaults::SEGMENT_BYTES),
        cache_bytes: args.cache_bytes,
        wal_cap_bytes: args.wal_cap_bytes,
        scrub_bytes_per_s: args.scrub_bytes_per_s.unwrap_or(limits::SCRUB_BYTES_PER_S),
        scrub_every_ms: args.scrub_every_ms.unwrap_or(limits::SCRUB_EVERY_MS),
        snapshot_entries: args.snapshot_entries.unwrap_or(limits::SNAPSHOT_ENTRIES),
    };
    let (least, most) = limits::SNAPSHOT_ENTRIES_RANGE;
    problems.check(
        (least..=most).contains(&s.snapshot_entries),
        "--snapshot-entries",
        || format!("must be {least} to {most}"),
    );
    problems.check(
        (1 << 20..=16 << 30).contains(&s.segment_bytes),
        "--segment-bytes",
        || "must be 1048576 (1 MiB) to 17179869184 (16 GiB)".into(),
    );
    problems.check(s.scrub_every_ms >= 1_000, "--scrub-every-ms", || {
        "must be 1000 or more".into()
    });
    problems.check(
        s.wal_cap_bytes.is_none_or(|bytes| bytes >= 64 << 20),
        "--wal-cap-bytes",
        || "must be 67108864 (64 MiB) or more".into(),
    );
    s
}

fn voters(args: &ServeArgs, problems: &mut Problems) -> (usize, usize) {
    let min = args.min_voters.unwrap_or(defaults::MIN_VOTERS);
    let max = args.max_voters.unwrap_or(defaults::MAX_VOTERS);
    problems.check((1..=max).contains(&min), "--min-voters", || {
        format!("must be 1 to --max-voters ({max})")
    });
    problems.check((1..=15).contains(&max), "--max-voters", || {
        "must be 1 to 15: every voter slows every commit".into()
    });
    (min, max)
}
