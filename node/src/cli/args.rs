//! The command line: every command, option and its help text.
//!
//! What this file keeps true: names and meanings here are an interface that scripts rely on; they
//! are only added to. Nothing here talks to a node.

use super::units::{parse_rate, parse_size};
use super::when::parse_time;
use crate::config::ServeArgs;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Narad: a durable work queue whose partitions move between machines while it runs.
#[derive(Debug, Parser)]
#[command(
    name = "narad",
    version,
    about,
    max_term_width = 100,
    propagate_version = true
)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct GlobalArgs {
    /// Nodes to ask, HOST:PORT[,HOST:PORT…]; the first that answers is used
    #[arg(
        long,
        global = true,
        env = "NARAD_SERVER",
        value_delimiter = ',',
        default_value = "127.0.0.1:7420",
        value_name = "HOST:PORT,…"
    )]
    pub server: Vec<String>,
    /// Machine-readable output: JSON, one document or one line a record
    #[arg(long, global = true)]
    pub json: bool,
    /// Seconds to wait for the answer to one call
    #[arg(long, global = true, default_value_t = 15, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Create, list, describe and delete topics
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Append records: standard input, one a line, unless --file or --count says otherwise
    Produce(ProduceArgs),
    /// Lease records, print them one a line, and acknowledge what was printed
    Consume(ConsumeArgs),
    /// Print a partition's records from an offset, without leases
    Replay(ReplayArgs),
    /// See and change the cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Check the files of a node that does not run; changes nothing
    Verify(VerifyArgs),
    /// Print the frames of one segment or WAL file; changes nothing
    Dump(DumpArgs),
    /// Give a cluster whose quorum is lost for good a new one, from the disk of a survivor that is stopped
    RecoverQuorum(RecoverQuorumArgs),
    /// Hand what the disk of a node that was given up still holds to the cluster
    Salvage(SalvageArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `narad topic`.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic
    Create(TopicCreateArgs),
    /// List the topics
    List,
    /// Show a topic's settings and where its partitions are
    Describe {
        /// The topic
        name: String,
    },
    /// Change settings of a topic while it is used; what is not named stays
    #[command(visible_alias = "set")]
    Alter(TopicAlterArgs),
    /// Delete a topic and all its records
    Delete {
        /// The topic
        name: String,
    },
}

/// `narad topic create`.
#[derive(Debug, Args)]
pub struct TopicCreateArgs {
    /// Name of the new topic
    pub name: String,
    /// Number of partitions, fixed for its life
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub partitions: u32,
    /// Topic that feeds this one
    #[arg(long, value_name = "TOPIC")]
    pub parent: Option<String>,
    /// Its settings
    #[command(flatten)]
    pub settings: TopicSettingArgs,
}

/// `narad topic alter`.
#[derive(Debug, Args)]
pub struct TopicAlterArgs {
    /// The topic
    pub name: String,
    /// Its settings
    #[command(flatten)]
    pub settings: TopicSettingArgs,
}

/// Settings of a topic; 0 or none takes one back to its default.
#[derive(Debug, Args)]
pub struct TopicSettingArgs {
    /// How long a delivered record stays invisible, in ms (default: 30000)
    #[arg(long, value_name = "MS")]
    pub visibility_ms: Option<u64>,
    /// Delete records older than this, in ms (default: keep all)
    #[arg(long, value_name = "MS")]
    pub retention_ms: Option<u64>,
    /// Keep at most so much a partition, as in 10GiB (default: keep all)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub retention_bytes: Option<u64>,
    /// Largest record, key and value, as in 64KiB (1MiB is the default and the most; it can only be lowered)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_record_bytes: Option<u64>,
    /// Deliveries after which a record goes to the dead-letter topic (default: no limit)
    #[arg(long, value_name = "N")]
    pub max_deliveries: Option<u32>,
    /// The dead-letter topic; "" for none
    #[arg(long, value_name = "TOPIC")]
    pub dead_letter: Option<String>,
    /// Records of a partition that are out at a time (default: 1024)
    #[arg(long, value_name = "N")]
    pub max_leases: Option<u32>,
    /// Records of a partition acked out of order before nothing fresh follows (default: 1024)
    #[arg(long, value_name = "N")]
    pub max_acked_ahead: Option<u32>,
}

/// `narad produce`.
#[derive(Debug, Args)]
pub struct ProduceArgs {
    /// The topic
    pub topic: String,
    /// Read records from this file instead of standard input, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub file: Option<PathBuf>,
    /// Key of every record; records of one key go to one partition
    #[arg(long, value_name = "KEY", conflicts_with = "partition")]
    pub key: Option<String>,
    /// Partition to append to; without it keys or the node decide
    #[arg(long, value_name = "P")]
    pub partition: Option<u32>,
    /// Produce so many generated records instead of reading lines
    #[arg(long, value_name = "N", requires = "size")]
    pub count: Option<u64>,
    /// Bytes of each generated record, as in 1KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "count")]
    pub size: Option<u64>,
    /// Produce no faster than this, as in 2MiB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
}

/// `narad consume`.
#[derive(Debug, Args)]
pub struct ConsumeArgs {
    /// The topic
    pub topic: String,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Do not acknowledge: the records are given back and delivered again
    #[arg(long)]
    pub no_ack: bool,
    /// Go on waiting for new records
    #[arg(long)]
    pub follow: bool,
    /// How long the leases last, in ms (default: the topic's)
    #[arg(long, value_name = "MS")]
    pub visibility_ms: Option<u32>,
}

