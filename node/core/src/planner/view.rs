//! The state as the planner looks at it: who may receive, what each node holds, what may move.
//!
//! What this file keeps true: a partition in flight counts at its target; one whose target cannot
//! receive any more counts at its owner and may move again; a dead owner's partitions count
//! nowhere and stay; a node's room is what it told, less the reserve of copies and all that is on
//! its way to it; what is not told fits nowhere.

use super::{CancelReason, CancelWhat, Disks, MoveReason, PlanNote, PlannedCancel};
use crate::copies::has_log;
use crate::defaults::STAGING_RESERVE_BYTES;
use crate::ids::{Epoch, MoveId, NodeId, PartitionIndex, PartitionKey, RaftIndex, TopicId};
use crate::meta::{Assignment, MetaState, MoveTarget};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// A partition that may move.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) key: PartitionKey,
    pub(super) owner: usize,
    pub(super) epoch: Epoch,
    /// Its running move, whose target cannot receive any more.
    pub(super) replaces: Option<MoveId>,
    /// A handoff of that move must be cancelled first, so the step waits for the next pass.
    pub(super) withheld: bool,
    /// 0 while they are not told.
    pub(super) bytes: u64,
    /// How large it is is known.
    pub(super) told: bool,
    /// It may go to every receiver that has room, and has no relatives: one of its topic is like another
    /// but for its size.
    pub(super) plain: bool,
    /// Nodes that still keep an old copy (rule R1).
    pub(super) barred: Vec<usize>,
    /// Nodes that had no room for it, whatever they told.
    pub(super) full: Vec<usize>,
}

/// A step chosen.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) item: Item,
    pub(super) target: usize,
    pub(super) reason: MoveReason,
}

/// Moves that run now, by node.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) active: usize,
    pub(super) inbound: Vec<usize>,
    pub(super) outbound: Vec<usize>,
}

/// Why a partition goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Whoever could take it keeps an old copy, or nobody could.
    Place,
    /// Its size, or the room of those that could take it, is not told.
    Telling,
    /// Those that could take it have no room; the most that one has, and which.
    Room(usize, u64),
}

/// See the file's description. Nodes are indexes into `nodes`, which is in order of ids.
pub(super) struct View<'a> {
    pub(super) applied: RaftIndex,
    pub(super) nodes: Vec<&'a NodeId>,
    pub(super) receives: Vec<bool>,
    pub(super) load: Vec<usize>,
    pub(super) movable: Vec<Vec<Item>>,
    pub(super) slots: Slots,
    /// Bytes that copies may take; `None` until the node has told.
    room: Vec<Option<u64>>,
    disks: Option<Disks<'a>>,
    home: BTreeMap<PartitionKey, usize>,
    of_topic: BTreeMap<(TopicId, usize), i64>,
    parent: BTreeMap<PartitionKey, PartitionKey>,
    children: BTreeMap<PartitionKey, Vec<PartitionKey>>,
    stale: Vec<(PartitionKey, MoveTarget, CancelReason)>,
    dead_handoffs: Vec<PlannedCancel>,
    notes: Vec<PlanNote>,
}

impl<'a> View<'a> {
    pub(super) fn new(state: &'a MetaState, disks: Option<Disks<'a>>) -> Self {
        let nodes: Vec<&NodeId> = state.members.keys().collect();
        let count = nodes.len();
        let room = |id: &&NodeId| match disks {
            None => Some(u64::MAX),
            Some(disks) => {
                let free = disks.free.get(*id)?;
                Some(free.saturating_sub(STAGING_RESERVE_BYTES))
            }
        };
        let mut view = Self {
            applied: state.applied,
            receives: nodes.iter().map(|id| state.can_receive(id)).collect(),
            room: nodes.iter().map(room).collect(),
            disks,
            nodes,
            load: vec![0; count],
            movable: vec![Vec::new(); count],
            slots: Slots {
                active: 0,
                inbound: vec![0; count],
                outbound: vec![0; count],
            },
            home: BTreeMap::new(),
            of_topic: BTreeMap::new(),
            parent: BTreeMap::new(),
            children: BTreeMap::new(),
            stale: Vec::new(),
            dead_handoffs: Vec::new(),
            notes: Vec::new(),
        };
        if !view.receives.contains(&true) {
            view.note(PlanNote::NoReceiver);
        }
        view.families(state);
        let mut dead_owned = vec![0; count];
        let mut dead_moving = vec![0; count];
        for (key, assignment) in state.assignments() {
            let told = view.bytes(key, assignment);
            let bytes = told.unwrap_or(0);
            let owner = view.index(&assignment.owner);
            let alive = state.is_alive(&assignment.owner);
            match &assignment.target {
                None if alive => view.may_move(key, assignment, owner, bytes, None),
                None => {
                    dead_owned[owner] += 1;
                    view.settle(key, owner, bytes, false);
                }
                Some(target) if alive => {
                    view.running(state, key, assignment, target, bytes);
                    if told.is_none() && !view.has_told(&assignment.owner) {
                        // Nor is what its target will have left. An owner that tells of others has a log that does
                        // not open: that move stands still, and is no reason to keep all others away.
                        let to = view.index(&target.node);
                        view.room[to] = None;
                    }
                }
                Some(target) => {
                    dead_moving[owner] += 1;
                    // It waits for its source: it holds no bandwidth, so no slot either (R14
                    // leaves it alone).
                    let to = view.index(&target.node);
                    view.settle(key, to, bytes, true);
                    view.dead_handoff(key, target, CancelReason::OwnerDead);
                }
            }
        }
        for node in 0..count {
            let id = view.nodes[node].clone();
            if dead_owned[node] > 0 {
                view.note(PlanNote::OwnerDead {
                    node: id.clone(),
                    partitions: dead_owned[node],
                });
            }
            if dead_moving[node] > 0 {
                view.note(PlanNote::SourceDead {
                    node: id,
                    moves: dead_moving[node],
                });
            }
        }
        view
    }

