//! The typed errors that the data plane answers, each with what happened and what to do next.
//!
//! What this file keeps true: one situation has one code and one wording, whichever interface it
//! is answered through.

use narad_core::ids::{CopyId, PartitionIndex, PartitionKey, TopicId};
use narad_core::meta::{Member, MetaState};
use narad_storage::{AppendError, StorageError};
use narad_wire::error::{ErrorCode, WireError, WireFault};

/// No topic of this name.
pub(crate) fn unknown_topic(name: &str) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownTopic,
        format!("there is no topic {name:?}"),
    )
    .hint("create it first: narad topic create NAME --partitions N")
}

/// No topic of this name is known here, and nobody can say whether there is one.
pub(crate) fn unconfirmed_topic(name: &str, why: impl std::fmt::Display) -> WireFault {
    WireFault::new(
        ErrorCode::Unavailable,
        format!("no topic {name:?} is known here, and no leader could confirm that: {why}"),
    )
    .hint("try again shortly, or at another node")
    .retry_after_ms(200)
}

/// The topic incarnation is gone.
pub(crate) fn topic_gone(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownTopic,
        format!("the topic of partition {key} has been deleted"),
    )
    .hint("look the topic up again by its name")
}

/// The topic incarnation is gone.
pub(crate) fn topic_id_gone(topic: TopicId) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownTopic,
        format!("topic incarnation {topic} has been deleted"),
    )
    .hint("look the topic up again by its name")
}

/// Partition index out of range.
pub(crate) fn unknown_partition(topic: &str, partition: PartitionIndex, count: usize) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownPartition,
        format!("topic {topic:?} has no partition {partition}: it has {count}, counted from 0"),
    )
    .hint("use an index from 0 up to one less than the count")
}

/// A malformed request.
pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> WireFault {
    WireFault::new(ErrorCode::Invalid, message).hint(hint)
}

/// A record or batch over its limit.
pub(crate) fn too_large(what: &str, size: usize, limit: usize) -> WireFault {
    WireFault::new(
        ErrorCode::TooLarge,
        format!("{what} is {size}, the limit is {limit}"),
    )
    .hint("send less at once")
    .detail(format!(
        r#"{{"what":"{what}","size":{size},"limit":{limit}}}"#
    ))
}

/// A bounded queue is full.
pub(crate) fn busy(what: &str) -> WireFault {
    WireFault::new(ErrorCode::Busy, format!("{what} is full"))
        .hint("try again shortly, or use fewer calls at once")
        .retry_after_ms(50)
}

/// This node does not own the partition; says who does as far as is known.
pub(crate) fn not_owner(state: &MetaState, key: PartitionKey) -> WireFault {
    let fault = WireFault::new(
        ErrorCode::NotOwner,
        format!("partition {key} is not owned by this node now"),
    )
    .hint("ask its owner");
    match state
        .assignment(key)
        .and_then(|assignment| state.members.get(&assignment.owner))
    {
        Some(member) => fault.node(member.addr.clone()),
        None => fault,
    }
}

/// The partition takes no appends for a moment.
pub(crate) fn frozen(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::Frozen,
        format!("partition {key} is being handed over and takes no records for a moment"),
    )
    .hint("send it again; without a named partition another one takes it")
    .retry_after_ms(20)
}

/// The owner of a moving partition cannot prove its leadership lease.
pub(crate) fn lease_lapsed(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::Frozen,
        format!("partition {key} is being moved and this node's lease has run out"),
    )
    .hint("the node cannot reach the leader; records are kept and delivered when it can again")
    .retry_after_ms(500)
}

/// Written, but it cannot be said that it counts.
pub(crate) fn unknown_append(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownOutcome,
        format!("partition {key} changed hands while the records were being written"),
    )
    .hint("send them again; they may then be delivered twice")
}

/// The log is being opened.
pub(crate) fn opening(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::Unavailable,
        format!("partition {key} is being opened on this node"),
    )
    .hint("try again shortly")
    .retry_after_ms(100)
}

/// Raft says that there was a log, the disk says that there is none.
pub(crate) fn missing(copy: CopyId) -> WireFault {
    WireFault::new(
        ErrorCode::Closed,
        format!("the log of partition {copy} is missing from this node's data directory"),
    )
    .hint("restore the data directory, or delete the topic; an empty log is never put in its place")
}

