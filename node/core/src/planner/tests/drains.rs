//! What holds a removal back, reason by reason.

use super::*;
use crate::meta::Refusal;
use alloc::collections::BTreeSet;

fn ids(numbers: &[u64]) -> BTreeSet<NodeId> {
    numbers.iter().map(|n| node(*n)).collect()
}

struct Group {
    leader: u64,
    voters: BTreeSet<NodeId>,
    learners: BTreeSet<NodeId>,
}

fn holds(world: &World, number: u64, told: Option<(u64, u64)>, group: &Group) -> Vec<DrainHold> {
    let leader = node(group.leader);
    let raft = RaftView {
        leader: &leader,
        voters: &group.voters,
        learners: &group.learners,
        min_voters: 3,
    };
    drain_status(
        &world.state,
        &node(number),
        told.map(|t| t.0),
        told.map(|t| t.1),
        raft,
    )
}

#[test]
fn a_free_drained_node_with_enough_voters_may_leave() {
    let mut world = World::new(4);
    let group = Group {
        leader: 1,
        voters: ids(&[1, 2, 3, 4]),
        learners: ids(&[]),
    };
    assert_eq!(
        holds(&world, 4, Some((0, 0)), &group),
        [DrainHold::NotDraining]
    );
    world.done(drain(4, true));
    assert!(holds(&world, 4, Some((0, 0)), &group).is_empty());
    world.done(remove(&world, 4));
    assert_eq!(
        holds(&world, 4, Some((0, 0)), &group),
        [DrainHold::NotMember]
    );
}

#[test]
fn each_reason_is_named() {
    let mut world = owned_by(4, &[4, 1, 2]);
    world.done(drain(4, true));
    let mut group = Group {
        leader: 4,
        voters: ids(&[1, 2, 4]),
        learners: ids(&[]),
    };
    assert_eq!(
        holds(&world, 4, Some((7, 2)), &group),
        [
            DrainHold::Owned(1),
            DrainHold::Undispatched(7),
            DrainHold::HeldCopies(2),
            DrainHold::Leader,
            DrainHold::MinVoters { voters: 3, min: 3 }
        ]
    );
    group.learners = ids(&[3]);
    group.leader = 1;
    assert_eq!(
        holds(&world, 4, None, &group),
        [
            DrainHold::Owned(1),
            DrainHold::Untold,
            DrainHold::LearnerFirst(node(3))
        ]
    );
    world.kill(4);
    assert_eq!(
        holds(&world, 4, None, &group)[..2],
        [DrainHold::Dead, DrainHold::Owned(1)]
    );
    world.revive(4);
    for number in 1..=3 {
        world.kill(number);
    }
    assert_eq!(
        holds(&world, 4, Some((0, 0)), &group)[..2],
        [DrainHold::NoReceiver, DrainHold::Owned(1)]
    );
}

#[test]
fn inbound_and_ended_copies_hold() {
    let mut world = owned_by(4, &[1, 2]);
    let keys: Vec<PartitionKey> = world.state.assignments().map(|(k, _)| k).collect();
    let group = Group {
        leader: 2,
        voters: ids(&[2, 3, 4]),
        learners: ids(&[1]),
    };
    let command = world.set_target(keys[0], 3);
    world.done(command);
    world.done(drain(3, true));
    assert!(holds(&world, 3, Some((0, 0)), &group).contains(&DrainHold::Inbound(1)));
    let command = world.begin(keys[0]);
    assert_eq!(world.refused(&command), Refusal::CannotReceive);
    world.done(drain(3, false));
    let command = world.begin(keys[0]);
    world.done(command);
    let command = world.complete(keys[0], 0);
    world.done(command);
    world.done(drain(1, true));
    assert_eq!(
        holds(&world, 1, Some((0, 0)), &group),
        [DrainHold::EndedCopies(1)]
    );
}

#[test]
fn a_removal_never_leaves_a_group_without_quorum() {
    let mut world = World::new(5);
    world.done(drain(5, true));
    world.kill(1);
    world.kill(2);
    let group = Group {
        leader: 3,
        voters: ids(&[1, 2, 3, 4, 5]),
        learners: ids(&[]),
    };
    assert_eq!(
        holds(&world, 5, Some((0, 0)), &group),
        [DrainHold::Quorum {
            alive: 2,
            needed: 3
        }]
    );
}

#[test]
fn what_needs_somebody_is_told_from_what_passes() {
    let mut world = owned_by(4, &[4, 4, 1, 2]);
    world.done(drain(4, true));
    let group = Group {
        leader: 4,
        voters: ids(&[1, 2, 3, 4]),
        learners: ids(&[]),
    };
    let blocks = |world: &World, free: &[(u64, u64)], group: &Group| {
        let sizes = world.state.assignments().map(|(key, _)| (key, 100));
        let sizes: BTreeMap<PartitionKey, u64> = sizes.collect();
        let free = free.iter().map(|(n, bytes)| (node(*n), *bytes)).collect();
        let of = |free: &BTreeMap<NodeId, u64>| plan_drained(&world.state, &node(4), &sizes, free);
        let held = holds(world, 4, Some((3, 1)), group);
        drain_blocks(&node(4), &held, &of(&free), || of(&BTreeMap::new()))
    };
    // It owns, leads, has deliveries to make: all that passes.
    assert_eq!(blocks(&world, &[], &group), []);
    // No disk has room for both.
    let full = [(1, 0), (2, 0), (3, 150)];
    assert_eq!(blocks(&world, &full, &group), [DrainBlock::NoRoom(1)]);
    let full = [(1, 0), (2, 0), (3, 0)];
    assert_eq!(blocks(&world, &full, &group), [DrainBlock::NoRoom(2)]);
    let three = Group {
        leader: 1,
        voters: ids(&[1, 2, 4]),
        learners: ids(&[]),
    };
    assert_eq!(
        blocks(&world, &[], &three),
        [DrainBlock::Hold(DrainHold::MinVoters { voters: 3, min: 3 })]
    );
    // A learner will be a voter in time.
    let learner = Group {
        learners: ids(&[3]),
        ..three
    };
    assert_eq!(blocks(&world, &[], &learner), []);
    world.done(Command::SetRebalancePaused { paused: true });
    assert_eq!(blocks(&world, &[], &learner), [DrainBlock::Paused]);
    world.done(Command::SetRebalancePaused { paused: false });
    for other in [1, 2, 3] {
        world.done(drain(other, true));
    }
    assert_eq!(
        blocks(&world, &[], &group),
        [DrainBlock::Hold(DrainHold::NoReceiver)]
    );
    world.kill(4);
    assert!(blocks(&world, &[], &group).contains(&DrainBlock::Hold(DrainHold::Dead)));
}
