//! Disk room: what fits nowhere is told with its reason, and what fits somewhere is placed.

use super::*;
use crate::defaults::STAGING_RESERVE_BYTES;
use alloc::string::ToString;

/// A cluster as [`owned_by`] makes it, whose partitions have logs of these sizes.
fn sized(nodes: u64, parts: &[(u64, u64)], room: &[(u64, u64)]) -> (World, Told) {
    let owners: Vec<u64> = parts.iter().map(|(owner, _)| *owner).collect();
    let mut world = owned_by(nodes, &owners);
    open_all(&mut world);
    let sizes = parts.iter().map(|(_, size)| *size);
    let told = Told::new(keys(&world).into_iter().zip(sizes), room.iter().copied());
    (world, told)
}

fn lacks_room(of: u64, partitions: usize, largest: u64, most: u64, at: u64) -> PlanNote {
    PlanNote::NoRoom {
        node: node(of),
        partitions,
        largest,
        roomiest: Some((node(at), most)),
    }
}

fn target_of(plan: &Plan, key: PartitionKey) -> Option<&NodeId> {
    let step = plan.steps.iter().find(|step| step.key == key)?;
    Some(&step.target)
}

#[test]
fn copies_leave_their_reserve_and_what_is_on_its_way() {
    let (mut world, mut told) = sized(2, &[(1, 100)], &[(1, 0), (2, 100)]);
    world.done(drain(1, true));
    assert_eq!(whole_on(&world.state, &told).steps.len(), 1);
    // The free bytes of n2 would do; the reserve of copies is not for it.
    told.free.insert(node(2), STAGING_RESERVE_BYTES + 99);
    let plan = whole_on(&world.state, &told);
    assert_eq!((plan.steps.len(), plan.later.len()), (0, 0));
    assert_eq!(plan.notes, [lacks_room(1, 1, 100, 99, 2)]);
    let said = plan.notes[0].to_string();
    let all = "no node has room for 1 partitions of n1: the largest needs 100 B, the most room is 99 B on n2";
    assert_eq!(said, all);
    // Room for one of two, and the first is on its way.
    let (mut world, told) = sized(2, &[(1, 100), (1, 100)], &[(1, 0), (2, 150)]);
    world.done(drain(1, true));
    let plan = whole_on(&world.state, &told);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.notes, [lacks_room(1, 1, 100, 50, 2)]);
    carry_out(&mut world, &plan);
    let plan = whole_on(&world.state, &told);
    assert!(plan.is_balanced());
    assert_eq!(plan.notes, [lacks_room(1, 1, 100, 50, 2)]);
}

#[test]
fn nothing_is_placed_on_what_is_not_told() {
    // A new leader has heard of nobody.
    let (world, told) = sized(3, &[(1, 9), (1, 9), (1, 9)], &[(1, 50), (2, 50), (3, 50)]);
    let untold = PlanNote::Untold {
        node: node(1),
        partitions: 2,
    };
    let plan = whole_on(&world.state, &Told::default());
    assert!(plan.is_balanced());
    assert_eq!(plan.notes[..], [untold]);
    // Of the sizes only.
    let rooms = Told {
        free: told.free.clone(),
        ..Told::default()
    };
    assert_eq!(whole_on(&world.state, &rooms).notes, plan.notes);
    // Of n2 not yet: n3 gets what it may have.
    let mut some = Told {
        free: told.free.clone(),
        sizes: told.sizes.clone(),
        ..Told::default()
    };
    some.free.remove(&node(2));
    let plan = whole_on(&world.state, &some);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].target, node(3));
    assert_eq!(whole_on(&world.state, &told).steps.len(), 2);
    // What never had a log has no bytes, whoever has told.
    let fresh = owned_by(3, &[1, 1, 1]);
    assert_eq!(whole_on(&fresh.state, &rooms).steps.len(), 2);
}

