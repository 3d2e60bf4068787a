//! [`checkpoint`]: the entry to a scope.

use std::collections::HashSet;

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::{DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Device;

use crate::backend::{is_same_backend, plain, reading_waits};
use crate::marks;
use crate::parameter::{Released, Share, find, shared};
use crate::path::path_text;
use crate::recompute::node::{Again, COMPUTES_ANOTHER, Leaf, Parents, scope_node};
use crate::recompute::outline::Outline;
use crate::recompute::random::Seed;
use crate::recompute::running::Running;
use crate::recompute::scope::{Mode, mode, recording};
use crate::recompute::{MapTensor, Tensors};
use crate::tape::{is_tracked, node_of};

/// `forward(module, input)`, of which only the input is kept for backward, which computes the rest
/// again.
///
/// The gradients are those of `forward(module, input)`, bit for bit, except where
/// `docs/exactness.md` in the repository says otherwise. With gradient release, a weight is stepped
/// inside backward. Without it, its gradient is where Burn puts it.
///
/// A tensor that needs a gradient and that `forward` reads must be in `module`, in `input`, or a
/// parameter of an armed model. `forward` runs twice, and must compute the same both times. Its
/// side effects happen twice, except on running statistics (`BatchNorm`). It is kept until backward
/// has run: what it captures it owns (`move`, and clones of what is borrowed).
///
/// Of a captured tensor that needs a gradient, `forward` must not make a constant (a mask, a scale,
/// a target) by `detach()` in the end: in the second run, backward would wait for itself, for ever.
/// Call `detach()` on the tensor before, and capture the result.
///
/// Two layers side by side in one scope are a tuple of clones, which share their weights:
/// `checkpoint(&(a.clone(), b.clone()), x, |(a, b), x| b.forward(a.forward(x)))`.
///
/// Random numbers are the same both times: `forward` has a stream of its own, seeded from that of
/// the device. So `Dropout` has other masks than without `checkpoint`, and on a GPU a device that is
/// seeded has other numbers for scopes only after the next backward pass. No other thread may draw
/// from the same backend meanwhile. Weights that no one has read yet are drawn by the first scope
/// that has them, in the order of the module's fields.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor, activation};
/// # use burn_lean::checkpoint;
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let mut hidden = Tensor::<2>::ones([2, 8], &device);
/// for layer in &layers {
///     hidden = checkpoint(layer, hidden, |layer, x| activation::gelu(layer.forward(x)));
/// }
/// let grads = hidden.mean().backward();
/// assert!(layers[0].weight.grad(&grads).is_some());
/// ```
///
/// # Panics
///
/// If `forward` uses a tensor that needs a gradient and is not in `input`, or reads a parameter of
/// an armed model on another thread: it would get none. In a scope in another one, that is known in
/// backward alone. Backward panics if `forward` then computes something else than the first time; where
/// reading would wait for the device, it looks at shapes, types and the parameters that are used alone.
pub fn checkpoint<M, I, O, F>(module: &M, input: I, forward: F) -> O
where
    M: Module + Sync + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + Sync + 'static,
{
    // The scope around this one recomputes it.
    if mode() == Mode::Recording {
        return seeded(module, input, forward);
    }
    if !is_armed(module) {
        return super::by_value::checkpoint(module, input, forward);
    }
    let mut inputs = Inputs::default();
    let constant = input
        .clone()
        .map(&mut MapTensor(&mut |tensor| inputs.take(tensor)));
    let Armed { own, apart } = armed_in(module);
    let mut leaves = Leaves {
        armed: own,
        found: Vec::new(),
        are_leaves: Vec::new(),
    };
    let kept = shared(module, Share::Scope { apart }, &mut leaves);
    let Some(device) = inputs.device_of(&kept) else {
        return forward(module, input);
    };

    let run = || {
        let forward = || recording(|| forward(&kept, constant.clone()));
        marks::operation("checkpoint", forward)
    };
    let ((output, slots), seed) = Seed::run(&device, inputs.reading_waits, run);

    let (output, floats) = floats_of(output);
    assert!(
        !floats.iter().any(is_tracked),
        "checkpoint: the scope uses a tensor that needs a gradient and is neither in its module \
         nor in its input, so it would get none; pass it as a part of the input, or freeze it with \
         `no_grad()`"
    );
    let needs_gradients =
        inputs.tracked.iter().any(Option::is_some) || !leaves.found.is_empty() || !slots.is_empty();
    if !needs_gradients || floats.is_empty() {
        return output;
    }
    assert!(
        floats.iter().all(|float| node_of(float).is_some()),
        "checkpoint: burn-lean was compiled without this backend; switch its feature on"
    );

    let Leaves {
        found: leaves,
        are_leaves,
        ..
    } = leaves;
    let of_leaves = leaves.iter().map(|leaf| &leaf.tensor);
    let of_inputs = inputs.tracked.iter().flatten();
    let mut tensors = floats.iter().chain(of_inputs).chain(of_leaves);
    assert!(
        tensors.all(|tensor| is_same_backend(tensor, &floats[0])),
        "checkpoint: all tensors of a scope have to be on one backend"
    );

    let outlines: Vec<_> = floats.iter().map(outline).collect();
    let needs: Vec<bool> = inputs.tracked.iter().map(Option::is_some).collect();
    let parents = Parents {
        inputs: inputs.tracked,
        leaves,
        slots,
    };
    let again = move || {
        let running = Running::of(&kept);
        let mut leaves = NewLeaves {
            are_leaves: are_leaves.into_iter(),
            made: Vec::new(),
        };
        let module = shared(&kept, Share::Model, &mut leaves);
        let mut inputs = Vec::new();
        let mut needs = needs.into_iter();
        let input = constant.map(&mut MapTensor(&mut |tensor| {
            if !is_autodiff_float(&tensor) {
                return tensor;
            }
            let constant = Tensor::<1>::from_dispatch(tensor);
            let needs_gradient = needs
                .next()
                .expect("the input has as many tensors as before");
            let leaf = constant.set_require_grad(needs_gradient).into_dispatch();
            inputs.push(needs_gradient.then(|| leaf.clone()));
            leaf
        }));
        let output = seed.run_again(&device, || forward(&module, input));
        running.restore(&module);
        let outputs = floats_of(output).1;
        let is_same = |(first, again): (&Outline, _)| outline(again).is_that_of(first);
        assert!(
            outputs.len() == outlines.len() && outlines.iter().zip(&outputs).all(is_same),
            "{COMPUTES_ANOTHER}"
        );
        Again {
            outputs,
            inputs,
            leaves: leaves.made,
        }
    };
    let mut tracked = scope_node(parents, floats, Box::new(again)).into_iter();
    output.map(&mut MapTensor(
        &mut |tensor| match is_autodiff_float(&tensor) {
            true => tracked.next().expect("there is one for each"),
            false => tensor,
        },
    ))
}

/// Returns the floats with autodiff among tensors, too.
pub(super) fn floats_of<T: Tensors>(tensors: T) -> (T, Vec<DispatchTensor>) {
    let mut floats = Vec::new();
    let tensors = tensors.map(&mut MapTensor(&mut |tensor| {
        floats.extend(is_autodiff_float(&tensor).then(|| tensor.clone()));
        tensor
    }));
    (tensors, floats)
}

pub(super) fn outline(float: &DispatchTensor) -> Outline {
    Outline::of(&plain(float.clone()))
}

/// The analysed input of a scope.
#[derive(Default)]
pub(super) struct Inputs {
    device: Option<Device>,
    /// Whether its device computes while the program goes on.
    pub(super) reading_waits: bool,
    /// Each float of the input, if it needs a gradient.
    pub(super) tracked: Vec<Option<DispatchTensor>>,
}

impl Inputs {
    /// The device of the scope, if it is one with autodiff.
    pub(super) fn device_of<M: Module>(&self, module: &M) -> Option<Device> {
        let device = self.device.clone();
        let device = device.or_else(|| module.devices().into_iter().next());
        device.filter(Device::is_autodiff)
    }

    /// Returns the tensor as a constant.
    pub(super) fn take(&mut self, tensor: DispatchTensor) -> DispatchTensor {
        if !is_autodiff_float(&tensor) {
            return tensor;
        }
        // Any rank will do.
        let float = Tensor::<1>::from_dispatch(tensor.clone());
        self.device.get_or_insert_with(|| float.device());
        self.reading_waits = reading_waits(&tensor);
        self.tracked.push(is_tracked(&tensor).then_some(tensor));
        float.set_require_grad(false).into_dispatch()
    }
}

pub(super) fn is_autodiff_float(tensor: &DispatchTensor) -> bool {
    tensor.autodiff != DispatchAutodiffContext::Disabled && tensor.dtype().is_float()
}

/// The parameters whose weights are in slots.
#[derive(Default)]
struct Armed {
    /// The leaves of those that are stepped inside backward.
    own: HashSet<NodeId>,
    /// The places of those that were frozen, or got another leaf, while they were armed.
    apart: HashSet<usize>,
}

fn is_armed<M: Module>(module: &M) -> bool {
    struct Nothing;
    impl ModuleVisitor for Nothing {}
    !find(module, &mut Nothing).is_empty()
}

fn armed_in<M: Module>(module: &M) -> Armed {
    /// The nodes of the bases of parameters that have a slot.
    #[derive(Default)]
    struct Bases {
        last: Option<NodeId>,
        with_slot: Vec<Option<NodeId>>,
    }
    impl ModuleVisitor for Bases {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.last = node_of(&param.base().into_dispatch());
        }
        fn enter_module(&mut self, name: &str, container: &str) {
            if (container, name) == ("Reparameterization", Released::CONTAINER) {
                self.with_slot.push(self.last);
            }
        }
    }
    let mut bases = Bases::default();
    let mut armed = Armed::default();
    let found = find(module, &mut bases);
    for (found, base) in found.into_iter().zip(bases.with_slot) {
        if found.has_ended() {
            continue;
        }
        assert!(
            found.is_in_scope || !found.is_apart,
            "checkpoint: {} is of a copy or a fork of an armed model, which a scope cannot use; \
             give it the model that is armed, or `copy.materialize()`",
            path_text(&found.slot.path())
        );
        let leaf = found.slot.leaf_id();
        // The scope around this one knows what is apart.
        if found.is_in_scope || base == Some(leaf) {
            armed.own.insert(leaf);
        } else {
            armed.apart.insert(found.place);
        }
    }
    armed
}

