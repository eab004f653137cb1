//! The `narad-bench` program.
//!
//! What this file keeps true: 0 when the run is good, 1 when a record is lost or the run failed, 2
//! for wrong usage.

use clap::{Parser, Subcommand};
use narad_bench::check::{self, CheckArgs};
use narad_bench::copy::{self, CopyArgs};
use narad_bench::flow::{self, FlowArgs};
use narad_bench::freeze::{self, FreezeArgs};
use narad_bench::produce::{self, ProduceArgs};
use narad_bench::report::Outcome;
use narad_bench::rig::echo::{self, EchoKind};
use narad_bench::servers::Servers;
use narad_bench::stop::Stop;
use narad_bench::storage::{self, StorageArgs};
use narad_bench::throttle::{self, ThrottleArgs};
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

/// The node's, for what is measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// The node's, for the clients that load it; as `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

/// Measures and checks a Narad cluster from outside.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    /// Machine-readable output: one JSON document
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load on a running cluster, with proof by content that nothing is lost
    Check {
        /// Nodes to use in turn, HOST:PORT[,HOST:PORT…]
        #[arg(
            long,
            env = "NARAD_SERVER",
            value_delimiter = ',',
            default_value = "127.0.0.1:7420"
        )]
        server: Vec<String>,
        #[command(flatten)]
        args: CheckArgs,
    },
    /// Freeze of moves against W/B and size, on a cluster of its own
    Freeze(FreezeArgs),
    /// A partition log on this disk against a raw io_uring loop, with bars
    Storage(StorageArgs),
    /// Produce against a bare echo and the bare disk, with bars
    Produce(ProduceArgs),
    /// Produce, consume and ack together, with a bar; and what moves cost others
    Flow(FlowArgs),
    /// What moves cost others while copies adapt to them, with bars
    Throttle(ThrottleArgs),
    /// Answer calls with the bytes that came, until standard input ends: one side of produce
    #[command(hide = true)]
    Echo {
        /// With the libraries' own connection code and rings
        #[arg(long)]
        bare: bool,
    },
    /// Bandwidth and processor time of copies, beside what disk, wire and a bare copy give
    Copy(CopyArgs),
}

fn main() -> ExitCode {
    narad_storage::memory::keep_freed();
    let cli = Cli::parse();
    let stop = Stop::install();
    if matches!(cli.command, Command::Echo { bare: true }) {
        narad_wire::runtime::rings::make_as_asked();
    }
    let executor = glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .io_memory(256 << 10)
        .name("bench")
        .make();
    let executor = match executor {
        Ok(executor) => executor,
        Err(error) => {
            eprintln!(
                "narad-bench: io_uring cannot be used: {error}; raise ulimit -l to 512 KiB or more"
            );
            return ExitCode::FAILURE;
        }
    };
    executor.run(async move {
        match cli.command {
            Command::Check { server, args } => {
                let servers = Rc::new(Servers::new(&server));
                match check::run(&args, servers, &stop).await {
                    Ok(outcome) => {
                        print(cli.json, &outcome.json(), || outcome.text());
                        ExitCode::from(u8::from(!outcome.is_good()))
                    }
                    Err(error) => failed(&error),
                }
            }
            Command::Freeze(args) => match freeze::run(&args, &stop).await {
                Ok(outcome) => keep(cli.json, args.check, args.out.as_deref(), &outcome),
                Err(error) => failed(&error),
            },
            Command::Copy(args) => match copy::run(&args, &stop).await {
                Ok(outcome) => keep(cli.json, args.check, args.out.as_deref(), &outcome),
                Err(error) => failed(&error),
            },
            Command::Produce(args) => match produce::run(&args, &stop).await {
                Ok(outcome) => {
                    print(cli.json, &outcome.report.json(), || outcome.text());
                    ExitCode::from(u8::from(args.check && !outcome.report.is_good()))
                }
                Err(error) => failed(&error),
            },
            Command::Flow(args) => match flow::run(&args, &stop).await {
                Ok(report) => {
                    print(cli.json, &report.json(), || flow::text(&report));
                    ExitCode::from(u8::from(args.check && !report.is_good()))
                }
                Err(error) => failed(&error),
            },
            Command::Throttle(args) => match throttle::run(&args, &stop).await {
                Ok(report) => {
                    print(cli.json, &report.json(), || report.text());
                    ExitCode::from(u8::from(args.check && !report.is_good()))
                }
                Err(error) => failed(&error),
            },
            Command::Echo { bare } => match echo::serve(EchoKind::of(bare)).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(&error),
            },
            Command::Storage(args) => match storage::run(&args, &stop).await {
                Ok(report) => {
                    print(cli.json, &report.json(), || report.text());
                    ExitCode::from(u8::from(args.check && !report.is_good()))
                }
                Err(error) => failed(&error),
            },
        }
    })
}

/// Prints an outcome, and saves it where it is wanted.
fn keep(as_json: bool, check: bool, out: Option<&Path>, outcome: &impl Outcome) -> ExitCode {
    print(as_json, &outcome.report().json(), || outcome.text());
    if let Some(dir) = out
        && let Err(error) = outcome.save(dir)
    {
        return failed(&error);
    }
    let short = check && !outcome.report().is_good();
    ExitCode::from(u8::from(outcome.lost() > 0 || short))
}

fn print(as_json: bool, value: &Value, text: impl FnOnce() -> String) {
    if as_json {
        println!("{value}");
    } else {
        println!("{}", text());
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("narad-bench: {error}");
    ExitCode::FAILURE
}
