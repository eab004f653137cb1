//! `narad recover-quorum` and `narad salvage`: what is done with the disk of a node that does not run,
//! on the worst day.
//!
//! What this file keeps true: without the word that accepts a loss nothing is changed, and what would be
//! done and lost is said; a directory that a node runs on is refused.

use super::args::{RecoverQuorumArgs, SalvageArgs};
use super::error::{CliError, CliResult};
use super::output::Out;
use super::units;
use crate::control;
use crate::data_dir::{self, DataDir, DataDirError};
use crate::raft::rescue::{self, RescueError, Standing};
use crate::salvage::{self, SalvageError, What};
use narad_core::ids::{RaftIndex, RaftTerm, RecoveryId};
use narad_core::meta::{Command, LogPoint, Recovery};
use serde_json::json;
use std::path::Path;

fn hold(path: &Path) -> CliResult<DataDir> {
    data_dir::hold(path).map_err(|error| {
        let hint = match &error {
            DataDirError::InUse { .. } => "stop the node first",
            _ => "name the directory that the node ran on (--data-dir)",
        };
        CliError::new("dataDir", error.to_string(), hint)
    })
}

/// Runs `narad recover-quorum`.
///
/// # Errors
/// [`CliError`]; then nothing was changed.
pub fn recover_quorum(args: &RecoverQuorumArgs, as_json: bool) -> CliResult {
    let dir = hold(&args.dir)?;
    let id = dir.node_id().as_str().to_owned();
    let raft = dir.path().join("raft");
    let root = dir.path().to_path_buf();
    let accept = args.accept_loss;
    let executor = super::executor("recover")?;
    let standing = executor.run(async {
        narad_storage::prepare_executor(&root)
            .await
            .map_err(|error| CliError::new("storage", error.to_string(), "look at the disk"))?;
        let done = if accept {
            rescue::make_only_voter(&raft, &id, recovered).await
        } else {
            rescue::look(&raft, &id).await
        };
        done.map_err(refused)
    })?;
    let mut out = Out::new();
    if as_json {
        out.json(&json!({
            "node": id,
            "last_term": standing.last_term,
            "last_index": standing.last_index,
            "voters": standing.members.voters.keys().collect::<Vec<_>>(),
            "learners": standing.members.learners.keys().collect::<Vec<_>>(),
            "done": accept,
        }))?;
    } else {
        out.line(text(&id, &standing, accept))?;
    }
    out.flush()
}

/// What the log says about its being cut.
fn recovered(standing: &Standing) -> Vec<u8> {
    let kept = LogPoint {
        term: RaftTerm(standing.last_term),
        index: RaftIndex(standing.last_index),
    };
    let id = RecoveryId(rand::random::<u64>().max(1));
    control::encode(&Command::Recovered {
        recovery: Recovery { id, kept },
    })
}

fn refused(error: RescueError) -> CliError {
    let hint = match &error {
        RescueError::Store(_) | RescueError::Io(_) => "narad verify checks the directory",
        RescueError::Empty | RescueError::NotMember(_) => "use a surviving voter's directory",
        RescueError::Alone => "a single voter needs nobody else",
    };
    CliError::new("refused", error.to_string(), hint)
}

fn text(id: &str, standing: &Standing, done: bool) -> String {
    let voters: Vec<&str> = standing.members.voters.keys().map(String::as_str).collect();
    let facts = format!(
        "{id}: log ends at term {}, index {}; voters {}",
        standing.last_term,
        standing.last_index,
        voters.join(", ")
    );
    let needed = voters.len() / 2 + 1;
    if done {
        return format!(
            "{facts}\n{id} is the only voter now: start it, then the other survivors, then give the lost \
             nodes up with narad cluster forget. A survivor that had more than {id} ends when it finds out, and \
             keeps what it has. Never do this on a second node of the cluster"
        );
    }
    format!(
        "{facts}\nnothing was changed. A quorum needs {needed} of these {} voters: if so many can be started, \
         start them instead.\nOtherwise look at every survivor like this, take the one with the highest term, \
         then index, and on it alone\nadd --accept-loss: changes of the metadata that only the lost voters had \
         are lost",
        voters.len()
    )
}

/// Runs `narad salvage`.
///
/// # Errors
/// [`CliError`]; what was not handed over is still on the disk.
pub fn salvage(args: &SalvageArgs, servers: Vec<String>, as_json: bool) -> CliResult {
    let dir = hold(&args.dir)?;
    let handed = salvage::run(&dir, servers, What::Everything).map_err(|error| {
        let hint = match &error {
            SalvageError::Storage(_) => "narad verify tells what is damaged",
            SalvageError::Cluster(_) => "name living nodes with --server",
            SalvageError::NotRemoved { .. } => {
                "name nodes of the cluster that it was a member of; if it is a member still, start it, or \
                 give it up with narad cluster forget"
            }
            SalvageError::Refused { .. } => "raise the topic's limit, then run it again",
            SalvageError::System(_) => "see the log",
        };
        CliError::new("salvage", error.to_string(), hint)
    })?;
    let mut out = Out::new();
    if as_json {
        out.json(&json!({
            "records": handed.records,
            "unwanted": handed.unwanted,
            "damaged": handed.damaged,
        }))?;
    } else {
        out.line(format_args!(
            "{} records handed to the cluster, {} of deleted topics left, {} lost to damage",
            units::count(handed.records),
            units::count(handed.unwanted),
            units::count(handed.damaged)
        ))?;
    }
    out.flush()
}
