//! What can go wrong on the way to another process, as types.
//!
//! What this file keeps true: an error tells whether the call may have taken effect all the same
//! ([`WireError::outcome_unknown`]); "unknown" is never reported as "failed".

use std::fmt;
use std::time::Duration;

pub use narad_schema::common_capnp::ErrorCode;

/// The name of a code, as in the interface files.
#[must_use]
pub fn code_name(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Ok => "ok",
        ErrorCode::Invalid => "invalid",
        ErrorCode::UnknownTopic => "unknownTopic",
        ErrorCode::UnknownPartition => "unknownPartition",
        ErrorCode::TopicExists => "topicExists",
        ErrorCode::TooLarge => "tooLarge",
        ErrorCode::Busy => "busy",
        ErrorCode::DiskFull => "diskFull",
        ErrorCode::NotOwner => "notOwner",
        ErrorCode::Frozen => "frozen",
        ErrorCode::Closed => "closed",
        ErrorCode::StaleLease => "staleLease",
        ErrorCode::NotLeader => "notLeader",
        ErrorCode::UnknownOutcome => "unknownOutcome",
        ErrorCode::Unavailable => "unavailable",
        ErrorCode::Refused => "refused",
        ErrorCode::Timeout => "timeout",
        ErrorCode::NotMember => "notMember",
        ErrorCode::Unsupported => "unsupported",
        ErrorCode::Internal => "internal",
        ErrorCode::Dead => "dead",
        ErrorCode::ShuttingDown => "shuttingDown",
        ErrorCode::Corrupt => "corrupt",
    }
}

/// Whether a code leaves open if the change happened.
#[must_use]
pub fn code_outcome_unknown(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UnknownOutcome | ErrorCode::Timeout | ErrorCode::Internal
    )
}

/// Whether the same call may succeed later, or elsewhere, as it is.
#[must_use]
pub fn code_is_transient(code: ErrorCode) -> bool {
    match code {
        ErrorCode::Busy
        | ErrorCode::DiskFull
        | ErrorCode::NotOwner
        | ErrorCode::Frozen
        | ErrorCode::Closed
        | ErrorCode::NotLeader
        | ErrorCode::UnknownOutcome
        | ErrorCode::Unavailable
        | ErrorCode::Timeout
        | ErrorCode::Internal
        | ErrorCode::ShuttingDown => true,
        ErrorCode::Ok
        | ErrorCode::Invalid
        | ErrorCode::UnknownTopic
        | ErrorCode::UnknownPartition
        | ErrorCode::TopicExists
        | ErrorCode::TooLarge
        | ErrorCode::StaleLease
        | ErrorCode::Refused
        | ErrorCode::NotMember
        | ErrorCode::Dead
        | ErrorCode::Unsupported
        | ErrorCode::Corrupt => false,
    }
}

/// A typed refusal, as one node answers it to another or to a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct WireFault {
    /// The stable code.
    pub code: ErrorCode,
    /// One sentence for a person: what happened.
    pub message: String,
    /// One sentence: what to do next. May be empty.
    pub hint: String,
    /// Wait this long before asking again, in ms; 0 is no advice.
    pub retry_after_ms: u32,
    /// Extra facts as JSON; may be empty.
    pub detail: String,
    /// `host:port` of the node to ask instead; may be empty.
    pub node: String,
}

impl fmt::Display for WireFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, code_name(self.code))?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        if !self.node.is_empty() {
            write!(f, " [ask {}]", self.node)?;
        }
        Ok(())
    }
}

impl WireFault {
    /// A fault with a code and a sentence that says what happened.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: String::new(),
            retry_after_ms: 0,
            detail: String::new(),
            node: String::new(),
        }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds how long to wait before asking again, in ms.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u32) -> Self {
        self.retry_after_ms = ms;
        self
    }

    /// Adds machine-readable facts (JSON).
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Adds the `host:port` to ask instead.
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = node.into();
        self
    }
}