    /// How large a partition is; `None` while its owner has not told.
    pub(super) fn bytes(&self, key: PartitionKey, assignment: &Assignment) -> Option<u64> {
        match self.disks {
            Some(disks) if has_log(assignment) => disks.sizes.get(&key).copied(),
            Some(_) | None => Some(0),
        }
    }

    /// Whether a member has told of its disk since there is this leader.
    fn has_told(&self, id: &NodeId) -> bool {
        self.disks.is_none_or(|disks| disks.free.contains_key(id))
    }

    /// Whether it is known what a node has room for.
    pub(super) fn told(&self, node: usize) -> bool {
        self.room[node].is_some()
    }

    /// Bytes that copies to a member may take, beside those on their way; `None` while it is not known.
    pub(super) fn room(&self, id: &NodeId) -> Option<u64> {
        self.room[self.nodes.binary_search(&id).ok()?]
    }

    /// Which partition feeds which, for keeping them apart.
    fn families(&mut self, state: &MetaState) {
        for topic in state.topics.values() {
            let Some(parent) = topic.parent.as_ref().and_then(|p| state.topic_by_name(p)) else {
                continue;
            };
            for (index, _) in topic.partitions.iter().enumerate() {
                let at = |topic, index: usize| PartitionKey {
                    topic,
                    partition: PartitionIndex(u32::try_from(index).unwrap_or(u32::MAX)),
                };
                let child = at(topic.id, index);
                let feeding = at(parent.id, index % parent.partitions.len());
                self.parent.insert(child, feeding);
                self.children.entry(feeding).or_default().push(child);
            }
        }
    }

    /// A partition in flight whose owner lives.
    fn running(
        &mut self,
        state: &MetaState,
        key: PartitionKey,
        assignment: &Assignment,
        target: &MoveTarget,
        bytes: u64,
    ) {
        let owner = self.index(&assignment.owner);
        let to = self.index(&target.node);
        if self.receives[to] {
            self.slots.active += 1;
            self.slots.inbound[to] += 1;
            self.slots.outbound[owner] += 1;
            self.settle(key, to, bytes, true);
            return;
        }
        let reason = if state
            .members
            .get(&target.node)
            .is_some_and(|member| member.draining)
        {
            CancelReason::TargetDraining
        } else {
            CancelReason::TargetDead
        };
        self.dead_handoff(key, target, reason);
        if target.manual && reason == CancelReason::TargetDead {
            // The operator wanted it there; it may come back.
            self.settle(key, owner, bytes, false);
            self.note(PlanNote::ManualTargetDead {
                key,
                target: target.node.clone(),
            });
            return;
        }
        self.stale.push((key, target.clone(), reason));
        self.may_move(key, assignment, owner, bytes, Some(target));
    }

    fn may_move(
        &mut self,
        key: PartitionKey,
        assignment: &Assignment,
        owner: usize,
        bytes: u64,
        stale: Option<&MoveTarget>,
    ) {
        let barred = assignment
            .ended
            .iter()
            .map(|ended| self.index(&ended.owner))
            .collect::<Vec<usize>>();
        let full = self.disks.into_iter().flat_map(|disks| {
            // All pairs of a partition stand beside each other, in order of the node.
            let of = (key, NodeId(String::new()))..;
            disks.full.range(of).take_while(move |(of, _)| *of == key)
        });
        let full = full.filter_map(|(_, id)| self.nodes.binary_search(&id).ok());
        let full: Vec<usize> = full.collect();
        let related = self.parent.contains_key(&key) || self.children.contains_key(&key);
        let told = self.bytes(key, assignment).is_some();
        self.settle(key, owner, bytes, false);
        self.movable[owner].push(Item {
            key,
            owner,
            epoch: assignment.epoch,
            replaces: stale.map(|t| t.move_id),
            withheld: stale.is_some_and(|t| t.handoff.is_some()),
            bytes,
            told,
            plain: told && stale.is_none() && !related && barred.is_empty() && full.is_empty(),
            barred,
            full,
        });
    }

