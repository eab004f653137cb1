//! Tests of the lease table: its cases, and random histories against a simple model.

use super::*;
use crate::testing::Rng;
use alloc::vec;

const VISIBLE: u64 = 100;

fn table() -> LeaseTable {
    LeaseTable::new(Offset(0), Nonce(1_000))
}

fn run(from: u64, to: u64) -> Run {
    Run {
        from: Offset(from),
        to: Offset(to),
    }
}

fn offsets(runs: &[Run]) -> Vec<Offset> {
    runs.iter()
        .flat_map(|r| (r.from.0..r.to.0).map(Offset))
        .collect()
}

/// Takes and grants.
fn deliver(t: &mut LeaseTable, now: u64, hwm: u64, max: usize) -> Vec<(Offset, Grant)> {
    let runs = t.take(MonoMs(now), Offset(hwm), max, None);
    offsets(&runs)
        .into_iter()
        .map(|offset| (offset, t.grant(offset, MonoMs(now), VISIBLE).unwrap()))
        .collect()
}

#[test]
fn acks_out_of_order_move_the_frontier_only_over_what_is_done() {
    let mut t = table();
    let got = deliver(&mut t, 0, 5, 10);
    assert_eq!(got.len(), 5);
    for index in [1, 3, 2] {
        let (offset, grant) = got[index];
        t.ack(offset, grant.nonce, MonoMs(1)).unwrap();
        assert_eq!(t.frontier(), Offset(0));
    }
    assert_eq!(t.acked_ahead(), 3);
    t.ack(got[0].0, got[0].1.nonce, MonoMs(1)).unwrap();
    assert_eq!((t.frontier(), t.acked_ahead()), (Offset(4), 0));
    let again = t.ack(got[0].0, got[0].1.nonce, MonoMs(1));
    assert_eq!(again, Err(StaleLease { offset: Offset(0) }));
}

#[test]
fn an_ended_lease_is_stale_for_everything_and_its_record_comes_again_first() {
    let mut t = table();
    let (offset, first) = deliver(&mut t, 0, 1, 1)[0];
    assert_eq!(t.next_due(), Some(MonoMs(VISIBLE)));
    t.extend(offset, first.nonce, MonoMs(50), VISIBLE).unwrap();
    assert!(deliver(&mut t, 149, 1, 1).is_empty());
    let now = MonoMs(150);
    assert!(t.ack(offset, first.nonce, now).is_err());
    assert!(t.nack(offset, first.nonce, now, 0).is_err());
    assert!(t.extend(offset, first.nonce, now, 9).is_err());
    let again = deliver(&mut t, 150, 9, 1);
    assert_eq!(again[0].0, offset, "before fresh ones");
    assert_eq!(again[0].1.deliveries, 2);
    assert_ne!(again[0].1.nonce, first.nonce);
    assert!(t.ack(offset, first.nonce, now).is_err(), "the old proof");
    t.ack(offset, again[0].1.nonce, now).unwrap();
}

#[test]
fn a_nack_waits_for_its_delay() {
    let mut t = table();
    let (offset, grant) = deliver(&mut t, 0, 1, 1)[0];
    t.nack(offset, grant.nonce, MonoMs(10), 40).unwrap();
    assert!(!t.has_work(MonoMs(49), Offset(1), None));
    assert!(t.has_work(MonoMs(50), Offset(1), None));
    assert_eq!(deliver(&mut t, 50, 1, 1)[0].1.deliveries, 2);
}

#[test]
fn nothing_at_or_above_the_high_watermark_goes_out() {
    let mut t = table();
    assert!(t.take(MonoMs(0), Offset(0), 10, None).is_empty());
    assert_eq!(t.take(MonoMs(0), Offset(3), 10, None), [run(0, 3)]);
    assert!(
        t.take(MonoMs(0), Offset(3), 10, None).is_empty(),
        "reserved"
    );
}

