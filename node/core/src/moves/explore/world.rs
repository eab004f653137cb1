//! The world of a walk: clocks, nodes, the log of metadata versions, the faults, the checks.

use crate::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use crate::defaults::{DEAD_AFTER_MS, FORCE_PROMOTE_AFTER_MS, MOVE_LEASE_MS};
use crate::ids::{
    CopyId, Epoch, MonoMs, MoveId, NodeId, NodeIncarnation, Offset, PartitionIndex, PartitionKey,
    RaftIndex, TopicId, TopicName,
};
use crate::meta::{Assignment, Command, EpochEnd, MemberStatus, MetaState, Reply, TopicSettings};
use crate::moves::lease::MoveLease;
use crate::moves::source::SourceInput;
use crate::moves::target::Told;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::source_shell::Source;
use super::target_shell::Worker;

pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A copy on a disk; all its records are durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Copy {
    pub(super) records: Vec<u64>,
    pub(super) hwm: usize,
    pub(super) mark: Option<InstallMark>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Staging {
    pub(super) move_id: MoveId,
    pub(super) records: Vec<u64>,
    /// What a crash leaves of them.
    pub(super) durable: usize,
    pub(super) told: Option<Told>,
    pub(super) finished: Option<(usize, InstallMark)>,
}

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) up: bool,
    pub(super) cut: bool,
    /// Its mover does not run for a while (a stalled disk, a stopped thread).
    pub(super) stalled: bool,
    /// Has confirmed its ownership by a barrier since it started.
    pub(super) confirmed: bool,
    pub(super) applied: usize,
    pub(super) lease: MoveLease,
    pub(super) source: Option<Source>,
    pub(super) worker: Option<Worker>,
    pub(super) copies: BTreeMap<Epoch, Copy>,
    pub(super) staging: Option<Staging>,
    pub(super) wal: Vec<u64>,
    incarnation: u64,
    last_beat: MonoMs,
    died: MonoMs,
    /// When this node saw the owner dead first, and which death.
    pub(super) owner_dead: Option<(u64, MonoMs)>,
}

#[derive(Default)]
pub(super) struct Count {
    pub(super) flips: u32,
    pub(super) promotions: u32,
    pub(super) cancels: u32,
    pub(super) rollbacks: u32,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: MonoMs,
    pub(super) versions: Vec<MetaState>,
    pub(super) key: PartitionKey,
    pub(super) nodes: Vec<Node>,
    pub(super) late_commands: Vec<Command>,
    pub(super) late_calls: Vec<(usize, SourceInput)>,
    pub(super) acked: BTreeSet<u64>,
    pub(super) next_record: u64,
    pub(super) faults: bool,
    pub(super) count: Count,
}

/// One segment that grows; a record is a byte, the digest a hash of all of them.
pub(super) fn segment(records: &[u64]) -> Vec<SegmentState> {
    if records.is_empty() {
        return Vec::new();
    }
    let mut digest = 0x811c_9dc5_u32;
    for record in records {
        digest = (digest ^ u32::try_from(record & 0xffff_ffff).expect("masked"))
            .wrapping_mul(16_777_619);
    }
    let len = records.len() as u64;
    vec![SegmentState {
        id: SegmentId {
            base: Offset(0),
            epoch: Epoch(1),
        },
        durable_len: len,
        digest,
        end: Offset(len),
        sealed: false,
    }]
}

