//! Room for the records that clients have sent and that are not placed yet.
//!
//! What this file keeps true: their bytes are bounded, whatever the number of connections; what
//! finds no room is refused at once, in words, and never waits in memory.

use crate::shard::faults;
use crate::shard::limits::PRODUCE_PENDING_BYTES;
use narad_wire::error::WireFault;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that are taken.
#[derive(Clone, Default)]
pub(crate) struct Incoming(Rc<Cell<usize>>);

/// A share of the room, given back when it is dropped.
pub(crate) struct Share {
    taken: Rc<Cell<usize>>,
    bytes: usize,
}

impl Incoming {
    /// Room for so many bytes.
    ///
    /// # Errors
    /// `busy` when there is none.
    pub(crate) fn enter(&self, bytes: usize) -> Result<Share, WireFault> {
        let taken = self.0.get().saturating_add(bytes);
        if taken > PRODUCE_PENDING_BYTES {
            return Err(faults::busy("the room for records that are not stored yet"));
        }
        self.0.set(taken);
        Ok(Share {
            taken: self.0.clone(),
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
        let incoming = Incoming::default();
        let half = PRODUCE_PENDING_BYTES / 2;
        let first = incoming.enter(half).expect("room");
        let _second = incoming.enter(half).expect("room");
        let refused = incoming.enter(1).err().expect("full");
        assert_eq!(refused.code, ErrorCode::Busy);
        assert!(refused.retry_after_ms > 0);
        drop(first);
        assert!(incoming.enter(half).is_ok());
    }
}
