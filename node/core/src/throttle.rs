//! How fast a node copies while others want its disk and its network: the adaptive throttle.
//!
//! What this file keeps true: with nobody to disturb, copies take everything; when the foreground's p99
//! rises above its own baseline (what it is while nothing is copied) copies yield, the more the further it has
//! risen, and take back as it falls; what the foreground bore is where the next copy begins; copies get half
//! of what they reach here when nothing holds them back, or more, so a move always ends (less only for the
//! three windows in which it is tried whether they can do with a shorter queue).
//!
//! There are two limits. The bytes under way to the disk come first: a disk serves in the order of arrival, so
//! they are what a foreground's sync waits behind, and a short queue costs a copy little. The rate comes second,
//! when a short queue is not enough. Where that is at its least and the foreground still suffers, the queue is
//! made shorter step by step, for as long as copies reach that rate with it: how short that is depends on the
//! disk, and is found out.
//!
//! Besides, while somebody may be disturbed, the threads that copy stand behind others that want the processor.
//! Where others want all of it all the time that could hold a copy up, so it is given up for a while when copies
//! get far less than they are allowed.

use alloc::collections::VecDeque;
use peak::{Held, Peak};

mod peak;

/// Length of a window, in ms: long enough for a p99 of a moderate load, short enough to react within a copy.
pub const WINDOW_MS: u64 = 500;
/// Foreground calls in a window below which its p99 says nothing.
pub const SAMPLES_MIN: u64 = 20;
/// Windows without copies that the baseline remembers.
const BASELINE_WINDOWS: usize = 16;
/// Windows whose median is compared with the baseline: one that is disturbed by chance does not count.
const RECENT_WINDOWS: usize = 3;
/// Windows in which copies are held down to learn a baseline, when the foreground came after the copy.
const LISTEN_WINDOWS: u32 = 2;
/// Copies yield when p99 is above this share of its baseline, in percent: below the promise of 150.
const YIELD_PERCENT: u64 = 130;
/// Copies take back when p99 is below this share of its baseline, in percent.
const TAKE_PERCENT: u64 = 115;
/// What copies keep in one step down, in percent of what they had: as much as p99 is too high, within this.
const DOWN_PERCENT: (u64, u64) = (50, 85);
/// What they take back in one step, in percent of what they have.
const UP_PERCENT: u64 = 125;
/// Share of what copies reach when nothing holds them back, in percent, which they keep in any case: above the
/// half that is promised, since with a short queue they miss a tenth of their limit on the average, as measured
/// beside a busy foreground.
const FLOOR_PERCENT: u64 = 58;
/// Windows without copies after which the limit of the copies before them says nothing any more.
const FORGET_WINDOWS: u32 = 120;
/// Windows for which copies take everything to learn what the most is; a copy that begins fills only a part of
/// the first one.
const PROBE_WINDOWS: u32 = 2;
/// Windows of held-down copies after which that is learned anew, because a place may come to give less: rare
/// enough that what the foreground bears meanwhile is not in its p99.
const PROBE_EVERY_WINDOWS: u32 = 240;
/// Windows of held-down copies after which a queue that was too short is tried once more: a disk that was slow for a
/// moment is no slow disk. Twice as many after each time that it was too short again, [`PROBE_EVERY_WINDOWS`] at most.
const RETRY_WINDOWS: u32 = 24;
/// Windows in which copies that give way get less than a quarter of their floor until they stop doing so.
const STARVED_WINDOWS: u32 = 4;
/// Windows for which they then compete as everybody does: ten times as long, so that a move on a busy machine goes
/// on for most of the time.
const INSIST_WINDOWS: u32 = 40;
/// Least limit, in bytes/s.
const FLOOR_BYTES_PER_S: u64 = 1 << 20;
/// Bytes of all copies under way to the disk while nobody is disturbed. Disks reach their bandwidth below that
/// (1 MiB at a time reached as much as 8 MiB on those measured, at a 20th of the wait for others); a disk array
/// that takes 10 ms for each MiB still gets 400 MiB/s.
pub const UNDER_WAY_MOST_BYTES: u64 = 4 << 20;
/// The same when copies begin to yield: half a chunk.
pub const UNDER_WAY_SHORT_BYTES: u64 = 512 << 10;
/// And at least: below, a copy is nothing but calls. On one disk and two cores under both nodes of a move, 128
/// KiB in one piece were as few as half of the speed could be had with, and the foreground's p99 was less than
/// half of what it was with 512 KiB.
pub const UNDER_WAY_LEAST_BYTES: u64 = 128 << 10;
/// Bytes under way are multiples of this.
const UNDER_WAY_STEP_BYTES: u64 = 64 << 10;
/// Copies reach their limit when the best of the latest windows is above this share of it, in percent: in the
/// others they may have begun or ended.
const REACHED_PERCENT: u64 = 95;
/// The queue is too short for the limit when the best of the latest windows is below this share of it, in percent:
/// between the two it stays as it is.
const MISSED_PERCENT: u64 = 92;