#[test]
fn what_is_given_back_counts_no_delivery_and_is_not_lost() {
    let mut t = table();
    for offset in offsets(&t.take(MonoMs(0), Offset(2), 10, None)) {
        t.give_back(offset, MonoMs(0));
    }
    let got = deliver(&mut t, 0, 2, 10);
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].1.deliveries, 1);
    let (offset, grant) = got[0];
    t.undeliver(offset, grant.nonce, MonoMs(1)).unwrap();
    assert!(t.undeliver(offset, grant.nonce, MonoMs(1)).is_err());
    assert_eq!(deliver(&mut t, 1, 2, 10)[0].1.deliveries, 1);
}

#[test]
fn unreadable_records_are_passed_over() {
    let mut t = table();
    let taken = t.take(MonoMs(0), Offset(10), 5, None);
    assert_eq!(taken, [run(0, 5)]);
    t.skip(run(0, 3));
    assert_eq!(t.frontier(), Offset(3));
    t.give_back(Offset(1), MonoMs(0));
    assert_eq!(t.out(), 2, "a skipped record does not come back");
    t.skip(run(6, 8));
    let rest = t.take(MonoMs(0), Offset(10), 10, None);
    assert_eq!(rest, [run(5, 6), run(8, 10)]);
    t.skip(run(0, 100));
    assert_eq!(
        (t.frontier(), t.out(), t.acked_ahead()),
        (Offset(100), 0, 0)
    );
}

#[test]
fn retention_takes_leases_along() {
    let mut t = table();
    let got = deliver(&mut t, 0, 10, 10);
    t.ack(got[1].0, got[1].1.nonce, MonoMs(1)).unwrap();
    assert_eq!(t.retained_from(Offset(4)), 3, "one of four was acked");
    assert_eq!(t.frontier(), Offset(4));
    assert!(t.ack(got[3].0, got[3].1.nonce, MonoMs(1)).is_err());
    t.ack(got[4].0, got[4].1.nonce, MonoMs(1)).unwrap();
    assert_eq!(t.frontier(), Offset(5));
    assert_eq!(t.retained_from(Offset(2)), 0);
    assert_eq!(t.frontier(), Offset(5));
    t.ack(got[6].0, got[6].1.nonce, MonoMs(1)).unwrap();
    t.ack(got[7].0, got[7].1.nonce, MonoMs(1)).unwrap();
    t.ack(got[8].0, got[8].1.nonce, MonoMs(1)).unwrap();
    // The bound cuts a run of acked ones; what was never taken was not acked either.
    assert_eq!(t.retained_from(Offset(8)), 1);
    assert_eq!(t.retained_from(Offset(12)), 3);
}

#[test]
fn retention_may_pass_a_record_while_it_is_read() {
    let mut t = table();
    t.take(MonoMs(0), Offset(4), 4, None);
    assert_eq!(t.retained_from(Offset(2)), 2);
    assert_eq!(t.grant(Offset(1), MonoMs(0), VISIBLE), None);
    t.retire(Offset(0));
    t.give_back(Offset(1), MonoMs(0));
    assert!(t.grant(Offset(2), MonoMs(0), VISIBLE).is_some());
    assert_eq!((t.frontier(), t.out()), (Offset(2), 2));
}

#[test]
fn a_record_delivered_often_enough_is_for_the_dead_letter_topic() {
    let mut t = table();
    for delivery in 1..=3 {
        let runs = t.take(MonoMs(0), Offset(2), 1, Some(3));
        assert_eq!(runs, [run(0, 1)]);
        let grant = t.grant(Offset(0), MonoMs(0), VISIBLE).unwrap();
        assert_eq!(grant.deliveries, delivery);
        t.nack(Offset(0), grant.nonce, MonoMs(0), 0).unwrap();
    }
    assert!(t.take(MonoMs(0), Offset(1), 1, Some(3)).is_empty());
    assert!(!t.has_work(MonoMs(0), Offset(0), Some(3)));
    assert_eq!(t.take_spent(MonoMs(0), 10, 3), [Offset(0)]);
    assert_eq!(t.frontier(), Offset(0), "not before it is durable there");
    t.give_back(Offset(0), MonoMs(5));
    assert!(t.take_spent(MonoMs(4), 10, 3).is_empty());
    assert_eq!(t.take_spent(MonoMs(5), 10, 3), [Offset(0)]);
    t.retire(Offset(0));
    assert_eq!(t.frontier(), Offset(1));
}

