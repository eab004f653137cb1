//! The content ledger: what was sent, what was acknowledged, what came back, record by record.
//!
//! What this file keeps true: a record counts as delivered only when its whole content (key and
//! value) is what was sent under its number; an acknowledged record that never came back is lost,
//! whatever the counters of the cluster say.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Where a record stands on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// Handed to the client; no answer yet, or the answer was lost: it may turn up or not.
    Unknown,
    /// The cluster said that it is durable.
    Acked,
    /// The cluster said that it did not take it.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    content: u64,
    sent: Sent,
    delivered: u16,
    logged: bool,
}

/// What a delivery turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The first of its record.
    First,
    /// One more of a record that was delivered before.
    Again,
    /// Its content is not what was sent under its number.
    Wrong,
    /// Not of this run.
    Foreign,
}

/// The totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Records handed to the client.
    pub sent: u64,
    /// Records that the cluster acknowledged.
    pub acked: u64,
    /// Records whose answer was lost; they may have been taken.
    pub unknown: u64,
    /// Records that the cluster refused.
    pub refused: u64,
    /// Different records that were delivered.
    pub delivered: u64,
    /// Deliveries beyond the first of a record.
    pub duplicates: u64,
    /// Deliveries whose content was not what was sent.
    pub wrong: u64,
    /// Deliveries that belong to no record of this run.
    pub foreign: u64,
    /// Acknowledged records that were never delivered.
    pub lost: u64,
    /// Acknowledged records that a replay of all partitions did not find.
    pub lost_in_log: u64,
}

/// The ledger of one run. Records are numbered from 0.
#[derive(Debug)]
pub struct Ledger {
    run: String,
    entries: Vec<Entry>,
    acked: u64,
    acked_delivered: u64,
    wrong: u64,
    foreign: u64,
}

