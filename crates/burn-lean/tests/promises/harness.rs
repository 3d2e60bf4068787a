//! Plain Burn and gradient release side by side: the same model, the same batches, the same optimizer.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_lean::{ReleaseOptimizer, WithGradientRelease};

pub(crate) const LR: f64 = 1e-2;

/// Each parameter's path and bits.
pub(crate) type Bits = Vec<(String, Vec<u32>)>;

pub(crate) fn flex() -> Device {
    Device::flex().autodiff()
}

/// The bits of all float parameters, running statistics too, as a visitor finds them.
pub(crate) fn bits<M: Module>(model: &M) -> Bits {
    #[derive(Default)]
    struct Visitor {
        path: Vec<String>,
        bits: Bits,
    }
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            let bits = data.iter::<f32>().map(f32::to_bits).collect();
            self.bits.push((self.path.join("."), bits));
        }
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
    }
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.bits
}

/// Numbers that look random, the same in every run: in [-1, 1), for this step.
pub(crate) fn numbers<const D: usize>(shape: [usize; D], step: usize, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let at = |i: usize| (((i * 7919 + step * 104_729 + 13) % 2003) as f32 / 1001.5) - 1.0;
    Tensor::from_data(TensorData::new((0..count).map(at).collect(), shape), device)
}

/// Ids below `below`.
pub(crate) fn ids<const D: usize>(
    shape: [usize; D],
    step: usize,
    below: usize,
    device: &Device,
) -> Tensor<D, Int> {
    let count: usize = shape.iter().product();
    let at = |i: usize| ((i * 31 + step * 17) % below) as i64;
    Tensor::from_data(TensorData::new((0..count).map(at).collect(), shape), device)
}

/// A model whose weights are those of the seed. Burn initializes a weight when it is first read.
pub(crate) fn seeded<M: Module>(device: &Device, make: impl FnOnce(&Device) -> M) -> M {
    device.seed(7);
    let model = make(device);
    bits(&model);
    model
}

pub(crate) fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.01).init()
}

/// One step of plain Burn.
pub(crate) fn plain_step<M: Module>(
    model: M,
    optim: &mut ModuleOptimizer,
    loss: impl FnOnce(&M) -> Tensor<1>,
) -> M {
    let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
    optim.step(LR, model, grads)
}

/// One step with gradient release.
pub(crate) fn release_step<M: Module>(
    model: M,
    optim: &mut ReleaseOptimizer,
    loss: impl FnOnce(&M) -> Tensor<1>,
) -> M {
    let model = optim.arm(LR, model);
    let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
    optim.step(LR, model, grads)
}

/// Trains both ways, and compares every weight after every step. `make` and `loss` get the device;
/// `loss` also the index of the step.
pub(crate) fn assert_same<M: Module>(
    steps: usize,
    device: &Device,
    optim: impl Fn() -> ModuleOptimizer,
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> ReleaseOptimizer {
    // One after the other: both draw their weights, and their masks, from the device's one generator.
    let mut model = seeded(device, &make);
    let mut plain = optim();
    let mut expected = Vec::new();
    for step in 0..steps {
        model = plain_step(model, &mut plain, |model| loss(model, step));
        expected.push(bits(&model));
    }
    let mut model = seeded(device, &make);
    let mut release = optim().with_gradient_release();
    for (step, expected) in expected.iter().enumerate() {
        model = release_step(model, &mut release, |model| loss(model, step));
        assert_eq!(&bits(&model), expected, "after step {step}");
    }
    release
}
