//! The passes of a training step, as the training announces them.

use burn::{module::Module, tensor::backend::AutodiffBackend};

use super::{parameters, state};
use crate::snapshot::PhaseKind;

/// Makes a forward pass: from the batch to the loss, with which a training step begins.
///
/// `model` is the model of the step. With Burn's learner, this is in the model's `TrainStep`:
///
/// ```ignore
/// impl<B: AutodiffBackend> TrainStep for Model<B> {
///     fn step(&self, batch: Batch<B>) -> TrainOutput<Output<B>> {
///         let output = burn_gradient_release_timeline::forward(self, || self.forward(batch));
///         let grads = burn_gradient_release_timeline::backward(|| output.loss.backward());
///         TrainOutput::new(self, grads, output)
///     }
/// }
/// ```
///
/// Without a recording it only calls `pass`.
pub fn forward<B, M, T>(model: &M, pass: impl FnOnce() -> T) -> T
where
    B: AutodiffBackend,
    M: Module<B>,
{
    let backend = || B::name(&parameters::device_of::<B, M>(model));
    let is_first = state::is_started() && state::count_forward(backend);
    let is_one_left = is_first && register(model);
    within(PhaseKind::Forward, || {
        let output = pass();
        if is_one_left {
            register(model);
        }
        output
    })
}

/// Registers the parameters of a model. Whether one is left that has no value yet.
fn register<B: AutodiffBackend, M: Module<B>>(model: &M) -> bool {
    let parameters = parameters::of(model);
    state::register_parameters(parameters.found);
    parameters.is_one_left
}

/// Makes a backward pass: from the loss to the gradients. See [`forward`].
pub fn backward<T>(pass: impl FnOnce() -> T) -> T {
    within(PhaseKind::Backward, pass)
}

fn within<T>(kind: PhaseKind, pass: impl FnOnce() -> T) -> T {
    if !state::is_recording() {
        return pass();
    }
    state::begin_pass(kind);
    let end = EndOnDrop;
    let output = pass();
    drop(end);
    output
}

/// Ends a pass, also one that panics.
struct EndOnDrop;

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        state::end_pass();
    }
}
