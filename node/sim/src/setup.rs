//! What a world is made of and what may happen in it: the bounds of a model or of a walk.
//!
//! What this file keeps true: whatever bounds a run is here and can be printed; nothing else is
//! left out of it.

use crate::action::Span;
use crate::mutation::Mutation;

/// Kinds of actions that a world may take, beyond the move itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Produce at nodes that do not own the partition: into their WAL.
    pub wal: bool,
    /// Being in the file and being durable are two steps.
    pub written: bool,
    /// Consumers ack.
    pub consume: bool,
    /// Retention.
    pub retain: bool,
    /// Nodes that may crash.
    pub crash: Vec<usize>,
    /// Nodes that may be cut off.
    pub cut: Vec<usize>,
    /// Nodes whose heartbeats and log may be cut off.
    pub mute: Vec<usize>,
    /// Nodes that may be elected.
    pub elect: Vec<usize>,
    /// Ways in which things go wrong: requests and answers lost.
    pub loss: bool,
    /// Proposals that come late, and repeated ones.
    pub late: bool,
    /// Any applied command may come again.
    pub redo: bool,
    /// Local failures of a disk.
    pub disk: bool,
    /// Time that may pass.
    pub advance: Vec<Span>,
    /// Nodes to which an operator may move a partition.
    pub move_to: Vec<usize>,
    /// An operator may end moves.
    pub cancel: bool,
    /// Nodes that an operator may drain.
    pub drain: Vec<usize>,
    /// Nodes that an operator may give up while they are dead; one a run.
    pub give_up: Vec<usize>,
    /// The topic is deleted and made again.
    pub topic: bool,
    /// Ended copies are salvaged and reclaimed.
    pub reclaim: bool,
    /// The controller plans.
    pub plan: bool,
    /// Nodes whose heartbeats are steps of their own; they come by themselves too, as time passes.
    pub beat: Vec<usize>,
}

/// A world's make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its name in tables.
    pub name: &'static str,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of partitions of the topic.
    pub partitions: u32,
    /// Records a segment.
    pub segment: u64,
    /// Bytes that a record counts as in a copy: a large one makes tails that take passes.
    pub record_bytes: u64,
    /// Who leads at first.
    pub leader: usize,
    /// Leases, deaths and promotions are in it; without, every lease runs.
    pub deaths: bool,
    /// The rule that does not hold.
    pub mutation: Option<Mutation>,
    /// Faults a run.
    pub faults: u8,
    /// Records that clients send.
    pub records: u32,
    /// Records that are there at the start.
    pub preload: u32,
    /// Commands beyond the start.
    pub commands: u64,
    /// Times that time passes.
    pub advances: u8,
    /// Appends in flight, a partition.
    pub in_flight: usize,
    /// Nodes that apply everything at once.
    pub eager: Vec<usize>,
    /// Local steps of a worker that cannot fail here, and its pauses, are not steps of their own.
    pub chained: bool,
    /// The moves that run from the start: of which partition, to which node.
    pub moves: Vec<(usize, usize)>,
    /// A walk in which flips seldom go as they should.
    pub unknown: bool,
    /// What may happen.
    pub allow: Allow,
}

impl Setup {
    /// A world of three nodes and one partition in which a move runs and nothing goes wrong.
    #[must_use]
    pub fn quiet(name: &'static str) -> Self {
        Self {
            name,
            nodes: 3,
            partitions: 1,
            segment: 1_000,
            record_bytes: 1,
            leader: 2,
            deaths: false,
            mutation: None,
            faults: 0,
            records: 2,
            preload: 1,
            commands: 8,
            advances: 0,
            in_flight: 2,
            eager: vec![2],
            chained: true,
            moves: vec![(0, 1)],
            unknown: false,
            allow: Allow::default(),
        }
    }

    /// The same with a rule switched off.
    #[must_use]
    pub fn without(&self, mutation: Mutation) -> Self {
        Self {
            mutation: Some(mutation),
            ..self.clone()
        }
    }
}
