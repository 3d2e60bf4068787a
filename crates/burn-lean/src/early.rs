//! Gradients of parameters that are complete as early as they can be.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};

use crate::backend::plain;
use crate::marks;
use crate::tape::{ORDERS_BETWEEN_RUNGS, Zeros, guard, is_tracked, node, node_of, register, rung};

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
        let (number, use_in_pass) = FORWARD.with_borrow_mut(Forward::next_rung);
        let rung = rung(number, || zeros.one(), autodiff);
        let used = node(value, [below, rung], autodiff, move |mut reached| {
            let grad = reached.grad();
            register(reached.grads, id, grad);
            drop(use_in_pass);
        });
        FORWARD.with_borrow_mut(|forward| forward.last_node = NodeId::new().value);
        Tensor::from_dispatch(used)
    }
}

thread_local! {
    /// Of this thread, on which a forward pass runs. Burn has no place of its own for what a pass knows.
    static FORWARD: RefCell<Forward> = RefCell::default();
}

/// The forward pass that runs on a thread.
///
/// A use of a parameter has to run backward right after what was made later, so its order has to be at
/// least that of what was made before. Nobody tells that order, but each node of Burn takes a number, and
/// so many numbers as were taken since the last use, so many orders higher it can be at most.
#[derive(Default)]
struct Forward {
    /// Of the last use.
    rung: usize,
    /// The last number that was taken then.
    last_node: u64,
    /// Whether backward has run, or the graph is dropped.
    is_over: Arc<AtomicBool>,
}

/// What a rung costs is paid once, so this is only met by a program that never runs backward, and keeps all
/// its graphs. Then orders begin anew, and gradients are late.
const MOST_RUNGS: usize = 1 << 14;

impl Forward {
    fn next_rung(&mut self) -> (usize, UseInPass) {
        if self.is_over.load(Ordering::Relaxed) || self.rung == MOST_RUNGS {
            *self = Self::default();
        } else {
            let nodes = NodeId::new().value - self.last_node - 1;
            // Parameters that are read one after the other are of one operation.
            if nodes > 0 {
                // The node of the last use was one over its rung.
                let orders = usize::try_from(nodes)
                    .unwrap_or(usize::MAX)
                    .saturating_add(1);
                let rung = self.rung + orders.div_ceil(ORDERS_BETWEEN_RUNGS);
                self.rung = rung.min(MOST_RUNGS);
            }
        }
        (self.rung, UseInPass(self.is_over.clone()))
    }
}

/// Held by the backward step of a use of a parameter.
struct UseInPass(Arc<AtomicBool>);

impl Drop for UseInPass {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
