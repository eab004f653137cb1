//! Random histories over a model of the WAL and of the owners.

use super::*;
use crate::testing::Rng;

/// A WAL and owners that keep what they are sent.
struct Model {
    rng: Rng,
    s: Shell,
    /// The WAL: every record not done.
    wal: BTreeMap<WalSeq, Entry>,
    next_seq: u64,
    /// A reading under way: what it has found.
    reading: Option<(Vec<Entry>, bool)>,
    flights: Vec<DispatchEffect>,
    /// What the owners have, by partition: the highest sequence and all sequences.
    marks: BTreeMap<PartitionKey, WalSeq>,
    /// Where each record was first accepted: its identity across reroutings.
    origin: BTreeMap<WalSeq, u64>,
    delivered: BTreeSet<u64>,
    pinned: BTreeMap<u64, PartitionKey>,
    produced: u64,
    stuck: BTreeSet<u32>,
    barriers: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            s: Shell::new(),
            wal: BTreeMap::new(),
            next_seq: 1,
            reading: None,
            flights: vec![],
            marks: BTreeMap::new(),
            origin: BTreeMap::new(),
            delivered: BTreeSet::new(),
            pinned: BTreeMap::new(),
            produced: 0,
            stuck: BTreeSet::new(),
            barriers: 0,
        }
    }

    fn write(&mut self, key: PartitionKey, pinned: bool, origin: u64) {
        let seq = WalSeq(self.next_seq);
        self.next_seq += 1;
        let entry = Entry {
            seq,
            key,
            pinned,
            bytes: 1 + self.rng.below(200) as u64,
        };
        self.wal.insert(seq, entry);
        self.origin.insert(seq, origin);
    }

    fn feed(&mut self, input: DispatchInput) {
        let effects = self.s.step(input);
        for effect in effects {
            match effect {
                DispatchEffect::Read { from, max } => {
                    assert!(self.reading.is_none());
                    let found: Vec<Entry> =
                        self.wal.range(from..).take(max).map(|(_, e)| *e).collect();
                    let exhausted = found.len() < max;
                    self.reading = Some((found, exhausted));
                }
                DispatchEffect::Done { seqs } => {
                    for seq in seqs {
                        assert!(
                            self.delivered.contains(&self.origin[&seq]) || !self.wal[&seq].pinned
                        );
                        self.wal.remove(&seq);
                    }
                }
                DispatchEffect::Barrier => self.barriers += 1,
                DispatchEffect::Discard { .. } => panic!("no topic is deleted here"),
                flight => {
                    assert!(self.flights.len() < SENDS_MAX);
                    self.flights.push(flight);
                }
            }
        }
    }

    fn land(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = self.rng.below(self.flights.len());
        match self.flights.swap_remove(at) {
            DispatchEffect::Send {
                key,
                to,
                epoch,
                seqs,
            } => {
                let now = self.s.world.at(key).clone();
                let here = now.owner == to && now.epoch == epoch;
                let takes = here
                    && self.s.world.state.is_alive(&to)
                    && !self.stuck.contains(&key.partition.0)
                    && self.rng.chance(80);
                if takes {
                    self.append(key, &seqs);
                }
                // A reply may be lost: then it is sent again.
                let end = match takes && self.rng.chance(85) {
                    true => SendEnd::Appended,
                    false => AGAIN,
                };
                self.feed(DispatchInput::Sent { key, end });
            }
            DispatchEffect::Reroute { key, to, seqs } => {
                let durable = self.rng.chance(85);
                if durable {
                    for seq in &seqs {
                        assert!(!self.wal[seq].pinned, "a named partition was changed");
                        let to = PartitionKey {
                            partition: to,
                            ..key
                        };
                        self.write(to, false, self.origin[seq]);
                    }
                }
                self.feed(DispatchInput::Rerouted { key, durable });
                self.feed(DispatchInput::Arrived);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The owner: skips what is at or below its mark, as a duplicate.
    fn append(&mut self, key: PartitionKey, seqs: &[WalSeq]) {
        assert!(seqs.windows(2).all(|w| w[0] < w[1]), "ascending");
        let mark = self.marks.entry(key).or_default();
        for seq in seqs {
            let origin = self.origin[seq];
            if seq <= mark {
                assert!(
                    self.delivered.contains(&origin),
                    "{seq} is taken for a duplicate and was never appended"
                );
                continue;
            }
            *mark = *seq;
            if let Some(named) = self.pinned.get(&origin) {
                assert_eq!(*named, key);
            }
            self.delivered.insert(origin);
        }
    }

    fn act(&mut self) {
        self.s.now += self.rng.below(30) as u64;
        match self.rng.below(12) {
            0..=2 => {
                for _ in 0..self.rng.below(120) {
                    let key = key(self.s.topic, self.rng.below(3) as u32);
                    let pinned = self.rng.chance(20);
                    self.produced += 1;
                    if pinned {
                        self.pinned.insert(self.produced, key);
                    }
                    self.write(key, pinned, self.produced);
                }
                self.feed(DispatchInput::Arrived);
            }
            3..=5 => {
                if let Some((entries, exhausted)) = self.reading.take() {
                    if self.rng.chance(10) {
                        self.feed(DispatchInput::ReadFailed);
                    } else {
                        self.feed(DispatchInput::Read { entries, exhausted });
                    }
                }
            }
            6..=8 => self.land(),
            9 => {
                let partition = self.rng.below(3) as u32;
                if !self.stuck.remove(&partition) {
                    self.stuck.insert(partition);
                }
            }
            10 if self.rng.chance(20) => self.disturb(),
            _ => self.feed(DispatchInput::Tick),
        }
        assert!(self.s.d.held() <= WINDOW_MAX + 3 * QUEUE_LOW);
        for queue in self.s.d.queues.values() {
            assert!(queue.len() <= QUEUE_MAX);
        }
    }

    fn disturb(&mut self) {
        let number = 1 + self.rng.below(3) as u64;
        if !self.s.world.state.is_alive(&node(number)) {
            self.s.world.revive(number);
        } else if self.rng.chance(50) {
            self.s.world.kill(number);
        } else {
            let key = key(self.s.topic, self.rng.below(3) as u32);
            let steps: [fn(&World, PartitionKey, u64) -> Command; 3] = [
                |w, k, n| w.set_target(k, n),
                |w, k, _| w.begin(k),
                |w, k, _| w.complete(k, 0),
            ];
            for step in steps {
                if self.s.world.at(key).target.is_none()
                    && self.s.world.at(key).owner == node(number)
                {
                    break;
                }
                let command = step(&self.s.world, key, number);
                if matches!(
                    self.s.world.apply(&command),
                    crate::meta::Reply::Refused { .. }
                ) {
                    break;
                }
            }
            let ended = self.s.world.at(key).ended.clone();
            for ended in ended {
                self.s.world.done(Command::MarkReclaimed {
                    key,
                    epoch: ended.epoch,
                    owner: ended.owner,
                });
            }
        }
        let state = Arc::new(self.s.world.state.clone());
        self.feed(DispatchInput::Applied(state));
    }

    /// Everything heals: all must arrive, and nothing stay behind.
    fn finish(mut self) {
        self.stuck.clear();
        for number in 1..=3 {
            if !self.s.world.state.is_alive(&node(number)) {
                self.s.world.revive(number);
            }
        }
        let state = Arc::new(self.s.world.state.clone());
        self.feed(DispatchInput::Applied(state));
        for round in 0.. {
            assert!(
                round < 200_000,
                "{} records stay in the WAL",
                self.wal.len()
            );
            if let Some((entries, exhausted)) = self.reading.take() {
                self.feed(DispatchInput::Read { entries, exhausted });
            }
            self.land();
            if self.flights.is_empty() && self.reading.is_none() {
                match self.s.d.next_wake() {
                    Some(at) => self.s.now = self.s.now.max(at.0),
                    None => break,
                }
                self.feed(DispatchInput::Tick);
            }
        }
        assert!(self.wal.is_empty(), "{} records stay", self.wal.len());
        assert_eq!(self.delivered.len() as u64, self.produced);
        assert_eq!((self.s.d.held(), self.s.d.sends, self.barriers), (0, 0, 0));
        assert!(self.s.d.queues.is_empty());
    }
}

#[test]
fn random_histories_deliver_everything_in_order() {
    for seed in 0..150 {
        let mut model = Model::new(seed);
        for _ in 0..1_500 {
            model.act();
        }
        model.finish();
    }
}

#[test]
fn a_backlog_beyond_all_bounds_is_delivered_and_delays_no_other_partition() {
    let mut model = Model::new(1);
    model.stuck.insert(0);
    let total = 3 * QUEUE_MAX as u64;
    for number in 1..=total {
        model.produced += 1;
        let key = key(model.s.topic, u32::from(number % 4 == 0));
        model.write(key, false, number);
    }
    model.feed(DispatchInput::Arrived);
    for _ in 0..4_000 {
        if let Some((entries, exhausted)) = model.reading.take() {
            model.feed(DispatchInput::Read { entries, exhausted });
        }
        model.land();
        model.s.now += 5;
        model.feed(DispatchInput::Tick);
    }
    let others = (1..=total).filter(|n| n % 4 == 0);
    assert!(others.into_iter().all(|n| model.delivered.contains(&n)));
    assert!(model.s.d.held() <= QUEUE_MAX);
    model.finish();
}