const _: () = {
    assert!(UNDER_WAY_LEAST_BYTES < UNDER_WAY_SHORT_BYTES);
    assert!(UNDER_WAY_SHORT_BYTES < UNDER_WAY_MOST_BYTES);
    assert!(UNDER_WAY_LEAST_BYTES.is_multiple_of(UNDER_WAY_STEP_BYTES));
    assert!(MISSED_PERCENT < REACHED_PERCENT && REACHED_PERCENT < 100);
    assert!(
        FLOOR_PERCENT * MISSED_PERCENT >= 50 * 100,
        "half is promised"
    );
    assert!(PROBE_EVERY_WINDOWS > 100 * PROBE_WINDOWS);
    assert!(
        RETRY_WINDOWS >= 8 * RECENT_WINDOWS as u32,
        "a try costs some windows"
    );
    assert!(INSIST_WINDOWS >= 10 * STARVED_WINDOWS);
    assert!(TAKE_PERCENT < YIELD_PERCENT && YIELD_PERCENT < 150);
    assert!(DOWN_PERCENT.0 <= DOWN_PERCENT.1 && DOWN_PERCENT.1 < 100);
    assert!(UP_PERCENT > 100 && FLOOR_PERCENT >= 50);
};

/// What happened on a node in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// How long it was, in ms: [`WINDOW_MS`], or more where the node was late.
    pub elapsed_ms: u64,
    /// Foreground calls that ended.
    pub samples: u64,
    /// Their p99, in microseconds.
    pub p99_us: u64,
    /// Bytes copied, in the direction in which there were more: the limit is one for each.
    pub copied_bytes: u64,
}

impl Window {
    /// Bytes copied in a second, as fast as in this window.
    fn copied_per_s(&self) -> u64 {
        self.copied_bytes.saturating_mul(1_000) / self.elapsed_ms.max(1)
    }
}

/// What copies may take in the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rate in each direction, in bytes/s; `None`: none.
    pub bytes_per_s: Option<u64>,
    /// Bytes of all copies into a node under way to its disk, and of all copies out of it being read.
    pub under_way_bytes: u64,
    /// Threads that copy, other than for a frozen partition, stand behind others that want the processor.
    pub gives_way: bool,
}

impl Limits {
    /// While nobody is disturbed, or the rate is fixed.
    pub const NONE: Self = Self {
        bytes_per_s: None,
        under_way_bytes: UNDER_WAY_MOST_BYTES,
        gives_way: false,
    };
}