/// `narad replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The topic
    pub topic: String,
    /// The partition
    #[arg(long, value_name = "P")]
    pub partition: u32,
    /// First offset
    #[arg(long, value_name = "N", required_unless_present = "from_time")]
    pub from: Option<u64>,
    /// First record time: as 2026-11-29T14:30:00Z, as ms since 1970, or as an age like 15m or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub from_time: Option<u64>,
    /// Offset before which to stop (default: the end as it is when reached)
    #[arg(long, value_name = "M")]
    pub to: Option<u64>,
}

/// `narad cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Members: status, drain flag, owned partitions and moves
    Members(MembersArgs),
    /// Running and latest finished moves
    Moves(MovesArgs),
    /// What the planner would move now, and what holds it back
    Plan,
    /// Move one partition to a node
    Move {
        /// Which, as TOPIC/P
        partition: PartitionName,
        /// The new owner's node id
        #[arg(long, value_name = "ID")]
        to: String,
    },
    /// Cancel the move of a partition; while rebalancing is not paused another one may begin at once
    CancelMove {
        /// Which, as TOPIC/P
        partition: PartitionName,
    },
    /// Drain a node off and remove it from the cluster
    Decommission(DecommissionArgs),
    /// Give up a dead node that never comes back; without --accept-loss only show what is lost
    Forget {
        /// The node's id
        node: String,
        /// Do it: its partitions begin anew, empty, on other nodes
        #[arg(long)]
        accept_loss: bool,
        /// Only while it has been marked dead this many times, as the list without --accept-loss said
        #[arg(long, requires = "accept_loss", value_name = "N")]
        deaths: Option<u64>,
    },
    /// Start no more moves; running ones go on
    Pause,
    /// Balance again
    Resume,
    /// Show or set how fast copies are
    Throttle {
        /// A rate of each node as in 50MiB/s, unlimited, or adaptive (the default: copies yield while produce
        /// suffers and take the rest); without it the limit is shown
        #[arg(value_name = "RATE|unlimited|adaptive", value_parser = parse_limit)]
        rate: Option<Limit>,
    },
}

/// A limit on copies as a person says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Each node adapts it to its own produce latency.
    Adaptive,
    /// So many bytes/s a node; 0: none.
    Fixed(u64),
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text.trim().eq_ignore_ascii_case("adaptive") {
        return Ok(Limit::Adaptive);
    }
    parse_rate(text).map(Limit::Fixed)
}

/// `narad cluster members`.
#[derive(Debug, Args)]
pub struct MembersArgs {
    /// Show them anew every second until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// `narad cluster moves`.
#[derive(Debug, Args)]
pub struct MovesArgs {
    /// Show the finished moves with the parts of their freezes
    #[arg(long, conflicts_with_all = ["watch", "wait"])]
    pub history: bool,
    /// Show the moves anew every second until interrupted
    #[arg(long, conflicts_with = "wait")]
    pub watch: bool,
    /// End when nothing moves and the planner wants to move nothing
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    pub for_seconds: Option<u64>,
}

/// `narad cluster decommission`.
#[derive(Debug, Args)]
pub struct DecommissionArgs {
    /// The node's id
    pub node: String,
    /// Take the drain flag away: the node stays
    #[arg(long, conflicts_with_all = ["wait", "dry_run"])]
    pub cancel: bool,
    /// Show progress and end when the node is out, or say what holds it
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// Only show what would be moved where
    #[arg(long)]
    pub dry_run: bool,
    /// Start only if nothing is known that keeps it from ending until somebody does something about it
    #[arg(long, conflicts_with_all = ["cancel", "dry_run"])]
    pub if_possible: bool,
    /// Do not ask before starting what cannot end as things are
    #[arg(long, conflicts_with_all = ["cancel", "dry_run", "if_possible"])]
    pub yes: bool,
}

/// `narad recover-quorum`.
#[derive(Debug, Args)]
pub struct RecoverQuorumArgs {
    /// The data directory of the survivor
    pub dir: PathBuf,
    /// Do it: changes of the metadata that only the lost voters had are lost
    #[arg(long)]
    pub accept_loss: bool,
}

/// `narad salvage`.
#[derive(Debug, Args)]
pub struct SalvageArgs {
    /// The data directory of the node that was given up
    pub dir: PathBuf,
}

/// `narad verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// A node's data directory, or any directory inside it
    pub dir: PathBuf,
}

/// `narad dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// A segment (.seg) or WAL file
    pub file: PathBuf,
}

/// A partition as a person names it: `TOPIC/P`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionName {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub index: u32,
}

impl std::str::FromStr for PartitionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("'{text}' is not TOPIC/P, as in orders/3");
        let (topic, index) = text.rsplit_once('/').ok_or_else(wrong)?;
        if topic.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            topic: topic.to_owned(),
            index: index.parse().map_err(|_| wrong())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn partition_names() {
        let name: PartitionName = "orders/3".parse().expect("a partition");
        assert_eq!((name.topic.as_str(), name.index), ("orders", 3));
        for wrong in ["orders", "orders/", "/3", "orders/x", "orders/-1", ""] {
            assert!(wrong.parse::<PartitionName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_and_a_partition_exclude_each_other() {
        let wrong = ["narad", "produce", "t", "--key", "k", "--partition", "1"];
        assert!(Cli::try_parse_from(wrong).is_err());
        let right = [
            "narad", "produce", "t", "--count", "5", "--size", "1KiB", "--rate", "2MiB/s",
        ];
        let Command::Produce(args) = Cli::try_parse_from(right).expect("parses").command else {
            panic!("not a produce");
        };
        assert_eq!(
            (args.count, args.size, args.rate),
            (Some(5), Some(1024), Some(2 << 20))
        );
    }
}
