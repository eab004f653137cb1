//! Plans recomputed all the time while moves start, end and fail in any order.

use super::*;

fn planned(world: &World, limits: PlanLimits) -> Plan {
    plan(&world.state, None, limits)
}

/// Moves that still have to be started.
fn distance(world: &World) -> usize {
    whole(&world.state).steps.len()
}

#[test]
fn a_rebalance_needs_each_planned_move_once_whatever_the_order_of_completion() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let nodes = 2 + rng.below(5) as u64;
        let skew = 1 + rng.below(nodes as usize);
        let owners: Vec<u64> = (0..rng.below(40))
            .map(|_| 1 + rng.below(skew) as u64)
            .collect();
        let mut world = owned_by(nodes, &owners);
        if rng.chance(40) && nodes > 2 {
            world.done(drain(1, true));
        }
        let limits = PlanLimits {
            max_in_flight: 1 + rng.below(6),
            max_in: 1 + rng.below(3),
            max_out: 1 + rng.below(3),
        };
        let needed = distance(&world);
        let mut started = BTreeMap::new();
        let mut last = needed;
        for _ in 0..10_000 {
            let plan = planned(&world, limits);
            assert!(plan.cancels.is_empty());
            for step in &plan.steps {
                *started.entry(step.key).or_insert(0) += 1;
            }
            carry_out(&mut world, &plan);
            let running = moving(&world.state);
            assert!(running.len() <= limits.max_in_flight);
            for holdings in world.state.holdings().values() {
                assert!(holdings.inbound <= limits.max_in && holdings.outbound <= limits.max_out);
            }
            let now = distance(&world);
            assert_eq!(
                now,
                last - plan.steps.len(),
                "every step is one step nearer"
            );
            last = now;
            if running.is_empty() {
                break;
            }
            finish(&mut world, *rng.pick(&running));
            assert_eq!(distance(&world), last, "an end of a move changes no plan");
        }
        assert!(
            started.values().all(|times| *times == 1),
            "nothing moves twice"
        );
        assert_eq!(started.len(), needed);
        assert!(planned(&world, limits).is_balanced());
        assert!(spread(&world.state) <= 1);
    }
}

fn disturb(rng: &mut Rng, world: &mut World, nodes: u64) {
    let number = 1 + rng.below(nodes as usize) as u64;
    let id = node(number);
    let alive = world.state.is_alive(&id);
    match rng.below(6) {
        0 if alive => world.kill(number),
        0 | 1 if !alive => world.revive(number),
        2 => {
            let flag = !world.state.members[&id].draining;
            world.done(drain(number, flag));
        }
        3 => {
            if let Some(key) = moving(&world.state).first()
                && let Some(target) = &world.at(*key).target
            {
                let command = Command::ClearTarget {
                    key: *key,
                    move_id: target.move_id,
                    no_room: false,
                };
                world.apply(&command);
            }
        }
        4 => {
            let begin = moving(&world.state).last().map(|key| world.begin(*key));
            if let Some(begin) = begin {
                world.apply(&begin);
            }
        }
        _ => {
            world.apply(&create(
                &format!("x{}", rng.next()),
                1 + rng.below(3) as u32,
                None,
            ));
        }
    }
}

#[test]
fn after_any_disturbance_it_comes_to_rest_balanced() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let nodes = 3 + rng.below(3) as u64;
        let owners: Vec<u64> = (0..10)
            .map(|_| 1 + rng.below(nodes as usize) as u64)
            .collect();
        let mut world = owned_by(nodes, &owners);
        for _ in 0..60 {
            disturb(&mut rng, &mut world, nodes);
            let plan = planned(&world, PlanLimits::default());
            carry_out(&mut world, &plan);
            let running: Vec<PartitionKey> = moving(&world.state)
                .into_iter()
                .filter(|key| {
                    let a = world.at(*key);
                    let to = &a.target.as_ref().expect("moves").node;
                    world.state.is_alive(&a.owner) && world.state.is_alive(to)
                })
                .collect();
            if !running.is_empty() && rng.chance(50) {
                let key = *rng.pick(&running);
                // A node that drains since the move began is given no handoff.
                let target = world.at(key).target.clone().expect("moves");
                if target.handoff.is_some() || world.state.can_receive(&target.node) {
                    finish(&mut world, key);
                }
            }
        }
        // Everybody comes back; from here on nothing but the planner acts.
        for number in 1..=nodes {
            if !world.state.is_alive(&node(number)) {
                world.revive(number);
            }
        }
        world.done(drain(1, false));
        let mut rounds = 0;
        loop {
            let plan = planned(&world, PlanLimits::default());
            carry_out(&mut world, &plan);
            let running = moving(&world.state);
            if running.is_empty() {
                break;
            }
            // One whose target drains gets no handoff; the next pass gives it another target.
            let goes = running.into_iter().find(|key| {
                let target = world.at(*key).target.as_ref().expect("moves");
                target.handoff.is_some() || world.state.can_receive(&target.node)
            });
            if let Some(key) = goes {
                finish(&mut world, key);
            }
            rounds += 1;
            assert!(rounds < 500, "it comes to rest");
        }
        assert!(whole(&world.state).is_balanced());
        assert!(spread(&world.state) <= 1);
        for (_, a) in world.state.assignments() {
            assert!(
                !world.state.members[&a.owner].draining,
                "drained nodes are empty"
            );
        }
    }
}

#[test]
fn a_plan_decided_on_an_older_state_can_only_fail() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let owners: Vec<u64> = (0..12).map(|_| 1 + rng.below(2) as u64).collect();
        let mut world = owned_by(4, &owners);
        let old = planned(&world, PlanLimits::default());
        carry_out(&mut world, &old);
        let running = moving(&world.state);
        if let Some(key) = running.first() {
            let move_id = world.at(*key).target.as_ref().expect("moves").move_id;
            world.done(Command::ClearTarget {
                key: *key,
                move_id,
                no_room: false,
            });
        }
        for step in &old.steps {
            assert!(matches!(
                world.apply(&step.command()),
                Reply::Refused { .. }
            ));
        }
    }
}
