//! Random commands, late ones and duplicates included: after each the invariants hold.

use super::*;
use crate::testing::Rng;
use alloc::vec::Vec;

fn random_command(rng: &mut Rng, world: &World, old: &[Command]) -> Command {
    if !old.is_empty() && rng.chance(15) {
        return rng.pick(old).clone();
    }
    let number = 1 + rng.below(5) as u64;
    let member = world.state.members.get(&node(number));
    let incarnation = member.map_or(NodeIncarnation(0), |m| m.incarnation);
    let deaths = member.map_or(DeathGeneration(0), |m| m.deaths);
    let keys: Vec<PartitionKey> = world.state.assignments().map(|(key, _)| key).collect();
    if keys.is_empty() || rng.chance(35) {
        let life = 1 + rng.below(1_000) as u64;
        let disk = if rng.chance(90) { number } else { 99 };
        return match rng.below(9) {
            0 => register(number, life, disk),
            1 => Command::MarkDead {
                id: node(number),
                incarnation,
                deaths,
            },
            2 | 3 => Command::MarkAlive {
                id: node(number),
                incarnation,
                deaths,
            },
            4 => drain(number, rng.chance(30)),
            5 if rng.chance(70) => remove(world, number),
            5 => Command::ForgetMember {
                id: node(number),
                deaths,
            },
            6 if rng.chance(15) => match world.state.topics.keys().next() {
                Some(topic) => Command::DeleteTopic { topic: *topic },
                None => create("a", 2, None),
            },
            7 => create("a", 1 + rng.below(5) as u32, None),
            _ => create("b", 1 + rng.below(5) as u32, Some("a")),
        };
    }
    let key = *rng.pick(&keys);
    let now = world.at(key);
    let Some(target) = &now.target else {
        if let Some(ended) = now.ended.first()
            && rng.chance(40)
        {
            return Command::MarkReclaimed {
                key,
                epoch: ended.epoch,
                owner: ended.owner.clone(),
            };
        }
        return if rng.chance(20) {
            Command::MarkOpened {
                key,
                owner: now.owner.clone(),
                epoch: now.epoch,
            }
        } else {
            world.set_target(key, number)
        };
    };
    match (rng.below(7), target.handoff) {
        (0, _) => world.set_target(key, number),
        (1, _) => Command::ClearTarget {
            key,
            move_id: target.move_id,
            no_room: false,
        },
        (2, _) => world.promote(key, rng.below(9) as u64, rng.below(5) as u64),
        (3, Some(handoff_id)) => Command::CancelHandoff { key, handoff_id },
        (_, Some(_)) => world.complete(key, rng.below(100) as u64),
        (_, None) => world.begin(key),
    }
}

#[test]
fn random_commands_keep_the_invariants() {
    let mut flips = 0_u64;
    let mut promotions = 0_u64;
    let mut removals = 0_usize;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(4);
        let mut old = Vec::new();
        for _ in 0..400 {
            let command = random_command(&mut rng, &world, &old);
            let done = matches!(world.apply(&command), Reply::Done { .. });
            match &command {
                Command::CompleteMove { .. } if done => flips += 1,
                Command::ForcePromote { .. } if done => promotions += 1,
                _ => {}
            }
            if done && is_once(&command) {
                assert!(
                    matches!(world.apply(&command), Reply::Refused { .. }),
                    "took effect twice: {command:?}"
                );
            }
            old.push(command);
        }
        removals += world.state.removed.len();
    }
    // The walk must have been where it matters.
    assert!(flips > 500, "{flips} flips");
    assert!(promotions > 50, "{promotions} promotions");
    assert!(removals > 20, "{removals} removals");
}

/// Commands that change something each time and therefore may take effect only once.
fn is_once(command: &Command) -> bool {
    !matches!(
        command,
        Command::Register { .. }
            | Command::SetDraining { .. }
            | Command::MarkOpened { .. }
            | Command::MarkReclaimed { .. }
    )
}

#[test]
fn two_replicas_agree_and_so_does_a_snapshot() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(4);
        let mut replica = through_json(&world.state);
        let mut old = Vec::new();
        for _ in 0..200 {
            let command = random_command(&mut rng, &world, &old);
            let reply = world.apply(&command);
            let logged: Command = through_json(&command);
            assert_eq!(logged, command);
            assert_eq!(
                replica.apply(world.state.applied, &logged),
                through_json(&reply)
            );
            old.push(command);
        }
        assert_eq!(replica, world.state);
        assert_eq!(through_json(&replica), world.state);
    }
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("writes");
    serde_json::from_str(&text).expect("reads")
}
