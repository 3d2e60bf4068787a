//! The order of texts.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Places of texts, without end: each once before any comes again, in an order that a seed decides.
#[derive(Clone, Debug)]
pub struct Order {
    texts: usize,
    left: Vec<usize>,
    random: Xoshiro256PlusPlus,
}

impl Order {
    /// An order of so many texts. It is empty if there are none.
    pub fn new(texts: usize, seed: u64) -> Self {
        Self {
            texts,
            left: Vec::new(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }
}

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.texts == 0 {
            return None;
        }
        if self.left.is_empty() {
            self.left = (0..self.texts).collect();
        }
        let at = self.random.next_u64() as usize % self.left.len();
        Some(self.left.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_comes_once_before_any_comes_again() {
        let order: Vec<_> = Order::new(5, 1).take(15).collect();
        for round in order.chunks(5) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, [0, 1, 2, 3, 4]);
        }
        assert_ne!(order[..5], order[5..10]);
        assert_ne!(order, Order::new(5, 2).take(15).collect::<Vec<_>>());
        assert!(
            Order::new(5, 1)
                .skip(7)
                .take(8)
                .eq(order[7..].iter().copied())
        );
        assert_eq!(Order::new(0, 1).next(), None);
    }
}
