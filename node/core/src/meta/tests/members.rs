//! Registration, death, draining and removal.

use super::*;

#[test]
fn a_repeated_registration_is_harmless_and_does_not_revive() {
    let mut world = World::new(2);
    let first = world.state.members[&node(1)].clone();
    assert_eq!(world.done(register(1, 100, 1)), first.registered.0);
    assert_eq!(world.state.members[&node(1)], first);
    world.kill(1);
    world.done(register(1, 100, 1));
    assert!(!world.state.is_alive(&node(1)), "only MarkAlive revives it");
}

#[test]
fn a_restart_revives_and_keeps_drain_flag_and_death_count() {
    let mut world = World::new(2);
    world.done(drain(1, true));
    world.kill(1);
    world.done(register(1, 101, 1));
    let member = &world.state.members[&node(1)];
    assert_eq!(member.status, MemberStatus::Alive);
    assert!(member.draining);
    assert_eq!(member.deaths, DeathGeneration(1));
    assert_eq!(
        world.refused(&register(1, 100, 1)),
        Refusal::OldIncarnation,
        "a registration of the former process comes late"
    );
}

#[test]
fn a_death_is_counted_once_and_for_the_silent_process_only() {
    let mut world = World::new(2);
    let late = mark_dead(&world.state, 1);
    world.kill(1);
    assert_eq!(world.refused(&late), Refusal::OtherDeath);
    world.revive(1);
    assert_eq!(
        world.refused(&late),
        Refusal::OtherDeath,
        "a duplicate cannot kill it again"
    );
    let again = mark_dead(&world.state, 1);
    world.done(register(1, 101, 1));
    assert_eq!(world.refused(&again), Refusal::OldIncarnation);
    assert_eq!(
        world.state.members[&node(1)].deaths,
        DeathGeneration(1),
        "one death"
    );
}

#[test]
fn a_late_revival_is_refused_after_the_next_death() {
    let mut world = World::new(1);
    world.kill(1);
    let late = Command::MarkAlive {
        id: node(1),
        incarnation: NodeIncarnation(100),
        deaths: DeathGeneration(1),
    };
    world.done(late.clone());
    assert_eq!(world.refused(&late), Refusal::WrongStatus);
    world.kill(1);
    assert_eq!(world.refused(&late), Refusal::OtherDeath);
}

#[test]
fn another_disk_is_refused_while_the_old_one_is_needed() {
    let mut world = World::new(2);
    let topic = world.topic("orders", 2, None);
    assert_eq!(world.refused(&register(1, 101, 9)), Refusal::OtherDisk);
    world.done(Command::DeleteTopic { topic });
    world.done(register(1, 101, 9));
    assert_eq!(world.state.members[&node(1)].disk, 9);
}

#[test]
fn another_disk_is_refused_for_a_target_and_for_an_old_owner() {
    let mut world = World::new(3);
    world.done(drain(2, true));
    world.done(drain(3, true));
    let moved = key(world.topic("orders", 1, None), 0);
    world.done(drain(2, false));
    let command = world.set_target(moved, 2);
    world.done(command);
    assert_eq!(world.refused(&register(2, 201, 9)), Refusal::OtherDisk);
    let command = world.begin(moved);
    world.done(command);
    let command = world.complete(moved, 0);
    world.done(command);
    assert_eq!(world.refused(&register(1, 101, 9)), Refusal::OtherDisk);
    world.done(Command::MarkReclaimed {
        key: moved,
        epoch: Epoch(1),
        owner: node(1),
    });
    world.done(register(1, 101, 9));
}

#[test]
fn a_member_leaves_only_drained_living_and_free_and_never_comes_back() {
    let mut world = World::new(3);
    assert_eq!(world.refused(&remove(&world, 3)), Refusal::WrongStatus);
    let topic = world.topic("orders", 3, None);
    world.done(drain(3, true));
    let remove = remove(&world, 3);
    assert_eq!(world.refused(&remove), Refusal::StillHolds);
    world.done(Command::DeleteTopic { topic });
    world.kill(3);
    assert_eq!(world.refused(&remove), Refusal::WrongStatus);
    world.revive(3);
    world.done(remove.clone());
    assert_eq!(world.refused(&remove), Refusal::MemberRemoved);
    assert_eq!(world.refused(&register(3, 301, 3)), Refusal::MemberRemoved);
    assert_eq!(world.refused(&drain(3, false)), Refusal::MemberRemoved);
    assert_eq!(world.refused(&drain(9, true)), Refusal::UnknownMember);
}

#[test]
fn a_removal_of_one_drain_is_refused_in_the_next() {
    let mut world = World::new(3);
    world.done(drain(3, true));
    let late = remove(&world, 3);
    world.done(drain(3, false));
    assert!(matches!(world.refused(&late), Refusal::ChangedSince { .. }));
    world.done(drain(3, true));
    assert!(matches!(world.refused(&late), Refusal::ChangedSince { .. }));
    // The flag set once more changes nothing about the drain.
    let now = remove(&world, 3);
    world.done(drain(3, true));
    world.done(now);
}

#[test]
fn a_registration_with_bad_fields_is_refused() {
    let mut world = World::new(1);
    let mut bad = register(2, 200, 2);
    if let Command::Register { id, .. } = &mut bad {
        *id = NodeId("../x".into());
    }
    assert!(matches!(world.refused(&bad), Refusal::BadName { .. }));
    let mut bad = register(2, 200, 2);
    if let Command::Register { addr, .. } = &mut bad {
        addr.clear();
    }
    assert!(matches!(world.refused(&bad), Refusal::BadSettings { .. }));
    let mut bad = register(2, 200, 2);
    if let Command::Register { shards, .. } = &mut bad {
        *shards = 0;
    }
    assert!(matches!(world.refused(&bad), Refusal::BadSettings { .. }));
}

#[test]
fn the_incarnations_remembered_are_bounded() {
    let mut world = World::new(1);
    for life in 0..50 {
        world.done(register(1, 1_000 + life, 1));
    }
    let past = &world.state.members[&node(1)].past;
    assert_eq!(past.len(), crate::defaults::PAST_INCARNATIONS);
    assert_eq!(past.last(), Some(&NodeIncarnation(1_048)));
}

#[test]
#[should_panic(expected = "applied after")]
fn an_index_is_never_applied_twice() {
    let mut world = World::new(1);
    let at = world.state.applied;
    world.state.apply(at, &drain(1, true));
}
