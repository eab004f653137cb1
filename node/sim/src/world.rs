//! The world: nodes, their disks, the log of the metadata, the network, one virtual clock.
//!
//! What this file keeps true: a world is a value; [`World::step`] is a function of the world and the
//! action alone; the decisions in it are the real ones of `narad-core`, the world only carries them
//! out as the node's shells do.

mod canonical;
mod clients;
mod consumers;
mod control;
mod copying;
mod dispatching;
mod enumerate;
mod fair;
mod lifecycle;
mod raft;
mod retire;
mod source;
mod step;
mod target;

use crate::action::How;
use crate::check::Violation;
use crate::disk::{Copy, Record, Staging, WalRecord};
use crate::mutation::Mutation;
use crate::setup::Setup;
use narad_core::copy::Manifest;
use narad_core::dispatch::{Dispatch, DispatchEffect};
use narad_core::ids::{
    Epoch, HandoffId, MonoMs, NodeId, Nonce, Offset, PartitionIndex, PartitionKey, RaftIndex,
    TopicId, WalSeq,
};
use narad_core::leases::LeaseTable;
use narad_core::liveness::Liveness;
use narad_core::meta::{Assignment, Command, EpochEnd, MetaState};
use narad_core::moves::target::{TargetEffect, Told};
use narad_core::moves::{MoveLease, OwnerWatch, SourceInput, SourcePartition, TargetMove};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The owner's side of an open copy.
#[derive(Clone, Debug, Hash)]
pub struct Source {
    /// The real decisions.
    pub side: SourcePartition,
    /// Appends between their check and their ack.
    pub in_flight: Vec<Record>,
    /// So many of them are in the file already, above the HWM.
    pub written: usize,
    /// A settle that runs.
    pub settling: Option<HandoffId>,
    /// Not served any more: closed once nothing is in flight.
    pub stopped: bool,
    /// A sync failed: nothing is appended before it is recovered.
    pub failed: bool,
    /// The consumers' leases, and the frontier in memory.
    pub leases: LeaseTable,
    /// The metadata knows that the log exists.
    pub marked: bool,
}

/// The worker of a move.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The real decisions.
    pub machine: TargetMove,
    /// How long the owner has been dead.
    pub watch: OwnerWatch,
    /// What it waits for.
    pub pending: Option<TargetEffect>,
    /// It wants the operation stopped.
    pub interrupted: bool,
    /// A Freeze call is under way.
    pub asked: bool,
}

/// One partition on one node.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The open copy.
    pub source: Option<Source>,
    /// The move into this node.
    pub worker: Option<Worker>,
    /// Real copies on the disk.
    pub copies: BTreeMap<Epoch, Copy>,
    /// What is staged.
    pub staging: Option<Staging>,
    /// Staged bytes that are kept aside.
    pub aside: Vec<Staging>,
    /// What a source told, saved.
    pub told: Option<Told>,
    /// Ended copies whose records are in the WAL.
    pub salvaged: BTreeMap<Epoch, EpochEnd>,
    /// A deletion that may come again.
    pub again: Option<Epoch>,
    /// A start has found an installed copy with its mark.
    pub found: bool,
    /// A rule switched off: the flip without an answer counts as refused.
    pub rejected: bool,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its process runs.
    pub up: bool,
    /// Cut off from everybody.
    pub cut: bool,
    /// Cut off from the leader and the log.
    pub mute: bool,
    /// It has left the cluster.
    pub removed: bool,
    /// Which life of the process.
    pub life: u64,
    /// Has confirmed its ownership since it started.
    pub confirmed: bool,
    /// What it has applied.
    pub applied: RaftIndex,
    /// Its move lease.
    pub lease: MoveLease,
    /// Its clocks as a leader.
    pub liveness: Liveness,
    /// It believes that it leads.
    pub leads: bool,
    /// By the world's numbers of partitions.
    pub parts: Vec<Part>,
    /// Its ingress WAL.
    pub wal: Vec<WalRecord>,
    /// Delivered and taken out of it, which a crash may undo: that is not synced yet.
    pub wal_done: Vec<WalRecord>,
    /// Its next sequence.
    pub wal_next: WalSeq,
    /// What empties it: the real decisions.
    pub dispatch: Dispatch,
    /// What that has asked for and nobody has done yet.
    pub dispatches: Vec<DispatchEffect>,
    /// The dispatcher's clock: it only paces, so it may run ahead.
    pub dispatch_now: MonoMs,
}

/// One version of the metadata.
#[derive(Debug)]
pub struct Version {
    /// It.
    pub state: Arc<MetaState>,
    /// Its hash.
    pub digest: u128,
}

/// What only the checkers know.
#[derive(Clone, Debug, Default, Hash)]
pub struct Ghost {
    /// The number of the next record.
    pub next_record: Record,
    /// Acknowledged to a client, and not taken by retention.
    pub acked: BTreeSet<Record>,
    /// The partition of every record that was sent.
    pub home: BTreeMap<Record, usize>,
    /// Acked by a consumer.
    pub consumed: BTreeSet<Record>,
    /// What was answered last to the Freeze of a handoff.
    pub captures: BTreeMap<HandoffId, Manifest>,
    /// The frontiers of all the answers: consume is never frozen, so one that is asked for twice is told twice,
    /// and either may be the one that arrives.
    pub captured_frontiers: BTreeMap<HandoffId, BTreeSet<u64>>,
    /// Who acked under an epoch.
    pub appenders: BTreeMap<(usize, Epoch), usize>,
    /// Records that an owner has shown.
    pub shown: BTreeSet<Record>,
    /// The HWM that the owner of a partition told last.
    pub told: BTreeMap<usize, u64>,
    /// Taken by retention.
    pub retained: BTreeSet<Record>,
    /// Proofs of leases that were ever given.
    pub nonces: BTreeSet<u64>,
    /// Openings of logs.
    pub openings: u64,
    /// A node was given up: what consumers had acked of its partitions went with their logs.
    pub given_up: bool,
}

