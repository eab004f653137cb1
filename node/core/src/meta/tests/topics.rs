//! Creation, placement, settings and deletion of topics.

use super::*;
use alloc::collections::BTreeMap;
use alloc::vec;

fn counts(owners: &[NodeId]) -> BTreeMap<NodeId, usize> {
    let mut counts = BTreeMap::new();
    for owner in owners {
        *counts.entry(owner.clone()).or_default() += 1;
    }
    counts
}

fn with_settings(change: impl FnOnce(&mut TopicSettings)) -> Command {
    let mut settings = TopicSettings::default();
    change(&mut settings);
    Command::CreateTopic {
        name: name("orders"),
        partitions: 1,
        parent: None,
        settings,
    }
}

#[test]
fn a_topic_is_spread_and_the_cluster_stays_balanced() {
    let mut world = World::new(3);
    for (number, partitions) in [4, 1, 2, 5, 1, 1, 7].into_iter().enumerate() {
        let topic = world.topic(&format!("t{number}"), partitions, None);
        let spread = counts(&world.owners(topic));
        let most = spread.values().max().unwrap();
        let least = (1..=3)
            .map(|n| spread.get(&node(n)).copied().unwrap_or(0))
            .min()
            .unwrap();
        assert!(most - least <= 1, "{spread:?}");
        let owned: alloc::vec::Vec<usize> =
            world.state.holdings().values().map(|h| h.owned).collect();
        assert!(
            owned.iter().max().unwrap() - owned.iter().min().unwrap() <= 1,
            "{owned:?}"
        );
    }
}

#[test]
fn new_topics_avoid_dead_and_draining_members_and_count_moves_at_their_target() {
    let mut world = World::new(4);
    world.kill(1);
    world.done(drain(2, true));
    let topic = world.topic("orders", 4, None);
    let spread = counts(&world.owners(topic));
    assert_eq!(spread, BTreeMap::from([(node(3), 2), (node(4), 2)]));
    let from_3 = (0..4).find(|p| world.owners(topic)[*p as usize] == node(3));
    let command = world.set_target(key(topic, from_3.unwrap()), 4);
    world.done(command);
    let one = world.topic("one", 1, None);
    assert_eq!(world.owners(one), [node(3)], "n4 has one more inbound");
    world.kill(3);
    world.kill(4);
    assert_eq!(world.refused(&create("x", 1, None)), Refusal::NoReceiver);
}

#[test]
fn a_child_is_off_its_parents_node_wherever_counts_allow() {
    for nodes in 2..=5_u64 {
        for partitions in 1..=12_u32 {
            let mut world = World::new(nodes);
            let parent = world.topic("parent", partitions, None);
            let child = world.topic("child", partitions, Some("parent"));
            let together = world
                .owners(parent)
                .iter()
                .zip(world.owners(child))
                .filter(|(p, c)| *p == c)
                .count();
            assert_eq!(together, 0, "{nodes} nodes, {partitions} partitions");
        }
    }
    // One parent partition feeds all: its node gets its fair share and no more.
    let mut world = World::new(3);
    let parent = world.topic("parent", 1, None);
    let child = world.topic("child", 7, Some("parent"));
    let spread = counts(&world.owners(child));
    assert_eq!(spread[&world.owners(parent)[0]], 2);
}

#[test]
fn names_and_incarnations() {
    let mut world = World::new(2);
    let first = world.topic("orders", 2, None);
    assert_eq!(
        world.refused(&create("orders", 2, None)),
        Refusal::TopicExists
    );
    world.done(Command::DeleteTopic { topic: first });
    let delete = Command::DeleteTopic { topic: first };
    assert_eq!(world.refused(&delete), Refusal::UnknownTopic);
    let second = world.topic("orders", 2, None);
    assert_ne!(first, second);
    assert_eq!(world.refused(&delete), Refusal::UnknownTopic, "late delete");
    let stale = Command::MarkOpened {
        key: key(first, 0),
        owner: node(1),
        epoch: Epoch(1),
    };
    assert_eq!(world.refused(&stale), Refusal::UnknownTopic);
    assert!(matches!(
        world.refused(&create("a/b", 1, None)),
        Refusal::BadName { .. }
    ));
}

