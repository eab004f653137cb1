//! How much room a message begins with. The RPC library begins every call with a segment of 8 KiB and
//! every answer with less, and takes further segments as it grows: a batch of 100 KiB is then four
//! segments, which are found by far pointers on both sides. Who knows what is coming says so here.
//!
//! What this file keeps true: room that was asked for serves the one message that is made inside of
//! [`with_room`], and no other; more is never set aside than the longest message has.

use crate::limits;
use std::cell::Cell;

thread_local! {
    static WORDS: Cell<u32> = const { Cell::new(0) };
}

/// What `records` take in a message together, in bytes, given the bytes of their keys and values; with
/// what the call or answer around them takes.
#[must_use]
pub const fn records_room(records: usize, bytes: usize) -> usize {
    limits::MESSAGE_FRAME_BYTES + records * limits::RECORD_WIRE_BYTES + bytes
}

/// The same for records that a node hands out.
#[must_use]
pub const fn deliveries_room(records: usize, bytes: usize) -> usize {
    records_room(records, bytes + records * limits::DELIVERY_WIRE_BYTES)
}

/// The same for outcomes of records. Faults take more, and are rare.
#[must_use]
pub const fn outcomes_room(records: usize) -> usize {
    limits::MESSAGE_FRAME_BYTES + records * limits::OUTCOME_WIRE_BYTES
}

/// Makes a call's request, or touches an answer for the first time, with room for so many bytes in its
/// first segment. What does not fit there still fits into further ones.
pub fn with_room<T>(bytes: usize, make: impl FnOnce() -> T) -> T {
    /// No room is left behind for other messages, also after a panic.
    struct Cleared;
    impl Drop for Cleared {
        fn drop(&mut self) {
            WORDS.set(0);
        }
    }
    let words = bytes.min(limits::ROOM_MAX_BYTES).div_ceil(8);
    WORDS.set(u32::try_from(words).expect("within the bound"));
    let _cleared = Cleared;
    make()
}

/// What was asked for, for the message that is being made; once.
pub(super) fn take_words() -> u32 {
    WORDS.take()
}

#[cfg(test)]
mod tests {
    use super::{take_words, with_room};
    use crate::limits;

    #[test]
    fn room_serves_one_message_and_is_bounded() {
        assert_eq!(take_words(), 0);
        assert_eq!(with_room(801, || (take_words(), take_words())), (101, 0));
        with_room(800, || ());
        assert_eq!(take_words(), 0, "nobody made a message");
        let most = with_room(usize::MAX, take_words);
        assert_eq!(most as usize, limits::ROOM_MAX_BYTES / 8);
    }
}
