//! What copies reach when nothing holds them back.
//!
//! What this file keeps true: nothing less is believed because of copies that were held back, or of a window in which
//! copies, or what holds them back, began or ended. More is believed of what windows in their middle have reached on the
//! whole; of a single one only where that is all there is, or where copies were held back and reached more all the same.

use super::{Window, median, remember};
use alloc::collections::VecDeque;

/// Windows in the middle of copies that nothing held back: their median is what copies can reach. The
/// best of them would be too much (half of that is more than half of a whole copy), and those in which copies
/// begin or end say too little.
const FREE_WINDOWS: usize = 8;

/// What was in a copy's way in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing of this node's; something of another node's may have been.
    Free,
    /// Its rate was limited.
    Rate,
    /// A short queue, or others that had the processor first.
    Otherwise,
}

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Peak {
    /// In bytes/s; 0: nothing yet.
    bytes_per_s: u64,
    /// What copies reached in the latest windows that tell it, in bytes/s.
    free: VecDeque<u64>,
    /// The window before had copies that nothing held back.
    copying: bool,
    /// What they reached in it, if nothing held them back and the one before it had copies as well.
    between: Option<u64>,
}

impl Peak {
    pub(super) const fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// As many windows in the middle of free copies have told it as are kept.
    pub(super) fn is_told(&self) -> bool {
        self.free.len() == FREE_WINDOWS
    }

    /// A window has ended. What is known becomes no less by it.
    pub(super) fn learn(&mut self, window: Window, held: Held) {
        self.note(window, held == Held::Free);
        let middle = median(&self.free).unwrap_or(0);
        // A free window, and one that was limited to a share of what is known, say nothing beyond the middle.
        let alone = match held {
            Held::Free | Held::Rate if !self.free.is_empty() => 0,
            Held::Free | Held::Rate | Held::Otherwise => window.copied_per_s(),
        };
        self.bytes_per_s = self.bytes_per_s.max(middle).max(alone);
    }

    /// A window has ended in which nobody wanted copies to be held back: what is known becomes what its kind says, also
    /// where that is less.
    pub(super) fn learn_anew(&mut self, window: Window) {
        self.note(window, true);
        match median(&self.free) {
            Some(middle) => self.bytes_per_s = middle,
            None => self.bytes_per_s = self.bytes_per_s.max(window.copied_per_s()),
        }
    }

    /// A window has ended that says nothing: a limit of somebody else was in force, in a part of it at least.
    pub(super) fn pass(&mut self) {
        (self.between, self.copying) = (None, false);
    }

    /// It was tried, and is this.
    pub(super) fn set(&mut self, bytes_per_s: u64) {
        self.bytes_per_s = bytes_per_s;
        self.free.clear();
    }

    fn note(&mut self, window: Window, free: bool) {
        let copying = window.copied_bytes > 0;
        if let Some(reached) = self.between.take()
            && copying
        {
            remember(&mut self.free, reached, FREE_WINDOWS);
        }
        // The first one of them was not free for all of its time.
        self.between = (free && copying && self.copying).then(|| window.copied_per_s());
        self.copying = free && copying;
    }
}