/// Turns the parameters into constants, because Burn frees no graph of which a node is held. Notes
/// the leaves of parameters that are not armed.
struct Leaves {
    armed: HashSet<NodeId>,
    found: Vec<Leaf>,
    /// For each parameter whether its leaf was noted. A module may have two of one id.
    are_leaves: Vec<bool>,
}

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let leaf = param
            .is_require_grad()
            .then(|| param.base().into_dispatch());
        let is_armed = |leaf: &_| node_of(leaf).is_some_and(|leaf| self.armed.contains(&leaf));
        let is_leaf = leaf.as_ref().is_some_and(|leaf| !is_armed(leaf));
        self.are_leaves.push(is_leaf);
        let Some(tensor) = leaf else {
            return param;
        };
        if is_leaf {
            let is_distributed = param.is_distributed();
            self.found.push(Leaf {
                tensor,
                is_distributed,
            });
        }
        param.map(|leaf| leaf.set_require_grad(false))
    }
}

/// Gives parameters that are not armed leaves of their own.
struct NewLeaves {
    /// Those of [`Leaves`].
    are_leaves: std::vec::IntoIter<bool>,
    made: Vec<DispatchTensor>,
}

impl ModuleMapper for NewLeaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_leaf = self.are_leaves.next();
        if !is_leaf.expect("the module has as many parameters as before") {
            return param;
        }
        param.map(|constant| {
            let leaf = constant.require_grad();
            self.made.push(leaf.clone().into_dispatch());
            leaf
        })
    }
}

/// `forward(module, input)` with the random numbers of a scope, which is not recomputed.
pub(super) fn seeded<M: Module, I: Tensors, O>(
    module: &M,
    input: I,
    forward: impl FnOnce(&M, I) -> O,
) -> O {
    let mut inputs = Inputs::default();
    let input = input.map(&mut MapTensor(&mut |tensor| {
        inputs.take(tensor.clone());
        tensor
    }));
    match inputs.device_of(module) {
        Some(device) => {
            let run = || forward(module, input);
            Seed::run(&device, inputs.reading_waits, run).0
        }
        None => forward(module, input),
    }
}
