//! Room for what clients and other nodes have sent and what is not dealt with yet: records that are not
//! placed, and calls that wait for their turn.
//!
//! What this file keeps true: its bytes are bounded, whatever the number of connections; what
//! finds no room is refused at once, in words, and never waits in memory.

use crate::shard::faults;
use crate::shard::limits::{CALLS_PENDING_BYTES, DISPATCHED_PENDING_BYTES, PRODUCE_PENDING_BYTES};
use narad_wire::error::WireFault;
use std::cell::Cell;
use std::rc::Rc;

/// The rooms of one shard. Apart from each other: acks are what makes room for records, and must not
/// wait for it.
#[derive(Clone)]
pub(crate) struct Rooms {
    /// For produced records.
    pub(crate) produced: Room,
    /// For records of other nodes' WALs.
    pub(crate) dispatched: Room,
    /// For all other calls.
    pub(crate) calls: Room,
}

impl Default for Rooms {
    fn default() -> Self {
        let room = Room::new;
        Self {
            produced: room(
                PRODUCE_PENDING_BYTES,
                "the room for records that are not stored yet",
            ),
            dispatched: room(
                DISPATCHED_PENDING_BYTES,
                "the room for other nodes' records",
            ),
            calls: room(CALLS_PENDING_BYTES, "the room for calls that wait"),
        }
    }
}

/// Bytes that are taken, of so many.
#[derive(Clone)]
pub(crate) struct Room {
    taken: Rc<Cell<usize>>,
    limit: usize,
    what: &'static str,
}

/// A share of the room, given back when it is dropped.
pub(crate) struct Share {
    taken: Rc<Cell<usize>>,
    bytes: usize,
}

impl Room {
    fn new(limit: usize, what: &'static str) -> Self {
        Self {
            taken: Rc::default(),
            limit,
            what,
        }
    }

    /// Room for so many bytes.
    ///
    /// # Errors
    /// `busy` when there is none.
    pub(crate) fn enter(&self, bytes: usize) -> Result<Share, WireFault> {
        let taken = self.taken.get().saturating_add(bytes);
        if taken > self.limit {
            return Err(faults::busy(self.what));
        }
        self.taken.set(taken);
        Ok(Share {
            taken: self.taken.clone(),
            bytes,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_wire::error::ErrorCode;

    #[test]
    fn what_finds_no_room_is_busy_and_room_comes_back() {
        let rooms = Rooms::default();
        let half = PRODUCE_PENDING_BYTES / 2;
        let first = rooms.produced.enter(half).expect("room");
        let _second = rooms.produced.enter(half).expect("room");
        let refused = rooms.produced.enter(1).err().expect("full");
        assert_eq!(refused.code, ErrorCode::Busy);
        assert!(refused.retry_after_ms > 0);
        // Acks have room of their own.
        assert!(rooms.calls.enter(1).is_ok());
        drop(first);
        assert!(rooms.produced.enter(half).is_ok());
    }
}
