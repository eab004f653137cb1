//! Tests of routing: vectors that hold for ever, and where records go around what is not open.

use super::*;
use crate::ids::TopicId;
use crate::meta::tests::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;

/// Part of the data format: these values may never change.
#[test]
fn hash_vectors() {
    for (text, expected) in VECTORS {
        assert_eq!(
            hash(text.as_bytes()),
            *expected,
            "{text:?}: {:#x}",
            hash(text.as_bytes())
        );
    }
}

const VECTORS: &[(&str, u64)] = &[
    ("", 0xefd0_1f60_ba99_2926),
    ("a", 0x82a2_a958_a9be_ce5b),
    ("order-1", 0x491b_422e_3af0_d9a5),
    ("narad", 0xa281_a0ff_fd24_d3f2),
    ("The quick brown fox", 0x1956_f2f4_c496_83bd),
];

#[test]
fn partitions_and_shards_of_keys_never_change() {
    let partitions: Vec<u32> = ["", "a", "b", "order-1", "order-2", "order-3"]
        .iter()
        .map(|key| partition_of(key.as_bytes(), 12).0)
        .collect();
    assert_eq!(partitions, [11, 6, 5, 3, 8, 4]);
    let shards: Vec<u32> = (0..8).map(|p| shard_of(key(TopicId(42), p), 4).0).collect();
    assert_eq!(shards, [2, 1, 3, 1, 2, 2, 2, 0]);
    assert_eq!(shard_of(key(TopicId(42), 7), 1), ShardIndex(0));
}

#[test]
fn keys_and_partitions_spread_evenly() {
    let mut counts = [0_u32; 7];
    for number in 0..7_000 {
        counts[partition_of(format!("key-{number}").as_bytes(), 7).0 as usize] += 1;
    }
    assert!(
        counts.iter().all(|c| (850..1_150).contains(c)),
        "{counts:?}"
    );
    let mut counts = [0_u32; 3];
    for topic in 1..31 {
        for partition in 0..100 {
            counts[shard_of(key(TopicId(topic), partition), 3).0 as usize] += 1;
        }
    }
    assert!(
        counts.iter().all(|c| (850..1_150).contains(c)),
        "{counts:?}"
    );
}

struct Place {
    world: World,
    topic: Arc<Topic>,
    closed: BTreeSet<PartitionIndex>,
}

impl Place {
    /// Two nodes; n1 owns the even partitions of a topic of six, n2 the others.
    fn new() -> Self {
        let mut world = World::new(2);
        let id = world.topic("orders", 6, None);
        let topic = world.state.topics.get_mut(&id).unwrap();
        for (index, a) in Arc::make_mut(topic).partitions.iter_mut().enumerate() {
            a.owner = node(1 + index as u64 % 2);
        }
        let topic = topic.clone();
        Self {
            world,
            topic,
            closed: BTreeSet::new(),
        }
    }

    fn route(&self, wish: Wish<'_>, sticky: &mut Sticky) -> Route {
        let open = |p| !self.closed.contains(&p);
        let here = Here {
            state: &self.world.state,
            topic: &self.topic,
            node: &node(1),
            shard: ShardIndex(0),
            shards: 1,
            open: &open,
        };
        here.route(wish, 1, sticky)
    }

    fn key_of(&self, partition: u32) -> alloc::string::String {
        (0..)
            .map(|n| format!("k{n}"))
            .find(|k| partition_of(k.as_bytes(), 6).0 == partition)
            .unwrap()
    }
}

fn wal(partition: u32, pinned: bool) -> Route {
    Route::Wal {
        partition: PartitionIndex(partition),
        pinned,
    }
}