#[test]
fn memory_is_bounded_by_leases_and_by_acks_ahead() {
    let mut t = table();
    let got = deliver(&mut t, 0, u64::MAX, usize::MAX);
    assert_eq!(got.len(), LEASES_MAX);
    assert!(deliver(&mut t, 0, u64::MAX, usize::MAX).is_empty());
    // The first is never acked.
    for (offset, grant) in &got[1..] {
        t.ack(*offset, grant.nonce, MonoMs(1)).unwrap();
    }
    let more = deliver(&mut t, 1, u64::MAX, usize::MAX);
    assert_eq!(more.len(), LEASES_MAX - 1);
    for (offset, grant) in &more {
        t.ack(*offset, grant.nonce, MonoMs(1)).unwrap();
    }
    assert!(
        deliver(&mut t, 1, u64::MAX, usize::MAX).is_empty(),
        "too far ahead"
    );
    assert!(t.acked_ahead() < (LEASES_MAX + ACKED_AHEAD_MAX) as u64);
    assert_eq!(t.done.len(), 1, "neighbours are one range");
    t.ack(got[0].0, got[0].1.nonce, MonoMs(1)).unwrap();
    assert_eq!(t.frontier(), Offset(2 * LEASES_MAX as u64 - 1));
    assert!(!deliver(&mut t, 1, u64::MAX, usize::MAX).is_empty());
}

#[test]
fn bounds_change_while_records_are_out() {
    let mut t = table();
    t.set_bounds(4, 2);
    let got = deliver(&mut t, 0, u64::MAX, usize::MAX);
    assert_eq!(got.len(), 4);
    t.set_bounds(2, 2);
    assert!(deliver(&mut t, 0, u64::MAX, usize::MAX).is_empty());
    // The first is never acked: two are ahead, and nothing fresh follows.
    for (offset, grant) in &got[1..3] {
        t.ack(*offset, grant.nonce, MonoMs(1)).unwrap();
    }
    t.set_bounds(100, 2);
    assert!(deliver(&mut t, 1, u64::MAX, usize::MAX).is_empty());
    t.set_bounds(100, 3);
    assert_eq!(deliver(&mut t, 1, u64::MAX, usize::MAX).len(), 98);
}

#[test]
#[should_panic(expected = "not reserved")]
fn a_record_never_has_two_leases() {
    let mut t = table();
    deliver(&mut t, 0, 1, 1);
    let _ = t.grant(Offset(0), MonoMs(0), VISIBLE);
}

/// What a record is to the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Free,
    Reserved,
    Leased(Nonce, u64),
    Delayed(u64),
    Done,
}