/// A lease in the hands of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The partition.
    pub p: usize,
    /// The record's place.
    pub offset: Offset,
    /// The proof.
    pub nonce: Nonce,
    /// The record.
    pub record: Record,
}

/// A call that arrives late.
#[derive(Clone, Debug)]
pub struct LateCall {
    /// At which node.
    pub n: usize,
    /// For which partition.
    pub p: usize,
    /// The call.
    pub input: SourceInput,
}

/// Things that happened, for tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// CompleteMove took effect.
    pub flips: u32,
    /// ForcePromote took effect.
    pub promotions: u32,
    /// Handoffs cancelled.
    pub cancels: u32,
    /// Installs rolled back.
    pub rollbacks: u32,
    /// Copies reclaimed.
    pub reclaims: u32,
    /// Nodes removed.
    pub removals: u32,
    /// Nodes given up.
    pub given_up: u32,
}

/// See the file's description.
#[derive(Clone, Debug)]
pub struct World {
    /// Its make.
    pub setup: Arc<Setup>,
    /// The one clock.
    pub now: MonoMs,
    /// The versions that a node may still have to apply, oldest first.
    pub versions: Vec<Arc<Version>>,
    /// The command that was applied last.
    pub last_command: Option<Command>,
    /// Proposals that may be applied later.
    pub pool: Vec<Command>,
    /// Calls that may arrive later.
    pub calls: Vec<LateCall>,
    /// Leases that consumers hold, oldest first.
    pub held: Vec<Held>,
    /// The nodes.
    pub nodes: Vec<Arc<Node>>,
    /// Partitions by number, those of deleted topics too.
    pub keys: Vec<PartitionKey>,
    /// Who leads, with a quorum or not.
    pub leader: usize,
    /// Its term.
    pub term: u64,
    /// For the checkers.
    pub ghost: Arc<Ghost>,
    /// Faults that are left.
    pub faults: u8,
    /// Commands that are left.
    pub commands: u64,
    /// Times that time may yet pass.
    pub advances: u8,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// For tables.
    pub count: Count,
    /// A revival that the heartbeat of this step brings about comes late.
    pub(crate) late_revival: bool,
    /// How the proposal of the tick that runs goes.
    pub(crate) cancel_how: How,
}

impl World {
    /// The newest version.
    #[must_use]
    pub fn last(&self) -> &MetaState {
        &self.versions.last().expect("never empty").state
    }

    /// What a node has applied.
    #[must_use]
    pub fn state_of(&self, n: usize) -> &Arc<Version> {
        let first = self.versions[0].state.applied;
        let at = usize::try_from(self.nodes[n].applied.0 - first.0).expect("small");
        &self.versions[at]
    }

    /// The newest assignment of a partition.
    #[must_use]
    pub fn view(&self, p: usize) -> Option<&Assignment> {
        self.last().assignment(self.keys[p])
    }

    /// The assignment that a node has applied.
    #[must_use]
    pub fn view_of(&self, n: usize, p: usize) -> Option<&Assignment> {
        self.state_of(n).state.assignment(self.keys[p])
    }

    /// The number of a node.
    #[must_use]
    pub fn index_of(&self, id: &NodeId) -> usize {
        self.nodes
            .iter()
            .position(|node| node.id == *id)
            .expect("every node is in the world")
    }

    /// The number of a partition.
    #[must_use]
    pub fn number_of(&self, key: PartitionKey) -> usize {
        self.keys
            .iter()
            .position(|known| *known == key)
            .expect("every partition is in the world")
    }

    pub(crate) fn node(&mut self, n: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[n])
    }

    pub(crate) fn part(&mut self, n: usize, p: usize) -> &mut Part {
        &mut self.node(n).parts[p]
    }

    pub(crate) fn ghost(&mut self) -> &mut Ghost {
        Arc::make_mut(&mut self.ghost)
    }

    /// Whether the rule is switched off.
    #[must_use]
    pub fn off(&self, mutation: Mutation) -> bool {
        self.setup.mutation == Some(mutation)
    }

    /// Whether two nodes' peers reach each other.
    #[must_use]
    pub fn reach(&self, from: usize, to: usize) -> bool {
        let (a, b) = (&self.nodes[from], &self.nodes[to]);
        a.up && b.up && (from == to || (!a.cut && !b.cut))
    }

    pub(crate) fn add_topic(&mut self, topic: TopicId) {
        for partition in 0..self.setup.partitions {
            self.keys.push(PartitionKey {
                topic,
                partition: PartitionIndex(partition),
            });
        }
        let count = self.keys.len();
        for n in 0..self.nodes.len() {
            self.node(n).parts.resize_with(count, Part::default);
        }
    }
}