#[test]
fn what_is_on_its_way_and_not_told_takes_room_that_is_not_known() {
    let parts = [(1, 9), (1, 9), (1, 9), (1, 9)];
    let (mut world, mut told) = sized(2, &parts, &[(1, 50), (2, 50)]);
    let moving = keys(&world)[0];
    let command = world.set_target(moving, 2);
    world.done(command);
    let free = told.free.remove(&node(1));
    told.sizes.remove(&moving);
    assert!(whole_on(&world.state, &told).steps.is_empty());
    // Its owner has told of others: its log does not open, and it stands in nobody's way.
    told.free.extend(free.map(|free| (node(1), free)));
    assert_eq!(whole_on(&world.state, &told).steps.len(), 1);
    told.sizes.insert(moving, 9);
    assert_eq!(whole_on(&world.state, &told).steps.len(), 1);
}

#[test]
fn a_target_that_had_no_room_is_not_chosen_again() {
    let (mut world, mut told) = sized(3, &[(1, 100)], &[(1, 0), (2, 500), (3, 200)]);
    world.done(drain(1, true));
    let key = keys(&world)[0];
    let first = whole_on(&world.state, &told).steps[0].target.clone();
    told.full.insert((key, first.clone()));
    let second = whole_on(&world.state, &told).steps[0].target.clone();
    assert_ne!(first, second);
    told.full.insert((key, second));
    let plan = whole_on(&world.state, &told);
    assert!(plan.is_balanced());
    // Whatever they told, it was not enough.
    assert!(matches!(
        plan.notes[..],
        [PlanNote::NoRoom {
            partitions: 1,
            largest: 100,
            roomiest: Some((_, 99)),
            ..
        }]
    ));
    // Another partition is none of that one's business.
    let (mut other, sizes) = sized(3, &[(1, 1), (1, 1)], &[(1, 0), (2, 500), (3, 200)]);
    other.done(drain(1, true));
    told.sizes = sizes.sizes;
    told.full = [(keys(&other)[1], node(2)), (keys(&other)[1], node(3))].into();
    assert_eq!(whole_on(&other.state, &told).steps.len(), 1);
}

#[test]
fn an_operators_move_to_a_node_without_room_is_refused_before_it_begins() {
    let (mut world, told) = sized(2, &[(1, 100), (1, 60)], &[(1, 0), (2, 150)]);
    let keys = keys(&world);
    let asked = |world: &World, told: &Told, key| {
        no_room(&world.state, told.disks().expect("told"), key, &node(2))
    };
    assert_eq!(asked(&world, &told, keys[0]), None);
    let command = world.set_target(keys[1], 2);
    world.done(command);
    let refused = crate::meta::Refusal::NoRoom {
        needed: 100,
        room: 90,
    };
    assert_eq!(asked(&world, &told, keys[0]), Some(refused));
    // The same again is not what it has room for twice.
    assert_eq!(asked(&world, &told, keys[1]), None);
    // Nobody has told: the target looks for itself.
    assert_eq!(asked(&world, &Told::default(), keys[0]), None);
}

#[test]
fn the_least_flexible_is_placed_first() {
    // n2 has room for both, n3 for the small one only; each may take one.
    let (mut world, told) = sized(3, &[(1, 90), (1, 10)], &[(1, 0), (2, 100), (3, 20)]);
    world.done(drain(1, true));
    let keys = keys(&world);
    let plan = whole_on(&world.state, &told);
    assert_eq!(target_of(&plan, keys[0]), Some(&node(2)));
    assert_eq!(target_of(&plan, keys[1]), Some(&node(3)));
    assert_eq!(plan.notes, []);
}

