//! A small generator of our own.
//!
//! Which images validate, and what seeds the dropout of a batch, may not hang on another crate's
//! choice of algorithm: runs compare, and resume, over its versions.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator for one purpose: every distinct list of `parts` gives its own stream.
    pub fn new(parts: &[u64]) -> Self {
        let mut rng = Self(0);
        for part in parts {
            rng.0 ^= part;
            rng.0 = rng.next_u64();
        }
        rng
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; the bias of the modulo is far below anything visible here.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// `0..len` in random order (Fisher and Yates).
    pub fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_sequence() {
        // The first values of the reference implementation for seed 1234567.
        let mut rng = SplitMix64(1234567);
        assert_eq!(rng.next_u64(), 6457827717110365317);
        assert_eq!(rng.next_u64(), 3203168211198807973);
    }

    #[test]
    fn permutes_and_repeats() {
        let order = SplitMix64::new(&[7, 3]).permutation(100);
        assert_eq!(order, SplitMix64::new(&[7, 3]).permutation(100));
        assert_ne!(order, SplitMix64::new(&[7, 4]).permutation(100));
        assert_ne!(order, SplitMix64::new(&[3, 7]).permutation(100));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
}