/// The machine; one a node.
#[derive(Clone, Debug)]
pub struct Adaptive {
    /// p99 of windows in which nothing was copied, in microseconds.
    quiet: VecDeque<u64>,
    /// p99 of the latest windows with copies.
    recent: VecDeque<u64>,
    /// What copies reached in them, in bytes/s.
    reached: VecDeque<u64>,
    /// Limit in force; `None`: none.
    limit: Option<u64>,
    /// Bytes that may be under way.
    under_way: u64,
    /// As few of them as copies could do with when they were held back last, [`UNDER_WAY_SHORT_BYTES`] at most.
    found: u64,
    /// So many were too few for what copies keep in any case, since the most was last learned.
    too_short: u64,
    /// Windows until that is tried again, and for how many it will be believed next time.
    retry: (u32, u32),
    /// What copies reach when nothing holds them back, as far as it is known.
    peak: Peak,
    /// Windows for which copies still take everything, and the most in those that have passed.
    probing: Option<(u32, u64)>,
    /// The most was learned once.
    learned: bool,
    /// Windows of held-down copies since the most was learned.
    since_probe: u32,
    /// Windows for which copies are still held down to learn a baseline.
    listening: u32,
    /// The limit of the latest copies, and the windows since.
    bore: Option<(u64, u32)>,
    /// Windows in which copies that gave way hardly got anything.
    starved: u32,
    /// Windows for which copies do not give way.
    insisting: u32,
    /// They do in the window that goes on.
    giving: bool,
    /// The window before was somebody else's.
    watched: bool,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            quiet: VecDeque::new(),
            recent: VecDeque::new(),
            reached: VecDeque::new(),
            limit: None,
            under_way: UNDER_WAY_MOST_BYTES,
            found: UNDER_WAY_SHORT_BYTES,
            too_short: 0,
            retry: (0, RETRY_WINDOWS),
            peak: Peak::default(),
            probing: None,
            learned: false,
            since_probe: 0,
            listening: 0,
            bore: None,
            starved: 0,
            insisting: 0,
            giving: false,
            watched: false,
        }
    }
}

impl Adaptive {
    /// p99 of the foreground while nothing is copied, in microseconds, once it is known.
    #[must_use]
    pub fn baseline_us(&self) -> Option<u64> {
        median(&self.quiet)
    }

    /// A window has ended; the limits for the next.
    pub fn step(&mut self, window: Window) -> Limits {
        let short = self.allowed() < UNDER_WAY_SHORT_BYTES;
        // On a machine that lets them have nothing either way, nothing is known anew.
        let competing = !self.giving && self.insisting == 0;
        let held = match self.limit {
            Some(_) => Held::Rate,
            None if short || !competing => Held::Otherwise,
            None => Held::Free,
        };
        if core::mem::take(&mut self.watched) {
            // What was in force in it was not the machine's alone.
            self.peak.pass();
        } else {
            self.peak.learn(window, held);
        }
        let bytes_per_s = self.rate(window);
        self.giving = self.gives_way(window);
        self.limits(bytes_per_s)
    }

    /// A window has ended in which a limit of somebody else was in force, none where `free`: it tells what the
    /// foreground bears without copies, and where there was no limit what copies can reach. About the queue and
    /// the rate, which were not the machine's, it tells nothing. The limits that begin when the machine's do: those
    /// with which a copy begins after a rest.
    pub fn watch(&mut self, window: Window, free: bool) -> Limits {
        if free {
            self.peak.learn_anew(window);
            if self.peak.is_told() {
                (self.learned, self.since_probe) = (true, 0);
            }
        } else {
            self.peak.pass();
        }
        self.watched = true;
        let heard = self.hears(window);
        (self.probing, self.starved, self.insisting) = (None, 0, 0);
        self.giving = heard;
        let bytes_per_s = self.between_copies(heard);
        self.limits(bytes_per_s)
    }

    /// Those for the next window, with this rate.
    fn limits(&self, bytes_per_s: Option<u64>) -> Limits {
        Limits {
            bytes_per_s,
            under_way_bytes: self.allowed(),
            gives_way: self.giving,
        }
    }

    /// Whether the window had calls enough to say something; without copies, what they bore is the baseline's.
    fn hears(&mut self, window: Window) -> bool {
        let heard = window.samples >= SAMPLES_MIN;
        if heard && window.copied_bytes == 0 {
            remember(&mut self.quiet, window.p99_us, BASELINE_WINDOWS);
        }
        heard
    }

    /// Bytes that may be under way in the window that goes on.
    fn allowed(&self) -> u64 {
        match self.probing {
            // What the most is shows only with a queue that allows it.
            Some(_) => self.under_way.max(UNDER_WAY_SHORT_BYTES),
            None => self.under_way,
        }
    }

