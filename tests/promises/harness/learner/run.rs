//! Results of a training run, and how they are compared.

use std::fmt::Display;

use super::{Directory, Renderer};
use crate::harness::Weights;

/// A run that has ended.
pub(crate) struct Run {
    /// The weights that each training step found.
    pub(crate) found: Vec<Weights>,
    /// The weights of the result.
    pub(crate) last: Weights,
    pub(crate) renderer: Renderer,
    pub(crate) directory: Directory,
}

impl Run {
    /// Differences from stock, the first one first.
    pub(crate) fn difference(&self, stock: &Self) -> Option<String> {
        self.difference_from(stock, 0)
    }

    /// The same for a run that begins at this iteration of the stock run.
    pub(crate) fn difference_from(&self, stock: &Self, first: usize) -> Option<String> {
        let expected = &stock.found[first..];
        if self.found.len() != expected.len() {
            let (steps, expected) = (self.found.len(), expected.len());
            return Some(format!("{steps} training steps instead of {expected}"));
        }
        let differing = self
            .found
            .iter()
            .zip(expected)
            .position(|(a, b)| !a.same(b));
        if let Some(step) = differing {
            return Some(format!("weights differ before training step {step}"));
        }
        (!self.last.same(&stock.last)).then(|| "weights differ at the end".into())
    }

    /// Fails unless every step found the weights that stock found, and ended with its weights.
    #[track_caller]
    pub(crate) fn assert_same(&self, stock: &Self, context: impl Display) {
        stock.assert_trained();
        if let Some(difference) = self.difference(stock) {
            panic!("{context}: {difference}");
        }
    }

    /// Fails unless the run trained anything: the guard against comparing nothing with nothing.
    #[track_caller]
    pub(crate) fn assert_trained(&self) {
        assert!(self.last.finite(), "the run blew up");
        self.last.assert_moved(&self.found[0], "the run");
    }
}
