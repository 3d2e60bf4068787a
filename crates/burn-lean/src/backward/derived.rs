//! Functions of parameters alone, whose backward runs as soon as the gradient of the result is
//! complete.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor, TensorMetadata};

use super::awaiting::{self, Owner, TakeGradient, reach, take_gradient};
use crate::backend::{is_same_backend, plain};
use crate::lock::lock;
use crate::tape::{
    Reached, Zeros, constant, gathered, guard, is_tracked, leaf, node, node_of, register,
};
use crate::tensors::{MapTensor, Tensors};

/// A tensor that is computed from parameters alone, as a transposed weight, `derived(w.val(), |w|
/// w.transpose())`, or the product of two.
///
/// Burn's tape runs the backward step of such a function last, when backward ends, so the gradients
/// of all such parameters exist at the same time. This one runs it as soon as the gradient of the result
/// is complete, if all of `params` are released. `function` runs once more for that.
///
/// A gradient with three contributions or more adds up in another order than in plain Burn, so its
/// last bit may differ.
///
/// ```
/// # use burn::module::Param;
/// # use burn::optim::SgdConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::{derived, WithGradientRelease};
/// let device = Device::flex().autodiff();
/// // As PyTorch has it: `[output, input]`.
/// let weight = Param::from_tensor(Tensor::<2>::ones([3, 4], &device));
/// let x = Tensor::<2>::ones([2, 4], &device);
/// let y = x.matmul(derived(weight.val(), |weight| weight.transpose()));
/// let mut optim = SgdConfig::new().init().with_gradient_release();
/// let weight = optim.backward(0.1, y.sum(), weight);
/// # let _ = weight;
/// ```
///
/// # Panics
///
/// If `function` reads another tensor that needs a gradient, which would get none.
pub fn derived<P: Tensors, const D: usize>(
    params: P,
    function: impl Fn(P) -> Tensor<D> + Send + 'static,
) -> Tensor<D> {
    let mut tracked = Vec::new();
    let mut are_tracked = Vec::new();
    let constants = params.map(&mut MapTensor(&mut |tensor| {
        are_tracked.push(tensor.dtype().is_float() && is_tracked(&tensor));
        if are_tracked.last() == Some(&false) {
            return tensor;
        }
        let autodiff = tensor.autodiff;
        tracked.push(tensor.clone());
        constant(plain(tensor), autodiff)
    }));
    let value = function(constants.clone());
    assert!(
        !value.is_tracked(),
        "derived: the function reads a tensor that needs a gradient and is not among its parameters, \
         so it would get none"
    );
    let Some(autodiff) = tracked.first().map(|tensor| tensor.autodiff) else {
        return value;
    };
    let value = plain(value.into_dispatch());
    assert!(
        tracked.iter().all(|tensor| is_same_backend(tensor, &value)),
        "derived: all parameters have to be on one backend"
    );
    let leaves: Vec<NodeId> = tracked.iter().map(id_of).collect();
    let guards = tracked.iter().map(guard).collect();
    drop(tracked);

    let backward: RunBackward = Box::new(move |grad| {
        let mut inner = Vec::new();
        let mut are_tracked = are_tracked.into_iter();
        let params = constants.map(&mut MapTensor(&mut |tensor| match are_tracked
            .next()
            .expect("as many as before")
        {
            false => tensor,
            true => {
                let leaf = leaf(plain(tensor), autodiff);
                inner.push(leaf.clone());
                leaf
            }
        }));
        let output = function(params).into_dispatch();
        if !is_tracked(&output) {
            return vec![None; inner.len()];
        }
        let (id, below) = (id_of(&output), guard(&output));
        drop(output);
        let root = node(grad.clone(), [below], autodiff, move |reached| {
            register(reached.grads, id, grad);
        });
        let mut grads = Dispatch::backward(root);
        let grads = inner
            .iter()
            .map(|leaf| Dispatch::grad_remove(leaf, &mut grads));
        grads.collect()
    });
    let derived = Arc::new(Derived {
        leaves,
        backward: Mutex::new(Some(backward)),
    });
    let noted = (Arc::downgrade(&derived), take_gradient(&value));
    let scalar = Zeros::like(&value).one();
    let guards = gathered(guards, &scalar, autodiff);
    let result = node(value, guards, autodiff, move |mut reached| {
        derived.reached_last(&mut reached);
    });
    lock(&ON_TAPES).insert(id_of(&result).value, noted);
    Tensor::from_dispatch(result)
}

/// Gradients of the parameters, from that of the result.
type RunBackward = Box<dyn FnOnce(DispatchTensor) -> Vec<Option<DispatchTensor>> + Send>;

pub(super) struct Derived {
    leaves: Vec<NodeId>,
    /// Runs once.
    backward: Mutex<Option<RunBackward>>,
}

/// Those on the tapes of all threads, by node: Burn gives the backward step of a node to nobody.
static ON_TAPES: LazyLock<Mutex<OnTapes>> = LazyLock::new(Mutex::default);

type OnTapes = HashMap<u64, (Weak<Derived>, TakeGradient)>;

/// Those that exist, by node.
pub(super) fn on_tapes() -> HashMap<u64, (Arc<Derived>, TakeGradient)> {
    let mut on_tapes = lock(&ON_TAPES);
    on_tapes.retain(|_, (derived, _)| derived.strong_count() > 0);
    let existing = on_tapes.iter();
    let existing =
        existing.filter_map(|(node, (derived, take))| Some((*node, (derived.upgrade()?, *take))));
    existing.collect()
}

/// Awaits the gradients of those that are parents on a tape, and whose own parameters are awaited.
pub(super) fn wait_for(
    derived: HashMap<u64, (Arc<Derived>, TakeGradient)>,
    counts: &HashMap<u64, usize>,
) {
    for (node, (derived, take)) in derived {
        let count = counts[&node];
        if count > 0
            && derived
                .leaves
                .iter()
                .all(|leaf| awaiting::is_awaited(*leaf))
        {
            awaiting::wait_for(node, take, None, Rc::new(OnThisTape(derived)), 0, count);
        }
    }
}

struct OnThisTape(Arc<Derived>);

impl Owner for OnThisTape {
    fn complete(&self, _: usize, grad: DispatchTensor) {
        let backward = lock(&self.0.backward).take();
        let grads = backward.map(|backward| backward(grad)).unwrap_or_default();
        for (leaf, grad) in self.0.leaves.iter().zip(grads) {
            reach(leaf.value, grad);
        }
    }

    /// Its node, which runs last, has taken it.
    fn is_left(&self, _: usize, _: Option<DispatchTensor>) {}

    fn is_added_to(&self, _: usize) {
        let leaves = &self.0.leaves;
        // Once more than was counted: their owner refuses it.
        leaves.iter().for_each(|leaf| awaiting::refuse(leaf.value));
    }
}

impl Derived {
    /// Burn has come to the node: whoever has not had its gradients gets them now.
    fn reached_last<const N: usize>(&self, reached: &mut Reached<'_, N>) {
        let awaited = awaiting::is_awaited(reached.id());
        let partial = awaiting::forget(reached.id().value);
        let Some(backward) = lock(&self.backward).take() else {
            return;
        };
        let grad = match awaited {
            true => partial,
            false => Some(reached.grad()),
        };
        let grads = grad.map(backward).unwrap_or_default();
        for (leaf, grad) in self.leaves.iter().zip(grads) {
            if let Some(grad) = grad {
                register(reached.grads, *leaf, grad);
            }
        }
    }
}

fn id_of(tensor: &DispatchTensor) -> NodeId {
    node_of(tensor).expect("a tensor of a tape has a node")
}
