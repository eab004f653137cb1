//! The state of one shard executor: its partitions by key, its ingress WAL, its way to other nodes.
//!
//! What this file keeps true: a partition's slot is the only way to its log, and opening, retiring
//! and deleting a partition's copies exclude each other through the slot's gate.

use crate::context::NodeContext;
use crate::shard::faults;
use crate::shard::incoming::Rooms;
use crate::shard::limits::OPENS_AT_ONCE;
use crate::shard::partition::{Partition, Wakes};
use crate::shard::reconcile::Due;
use crate::shard::wals::Dispatchers;
use narad_core::copy::InstallMark;
use narad_core::ids::{CopyId, MonoMs, Nonce, Offset, PartitionKey, ShardIndex, TopicId};
use narad_core::meta::{Assignment, EpochEnd};
use narad_core::routing::Sticky;
use narad_storage::{Installed, Options, Wal};
use narad_wire::error::WireFault;
use narad_wire::pool::PeerPool;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Mutex, Notify, Semaphore};

/// What a partition's slot holds.
#[derive(Clone, Default)]
pub(crate) enum SlotState {
    /// Nothing is open: not opened yet, never appended to, or not owned here.
    #[default]
    Idle,
    /// Open.
    Open(Rc<Partition>),
    /// It cannot be opened; tried again after a while unless its log is missing.
    Failed(WireFault),
}

/// The place of one partition on this shard.
pub(crate) struct Slot {
    pub(crate) key: PartitionKey,
    /// Held while the partition's copies are opened, retired or deleted.
    pub(crate) gate: Mutex<()>,
    pub(crate) state: RefCell<SlotState>,
    /// When it could not be opened last.
    pub(crate) failed_at: Cell<MonoMs>,
    /// Somebody who wants to append has it opened now.
    pub(crate) attempting: Cell<bool>,
    /// Why the last such attempt failed.
    pub(crate) refused: RefCell<Option<WireFault>>,
    /// Wakes who waits for an attempt.
    pub(crate) attempt_ended: Notify,
}

impl Slot {
    /// The open partition, if there is one.
    pub(crate) fn open(&self) -> Option<Rc<Partition>> {
        match &*self.state.borrow() {
            SlotState::Open(partition) => Some(partition.clone()),
            SlotState::Idle | SlotState::Failed(_) => None,
        }
    }

    /// The open partition, once Raft knows that its log exists.
    pub(crate) fn usable(&self) -> Option<Rc<Partition>> {
        self.open().filter(|partition| partition.marked.get())
    }

    /// Why it could not be opened.
    pub(crate) fn failure(&self) -> Option<WireFault> {
        match &*self.state.borrow() {
            SlotState::Failed(fault) => Some(fault.clone()),
            SlotState::Idle | SlotState::Open(_) => None,
        }
    }
}

/// One shard executor's data plane.
pub(crate) struct Shard {
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) index: ShardIndex,
    /// The data directory.
    pub(crate) root: PathBuf,
    pub(crate) options: Options,
    pub(crate) pool: PeerPool,
    pub(crate) dispatchers: Dispatchers,
    /// Real copies of this shard's partitions on the disk, as found at the start and changed since.
    pub(crate) copies: RefCell<BTreeMap<CopyId, Option<InstallMark>>>,
    /// What the mover has installed and nobody has opened yet.
    pub(crate) installed: RefCell<BTreeMap<CopyId, Installed>>,
    /// Ended copies whose records above the salvage point are in the WAL already, with how they ended
    /// then.
    pub(crate) salvaged: RefCell<HashMap<CopyId, EpochEnd>>,
    /// Where the salvage of an ended copy goes on, when it was cut short, while it ended so.
    pub(crate) salvage_at: RefCell<BTreeMap<CopyId, (EpochEnd, Offset)>>,
    /// Ended copies of which records could not be salvaged, because they are damaged.
    pub(crate) damaged: RefCell<HashSet<CopyId>>,
    /// Copies that the metadata does not account for, told once.
    pub(crate) strays: RefCell<HashSet<CopyId>>,
    /// Logs of this shard that have stopped, as told to the metrics.
    pub(crate) stopped_logs: Cell<i64>,
    /// Where records without a key go now, by topic.
    pub(crate) sticky: RefCell<HashMap<TopicId, Sticky>>,
    /// Background work on copies that runs now or waits out its pause.
    pub(crate) busy: RefCell<HashSet<CopyId>>,
    /// Bounds the logs that are opened at once.
    pub(crate) opens: Semaphore,
    /// Partitions that the reconcile loop is to look at.
    pub(crate) due: Rc<Due>,
    /// Wakes the flush of frontiers.
    pub(crate) flush: Rc<Notify>,
    /// Rotates starting points, so that no partition is always served first.
    pub(crate) turn: Cell<usize>,
    /// Records on their way into the WAL that it does not count yet.
    pub(crate) entering: Cell<u64>,
    /// Room for records of produce calls.
    pub(crate) rooms: Rooms,
    slots: RefCell<HashMap<PartitionKey, Rc<Slot>>>,
    arrivals: RefCell<HashMap<TopicId, Rc<Notify>>>,
}

