//! Lives of nodes: the beginning, what they apply, crashes and restarts, heartbeats, leaders, time.
//!
//! What this file keeps true: versions are applied in order; a node that starts appends nothing
//! before a barrier; heartbeats and deaths are decided by the real leader's clocks.

use super::{Ghost, Node, Part, Source, Version, World};
use crate::action::{How, Left, Span};
use crate::bytes;
use crate::hash::Hash128;
use crate::mutation::Mutation;
use crate::setup::Setup;
use narad_core::defaults::{FREEZE_TTL_MS, MOVE_LEASE_MS};
use narad_core::dispatch::{Dispatch, DispatchInput};
use narad_core::ids::{
    Epoch, MonoMs, NodeId, NodeIncarnation, PartitionKey, RaftIndex, RaftTerm, TopicName, WalSeq,
};
use narad_core::liveness::{BeatId, Liveness, LivenessEffect, LivenessInput, ProposalEnd, Timings};
use narad_core::meta::{Command, MemberStatus, MetaState, Reply, TopicSettings};
use narad_core::moves::{MoveLease, SourceInput};
use std::sync::Arc;

/// Time passes in slices of this, in ms: shorter than a lease, so that a leader that is well never
/// takes its own pause for others' silence.
const SLICE_MS: u64 = 5_000;

