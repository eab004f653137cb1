//! Memory that messages are read into, used again.
//!
//! A message's memory must be initialized before bytes of a socket are read into it, and the bytes
//! themselves do that: memory that has held a message once is not cleared for the next one.
//!
//! What this file keeps true: nobody sees bytes of an earlier message: who reads into such memory shows
//! no more of it than was read; what is kept on a thread is bounded.

use crate::limits;
use capnp::Word;
use std::cell::RefCell;

/// Sizes that are kept, in words: powers of two.
const SIZES: usize =
    (limits::MESSAGE_KEPT_BYTES / limits::RPC_READ_BUFFER_BYTES).ilog2() as usize + 1;

#[derive(Default)]
struct Kept {
    by_size: [Vec<Vec<Word>>; SIZES],
    bytes: usize,
}

impl Kept {
    /// Drops memory of other sizes for one of this size, as long as they have more of it: sizes that are not asked
    /// for any more must not keep those out that are.
    fn make_room(&mut self, size: usize, len: usize) {
        while self.bytes + len > limits::MESSAGES_KEPT_BYTES {
            let held = |of: usize| self.by_size[of].len() * (limits::RPC_READ_BUFFER_BYTES << of);
            let Some(largest) = (0..SIZES).max_by_key(|of| held(*of)) else {
                return;
            };
            if largest == size || held(largest) <= held(size) {
                return;
            }
            self.by_size[largest].pop();
            self.bytes -= limits::RPC_READ_BUFFER_BYTES << largest;
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Which of the kept sizes this length fits into; `None` beyond the largest.
fn size_of(bytes: usize) -> Option<usize> {
    let units = bytes.div_ceil(limits::RPC_READ_BUFFER_BYTES).max(1);
    let size = units.next_power_of_two().ilog2() as usize;
    (size < SIZES).then_some(size)
}

/// Memory for at least so many bytes, whatever is in it.
pub(super) fn take(bytes: usize) -> Vec<Word> {
    let Some(size) = size_of(bytes) else {
        return Word::allocate_zeroed_vec(bytes.div_ceil(8));
    };
    let len = limits::RPC_READ_BUFFER_BYTES << size;
    let kept = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let words = kept.by_size[size].pop()?;
        kept.bytes -= len;
        Some(words)
    });
    match kept {
        Ok(Some(words)) => words,
        _ => Word::allocate_zeroed_vec(len / 8),
    }
}

/// Gives memory back.
pub(super) fn give(words: Vec<Word>) {
    let len = words.len() * 8;
    let Some(size) = size_of(len).filter(|size| limits::RPC_READ_BUFFER_BYTES << size == len)
    else {
        return;
    };
    // A thread that ends keeps nothing.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.make_room(size, len);
        if kept.bytes + len <= limits::MESSAGES_KEPT_BYTES {
            kept.bytes += len;
            kept.by_size[size].push(words);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{give, take};
    use crate::limits;

    #[test]
    fn memory_is_used_again_and_no_more_is_kept_than_the_bound() {
        assert_eq!(take(1).len() * 8, limits::RPC_READ_BUFFER_BYTES);
        let words = take(100 << 10);
        assert_eq!(words.len() * 8, 128 << 10);
        let place = words.as_ptr();
        give(words);
        let again = take(65 << 10);
        assert_eq!(again.as_ptr(), place);
        // Other sizes are not kept: exactly what was asked for, and gone when it is given back.
        let large = limits::MESSAGE_KEPT_BYTES + 8;
        assert_eq!(take(large).len() * 8, large);
        give(take(large));

        let count = limits::MESSAGES_KEPT_BYTES / (128 << 10);
        let all: Vec<_> = (0..count + 3).map(|_| take(128 << 10)).collect();
        for words in all {
            give(words);
        }
        super::KEPT.with_borrow(|kept| assert_eq!(kept.bytes, limits::MESSAGES_KEPT_BYTES));

        // Other sizes come in again.
        let small = take(1);
        let place = small.as_ptr();
        give(small);
        let again = take(1);
        assert_eq!(again.as_ptr(), place);
        super::KEPT.with_borrow(|kept| {
            let held =
                |(size, all): (usize, &Vec<_>)| all.len() * (limits::RPC_READ_BUFFER_BYTES << size);
            let all: usize = kept.by_size.iter().enumerate().map(held).sum();
            assert_eq!(kept.bytes, all);
            assert!(all <= limits::MESSAGES_KEPT_BYTES);
        });
    }
}
