//! Whose metadata may be continued with whose log.

use super::*;

const A: ClusterId = ClusterId(10);
const B: ClusterId = ClusterId(11);

fn point(term: u64, index: u64) -> LogPoint {
    LogPoint {
        term: RaftTerm(term),
        index: RaftIndex(index),
    }
}

fn recovered(id: u64, term: u64, index: u64) -> Command {
    Command::Recovered {
        recovery: Recovery {
            id: RecoveryId(id),
            kept: point(term, index),
        },
    }
}

fn identify(cluster: ClusterId) -> Command {
    Command::IdentifyCluster { cluster }
}

#[test]
fn a_cluster_has_one_identity_for_ever() {
    let mut world = World::new(1);
    assert!(matches!(
        world.refused(&identify(ClusterId(0))),
        Refusal::BadSettings { .. }
    ));
    world.done(identify(A));
    world.done(identify(A));
    assert_eq!(world.refused(&identify(B)), Refusal::OtherCluster);
    assert_eq!(world.state.cluster, Some(A));
}

#[test]
fn a_node_of_another_cluster_and_one_that_was_never_a_member_are_strangers() {
    let mut world = World::new(2);
    let heritage = |cluster| Heritage {
        cluster,
        has_log: true,
        ..Heritage::default()
    };
    // Before there are identities, the id alone tells.
    assert_eq!(
        world
            .state
            .check_heritage(&node(1), 1, false, &heritage(Some(B))),
        Ok(())
    );
    world.done(identify(A));
    let other = Stranger::OtherCluster { theirs: B, ours: A };
    for (id, has_log) in [(1, true), (1, false), (9, false)] {
        let heritage = Heritage {
            has_log,
            ..heritage(Some(B))
        };
        assert_eq!(
            world.state.check_heritage(&node(id), id, false, &heritage),
            Err(other)
        );
    }
    for cluster in [None, Some(A)] {
        let heritage = heritage(cluster);
        assert_eq!(
            world.state.check_heritage(&node(1), 1, false, &heritage),
            Ok(())
        );
        // One of this cluster may have joined in what a replaced quorum lost: its log tells.
        let unknown = world.state.check_heritage(&node(9), 9, false, &heritage);
        let expected = cluster.map_or(Err(Stranger::NeverMember), |_| Ok(()));
        assert_eq!(unknown, expected);
        assert_eq!(
            world.state.check_heritage(&node(9), 9, true, &heritage),
            Ok(()),
            "a founder"
        );
    }
    let told = world
        .state
        .check_heritage(&node(1), 77, false, &heritage(None));
    assert_eq!(told, Err(Stranger::OtherDisk));
    let empty = Heritage::default();
    assert_eq!(
        world.state.check_heritage(&node(9), 9, false, &empty),
        Ok(()),
        "a joiner"
    );
}

#[test]
fn a_log_with_more_than_a_replaced_quorum_kept_is_not_continued() {
    let mut world = World::new(3);
    let all = [point(1, 5), point(2, 9), point(3, 4), point(3, 12)];
    for committed in all {
        assert!(world.state.continues(None, committed), "nothing was lost");
    }
    assert!(
        !world.state.continues(Some(RecoveryId(7)), point(1, 1)),
        "of a later one"
    );
    world.state.applied = RaftIndex(50);
    let future = world.refused(&recovered(7, 2, 90));
    assert!(matches!(future, Refusal::BadSettings { .. }));
    world.done(recovered(7, 2, 9));
    world.done(recovered(8, 5, 40));
    world.done(recovered(7, 2, 9));
    assert_eq!(world.state.recoveries.len(), 2, "once each");
    let fits = |recovery, committed| world.state.continues(recovery, committed);
    assert_eq!(
        all.map(|committed| fits(None, committed)),
        [true, true, false, false]
    );
    let first = Some(RecoveryId(7));
    assert!(fits(first, point(5, 40)) && !fits(first, point(5, 41)) && !fits(first, point(6, 30)));
    assert!(fits(Some(RecoveryId(8)), point(9, 900)));
    assert!(
        !fits(Some(RecoveryId(9)), point(1, 1)),
        "recovered twice, side by side"
    );
    let heritage = Heritage {
        has_log: true,
        applied: point(3, 4),
        ..Heritage::default()
    };
    let told = world.state.check_heritage(&node(1), 1, false, &heritage);
    assert_eq!(told, Err(Stranger::Diverged));
}

#[test]
fn one_that_joined_in_what_a_replaced_quorum_lost_is_told_from_a_stranger() {
    let mut world = World::new(2);
    world.done(identify(A));
    let lost = |world: &World, id: u64, cluster, recovery: Option<u64>| {
        let recovery = recovery.map(RecoveryId);
        world.state.joined_in_lost(&node(id), cluster, recovery)
    };
    assert!(!lost(&world, 9, Some(A), None), "nothing was lost");
    let end = world.state.applied.0;
    world.done(recovered(7, 1, end));
    assert!(lost(&world, 9, Some(A), None));
    assert!(!lost(&world, 1, Some(A), None), "a member");
    assert!(!lost(&world, 9, Some(B), None), "of another cluster");
    assert!(!lost(&world, 9, None, None), "nobody knows of which");
    assert!(!lost(&world, 9, Some(A), Some(7)), "of the line of today");
    assert!(!lost(&world, 9, Some(A), Some(8)), "of one beside it");
    let end = world.state.applied.0;
    world.done(recovered(8, 2, end));
    assert!(lost(&world, 9, Some(A), None) && lost(&world, 9, Some(A), Some(7)));
    assert!(!lost(&world, 9, Some(A), Some(8)));
}

#[test]
fn topics_are_not_given_the_identity_of_one_that_was_lost() {
    let mut world = World::new(3);
    let kept = world.topic("a", 1, None);
    let end = world.state.applied.0;
    world.done(recovered(7, 1, end));
    let (gone, future) = (
        TopicId(end + 1),
        world.state.topic_id_at(RaftIndex(end + 50)),
    );
    let again = world.topic("b", 1, None);
    assert_ne!(again, gone);
    assert_eq!(world.state.topic_id_at(world.state.applied), again);
    assert!(world.state.covers(kept) && world.state.covers(again));
    assert!(!world.state.covers(gone) && world.state.lost(gone));
    assert!(!world.state.covers(future) && !world.state.lost(future));
    let before = [kept, again];
    assert!(before.iter().all(|topic| !world.state.lost(*topic)));
    assert!(again.0 < 1 << 53, "exact in every JSON reader");
}
