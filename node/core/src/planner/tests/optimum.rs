//! The number of moves against brute force over every possible placement.

use super::*;

/// Fewest moves that bring all receivers within one of each other and empty the draining nodes,
/// found by trying every placement of every partition that may move.
fn fewest(state: &MetaState) -> Option<usize> {
    let receivers: Vec<&NodeId> = state
        .members
        .keys()
        .filter(|id| state.can_receive(id))
        .collect();
    if receivers.is_empty() {
        return None;
    }
    let mut fixed = vec![0_usize; receivers.len()];
    let mut owners = Vec::new();
    for (_, a) in state.assignments() {
        if let Some(target) = &a.target {
            if let Some(slot) = receivers.iter().position(|id| **id == target.node) {
                fixed[slot] += 1;
            }
        } else if state.is_alive(&a.owner) {
            owners.push(receivers.iter().position(|id| **id == a.owner));
        }
    }
    let mut least = None;
    let mut choice = vec![0_usize; owners.len()];
    loop {
        let mut load = fixed.clone();
        choice.iter().for_each(|slot| load[*slot] += 1);
        let moves = choice
            .iter()
            .zip(&owners)
            .filter(|(to, from)| Some(**to) != **from)
            .count();
        let even = load.iter().max().unwrap() - load.iter().min().unwrap() <= 1;
        if even && least.is_none_or(|l| moves < l) {
            least = Some(moves);
        }
        let Some(digit) = choice.iter().position(|d| d + 1 < receivers.len()) else {
            return least;
        };
        choice[..digit].fill(0);
        choice[digit] += 1;
    }
}

#[test]
fn a_plan_has_the_fewest_moves_and_balances() {
    let mut compared = 0;
    let mut with_moves_running = 0;
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(4) as u64;
        let skew = 1 + rng.below(nodes as usize);
        let owners: Vec<u64> = (0..rng.below(7))
            .map(|_| 1 + rng.below(skew) as u64)
            .collect();
        let mut world = owned_by(nodes, &owners);
        for number in 1..=nodes {
            if rng.chance(12) {
                world.kill(number);
            } else if rng.chance(15) {
                world.done(drain(number, true));
            }
        }
        for (key, a) in world.state.clone().assignments() {
            let target = 1 + rng.below(nodes as usize) as u64;
            if rng.chance(15) && a.owner != node(target) {
                let command = world.set_target(key, target);
                world.apply(&command);
            }
        }
        let plan = whole(&world.state);
        assert_eq!(whole(&world.state), plan, "the same state, the same plan");
        let Some(fewest) = fewest(&world.state) else {
            continue;
        };
        assert_eq!(plan.steps.len(), fewest, "seed {seed}: {:?}", world.state);
        compared += 1;
        with_moves_running += usize::from(!moving(&world.state).is_empty());
        carry_out(&mut world, &plan);
        assert!(spread(&world.state) <= 1, "seed {seed}");
        assert!(whole(&world.state).is_balanced(), "seed {seed}");
    }
    assert!(compared > 2_000 && with_moves_running > 300);
}

#[test]
fn a_child_meets_its_parent_only_where_no_balanced_plan_of_that_length_avoids_it() {
    // A node drains some children whose parents are on the nodes that are left: compare with
    // every way to place them.
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let rest = 2 + rng.below(2);
        let count = 1 + rng.below(5);
        let mut world = World::new(rest as u64 + 1);
        let leaving = rest as u64 + 1;
        let p = world.topic("p", count as u32, None);
        let c = world.topic("c", count as u32, Some("p"));
        let mut parents = Vec::new();
        for index in 0..count {
            let owner = 1 + (index % rest) as u64;
            parents.push(owner as usize - 1);
            place(&mut world, key(p, index as u32), owner);
            place(&mut world, key(c, index as u32), leaving);
        }
        world.done(drain(leaving, true));
        let mut fewest = usize::MAX;
        for code in 0..rest.pow(count as u32) {
            let choice: Vec<usize> = (0..count)
                .map(|i| code / rest.pow(i as u32) % rest)
                .collect();
            let mut load = vec![0_usize; rest];
            parents.iter().chain(&choice).for_each(|n| load[*n] += 1);
            if load.iter().max().unwrap() - load.iter().min().unwrap() <= 1 {
                let meet = choice.iter().zip(&parents).filter(|(a, b)| a == b).count();
                fewest = fewest.min(meet);
            }
        }
        let plan = whole(&world.state);
        carry_out(&mut world, &plan);
        let home = |topic, index| {
            let a = world.at(key(topic, index));
            a.target
                .as_ref()
                .map_or(a.owner.clone(), |t| t.node.clone())
        };
        let meet = (0..count as u32)
            .filter(|i| home(p, *i) == home(c, *i))
            .count();
        assert_eq!(meet, fewest, "seed {seed}");
    }
}
