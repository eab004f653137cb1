//! Which entries of a WAL are done, as runs of offsets.
//!
//! What this file keeps true: nothing that was added is forgotten; runs never touch each other, so
//! between two of them an entry waits on the disk. The WAL's cap therefore bounds how many there are.

use std::collections::BTreeMap;

/// Offsets, as the ends of runs by their beginnings.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<u64, u64>);

impl Runs {
    /// Adds the offsets from `from` up to `until`; tells how many of them are new.
    pub(super) fn add(&mut self, from: u64, until: u64) -> u64 {
        if from >= until {
            return 0;
        }
        let new = until - from - self.count(from, until);
        let (mut begin, mut end) = (from, until);
        if let Some((before, its_end)) = self.at_or_before(from)
            && its_end >= from
        {
            begin = before;
            end = end.max(its_end);
        }
        while let Some((&next, &its_end)) = self.0.range(begin..=end).next() {
            self.0.remove(&next);
            end = end.max(its_end);
        }
        self.0.insert(begin, end);
        new
    }

    fn at_or_before(&self, at: u64) -> Option<(u64, u64)> {
        let run = self.0.range(..=at).next_back();
        run.map(|(begin, end)| (*begin, *end))
    }

    /// End of the run that holds `at`.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        let run = self.at_or_before(at).filter(|(_, end)| *end > at);
        run.map(|(_, end)| end)
    }

    /// All offsets from `from` up to `until` are here.
    pub(super) fn covers(&self, from: u64, until: u64) -> bool {
        from >= until || self.end_of(from).is_some_and(|end| end >= until)
    }

    /// How many offsets from `from` up to `until` are here.
    pub(super) fn count(&self, from: u64, until: u64) -> u64 {
        if from >= until {
            return 0;
        }
        let first = self.end_of(from).map_or(0, |end| end.min(until) - from);
        let others = self.0.range(from + 1..until);
        first
            + others
                .map(|(begin, end)| end.min(&until) - begin)
                .sum::<u64>()
    }

    /// Lets go of runs that end at `at` or before it.
    pub(super) fn drop_below(&mut self, at: u64) {
        while let Some(first) = self.0.first_entry()
            && *first.get() <= at
        {
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn runs_are_a_set_of_offsets(adds in prop::collection::vec((0_u64..60, 0_u64..9), 0..40)) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for (from, len) in adds {
                let before = set.len();
                set.extend(from..from + len);
                prop_assert_eq!(runs.add(from, from + len), (set.len() - before) as u64);
            }
            for from in 0..70 {
                let run = (from..).take_while(|at| set.contains(at)).count() as u64;
                prop_assert_eq!(runs.end_of(from), (run > 0).then_some(from + run));
                for until in from..72 {
                    let count = set.range(from..until).count() as u64;
                    prop_assert_eq!(runs.count(from, until), count);
                    prop_assert_eq!(runs.covers(from, until), count == until - from);
                }
            }
            let gaps = set.iter().filter(|at| !set.contains(&(*at + 1))).count();
            prop_assert_eq!(runs.0.len(), gaps);
            runs.drop_below(30);
            prop_assert_eq!(runs.count(30, 99), set.range(30..).count() as u64);
            prop_assert!(runs.0.values().all(|end| *end > 30));
        }
    }
}
