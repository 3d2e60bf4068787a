//! Which replica steps which parameter.

/// The owner of each of these sizes, so that all own about as much: the largest first, to whoever
/// has the least. The same on all replicas.
pub(crate) fn owners(sizes: &[usize], replicas: usize) -> Vec<usize> {
    let mut largest_first: Vec<_> = (0..sizes.len()).collect();
    largest_first.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let mut owned = vec![0; replicas];
    let mut owners = vec![0; sizes.len()];
    for index in largest_first {
        let ranks = 0..replicas;
        let owner = ranks.min_by_key(|rank| owned[*rank]);
        let owner = owner.expect("there is a replica");
        owned[owner] += sizes[index];
        owners[index] = owner;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_the_mean_and_the_largest() {
        let sizes = [5, 100, 3, 40, 40, 20, 1, 0, 60, 7];
        for replicas in 1..6 {
            let owners = owners(&sizes, replicas);
            let total: usize = sizes.iter().sum();
            for rank in 0..replicas {
                let owned = sizes.iter().zip(&owners);
                let owned: usize = owned
                    .filter(|(_, owner)| **owner == rank)
                    .map(|(size, _)| size)
                    .sum();
                assert!(owned <= total / replicas + 100, "{replicas}: {owners:?}");
                assert!(owned > 0, "{replicas}: {owners:?}");
            }
        }
        assert_eq!(owners(&sizes, 1), [0; 10]);
    }
}
