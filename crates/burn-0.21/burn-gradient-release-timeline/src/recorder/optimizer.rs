//! The optimizer that tells the recorder which parameter it steps.

use burn::{
    module::AutodiffModule,
    optim::{LearningRate, Optimizer, SimpleOptimizer, adaptor::OptimizerAdaptor},
    tensor::{
        Tensor,
        backend::{AutodiffBackend, Backend},
    },
};

use super::{lookup, state};

/// Makes the steps of Burn's optimizers known to the recorder.
pub trait RecordSteps {
    /// The optimizer with recorded steps.
    type Output;

    /// Records the step of each parameter. Without a recording it changes nothing.
    ///
    /// Gradient clipping is kept, and comes before the step: of a clipped gradient, the recorder
    /// knows the parameter; of the one before it, only the parameter that it was computed with.
    /// Records are those of the optimizer within. Call it on a new optimizer, before its record is
    /// loaded and before `with_gradient_release`:
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
        let recorded = OptimizerAdaptor::from(RecordedOptimizer {
            optimizer: self.optim().clone(),
        });
        match self.grad_clipping().cloned() {
            Some(clipping) => recorded.with_grad_clipping(clipping),
            None => recorded,
        }
    }
}

/// A [`SimpleOptimizer`] whose steps are recorded; made by [`RecordSteps::recorded`].
#[derive(Clone, Debug)]
pub struct RecordedOptimizer<O> {
    optimizer: O,
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
        if !state::is_recording() {
            return self.optimizer.step(lr, tensor, grad, state);
        }
        if let (Some(parameter), Some(gradient)) =
            (lookup::handle_of(&tensor), lookup::handle_of(&grad))
        {
            state::begin_step(parameter.entry(), gradient.entry());
        }
        let (tensor, state) = self.optimizer.step(lr, tensor, grad, state);
        if let Some(parameter) = lookup::handle_of(&tensor) {
            state::end_step(parameter.entry());
        }
        (tensor, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        O::to_device(state, device)
    }
}