impl World {
    /// The world of a setup at its start.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let state = MetaState::default();
        let digest = Hash128::of(&state);
        let nodes = (0..setup.nodes).map(|n| Arc::new(new_node(n))).collect();
        let mut world = Self {
            now: MonoMs(1_000_000),
            versions: vec![Arc::new(Version {
                state: Arc::new(state),
                digest,
            })],
            last_command: None,
            pool: Vec::new(),
            calls: Vec::new(),
            nodes,
            keys: Vec::new(),
            held: Vec::new(),
            leader: setup.leader,
            term: 1,
            ghost: Arc::new(Ghost {
                next_record: 1,
                ..Ghost::default()
            }),
            faults: setup.faults,
            commands: setup.commands,
            advances: setup.advances,
            violation: None,
            count: Default::default(),
            cancel_how: How::Ok,
            late_revival: false,
            setup: Arc::new(setup),
        };
        for n in 0..world.nodes.len() {
            world.register(n);
        }
        world.create_topic();
        for n in 0..world.nodes.len() {
            world.node(n).confirmed = true;
        }
        for p in 0..world.keys.len() {
            world.first_owner(p);
        }
        for (p, n) in world.setup.moves.clone() {
            world.move_to(p, n);
        }
        for n in 0..world.nodes.len() {
            world.catch_up(n);
        }
        if world.setup.deaths {
            let leader = world.leader;
            world.lead(leader);
            world.pass(1_000);
        }
        world.last_command = None;
        world.commands = world.setup.commands;
        world.prune();
        world
    }

    pub(crate) fn create_topic(&mut self) -> Reply {
        let name = TopicName("t".into());
        self.commit(&Command::CreateTopic {
            name,
            partitions: self.setup.partitions,
            parent: None,
            settings: TopicSettings::default(),
        })
    }

    /// The first log of a partition, with what is in it at the start.
    fn first_owner(&mut self, p: usize) {
        if self.setup.preload == 0 {
            return;
        }
        let Some(view) = self.view(p).cloned() else {
            return;
        };
        let n = self.index_of(&view.owner);
        let most = self.setup.segment;
        for _ in 0..self.setup.preload {
            let ghost = self.ghost();
            let record = ghost.next_record;
            ghost.next_record += 1;
            ghost.home.insert(record, p);
            ghost.acked.insert(record);
            let copy = self.part(n, p).copies.entry(Epoch(1)).or_default();
            copy.append(record, most);
        }
        let (key, owner, epoch) = (self.keys[p], view.owner, view.epoch);
        self.commit(&Command::MarkOpened { key, owner, epoch });
    }

    fn register(&mut self, n: usize) {
        let node = &self.nodes[n];
        let command = Command::Register {
            id: node.id.clone(),
            addr: "h:1".into(),
            bulk_addr: "h:2".into(),
            http_addr: String::new(),
            incarnation: incarnation(n, node.life),
            disk: n as u64 + 1,
            shards: 1,
            version: "1".into(),
        };
        self.commit(&command);
    }

    /// The node applies the next version.
    pub(crate) fn apply_next(&mut self, n: usize) {
        let next = RaftIndex(self.nodes[n].applied.0 + 1);
        self.apply_to(n, next);
    }

    /// The node applies everything.
    pub(crate) fn catch_up(&mut self, n: usize) {
        let last = self.last().applied;
        if self.nodes[n].applied < last {
            self.apply_to(n, last);
        }
    }

    fn apply_to(&mut self, n: usize, index: RaftIndex) {
        self.node(n).applied = index;
        let version = self.state_of(n).clone();
        if self.setup.deaths {
            self.feed_liveness(n, LivenessInput::Applied(&version.state));
        }
        for p in 0..self.keys.len() {
            let assignment = version.state.assignment(self.keys[p]).cloned();
            if self.nodes[n].parts[p].source.is_some() {
                let opened = assignment.as_ref().is_some_and(|a| a.opened);
                if let Some(source) = &mut self.part(n, p).source {
                    source.marked |= opened;
                }
                self.feed_source(n, p, SourceInput::AssignmentApplied { index, assignment });
            }
            self.open_source(n, p);
            self.follow_worker(n, p);
        }
        // Every partition has been told before the lease counts.
        self.node(n).lease.applied(index);
        self.feed_dispatch(n, DispatchInput::Applied(version.state.clone()));
    }

    /// A started node registers, confirms by a barrier and opens what it owns.
    pub(crate) fn confirm(&mut self, n: usize) {
        if !self.to_leader(n) {
            return;
        }
        self.register(n);
        self.node(n).confirmed = true;
        self.catch_up(n);
    }

    pub(crate) fn crash(&mut self, n: usize, left: Left) {
        let most = self.setup.segment;
        let keep = left == Left::All;
        for p in 0..self.keys.len() {
            let key = self.keys[p];
            let part = self.part(n, p);
            if let Some(source) = part.source.take() {
                crashed(key, part, &source, left, most);
            }
            part.worker = None;
            part.salvaged.clear();
            part.again = None;
            part.rejected = false;
            if let Some(staging) = &mut part.staging
                && !keep
            {
                staging.segments = staging.durable.clone();
            }
        }
        let life = self.nodes[n].life + 1;
        let node = self.node(n);
        node.up = false;
        node.confirmed = false;
        node.life = life;
        node.leads = false;
        node.lease = MoveLease::new();
        node.dispatches.clear();
        let undone = std::mem::take(&mut node.wal_done);
        if !keep {
            // What was delivered last is there again; its owner recognises it.
            node.wal.extend(undone);
            node.wal.sort_by_key(|entry| entry.seq);
        }
        node.liveness = Liveness::new(Timings::default());
    }

    pub(crate) fn restart(&mut self, n: usize) {
        let unmarked = self.off(Mutation::R3);
        let applied = self.nodes[n].applied;
        let state = self.state_of(n).state.clone();
        let node = self.node(n);
        node.up = true;
        node.lease.applied(applied);
        node.dispatch = Dispatch::new(state);
        for part in &mut node.parts {
            part.found = part.copies.values().any(|copy| copy.mark.is_some());
            if unmarked {
                part.found = false;
                for copy in part.copies.values_mut() {
                    copy.mark = None;
                }
            }
        }
        self.feed_dispatch(n, DispatchInput::Tick);
        if self.setup.deaths {
            let version = self.state_of(n).clone();
            self.feed_liveness(n, LivenessInput::Applied(&version.state));
        }
    }

    /// `n` leads from now on; whoever led before does not know.
    pub(crate) fn elect(&mut self, n: usize) {
        self.leader = n;
        self.term += 1;
        self.catch_up(n);
        self.lead(n);
    }

    fn lead(&mut self, n: usize) {
        let term = RaftTerm(self.term);
        self.node(n).leads = true;
        self.feed_liveness(n, LivenessInput::Leading { term });
    }

    pub(crate) fn step_down(&mut self, n: usize) {
        self.node(n).leads = false;
        self.feed_liveness(n, LivenessInput::Following);
    }

    /// A heartbeat, and its answer.
    pub(crate) fn beat(&mut self, n: usize, to: usize, how: How) {
        if !self.nodes[to].leads || how == How::Lost {
            return;
        }
        let node = self.nodes[n].id.clone();
        let input = LivenessInput::Beat {
            beat: beat_id(self.now, n, how == How::NoReply),
            node: &node,
            incarnation: incarnation(n, self.nodes[n].life),
        };
        self.late_revival = how == How::Late;
        self.feed_liveness(to, input);
        self.late_revival = false;
    }

    /// Steps a leader's clocks and carries out what they want.
    fn feed_liveness(&mut self, at: usize, input: LivenessInput<'_>) {
        let now = self.now;
        let mut effects = self.node(at).liveness.step(now, input);
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                more.extend(self.liveness_effect(at, effect));
            }
            effects = more;
        }
    }

    fn liveness_effect(&mut self, at: usize, effect: LivenessEffect) -> Vec<LivenessEffect> {
        let now = self.now;
        let genuine = at == self.leader && self.has_leader();
        match effect {
            LivenessEffect::StartRound { round } => {
                let commit = if genuine {
                    Some(self.last().applied)
                } else {
                    self.off(Mutation::DeposedLeaderAnswers)
                        .then_some(self.nodes[at].applied)
                };
                let input = LivenessInput::Round { round, commit };
                let mut effects = self.node(at).liveness.step(now, input);
                if genuine && self.nodes[at].applied < self.last().applied {
                    self.catch_up_quietly(at, &mut effects);
                }
                effects
            }
            LivenessEffect::Answer {
                beat,
                commit,
                lease_ms,
                registered,
                ..
            } => {
                if let Some((n, sent)) = self.asker(beat, at) {
                    self.renew(n, sent, commit, if registered { lease_ms } else { 0 });
                }
                Vec::new()
            }
            LivenessEffect::Propose { node, command } => {
                let revival = matches!(command, Command::MarkAlive { .. });
                let end = if genuine && revival && self.late_revival {
                    self.pool.push(command);
                    ProposalEnd::Unknown
                } else if genuine {
                    self.commit(&command);
                    ProposalEnd::Logged(self.last().applied)
                } else {
                    ProposalEnd::NotProposed
                };
                let input = LivenessInput::Proposed { node, end };
                let mut effects = self.node(at).liveness.step(now, input);
                if genuine {
                    self.catch_up_quietly(at, &mut effects);
                }
                effects
            }
            LivenessEffect::Refuse { .. } => Vec::new(),
        }
    }

    /// The leader applies everything; what its clocks make of it belongs to the step that runs.
    fn catch_up_quietly(&mut self, at: usize, effects: &mut Vec<LivenessEffect>) {
        let now = self.now;
        let newest = self.versions.last().expect("never empty").clone();
        let input = LivenessInput::Applied(&newest.state);
        effects.extend(self.node(at).liveness.step(now, input));
        self.catch_up(at);
    }

    /// Who sent a heartbeat and when, if its answer gets there.
    fn asker(&self, beat: BeatId, at: usize) -> Option<(usize, MonoMs)> {
        let n = usize::try_from(beat.0 / 2 % 32).expect("small");
        let lost = beat.0 % 2 == 1;
        let there = self.reach(at, n) && (n == at || !self.nodes[n].mute);
        (there && !lost).then_some((n, MonoMs(beat.0 / 64)))
    }

    fn renew(&mut self, n: usize, sent: MonoMs, mut commit: RaftIndex, mut lease_ms: u64) {
        if self.off(Mutation::R11) {
            lease_ms = MOVE_LEASE_MS;
        }
        if self.off(Mutation::R10) {
            commit = RaftIndex(0);
        }
        if lease_ms > 0 {
            let until = sent.plus_ms(lease_ms);
            self.node(n).lease.renewed(until, commit);
        }
    }

    /// Time passes.
    pub(crate) fn advance(&mut self, span: Span) {
        self.pass(match span {
            Span::Second => 1_000,
            Span::Lease => MOVE_LEASE_MS + 1_000,
            Span::Ttl => FREEZE_TTL_MS,
            Span::Promote => narad_core::defaults::FORCE_PROMOTE_AFTER_MS + SLICE_MS,
        });
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while self.now < end {
            self.now = MonoMs(end.0.min(self.now.0 + SLICE_MS));
            if !self.setup.deaths {
                continue;
            }
            let leader = self.leader;
            if self.has_leader() && self.nodes[leader].leads {
                for n in 0..self.nodes.len() {
                    if self.in_quorum(n) && self.nodes[n].confirmed {
                        self.beat(n, leader, How::Ok);
                    }
                }
            }
            if self.nodes[leader].up && self.nodes[leader].leads {
                self.feed_liveness(leader, LivenessInput::Tick);
            }
        }
        for n in 0..self.nodes.len() {
            for p in 0..self.keys.len() {
                if self.nodes[n].up && !self.nodes[n].removed {
                    self.watch_owner(n, p);
                }
            }
        }
    }

    /// Whether a node is marked dead in the newest version.
    #[must_use]
    pub fn marked_dead(&self, n: usize) -> bool {
        let member = self.last().members.get(&self.nodes[n].id);
        member.is_some_and(|member| member.status == MemberStatus::Dead)
    }
}

