//! Tests of the dispatcher: its rules one by one, then random histories over a model of the WAL
//! and of the owners.

mod model;

use super::*;
use crate::ids::{Epoch, PartitionIndex};
use crate::meta::Command;
use crate::meta::tests::*;
use alloc::vec;

/// Three nodes, one topic of three partitions, partition i on node i + 1.
fn world() -> (World, TopicId) {
    let mut world = World::new(3);
    let topic = world.topic("orders", 3, None);
    for partition in 0..3 {
        let topic = world.state.topics.get_mut(&topic).unwrap();
        Arc::make_mut(topic).partitions[partition as usize].owner = node(partition + 1);
    }
    (world, topic)
}

struct Shell {
    d: Dispatch,
    world: World,
    topic: TopicId,
    now: u64,
}

impl Shell {
    fn new() -> Self {
        let (world, topic) = world();
        let d = Dispatch::new(Arc::new(world.state.clone()));
        Self {
            d,
            world,
            topic,
            now: 0,
        }
    }

    fn step(&mut self, input: DispatchInput) -> Vec<DispatchEffect> {
        self.d.step(MonoMs(self.now), input)
    }

    fn applied(&mut self) -> Vec<DispatchEffect> {
        let state = Arc::new(self.world.state.clone());
        self.step(DispatchInput::Applied(state))
    }

    /// The first reading finds these.
    fn found(&mut self, entries: &[(u64, u32, bool)]) -> Vec<DispatchEffect> {
        if !self.d.reading {
            let effects = self.step(DispatchInput::Arrived);
            assert!(matches!(effects[..], [DispatchEffect::Read { .. }]));
        }
        let entries = entries
            .iter()
            .map(|(seq, partition, pinned)| self.entry(*seq, *partition, *pinned))
            .collect();
        let exhausted = true;
        self.step(DispatchInput::Read { entries, exhausted })
    }

    fn entry(&self, seq: u64, partition: u32, pinned: bool) -> Entry {
        Entry {
            seq: WalSeq(seq),
            key: key(self.topic, partition),
            pinned,
            bytes: 100,
        }
    }

    fn sent(&mut self, partition: u32, end: SendEnd) -> Vec<DispatchEffect> {
        let key = key(self.topic, partition);
        self.step(DispatchInput::Sent { key, end })
    }

    fn send(&self, partition: u32, seqs: &[u64]) -> DispatchEffect {
        let now = self.world.at(key(self.topic, partition));
        DispatchEffect::Send {
            key: key(self.topic, partition),
            to: now.owner.clone(),
            epoch: now.epoch,
            seqs: list(seqs),
        }
    }
}

fn list(seqs: &[u64]) -> Vec<WalSeq> {
    seqs.iter().copied().map(WalSeq).collect()
}

fn done(seqs: &[u64]) -> DispatchEffect {
    DispatchEffect::Done { seqs: list(seqs) }
}

const AGAIN: SendEnd = SendEnd::Again { retry_after_ms: 0 };

#[test]
fn one_batch_a_partition_in_order_and_done_only_when_appended() {
    let mut s = Shell::new();
    let effects = s.found(&[(1, 0, false), (2, 1, false), (3, 0, true)]);
    assert_eq!(effects, [s.send(0, &[1, 3]), s.send(1, &[2])]);
    let effects = s.found(&[(4, 0, false)]);
    assert!(effects.is_empty(), "partition 0 has one on its way");
    assert_eq!(
        s.sent(0, SendEnd::Appended),
        [done(&[1, 3]), s.send(0, &[4])]
    );
    assert_eq!(s.sent(1, SendEnd::Appended), [done(&[2])]);
    assert_eq!(s.sent(0, SendEnd::Appended), [done(&[4])]);
    assert_eq!((s.d.held(), s.d.next_wake()), (0, None));
    assert!(s.d.queues.is_empty() && s.d.sends == 0 && s.d.sends_to.is_empty());
}

