//! Gradients of parameters that are complete as early as they can be.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::Tensor;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};

use crate::backend::plain;
use crate::marks;
use crate::tape::{Zeros, guard, is_tracked, node, node_of, register, rung};

/// Lets the gradient of a weight be complete as soon as the operation that uses it has run backward,
/// also if the weight reaches the operation by way of others.
///
/// Backward runs functions of parameters alone at its end: a transposed weight, the product of two
/// factors, and the view of a weight that Burn's [`Linear`](burn::nn::Linear) makes for an input
/// `[batch, time, features]` with a batch of one, a `time` that is a multiple of 32, or much of both. So
/// the gradients of all such weights exist at the same time. With this they come one by one:
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::WithGradientRelease;
/// use burn_lean::EarlyGradients;
///
/// # let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let mut model = layers.apply_reparameterization(EarlyGradients);
/// # let mut optim = AdamWConfig::new().init().with_gradient_release();
/// let mut hidden = Tensor::<3>::ones([1, 64, 8], &device);
/// for layer in &model {
///     hidden = layer.forward(hidden);
/// }
/// model = optim.backward(1e-3, hidden.mean(), model);
/// # let _ = model;
/// ```
///
/// [`StepReport::late`](crate::StepReport::late) tells whether a model needs it. It works without
/// gradient release, too, and changes no value, record, path or id. A gradient with three
/// contributions or more may add up in another order than without it, so its last bit may differ.
///
/// [`Param::val`] then returns a node over the weight. The weight itself, which has the gradient of an
/// ordinary backward pass, is [`Param::base`]. As with other functions of a parameter, backward panics if an
/// operation that uses it registers no gradient.
///
/// It is attached to each float parameter in a model that has none of Burn's reparameterizations, or
/// that has LoRA adapters; those are attached first, since they would take its place. What a copy of a
/// model has, and a model that is loaded, moved, frozen or validated, is as with these;
/// [`materialize`](Module::materialize) takes it off.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarlyGradients;

impl Reparameterizer for EarlyGradients {
    type Reparam = EarlyGradient;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<EarlyGradient>) {
        (param, Some(EarlyGradient {}))
    }
}

/// What [`EarlyGradients`] attaches to a parameter.
#[derive(Module, Debug)]
pub struct EarlyGradient {}

impl Reparameterization for EarlyGradient {
    const NAME: &'static str = "early_gradient";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let leaf = base.into_dispatch();
        marks::read(&leaf);
        if !is_tracked(&leaf) {
            return Tensor::from_dispatch(leaf);
        }
        let id = node_of(&leaf).expect("a tensor on a tape has a node");
        let (below, autodiff) = (guard(&leaf), leaf.autodiff);
        let value = plain(leaf);
        let zeros = Zeros::like(&value);
        let (number, has_run) = FORWARD.with_borrow_mut(Forward::next_rung);
        let rung = rung(number, || zeros.one(), autodiff);
        let used = node(value, [below, rung], autodiff, move |mut reached| {
            has_run.store(true, Ordering::Relaxed);
            let grad = reached.grad();
            register(reached.grads, id, grad);
        });
        Tensor::from_dispatch(used)
    }
}

thread_local! {
    /// Of this thread, on which a forward pass runs. Burn has no place of its own for what a pass knows.
    static FORWARD: RefCell<Forward> = RefCell::default();
}

/// The forward pass that runs on a thread.
///
/// A use of a parameter has to run backward right after what was made later, so it is a rung higher than
/// the use before, whatever is between them: orders that other threads or earlier passes have a part in
/// would change in which order gradients add up. A part of a pass that has more operations between two
/// uses than there are orders between two rungs is late, until later uses have caught up.
#[derive(Default)]
struct Forward {
    uses: usize,
    /// Whether backward has come to one of its uses.
    is_over: Arc<AtomicBool>,
}

/// Above what is computed without parameters, in any pass: so it does not matter how many uses an
/// earlier pass had that led to no loss.
const LOWEST_RUNG: usize = 8;

/// Of a program that keeps its graphs and never runs backward. Then some gradients are late.
const MOST_USES: usize = 1 << 14;

impl Forward {
    fn next_rung(&mut self) -> (usize, Arc<AtomicBool>) {
        if self.is_over.load(Ordering::Relaxed) || self.uses == MOST_USES {
            *self = Self::default();
        }
        self.uses += 1;
        (LOWEST_RUNG + self.uses, self.is_over.clone())
    }
}
