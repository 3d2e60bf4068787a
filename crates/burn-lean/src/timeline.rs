//! Records where the memory of a training goes, on the CPU, with and without gradient release.
//!
//! For each allocation, the recording has its category, its parameter, and the operation that made
//! it. Its file is for `burn-memory` of `lean-timeline`, and for <https://pytorch.org/memory_viz>,
//! or with the ending `.perfetto.json` for <https://ui.perfetto.dev>.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Tensor};
//! use burn_lean::WithGradientRelease;
//! use burn_lean::timeline::{self, Category, Heap, Recorder};
//!
//! #[global_allocator]
//! static HEAP: Heap = Heap::system();
//!
//! // The third and the fourth step. Begin before the model is made.
//! let recording = Recorder::new("a linear layer").start()?;
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(64, 256).init(&device);
//! let mut optim = AdamWConfig::new().init().with_gradient_release();
//! for _ in 0..4 {
//!     let batch = Tensor::<2>::ones([16, 64], &device);
//!     let loss = timeline::forward(&model, || model.forward(batch).square().mean());
//!     model = timeline::backward(|| optim.backward(1e-3, loss, model));
//! }
//! let snapshot = recording.finish()?;
//!
//! let parameters = snapshot.parameters.iter().map(|parameter| parameter.path.as_str());
//! assert_eq!(parameters.collect::<Vec<_>>(), ["weight", "bias"]);
//! let gradients = snapshot.holders.iter().filter(|held| held.category == Category::Gradients);
//! let bytes: Vec<u64> = gradients.map(|held| held.bytes).collect();
//! assert_eq!(bytes, [256 * 4, 64 * 256 * 4].repeat(2));
//! # Ok::<(), timeline::RecordError>(())
//! ```
//!
//! A training with plain Burn steps with [`step`]. [`watched`] tells which parameter an activation
//! belongs to.
//!
//! # How it works, and what it costs
//!
//! The allocator of the program tells of each call; on Flex, tensors are on the heap. Memory that
//! exists after the forward pass is an activation. Memory that exists after backward is a gradient.
//! Memory that exists after a step, except the weight, is the optimizer's state. Memory that other
//! threads take is `other`. An allocation of less than [`SMALL`] bytes is counted, and has no name.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use lean_timeline::heap;

pub use lean_timeline::heap::{Heap, RecordError, Recorder, Recording, SMALL, backward};
pub use lean_timeline::snapshot::{Category, Snapshot};

use crate::marks::{self, parameters_of};
use crate::optimizer::{step_one, with_value};
use crate::path::{Path, PathMapper, WithPaths, path_text};

/// Makes a forward pass: from the batch to the loss, with which a training step begins. `model` is
/// the model of the step.
///
/// Without a recording it only calls `pass`.
pub fn forward<M: Module, T>(model: &M, pass: impl FnOnce() -> T) -> T {
    heap::forward("flex", || parameters_of(model), pass)
}

/// The step of a plain optimizer of Burn, `optim.step(lr, model, grads)`, which tells the recording
/// about each parameter. The weights are the same.
///
/// [`ReleaseOptimizer`](crate::ReleaseOptimizer) tells by itself.
pub fn step<M: Module>(
    optim: &mut ModuleOptimizer,
    lr: impl Into<ModuleLearningRate>,
    model: M,
    grads: GradientsParams,
) -> M {
    let lr = lr.into();
    if !heap::is_recording() {
        return optim.step(lr, model, grads);
    }
    heap::parameters(&parameters_of(&model));
    model.map(&mut WithPaths::new(&mut Stepper { optim, lr, grads }))
}

struct Stepper<'a> {
    optim: &'a mut ModuleOptimizer,
    lr: ModuleLearningRate,
    grads: GradientsParams,
}

impl PathMapper for Stepper<'_> {
    fn map<const D: usize>(&mut self, path: &Path, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let Some(grad) = self.grads.remove::<D>(id) else {
            return param;
        };
        with_value(param, |weight| {
            let step = |weight, grad| {
                let (weight, grad) = (Tensor::from_dispatch(weight), Tensor::from_dispatch(grad));
                let lr = self.lr.clone();
                step_one::<D>(self.optim, lr, id, &path_text(path), weight, grad).into_dispatch()
            };
            let (weight, grad) = (weight.into_dispatch(), grad.into_dispatch());
            Tensor::from_dispatch(marks::step(weight, grad, step, |weight| Some(weight)))
        })
    }
}

/// A model whose reads of parameters are told to the recording: so an activation has the path of the
/// parameter that was read last before. The values are the same, with and without gradient release. A
/// model with [`EarlyGradients`](crate::EarlyGradients), whose place it would take, tells them anyway.
///
/// `materialize()` gives the ordinary model back.
pub fn watched<M: Module>(model: M) -> M {
    model.apply_reparameterization(Watch)
}

struct Watch;

impl Reparameterizer for Watch {
    type Reparam = Watched;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Watched>) {
        (param, Some(Watched {}))
    }
}

/// The reparameterization of a parameter whose reads are told.
#[derive(Module, Debug)]
struct Watched {}

impl Reparameterization for Watched {
    const NAME: &'static str = "watched";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let base = base.into_dispatch();
        marks::read(&base);
        Tensor::from_dispatch(base)
    }
}