#[test]
fn a_refused_partition_is_retried_alone_and_later_and_later() {
    let mut s = Shell::new();
    s.found(&[(1, 0, false), (2, 1, false)]);
    let mut waits = vec![];
    for _ in 0..9 {
        assert!(s.sent(0, AGAIN).is_empty());
        let wake = s.d.next_wake().unwrap();
        waits.push(wake.0 - s.now);
        s.now = wake.0 - 1;
        assert!(s.step(DispatchInput::Tick).is_empty());
        s.now = wake.0;
        assert_eq!(s.step(DispatchInput::Tick), [s.send(0, &[1])]);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    assert_eq!(s.sent(1, SendEnd::Appended), [done(&[2])]);
    let retry_after_ms = 3_000;
    s.sent(0, SendEnd::Again { retry_after_ms });
    assert_eq!(s.d.next_wake(), Some(MonoMs(s.now + 3_000)));
}

#[test]
fn a_flip_is_acted_upon_at_once() {
    let mut s = Shell::new();
    s.found(&[(1, 0, true)]);
    let moved = key(s.topic, 0);
    let command = s.world.set_target(moved, 3);
    s.world.done(command);
    s.applied();
    s.sent(0, AGAIN);
    assert!(
        s.applied().is_empty(),
        "a target alone changes nothing for us"
    );
    let command = s.world.begin(moved);
    s.world.done(command);
    assert_eq!(
        s.applied(),
        [s.send(0, &[1])],
        "a handoff does: it may be over soon"
    );
    s.sent(0, AGAIN);
    let command = s.world.complete(moved, 0);
    s.world.done(command);
    let effects = s.applied();
    assert_eq!(effects, [s.send(0, &[1])]);
    assert!(
        matches!(&effects[0], DispatchEffect::Send { to, epoch: Epoch(2), .. } if *to == node(3))
    );
}

#[test]
fn a_flip_that_is_applied_while_a_batch_is_on_its_way_needs_no_pause_and_no_advice() {
    let mut s = Shell::new();
    let moved = key(s.topic, 0);
    let command = s.world.set_target(moved, 3);
    s.world.done(command);
    let command = s.world.begin(moved);
    s.world.done(command);
    s.applied();
    s.found(&[(1, 0, true)]);
    let command = s.world.complete(moved, 0);
    s.world.done(command);
    assert!(s.applied().is_empty(), "it is on its way to the old owner");
    let retry_after_ms = 5_000;
    let effects = s.sent(0, SendEnd::Again { retry_after_ms });
    assert_eq!(effects, [s.send(0, &[1])]);
    assert!(
        matches!(&effects[0], DispatchEffect::Send { to, epoch: Epoch(2), .. } if *to == node(3))
    );
    // The new owner's advice is about what stands.
    assert!(s.sent(0, SendEnd::Again { retry_after_ms }).is_empty());
    assert_eq!(s.d.next_wake(), Some(MonoMs(s.now + 5_000)));
}

#[test]
fn a_dead_owners_records_go_to_a_living_sibling_but_for_named_partitions() {
    let mut s = Shell::new();
    s.found(&[(1, 0, false), (2, 0, true), (3, 0, false)]);
    s.world.kill(1);
    s.applied();
    let effects = s.sent(0, AGAIN);
    s.now += 10;
    let effects = [effects, s.step(DispatchInput::Tick)].concat();
    let [
        DispatchEffect::Reroute {
            key: from,
            to,
            seqs,
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!((*from, &seqs[..]), (key(s.topic, 0), &list(&[1, 3])[..]));
    assert_ne!(*to, PartitionIndex(0));
    // Not durable yet: nothing is done with.
    let key0 = key(s.topic, 0);
    let durable = false;
    assert!(
        s.step(DispatchInput::Rerouted { key: key0, durable })
            .is_empty()
    );
    s.now = s.d.next_wake().unwrap().0;
    assert!(matches!(
        s.step(DispatchInput::Tick)[..],
        [DispatchEffect::Reroute { .. }]
    ));
    let durable = true;
    let effects = s.step(DispatchInput::Rerouted { key: key0, durable });
    assert_eq!(effects, [done(&[1, 3])]);
    // The named one waits for its owner, which can be told.
    s.now += 60_000;
    assert!(s.step(DispatchInput::Tick).is_empty());
    assert_eq!(s.d.waiting_for_dead(), [(node(1), 1)].into());
    s.world.revive(1);
    assert_eq!(s.applied(), [s.send(0, &[2])]);
    assert!(s.d.waiting_for_dead().is_empty());
}

#[test]
fn without_a_living_sibling_records_wait() {
    let mut s = Shell::new();
    for number in 1..=3 {
        s.world.kill(number);
    }
    s.applied();
    assert!(s.found(&[(1, 0, false)]).is_empty());
    assert_eq!(s.d.waiting_for_dead(), [(node(1), 1)].into());
    s.world.revive(2);
    assert!(matches!(
        s.applied()[..],
        [DispatchEffect::Reroute {
            to: PartitionIndex(1),
            ..
        }]
    ));
}

#[test]
fn only_a_barrier_may_tell_that_a_topic_is_gone() {
    let mut s = Shell::new();
    // It starts with a state that lags behind its WAL.
    s.d = Dispatch::new(Arc::new(MetaState::default()));
    s.step(DispatchInput::Tick);
    assert_eq!(s.found(&[(1, 0, false)]), [DispatchEffect::Barrier]);
    let confirmed = false;
    assert!(s.step(DispatchInput::Barrier { confirmed }).is_empty());
    s.now = s.d.next_wake().unwrap().0;
    assert_eq!(s.step(DispatchInput::Tick), [DispatchEffect::Barrier]);
    // The barrier brings the state up to date: the topic is there.
    assert_eq!(s.applied(), [s.send(0, &[1])]);
    let confirmed = true;
    assert!(s.step(DispatchInput::Barrier { confirmed }).is_empty());
    // Now it is deleted.
    s.sent(0, AGAIN);
    let topic = s.topic;
    s.world.done(Command::DeleteTopic { topic });
    s.now += 2_000;
    assert_eq!(s.applied(), [DispatchEffect::Barrier]);
    let discarded = |seq| DispatchEffect::Discard {
        topic,
        seqs: list(&[seq]),
    };
    assert_eq!(s.step(DispatchInput::Barrier { confirmed }), [discarded(1)]);
    assert_eq!(s.found(&[(2, 1, false)]), [discarded(2)]);
    assert_eq!(s.d.held(), 0);
}

#[test]
fn a_state_that_is_told_late_changes_nothing() {
    let mut s = Shell::new();
    let old = Arc::new(s.world.state.clone());
    s.world.kill(1);
    s.applied();
    s.step(DispatchInput::Applied(old));
    let effects = s.found(&[(1, 0, false)]);
    assert!(matches!(effects[..], [DispatchEffect::Reroute { .. }]));
}

#[test]
fn what_is_on_its_way_when_a_topic_goes_is_waited_for() {
    let mut s = Shell::new();
    s.found(&[(1, 0, false)]);
    let topic = s.topic;
    s.world.done(Command::DeleteTopic { topic });
    s.applied();
    assert_eq!(s.found(&[(2, 1, false)]), [DispatchEffect::Barrier]);
    let confirmed = true;
    let effects = s.step(DispatchInput::Barrier { confirmed });
    assert!(matches!(&effects[..], [DispatchEffect::Discard { seqs, .. }] if *seqs == list(&[2])));
    let effects = s.sent(0, AGAIN);
    assert!(matches!(&effects[..], [DispatchEffect::Discard { seqs, .. }] if *seqs == list(&[1])));
    assert_eq!((s.d.held(), s.d.sends), (0, 0));
}

#[test]
fn batches_are_bounded_by_records_and_bytes_but_never_empty() {
    let mut s = Shell::new();
    let mut entries: Vec<Entry> = (1..=4_000).map(|seq| s.entry(seq, 0, false)).collect();
    entries.extend([4_001, 4_002].map(|seq| Entry {
        bytes: 2 * BATCH_BYTES,
        ..s.entry(seq, 1, false)
    }));
    s.step(DispatchInput::Arrived);
    let exhausted = true;
    let effects = s.step(DispatchInput::Read { entries, exhausted });
    let sizes: Vec<usize> = effects
        .iter()
        .map(|e| match e {
            DispatchEffect::Send { seqs, .. } => seqs.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [BATCH_RECORDS, 1]);
}

#[test]
fn a_node_that_hangs_leaves_sends_for_the_others() {
    let mut world = World::new(2);
    let hung = world.topic("hung", 100, None);
    let fine = world.topic("fine", 4, None);
    for (topic, owner) in [(hung, 1), (fine, 2)] {
        let topic = world.state.topics.get_mut(&topic).unwrap();
        for a in &mut Arc::make_mut(topic).partitions {
            a.owner = node(owner);
        }
    }
    let mut d = Dispatch::new(Arc::new(world.state.clone()));
    let _ = d.step(MonoMs(0), DispatchInput::Arrived);
    let entries: Vec<Entry> = (0..104)
        .map(|n| Entry {
            seq: WalSeq(n + 1),
            key: match n {
                0..100 => key(hung, n as u32),
                _ => key(fine, n as u32 - 100),
            },
            pinned: false,
            bytes: 1,
        })
        .collect();
    let exhausted = true;
    let effects = d.step(MonoMs(0), DispatchInput::Read { entries, exhausted });
    let to = |n| {
        let to = node(n);
        effects
            .iter()
            .filter(|e| matches!(e, DispatchEffect::Send { to: t, .. } if *t == to))
            .count()
    };
    assert_eq!((to(1), to(2)), (SENDS_A_NODE_MAX, 4));
}