/// The log could not be opened.
pub(crate) fn open_failed(copy: CopyId, reason: &str) -> WireFault {
    WireFault::new(
        ErrorCode::Closed,
        format!("the log of partition {copy} cannot be opened: {reason}"),
    )
    .hint("see the node's log; run narad verify on its data directory")
}

/// An append that the log refused.
pub(crate) fn append_failed(key: PartitionKey, error: &AppendError) -> WireFault {
    match error {
        AppendError::Closed { .. } => WireFault::new(
            ErrorCode::Closed,
            format!("the log of partition {key} is closed: {error}"),
        )
        .hint("it is recovered and opened again by itself; see the node's log for the cause")
        .retry_after_ms(500),
        AppendError::Full { .. } => WireFault::new(
            ErrorCode::DiskFull,
            format!("no room for partition {key}: {error}"),
        )
        .hint("free disk space, lower the retention, or add a node")
        .retry_after_ms(1_000),
        AppendError::Busy { .. } => WireFault::new(
            ErrorCode::Busy,
            format!("partition {key} is written faster than the disk takes it: {error}"),
        )
        .hint("try again shortly")
        .retry_after_ms(50),
        AppendError::TooLarge { .. } => {
            WireFault::new(ErrorCode::TooLarge, error.to_string()).hint("send smaller records")
        }
    }
}

/// Records that the ingress WAL did not take.
pub(crate) fn wal_failed(error: &AppendError) -> WireFault {
    let (code, hint) = match error {
        AppendError::Closed { .. } => (
            ErrorCode::UnknownOutcome,
            "send them again at another node; see this node's log for the cause",
        ),
        AppendError::Full { .. } => (
            ErrorCode::DiskFull,
            "the owners of the partitions cannot be reached; wait, or raise the WAL's cap",
        ),
        AppendError::Busy { .. } => (ErrorCode::Busy, "try again shortly"),
        AppendError::TooLarge { .. } => (ErrorCode::TooLarge, "send less at once"),
    };
    WireFault::new(code, format!("the ingress WAL: {error}"))
        .hint(hint)
        .retry_after_ms(if code == ErrorCode::TooLarge { 0 } else { 100 })
}

/// The node is being drained off and takes nothing any more that it would have to pass on.
pub(crate) fn leaving(other: Option<&Member>) -> WireFault {
    let fault = WireFault::new(
        ErrorCode::Unavailable,
        "this node is being drained off and takes no records any more",
    )
    .retry_after_ms(100);
    match other {
        Some(member) => fault
            .hint("send them to another node")
            .node(member.addr.clone()),
        None => fault.hint("no other node takes records now; start one or cancel the decommission"),
    }
}

/// Another node was given the records and did not say what became of them.
pub(crate) fn unknown_forward(addr: &str, error: &WireError) -> WireFault {
    WireFault::new(
        ErrorCode::UnknownOutcome,
        format!("the records went on to {addr}, which gave no answer: {error}"),
    )
    .hint("send them again; they may then be delivered twice")
    .retry_after_ms(100)
}

/// The ingress WAL has stopped and is being recovered.
pub(crate) fn wal_recovering(reason: &str) -> WireFault {
    WireFault::new(
        ErrorCode::Unavailable,
        format!("the ingress WAL has stopped and is being recovered: {reason}"),
    )
    .hint("send them again shortly, or at another node")
    .retry_after_ms(500)
}

/// A read that failed.
pub(crate) fn read_failed(key: PartitionKey, error: &StorageError) -> WireFault {
    let code = match error {
        StorageError::Damaged { .. } => ErrorCode::Corrupt,
        _ => ErrorCode::Internal,
    };
    WireFault::new(code, format!("reading partition {key} failed: {error}"))
        .hint("see the node's log; run narad verify on its data directory")
}

/// The lease is not one that stands.
pub(crate) fn stale_lease(key: PartitionKey) -> WireFault {
    WireFault::new(
        ErrorCode::StaleLease,
        format!("this lease of partition {key} has ended"),
    )
    .hint("the record is delivered again unless it was acked; nothing is lost")
}

/// The node is stopping.
pub(crate) fn shutting_down() -> WireFault {
    WireFault::new(ErrorCode::ShuttingDown, "this node is shutting down").hint("use another node")
}

/// Something inside this node failed.
pub(crate) fn internal(what: &str, error: impl std::fmt::Display) -> WireFault {
    WireFault::new(ErrorCode::Internal, format!("{what}: {error}")).hint("see the node's log")
}
