//! [`checkpoint`]: the entry to a scope.

use burn::Tensor;
use burn::backend::{DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Device;

use super::mode::{Mode, mode, recording};
use super::node::{Again, COMPUTES_ANOTHER, NewLeaf, Parents, scope_node};
use super::outline::Outline;
use super::random::Seed;
use super::running::Running;
use crate::backend::{is_same_backend, plain, reading_waits};
use crate::marks;
#[cfg(feature = "scratch")]
use crate::scratch::scope_uses;
use crate::tape::{Zeros, is_tracked, node_of};
use crate::tensors::{MapTensor, Tensors};

/// `forward(module, input)`, of which only the input is kept for backward, which computes the rest
/// again.
///
/// The gradients are those of `forward(module, input)`, bit for bit, except where
/// `docs/troubleshooting.md` in the repository says otherwise. With gradient release, a weight is stepped
/// inside backward. Without it, its gradient is where Burn puts it.
///
/// A tensor that needs a gradient and that `forward` reads must be in `module` or in `input`.
/// `forward` runs twice, and must compute the same both times. Its side effects happen twice,
/// except on running statistics (`BatchNorm`). The closure is kept until backward has run. So it
/// owns what it captures (`move`, and clones of what is borrowed).
///
/// `forward` must not call `detach()` on a result of a captured tensor that needs a gradient, to
/// make a mask, a scale or a target: in the second run, backward would deadlock. Call `detach()` on
/// the tensor before, and capture the result.
///
/// Two layers side by side in one scope are a tuple of clones, which share their weights:
/// `checkpoint(&(a.clone(), b.clone()), x, |(a, b), x| b.forward(a.forward(x)))`.
///
/// Random numbers are the same both times: each scope draws a seed from the device's random
/// numbers. So `Dropout` has other masks than without `checkpoint`. If a GPU is seeded, scopes use
/// the new seed only after the next backward pass. No other thread may draw from the same backend
/// meanwhile. Weights that no one has read yet are drawn by the first scope that has them, in the
/// order of the module's fields.
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
/// If `forward` uses a tensor that needs a gradient and is neither in `module` nor in `input`: it
/// would get none. A scope in another scope panics only in backward. Backward also panics if
/// `forward` computes another result than the first time. On a GPU, where reading would wait for
/// the device, it compares only shapes and types.
pub fn checkpoint<M, I, O, F>(module: &M, input: I, forward: F) -> O
where
    M: Module + Sync + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + Sync + 'static,
{
    // The scope around this one recomputes it.
    match mode() {
        Mode::Recording => seeded(module, input, forward),
        _ => scope(module, input, Place::OfModule, forward),
    }
}

/// The device that a scope computes on.
#[derive(Clone)]
pub(super) enum Place {
    /// That of the module, and of the input.
    OfModule,
    /// One that the module comes to each time. The input is there.
    Visited(Device),
}

impl Place {
    /// The module where the scope computes.
    fn module<M: Module>(&self, module: M) -> M {
        match self {
            Self::OfModule => module,
            Self::Visited(device) => module.to_device(device),
        }
    }
}

/// A scope that no other one recomputes.
pub(super) fn scope<M, I, O, F>(module: &M, input: I, place: Place, forward: F) -> O
where
    M: Module + Sync + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + Sync + 'static,
{
    let mut inputs = Inputs::default();
    let constant = input
        .clone()
        .map(&mut MapTensor(&mut |tensor| inputs.take(tensor)));
    // Constants: Burn frees no graph of which a node is held.
    let mut leaves = Leaves::default();
    let kept = module.clone().map(&mut leaves);
    let device = match &place {
        Place::OfModule => inputs.device_of(&kept),
        Place::Visited(device) => Some(device.clone()).filter(Device::is_autodiff),
    };
    let Some(device) = device else {
        return forward(&place.module(module.clone()), input);
    };

    #[cfg(feature = "scratch")]
    scope_uses(&kept);
    let run = || {
        let module = place.module(kept.clone());
        let forward = || recording(|| forward(&module, constant.clone()));
        marks::operation("checkpoint", forward)
    };
    let (output, seed) = Seed::run(&device, inputs.reading_waits, run);

    let (output, floats) = floats_of(output);
    assert!(
        !floats.iter().any(is_tracked),
        "checkpoint: the scope uses a tensor that needs a gradient and is neither in its module \
         nor in its input, so it would get none; pass it as a part of the input or of the module, or \
         freeze it with `no_grad()`"
    );
    let needs_gradients = inputs.tracked.iter().any(Option::is_some) || !leaves.found.is_empty();
    if !needs_gradients || floats.is_empty() {
        return output;
    }
    assert!(
        floats.iter().all(|float| node_of(float).is_some()),
        "checkpoint: burn-lean was compiled without this backend; switch its feature on"
    );
    let Leaves { found, are_trained } = leaves;
    let of_leaves = found.iter().map(|(leaf, _)| leaf);
    let of_leaves = of_leaves.filter(|_| matches!(place, Place::OfModule));
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
        leaves: found,
        are_elsewhere: matches!(place, Place::Visited(_)),
    };
    let again = move || {
        #[cfg(feature = "scratch")]
        scope_uses(&kept);
        let running = Running::of(&kept);
        let mut leaves = NewLeaves {
            are_trained: are_trained.into_iter(),
            made: Vec::new(),
        };
        // Without the constants, the weights have no owner but the tape of the scope.
        let module = place.module(kept).map(&mut leaves);
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
fn floats_of<T: Tensors>(tensors: T) -> (T, Vec<DispatchTensor>) {
    let mut floats = Vec::new();
    let tensors = tensors.map(&mut MapTensor(&mut |tensor| {
        floats.extend(is_autodiff_float(&tensor).then(|| tensor.clone()));
        tensor
    }));
    (tensors, floats)
}

fn outline(float: &DispatchTensor) -> Outline {
    Outline::of(&plain(float.clone()))
}

/// The analysed input of a scope.
#[derive(Default)]
struct Inputs {
    device: Option<Device>,
    /// Whether its device computes while the program goes on.
    reading_waits: bool,
    /// Each float of the input, if it needs a gradient.
    tracked: Vec<Option<DispatchTensor>>,
}

impl Inputs {
    /// The device of the scope, if it is one with autodiff.
    fn device_of<M: Module>(&self, module: &M) -> Option<Device> {
        let device = self.device.clone();
        let device = device.or_else(|| module.devices().into_iter().next());
        device.filter(Device::is_autodiff)
    }

    /// Returns the tensor as a constant.
    fn take(&mut self, tensor: DispatchTensor) -> DispatchTensor {
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

fn is_autodiff_float(tensor: &DispatchTensor) -> bool {
    tensor.autodiff != DispatchAutodiffContext::Disabled && tensor.dtype().is_float()
}

/// Turns the parameters into constants, and notes the leaves of those that require gradients.
#[derive(Default)]
struct Leaves {
    /// Each with whether it is distributed: Burn counts the gradients of such a leaf, to know when to
    /// send their sum.
    found: Vec<(DispatchTensor, bool)>,
    /// For each parameter whether its leaf was noted. A module may have two of one id.
    are_trained: Vec<bool>,
}

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = param.is_require_grad();
        self.are_trained.push(is_trained);
        if !is_trained {
            return param;
        }
        let leaf = param.base().into_dispatch();
        self.found.push((leaf, param.is_distributed()));
        param.map(|leaf| leaf.set_require_grad(false))
    }
}

/// Gives these parameters leaves on the tape of the scope.
struct NewLeaves {
    /// Those of [`Leaves`].
    are_trained: std::vec::IntoIter<bool>,
    made: Vec<NewLeaf>,
}

impl ModuleMapper for NewLeaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = self.are_trained.next();
        if !is_trained.expect("the module has as many parameters as before") {
            return param;
        }
        param.map(|constant| {
            let leaf = constant.require_grad();
            let tensor = leaf.clone().into_dispatch();
            self.made.push(NewLeaf {
                id: node_of(&tensor).expect("a leaf has a node"),
                zeros: Zeros::like(&plain(tensor)),
            });
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
    #[cfg(feature = "scratch")]
    scope_uses(module);
    match inputs.device_of(module) {
        Some(device) => {
            let run = || forward(module, input);
            Seed::run(&device, inputs.reading_waits, run).0
        }
        None => forward(module, input),
    }
}
