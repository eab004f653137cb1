//! The planner's rules, one case each.

use super::*;
use crate::ids::TopicId;

fn targets(plan: &Plan) -> Vec<(PartitionKey, NodeId)> {
    plan.steps
        .iter()
        .map(|s| (s.key, s.target.clone()))
        .collect()
}

/// More room than anything needs, on each of so many nodes.
fn roomy(nodes: u64) -> impl Iterator<Item = (u64, u64)> {
    (1..=nodes).map(|number| (number, u64::MAX))
}

fn first_key(world: &World, owner: u64) -> PartitionKey {
    let owned = |a: &&crate::meta::Assignment| a.owner == node(owner);
    let found = world.state.assignments().find(|(_, a)| owned(a));
    found.expect("owns one").0
}

#[test]
fn a_joining_node_gets_its_share_and_no_more() {
    let world = owned_by(3, &[1, 1, 1, 1, 2, 2, 2]);
    let plan = whole(&world.state);
    assert_eq!(plan.steps.len(), 2, "7 over 3: 3 2 2, n1 keeps the ceiling");
    assert!(plan.steps.iter().all(|s| s.target == node(3)));
    assert!(plan.steps.iter().all(|s| s.reason == MoveReason::Balance));
}

#[test]
fn within_the_share_nothing_moves() {
    for owners in [&[1, 1, 2, 3][..], &[1, 2, 2, 3], &[1, 2, 3], &[1], &[]] {
        assert!(
            whole(&owned_by(3, owners).state).is_balanced(),
            "{owners:?}"
        );
    }
}

#[test]
fn a_running_move_counts_at_its_target_and_is_left_alone() {
    let mut world = owned_by(3, &[1, 1, 1, 1, 2, 2]);
    for _ in 0..2 {
        let plan = super::plan(
            &world.state,
            None,
            PlanLimits {
                max_in_flight: 1,
                ..PlanLimits::default()
            },
        );
        if moving(&world.state).is_empty() {
            assert_eq!((plan.steps.len(), plan.later.len()), (1, 1));
            assert!(plan.notes.contains(&PlanNote::Waiting { steps: 1 }));
            carry_out(&mut world, &plan);
        } else {
            assert_eq!((plan.steps.len(), plan.later.len()), (0, 1));
        }
    }
    let plan = whole(&world.state);
    assert_eq!(plan.steps.len(), 1, "one is on its way already");
}

#[test]
fn limits_hold_per_node_and_in_all() {
    let mut world = owned_by(4, &vec![1; 40]);
    let limits = PlanLimits {
        max_in_flight: 5,
        max_in: 2,
        max_out: 4,
    };
    let plan = super::plan(&world.state, None, limits);
    assert_eq!(plan.steps.len(), 4, "out of n1");
    assert_eq!(plan.later.len(), 26);
    carry_out(&mut world, &plan);
    for number in 2..=4 {
        assert!(world.state.holdings()[&node(number)].inbound <= 2);
    }
    let again = super::plan(&world.state, None, limits);
    assert!(again.steps.is_empty());
    let running = moving(&world.state);
    finish(&mut world, running[0]);
    let again = super::plan(&world.state, None, limits);
    assert_eq!(again.steps.len(), 1, "the slot is refilled");
}

#[test]
fn a_draining_node_sheds_everything_and_receives_nothing() {
    let mut world = owned_by(3, &[1, 1, 2, 2, 3, 3]);
    world.done(drain(3, true));
    let plan = whole(&world.state);
    assert_eq!(plan.steps.len(), 2);
    for step in &plan.steps {
        assert_eq!((&step.owner, step.reason), (&node(3), MoveReason::Drain));
        assert_ne!(step.target, node(3));
    }
    let dry = plan_drained(&world.state, &node(2), None);
    assert_eq!(dry.steps.len(), 4, "n2 and n3 together");
    assert!(!world.state.members[&node(2)].draining, "only a dry run");
}

#[test]
fn a_dead_owners_partitions_stay_and_count_nowhere() {
    let mut world = owned_by(3, &[1, 1, 1, 1, 1, 2, 2, 3, 3]);
    world.kill(1);
    let plan = whole(&world.state);
    assert!(plan.is_balanced(), "{plan:?}");
    assert_eq!(
        plan.notes,
        [PlanNote::OwnerDead {
            node: node(1),
            partitions: 5
        }]
    );
    world.revive(1);
    assert_eq!(whole(&world.state).steps.len(), 2);
}

