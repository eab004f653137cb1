//! What a guard of the metadata refused, for a person.
//!
//! What this file keeps true: every refusal has a sentence that says what to do next, and keeps its
//! machine-readable form in `detail`.

use narad_core::ids::RaftIndex;
use narad_core::meta::{Refusal, Reply};
use narad_core::planner::Size;
use narad_wire::error::{ErrorCode, WireFault};

/// The index of a command that took effect, or its refusal as a fault.
pub(crate) fn done(reply: Reply) -> Result<RaftIndex, WireFault> {
    match reply {
        Reply::Done { index } => Ok(index),
        Reply::Refused { refusal } => Err(fault(&refusal)),
    }
}

/// A refusal as a fault.
pub(crate) fn fault(refusal: &Refusal) -> WireFault {
    let detail = serde_json::to_string(refusal).unwrap_or_default();
    let code = match refusal {
        Refusal::UnknownTopic => ErrorCode::UnknownTopic,
        Refusal::TopicExists => ErrorCode::TopicExists,
        Refusal::BadSettings { .. } | Refusal::BadName { .. } => ErrorCode::Invalid,
        Refusal::UnknownMember | Refusal::MemberRemoved | Refusal::OtherDisk => {
            ErrorCode::NotMember
        }
        Refusal::OwnerDead => ErrorCode::Dead,
        Refusal::NotOwner { .. } => ErrorCode::NotOwner,
        _ => ErrorCode::Refused,
    };
    let (message, hint) = words(refusal);
    WireFault::new(code, message).hint(hint).detail(detail)
}

fn words(refusal: &Refusal) -> (String, &'static str) {
    match refusal {
        Refusal::UnknownMember => (
            "there is no such member".into(),
            "see narad cluster members for the ids",
        ),
        Refusal::MemberRemoved => (
            "the member was removed from the cluster".into(),
            "start it with a new id and an empty data directory to join again",
        ),
        Refusal::OtherDisk => (
            "the member's data directory is another one than before".into(),
            "start it with its own data directory, or join under a new id",
        ),
        Refusal::OldIncarnation => (
            "a newer process of the node has registered".into(),
            "stop the older process",
        ),
        Refusal::BadName { detail } | Refusal::BadSettings { detail } => {
            (detail.clone(), "correct it and try again")
        }
        Refusal::WrongStatus => (
            "the member is not in the state that this needs".into(),
            "see narad cluster members",
        ),
        Refusal::CannotReceive => (
            "the node is draining or dead and cannot receive partitions".into(),
            "choose another node, or cancel its decommission",
        ),
        Refusal::StillHolds => (
            "the member still owns, receives or keeps partitions".into(),
            "wait until narad cluster members shows that nothing holds it",
        ),
        Refusal::UnknownTopic => ("there is no such topic".into(), "see narad topic list"),
        Refusal::TopicExists => (
            "a topic of this name exists".into(),
            "use it, or choose another name",
        ),
        Refusal::NoReceiver => (
            "no member can take partitions".into(),
            "add a node, or cancel a decommission",
        ),
        Refusal::NotOwner { owner, epoch } => (
            format!("the owner is {owner} (epoch {epoch})"),
            "look at the topic again",
        ),
        Refusal::OtherMove { current } => (
            match current {
                Some(id) => format!("another move ({id}) of the partition is running"),
                None => "no move of the partition is running".into(),
            },
            "see narad cluster moves",
        ),
        Refusal::OtherHandoff { .. } => ("that handoff is over".into(), "see narad cluster moves"),
        Refusal::HandoffRecorded => (
            "the partition is being handed over right now".into(),
            "try again in a moment",
        ),
        Refusal::OwnerDead => (
            "the partition's owner is marked dead".into(),
            "bring the owner back, or wait for a running move's promotion",
        ),
        Refusal::OtherDeath => (
            "the owner's state has changed".into(),
            "look at the members again",
        ),
        Refusal::BehindTold => (
            "the staged copy lacks records that consumers could see".into(),
            "bring the owner back",
        ),
        Refusal::TargetHoldsOldCopy => (
            "the target still holds an old copy of the partition".into(),
            "wait until it is salvaged and reclaimed, then try again",
        ),
        Refusal::TargetIsOwner => (
            "the node owns the partition already".into(),
            "choose another node",
        ),
        Refusal::NoRoom { needed, room } => (
            format!(
                "the node has no room for the partition: it needs {}, and copies to that node may take {}",
                Size(*needed),
                Size(*room)
            ),
            "free some there, or choose another node; narad cluster members shows how much each has free",
        ),
        Refusal::ChangedSince { .. } => (
            "the partition's assignment changed in the meantime".into(),
            "look at it again and repeat the command if it is still wanted",
        ),
        Refusal::OtherCluster => (
            "the cluster has an identity already".into(),
            "nothing is to be done",
        ),
    }
}
