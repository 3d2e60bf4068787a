//! The part of every batch that a replica trains on.

use std::ops::Range;

use crate::Replicas;

impl Replicas {
    /// Which of the items of a whole batch are this replica's share. The shares of all replicas are
    /// the batch: what one process would train on. If they are not equally large, the first ones
    /// have an item more; each share counts the same in the mean of the gradients.
    ///
    /// # Panics
    ///
    /// If there are fewer items than replicas: none may be left out, and every replica has to run
    /// backward.
    pub fn share(&self, items: usize) -> Range<usize> {
        share(items, self.rank(), self.size())
    }
}

/// Which of the items of a whole batch are the share of a rank: see [`Replicas::share`].
///
/// # Panics
///
/// If there are fewer items than replicas.
pub fn share(items: usize, rank: usize, size: usize) -> Range<usize> {
    assert!(
        items >= size,
        "a batch of {items} items cannot be shared by {size} replicas: choose a batch size after \
         which an epoch leaves none, or at least {size} items"
    );
    let begin = |rank: usize| items / size * rank + rank.min(items % size);
    begin(rank)..begin(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_batch() {
        for size in 1..6 {
            for items in size..20 {
                let shares: Vec<_> = (0..size).map(|rank| share(items, rank, size)).collect();
                assert_eq!(
                    shares.iter().cloned().flatten().collect::<Vec<_>>(),
                    (0..items).collect::<Vec<_>>()
                );
                assert!(
                    shares
                        .iter()
                        .all(|share| share.len() - items / size <= 1 && !share.is_empty())
                );
            }
        }
    }

    #[test]
    #[should_panic = "a batch of 2 items cannot be shared by 3 replicas"]
    fn no_replica_is_left_without_items() {
        share(2, 0, 3);
    }
}