pub(super) fn manifest(copy: &Copy) -> Manifest {
    Manifest {
        segments: segment(&copy.records),
        hwm: Offset(copy.hwm as u64),
        ..Manifest::default()
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let names = ["a", "b", "c"];
        let node = |name: &&str| Node {
            id: NodeId((*name).into()),
            up: true,
            cut: false,
            stalled: false,
            confirmed: false,
            applied: 0,
            lease: MoveLease::new(),
            source: None,
            worker: None,
            copies: BTreeMap::new(),
            staging: None,
            wal: Vec::new(),
            incarnation: 1,
            last_beat: MonoMs(0),
            died: MonoMs(0),
            owner_dead: None,
        };
        let mut world = Self {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: MonoMs(0),
            versions: vec![MetaState::default()],
            key: PartitionKey {
                topic: TopicId(0),
                partition: PartitionIndex(0),
            },
            nodes: names.iter().map(node).collect(),
            late_commands: Vec::new(),
            late_calls: Vec::new(),
            acked: BTreeSet::new(),
            next_record: 1,
            faults: true,
            count: Count::default(),
        };
        for at in 0..world.nodes.len() {
            world.register(at);
        }
        world.commit(&Command::CreateTopic {
            name: TopicName("t".into()),
            partitions: 1,
            parent: None,
            settings: TopicSettings::default(),
        });
        world.key.topic = TopicId(world.last().applied.0);
        let owner = world.view().owner.clone();
        let at = world.index_of(&owner);
        world.nodes[at].copies.insert(Epoch(1), Copy::default());
        for at in 0..world.nodes.len() {
            world.catch_up(at);
        }
        world
    }

    fn register(&mut self, at: usize) {
        let node = &self.nodes[at];
        let command = Command::Register {
            id: node.id.clone(),
            addr: format!("{}:1", node.id),
            bulk_addr: format!("{}:2", node.id),
            http_addr: "".into(),
            incarnation: NodeIncarnation(node.incarnation * 10 + at as u64),
            disk: at as u64 + 1,
            shards: 1,
            version: "1".into(),
        };
        self.commit(&command);
    }

    pub(super) fn last(&self) -> &MetaState {
        self.versions.last().expect("never empty")
    }

    pub(super) fn view(&self) -> &Assignment {
        self.last().assignment(self.key).expect("the topic stays")
    }

    pub(super) fn view_at(&self, at: usize) -> (RaftIndex, Option<Assignment>) {
        let state = &self.versions[self.nodes[at].applied];
        (state.applied, state.assignment(self.key).cloned())
    }

    pub(super) fn index_of(&self, id: &NodeId) -> usize {
        self.nodes
            .iter()
            .position(|n| n.id == *id)
            .expect("every node is in the world")
    }

    pub(super) fn talks(&self, at: usize) -> bool {
        self.nodes[at].up && !self.nodes[at].cut
    }

    /// Commits a command; a leader that was not asked to wait for anything.
    pub(super) fn commit(&mut self, command: &Command) -> Reply {
        let mut state = self.last().clone();
        let index = RaftIndex(state.applied.0 + 1);
        let reply = state.apply(index, command);
        self.versions.push(state);
        if matches!(reply, Reply::Done { .. }) {
            match command {
                Command::CompleteMove { .. } => {
                    self.count.flips += 1;
                    self.check_flip();
                }
                Command::ForcePromote { .. } => self.count.promotions += 1,
                Command::CancelHandoff { .. } => self.count.cancels += 1,
                _ => {}
            }
        }
        reply
    }

    /// Whether the leader lets a promotion through: it has itself waited since the death.
    pub(super) fn leader_waited(&self, command: &Command) -> bool {
        match command {
            Command::ForcePromote { owner, .. } => {
                let died = self.nodes[self.index_of(owner)].died;
                self.now.since(died) >= FORCE_PROMOTE_AFTER_MS
            }
            _ => true,
        }
    }

    pub(super) fn random_step(&mut self) {
        let at = usize::try_from(self.rng.below(3)).expect("small");
        match self.rng.below(100) {
            0..=9 => {
                let ms = self.rng.below(400);
                self.advance(ms);
            }
            10 if self.rng.percent(20) => {
                let ms = self.rng.below(160_000);
                self.advance(ms);
            }
            10..=24 => self.apply_some(at),
            25..=39 => self.begin_append(at),
            40..=54 => self.end_append(at),
            55..=84 => self.worker_step(at),
            85 => self.crash_or_restart(at),
            86 => self.nodes[at].cut = self.rng.percent(30),
            87..=89 => self.late(),
            90..=93 => self.controller(at),
            94 => self.nodes[at].stalled = self.rng.percent(60),
            95 if self.rng.percent(10) => self.advance(12_000),
            _ => self.reclaim(at),
        }
    }

    /// Time passes in slices; living nodes beat, the leader counts.
    pub(super) fn advance(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while self.now < end {
            self.now = MonoMs(end.0.min(self.now.0 + 500));
            for at in 0..self.nodes.len() {
                if self.talks(at) && self.rng.percent(85) {
                    self.beat(at);
                }
                if self.rng.percent(60) {
                    self.apply_some(at);
                }
                self.tick_source(at);
                self.tick_worker(at);
            }
            self.mark_dead();
        }
    }

    fn beat(&mut self, at: usize) {
        let id = self.nodes[at].id.clone();
        self.nodes[at].last_beat = self.now;
        let member = &self.last().members[&id];
        if member.status == MemberStatus::Dead {
            // No lease before the revival is committed (rule R11).
            let command = Command::MarkAlive {
                incarnation: member.incarnation,
                deaths: member.deaths,
                id,
            };
            self.commit(&command);
            return;
        }
        let commit = self.last().applied;
        let until = self.now.plus_ms(MOVE_LEASE_MS);
        self.nodes[at].lease.renewed(until, commit);
    }

    fn mark_dead(&mut self) {
        for at in 0..self.nodes.len() {
            let id = self.nodes[at].id.clone();
            let member = &self.last().members[&id];
            let silent = self.now.since(self.nodes[at].last_beat) >= DEAD_AFTER_MS;
            if silent && member.status == MemberStatus::Alive {
                let command = Command::MarkDead {
                    incarnation: member.incarnation,
                    deaths: member.deaths,
                    id,
                };
                if matches!(self.commit(&command), Reply::Done { .. }) {
                    self.nodes[at].died = self.now;
                }
            }
        }
    }

    /// The node applies the next versions and looks what is to be done.
    pub(super) fn apply_some(&mut self, at: usize) {
        if !self.talks(at) {
            return;
        }
        let last = self.versions.len() - 1;
        let node = &mut self.nodes[at];
        let steps = usize::try_from(1 + self.rng.below(4)).expect("small");
        node.applied = last.min(node.applied + steps);
        if !node.confirmed && node.applied == last {
            node.confirmed = true;
        }
        self.applied(at);
    }

    pub(super) fn catch_up(&mut self, at: usize) {
        if self.talks(at) {
            self.nodes[at].applied = self.versions.len() - 1;
            self.nodes[at].confirmed = true;
            self.applied(at);
        }
    }

    fn applied(&mut self, at: usize) {
        let (index, assignment) = self.view_at(at);
        self.feed_source(
            at,
            SourceInput::AssignmentApplied {
                index,
                assignment: assignment.clone(),
            },
        );
        self.nodes[at].lease.applied(index);
        self.open_source(at);
        self.worker_applied(at, index, assignment);
    }

    fn crash_or_restart(&mut self, at: usize) {
        if self.nodes[at].up {
            if self.rng.percent(60) {
                return;
            }
            self.crash_source(at);
            let node = &mut self.nodes[at];
            node.up = false;
            node.confirmed = false;
            node.worker = None;
            node.owner_dead = None;
            node.lease = MoveLease::new();
            if let Some(staging) = &mut node.staging {
                staging.records.truncate(staging.durable);
                staging.finished = None;
            }
            if self.rng.percent(60) {
                self.restart(at);
            }
        } else {
            self.restart(at);
        }
    }

    pub(super) fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.up {
            return;
        }
        node.up = true;
        node.incarnation += 1;
        node.last_beat = self.now;
        self.register(at);
    }

    pub(super) fn late(&mut self) {
        if !self.late_commands.is_empty() && self.rng.percent(50) {
            let pick = self.pick(self.late_commands.len());
            let command = self.late_commands.swap_remove(pick);
            if self.leader_waited(&command) {
                self.commit(&command);
            }
        } else if !self.late_calls.is_empty() {
            let pick = self.pick(self.late_calls.len());
            let (at, call) = self.late_calls.swap_remove(pick);
            if self.talks(at) {
                self.feed_source(at, call);
            }
        }
    }

    pub(super) fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.rng.below(len as u64)).expect("fits")
    }

    /// A controller that plans at random: new targets, other targets, cleared ones, cancelled ones.
    fn controller(&mut self, to: usize) {
        let view = self.view().clone();
        let state = self.last();
        let alive = |id: &NodeId| state.is_alive(id);
        let command = match &view.target {
            Some(t) if t.handoff.is_some() => {
                if alive(&t.node) && alive(&view.owner) && !self.rng.percent(20) {
                    return;
                }
                Command::CancelHandoff {
                    key: self.key,
                    handoff_id: t.handoff.expect("checked"),
                }
            }
            Some(t) if alive(&t.node) && !self.rng.percent(15) => return,
            Some(t) if self.rng.percent(50) => Command::ClearTarget {
                key: self.key,
                move_id: t.move_id,
                no_room: false,
            },
            replaced => Command::SetTarget {
                key: self.key,
                owner: view.owner.clone(),
                epoch: view.epoch,
                replaces: replaced.as_ref().map(|t| t.move_id),
                seen: self.last().applied,
                target: self.nodes[to].id.clone(),
                manual: false,
            },
        };
        self.commit(&command);
    }

    /// An ended copy is salvaged into the WAL and deleted, by its identity, once the owner serves.
    pub(super) fn reclaim(&mut self, at: usize) {
        if !self.talks(at) || self.nodes[at].applied + 1 != self.versions.len() {
            return;
        }
        let view = self.view().clone();
        let owner = self.index_of(&view.owner);
        let serves = self.talks(owner)
            && self.nodes[owner]
                .source
                .as_ref()
                .is_some_and(|s| s.side.copy().epoch == view.epoch && s.side.may_consume());
        let me = self.nodes[at].id.clone();
        let Some(ended) = view.ended.iter().find(|e| e.owner == me) else {
            return;
        };
        if !serves || self.nodes[at].source.as_ref().is_some_and(|s| s.busy()) {
            return;
        }
        let from = match ended.end {
            EpochEnd::Completed { captured_end } => captured_end,
            EpochEnd::Promoted { told_hwm } => told_hwm,
            EpochEnd::Forgotten => unreachable!("no node is given up in this model"),
        };
        let node = &mut self.nodes[at];
        if let Some(copy) = node.copies.remove(&ended.epoch) {
            let from = usize::try_from(from.0).expect("fits");
            node.wal.extend(copy.records.iter().skip(from));
        }
        let command = Command::MarkReclaimed {
            key: self.key,
            epoch: ended.epoch,
            owner: me,
        };
        self.commit(&command);
    }

    pub(super) fn copy_id(&self, epoch: Epoch) -> CopyId {
        CopyId {
            key: self.key,
            epoch,
        }
    }
}