#[test]
fn r14_a_dead_sources_move_is_left_alone_but_its_handoff_is_cancelled() {
    let mut world = owned_by(3, &[1, 2, 3]);
    let key = first_key(&world, 1);
    let command = world.set_target(key, 2);
    world.done(command);
    world.kill(1);
    let plan = whole(&world.state);
    assert!(plan.steps.is_empty() && plan.cancels.is_empty());
    assert!(plan.notes.contains(&PlanNote::SourceDead {
        node: node(1),
        moves: 1
    }));
    world.revive(1);
    let command = world.begin(key);
    world.done(command);
    world.kill(1);
    let plan = whole(&world.state);
    assert!(matches!(
        plan.cancels[..],
        [PlannedCancel {
            what: CancelWhat::Handoff(_),
            reason: CancelReason::OwnerDead,
            ..
        }]
    ));
    carry_out(&mut world, &plan);
    assert!(world.at(key).target.is_some());
    assert!(whole(&world.state).cancels.is_empty());
}

#[test]
fn moves_of_a_dead_source_hold_no_slot() {
    let mut world = owned_by(3, &[1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    let key = first_key(&world, 1);
    let command = world.set_target(key, 3);
    world.done(command);
    world.kill(1);
    let limits = PlanLimits {
        max_in_flight: 1,
        max_in: 1,
        max_out: 1,
    };
    let plan = super::plan(&world.state, None, limits);
    assert_eq!(plan.steps.len(), 1);
}

#[test]
fn a_dead_target_is_replaced_by_the_same_partitions_next_move() {
    let mut world = owned_by(3, &[1, 1, 1, 1, 2, 2]);
    let moved = first_key(&world, 1);
    let command = world.set_target(moved, 2);
    let move_id = MoveId(world.done(command));
    world.done(drain(3, true));
    world.kill(2);
    // Only n1 can receive now: there is nothing to gain from a move.
    let plan = whole(&world.state);
    assert!(plan.steps.is_empty());
    assert_eq!(
        plan.cancels,
        [PlannedCancel {
            key: moved,
            what: CancelWhat::Move(move_id),
            reason: CancelReason::TargetDead
        }]
    );
    world.done(drain(3, false));
    let plan = whole(&world.state);
    assert!(plan.cancels.is_empty());
    assert_eq!(plan.steps.len(), 2, "4 over n1 and n3");
    let step = &plan.steps[0];
    assert_eq!(
        (step.key, step.replaces, step.reason),
        (moved, Some(move_id), MoveReason::Retarget)
    );
    carry_out(&mut world, &plan);
    assert!(whole(&world.state).is_balanced());
}

#[test]
fn the_partition_that_was_to_move_anyhow_is_the_one_that_is_re_targeted() {
    // Cancelling its move and moving another would be two changes for one.
    let mut world = owned_by(3, &[1, 1, 1, 2]);
    let keys: Vec<PartitionKey> = world.state.assignments().map(|(k, _)| k).collect();
    let told = Told::new(keys.iter().copied().zip([1, 2, 900, 1]), roomy(4));
    open_all(&mut world);
    let command = world.set_target(keys[2], 3);
    world.done(command);
    world.done(drain(3, true));
    world.done(drain(3, false));
    world.done(drain(2, true));
    world.kill(3);
    world.done(register(4, 400, 4));
    let plan = whole_on(&world.state, &told);
    assert!(plan.cancels.is_empty(), "{plan:?}");
    assert!(plan.steps.iter().any(|s| s.key == keys[2]));
}

#[test]
fn a_draining_target_with_a_handoff_is_cancelled_first_then_replaced() {
    let mut world = owned_by(3, &[1, 1, 2, 3]);
    let moved = first_key(&world, 1);
    let command = world.set_target(moved, 2);
    world.done(command);
    let command = world.begin(moved);
    world.done(command);
    world.done(drain(2, true));
    world.done(drain(1, true));
    let plan = whole(&world.state);
    assert!(matches!(
        plan.cancels[..],
        [PlannedCancel {
            what: CancelWhat::Handoff(_),
            reason: CancelReason::TargetDraining,
            ..
        }]
    ));
    assert!(plan.steps.iter().all(|s| s.key != moved));
    carry_out(&mut world, &plan);
    let plan = whole(&world.state);
    assert!(plan.cancels.is_empty());
    assert_eq!(targets(&plan), [(moved, node(3))]);
    carry_out(&mut world, &plan);
    assert!(whole(&world.state).is_balanced());
}

#[test]
fn a_manual_move_is_left_alone_unless_its_target_drains() {
    let mut world = owned_by(3, &[1, 2, 3, 3]);
    let moved = first_key(&world, 1);
    let mut command = world.set_target(moved, 2);
    if let Command::SetTarget { manual, .. } = &mut command {
        *manual = true;
    }
    world.done(command);
    let plan = whole(&world.state);
    assert!(plan.cancels.is_empty() && plan.steps.iter().all(|s| s.key != moved));
    world.kill(2);
    let plan = whole(&world.state);
    assert!(plan.cancels.is_empty() && plan.steps.is_empty());
    assert!(matches!(
        plan.notes[..],
        [.., PlanNote::ManualTargetDead { .. }] | [PlanNote::ManualTargetDead { .. }, ..]
    ));
    world.done(drain(2, true));
    assert_eq!(whole(&world.state).cancels.len(), 1);
}

#[test]
fn paused_sets_no_target_but_still_frees() {
    let mut world = owned_by(3, &[1, 1, 1, 1, 2]);
    let moved = first_key(&world, 1);
    let command = world.set_target(moved, 3);
    world.done(command);
    world.done(Command::SetRebalancePaused { paused: true });
    world.kill(3);
    let plan = whole(&world.state);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.cancels.len(), 1);
    assert!(plan.notes.contains(&PlanNote::Paused));
}

#[test]
fn an_old_copy_or_a_full_disk_bars_a_target() {
    let mut world = owned_by(2, &[1, 1]);
    let moved = first_key(&world, 1);
    let command = world.set_target(moved, 2);
    world.done(command);
    let command = world.begin(moved);
    world.done(command);
    let command = world.complete(moved, 0);
    world.done(command);
    world.done(drain(2, true));
    let plan = whole(&world.state);
    assert!(plan.steps.is_empty(), "n1 still keeps the old copy");
    assert!(matches!(
        plan.notes[..],
        [PlanNote::NoPlace { partitions: 1, .. }]
    ));

    let mut world = owned_by(3, &[1, 1, 1]);
    open_all(&mut world);
    let sizes = keys(&world).into_iter().map(|key| (key, 100));
    let plan = whole_on(&world.state, &Told::new(sizes, [(1, 0), (2, 99), (3, 150)]));
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].target, node(3));
}

