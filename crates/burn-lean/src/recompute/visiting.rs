//! A module that is on another device than its scope.

use burn::module::{Module, ModuleVisitor};
use burn::tensor::Device;

use super::checkpoint::{Place, scope};
use super::mode::{Mode, mode};
use crate::tensors::Tensors;

/// [`checkpoint`](super::checkpoint()) on a device that the module visits: its weights come to `device` when the scope
/// runs, in the forward pass and again in backward, and are freed there when it has run. So a model in the
/// host's memory, or in a [`Scratch`](crate::Scratch) file, trains on a GPU that has room for a few layers.
///
/// The weights stay where they are. Each gradient goes there when it is complete, so an optimizer steps on the
/// host. The input, and what comes out, is on `device`. Gradients of a weight that has several scopes are
/// added on its own device.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor, activation};
/// # use burn_lean::checkpoint_on;
/// // Wgpu, or CUDA. (Here it is the same.)
/// let gpu = Device::flex().autodiff();
/// let host = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&host)).collect();
/// let mut hidden = Tensor::<2>::ones([2, 8], &gpu);
/// for layer in &layers {
///     let forward = |layer: &Linear, x| activation::gelu(layer.forward(x));
///     hidden = checkpoint_on(&gpu, layer, hidden, forward);
/// }
/// let grads = hidden.mean().backward();
/// assert!(layers[0].weight.grad(&grads).is_some());
/// ```
///
/// # Panics
///
/// Those of [`checkpoint`](super::checkpoint()). Also if the module has running statistics (`BatchNorm`), which
/// would be updated in a copy; and in another scope, whose weights would come to the device at once.
pub fn checkpoint_on<M, I, O, F>(device: &Device, module: &M, input: I, forward: F) -> O
where
    M: Module + Sync + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + Sync + 'static,
{
    assert!(
        mode() == Mode::Outside,
        "checkpoint_on: it runs in another scope, which has all of these weights at once: give it the \
         layers one by one, without a scope around them"
    );
    assert!(
        !has_running_statistics(module),
        "checkpoint_on: a `BatchNorm` would update its running statistics in a copy on the device: keep \
         this layer on the device, in a scope of `checkpoint`"
    );
    scope(module, input, Place::Visited(device.clone()), forward)
}

fn has_running_statistics<M: Module>(module: &M) -> bool {
    struct Found(bool);
    impl ModuleVisitor for Found {
        fn enter_module(&mut self, _: &str, container: &str) {
            self.0 |= container == "Struct:BatchNorm";
        }
    }
    let mut found = Found(false);
    module.visit(&mut found);
    found.0
}
