//! Counts the consumers of a node, and finds the one that backward runs last.

/// The direct consumers of a node, by their order on the tape: backward runs the highest first.
#[derive(Debug)]
pub(crate) struct Tally {
    consumers: usize,
    /// The lowest order among them, and the number of consumers that have it.
    lowest: usize,
    at_lowest: usize,
}

/// The moment at which a gradient is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Nothing on the tape uses the node.
    Unused,
    /// Right after the lowest consumer, by its [leaf hook](super::consumers::leaf_hook).
    AtLeafHook,
    /// After all nodes of this order.
    After(usize),
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            consumers: 0,
            lowest: usize::MAX,
            at_lowest: 0,
        }
    }

    /// Notes `times` consumers of the given order. Returns whether a single consumer has this
    /// order, and it is the lowest.
    pub(crate) fn add(&mut self, order: usize, times: usize) -> bool {
        self.consumers += times;
        if order < self.lowest {
            self.lowest = order;
            self.at_lowest = 0;
        }
        if order == self.lowest {
            self.at_lowest += times;
        }
        self.is_last(order)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.consumers == 0
    }

    /// Whether one consumer has this order, and it is the lowest: backward runs it last.
    pub(crate) fn is_last(&self, order: usize) -> bool {
        self.lowest == order && self.at_lowest == 1
    }

    /// When the gradient is complete, if only direct consumers use the node. `hook` is the order of
    /// the last leaf hook.
    pub(crate) fn completion(&self, hook: Option<usize>) -> Completion {
        match self.at_lowest {
            0 => Completion::Unused,
            1 if hook == Some(self.lowest) => Completion::AtLeafHook,
            _ => Completion::After(self.lowest),
        }
    }

    /// When the gradient is complete, if derived tensors use the node, too. `derived` are the orders
    /// at which they contribute.
    pub(crate) fn completion_with(&self, derived: impl Iterator<Item = usize>) -> Completion {
        Completion::After(derived.fold(self.lowest, usize::min))
    }

    /// Whether the order of the contributions is known before plain Burn's nodes of the derived
    /// tensors run, which are at the orders `derived`: a sum of two has no order, and consumers
    /// above all derived tensors come first.
    pub(crate) fn has_one_order(&self, derived: impl ExactSizeIterator<Item = usize>) -> bool {
        let uses = self.consumers + derived.len();
        uses <= 2 || self.is_empty() || derived.max().is_none_or(|highest| highest < self.lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(orders: &[usize]) -> Tally {
        let mut tally = Tally::new();
        for order in orders {
            tally.add(*order, 1);
        }
        tally
    }

    #[test]
    fn the_last_consumer_is_the_single_lowest_one() {
        let mut tally = Tally::new();
        assert!(tally.add(5, 1));
        assert!(!tally.add(7, 1), "5 is lower");
        assert!(tally.add(3, 1));
        assert!(!tally.add(3, 1), "two at the same order");
        assert!(!tally.is_last(3));
        assert!(!tally.add(2, 2), "one operation that takes the node twice");
        assert!(tally.add(1, 1));
        assert!(tally.is_last(1) && !tally.is_last(2) && !tally.is_last(7));
    }

    #[test]
    fn a_gradient_is_complete_after_the_lowest_consumer() {
        assert_eq!(tally(&[]).completion(None), Completion::Unused);
        assert_eq!(tally(&[4, 9]).completion(None), Completion::After(4));
        assert_eq!(tally(&[4, 9]).completion(Some(4)), Completion::AtLeafHook);
        // A lower consumer came after the hook was made.
        assert_eq!(tally(&[4, 2]).completion(Some(4)), Completion::After(2));
        // The hook runs before the second of the two.
        assert_eq!(tally(&[4, 4]).completion(Some(4)), Completion::After(4));
    }

    #[test]
    fn a_derived_tensor_can_be_last() {
        let completion = |orders: &[usize], derived: &[usize]| {
            tally(orders).completion_with(derived.iter().copied())
        };
        assert_eq!(completion(&[4], &[6]), Completion::After(4));
        assert_eq!(completion(&[4], &[6, 3]), Completion::After(3));
        assert_eq!(completion(&[], &[6]), Completion::After(6));
    }

    #[test]
    fn only_three_contributions_have_an_order() {
        let has_one_order = |orders: &[usize], derived: &[usize]| {
            tally(orders).has_one_order(derived.iter().copied())
        };
        assert!(has_one_order(&[4], &[6]), "a + b is b + a");
        assert!(has_one_order(&[4, 5, 6], &[]), "Burn's own nodes");
        assert!(has_one_order(&[], &[4, 5, 6]), "nothing between them");
        assert!(has_one_order(&[4, 5], &[3]), "consumers come first");
        assert!(!has_one_order(&[4, 5], &[4]), "a tie");
        assert!(!has_one_order(&[4, 9], &[6]), "in between");
        assert!(!has_one_order(&[4], &[3, 6]));
    }
}