#[test]
fn the_fewest_bytes_move() {
    let mut world = owned_by(2, &[1, 1, 1, 1]);
    open_all(&mut world);
    let keys = keys(&world);
    let told = Told::new(keys.iter().copied().zip([900, 20, 400, 10]), roomy(2));
    let plan = whole_on(&world.state, &told);
    let mut moved: Vec<PartitionKey> = plan.steps.iter().map(|s| s.key).collect();
    moved.sort();
    assert_eq!(moved, [keys[1], keys[3]]);
}

#[test]
fn topics_are_spread_before_bytes_are_saved() {
    let mut world = World::new(2);
    world.done(drain(2, true));
    let a = world.topic("a", 3, None);
    let b = world.topic("b", 1, None);
    world.done(drain(2, false));
    // n1 has three of topic a and one of b; b is the smallest.
    open_all(&mut world);
    let sizes = [
        (key(b, 0), 1),
        (key(a, 0), 9),
        (key(a, 1), 8),
        (key(a, 2), 7),
    ];
    let plan = whole_on(&world.state, &Told::new(sizes, roomy(2)));
    assert_eq!(plan.steps[0].key, key(a, 2), "{:?}", plan.steps);
}

fn family(nodes: u64, parents: &[u64], children: &[u64]) -> (World, TopicId, TopicId) {
    let mut world = World::new(nodes);
    let p = world.topic("p", parents.len() as u32, None);
    let c = world.topic("c", children.len() as u32, Some("p"));
    for (topic, owners) in [(p, parents), (c, children)] {
        for (index, owner) in owners.iter().enumerate() {
            place(&mut world, key(topic, index as u32), *owner);
        }
    }
    (world, p, c)
}

