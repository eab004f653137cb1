//! Tests of the planner: its cases, and its promises against brute force and random histories.

mod cases;
mod drains;
mod histories;
mod optimum;
mod rooms;

use super::*;
use crate::meta::tests::*;
use crate::meta::{Command, Reply};
use crate::testing::Rng;
use alloc::format;
use alloc::vec;

/// A plan without limits, sizes or disks.
fn whole(state: &MetaState) -> Plan {
    plan(state, None, PlanLimits::NONE)
}

/// What is told of disks, by number of the node: sizes of partitions, and the room of nodes, the reserve
/// of copies aside.
#[derive(Default)]
struct Told {
    sizes: BTreeMap<PartitionKey, u64>,
    free: BTreeMap<NodeId, u64>,
    full: BTreeSet<(PartitionKey, NodeId)>,
}

impl Told {
    fn new(
        sizes: impl IntoIterator<Item = (PartitionKey, u64)>,
        room: impl IntoIterator<Item = (u64, u64)>,
    ) -> Self {
        let free = |(number, room): (u64, u64)| {
            let reserve = crate::defaults::STAGING_RESERVE_BYTES;
            (node(number), reserve.saturating_add(room))
        };
        Self {
            sizes: sizes.into_iter().collect(),
            free: room.into_iter().map(free).collect(),
            full: BTreeSet::new(),
        }
    }

    fn disks(&self) -> Option<Disks<'_>> {
        let Self { sizes, free, full } = self;
        Some(Disks { sizes, free, full })
    }
}

/// A plan without limits.
fn whole_on(state: &MetaState, told: &Told) -> Plan {
    plan(state, told.disks(), PlanLimits::NONE)
}

/// Every partition, in order.
fn keys(world: &World) -> Vec<PartitionKey> {
    world.state.assignments().map(|(key, _)| key).collect()
}

/// Partitions have logs, so that their sizes are not known before they are told.
fn open_all(world: &mut World) {
    for key in keys(world) {
        let topic = world.state.topics.get_mut(&key.topic).expect("stands");
        Arc::make_mut(topic).partitions[key.partition.0 as usize].opened = true;
    }
}

/// A cluster whose partition i (each its own topic) is owned by node `owners[i]`, counted from 1.
fn owned_by(nodes: u64, owners: &[u64]) -> World {
    let mut world = World::new(nodes);
    for (number, owner) in owners.iter().enumerate() {
        let topic = world.topic(&format!("t{number}"), 1, None);
        place(&mut world, key(topic, 0), *owner);
    }
    world
}

/// Puts a fresh partition somewhere, as if it had been created there.
fn place(world: &mut World, key: PartitionKey, owner: u64) {
    let topic = world.state.topics.get_mut(&key.topic).expect("stands");
    Arc::make_mut(topic).partitions[key.partition.0 as usize].owner = node(owner);
}

/// Loads with moves counted at their target, of members that can receive.
fn loads(state: &MetaState) -> Vec<usize> {
    let mut loads: BTreeMap<&NodeId, usize> = state
        .members
        .keys()
        .filter(|id| state.can_receive(id))
        .map(|id| (id, 0))
        .collect();
    for (_, a) in state.assignments() {
        let home = a.target.as_ref().map_or(&a.owner, |t| &t.node);
        if let Some(load) = loads.get_mut(home) {
            *load += 1;
        }
    }
    loads.into_values().collect()
}

fn spread(state: &MetaState) -> usize {
    let loads = loads(state);
    match (loads.iter().max(), loads.iter().min()) {
        (Some(most), Some(least)) => most - least,
        _ => 0,
    }
}

/// Carries a plan out; every command must be accepted.
fn carry_out(world: &mut World, plan: &Plan) {
    for cancel in &plan.cancels {
        world.done(cancel.command());
    }
    for step in &plan.steps {
        let mut command = step.command();
        if let Command::SetTarget { seen, .. } = &mut command {
            // Commands of one plan do not change each other's partitions.
            assert_eq!(*seen, step.seen);
        }
        world.done(command);
    }
}

/// Runs one move to its flip, reclaim included.
fn finish(world: &mut World, key: PartitionKey) {
    let before = world.at(key).clone();
    if before.target.as_ref().is_some_and(|t| t.handoff.is_none()) {
        let command = world.begin(key);
        world.done(command);
    }
    let command = world.complete(key, 0);
    world.done(command);
    world.done(Command::MarkReclaimed {
        key,
        epoch: before.epoch,
        owner: before.owner,
    });
}

fn moving(state: &MetaState) -> Vec<PartitionKey> {
    state
        .assignments()
        .filter(|(_, a)| a.target.is_some())
        .map(|(key, _)| key)
        .collect()
}