    /// The partition is, or will be, at `node`.
    fn settle(&mut self, key: PartitionKey, node: usize, bytes: u64, inbound: bool) {
        self.home.insert(key, node);
        *self.of_topic.entry((key.topic, node)).or_default() += 1;
        if self.receives[node] {
            self.load[node] += 1;
        }
        if inbound {
            // What has been copied already is counted twice; that only delays a further move.
            self.take_room(node, bytes);
        }
    }

    fn take_room(&mut self, node: usize, bytes: u64) {
        self.room[node] = self.room[node].map(|room| room.saturating_sub(bytes));
    }

    fn dead_handoff(&mut self, key: PartitionKey, target: &MoveTarget, reason: CancelReason) {
        if let Some(handoff) = target.handoff {
            self.dead_handoffs.push(PlannedCancel {
                key,
                what: CancelWhat::Handoff(handoff),
                reason,
            });
        }
    }

    fn index(&self, id: &NodeId) -> usize {
        self.nodes
            .binary_search(&id)
            .expect("owners, targets and old owners are members")
    }

    /// Whether the item may go to `node`, room aside.
    pub(super) fn may(&self, item: &Item, node: usize) -> bool {
        self.receives[node] && node != item.owner && !item.barred.contains(&node)
    }

    /// Whether the item may go to `node` and fits there.
    pub(super) fn fits(&self, item: &Item, node: usize) -> bool {
        self.fits_without(item, node, 0)
    }

    /// As [`View::fits`], if so many bytes were not bound for `node`.
    pub(super) fn fits_without(&self, item: &Item, node: usize, less: u64) -> bool {
        self.may(item, node)
            && item.told
            && !item.full.contains(&node)
            && self.room[node].is_some_and(|room| item.bytes <= room.saturating_add(less))
    }

    /// Why the item goes to none of `nodes`.
    pub(super) fn want(&self, item: &Item, nodes: impl Iterator<Item = usize>) -> Want {
        let could: Vec<usize> = nodes.filter(|node| self.may(item, *node)).collect();
        if could.is_empty() {
            return Want::Place;
        }
        let untold = |node: &usize| self.room[*node].is_none() && !item.full.contains(node);
        if !item.told || could.iter().any(untold) {
            return Want::Telling;
        }
        let room = |node: usize| {
            // What it told was not so.
            let told = self.room[node].unwrap_or(0);
            let most = match item.full.contains(&node) {
                true => item.bytes.saturating_sub(1),
                false => u64::MAX,
            };
            told.min(most)
        };
        let roomiest = could.into_iter().map(|node| (room(node), node)).max();
        let (room, node) = roomiest.expect("some could take it");
        Want::Room(node, room)
    }

    /// Bytes that copies to a node may take; `None` while it is not known.
    pub(super) fn room_at(&self, node: usize) -> Option<u64> {
        self.room[node]
    }

    /// How many more partitions of its family it would meet at `node` than where it is.
    pub(super) fn family_cost(&self, item: &Item, node: usize) -> i64 {
        self.relatives(item.key, node) - self.relatives(item.key, item.owner)
    }

    pub(super) fn relatives(&self, key: PartitionKey, node: usize) -> i64 {
        let at = |relative: &PartitionKey| i64::from(self.home.get(relative) == Some(&node));
        let parent = self.parent.get(&key).map_or(0, at);
        let children: i64 = self.children.get(&key).into_iter().flatten().map(at).sum();
        parent + children
    }

    /// How much fuller of its topic `node` is than where it is.
    pub(super) fn spread_cost(&self, item: &Item, node: usize) -> i64 {
        let of = |node| self.of_topic.get(&(item.key.topic, node)).copied();
        of(node).unwrap_or(0) - of(item.owner).unwrap_or(0)
    }

    /// Counts the item at `to` from now on.
    pub(super) fn relocate(&mut self, item: &Item, from: usize, to: usize) {
        self.home.insert(item.key, to);
        *self.of_topic.entry((item.key.topic, from)).or_default() -= 1;
        *self.of_topic.entry((item.key.topic, to)).or_default() += 1;
        if self.receives[from] {
            self.load[from] -= 1;
        }
        self.load[to] += 1;
        self.take_room(to, item.bytes);
        if from != item.owner {
            self.room[from] = self.room[from].map(|room| room.saturating_add(item.bytes));
        }
    }

    /// What is to be taken back, given what was chosen.
    pub(super) fn cancels(&self, chosen: &[Step], cancels: &mut Vec<PlannedCancel>) {
        cancels.extend(&self.dead_handoffs);
        let moving: BTreeSet<PartitionKey> = chosen.iter().map(|step| step.item.key).collect();
        for (key, target, reason) in &self.stale {
            if target.handoff.is_none() && !moving.contains(key) {
                cancels.push(PlannedCancel {
                    key: *key,
                    what: CancelWhat::Move(target.move_id),
                    reason: *reason,
                });
            }
        }
    }

    pub(super) fn note(&mut self, note: PlanNote) {
        self.notes.push(note);
    }

    pub(super) fn into_notes(self) -> Vec<PlanNote> {
        self.notes
    }
}
