//! Giving up a dead node.

use super::*;
use crate::copies::has_log;
use crate::meta::EpochEnd;

fn forget(world: &World, number: u64) -> Command {
    Command::ForgetMember {
        id: node(number),
        deaths: world.state.members[&node(number)].deaths,
    }
}

#[test]
fn only_a_dead_member_is_given_up_and_only_in_the_death_that_was_looked_at() {
    let mut world = World::new(3);
    assert_eq!(world.refused(&forget(&world, 2)), Refusal::WrongStatus);
    world.kill(2);
    let looked = forget(&world, 2);
    world.revive(2);
    assert_eq!(world.refused(&looked), Refusal::WrongStatus);
    world.kill(2);
    assert_eq!(world.refused(&looked), Refusal::OtherDeath);
    world.done(forget(&world, 2));
    assert_eq!(world.refused(&looked), Refusal::MemberRemoved);
    assert_eq!(world.refused(&register(2, 900, 2)), Refusal::MemberRemoved);
    assert!(world.state.forgotten.contains(&node(2)));
}

#[test]
fn its_partitions_begin_anew_spread_over_the_living() {
    let mut world = World::new(4);
    let topic = world.topic("orders", 12, None);
    for partition in 0..12 {
        let now = world.at(key(topic, partition)).clone();
        world.done(Command::MarkOpened {
            key: key(topic, partition),
            owner: now.owner,
            epoch: now.epoch,
        });
    }
    let lost: alloc::vec::Vec<PartitionKey> =
        world.state.owned_by(&node(2)).map(|(key, _)| key).collect();
    assert_eq!(lost.len(), 3);
    world.kill(2);
    world.done(drain(3, true));
    world.done(forget(&world, 2));
    for key in &lost {
        let a = world.at(*key);
        assert!(a.owner == node(1) || a.owner == node(4), "{}", a.owner);
        assert_eq!((a.epoch, a.born, a.opened), (Epoch(2), Epoch(2), false));
        assert!(!has_log(a), "an empty log may be made");
    }
    let mut counts: alloc::vec::Vec<usize> = [1, 4]
        .into_iter()
        .map(|n| world.state.owned_by(&node(n)).count())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [4, 5]);
    // Once opened it is like any other.
    let first = lost[0];
    let now = world.at(first).clone();
    world.done(Command::MarkOpened {
        key: first,
        owner: now.owner.clone(),
        epoch: now.epoch,
    });
    assert!(has_log(world.at(first)));
}

#[test]
fn moves_from_and_to_it_end_and_late_commands_about_them_are_refused_for_good() {
    let mut world = World::new(3);
    let topic = world.topic("orders", 3, None);
    let of = |world: &World, n: u64| {
        let id = node(n);
        let found = world.state.owned_by(&id).next();
        found.expect("each owns one").0
    };
    let (from, to) = (of(&world, 2), of(&world, 1));
    let command = world.set_target(from, 3);
    world.done(command);
    let command = world.begin(from);
    world.done(command);
    let command = world.set_target(to, 2);
    world.done(command);
    let command = world.begin(to);
    world.done(command);
    let late = [world.complete(from, 9), world.complete(to, 9)];
    world.kill(2);
    let promote = world.promote(from, 9, 9);
    world.done(forget(&world, 2));
    assert_eq!(world.at(to).target, None, "its source is open again");
    assert_eq!(world.at(to).owner, node(1));
    for command in late.into_iter().chain([promote]) {
        let refusal = world.refused(&command);
        assert!(refusal.is_final(), "{refusal:?}");
    }
    assert_eq!(world.state.topics[&topic].partitions.len(), 3);
}

#[test]
fn an_older_copy_elsewhere_is_dispatched_again_and_its_keeper_is_no_heir() {
    let mut world = World::new(3);
    world.done(drain(3, true));
    let moved = key(world.topic("orders", 1, None), 0);
    let first = world.at(moved).owner.clone();
    let (a, b) = if first == node(1) { (1, 2) } else { (2, 1) };
    let command = world.set_target(moved, b);
    world.done(command);
    let command = world.begin(moved);
    world.done(command);
    let command = world.complete(moved, 7);
    world.done(command);
    world.kill(b);
    // The only one that could take it keeps the old copy.
    assert_eq!(
        world.refused(&forget(&world, b)),
        Refusal::TargetHoldsOldCopy
    );
    assert_eq!(world.state.heirless(&node(b)), [moved]);
    world.done(drain(3, false));
    assert_eq!(world.state.heirless(&node(b)), []);
    world.done(forget(&world, b));
    let now = world.at(moved);
    assert_eq!(now.owner, node(3));
    assert_eq!(now.ended.len(), 1);
    assert_eq!(
        (&now.ended[0].owner, now.ended[0].end),
        (&node(a), EpochEnd::Forgotten)
    );
}

#[test]
fn nobody_is_given_up_when_nobody_can_take_its_partitions() {
    let mut world = World::new(2);
    world.topic("orders", 2, None);
    world.kill(2);
    world.done(drain(1, true));
    assert_eq!(world.refused(&forget(&world, 2)), Refusal::NoReceiver);
}