impl Shard {
    /// A shard without partitions.
    pub(crate) fn new(
        ctx: Arc<NodeContext>,
        index: ShardIndex,
        options: Options,
        pool: PeerPool,
        dispatchers: Dispatchers,
    ) -> Self {
        Self {
            root: ctx.config.data_dir.clone(),
            index,
            options,
            pool,
            dispatchers,
            copies: RefCell::default(),
            installed: RefCell::default(),
            salvaged: RefCell::default(),
            salvage_at: RefCell::default(),
            damaged: RefCell::default(),
            strays: RefCell::default(),
            stopped_logs: Cell::new(0),
            sticky: RefCell::default(),
            busy: RefCell::default(),
            opens: Semaphore::new(OPENS_AT_ONCE),
            due: Rc::default(),
            flush: Rc::new(Notify::new()),
            turn: Cell::new(0),
            entering: Cell::new(0),
            rooms: Rooms::default(),
            slots: RefCell::default(),
            arrivals: RefCell::default(),
            ctx,
        }
    }

    /// This shard's ingress WAL. After an error of the disk there is another one, so it is asked for
    /// each time.
    pub(crate) fn wal(&self) -> Wal {
        self.dispatchers.own()
    }

    /// Whether this shard is the partition's on this node.
    pub(crate) fn is_mine(&self, key: PartitionKey) -> bool {
        self.ctx.shard_of(key) == self.index
    }

    /// Whether an assignment names this node as the owner.
    pub(crate) fn owns(&self, assignment: &Assignment) -> bool {
        assignment.owner == self.ctx.id
    }

    /// The slot of a partition, made when it is not there yet.
    pub(crate) fn slot(&self, key: PartitionKey) -> Rc<Slot> {
        self.slots
            .borrow_mut()
            .entry(key)
            .or_insert_with(|| {
                Rc::new(Slot {
                    key,
                    gate: Mutex::new(()),
                    state: RefCell::default(),
                    failed_at: Cell::default(),
                    attempting: Cell::default(),
                    refused: RefCell::default(),
                    attempt_ended: Notify::new(),
                })
            })
            .clone()
    }

    /// The slot of a partition, if anything ever happened to it here.
    pub(crate) fn known_slot(&self, key: PartitionKey) -> Option<Rc<Slot>> {
        self.slots.borrow().get(&key).cloned()
    }

    /// Drops the slot of a partition that is gone.
    pub(crate) fn forget_slot(&self, key: PartitionKey) {
        self.slots.borrow_mut().remove(&key);
    }

    /// Open partitions of a topic, in partition order.
    pub(crate) fn open_of_topic(&self, topic: TopicId) -> Vec<Rc<Partition>> {
        let mut open: Vec<_> = self
            .slots
            .borrow()
            .values()
            .filter(|slot| slot.key.topic == topic)
            .filter_map(|slot| slot.open())
            .collect();
        open.sort_by_key(|partition| partition.key());
        open
    }

    /// All open partitions.
    pub(crate) fn open_partitions(&self) -> Vec<Rc<Partition>> {
        self.slots
            .borrow()
            .values()
            .filter_map(|slot| slot.open())
            .collect()
    }

    /// What wakes the consumers of a topic.
    pub(crate) fn arrivals(&self, topic: TopicId) -> Rc<Notify> {
        self.arrivals.borrow_mut().entry(topic).or_default().clone()
    }

    /// Drops what belongs to topics that are gone.
    pub(crate) fn forget_topics(&self, keep: impl Fn(TopicId) -> bool) {
        self.arrivals
            .borrow_mut()
            .retain(|topic, notify| keep(*topic) || Rc::strong_count(notify) > 1);
        self.sticky.borrow_mut().retain(|topic, _| keep(*topic));
        self.slots.borrow_mut().retain(|key, slot| {
            keep(key.topic) || slot.open().is_some() || Rc::strong_count(slot) > 1
        });
    }

    /// What a partition of this topic wakes.
    pub(crate) fn wakes(&self, topic: TopicId) -> Wakes {
        Wakes {
            arrivals: self.arrivals(topic),
            due: self.due.clone(),
            flush: self.flush.clone(),
        }
    }

    /// The open partition, for a call that does not make one.
    pub(crate) fn opened(&self, key: PartitionKey) -> Result<Rc<Partition>, WireFault> {
        if let Some(slot) = self.known_slot(key) {
            if let Some(partition) = slot.open() {
                return Ok(partition);
            }
            if let Some(fault) = slot.failure() {
                return Err(fault);
            }
        }
        let state = self.ctx.state();
        match state.assignment(key) {
            None => Err(faults::topic_gone(key)),
            Some(assignment) if self.owns(assignment) => Err(faults::opening(key)),
            Some(_) => Err(faults::not_owner(&state, key)),
        }
    }

    /// A number that turns with every call.
    pub(crate) fn next_turn(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    /// Where a lease table's nonces start: at random, so that they never repeat across restarts or
    /// owners.
    pub(crate) fn first_nonce() -> Nonce {
        Nonce(rand::random::<u64>())
    }
}
