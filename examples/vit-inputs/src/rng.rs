//! Random numbers that are the same in every version of these programs.
//!
//! Which images validate, and the seed of each batch's dropout, come from here: runs of different
//! versions are compared, and resumed. `rand` promises no such thing for its generators and
//! distributions. SplitMix64 is one published algorithm, and what is derived from it is below.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Random numbers for one purpose, by SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct SeededRng(SplitMix64);

impl SeededRng {
    /// Creates a generator: every distinct list of `parts` gives another sequence.
    pub fn new(parts: &[u64]) -> Self {
        let seed = parts.iter().fold(0, |seed, part| {
            SplitMix64::seed_from_u64(seed ^ part).next_u64()
        });
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; the bias of the modulo is negligible here.
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
        let mut rng = SeededRng(SplitMix64::seed_from_u64(1234567));
        assert_eq!(rng.next_u64(), 6457827717110365317);
        assert_eq!(rng.next_u64(), 3203168211198807973);
    }

    #[test]
    fn keeps_the_sequences_of_earlier_versions() {
        let order = SeededRng::new(&[7, 3]).permutation(10);
        assert_eq!(order, [2, 1, 4, 5, 6, 3, 9, 0, 8, 7]);
    }
}
