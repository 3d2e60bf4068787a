//! Where a training says what it is about to do.

use burn::{module::Module, tensor::backend::AutodiffBackend};

use super::{parameters, state};
use crate::snapshot::PhaseKind;

/// Makes a forward pass: from the batch to the loss, with which a training step begins.
///
/// The model is that of the step. With Burn's learner, this is in the model's `TrainStep`:
///
/// ```ignore
/// impl<B: AutodiffBackend> TrainStep for Model<B> {
///     fn step(&self, batch: Batch<B>) -> TrainOutput<Output<B>> {
///         let output = burn_memory_timeline::forward(self, || self.forward(batch));
///         let grads = burn_memory_timeline::backward(|| output.loss.backward());
///         TrainOutput::new(self, grads, output)
///     }
/// }
/// ```
///
/// Without a recording it is the pass, and nothing else.
pub fn forward<B, M, T>(model: &M, pass: impl FnOnce() -> T) -> T
where
    B: AutodiffBackend,
    M: Module<B>,
{
    if state::is_awaited() {
        let backend = || {
            let device = model.devices().into_iter().next().unwrap_or_default();
            B::name(&device)
        };
        if state::count_forward(backend) {
            state::enter(&parameters::of(model));
        }
    }
    within(PhaseKind::Forward, pass)
}

/// Makes a backward pass: from the loss to the gradients. See [`forward`].
pub fn backward<T>(pass: impl FnOnce() -> T) -> T {
    within(PhaseKind::Backward, pass)
}

fn within<T>(kind: PhaseKind, pass: impl FnOnce() -> T) -> T {
    if !state::is_on() {
        return pass();
    }
    state::begin_pass(kind);
    let ended = End;
    let output = pass();
    drop(ended);
    output
}

/// Ends the pass also where it panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        state::end_pass();
    }
}
