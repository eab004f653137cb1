//! A 128-bit hash of states, the same on every machine and in every run.
//!
//! What this file keeps true: nothing random goes in, so a state's number is a fact about it; at
//! ten million states the chance that any two share one is below 10^-24.

use std::hash::{Hash, Hasher};

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;

/// Two lanes, each folded with a wide multiplication.
#[derive(Clone, Debug)]
pub struct Hash128 {
    a: u64,
    b: u64,
}

impl Default for Hash128 {
    fn default() -> Self {
        Self { a: K2, b: K1 }
    }
}

fn fold(x: u64, y: u64) -> u64 {
    let wide = u128::from(x) * u128::from(y);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = (wide as u64) ^ ((wide >> 64) as u64);
    folded
}

impl Hash128 {
    /// The hash of one value.
    #[must_use]
    pub fn of(value: &impl Hash) -> u128 {
        let mut hasher = Self::default();
        value.hash(&mut hasher);
        hasher.finish128()
    }

    /// All 128 bits.
    #[must_use]
    pub fn finish128(&self) -> u128 {
        let high = fold(self.a ^ self.b.rotate_left(32), K1);
        let low = fold(self.b ^ self.a.rotate_left(17), K2);
        (u128::from(high) << 64) | u128::from(low)
    }
}

impl Hasher for Hash128 {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n) | 1 << 40);
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n) | 1 << 41);
    }

    fn write_u64(&mut self, n: u64) {
        self.a = fold(self.a ^ n, K1 | 1).wrapping_add(self.b);
        self.b = fold(self.b.rotate_left(23) ^ n.wrapping_mul(K2), K2 | 1).wrapping_add(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "half of it is asked for")]
        let half = self.finish128() as u64;
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn small_differences_give_other_numbers() {
        let mut seen = BTreeSet::new();
        for a in 0_u64..64 {
            for b in 0_u32..64 {
                for c in [false, true] {
                    assert!(seen.insert(Hash128::of(&(a, b, c, "x"))));
                }
            }
        }
        assert_eq!(Hash128::of(&(1_u64, "y")), Hash128::of(&(1_u64, "y")));
    }
}