#[test]
fn a_named_partition_is_never_changed() {
    let mut place = Place::new();
    let to =
        |place: &Place, p| place.route(Wish::Pinned(PartitionIndex(p)), &mut Sticky::default());
    assert_eq!(to(&place, 2), Route::Append(PartitionIndex(2)));
    assert_eq!(to(&place, 3), wal(3, true));
    place.closed.insert(PartitionIndex(2));
    assert_eq!(to(&place, 2), wal(2, true));
    place.world.kill(2);
    assert_eq!(to(&place, 3), wal(3, true));
    assert_eq!(to(&place, 6), Route::UnknownPartition { partitions: 6 });
}

#[test]
fn a_key_stays_with_its_partition_until_it_is_frozen() {
    let mut place = Place::new();
    let (here, there) = (place.key_of(2), place.key_of(3));
    let to =
        |place: &Place, key: &str| place.route(Wish::Keyed(key.as_bytes()), &mut Sticky::default());
    assert_eq!(to(&place, &here), Route::Append(PartitionIndex(2)));
    assert_eq!(to(&place, &there), wal(3, false));
    place.closed.insert(PartitionIndex(2));
    let sibling = to(&place, &here);
    assert!(matches!(sibling, Route::Append(PartitionIndex(0 | 4))));
    assert_eq!(sibling, to(&place, &here), "one key, one sibling");
    place.closed.extend([PartitionIndex(0), PartitionIndex(4)]);
    assert!(
        matches!(to(&place, &here), Route::Wal { partition, pinned: false } if partition != PartitionIndex(2)),
        "nothing is open here: a living sibling by way of the WAL"
    );
}

#[test]
fn a_dead_owners_keys_go_to_siblings() {
    let mut place = Place::new();
    let there = place.key_of(3);
    place.world.kill(2);
    let to = |place: &Place| place.route(Wish::Keyed(there.as_bytes()), &mut Sticky::default());
    assert!(matches!(
        to(&place),
        Route::Append(PartitionIndex(0 | 2 | 4))
    ));
    place.closed.extend([0, 2, 4].map(PartitionIndex));
    assert!(matches!(
        to(&place),
        Route::Wal {
            partition: PartitionIndex(0 | 2 | 4),
            pinned: false
        }
    ));
    place.world.kill(1);
    assert_eq!(
        to(&place),
        wal(3, false),
        "nobody lives: it waits for its own"
    );
}

#[test]
fn records_without_a_key_stick_to_an_open_local_partition_and_go_round() {
    let mut place = Place::new();
    let mut sticky = Sticky::default();
    let Route::Append(first) = place.route(Wish::Any, &mut sticky) else {
        panic!("something is open here");
    };
    for _ in 0..100 {
        assert_eq!(place.route(Wish::Any, &mut sticky), Route::Append(first));
    }
    place.closed.insert(first);
    let next = place.route(Wish::Any, &mut sticky);
    assert_ne!(next, Route::Append(first), "it is frozen");
    place.closed.clear();
    let mut counts = BTreeMap::new();
    for _ in 0..9 {
        sticky.bytes = STICKY_BYTES;
        let Route::Append(at) = place.route(Wish::Any, &mut sticky) else {
            panic!("something is open here");
        };
        *counts.entry(at.0).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([(0, 3), (2, 3), (4, 3)]));
    place.closed.extend([0, 2, 4].map(PartitionIndex));
    assert!(matches!(
        place.route(Wish::Any, &mut sticky),
        Route::Wal { pinned: false, .. }
    ));
}

#[test]
fn an_own_shards_partition_is_preferred() {
    let mut world = World::new(1);
    let id = world.topic("orders", 64, None);
    let topic = world.state.topics[&id].clone();
    for shard in 0..4 {
        let here = Here {
            state: &world.state,
            topic: &topic,
            node: &node(1),
            shard: ShardIndex(shard),
            shards: 4,
            open: &|_| true,
        };
        let Route::Append(at) = here.route(Wish::Any, 1, &mut Sticky::default()) else {
            panic!("all are open");
        };
        assert_eq!(shard_of(key(id, at.0), 4), ShardIndex(shard));
    }
}