#[test]
fn a_draining_node_is_emptied_above_a_ceiling_and_balance_follows() {
    // Both fit on n2 alone, which then holds two more than n3.
    let (mut world, mut told) = sized(3, &[(1, 90), (1, 80)], &[(1, 0), (2, 200), (3, 20)]);
    world.done(drain(1, true));
    let plan = whole_on(&world.state, &told);
    assert!(plan.steps.iter().all(|step| step.target == node(2)));
    assert_eq!((plan.steps.len(), plan.notes.len()), (2, 0));
    carry_out(&mut world, &plan);
    for key in moving(&world.state) {
        finish(&mut world, key);
    }
    // n3 cannot take either: that is told, and nothing goes round.
    let plan = whole_on(&world.state, &told);
    assert!(plan.is_balanced());
    assert_eq!(plan.notes, [lacks_room(2, 1, 80, 20, 3)]);
    told.free.insert(node(3), STAGING_RESERVE_BYTES + 80);
    let plan = whole_on(&world.state, &told);
    assert_eq!(plan.steps.len(), 1);
    carry_out(&mut world, &plan);
    assert_eq!(spread(&world.state), 0);
}

#[test]
fn what_fits_nowhere_does_not_unbalance_the_others() {
    let parts = [(1, 900), (1, 900), (2, 1), (2, 1), (2, 1), (3, 1)];
    let (mut world, told) = sized(3, &parts, &[(1, 0), (2, 20), (3, 20)]);
    world.done(drain(1, true));
    let plan = whole_on(&world.state, &told);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(
        (&plan.steps[0].owner, &plan.steps[0].target),
        (&node(2), &node(3))
    );
    carry_out(&mut world, &plan);
    assert_eq!(spread(&world.state), 0);
}

#[test]
fn a_plan_that_is_cut_short_tells_what_is_left() {
    let parts = vec![(1, 10); 100];
    let (mut world, told) = sized(3, &parts, &[(1, 0), (2, 5_000), (3, 5_000)]);
    world.done(drain(1, true));
    let plan = super::plan_up_to(&world.state, told.disks(), PlanLimits::default(), 30);
    assert_eq!(plan.steps.len() + plan.later.len(), 30);
    assert_eq!((plan.more, plan.more_bytes), (70, 700));
    assert!(plan.notes.contains(&PlanNote::More { partitions: 70 }));
    let plan = super::plan_up_to(&world.state, told.disks(), PlanLimits::default(), 500);
    assert_eq!(plan.steps.len() + plan.later.len(), 100);
    assert_eq!((plan.more, plan.more_bytes), (0, 0));
}

#[test]
fn twelve_topics_of_ten_on_three_nodes_and_one_that_joins() {
    let mut world = World::new(3);
    let topics: Vec<_> = (0..12)
        .map(|number| world.topic(&format!("t{number}"), 10, None))
        .collect();
    open_all(&mut world);
    world.done(register(4, 400, 4));
    let sizes = keys(&world).into_iter().zip(1..);
    let plan = whole_on(
        &world.state,
        &Told::new(sizes, (1..=4).map(|n| (n, 1 << 40))),
    );
    assert_eq!(plan.steps.len(), 30, "120 over 4, and not one move more");
    assert!(plan.steps.iter().all(|step| step.target == node(4)));
    carry_out(&mut world, &plan);
    assert_eq!(spread(&world.state), 0);
    for topic in topics {
        let at = |n: u64| {
            let home = |index| {
                let a = world.at(key(topic, index));
                a.target.as_ref().map_or(&a.owner, |t| &t.node) == &node(n)
            };
            (0..10).filter(|index| home(*index)).count()
        };
        let most = (1..=4).map(at).max().expect("there are four");
        assert!(
            (2..=3).contains(&at(4)) && most <= 4,
            "a topic of ten has {} at the joiner and {most} at most",
            at(4)
        );
    }
    assert_eq!(
        whole(&world.state).notes,
        [PlanNote::Balanced { moving: 30 }]
    );
}

#[test]
fn bytes_are_told_in_the_unit_that_fits() {
    let said: Vec<_> = [0, 1_023, 1_024, 1_536, (1 << 30) - 1, 5 << 30, u64::MAX]
        .into_iter()
        .map(|bytes| Size(bytes).to_string())
        .collect();
    let all = [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1023.9 MiB",
        "5.0 GiB",
        "15.9 EiB",
    ];
    assert_eq!(said, all);
}
