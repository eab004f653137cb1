//! The command line: picks the command and turns its result into an exit code.
//!
//! What this module keeps true: 0 done, 1 failed, 2 wrong usage; results on standard output,
//! everything else on standard error; client commands see a cluster as any client does.

pub mod args;
pub mod cluster;
pub mod connect;
pub mod consume;
pub mod decommission;
mod departure;
pub mod error;
mod forget;
pub mod interrupt;
pub mod lines;
pub mod moves;
pub mod offline;
pub mod output;
mod precheck;
pub mod produce;
pub mod replay;
pub mod rescue;
pub mod screen;
pub mod topic;
pub mod totals;
pub mod units;
pub mod when;

use args::{Cli, Command, GlobalArgs};
use clap::{CommandFactory, Parser};
use connect::Session;
pub use error::{CliError, CliResult};
use interrupt::Interrupt;
use std::process::ExitCode;

/// Locked memory of a client command's rings, in bytes: it does no file I/O on them, and the least
/// that works lets many commands run beside a node under a small RLIMIT_MEMLOCK.
const IO_MEMORY_BYTES: usize = 256 << 10;

/// Runs the program with the arguments of the process.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error),
    };
    match cli.command {
        Command::Serve(args) => serve(*args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "narad", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Verify(args) => finish(offline::verify(&args, cli.global.json), cli.global.json),
        Command::Dump(args) => finish(offline::dump(&args), cli.global.json),
        Command::RecoverQuorum(args) => {
            let json = cli.global.json;
            finish(rescue::recover_quorum(&args, json), json)
        }
        Command::Salvage(args) => {
            let GlobalArgs { server, json, .. } = cli.global;
            finish(rescue::salvage(&args, server, json), json)
        }
        command => {
            let json = cli.global.json;
            finish(client(cli.global, command), json)
        }
    }
}

/// A wrong command line says so and ends with 2; `--help` and `--version` print and end with 0.
fn not_understood(error: &clap::Error) -> ExitCode {
    let as_json = std::env::args_os().skip(1).any(|arg| arg == "--json");
    if !error.use_stderr() || !as_json {
        error.exit();
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("a wrong command line");
    let message = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    let rest: Vec<&str> = lines.collect();
    finish(Err(CliError::usage(message, rest.join("; "))), true)
}

fn serve(args: crate::config::ServeArgs) -> ExitCode {
    match crate::serve::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("narad: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn finish(result: CliResult, as_json: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report(as_json);
            error.exit_code()
        }
    }
}

/// Runs a command that talks to a node, on an executor of its own.
fn client(global: GlobalArgs, command: Command) -> CliResult {
    if let Command::Replay(args) = &command {
        replay::check(args)?;
    }
    let interrupt = Interrupt::install();
    executor("client")?.run(dispatch(global, command, interrupt))
}

/// An executor for a command.
fn executor(name: &str) -> CliResult<glommio::LocalExecutor> {
    glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .io_memory(IO_MEMORY_BYTES)
        .name(name)
        .make()
        .map_err(|error| {
            CliError::new(
                "executor",
                format!("io_uring cannot be used: {error}"),
                "Linux 5.8 or newer with io_uring allowed is needed; raise the locked memory limit (ulimit -l) to 512 KiB or more",
            )
        })
}

async fn dispatch(global: GlobalArgs, command: Command, mut interrupt: Interrupt) -> CliResult {
    let session = Session::open(&global).await?;
    match command {
        Command::Topic(command) => topic::run(&session, command).await,
        Command::Produce(args) => produce::run(&session, args, &mut interrupt).await,
        Command::Consume(args) => consume::run(&session, args, &mut interrupt).await,
        Command::Replay(args) => replay::run(&session, args, &mut interrupt).await,
        Command::Cluster(command) => cluster::run(&session, command, &mut interrupt).await,
        Command::Serve(_)
        | Command::Completions { .. }
        | Command::Verify(_)
        | Command::Dump(_)
        | Command::RecoverQuorum(_)
        | Command::Salvage(_) => unreachable!("handled before an executor is made"),
    }
}
