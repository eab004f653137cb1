//! What holds a removal back, reason by reason.

use super::*;
use crate::meta::Refusal;
use alloc::collections::BTreeSet;
use alloc::string::ToString;

fn ids(numbers: &[u64]) -> BTreeSet<NodeId> {
    numbers.iter().map(|n| node(*n)).collect()
}

struct Group {
    leader: u64,
    voters: BTreeSet<NodeId>,
    learners: BTreeSet<NodeId>,
}

impl Group {
    fn view<'a>(&'a self, leader: &'a NodeId) -> RaftView<'a> {
        RaftView {
            leader,
            voters: &self.voters,
            learners: &self.learners,
            min_voters: 3,
        }
    }
}

fn holds(world: &World, number: u64, told: Option<(u64, u64)>, group: &Group) -> Vec<DrainHold> {
    let leader = node(group.leader);
    let raft = group.view(&leader);
    let told = told.map(|(undispatched, held_copies)| DrainTold {
        undispatched,
        held_copies,
        ..DrainTold::default()
    });
    drain_status(&world.state, &node(number), told.as_ref(), None, raft)
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
    open_all(&mut world);
    let blocks = |world: &World, room: &[(u64, u64)], group: &Group| {
        let sizes = keys(world).into_iter().map(|key| (key, 100));
        let told = Told::new(sizes, room.iter().copied());
        let plan = plan_drained(&world.state, &node(4), told.disks());
        let leader = node(group.leader);
        let raft = group.view(&leader);
        let told = DrainTold {
            undispatched: 3,
            held_copies: 1,
            ..DrainTold::default()
        };
        let held = drain_status(&world.state, &node(4), Some(&told), Some(&plan), raft);
        drain_blocks(&world.state, &node(4), &held, raft)
    };
    let no_room = |partitions, most, at| {
        DrainBlock::Hold(DrainHold::NoRoom {
            partitions,
            largest: 100,
            roomiest: Some((node(at), most)),
        })
    };
    let roomy = [(1, 200), (2, 200), (3, 200)];
    // It owns, leads, has deliveries to make: all that passes.
    assert_eq!(blocks(&world, &roomy, &group), []);
    // So does what is not told yet.
    assert_eq!(blocks(&world, &[], &group), []);
    // No disk has room for both.
    let full = [(1, 0), (2, 0), (3, 150)];
    assert_eq!(blocks(&world, &full, &group), [no_room(1, 50, 3)]);
    let full = [(1, 0), (2, 70), (3, 0)];
    assert_eq!(blocks(&world, &full, &group), [no_room(2, 70, 2)]);
    let three = Group {
        leader: 1,
        voters: ids(&[1, 2, 4]),
        learners: ids(&[]),
    };
    assert_eq!(
        blocks(&world, &roomy, &three),
        [DrainBlock::Hold(DrainHold::MinVoters { voters: 3, min: 3 })]
    );
    // A learner will be a voter in time.
    let learner = Group {
        learners: ids(&[3]),
        ..three
    };
    assert_eq!(blocks(&world, &roomy, &learner), []);
    world.done(Command::SetRebalancePaused { paused: true });
    assert_eq!(
        blocks(&world, &roomy, &learner),
        [DrainBlock::Hold(DrainHold::Paused)]
    );
    world.done(Command::SetRebalancePaused { paused: false });
    for other in [1, 2, 3] {
        world.done(drain(other, true));
    }
    let now = blocks(&world, &roomy, &group);
    assert_eq!(now[0], DrainBlock::Hold(DrainHold::NoReceiver));
    assert!(matches!(
        now[1..],
        [DrainBlock::OtherDrains { left: 0, .. }]
    ));
    world.kill(4);
    assert!(blocks(&world, &roomy, &group).contains(&DrainBlock::Hold(DrainHold::Dead)));
}

#[test]
fn the_dead_that_a_drain_waits_for_are_named() {
    let mut world = owned_by(5, &[1, 2]);
    let keys = keys(&world);
    let command = world.set_target(keys[0], 5);
    world.done(command);
    world.done(drain(5, true));
    world.kill(1);
    let told = DrainTold {
        undispatched: 9,
        waiting_for: [(node(1), 4), (node(2), 3)].into(),
        held_copies: 0,
    };
    let group = Group {
        leader: 2,
        voters: ids(&[2, 3, 4, 5]),
        learners: ids(&[]),
    };
    let leader = node(2);
    let raft = group.view(&leader);
    let held = drain_status(&world.state, &node(5), Some(&told), None, raft);
    let (from, waiting) = (
        DrainHold::InboundFromDead {
            node: node(1),
            moves: 1,
        },
        DrainHold::WaitingFor {
            node: node(1),
            records: 4,
        },
    );
    // What waits for n2, which lives, passes.
    let all = [from.clone(), DrainHold::Undispatched(5), waiting.clone()];
    assert_eq!(held, all);
    assert!(
        held.iter()
            .all(|hold| !hold.stays() || hold.to_string().contains("start n1"))
    );
    assert_eq!(
        drain_blocks(&world.state, &node(5), &held, raft),
        [DrainBlock::Hold(from), DrainBlock::Hold(waiting)]
    );
    world.revive(1);
    let held = drain_status(&world.state, &node(5), Some(&told), None, raft);
    assert_eq!(held, [DrainHold::Inbound(1), DrainHold::Undispatched(9)]);
}

#[test]
fn two_drains_that_could_each_end_alone_are_told_of_each_other() {
    let mut world = World::new(4);
    let mut group = Group {
        leader: 1,
        voters: ids(&[1, 2, 3, 4]),
        learners: ids(&[]),
    };
    let blocks = |world: &World, number: u64, group: &Group| {
        let leader = node(group.leader);
        let held = holds(world, number, Some((0, 0)), group);
        drain_blocks(&world.state, &node(number), &held, group.view(&leader))
    };
    world.done(drain(3, true));
    assert_eq!(blocks(&world, 3, &group), []);
    world.done(drain(4, true));
    let both = |other| DrainBlock::OtherDrains {
        others: [node(other)].into(),
        left: 2,
        min: 3,
    };
    assert_eq!(blocks(&world, 4, &group), [both(3)]);
    assert!(both(3).to_string().contains("without it and n3"));
    // Whoever is done first leaves all the same.
    assert!(holds(&world, 3, Some((0, 0)), &group).is_empty());
    assert!(holds(&world, 4, Some((0, 0)), &group).is_empty());
    // A fifth voter, or a learner that becomes one, makes room for both.
    world.done(register(5, 500, 5));
    group.learners = ids(&[5]);
    assert_eq!(blocks(&world, 4, &group), []);
}
