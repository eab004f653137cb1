//! Tests of the metadata machine: each guard by a case, all of them together by random commands.

mod forget;
mod heritage;
mod members;
mod moves;
mod random;
mod topics;

use super::*;
use crate::ids::*;
use alloc::format;

/// A state with the tests' shorthand around it; every step checks the invariants.
pub(crate) struct World {
    pub(crate) state: MetaState,
}

impl World {
    /// `nodes` members n1.., all alive.
    pub(crate) fn new(nodes: u64) -> Self {
        let mut world = Self {
            state: MetaState::default(),
        };
        for number in 1..=nodes {
            world.done(register(number, number * 100, number));
        }
        world
    }

    pub(crate) fn apply(&mut self, command: &Command) -> Reply {
        let before = self.state.clone();
        let reply = self.state.apply(RaftIndex(before.applied.0 + 1), command);
        self.state.check_invariants().expect("invariants");
        before.check_successor(&self.state).expect("successor");
        let same_topics = before.topics.keys().eq(self.state.topics.keys());
        let differs = |(key, now): (PartitionKey, &Assignment)| {
            (before.assignment(key) != Some(now)).then_some(key)
        };
        let changed = self.state.assignments().filter_map(differs).collect();
        assert_eq!(
            self.state.changed_since(&before),
            same_topics.then_some(changed),
            "what changed is told, and nothing else"
        );
        if matches!(reply, Reply::Refused { .. }) {
            let mut unchanged = before;
            unchanged.applied = self.state.applied;
            assert_eq!(unchanged, self.state, "a refused command changes nothing");
        }
        reply
    }

    pub(crate) fn done(&mut self, command: Command) -> u64 {
        match self.apply(&command) {
            Reply::Done { index } => index.0,
            Reply::Refused { refusal } => panic!("{command:?}: {refusal:?}"),
        }
    }

    pub(crate) fn refused(&mut self, command: &Command) -> Refusal {
        match self.apply(command) {
            Reply::Refused { refusal } => refusal,
            Reply::Done { .. } => panic!("{command:?} was done"),
        }
    }

    pub(crate) fn topic(&mut self, name_: &str, partitions: u32, parent: Option<&str>) -> TopicId {
        let index = self.done(create(name_, partitions, parent));
        self.state.topic_id_at(RaftIndex(index))
    }

    pub(crate) fn owners(&self, topic: TopicId) -> alloc::vec::Vec<NodeId> {
        let topic = &self.state.topics[&topic];
        topic.partitions.iter().map(|a| a.owner.clone()).collect()
    }

    pub(crate) fn at(&self, key: PartitionKey) -> &Assignment {
        self.state.assignment(key).expect("stands")
    }

    pub(crate) fn set_target(&self, key: PartitionKey, target: u64) -> Command {
        let now = self.at(key);
        Command::SetTarget {
            key,
            owner: now.owner.clone(),
            epoch: now.epoch,
            replaces: now.target.as_ref().map(|t| t.move_id),
            seen: self.state.applied,
            target: node(target),
            manual: false,
        }
    }

    pub(crate) fn begin(&self, key: PartitionKey) -> Command {
        let now = self.at(key);
        let target = now.target.as_ref().expect("moves");
        Command::BeginHandoff {
            key,
            owner: now.owner.clone(),
            target: target.node.clone(),
            move_id: target.move_id,
        }
    }

    pub(crate) fn complete(&self, key: PartitionKey, captured_end: u64) -> Command {
        let now = self.at(key);
        let target = now.target.as_ref().expect("moves");
        Command::CompleteMove {
            key,
            owner: now.owner.clone(),
            target: target.node.clone(),
            move_id: target.move_id,
            handoff_id: target.handoff.expect("handoff"),
            captured_end: Offset(captured_end),
        }
    }

    pub(crate) fn promote(&self, key: PartitionKey, staged: u64, told: u64) -> Command {
        let now = self.at(key);
        let target = now.target.as_ref().expect("moves");
        Command::ForcePromote {
            key,
            owner: now.owner.clone(),
            epoch: now.epoch,
            target: target.node.clone(),
            move_id: target.move_id,
            deaths: self.state.members[&now.owner].deaths,
            staged_hwm: Offset(staged),
            told_hwm: Offset(told),
        }
    }

    pub(crate) fn kill(&mut self, number: u64) {
        let command = mark_dead(&self.state, number);
        self.done(command);
    }

    pub(crate) fn revive(&mut self, number: u64) {
        let member = &self.state.members[&node(number)];
        let command = Command::MarkAlive {
            id: node(number),
            incarnation: member.incarnation,
            deaths: member.deaths,
        };
        self.done(command);
    }
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId(format!("n{number}"))
}

pub(crate) fn name(text: &str) -> TopicName {
    TopicName(text.into())
}

pub(crate) fn register(number: u64, incarnation: u64, disk: u64) -> Command {
    Command::Register {
        id: node(number),
        addr: format!("127.0.0.1:{}", 7000 + number),
        bulk_addr: format!("127.0.0.1:{}", 8000 + number),
        http_addr: "".into(),
        incarnation: NodeIncarnation(incarnation),
        disk,
        shards: 2,
        version: "0.1.0".into(),
    }
}

pub(crate) fn mark_dead(state: &MetaState, number: u64) -> Command {
    let member = &state.members[&node(number)];
    Command::MarkDead {
        id: node(number),
        incarnation: member.incarnation,
        deaths: member.deaths,
    }
}

/// The removal of a member, decided on the state of this moment.
pub(crate) fn remove(world: &World, number: u64) -> Command {
    let id = node(number);
    let member = world.state.members.get(&id);
    Command::RemoveMember {
        drain: member.map_or(RaftIndex(0), |member| member.draining_changed),
        id,
    }
}

pub(crate) fn drain(number: u64, draining: bool) -> Command {
    Command::SetDraining {
        id: node(number),
        draining,
    }
}

pub(crate) fn create(name_: &str, partitions: u32, parent: Option<&str>) -> Command {
    Command::CreateTopic {
        name: name(name_),
        partitions,
        parent: parent.map(name),
        settings: TopicSettings::default(),
    }
}

pub(crate) fn key(topic: TopicId, partition: u32) -> PartitionKey {
    PartitionKey {
        topic,
        partition: PartitionIndex(partition),
    }
}