fn content(key: Option<&[u8]>, value: &[u8]) -> u64 {
    // Fixed keys: the sum of a record is the same wherever it is computed.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    value.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    /// An empty ledger; `run` tells its records from those of other runs in the same topic.
    ///
    /// # Panics
    /// When `run` holds a blank, which would make records ambiguous.
    #[must_use]
    pub fn new(run: String) -> Self {
        assert!(
            !run.contains(char::is_whitespace),
            "a run's name has no blanks"
        );
        Self {
            run,
            entries: Vec::new(),
            acked: 0,
            acked_delivered: 0,
            wrong: 0,
            foreign: 0,
        }
    }

    /// Makes the next record out of a payload: its number and its value, `RUN NUMBER PAYLOAD`.
    pub fn next(&mut self, key: Option<&[u8]>, payload: &[u8]) -> (usize, Vec<u8>) {
        let number = self.entries.len();
        let mut value = format!("{} {number} ", self.run).into_bytes();
        value.extend_from_slice(payload);
        self.entries.push(Entry {
            content: content(key, &value),
            sent: Sent::Unknown,
            delivered: 0,
            logged: false,
        });
        (number, value)
    }

    /// The cluster acknowledged a record.
    pub fn acked(&mut self, number: usize) {
        let entry = &mut self.entries[number];
        if entry.sent != Sent::Acked {
            entry.sent = Sent::Acked;
            self.acked += 1;
            self.acked_delivered += u64::from(entry.delivered > 0);
        }
    }

    /// The cluster certainly did not take a record.
    pub fn refused(&mut self, number: usize) {
        let entry = &mut self.entries[number];
        if entry.sent == Sent::Unknown {
            entry.sent = Sent::Refused;
        }
    }

    pub(crate) fn number_of(&self, value: &[u8]) -> Option<usize> {
        let rest = value
            .strip_prefix(self.run.as_bytes())?
            .strip_prefix(b" ")?;
        let end = rest.iter().position(|byte| *byte == b' ')?;
        let number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        (number < self.entries.len()).then_some(number)
    }

    /// A record came to a consumer.
    pub fn delivered(&mut self, key: Option<&[u8]>, value: &[u8]) -> Delivery {
        let Some(number) = self.number_of(value) else {
            self.foreign += 1;
            return Delivery::Foreign;
        };
        let entry = &mut self.entries[number];
        if entry.content != content(key, value) {
            self.wrong += 1;
            return Delivery::Wrong;
        }
        entry.delivered = entry.delivered.saturating_add(1);
        if entry.delivered > 1 {
            return Delivery::Again;
        }
        self.acked_delivered += u64::from(entry.sent == Sent::Acked);
        Delivery::First
    }

    /// A replay found a record in a log; false when it is not what was sent.
    pub fn logged(&mut self, key: Option<&[u8]>, value: &[u8]) -> bool {
        let Some(number) = self.number_of(value) else {
            return true; // of another run: not ours to judge
        };
        let entry = &mut self.entries[number];
        let right = entry.content == content(key, value);
        entry.logged |= right;
        self.wrong += u64::from(!right);
        right
    }

    /// Whether every acknowledged record has been delivered.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.acked == self.acked_delivered
    }

    /// Acknowledged so far, and how many of them were delivered.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.acked, self.acked_delivered)
    }

    /// Numbers of lost records, the first `most` of them.
    #[must_use]
    pub fn lost_numbers(&self, most: usize) -> Vec<usize> {
        let lost = |entry: &Entry| entry.sent == Sent::Acked && entry.delivered == 0;
        let numbers = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| lost(entry));
        numbers.map(|(number, _)| number).take(most).collect()
    }

    /// Adds everything up. `replayed`: whether the logs were read with [`Ledger::logged`].
    #[must_use]
    pub fn totals(&self, replayed: bool) -> Totals {
        let mut totals = Totals {
            sent: self.entries.len() as u64,
            wrong: self.wrong,
            foreign: self.foreign,
            ..Totals::default()
        };
        for entry in &self.entries {
            match entry.sent {
                Sent::Unknown => totals.unknown += 1,
                Sent::Refused => totals.refused += 1,
                Sent::Acked => {
                    totals.acked += 1;
                    totals.lost += u64::from(entry.delivered == 0);
                    totals.lost_in_log += u64::from(replayed && !entry.logged);
                }
            }
            totals.delivered += u64::from(entry.delivered > 0);
            totals.duplicates += u64::from(entry.delivered.saturating_sub(1));
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acked_record_that_never_comes_is_lost() {
        let mut ledger = Ledger::new("r1".into());
        let (a, value) = ledger.next(None, b"first line");
        let (b, _) = ledger.next(None, b"second line");
        ledger.acked(a);
        ledger.acked(b);
        assert_eq!(ledger.delivered(None, &value), Delivery::First);
        assert_eq!(ledger.delivered(None, &value), Delivery::Again);
        assert!(!ledger.complete());
        let totals = ledger.totals(false);
        assert_eq!(
            (
                totals.acked,
                totals.delivered,
                totals.duplicates,
                totals.lost
            ),
            (2, 1, 1, 1)
        );
        assert_eq!(ledger.lost_numbers(10), vec![b]);
    }

    #[test]
    fn content_is_compared_not_only_the_number() {
        let mut ledger = Ledger::new("r1".into());
        let (number, value) = ledger.next(Some(b"k"), b"text");
        ledger.acked(number);
        let mut changed = value.clone();
        *changed.last_mut().expect("not empty") ^= 1;
        assert_eq!(ledger.delivered(Some(b"k"), &changed), Delivery::Wrong);
        assert_eq!(
            ledger.delivered(None, &value),
            Delivery::Wrong,
            "the key counts"
        );
        assert_eq!(ledger.totals(false).lost, 1);
        assert_eq!(ledger.delivered(Some(b"k"), &value), Delivery::First);
        assert!(ledger.complete());
    }

    #[test]
    fn a_delivery_before_the_answer_counts() {
        let mut ledger = Ledger::new("r1".into());
        let (number, value) = ledger.next(None, b"x");
        assert_eq!(ledger.delivered(None, &value), Delivery::First);
        ledger.acked(number);
        assert!(ledger.complete());
    }

    #[test]
    fn unknown_and_refused_records_are_not_lost() {
        let mut ledger = Ledger::new("r1".into());
        let (_, _) = ledger.next(None, b"no answer");
        let (refused, _) = ledger.next(None, b"refused");
        ledger.refused(refused);
        let totals = ledger.totals(true);
        assert_eq!(
            (
                totals.unknown,
                totals.refused,
                totals.lost,
                totals.lost_in_log
            ),
            (1, 1, 0, 0)
        );
        assert!(ledger.complete());
    }

    #[test]
    fn records_of_another_run_are_foreign() {
        let mut ledger = Ledger::new("r1".into());
        let (_, _) = ledger.next(None, b"x");
        for foreign in [
            &b"r2 0 x"[..],
            b"r1 7 x",
            b"r1 0",
            b"",
            b"r10 0 x",
            b"r1 -1 x",
        ] {
            assert_eq!(ledger.delivered(None, foreign), Delivery::Foreign);
        }
    }

    #[test]
    fn a_replay_finds_what_is_missing_in_the_logs() {
        let mut ledger = Ledger::new("r1".into());
        let (a, value) = ledger.next(None, b"x");
        let (b, other) = ledger.next(None, b"y");
        for (number, value) in [(a, &value), (b, &other)] {
            ledger.acked(number);
            ledger.delivered(None, value);
        }
        assert!(ledger.logged(None, &value));
        let totals = ledger.totals(true);
        assert_eq!((totals.lost, totals.lost_in_log), (0, 1));
    }
}