    /// Whether the threads that copy stand behind others in the next window.
    fn gives_way(&mut self, window: Window) -> bool {
        if self.insisting > 0 {
            self.insisting -= 1;
            return self.insisting == 0 && window.samples >= SAMPLES_MIN;
        }
        // What the most is shows only where copies compete.
        if window.samples < SAMPLES_MIN || self.probing.is_some() {
            self.starved = 0;
            return false;
        }
        // A window without a byte may be one without a copy.
        if window.copied_bytes > 0 {
            let starved = window.copied_per_s() < self.floor() / 4;
            self.starved = if starved { self.starved + 1 } else { 0 };
        }
        if self.starved == STARVED_WINDOWS {
            (self.starved, self.insisting) = (0, INSIST_WINDOWS);
        }
        self.insisting == 0
    }

    fn rate(&mut self, window: Window) -> Option<u64> {
        let heard = self.hears(window);
        if window.copied_bytes == 0 {
            // A copy that ended before the most was known has shown what there is to know.
            self.learned |= self.probing.take().is_some();
            return self.between_copies(heard);
        }
        if let Some((limit, _)) = self.bore.take() {
            self.limit = Some(limit);
        }
        let copied_per_s = window.copied_per_s();
        if !heard {
            self.look_anew();
            self.under_way = UNDER_WAY_MOST_BYTES;
            self.take();
            return self.limit;
        }
        if self.listening > 0 {
            self.listening -= 1;
            // The first window still has some of what was under way before.
            if self.listening == 0 {
                remember(&mut self.quiet, window.p99_us, BASELINE_WINDOWS);
                self.limit = None;
            }
            return self.limit;
        }
        let Some(baseline) = self.baseline_us() else {
            self.listening = LISTEN_WINDOWS;
            self.hold(self.found);
            self.limit = Some(FLOOR_BYTES_PER_S);
            return self.limit;
        };
        if self.probes(copied_per_s) {
            return None;
        }
        remember(&mut self.recent, window.p99_us, RECENT_WINDOWS);
        remember(&mut self.reached, copied_per_s, RECENT_WINDOWS);
        if self.limit.is_some() {
            self.retry.0 = self.retry.0.saturating_sub(1);
        }
        let now = median(&self.recent).unwrap_or(window.p99_us);
        if now.saturating_mul(100) > baseline.saturating_mul(YIELD_PERCENT) {
            self.give(baseline, now, copied_per_s);
        } else if now.saturating_mul(100) < baseline.saturating_mul(TAKE_PERCENT) {
            if self.limit.is_none() {
                self.under_way = (self.under_way * 2).min(UNDER_WAY_MOST_BYTES);
            }
            if !self.lengthen() {
                self.take();
            }
        } else {
            self.lengthen();
        }
        // What they keep in any case may have become more.
        let floor = self.floor();
        self.limit = self.limit.map(|limit| limit.max(floor));
        self.limit
    }

    /// The foreground bears too much: `now` instead of `baseline`.
    fn give(&mut self, baseline: u64, now: u64, copied_per_s: u64) {
        if self.under_way > self.found {
            // What the short queue changes is seen in the next windows. Under a limit copies had a longer one
            // for more than the short one gives, which is too much.
            self.hold(self.found);
            if self.limit.is_none() {
                return;
            }
        }
        let had = self.limit.unwrap_or(copied_per_s);
        let floor = self.floor();
        if self.limit.is_some() && had <= floor {
            // In large steps until one was too large.
            let keep = if self.too_short == 0 { 2 } else { 3 };
            let shorter = self.under_way * keep / 4 / UNDER_WAY_STEP_BYTES * UNDER_WAY_STEP_BYTES;
            let shorter = shorter.max(UNDER_WAY_LEAST_BYTES);
            let believed = self.retry.0 > 0 && shorter <= self.too_short;
            let known = believed || shorter == self.under_way;
            if !self.lengthen() && !known && self.reaches(REACHED_PERCENT) {
                self.hold(shorter);
            }
        }
        let keep = baseline.saturating_mul(YIELD_PERCENT) / now.max(1);
        let keep = keep.clamp(DOWN_PERCENT.0, DOWN_PERCENT.1);
        self.limit = Some((had / 100 * keep).max(floor));
    }

    /// Whether copies reached so many percent of their limit in one of the latest windows at least: in the
    /// others they may have begun or ended.
    fn reaches(&self, percent: u64) -> bool {
        let reached = self.reached.iter().copied().max().unwrap_or(u64::MAX);
        let limit = self.limit.unwrap_or_else(|| self.floor());
        reached >= limit / 100 * percent
    }

