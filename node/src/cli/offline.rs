//! `narad verify` and `narad dump`: looking at the files of a node that does not run.
//!
//! What this file keeps true: nothing on the disk is changed; damage is a failure with exit code 1,
//! a torn tail is not: recovery removes it and no acknowledged record is in it.

use super::args::{DumpArgs, VerifyArgs};
use super::error::{CliError, CliResult};
use super::output::{Out, render, table};
use super::units;
use narad_storage::StorageError;
use narad_storage::offline::{self, LogReport, Report};
use std::path::Path;

/// Runs `narad verify`.
///
/// # Errors
/// [`CliError`] when the directory cannot be read, is none of a node's, or holds damage.
pub fn verify(args: &VerifyArgs, as_json: bool) -> CliResult {
    if !args.dir.is_dir() {
        return Err(CliError::new(
            "file",
            format!("{} is not a directory", args.dir.display()),
            "name a node's data directory (--data-dir), or one below it",
        ));
    }
    let report = offline::verify(&args.dir).map_err(storage)?;
    let known = ["node.json", "partitions", "shards", "raft"];
    if report.logs.is_empty() && !known.iter().any(|name| args.dir.join(name).exists()) {
        return Err(CliError::new(
            "file",
            format!("{} is not a node's data directory", args.dir.display()),
            "name the --data-dir of a node, or the directory of one partition below it",
        ));
    }
    let mut out = Out::new();
    if as_json {
        out.json(&report)?;
    } else {
        out.line(text(&report, &args.dir))?;
    }
    out.flush()?;
    if report.is_clean() {
        return Ok(());
    }
    let damaged = report
        .logs
        .iter()
        .filter(|log| !log.problems.is_empty())
        .count();
    Err(CliError::new(
        "corrupt",
        format!("{damaged} of {} logs are damaged", report.logs.len()),
        "the readable records are still served; keep the directory, and look at the disk (kernel log, SMART)",
    ))
}

/// Runs `narad dump`.
///
/// # Errors
/// [`CliError`] when the file cannot be read or is none of ours.
pub fn dump(args: &DumpArgs) -> CliResult {
    let mut out = Out::new();
    offline::dump(&args.file, out.writer()).map_err(storage)?;
    out.flush()
}

fn storage(error: StorageError) -> CliError {
    if let StorageError::Io { source, .. } = &error
        && source.kind() == std::io::ErrorKind::BrokenPipe
    {
        return CliError::reader_gone();
    }
    CliError::new(
        "storage",
        error.to_string(),
        "check the path, that you may read it, and that this program is not older than the node's",
    )
}

fn text(report: &Report, dir: &Path) -> String {
    if report.logs.is_empty() {
        return "no logs: this node holds no partition and has nothing to deliver".to_owned();
    }
    let heads = [
        "log",
        ">segments",
        ">records",
        ">bytes",
        ">start",
        ">frontier",
        ">end",
        ">damaged",
        ">torn",
    ];
    let mut rows = table(&heads);
    let name = |log: &LogReport| {
        let path = log.path.strip_prefix(dir).unwrap_or(&log.path);
        path.display().to_string()
    };
    for log in &report.logs {
        rows.add_row(vec![
            name(log),
            log.segments.to_string(),
            units::count(log.records),
            units::size(log.bytes),
            log.start.to_string(),
            log.frontier.to_string(),
            log.end.to_string(),
            units::count(log.missing),
            units::size(log.torn_bytes),
        ]);
    }
    let mut text = render(&rows);
    for log in &report.logs {
        for problem in &log.problems {
            text.push_str(&format!("\ndamage: {}: {problem}", name(log)));
        }
        for note in &log.notes {
            text.push_str(&format!("\nnote: {}: {note}", name(log)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named_with_its_log() {
        let report = Report {
            logs: vec![LogReport {
                path: "/data/partitions/t1-p0-e1".into(),
                records: 1_200,
                missing: 3,
                problems: vec!["frame at 4096: checksum".into()],
                ..LogReport::default()
            }],
        };
        let text = text(&report, Path::new("/data"));
        assert!(
            text.contains("damage: partitions/t1-p0-e1: frame at 4096"),
            "{text}"
        );
        assert!(text.contains("1,200"), "{text}");
    }
}
