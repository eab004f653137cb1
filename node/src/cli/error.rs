//! How a command fails: one sentence that says what happened, one that says what to do next, and
//! the exit code.
//!
//! What this file keeps true: no failure leaves without a hint; "unknown" is never told as "failed".

use narad_wire::error::{ErrorCode, WireError, WireFault, code_is_transient, code_name};
use serde_json::json;
use std::io;
use std::process::ExitCode;

/// A command that did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// A stable name for programs.
    pub code: String,
    /// Whether the command line was at fault (exit code 2 instead of 1).
    pub usage: bool,
    /// Whether the same call may succeed later, or at another node.
    pub transient: bool,
    /// Whether there is nobody left to read our output: end without a word.
    pub quiet: bool,
}

/// What a command gives back.
pub type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    /// A failure with what happened and what to do next.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
            code: code.to_owned(),
            usage: false,
            transient: false,
            quiet: false,
        }
    }

    /// A command line that makes no sense.
    #[must_use]
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            usage: true,
            ..Self::new("usage", message, hint)
        }
    }

    /// A local file that could not be used.
    #[must_use]
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        Self::new(
            "file",
            format!("cannot read {}: {error}", path.display()),
            "check the path and that you may read it",
        )
    }

    /// The person, or the system, ended the command before it was done.
    #[must_use]
    pub fn interrupted(so_far: &str, hint: impl Into<String>) -> Self {
        Self::new("interrupted", format!("interrupted; {so_far}"), hint)
    }

    /// The reader of our output has gone away.
    #[must_use]
    pub fn reader_gone() -> Self {
        Self {
            quiet: true,
            ..Self::new(
                "reader_gone",
                "nobody reads the output any more",
                "nothing to do",
            )
        }
    }

    /// The exit code that goes with it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.usage { 2 } else { u8::from(!self.quiet) })
    }

    /// Prints it to standard error.
    pub fn report(&self, as_json: bool) {
        if self.quiet {
            return;
        }
        if as_json {
            let body =
                json!({"error": {"code": self.code, "message": self.message, "hint": self.hint}});
            eprintln!("{body}");
        } else {
            eprintln!("narad: {}\n  hint: {}", self.message, self.hint);
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::reader_gone();
        }
        Self::new(
            "output",
            format!("cannot write the output: {error}"),
            "check the disk or pipe that the output goes to",
        )
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::new(
                "output",
                format!("cannot print as JSON: {error}"),
                "leave --json out",
            ),
        }
    }
}

impl From<WireFault> for CliError {
    fn from(fault: WireFault) -> Self {
        let hint = if fault.hint.is_empty() {
            default_hint(fault.code).to_owned()
        } else {
            fault.hint
        };
        Self {
            transient: code_is_transient(fault.code),
            ..Self::new(code_name(fault.code), fault.message, hint)
        }
    }
}

impl From<WireError> for CliError {
    fn from(error: WireError) -> Self {
        let (message, transient) = (error.to_string(), error.is_transient());
        let told = match error {
            WireError::Fault(fault) => Self::from(fault),
            WireError::Connect { addr, message, .. } => Self::new(
                "connect",
                format!("cannot connect to {addr}: {message}"),
                "check that the node runs, and name the right one: --server HOST:PORT or NARAD_SERVER",
            ),
            WireError::Timeout { .. } => Self::new(
                "timeout",
                message,
                "a change may have happened all the same: look before repeating it, or give it longer with --timeout",
            ),
            WireError::Disconnected { .. } => Self::new(
                "disconnected",
                message,
                "a change may have happened all the same: look before repeating it, at this node or another",
            ),
            WireError::Protocol { .. } => Self::new(
                "protocol",
                message,
                "check that --server names a narad node's --listen address and that the versions match",
            ),
        };
        Self { transient, ..told }
    }
}

/// What to do about a code whose sender gave no advice.
fn default_hint(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Ok | ErrorCode::Invalid | ErrorCode::Unsupported => {
            "check the command with --help; the node may be of another version"
        }
        ErrorCode::UnknownTopic => {
            "narad topic list shows the topics; narad topic create makes one"
        }
        ErrorCode::UnknownPartition => "narad topic describe TOPIC shows the partitions",
        ErrorCode::TopicExists => "choose another name, or narad topic describe it",
        ErrorCode::TooLarge => "send smaller records; narad topic describe shows the limit",
        ErrorCode::Busy | ErrorCode::Frozen | ErrorCode::Unavailable => {
            "try again shortly; narad cluster members shows who is alive"
        }
        ErrorCode::DiskFull => "free space on the node's disk or add a node, then try again",
        ErrorCode::NotOwner | ErrorCode::NotLeader => "try again; the cluster is changing",
        ErrorCode::Closed | ErrorCode::Internal | ErrorCode::Corrupt => {
            "look into the node's log; narad verify checks its files while it is stopped"
        }
        ErrorCode::StaleLease => "the record will be delivered again; use a longer --visibility-ms",
        ErrorCode::UnknownOutcome | ErrorCode::Timeout => {
            "it may have happened: look before repeating it"
        }
        ErrorCode::Refused => {
            "narad cluster members and narad cluster plan show what stands against it"
        }
        ErrorCode::NotMember => "narad cluster members shows who belongs to the cluster",
        ErrorCode::Dead => "start the node again; its partitions wait on its disk",
        ErrorCode::ShuttingDown => "use another node: --server HOST:PORT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_hint_and_a_code() {
        let faults = [
            ErrorCode::UnknownTopic,
            ErrorCode::Refused,
            ErrorCode::Internal,
        ];
        for code in faults {
            let error = CliError::from(WireFault::new(code, "it went wrong"));
            assert_eq!(error.code, code_name(code));
            assert!(!error.hint.is_empty());
        }
        let given = CliError::from(WireFault::new(ErrorCode::Busy, "full").hint("wait a little"));
        assert_eq!(given.hint, "wait a little");
    }

    #[test]
    fn a_gone_reader_is_no_failure() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(error.quiet);
        assert_eq!(
            format!("{:?}", error.exit_code()),
            format!("{:?}", ExitCode::SUCCESS)
        );
    }
}
