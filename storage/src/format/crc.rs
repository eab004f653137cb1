//! Checksums of bytes that lie one behind the other, from the checksums of the parts.
//!
//! What this file keeps true: joining two CRC32Cs gives what going over all bytes would give, in time that
//! does not grow with them.
//!
//! A CRC is the remainder of the bytes as a polynomial, so appending n bytes multiplies what stands before
//! them by x^8n (Peterson and Brown, Cyclic Codes for Error Detection, 1961). Powers with exponents 2^k are
//! made at compile time; n picks some of them.

/// The Castagnoli polynomial without its highest term, lowest power of x in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// 1 in that order of bits.
const ONE: u32 = 1 << 31;

/// log2 of the bits of a byte.
const BYTE_SHIFT: usize = 3;

/// x to the power of 2^k, for each k that a length in bits may have.
const POWERS: [u32; usize::BITS as usize + BYTE_SHIFT] = {
    let mut powers = [0; usize::BITS as usize + BYTE_SHIFT];
    let mut power = ONE >> 1;
    let mut k = 0;
    while k < powers.len() {
        powers[k] = power;
        power = product(power, power);
        k += 1;
    }
    powers
};

/// Product of two polynomials of degree 31 at most, modulo the polynomial.
const fn product(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut sum) = (a, b, 0);
    while a != 0 {
        // All ones where the term is there.
        sum ^= b & ((a >> 31) as i32).wrapping_neg() as u32;
        b = (b >> 1) ^ (POLYNOMIAL & ((b & 1) as i32).wrapping_neg() as u32);
        a <<= 1;
    }
    sum
}

/// CRC32C of bytes of which the first part has the sum `before` and the last `len` bytes have the sum
/// `behind`.
pub(crate) const fn join(before: u32, behind: u32, len: usize) -> u32 {
    let mut shift = ONE;
    let mut left = len;
    let mut k = BYTE_SHIFT;
    while left != 0 {
        if left & 1 == 1 {
            shift = product(POWERS[k], shift);
        }
        left >>= 1;
        k += 1;
    }
    product(shift, before) ^ behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_behind_changes_nothing() {
        assert_eq!(join(0xe306_9283, 0, 0), 0xe306_9283);
    }

    #[test]
    fn a_length_as_long_as_numbers_are_is_joined() {
        let len = (1 << 40) + 12_345;
        assert_eq!(join(7, 9, len), crc32c::crc32c_combine(7, 9, len));
    }

    proptest! {
        #[test]
        fn joined_sums_are_the_sum_of_all_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..5_000),
            at in any::<proptest::sample::Index>(),
            seed in any::<u32>(),
        ) {
            let (front, back) = bytes.split_at(at.index(bytes.len() + 1));
            let before = crc32c::crc32c_append(seed, front);
            let joined = join(before, crc32c::crc32c(back), back.len());
            prop_assert_eq!(joined, crc32c::crc32c_append(before, back));
        }
    }
}
