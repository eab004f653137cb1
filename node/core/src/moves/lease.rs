//! The lease under which the owner of a moving partition appends.
//!
//! What this file keeps true: a lease counts from the sending of the heartbeat that earned it, and
//! only once the log index that came with the answer is applied here (rule R10): an old owner that
//! lags behind never holds a fresh lease over a partition that it lost.

use crate::ids::{MonoMs, RaftIndex};

/// The move lease as one shard (or any other follower of the applied metadata) sees it. One serves
/// all partitions of the shard.
#[derive(Clone, Debug, Default, Hash)]
pub struct MoveLease {
    applied: RaftIndex,
    until: MonoMs,
    waiting: Option<(RaftIndex, MonoMs)>,
}

impl MoveLease {
    /// A lease that has run out: nothing was answered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A heartbeat was answered with a lease until `until` (sending time + lease) and the leader's
    /// commit index. A heartbeat that was answered without a lease is not reported here.
    pub fn renewed(&mut self, until: MonoMs, commit_index: RaftIndex) {
        if commit_index <= self.applied {
            self.until = self.until.max(until);
            return;
        }
        // One is enough to wait for: the newest lease replaces an older one that waits, unless the
        // older one waits for less.
        match self.waiting {
            Some((index, _)) if index < commit_index => {}
            _ => self.waiting = Some((commit_index, until)),
        }
    }

    /// The metadata up to `index` is applied at this place, and every partition has been told.
    pub fn applied(&mut self, index: RaftIndex) {
        self.applied = self.applied.max(index);
        if let Some((wanted, until)) = self.waiting
            && wanted <= self.applied
        {
            self.until = self.until.max(until);
            self.waiting = None;
        }
    }

    /// Until when the owner of a moving partition may append; compare with a clock that counts
    /// suspend.
    #[must_use]
    pub fn until(&self) -> MonoMs {
        self.until
    }

    /// The same lease on another clock, see [`MonoMs::rebased`]; one that has run out is like one
    /// that never was.
    #[must_use]
    pub fn rebased(&self, now: MonoMs) -> Self {
        let live = |until: MonoMs| until > now;
        Self {
            applied: self.applied,
            until: MonoMs(if live(self.until) {
                self.until.rebased(now).0
            } else {
                0
            }),
            waiting: self
                .waiting
                .filter(|(_, until)| live(*until))
                .map(|(index, until)| (index, until.rebased(now))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_waits_for_its_commit_index() {
        let mut lease = MoveLease::new();
        lease.applied(RaftIndex(5));
        lease.renewed(MonoMs(100), RaftIndex(7));
        assert_eq!(lease.until(), MonoMs(0));
        lease.renewed(MonoMs(200), RaftIndex(9));
        lease.applied(RaftIndex(7));
        assert_eq!(lease.until(), MonoMs(100));
        lease.renewed(MonoMs(300), RaftIndex(9));
        assert_eq!(lease.until(), MonoMs(100));
        lease.applied(RaftIndex(10));
        assert_eq!(lease.until(), MonoMs(300));
    }

    #[test]
    fn a_late_answer_never_shortens_a_lease() {
        let mut lease = MoveLease::new();
        lease.renewed(MonoMs(300), RaftIndex(0));
        lease.renewed(MonoMs(200), RaftIndex(0));
        assert_eq!(lease.until(), MonoMs(300));
    }
}
