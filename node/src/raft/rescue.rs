//! The last resort after a lost quorum: one surviving voter is made the only one, while it does not run.
//!
//! Keeps true: nothing that this node's log holds is dropped; what is added is two more entries, in a term above every
//! one that this node has seen, so that whoever holds an older log follows; they say where the log was cut, so that
//! whoever holds more of it can tell. That no other node is rescued as well
//! nobody here can see: the operator must.

use super::store::{self, StoreError};
use super::types::{
    Entry, LogId, MembershipView, Proposal, RaftNodeId, StoredMembership, Vote, term_of,
};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{EntryPayload, Membership, RaftLogReader};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a Raft directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Term of the last entry.
    pub last_term: u64,
    /// Index of the last entry: of several survivors the one with the highest (term, index) is to be rescued.
    pub last_index: u64,
    /// Term of the latest vote.
    pub vote_term: u64,
    /// Who votes, as this log says.
    pub members: MembershipView,
}

/// Why a Raft directory cannot be rescued.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// It cannot be read or written.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Reading or writing through Raft's own interface failed.
    #[error("the metadata log cannot be used: {0}")]
    Io(#[from] std::io::Error),
    /// There is nothing in it.
    #[error("there is no metadata in this directory: it was never a member, or its log is gone")]
    Empty,
    /// The node is not in the membership.
    #[error(
        "this node ({0}) is no member by its own log: choose a node that voted, or one that learnt"
    )]
    NotMember(String),
    /// It is the only voter already.
    #[error("this node is the only voter already: start it")]
    Alone,
}

/// Looks into the Raft directory of a node that does not run.
///
/// # Errors
/// [`RescueError`]; nothing is changed but what every start repairs (a torn tail).
pub async fn look(dir: &Path, node_id: &str) -> Result<Standing, RescueError> {
    let mut opened = store::open(dir, node_id).await?;
    let standing = read(&mut opened).await;
    opened.log.close().await?;
    standing
}

/// What a Raft directory holds for the machine: its snapshot, and the proposals in the log, committed or not.
#[derive(Debug, Default)]
pub struct Contents {
    /// The snapshot, if there is one.
    pub snapshot: Option<Vec<u8>>,
    /// The proposals, in order; the snapshot may know some of them.
    pub proposals: Vec<Vec<u8>>,
}

/// Reads what the Raft directory of a node that does not run holds for the machine.
///
/// # Errors
/// [`RescueError`]; nothing is changed but what every start repairs.
pub async fn contents(dir: &Path, node_id: &str) -> Result<Contents, RescueError> {
    let mut opened = store::open(dir, node_id).await?;
    let found = read_contents(&mut opened).await;
    opened.log.close().await?;
    found
}

async fn read_contents(opened: &mut store::Opened) -> Result<Contents, RescueError> {
    let mut found = Contents {
        snapshot: opened.snapshot.load().await?.map(|one| one.snapshot),
        ..Contents::default()
    };
    for entry in opened.log.try_get_log_entries(..).await? {
        if let EntryPayload::Normal(Proposal(bytes)) = entry.payload {
            found.proposals.push(bytes);
        }
    }
    Ok(found)
}

async fn read(opened: &mut store::Opened) -> Result<Standing, RescueError> {
    let snapshot = opened.snapshot.meta();
    let state = opened.log.get_log_state().await?;
    let covered = snapshot.as_ref().and_then(|meta| meta.last_log_id);
    let last = state.last_log_id.max(covered).ok_or(RescueError::Empty)?;
    let mut stored = snapshot.map(|meta| meta.last_membership);
    for entry in opened.log.try_get_log_entries(..).await? {
        if let EntryPayload::Membership(membership) = entry.payload {
            stored = Some(StoredMembership::new(Some(entry.log_id), membership));
        }
    }
    let vote = opened.log.read_vote().await?;
    Ok(Standing {
        last_term: term_of(&last),
        last_index: last.index,
        vote_term: vote.map_or(0, |vote| vote.leader_id.term),
        members: stored
            .as_ref()
            .map(MembershipView::from)
            .unwrap_or_default(),
    })
}

/// Makes the node that this directory belongs to, and that does not run, the only voter of its cluster.
/// Everybody else is admitted again by it once it leads. `note` makes the proposal that follows: for those who had
/// more than this node it says where the log that goes on was cut.
///
/// # Errors
/// [`RescueError`]; then the directory says what it said before.
pub async fn make_only_voter(
    dir: &Path,
    node_id: &str,
    note: impl FnOnce(&Standing) -> Vec<u8>,
) -> Result<Standing, RescueError> {
    let mut opened = store::open(dir, node_id).await?;
    let done = add_entries(&mut opened, node_id, note).await;
    opened.log.close().await?;
    done
}

async fn add_entries(
    opened: &mut store::Opened,
    node_id: &str,
    note: impl FnOnce(&Standing) -> Vec<u8>,
) -> Result<Standing, RescueError> {
    let before = read(opened).await?;
    let peer = before
        .members
        .peer(node_id)
        .ok_or_else(|| RescueError::NotMember(node_id.to_owned()))?
        .clone();
    if before.members.voters.len() == 1 && before.members.voters.contains_key(node_id) {
        return Err(RescueError::Alone);
    }
    let id = RaftNodeId::from(node_id);
    let nodes = BTreeMap::from([(id.clone(), peer)]);
    let membership = Membership::new(vec![BTreeSet::from([id.clone()])], nodes)
        .expect("one voter with its address is a membership");
    let term = before.last_term.max(before.vote_term) + 1;
    // The vote first: a log may not be ahead of it.
    opened.log.save_vote(&Vote::new(term, id)).await?;
    let at = |index| LogId::new_term_index(term, index);
    // In this order: whoever has applied anything of the new line knows of the replacement.
    let note = Entry::new(
        at(before.last_index + 1),
        EntryPayload::Normal(Proposal(note(&before))),
    );
    let alone = Entry::new_membership(at(before.last_index + 2), membership);
    opened
        .log
        .blocking_append([note, alone])
        .await
        .map_err(std::io::Error::other)?;
    Ok(before)
}