/// Says who sent a heartbeat, when, and whether its answer gets lost.
fn beat_id(now: MonoMs, n: usize, lost: bool) -> BeatId {
    BeatId(now.0 * 64 + n as u64 * 2 + u64::from(lost))
}

fn incarnation(n: usize, life: u64) -> NodeIncarnation {
    NodeIncarnation(n as u64 * 1_000 + life)
}

fn new_node(n: usize) -> Node {
    let name = char::from(b'a' + u8::try_from(n).expect("few nodes"));
    Node {
        id: NodeId(name.to_string()),
        up: true,
        cut: false,
        mute: false,
        removed: false,
        life: 1,
        confirmed: false,
        applied: RaftIndex(0),
        lease: MoveLease::new(),
        liveness: Liveness::new(Timings::default()),
        leads: false,
        parts: Vec::new(),
        wal: Vec::new(),
        wal_done: Vec::new(),
        wal_next: WalSeq(1),
        dispatch: Dispatch::new(Arc::new(MetaState::default())),
        dispatches: Vec::new(),
        dispatch_now: MonoMs(0),
    }
}

/// What was in flight is in the file or not, whole or torn, and nobody was told. What is there after
/// the next start is what the storage's own recovery makes of the bytes.
fn crashed(key: PartitionKey, part: &mut Part, source: &Source, left: Left, most: u64) {
    let epoch = source.side.copy().epoch;
    let Some(copy) = part.copies.get_mut(&epoch) else {
        return;
    };
    let unsynced = &source.in_flight[source.written..];
    match left {
        Left::Nothing => {}
        Left::All => {
            for record in unsynced {
                copy.segments.push(copy.start, *record, most);
            }
            copy.frontier = source.leases.frontier().0;
        }
        Left::Torn(blocks) => {
            let found = bytes::recovered(key, copy, unsynced, blocks);
            match copy.segments.0.last_mut() {
                Some((_, records)) => *records = found,
                None if found.is_empty() => {}
                None => copy.segments.0.push((copy.start, found)),
            }
        }
    }
}
