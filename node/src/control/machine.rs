//! The metadata behind Raft: commands and snapshots as JSON, applied versions published.
//!
//! What this file keeps true: every applied batch is published once, before anyone is told that
//! its proposal is applied; bytes that do not parse are refused in the same way on every node.

use crate::raft::{Machine, MembershipView};
use narad_core::ids::RaftIndex;
use narad_core::meta::{Command, MetaState, Refusal, Reply};
use std::sync::Arc;
use tokio::sync::watch;

/// The metadata machine.
pub struct MetaMachine {
    state: MetaState,
    published: watch::Sender<Arc<MetaState>>,
    changed: bool,
}

impl MetaMachine {
    /// An empty one that publishes to `published`.
    #[must_use]
    pub fn new(published: watch::Sender<Arc<MetaState>>) -> Self {
        Self {
            state: MetaState::default(),
            published,
            changed: false,
        }
    }
}

/// A command as bytes of a proposal.
#[must_use]
pub(super) fn encode(command: &Command) -> Vec<u8> {
    serde_json::to_vec(command).expect("a command is JSON")
}

/// A reply out of the answer to a proposal.
pub(super) fn decode(answer: &[u8]) -> Result<Reply, String> {
    serde_json::from_slice(answer).map_err(|error| error.to_string())
}

impl Machine for MetaMachine {
    fn apply(&mut self, index: u64, _term: u64, proposal: &[u8]) -> Vec<u8> {
        let reply = match serde_json::from_slice::<Command>(proposal) {
            Ok(command) => self.state.apply(RaftIndex(index), &command),
            // Proposers encode typed commands, so this is a command of a newer release; nodes of
            // this release must all do the same with it, which is nothing.
            Err(error) => {
                tracing::error!(index, %error, "a command of a newer release was not understood; upgrade this node");
                Reply::Refused {
                    refusal: Refusal::BadSettings {
                        detail: format!("a node does not know this command: {error}"),
                    },
                }
            }
        };
        self.changed = true;
        serde_json::to_vec(&reply).expect("a reply is JSON")
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
        self.state = serde_json::from_slice(snapshot).map_err(|error| error.to_string())?;
        self.changed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{NodeId, NodeIncarnation};

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
        let reply = machine.apply(4, 1, &register("a"));
        assert_eq!(
            decode(&reply),
            Ok(Reply::Done {
                index: RaftIndex(4)
            })
        );
        machine.apply(5, 1, &register("b"));
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
    fn bytes_that_are_no_command_change_nothing() {
        let (sender, _receiver) = watch::channel(Arc::new(MetaState::default()));
        let mut machine = MetaMachine::new(sender);
        let reply = decode(&machine.apply(3, 1, b"{\"command\":\"of_the_future\"}")).unwrap();
        assert!(matches!(reply, Reply::Refused { .. }));
        assert_eq!(machine.state, MetaState::default());
        assert!(machine.restore(b"not json").is_err());
    }
}
