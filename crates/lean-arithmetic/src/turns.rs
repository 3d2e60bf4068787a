//! The order in which replicas reduce gradients that each of them completes in an order of its own.

use std::collections::{HashMap, VecDeque};
use std::mem;

/// Complete gradients that wait for those before them.
///
/// ```
/// # use lean_arithmetic::turns::Turns;
/// let mut turns = Turns::new(vec![1, 2, 3]);
/// turns.complete(2, "second");
/// assert_eq!(turns.take_next(), None);
/// turns.complete(1, "first");
/// assert_eq!(turns.take_next(), Some((1, "first")));
/// assert_eq!(turns.take_next(), Some((2, "second")));
/// // 3 has no gradient in this pass, and 4 had none in the last one.
/// turns.complete(4, "fourth");
/// assert_eq!(turns.take_next(), None);
/// assert_eq!(turns.take_rest(), [(4, "fourth")]);
/// assert_eq!(turns.take_completed(), [2, 1, 4]);
/// ```
#[derive(Debug)]
pub struct Turns<T> {
    waiting: HashMap<u64, T>,
    to_come: VecDeque<u64>,
    /// The order in which gradients were complete on this replica.
    completed: Vec<u64>,
    /// Whether the parameters in use were put first.
    has_begun: bool,
}

impl<T> Turns<T> {
    /// Parameters whose gradients are reduced in this order.
    pub fn new(order: impl IntoIterator<Item = u64>) -> Self {
        Self {
            waiting: HashMap::new(),
            to_come: order.into_iter().collect(),
            completed: Vec::new(),
            has_begun: false,
        }
    }

    /// Puts the parameters last that the forward pass has not used: no gradient waits for theirs, which
    /// may never come. Only the first call has an effect.
    ///
    /// ```
    /// # use lean_arithmetic::turns::Turns;
    /// let mut turns = Turns::new(vec![1, 2, 3]);
    /// turns.begin(|param| param != 1);
    /// turns.complete(2, "second");
    /// assert_eq!(turns.take_next(), Some((2, "second")));
    /// ```
    pub fn begin(&mut self, is_used: impl Fn(u64) -> bool) {
        if !mem::replace(&mut self.has_begun, true) {
            let order = mem::take(&mut self.to_come);
            let (used, others): (VecDeque<_>, VecDeque<_>) =
                order.into_iter().partition(|param| is_used(*param));
            self.to_come = used;
            self.to_come.extend(others);
        }
    }

    /// Takes the gradient of a parameter, which waits for its turn.
    pub fn complete(&mut self, param: u64, gradient: T) {
        self.completed.push(param);
        self.waiting.insert(param, gradient);
    }

    /// The next gradient, if it is complete.
    pub fn take_next(&mut self) -> Option<(u64, T)> {
        let param = *self.to_come.front()?;
        let gradient = self.waiting.remove(&param)?;
        self.to_come.pop_front();
        Some((param, gradient))
    }

    /// All that wait, once nothing comes before them any more: in their order, and those that are
    /// not in it last. The same on all replicas, whose parameters have the same ids.
    pub fn take_rest(&mut self) -> Vec<(u64, T)> {
        let mut rest: Vec<_> = self.waiting.drain().collect();
        let place = |param: u64| self.to_come.iter().position(|other| *other == param);
        rest.sort_by_key(|(param, _)| (place(*param).unwrap_or(usize::MAX), *param));
        self.to_come
            .retain(|param| rest.iter().all(|(other, _)| other != param));
        rest
    }

    /// The parameters whose gradients were complete, in the order in which they were.
    pub fn take_completed(&mut self) -> Vec<u64> {
        mem::take(&mut self.completed)
    }
}