struct History {
    rng: Rng,
    table: LeaseTable,
    model: Vec<Model>,
    now: u64,
    nonces: BTreeSet<Nonce>,
    stale: Vec<(Offset, Nonce)>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            table: table(),
            model: Vec::new(),
            now: 0,
            nonces: BTreeSet::new(),
            stale: Vec::new(),
        }
    }

    fn available(&self, offset: usize) -> bool {
        match self.model[offset] {
            Model::Free => true,
            Model::Leased(_, until) => until <= self.now,
            Model::Delayed(at) => at <= self.now,
            Model::Reserved | Model::Done => false,
        }
    }

    fn take(&mut self) {
        let max = 1 + self.rng.below(6);
        let hwm = Offset(self.model.len() as u64);
        let taken = offsets(&self.table.take(MonoMs(self.now), hwm, max, None));
        let free = (0..self.model.len()).filter(|o| self.available(*o)).count();
        assert_eq!(taken.len(), free.min(max), "everything due is found");
        for offset in taken {
            let at = offset.0 as usize;
            assert!(self.available(at), "{offset} {:?}", self.model[at]);
            self.model[at] = Model::Reserved;
            if self.rng.chance(30) {
                continue;
            }
            self.resolve(at);
        }
    }

    fn resolve(&mut self, at: usize) {
        let offset = Offset(at as u64);
        match self.rng.below(10) {
            0 => {
                self.table.give_back(offset, MonoMs(self.now));
                self.model[at] = Model::Delayed(self.now);
            }
            1 => {
                self.table.retire(offset);
                self.model[at] = Model::Done;
            }
            _ => {
                let grant = self.table.grant(offset, MonoMs(self.now), VISIBLE);
                let grant = grant.expect("reserved");
                assert!(self.nonces.insert(grant.nonce), "a nonce was used twice");
                self.model[at] = Model::Leased(grant.nonce, self.now + VISIBLE);
                self.stale.push((offset, grant.nonce));
            }
        }
    }

    fn settle(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let (offset, nonce) = *self.rng.pick(&self.stale);
        let at = offset.0 as usize;
        let holds =
            matches!(self.model[at], Model::Leased(n, until) if n == nonce && self.now < until);
        let now = MonoMs(self.now);
        let (result, next) = match self.rng.below(4) {
            0 | 1 => (self.table.ack(offset, nonce, now), Model::Done),
            2 => (
                self.table.nack(offset, nonce, now, 30),
                Model::Delayed(self.now + 30),
            ),
            _ => (
                self.table.extend(offset, nonce, now, 70),
                Model::Leased(nonce, self.now + 70),
            ),
        };
        assert_eq!(result.is_ok(), holds, "{offset} {:?}", self.model[at]);
        if holds {
            self.model[at] = next;
        }
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0 | 1 => self.model.extend(vec![Model::Free; self.rng.below(4)]),
            2 => self.now += self.rng.below(40) as u64,
            3..=5 => self.take(),
            6 => {
                let reserved = self.model.iter().position(|m| *m == Model::Reserved);
                if let Some(at) = reserved {
                    self.resolve(at);
                }
            }
            7 if self.rng.chance(10) && !self.model.is_empty() => {
                let from = self.rng.below(self.model.len());
                let to = (from + self.rng.below(3)).min(self.model.len());
                // Reserved ones are skipped by whoever reads them; the model's readers would
                // resolve them later, so leave those alone here.
                if !self.model[from..to].contains(&Model::Reserved) {
                    self.table.skip(run(from as u64, to as u64));
                    self.model[from..to].fill(Model::Done);
                }
            }
            _ => self.settle(),
        }
        let first_open = self.model.iter().position(|m| *m != Model::Done);
        let expected = first_open.unwrap_or(self.model.len()) as u64;
        assert_eq!(self.table.frontier(), Offset(expected));
        let due = self.model.iter().filter_map(|m| match m {
            Model::Leased(_, at) | Model::Delayed(at) => Some(MonoMs(*at)),
            _ => None,
        });
        assert_eq!(self.table.next_due(), due.min());
    }

    /// Acks everything until nothing is left: whatever happened, nothing is lost.
    fn finish(mut self) {
        for at in 0..self.model.len() {
            if self.model[at] == Model::Reserved {
                self.table.give_back(Offset(at as u64), MonoMs(self.now));
            }
        }
        self.now += 1_000;
        let hwm = self.model.len() as u64;
        loop {
            let got = deliver(&mut self.table, self.now, hwm, 7);
            if got.is_empty() {
                break;
            }
            for (offset, grant) in got {
                assert_ne!(self.model[offset.0 as usize], Model::Done);
                self.model[offset.0 as usize] = Model::Done;
                self.table
                    .ack(offset, grant.nonce, MonoMs(self.now))
                    .unwrap();
            }
        }
        assert_eq!(self.table.frontier(), Offset(hwm));
        assert!(
            self.model.iter().all(|m| *m == Model::Done),
            "nothing is lost"
        );
        assert_eq!((self.table.out(), self.table.acked_ahead()), (0, 0));
        assert_eq!(self.table.next_due(), None);
    }
}

#[test]
fn random_histories_agree_with_the_model_and_lose_nothing() {
    for seed in 0..400 {
        let mut history = History::new(seed);
        for _ in 0..400 {
            history.step();
        }
        history.finish();
    }
}
