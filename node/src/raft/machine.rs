//! The state machine that Raft feeds, and its adaptor to openraft.
//!
//! Keeps true: after start-up the state is the snapshot on disk plus the log behind it; entries are applied once, in
//! order; [`Machine::applied`] runs after every batch and before anyone is told that its proposal is applied.

use super::store::SnapshotFile;
use super::types::{
    Applied, LogId, MembershipView, Snapshot, SnapshotMeta, StoredMembership, TypeConfig, term_of,
};
use futures::{Stream, TryStreamExt};
use openraft::entry::EntryPayload;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use tokio::sync::watch;

/// What the shell puts behind Raft. Called on the executor of Raft only, never re-entrantly; nothing here may await.
pub trait Machine: 'static {
    /// Applies one committed proposal and answers it. Must be deterministic: every node applies the same, or none at
    /// all: on an error nothing has changed, nothing is applied after it, and Raft stops here with that error.
    fn apply(&mut self, index: u64, term: u64, proposal: &[u8]) -> Result<Vec<u8>, String>;
    /// A committed entry, or a snapshot, set the members of the cluster.
    fn membership_changed(&mut self, membership: &MembershipView);
    /// Everything up to and including `index` is applied: the moment to publish a version.
    fn applied(&mut self, index: u64);
    /// The whole state, as bytes that [`Machine::restore`] reads on any node. At most
    /// [`super::limits::MAX_SNAPSHOT_BYTES`].
    fn snapshot(&self) -> Vec<u8>;
    /// Replaces the whole state. On an error the state must be as before; Raft then stops with that error.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;
    /// Whether a snapshot of the leader may replace the state, on a node that has applied its own log up to this term
    /// and index. Asked before anything is kept of it; on an error Raft stops here.
    fn check_snapshot(&self, snapshot: &[u8], applied: (u64, u64)) -> Result<(), Unfit> {
        let _ = (snapshot, applied);
        Ok(())
    }
}

/// Why what a leader sent cannot be taken by this node, now or ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It contradicts what this node knows to be committed.
    #[error("{0}")]
    Diverged(String),
    /// This release cannot read it.
    #[error("{0}")]
    Newer(String),
}

/// openraft's view of a [`Machine`].
pub struct MachineAdaptor<M> {
    machine: Rc<RefCell<M>>,
    file: SnapshotFile,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    progress: watch::Sender<Option<u64>>,
}

impl<M: Machine> MachineAdaptor<M> {
    /// `machine` starts empty: what is on disk is restored by openraft through this adaptor.
    /// `progress` gets the index of every batch once it is applied.
    pub fn new(
        machine: Rc<RefCell<M>>,
        file: SnapshotFile,
        progress: watch::Sender<Option<u64>>,
    ) -> MachineAdaptor<M> {
        MachineAdaptor {
            machine,
            file,
            last_applied: None,
            membership: StoredMembership::default(),
            progress,
        }
    }

    fn publish(&self) {
        if let Some(id) = &self.last_applied {
            self.machine.borrow_mut().applied(id.index);
            self.progress.send_replace(Some(id.index));
        }
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last_log_id: self.last_applied,
            last_membership: self.membership.clone(),
        }
    }
}

/// A view of the state at one index, to be made durable.
pub struct Builder {
    meta: SnapshotMeta,
    data: Vec<u8>,
    file: SnapshotFile,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        self.file.save(&self.meta, &self.data).await?;
        Ok(Snapshot {
            meta: self.meta.clone(),
            snapshot: std::mem::take(&mut self.data),
        })
    }
}

impl<M: Machine> RaftStateMachine<TypeConfig> for MachineAdaptor<M> {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            let id = entry.log_id;
            let mut answer = Applied::default();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(proposal) => {
                    let applied =
                        self.machine
                            .borrow_mut()
                            .apply(id.index, term_of(&id), &proposal.0);
                    match applied {
                        Ok(bytes) => answer = Applied(bytes),
                        Err(why) => {
                            // What came before it counts.
                            self.publish();
                            return Err(io::Error::other(format!("entry {}: {why}", id.index)));
                        }
                    }
                }
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(id), membership);
                    self.machine
                        .borrow_mut()
                        .membership_changed(&MembershipView::from(&self.membership));
                }
            }
            self.last_applied = Some(id);
            answers.extend(responder.map(|responder| (responder, answer)));
        }
        self.publish();
        for (responder, answer) in answers {
            responder.send(answer);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            meta: self.meta(),
            data: self.machine.borrow().snapshot(),
            file: self.file.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Vec<u8>,
    ) -> Result<(), io::Error> {
        // Durable before it is visible: Raft purges the log behind it.
        self.file.save(meta, &snapshot).await?;
        let restored = self.machine.borrow_mut().restore(&snapshot);
        restored
            .map_err(|why| io::Error::other(format!("the snapshot cannot be restored: {why}")))?;
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.machine
            .borrow_mut()
            .membership_changed(&MembershipView::from(&self.membership));
        self.publish();
        let index = meta.last_log_id.as_ref().map(|id| id.index);
        tracing::info!(
            index,
            bytes = snapshot.len(),
            "the metadata came as a snapshot"
        );
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.file.load().await?)
    }
}
