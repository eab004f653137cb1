//! The guards of the move, each with the case that it is there for.

use super::*;

/// Three nodes, one partition on n1.
fn one() -> (World, PartitionKey) {
    let mut world = World::new(3);
    let topic = world.topic("orders", 1, None);
    assert_eq!(world.owners(topic), [node(1)]);
    (world, key(topic, 0))
}

fn flip(world: &mut World, key: PartitionKey, to: u64, end: u64) {
    for step in 0..3 {
        let command = match step {
            0 => world.set_target(key, to),
            1 => world.begin(key),
            _ => world.complete(key, end),
        };
        world.done(command);
    }
}

fn reclaimed(key: PartitionKey, epoch: u64, owner: u64) -> Command {
    Command::MarkReclaimed {
        key,
        epoch: Epoch(epoch),
        owner: node(owner),
    }
}

#[test]
fn a_whole_move_and_its_duplicates() {
    let (mut world, key) = one();
    let target = world.set_target(key, 2);
    let move_id = MoveId(world.done(target.clone()));
    assert!(matches!(
        world.refused(&target),
        Refusal::OtherMove { current: Some(id) } if id == move_id
    ));
    let begin = world.begin(key);
    let handoff = HandoffId(world.done(begin.clone()));
    assert_eq!(world.refused(&begin), Refusal::HandoffRecorded);
    let complete = world.complete(key, 77);
    world.done(complete.clone());
    let now = world.at(key).clone();
    assert_eq!((now.owner, now.epoch), (node(2), Epoch(2)));
    assert_eq!(now.target, None);
    assert!(!now.opened, "the new owner has not said that it serves");
    assert_eq!(
        now.ended,
        [EndedEpoch {
            epoch: Epoch(1),
            owner: node(1),
            end: EpochEnd::Completed {
                captured_end: Offset(77)
            }
        }]
    );
    for late in [&complete, &begin, &target] {
        let refusal = world.refused(late);
        assert!(matches!(refusal, Refusal::NotOwner { .. }), "{refusal:?}");
        assert!(refusal.is_final());
    }
    assert!(matches!(
        world.refused(&Command::CancelHandoff {
            key,
            handoff_id: handoff
        }),
        Refusal::OtherHandoff { current: None }
    ));
    world.done(reclaimed(key, 1, 1));
    world.done(reclaimed(key, 1, 1));
    assert!(world.at(key).ended.is_empty());
}

#[test]
fn r1_no_target_that_keeps_an_old_copy() {
    let (mut world, key) = one();
    flip(&mut world, key, 2, 5);
    let back = world.set_target(key, 1);
    assert_eq!(world.refused(&back), Refusal::TargetHoldsOldCopy);
    world.done(reclaimed(key, 1, 1));
    world.done(back);
}

#[test]
fn r5_a_duplicate_begin_cannot_revive_an_old_capture() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    let begin = world.begin(key);
    let first = HandoffId(world.done(begin.clone()));
    let complete = world.complete(key, 5);
    let cancel = Command::CancelHandoff {
        key,
        handoff_id: first,
    };
    world.done(cancel.clone());
    assert_eq!(
        world.refused(&complete),
        Refusal::OtherHandoff { current: None }
    );
    let second = HandoffId(world.done(begin));
    assert_ne!(first, second);
    let current = Some(second);
    assert_eq!(
        world.refused(&complete),
        Refusal::OtherHandoff { current },
        "the capture belongs to the handoff that was cancelled"
    );
    assert_eq!(
        world.refused(&cancel),
        Refusal::OtherHandoff { current },
        "a late cancel does not take back the new handoff"
    );
}

#[test]
fn r6_a_promotion_belongs_to_one_death() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    let mut early = world.promote(key, 5, 5);
    assert_eq!(world.refused(&early), Refusal::OtherDeath, "it is alive");
    if let Command::ForcePromote { deaths, .. } = &mut early {
        *deaths = DeathGeneration(1);
    }
    assert_eq!(world.refused(&early), Refusal::OtherDeath);
    world.kill(1);
    let promote = world.promote(key, 5, 5);
    world.revive(1);
    assert_eq!(world.refused(&promote), Refusal::OtherDeath);
    world.kill(1);
    assert_eq!(world.refused(&promote), Refusal::OtherDeath);
    let promote = world.promote(key, 5, 5);
    world.done(register(1, 101, 1));
    assert_eq!(
        world.refused(&promote),
        Refusal::OtherDeath,
        "registered since"
    );
    world.kill(1);
    let behind = world.promote(key, 4, 5);
    assert_eq!(world.refused(&behind), Refusal::BehindTold);
    let promote = world.promote(key, 6, 5);
    world.done(promote.clone());
    assert_eq!(
        world.at(key).ended[0].end,
        EpochEnd::Promoted {
            told_hwm: Offset(5)
        }
    );
    assert!(world.refused(&promote).is_final());
}

