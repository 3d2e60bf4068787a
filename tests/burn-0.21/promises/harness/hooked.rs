//! Adam that tells when it is called: to count steps, to fail at one of them, to change the rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::grad_clipping::GradientClipping;
use burn::optim::{AdamState, LearningRate};
use burn::tensor::ops::Device;

use crate::harness::prelude::*;

/// Makes the rate to step with of the number of the call, counted from one, and the rate given.
type Hook = Arc<dyn Fn(usize, LearningRate) -> LearningRate + Send + Sync>;

/// Adam with a counter and a hook.
#[derive(Clone)]
pub(crate) struct Hooked {
    adam: Adam,
    clipping: Option<GradientClipping>,
    calls: Arc<AtomicUsize>,
    hook: Hook,
}

impl Hooked {
    /// Never fails.
    pub(crate) fn new() -> Self {
        Self::with_hook(|_, lr| lr)
    }

    /// Panics when called for the `fails_at`th time, counted from one, and at no other.
    pub(crate) fn failing_at(fails_at: usize) -> Self {
        Self::with_hook(move |call, lr| {
            assert!(call != fails_at, "told to fail at call {call}");
            lr
        })
    }

    /// Steps with the rate that `hook` makes of the number of the call and the rate given.
    pub(crate) fn with_hook(
        hook: impl Fn(usize, LearningRate) -> LearningRate + Send + Sync + 'static,
    ) -> Self {
        Self {
            adam: AdamConfig::new().build(),
            clipping: None,
            calls: Arc::default(),
            hook: Arc::new(hook),
        }
    }

    /// Adam as configured here, without its clipping.
    pub(crate) fn with_config(config: &AdamConfig) -> Self {
        Self {
            adam: config.build(),
            ..Self::new()
        }
    }

    /// Clips each gradient by itself.
    pub(crate) fn with_clipping(self, clipping: GradientClipping) -> Self {
        Self {
            clipping: Some(clipping),
            ..self
        }
    }

    /// Number of tensors stepped so far.
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
        self.adam.step((self.hook)(call, lr), tensor, grad, state)
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
        let optim = OptimizerAdaptor::from(self.clone());
        match &self.clipping {
            Some(clipping) => optim.with_grad_clipping(clipping.clone()),
            None => optim,
        }
    }
}
