//! Adam that tells when it is called, to count steps or to fail at one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, AdamState, LearningRate, SimpleOptimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, ops::Device};

use super::Recipe;

/// Adam with a counter, and a step at which it panics.
#[derive(Clone)]
pub(crate) struct Hooked {
    adam: Adam,
    calls: Arc<AtomicUsize>,
    fails_at: usize,
}

impl Hooked {
    /// Never fails.
    pub(crate) fn new() -> Self {
        Self::failing_at(usize::MAX)
    }

    /// Panics when called for the `fails_at`th time, counted from one, and at no other.
    pub(crate) fn failing_at(fails_at: usize) -> Self {
        Self {
            adam: AdamConfig::new().build(),
            calls: Arc::default(),
            fails_at,
        }
    }

    /// How many tensors were stepped so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl<B: Backend> SimpleOptimizer<B> for Hooked {
    type State<const D: usize> = AdamState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(call != self.fails_at, "told to fail at call {call}");
        self.adam.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device<B>) -> Self::State<D> {
        <Adam as SimpleOptimizer<B>>::to_device(state, device)
    }
}

impl Recipe for Hooked {
    type Optim<B: Backend> = Hooked;

    fn make<B, M>(&self) -> OptimizerAdaptor<Hooked, M, B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        OptimizerAdaptor::from(self.clone())
    }
}