/// Why a call gave no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WireError {
    /// No connection could be made: nothing was sent.
    #[error(
        "cannot connect to {addr}: {message}; check that the node runs and the address is right"
    )]
    Connect {
        /// Where to.
        addr: String,
        /// What the system said.
        message: String,
        /// When the next attempt makes sense, in ms; 0: at once.
        retry_after_ms: u32,
    },
    /// The deadline passed. For a change this means: unknown.
    #[error("no answer within {after_ms} ms")]
    Timeout {
        /// The deadline, in ms.
        after_ms: u64,
    },
    /// The connection ended before the answer. For a change this means: unknown.
    #[error("the connection ended before the answer: {message}")]
    Disconnected {
        /// What the RPC layer said.
        message: String,
    },
    /// The other side answered with a typed error.
    #[error(transparent)]
    Fault(#[from] WireFault),
    /// The answer could not be understood, or the other side failed without a typed error.
    #[error("unexpected answer: {message}; the two programs may be of different versions")]
    Protocol {
        /// What was wrong.
        message: String,
    },
}

impl WireError {
    /// A timeout after `deadline`.
    #[must_use]
    pub fn timeout(deadline: Duration) -> Self {
        Self::Timeout {
            after_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Whether a change may have happened although the call has no result. Ask before undoing.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Connect { .. } => false,
            Self::Timeout { .. } | Self::Disconnected { .. } | Self::Protocol { .. } => true,
            Self::Fault(fault) => code_outcome_unknown(fault.code),
        }
    }

    /// Whether the same call may succeed later or at another node.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Disconnected { .. } => true,
            Self::Protocol { .. } => false,
            Self::Fault(fault) => code_is_transient(fault.code),
        }
    }

    /// Whether the connection that the call used is of no more use.
    #[must_use]
    pub fn connection_lost(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Disconnected { .. })
    }

    /// The typed error, if the other side gave one.
    #[must_use]
    pub fn fault(&self) -> Option<&WireFault> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }

    /// Its code, if the other side gave one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.fault().map(|fault| fault.code)
    }

    /// As a fault to hand on to somebody who asked us: what a lost connection or a deadline on the
    /// way to a third node means for them.
    #[must_use]
    pub fn into_fault(self) -> WireFault {
        match self {
            Self::Fault(fault) => fault,
            Self::Connect { retry_after_ms, .. } => {
                WireFault::new(ErrorCode::Unavailable, self.to_string())
                    .retry_after_ms(retry_after_ms.max(1))
            }
            Self::Timeout { .. } | Self::Disconnected { .. } => {
                WireFault::new(ErrorCode::UnknownOutcome, self.to_string())
                    .hint("it may have taken effect; look before doing it again")
            }
            Self::Protocol { .. } => WireFault::new(ErrorCode::Internal, self.to_string()),
        }
    }
}

impl From<capnp::Error> for WireError {
    fn from(error: capnp::Error) -> Self {
        use capnp::ErrorKind as K;
        let remote = error.extra.starts_with("remote exception:");
        match error.kind {
            // The library reports ETIMEDOUT of a dead socket as "overloaded" and a stream that ends
            // inside a message as "premature end"; both are the end of the connection.
            K::Disconnected | K::PrematureEndOfFile => Self::Disconnected {
                message: error.to_string(),
            },
            K::Overloaded if !remote => Self::Disconnected {
                message: error.to_string(),
            },
            K::Overloaded => Self::Fault(
                WireFault::new(ErrorCode::Busy, error.to_string()).hint("try again shortly"),
            ),
            K::Unimplemented => Self::Fault(
                WireFault::new(ErrorCode::Unsupported, error.to_string())
                    .hint("the other node runs an older version; upgrade it first"),
            ),
            _ => Self::Protocol {
                message: error.to_string(),
            },
        }
    }
}

impl From<std::str::Utf8Error> for WireError {
    fn from(error: std::str::Utf8Error) -> Self {
        Self::Protocol {
            message: format!("text is not UTF-8: {error}"),
        }
    }
}

impl From<capnp::NotInSchema> for WireError {
    fn from(error: capnp::NotInSchema) -> Self {
        Self::Protocol {
            message: format!("unknown union member or code {}", error.0),
        }
    }
}
