//! The optimizer that says which parameter it steps.

use std::fmt;

use burn::{
    grad_clipping::GradientClipping,
    module::AutodiffModule,
    optim::{LearningRate, Optimizer, SimpleOptimizer, adaptor::OptimizerAdaptor},
    tensor::{
        Tensor,
        backend::{AutodiffBackend, Backend},
    },
};

use super::{look, state};

/// Makes an optimizer of Burn one whose steps are recorded.
pub trait RecordSteps {
    /// The optimizer with recorded steps.
    type Output;

    /// Has the recorder hear of the step of each parameter; without a recording it changes nothing.
    ///
    /// Gradient clipping is kept, though it is the recorded optimizer that clips, and no longer the
    /// adaptor; so are Burn's records, which are those of the optimizer within. Call it on a new
    /// optimizer, before its record is loaded and before `with_gradient_release`:
    ///
    /// ```ignore
    /// let optimizer = AdamConfig::new().init().recorded();
    /// ```
    ///
    /// # Panics
    ///
    /// If the optimizer has stepped, or has loaded a record: its states would be lost.
    fn recorded(self) -> Self::Output;
}

impl<O, M, B> RecordSteps for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Output = OptimizerAdaptor<RecordedOptimizer<O>, M, B>;

    fn recorded(self) -> Self::Output {
        assert!(
            self.to_record().is_empty(),
            "this optimizer has states, which `recorded` would lose: call it on a new optimizer, and \
             load the record then"
        );
        OptimizerAdaptor::from(RecordedOptimizer {
            optimizer: self.optim().clone(),
            clipping: self.grad_clipping().cloned(),
        })
    }
}

/// A [`SimpleOptimizer`] whose steps are recorded; made by [`RecordSteps::recorded`].
#[derive(Clone)]
pub struct RecordedOptimizer<O> {
    optimizer: O,
    // Clipped by the adaptor, the gradient would be another before anybody had seen it.
    clipping: Option<GradientClipping>,
}

impl<O> RecordedOptimizer<O> {
    fn clip<B: Backend, const D: usize>(&self, grad: Tensor<B, D>) -> Tensor<B, D> {
        match &self.clipping {
            Some(clipping) => clipping.clip_gradient(grad),
            None => grad,
        }
    }
}

impl<O: fmt::Debug> fmt::Debug for RecordedOptimizer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedOptimizer")
            .field("optimizer", &self.optimizer)
            .finish_non_exhaustive()
    }
}

impl<B: Backend, O: SimpleOptimizer<B>> SimpleOptimizer<B> for RecordedOptimizer<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        if !state::is_on() {
            return self.optimizer.step(lr, tensor, self.clip(grad), state);
        }
        if let (Some(parameter), Some(gradient)) = (look::at(&tensor), look::at(&grad)) {
            state::begin_step(&parameter, &gradient);
        }
        let (tensor, state) = self.optimizer.step(lr, tensor, self.clip(grad), state);
        if let Some(parameter) = look::at(&tensor) {
            state::end_step(&parameter);
        }
        (tensor, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        O::to_device(state, device)
    }
}
