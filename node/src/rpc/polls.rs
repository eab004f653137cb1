//! Polls of other nodes, shared by the consumers of a shard.
//!
//! A poll of another node is never cut off while it may have leased something. A consumer that found records elsewhere
//! would leave one behind with every call, first in the other node's line, and each would take a record
//! to give it back. So a poll that nobody waits for any more stands by for whoever asks for the same next, who needs no
//! new one; and what a poll brings goes to whoever waits for the same now.
//!
//! What this file keeps true: what a poll brought goes to one waiter, or is kept for the next one for
//! [`POLL_HOLD`] at most and dropped then, which gives it back; polls that stand by, and results that are kept, are bounded in number.

use crate::shard::limits::{POLL_HOLD_MS, POLLS_STAND_BY_MAX};
use crate::shard::task;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll as Ready, Waker};
use std::time::{Duration, Instant};

/// How long a result waits for somebody to take it.
pub(crate) const POLL_HOLD: Duration = Duration::from_millis(POLL_HOLD_MS);

/// The polls of one shard: `K` says what is asked of whom, `T` is what was found.
pub(crate) struct Polls<K, T> {
    waiting: RefCell<Vec<Rc<Slot<K, T>>>>,
    standing_by: RefCell<VecDeque<Rc<Slot<K, T>>>>,
    kept: RefCell<VecDeque<(K, T, Instant)>>,
}