#[test]
fn r7_every_ended_epoch_is_kept_until_its_own_reclaim() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    world.kill(1);
    let command = world.promote(key, 10, 10);
    world.done(command);
    let command = world.set_target(key, 3);
    world.done(command);
    world.kill(2);
    let command = world.promote(key, 20, 15);
    world.done(command);
    let told = |told| EpochEnd::Promoted {
        told_hwm: Offset(told),
    };
    let ends: alloc::vec::Vec<_> = world.at(key).ended.iter().map(|e| e.end).collect();
    assert_eq!(ends, [told(10), told(15)]);
    assert!(matches!(
        world.refused(&reclaimed(key, 2, 1)),
        Refusal::NotOwner { .. }
    ));
    assert!(matches!(
        world.refused(&reclaimed(key, 3, 3)),
        Refusal::NotOwner { .. }
    ));
    world.done(reclaimed(key, 2, 2));
    assert_eq!(world.at(key).ended[0].owner, node(1));
}

#[test]
fn r14_a_dead_owners_target_stays() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    let move_id = MoveId(world.done(command));
    world.kill(1);
    let retarget = world.set_target(key, 3);
    assert_eq!(world.refused(&retarget), Refusal::OwnerDead);
    let clear = Command::ClearTarget {
        key,
        move_id,
        no_room: false,
    };
    assert_eq!(world.refused(&clear), Refusal::OwnerDead);
    let begin = world.begin(key);
    assert_eq!(world.refused(&begin), Refusal::OwnerDead);
    world.revive(1);
    world.done(clear.clone());
    assert_eq!(world.refused(&clear), Refusal::OtherMove { current: None });
}

#[test]
fn a_target_must_be_able_to_receive() {
    let (mut world, key) = one();
    let own = world.set_target(key, 1);
    assert_eq!(world.refused(&own), Refusal::TargetIsOwner);
    let nobody = world.set_target(key, 9);
    assert_eq!(world.refused(&nobody), Refusal::UnknownMember);
    world.done(drain(2, true));
    world.kill(3);
    for bad in [2, 3] {
        let command = world.set_target(key, bad);
        assert_eq!(world.refused(&command), Refusal::CannotReceive);
    }
    world.done(remove(&world, 2));
    let command = world.set_target(key, 2);
    assert_eq!(world.refused(&command), Refusal::MemberRemoved);
}

#[test]
fn a_re_target_names_the_move_it_replaces_and_waits_for_no_handoff() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    let first = MoveId(world.done(command));
    let retarget = world.set_target(key, 3);
    let command = world.begin(key);
    let handoff_id = HandoffId(world.done(command));
    assert!(matches!(
        world.refused(&retarget),
        Refusal::ChangedSince { .. }
    ));
    let retarget = world.set_target(key, 3);
    assert_eq!(world.refused(&retarget), Refusal::HandoffRecorded);
    let clear = Command::ClearTarget {
        key,
        move_id: first,
        no_room: false,
    };
    assert_eq!(world.refused(&clear), Refusal::HandoffRecorded);
    world.done(Command::CancelHandoff { key, handoff_id });
    let retarget = world.set_target(key, 3);
    let second = MoveId(world.done(retarget));
    assert_ne!(first, second);
    let late = Command::BeginHandoff {
        key,
        owner: node(1),
        target: node(2),
        move_id: first,
    };
    let current = Some(second);
    assert_eq!(world.refused(&late), Refusal::OtherMove { current });
    let mixed = Command::BeginHandoff {
        key,
        owner: node(1),
        target: node(2),
        move_id: second,
    };
    assert_eq!(world.refused(&mixed), Refusal::OtherMove { current });
}

#[test]
fn a_duplicate_cannot_start_a_cancelled_move_again() {
    let (mut world, key) = one();
    let set = world.set_target(key, 2);
    let move_id = MoveId(world.done(set.clone()));
    world.done(Command::ClearTarget {
        key,
        move_id,
        no_room: false,
    });
    assert!(matches!(world.refused(&set), Refusal::ChangedSince { .. }));
}

#[test]
fn a_flip_that_was_on_its_way_wins_over_nobodys_death() {
    // The target is marked dead and draining while its CompleteMove is on its way: the copy is
    // installed there and the source frozen, so the flip stands.
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    let command = world.begin(key);
    world.done(command);
    world.kill(2);
    world.done(drain(2, true));
    let command = world.complete(key, 9);
    world.done(command);
    assert_eq!(world.at(key).owner, node(2));
}

#[test]
fn a_promotion_and_a_flip_exclude_each_other() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    let command = world.begin(key);
    world.done(command);
    world.kill(1);
    let complete = world.complete(key, 9);
    let promote = world.promote(key, 9, 9);
    world.done(promote);
    assert!(world.refused(&complete).is_final());
}

#[test]
fn a_deleted_topic_ends_its_moves() {
    let (mut world, key) = one();
    let command = world.set_target(key, 2);
    world.done(command);
    let command = world.begin(key);
    world.done(command);
    let complete = world.complete(key, 9);
    world.done(Command::DeleteTopic { topic: key.topic });
    assert_eq!(world.refused(&complete), Refusal::UnknownTopic);
    assert!(world.state.holdings()[&node(1)].is_free());
}
