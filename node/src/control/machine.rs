//! The metadata behind Raft: commands and snapshots as JSON, applied versions published.
//!
//! What this file keeps true: every applied batch is published once, before anyone is told that
//! its proposal is applied; what a newer release wrote is not passed over: the node stops before it.

use crate::raft::rescue::Contents;
use crate::raft::{Machine, MembershipView, Unfit};
use narad_core::ids::{RaftIndex, RaftTerm, RecoveryId};
use narad_core::meta::{Command, LogPoint, MetaState, Reply, Stranger};
use std::sync::Arc;
use tokio::sync::watch;

/// The metadata machine.
pub struct MetaMachine {
    state: MetaState,
    published: watch::Sender<Arc<MetaState>>,
    changed: bool,
    unreadable: Option<String>,
}

impl MetaMachine {
    /// An empty one that publishes to `published`.
    #[must_use]
    pub fn new(published: watch::Sender<Arc<MetaState>>) -> Self {
        Self {
            state: MetaState::default(),
            published,
            changed: false,
            unreadable: None,
        }
    }
}

impl MetaMachine {
    /// What the log holds that this release does not understand; Raft has stopped before it.
    pub(super) fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }
}

/// A command as bytes of a proposal.
#[must_use]
pub(crate) fn encode(command: &Command) -> Vec<u8> {
    serde_json::to_vec(command).expect("a command is JSON")
}

/// The latest replaced quorum that a snapshot and proposals behind it tell of, be they committed or not.
///
/// # Errors
/// For the operator: what was written by a newer release is not understood.
pub(crate) fn latest_recovery(contents: &Contents) -> Result<Option<RecoveryId>, String> {
    let mut known: Vec<RecoveryId> = Vec::new();
    if let Some(snapshot) = &contents.snapshot {
        let state: MetaState = serde_json::from_slice(snapshot).map_err(|error| newer(&error))?;
        known.extend(state.recoveries.iter().map(|one| one.id));
    }
    for proposal in &contents.proposals {
        let command = serde_json::from_slice(proposal).map_err(|error| newer(&error))?;
        if let Command::Recovered { recovery } = command
            && !known.contains(&recovery.id)
        {
            known.push(recovery.id);
        }
    }
    Ok(known.pop())
}

/// A reply out of the answer to a proposal.
pub(super) fn decode(answer: &[u8]) -> Result<Reply, String> {
    serde_json::from_slice(answer).map_err(|error| error.to_string())
}

impl Machine for MetaMachine {
    fn apply(&mut self, index: u64, _term: u64, proposal: &[u8]) -> Result<Vec<u8>, String> {
        // Proposers encode typed commands, so what does not parse is of a newer release. Other nodes may
        // understand it, so leaving it out would make two clusters of one.
        let command: Command = serde_json::from_slice(proposal).map_err(|error| {
            let why = newer(&error);
            self.unreadable = Some(why.clone());
            why
        })?;
        let reply = self.state.apply(RaftIndex(index), &command);
        self.changed = true;
        Ok(serde_json::to_vec(&reply).expect("a reply is JSON"))
    }

    fn membership_changed(&mut self, membership: &MembershipView) {
        let ids = |side: &std::collections::BTreeMap<String, crate::raft::RaftPeer>| {
            side.keys().cloned().collect::<Vec<_>>().join(",")
        };
        tracing::info!(
            index = membership.index,
            voters = ids(&membership.voters),
            learners = ids(&membership.learners),
            joint = membership.joint,
            "Raft membership"
        );
    }