    /// Makes the queue longer where it is what keeps copies from their limit; whether it did.
    fn lengthen(&mut self) -> bool {
        let full = self.reached.len() == RECENT_WINDOWS;
        if self.under_way >= UNDER_WAY_SHORT_BYTES || !full || self.reaches(MISSED_PERCENT) {
            return false;
        }
        let longer = (self.under_way * 4)
            .div_ceil(3)
            .next_multiple_of(UNDER_WAY_STEP_BYTES);
        let longer = longer.min(UNDER_WAY_SHORT_BYTES);
        if self.limit.is_none_or(|limit| limit <= self.floor()) {
            self.too_short = self.under_way;
            let (_, believed) = self.retry;
            self.retry = (believed, (believed * 2).min(PROBE_EVERY_WINDOWS));
            self.hold(longer);
        } else {
            // For more than copies keep in any case; what suffices for that is still known.
            self.under_way = longer;
            self.look_anew();
        }
        true
    }

    /// Holds copies back with so many bytes under way.
    fn hold(&mut self, bytes: u64) {
        (self.under_way, self.found) = (bytes, bytes);
        self.look_anew();
    }

    /// What was seen before belongs to other limits.
    fn look_anew(&mut self) {
        self.recent.clear();
        self.reached.clear();
    }

    /// The queue and the limit with which the next copy of the machine's begins. The queue is short if there is
    /// somebody to disturb, since a window is long; what the last copy could do with stays.
    fn between_copies(&mut self, heard: bool) -> Option<u64> {
        if heard {
            self.hold(self.found);
        } else {
            self.under_way = UNDER_WAY_MOST_BYTES;
            self.look_anew();
        }
        if self.listening > 0 {
            // That limit was for listening.
            (self.listening, self.limit) = (0, None);
        }
        self.rest(heard)
    }

    /// Nothing was copied: the limit with which the next copy begins. A window is long, so where somebody may
    /// be disturbed it begins low.
    fn rest(&mut self, heard: bool) -> Option<u64> {
        self.bore = match (self.limit.take(), self.bore) {
            (Some(limit), _) => Some((limit, 0)),
            (None, Some((limit, since))) if since < FORGET_WINDOWS => Some((limit, since + 1)),
            (None, _) if heard && self.peak.bytes_per_s() > 0 => {
                Some((self.floor(), FORGET_WINDOWS))
            }
            (None, _) => None,
        };
        self.bore.map(|(limit, _)| limit)
    }

    /// Whether copies take everything in the next window, to learn what that is.
    fn probes(&mut self, copied_per_s: u64) -> bool {
        self.since_probe = match self.limit {
            Some(_) => self.since_probe + 1,
            None => 0,
        };
        let known = self.learned && self.since_probe < PROBE_EVERY_WINDOWS;
        let (left, most) = match self.probing {
            Some((left, most)) => (left - 1, most.max(copied_per_s)),
            None if known => return false,
            // What went before was held down, or only a part of a window.
            None => (PROBE_WINDOWS - 1, copied_per_s),
        };
        self.probing = (left > 0).then_some((left, most));
        if left == 0 {
            self.peak.set(most);
            (self.learned, self.since_probe) = (true, 0);
            (self.too_short, self.retry) = (0, (0, RETRY_WINDOWS));
        }
        left > 0
    }

    fn take(&mut self) {
        let Some(limit) = self.limit else { return };
        let more = limit / 100 * UP_PERCENT;
        self.limit = (more < self.peak.bytes_per_s() / 100 * UP_PERCENT).then_some(more);
    }

    fn floor(&self) -> u64 {
        (self.peak.bytes_per_s() / 100 * FLOOR_PERCENT).max(FLOOR_BYTES_PER_S)
    }
}

fn remember(of: &mut VecDeque<u64>, value: u64, most: usize) {
    if of.len() == most {
        of.pop_front();
    }
    of.push_back(value);
}

fn median(of: &VecDeque<u64>) -> Option<u64> {
    let mut sorted: alloc::vec::Vec<u64> = of.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests;