fn together(world: &World, p: TopicId, c: TopicId) -> usize {
    let home = |topic, index| {
        let a = world.at(key(topic, index));
        a.target
            .as_ref()
            .map_or(a.owner.clone(), |t| t.node.clone())
    };
    let count = world.state.topics[&c].partitions.len() as u32;
    let parents = world.state.topics[&p].partitions.len() as u32;
    (0..count)
        .filter(|i| home(c, *i) == home(p, i % parents))
        .count()
}

#[test]
fn a_child_is_steered_off_its_parents_node_but_balance_wins() {
    // n3 drains its two children; each has its parent on one of the two that are left.
    let (mut world, p, c) = family(3, &[1, 2], &[3, 3]);
    world.done(drain(3, true));
    let plan = whole(&world.state);
    assert_eq!(plan.steps.len(), 2);
    carry_out(&mut world, &plan);
    assert_eq!(together(&world, p, c), 0);
    // The ceiling that is to spare goes where the family is not.
    let (mut world, p, c) = family(3, &[1], &[3]);
    let other = world.topic("other", 1, None);
    place(&mut world, key(other, 0), 2);
    world.done(drain(3, true));
    let plan = whole(&world.state);
    carry_out(&mut world, &plan);
    assert_eq!(together(&world, p, c), 0);
    // Nowhere else to go.
    let (mut world, p, c) = family(2, &[1], &[2]);
    world.done(drain(2, true));
    let plan = whole(&world.state);
    carry_out(&mut world, &plan);
    assert_eq!((together(&world, p, c), spread(&world.state)), (1, 0));
    // A conflict alone is no reason to move.
    let (world, ..) = family(2, &[1, 2], &[1, 2]);
    assert!(whole(&world.state).is_balanced());
}

#[test]
fn steps_trade_targets_when_the_last_one_would_meet_its_parent() {
    for order in 0..4_u64 {
        // n4 drains four children; quotas force exact matching against their parents.
        let parents = [1, 1, 2, 3].map(|n| (n + order) % 3 + 1);
        let (mut world, p, c) = family(4, &parents, &[4, 4, 4, 4]);
        world.done(drain(4, true));
        let plan = whole(&world.state);
        carry_out(&mut world, &plan);
        assert!(spread(&world.state) <= 1);
        assert_eq!(together(&world, p, c), 0, "{parents:?}");
    }
}

#[test]
fn a_plan_for_many_partitions_is_bounded() {
    let mut world = World::new(2);
    world.done(drain(2, true));
    for number in 0..3 {
        world.topic(&format!("t{number}"), 10_000, None);
    }
    world.done(drain(2, false));
    let plan = super::plan(&world.state, None, PlanLimits::default());
    assert_eq!(plan.steps.len(), MAX_MOVES_OUT);
    assert!(plan.later.len() <= 64);
}

#[test]
fn what_is_too_much_to_compare_in_one_pass_is_left_to_the_next() {
    // Each of them has a relative, so that none stands for the others.
    let mut world = World::new(11);
    for number in 2..=11 {
        world.done(drain(number, true));
    }
    world.topic("p", 10_000, None);
    world.topic("c", 10_000, Some("p"));
    for number in 2..=11 {
        world.done(drain(number, false));
    }
    world.done(drain(1, true));
    let plan = super::plan_up_to(&world.state, None, PlanLimits::NONE, 1_000);
    assert!((1..100).contains(&plan.steps.len()), "{}", plan.steps.len());
    assert_eq!(plan.steps.len() + plan.more, 20_000);
}

#[test]
fn what_is_passed_over_counts_as_well() {
    // Of each topic one stands for all others, so that hardly a pair is compared.
    let mut world = World::new(3);
    for number in 2..=3 {
        world.done(drain(number, true));
    }
    for number in 0..4 {
        world.topic(&format!("t{number}"), 10_000, None);
    }
    for number in 2..=3 {
        world.done(drain(number, false));
    }
    let plan = plan_drained(&world.state, &node(1), None);
    assert!(
        (64..1_000).contains(&plan.steps.len()),
        "{}",
        plan.steps.len()
    );
    assert_eq!(plan.steps.len() + plan.more, 40_000);
}