/// One poll.
struct Slot<K, T> {
    key: K,
    /// When the other node answers at the latest, though it has nothing.
    ends: Instant,
    ended: Cell<bool>,
    found: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

impl<K, T> Slot<K, T> {
    /// Whether its node may still have nothing to say: an answer that is late says that something is wrong there, and
    /// whoever comes next asks afresh.
    fn is_due(&self) -> bool {
        !self.ended.get() && Instant::now() < self.ends
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for what a poll brings, or another one for the same; `None`: it ended with nothing. Dropped early, the poll stands by.
pub(crate) struct Poll<K: PartialEq + Clone + 'static, T: 'static> {
    polls: Rc<Polls<K, T>>,
    slot: Rc<Slot<K, T>>,
}

/// The other side: whoever asks the other node. Dropped, the poll has ended with nothing.
pub(crate) struct Asked<K: PartialEq + Clone + 'static, T: 'static> {
    polls: Rc<Polls<K, T>>,
    slot: Rc<Slot<K, T>>,
}

impl<K, T> Default for Polls<K, T> {
    fn default() -> Self {
        Self {
            waiting: RefCell::default(),
            standing_by: RefCell::default(),
            kept: RefCell::default(),
        }
    }
}

fn remove<K, T>(list: &mut Vec<Rc<Slot<K, T>>>, slot: &Rc<Slot<K, T>>) {
    if let Some(at) = list.iter().position(|one| Rc::ptr_eq(one, slot)) {
        list.swap_remove(at);
    }
}

impl<K: PartialEq + Clone + 'static, T: 'static> Polls<K, T> {
    /// A new poll, which the other node answers at `ends` at the latest.
    pub(crate) fn begin(self: &Rc<Self>, key: K, ends: Instant) -> (Poll<K, T>, Asked<K, T>) {
        let slot = Rc::new(Slot {
            key,
            ends,
            ended: Cell::new(false),
            found: RefCell::new(None),
            waker: RefCell::new(None),
        });
        let asked = Asked {
            polls: self.clone(),
            slot: slot.clone(),
        };
        (self.wait_for(slot), asked)
    }

    fn wait_for(self: &Rc<Self>, slot: Rc<Slot<K, T>>) -> Poll<K, T> {
        self.waiting.borrow_mut().push(slot.clone());
        Poll {
            polls: self.clone(),
            slot,
        }
    }

    /// Whether one stands by for this: the other node had nothing, or is being asked.
    pub(crate) fn stands_by(&self, key: &K) -> bool {
        let standing = self.standing_by.borrow();
        standing
            .iter()
            .any(|slot| slot.key == *key && slot.is_due())
    }

    /// One that stands by for this.
    pub(crate) fn take_over(self: &Rc<Self>, key: &K) -> Option<Poll<K, T>> {
        let mut standing = self.standing_by.borrow_mut();
        standing.retain(|slot| slot.is_due());
        let at = standing.iter().position(|slot| slot.key == *key)?;
        let slot = standing.remove(at)?;
        drop(standing);
        Some(self.wait_for(slot))
    }

    /// What was brought for this a moment ago, when nobody waited for it.
    pub(crate) fn kept(&self, key: &K) -> Option<T> {
        self.let_go(Instant::now());
        let mut kept = self.kept.borrow_mut();
        let at = kept.iter().position(|(of, ..)| of == key)?;
        kept.remove(at).map(|(_, found, _)| found)
    }

    /// For whoever waits for the same, or for a moment for nobody.
    fn offer(self: &Rc<Self>, key: &K, found: T) {
        let waiting = self.waiting.borrow();
        let free = |slot: &&Rc<Slot<K, T>>| slot.key == *key && slot.found.borrow().is_none();
        if let Some(slot) = waiting.iter().find(free) {
            slot.found.replace(Some(found));
            slot.wake();
            return;
        }
        drop(waiting);
        let mut kept = self.kept.borrow_mut();
        kept.push_back((key.clone(), found, Instant::now()));
        let too_many = (kept.len() > POLLS_STAND_BY_MAX).then(|| kept.pop_front());
        drop(kept);
        drop(too_many);
        let polls = self.clone();
        task::spawn("keeping what a poll has brought", async move {
            glommio::timer::sleep(POLL_HOLD).await;
            polls.let_go(Instant::now());
        });
    }

    /// Drops what nobody has taken in time.
    fn let_go(&self, now: Instant) {
        let late = |at: Instant| now.saturating_duration_since(at) >= POLL_HOLD;
        loop {
            let mut kept = self.kept.borrow_mut();
            if !kept.front().is_some_and(|(_, _, at)| late(*at)) {
                return;
            }
            let first = kept.pop_front();
            drop(kept);
            drop(first);
        }
    }
}

impl<K: PartialEq + Clone, T> Poll<K, T> {
    /// When the other node answers at the latest, though it has nothing.
    pub(crate) fn ends(&self) -> Instant {
        self.slot.ends
    }
}

impl<K: PartialEq + Clone, T> Future for Poll<K, T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Ready<Option<T>> {
        let found = self.slot.found.take();
        if found.is_some() || self.slot.ended.get() {
            return Ready::Ready(found);
        }
        self.slot.waker.replace(Some(cx.waker().clone()));
        Ready::Pending
    }
}

impl<K: PartialEq + Clone + 'static, T: 'static> Drop for Poll<K, T> {
    fn drop(&mut self) {
        remove(&mut self.polls.waiting.borrow_mut(), &self.slot);
        self.slot.waker.take();
        if let Some(found) = self.slot.found.take() {
            self.polls.offer(&self.slot.key, found);
        }
        let mut standing = self.polls.standing_by.borrow_mut();
        if self.slot.is_due() && standing.len() < POLLS_STAND_BY_MAX {
            standing.push_back(self.slot.clone());
        }
    }
}

impl<K: PartialEq + Clone + 'static, T: 'static> Asked<K, T> {
    /// The other node has answered with something.
    pub(crate) fn found(self, found: T) {
        let slot = &self.slot;
        let mine = self
            .polls
            .waiting
            .borrow()
            .iter()
            .any(|one| Rc::ptr_eq(one, slot));
        if mine && slot.found.borrow().is_none() {
            slot.found.replace(Some(found));
        } else {
            self.polls.offer(&slot.key, found);
        }
    }
}

impl<K: PartialEq + Clone + 'static, T: 'static> Drop for Asked<K, T> {
    fn drop(&mut self) {
        self.slot.ended.set(true);
        let mut standing = self.polls.standing_by.borrow_mut();
        standing.retain(|slot| !Rc::ptr_eq(slot, &self.slot));
        drop(standing);
        self.slot.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use glommio::LocalExecutor;

    type Numbers = Rc<Polls<&'static str, Rc<u32>>>;

    type Begun = (Poll<&'static str, Rc<u32>>, Asked<&'static str, Rc<u32>>);

    fn begin(polls: &Numbers, key: &'static str) -> Begun {
        polls.begin(key, Instant::now() + Duration::from_secs(1_000))
    }

    fn run(work: impl AsyncFnOnce(Numbers)) {
        LocalExecutor::default().run(async { work(Numbers::default()).await });
    }

    #[test]
    fn a_poll_that_is_not_waited_for_any_more_serves_the_next_who_asks_for_the_same() {
        run(async |polls| {
            let (poll, asked) = begin(&polls, "a");
            drop(poll);
            assert!(polls.stands_by(&"a") && !polls.stands_by(&"b"));
            assert!(polls.take_over(&"b").is_none());
            let next = polls.take_over(&"a").expect("it stands by");
            assert!(!polls.stands_by(&"a"), "one waiter has it");
            asked.found(Rc::new(7));
            assert_eq!(next.await.as_deref(), Some(&7));
            // It has ended, and does not stand by.
            assert!(!polls.stands_by(&"a") && polls.kept(&"a").is_none());
        });
    }

    #[test]
    fn what_is_brought_goes_to_whoever_waits_for_the_same() {
        run(async |polls| {
            let (first, asked) = begin(&polls, "a");
            let (mut second, other) = begin(&polls, "a");
            let (mut third, _third) = begin(&polls, "b");
            drop(first);
            assert!((&mut second).now_or_never().is_none());
            asked.found(Rc::new(7));
            assert_eq!(second.await.as_deref(), Some(&7));
            assert!((&mut third).now_or_never().is_none());
            // Its own poll goes on, and stands by.
            assert!(polls.stands_by(&"a"));
            let next = polls.take_over(&"a").expect("it stands by");
            drop(other);
            assert!(next.await.is_none(), "it ended with nothing");
        });
    }

    #[test]
    fn what_nobody_takes_is_kept_for_a_moment_and_given_back() {
        run(async |polls| {
            let found = Rc::new(7);
            let (poll, asked) = begin(&polls, "a");
            drop(poll);
            asked.found(found.clone());
            polls.let_go(Instant::now());
            assert_eq!(Rc::strong_count(&found), 2, "kept");
            assert!(polls.kept(&"b").is_none());
            assert_eq!(polls.kept(&"a").as_deref(), Some(&7));
            let (poll, asked) = begin(&polls, "a");
            asked.found(found.clone());
            // Found, and not taken.
            drop(poll);
            polls.let_go(Instant::now() + POLL_HOLD);
            assert_eq!(Rc::strong_count(&found), 1, "dropped");
            assert!(polls.kept(&"a").is_none() && !polls.stands_by(&"a"));
        });
    }

    #[test]
    fn one_whose_answer_is_late_does_not_stand_by() {
        run(async |polls| {
            let (poll, asked) = polls.begin("a", Instant::now());
            drop(poll);
            assert!(!polls.stands_by(&"a") && polls.take_over(&"a").is_none());
            // What it brings at last goes to whoever waits.
            let (next, _other) = begin(&polls, "a");
            asked.found(Rc::new(7));
            assert_eq!(next.await.as_deref(), Some(&7));
        });
    }

    #[test]
    fn both_are_bounded() {
        run(async |polls| {
            let begun: Vec<_> = (0..POLLS_STAND_BY_MAX + 3)
                .map(|_| begin(&polls, "a"))
                .collect();
            let asked: Vec<_> = begun.into_iter().map(|(_, asked)| asked).collect();
            assert_eq!(polls.standing_by.borrow().len(), POLLS_STAND_BY_MAX);
            let found = Rc::new(7);
            for one in asked {
                one.found(found.clone());
            }
            assert_eq!(polls.kept.borrow().len(), POLLS_STAND_BY_MAX);
            assert_eq!(Rc::strong_count(&found), POLLS_STAND_BY_MAX + 1);
            assert!(polls.standing_by.borrow().is_empty());
        });
    }
}