    fn applied(&mut self, _index: u64) {
        if std::mem::take(&mut self.changed) {
            self.published.send_replace(Arc::new(self.state.clone()));
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(&self.state).expect("the metadata is JSON")
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.state = serde_json::from_slice(snapshot).map_err(|error| newer(&error))?;
        self.changed = true;
        Ok(())
    }

    fn check_snapshot(&self, snapshot: &[u8], (term, index): (u64, u64)) -> Result<(), Unfit> {
        let theirs: MetaState =
            serde_json::from_slice(snapshot).map_err(|error| Unfit::Newer(newer(&error)))?;
        if let (Some(theirs), Some(ours)) = (theirs.cluster, self.state.cluster)
            && theirs != ours
        {
            let stranger = Stranger::OtherCluster {
                theirs: ours,
                ours: theirs,
            };
            return Err(Unfit::Diverged(stranger.to_string()));
        }
        let applied = LogPoint {
            term: RaftTerm(term),
            index: RaftIndex(index),
        };
        if theirs.continues(self.state.recovery(), applied) {
            Ok(())
        } else {
            Err(Unfit::Diverged(Stranger::Diverged.to_string()))
        }
    }
}

/// What to tell the operator about metadata that does not parse.
fn newer(error: &serde_json::Error) -> String {
    format!("this log was written by a newer narad; upgrade this node ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_replacement_is_found_in_the_snapshot_and_behind_it() {
        let recovered = |id, index| Command::Recovered {
            recovery: narad_core::meta::Recovery {
                id: RecoveryId(id),
                kept: LogPoint {
                    term: RaftTerm(1),
                    index: RaftIndex(index),
                },
            },
        };
        let mut contents = Contents::default();
        assert_eq!(latest_recovery(&contents), Ok(None));
        let mut state = MetaState::default();
        for (index, id) in [(5, 7), (9, 8)] {
            state.apply(RaftIndex(index), &recovered(id, index - 1));
        }
        contents.snapshot = Some(serde_json::to_vec(&state).unwrap());
        // One that the snapshot knows as well, as logs keep some of what is in it.
        contents.proposals.push(encode(&recovered(7, 4)));
        assert_eq!(latest_recovery(&contents), Ok(Some(RecoveryId(8))));
        contents.proposals.push(encode(&recovered(9, 20)));
        assert_eq!(latest_recovery(&contents), Ok(Some(RecoveryId(9))));
        contents.proposals.push(b"{\"Unheard\":1}".to_vec());
        assert!(latest_recovery(&contents).is_err());
    }
    use narad_core::ids::{NodeId, NodeIncarnation, RecoveryId};
    use narad_core::meta::Recovery;

    fn register(id: &str) -> Vec<u8> {
        encode(&Command::Register {
            id: NodeId(id.into()),
            addr: "127.0.0.1:1".into(),
            bulk_addr: "127.0.0.1:2".into(),
            http_addr: String::new(),
            incarnation: NodeIncarnation(7),
            disk: 9,
            shards: 1,
            version: "1".into(),
        })
    }

    #[test]
    fn a_batch_is_published_once_and_a_snapshot_gives_the_same_state() {
        let (sender, mut receiver) = watch::channel(Arc::new(MetaState::default()));
        let mut machine = MetaMachine::new(sender);
        let reply = machine.apply(4, 1, &register("a")).unwrap();
        assert_eq!(
            decode(&reply),
            Ok(Reply::Done {
                index: RaftIndex(4)
            })
        );
        machine.apply(5, 1, &register("b")).unwrap();
        assert!(!receiver.has_changed().unwrap());
        machine.applied(5);
        assert_eq!(receiver.borrow_and_update().members.len(), 2);
        machine.applied(6);
        assert!(!receiver.has_changed().unwrap(), "nothing of ours changed");

        let (other, _keep) = watch::channel(Arc::new(MetaState::default()));
        let mut restored = MetaMachine::new(other);
        restored.restore(&machine.snapshot()).unwrap();
        assert_eq!(restored.state, machine.state);
    }

    #[test]
    fn what_a_newer_release_wrote_stops_the_node_and_changes_nothing() {
        let (sender, _receiver) = watch::channel(Arc::new(MetaState::default()));
        let mut machine = MetaMachine::new(sender);
        machine.apply(2, 1, &register("a")).unwrap();
        let before = machine.state.clone();
        let known = String::from_utf8(register("a")).unwrap();
        let field = known.replacen('{', "{\"of_the_future\":1,", 1);
        for proposal in ["{\"command\":\"of_the_future\"}", &field] {
            let why = machine.apply(3, 1, proposal.as_bytes()).unwrap_err();
            assert!(why.contains("upgrade this node"), "{why}");
            assert_eq!(machine.state, before, "{proposal}");
        }
        assert!(machine.restore(b"not json").is_err());
        let snapshot = String::from_utf8(machine.snapshot()).unwrap();
        assert_eq!(machine.check_snapshot(snapshot.as_bytes(), (1, 2)), Ok(()));
        for name in ["\"applied\"", "\"shards\""] {
            let newer = snapshot.replacen(name, &format!("\"of_the_future\":1,{name}"), 1);
            assert_ne!(newer, snapshot);
            let refused = machine.check_snapshot(newer.as_bytes(), (1, 2));
            assert!(matches!(refused, Err(Unfit::Newer(_))), "{refused:?}");
            assert!(machine.restore(newer.as_bytes()).is_err());
            assert_eq!(machine.state, before);
        }
    }

    #[test]
    fn a_snapshot_that_lost_committed_changes_is_refused() {
        let (sender, _receiver) = watch::channel(Arc::new(MetaState::default()));
        let mut machine = MetaMachine::new(sender);
        machine.apply(2, 1, &register("a")).unwrap();
        let mut theirs = machine.state.clone();
        theirs.apply(
            RaftIndex(9),
            &Command::Recovered {
                recovery: Recovery {
                    id: RecoveryId(1),
                    kept: LogPoint {
                        term: RaftTerm(1),
                        index: RaftIndex(7),
                    },
                },
            },
        );
        let snapshot = serde_json::to_vec(&theirs).unwrap();
        assert_eq!(machine.check_snapshot(&snapshot, (1, 7)), Ok(()));
        let refused = machine.check_snapshot(&snapshot, (1, 8));
        assert!(matches!(refused, Err(Unfit::Diverged(_))), "{refused:?}");
        machine.restore(&snapshot).unwrap();
        assert_eq!(
            machine.check_snapshot(&snapshot, (2, 90)),
            Ok(()),
            "its own line"
        );
    }
}