#[test]
fn bad_counts_and_settings_are_refused_with_the_allowed_range() {
    let mut world = World::new(2);
    world.topic("dead", 1, None);
    for bad in [
        create("x", 0, None),
        create("x", crate::defaults::PARTITIONS_MAX + 1, None),
        create("x", 1, Some("nobody")),
        with_settings(|s| s.visibility_ms = 0),
        with_settings(|s| s.visibility_ms = u64::MAX),
        with_settings(|s| s.retention_ms = Some(0)),
        with_settings(|s| s.retention_bytes = Some(0)),
        with_settings(|s| s.max_record_bytes = 0),
        with_settings(|s| s.max_record_bytes = u32::MAX),
        with_settings(|s| s.max_deliveries = Some(0)),
        with_settings(|s| s.max_deliveries = Some(3)),
        with_settings(|s| s.dead_letter = Some(name("dead"))),
        with_settings(|s| {
            s.max_deliveries = Some(3);
            s.dead_letter = Some(name("orders"));
        }),
        with_settings(|s| {
            s.max_deliveries = Some(3);
            s.dead_letter = Some(name("nobody"));
        }),
        with_settings(|s| s.max_leases = 0),
        with_settings(|s| s.max_acked_ahead = crate::defaults::LEASE_BOUND_MAX + 1),
    ] {
        let refusal = world.refused(&bad);
        assert!(
            matches!(refusal, Refusal::BadSettings { .. }),
            "{bad:?}: {refusal:?}"
        );
    }
    let topic = TopicId(world.done(with_settings(|s| {
        s.max_deliveries = Some(3);
        s.dead_letter = Some(name("dead"));
    })));
    let bad = Command::SetTopicSettings {
        topic,
        settings: TopicSettings {
            visibility_ms: 0,
            ..TopicSettings::default()
        },
        change: vec![Setting::VisibilityMs],
    };
    assert!(matches!(world.refused(&bad), Refusal::BadSettings { .. }));
    // What is not named stays, and what comes of both together is checked.
    let change = |change: &[Setting], settings| Command::SetTopicSettings {
        topic,
        settings,
        change: change.to_vec(),
    };
    let half = change(&[Setting::MaxDeliveries], TopicSettings::default());
    assert!(matches!(world.refused(&half), Refusal::BadSettings { .. }));
    world.done(change(
        &[Setting::MaxLeases, Setting::RetentionMs],
        TopicSettings {
            max_leases: 7,
            retention_ms: Some(1_000),
            visibility_ms: 0,
            ..TopicSettings::default()
        },
    ));
    let both = [Setting::MaxDeliveries, Setting::DeadLetter];
    world.done(change(&both, TopicSettings::default()));
    assert_eq!(
        world.state.topics[&topic].settings,
        TopicSettings {
            max_leases: 7,
            retention_ms: Some(1_000),
            ..TopicSettings::default()
        }
    );
    assert!(matches!(
        world.refused(&Command::SetThrottle {
            bytes_per_s: Some(0)
        }),
        Refusal::BadSettings { .. }
    ));
}

#[test]
fn an_open_mark_belongs_to_one_owner_and_epoch() {
    let mut world = World::new(2);
    let topic = world.topic("orders", 1, None);
    let owner = world.owners(topic)[0].clone();
    let opened = |owner: &NodeId, epoch| Command::MarkOpened {
        key: key(topic, 0),
        owner: owner.clone(),
        epoch: Epoch(epoch),
    };
    assert!(matches!(
        world.refused(&opened(&node(2), 1)),
        Refusal::NotOwner { .. }
    ));
    assert!(matches!(
        world.refused(&opened(&owner, 2)),
        Refusal::NotOwner { .. }
    ));
    world.done(opened(&owner, 1));
    world.done(opened(&owner, 1));
    assert!(world.at(key(topic, 0)).opened);
}
