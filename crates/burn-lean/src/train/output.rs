//! The one line of a `TrainStep` that leaves backward to the strategy.

use std::cell::RefCell;

use burn::Tensor;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::train::{TrainOutput, TrainStep};

thread_local! {
    /// The losses that a step has left; `None` while no strategy waits for one. Of this thread, because
    /// Burn's trait has no room for it.
    static LEFT: RefCell<Option<Vec<Tensor<1>>>> = const { RefCell::new(None) };
}

/// `TrainOutput::new(model, loss.backward(), item)` for a model that trains with gradient release: with
/// the [`GradientReleaseStrategy`](super::GradientReleaseStrategy), backward runs when the model's step
/// has returned, and steps each parameter in it. With any other strategy, backward runs here.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
/// use burn::train::{RegressionOutput, TrainOutput, TrainStep};
///
/// #[derive(Module, Debug)]
/// struct Model {
///     linear: Linear,
/// }
///
/// impl TrainStep for Model {
///     type Input = (Tensor<2>, Tensor<2>);
///     type Output = RegressionOutput;
///
///     fn step(&self, (x, targets): Self::Input) -> TrainOutput<RegressionOutput> {
///         let output = self.linear.forward(x);
///         let loss = (output.clone() - targets.clone()).square().mean();
///         let item = RegressionOutput::new(loss.clone(), output, targets);
///         burn_lean::train::output(self, loss, item)
///     }
/// }
/// ```
pub fn output<M: Module, T>(model: &M, loss: Tensor<1>, item: T) -> TrainOutput<T> {
    let left = LEFT.with_borrow_mut(|left| match left {
        Some(left) => {
            left.push(loss.clone());
            true
        }
        None => false,
    });
    match left {
        true => TrainOutput {
            grads: GradientsParams::new(),
            item,
        },
        false => TrainOutput::new(model, loss.backward(), item),
    }
}

/// Runs the step of a model. Returns the loss that it has left.
///
/// # Panics
///
/// If it has left several, or has gradients beside it.
pub(super) fn run<M: TrainStep>(
    model: &M,
    input: M::Input,
) -> (TrainOutput<M::Output>, Option<Tensor<1>>) {
    /// Another training may run inside a step.
    struct Back(Option<Vec<Tensor<1>>>);
    impl Drop for Back {
        fn drop(&mut self) {
            LEFT.set(self.0.take());
        }
    }
    let _back = Back(LEFT.replace(Some(Vec::new())));
    let output = TrainStep::step(model, input);
    let mut left = LEFT.take().unwrap_or_default();
    assert!(
        left.len() <= 1,
        "gradient release: `TrainStep::step` has called `output` several times; call it once, with the \
         sum of the losses"
    );
    assert!(
        left.is_empty() || output.grads.is_empty(),
        "gradient release: `TrainStep::step` has left its loss with `output`, and returns gradients, too; \
         call `output` with the sum of the losses, or run backward of all of them in `step`"
    );
    (output, left.pop())
}
