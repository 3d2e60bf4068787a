//! [`checkpoint`]: the entry to a scope.

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, Param};

use super::checkpoint::{Inputs, floats_of, is_autodiff_float, outline};
use super::node::COMPUTES_ANOTHER;
use super::outline::Outline;
use super::random::Seed;
use super::running::Running;
use super::scope::recording;
use super::scope_node::{Again, NewLeaf, Parents, scope_node};
use super::{MapTensor, Tensors};
use crate::backend::{is_same_backend, plain};
use crate::marks;
use crate::tape::{Zeros, is_tracked, node_of};

/// `forward(module, input)`, of which only the input is kept for backward, which computes the rest
/// again.
pub(super) fn checkpoint<M, I, O, F>(module: &M, input: I, forward: F) -> O
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
    let Some(device) = inputs.device_of(&kept) else {
        return forward(module, input);
    };

    let run = || {
        let forward = || recording(|| forward(&kept, constant.clone()));
        marks::operation("checkpoint", forward)
    };
    let ((output, _), seed) = Seed::run(&device, inputs.reading_waits, run);

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
    };
    let again = move || {
        let running = Running::of(&kept);
        let mut leaves = NewLeaves {
            are_trained: are_trained.into_iter(),
            made: Vec::new(),
        };
        // Without the constants, the weights have no owner but the tape of the scope.
        let module = kept.map(&mut leaves);
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
