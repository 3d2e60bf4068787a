//! Plain Burn and gradient release side by side: the same model, the same batches, the same
//! optimizer.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamWConfig, GradientsParams, LearningRate, ModuleOptimizer, Optimizer, SgdConfig,
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_lean::{Outcome, ReleaseOptimizer, StepReport, WithGradientRelease};

/// What most tests need.
pub(crate) mod prelude {
    pub(crate) use super::{
        BOTH, Bits, LR, adamw, alone, assert_bits, assert_released, bits, both_ways, devices, flex,
        ids, map_numbers, momentum, numbers, plain_run, plain_step, release_run, release_step,
        seeded,
    };
    pub(crate) use crate::small::{
        PARAMS, Plain, Small, assert_error, assert_goes_on, assert_panics, bits_of, grads_of,
        numbered, numbered_from, panic_of, plain, small, train_plain,
    };
    pub(crate) use burn::grad_clipping::GradientClippingConfig;
    pub(crate) use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup};
    pub(crate) use burn::nn::activation::ActivationConfig;
    pub(crate) use burn::nn::loss::CrossEntropyLossConfig;
    pub(crate) use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
    pub(crate) use burn::nn::{
        BatchNorm, BatchNormConfig, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm,
        LayerNormConfig, Linear, LinearConfig, RmsNormConfig,
    };
    pub(crate) use burn::optim::momentum::MomentumConfig;
    pub(crate) use burn::optim::{
        AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer,
        OptimizerRecord, SgdConfig,
    };
    pub(crate) use burn::store::ModuleRecord;
    pub(crate) use burn::tensor::activation::{gelu, relu};
    pub(crate) use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
    pub(crate) use burn_lean::{
        AdaptiveClippingConfig, AutoClipConfig, Budget, LossScalerConfig, NormClipping, Outcome,
        ReleaseError, ReleaseOptimizer, StepReport, WithGradientRelease, ZClipConfig, checkpoint,
    };
}

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

/// The [`bits`] after the last update of running statistics, which Burn keeps aside until somebody
/// asks.
pub(crate) fn synchronized<M: Module>(model: &M) -> Bits {
    let _ = model.valid();
    bits(model)
}

/// Numbers that look random, the same in every run: in [-1, 1), for this step.
pub(crate) fn numbers<const D: usize>(
    shape: [usize; D],
    step: usize,
    device: &Device,
) -> Tensor<D> {
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

/// A model with the same weights in every run. Not from the generator of the device, which tests
/// that run at the same time share.
pub(crate) fn seeded<M: Module>(device: &Device, make: impl FnOnce(&Device) -> M) -> M {
    struct Fill(usize);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            // Running statistics stay.
            if !param.is_require_grad() {
                return param;
            }
            self.0 += 1;
            param.map(|weight| {
                let numbers = numbers(weight.dims(), 31 * self.0, &weight.device());
                (numbers * 0.5).detach().require_grad()
            })
        }
    }
    make(device).map(&mut Fill(0))
}

/// Changes the numbers of each parameter, whatever its shape.
pub(crate) fn map_numbers<M: Module>(model: M, change: impl Fn(Tensor<1>) -> Tensor<1>) -> M {
    struct Each<F>(F);
    impl<F: Fn(Tensor<1>) -> Tensor<1>> ModuleMapper for Each<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| {
                let shape = value.dims();
                let flat = value.inner().reshape([-1]);
                self.0(flat).reshape(shape).autodiff().require_grad()
            })
        }
    }
    model.map(&mut Each(change))
}

/// A linear layer of zeros, to be [`seeded`]: to draw a large one takes longer than to train it.
pub(crate) fn zero_linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs);
    config.with_initializer(Initializer::Zeros).init(device)
}

/// Runs the rest of a test in a process of its own: it draws from the generator of a device, or
/// counts bytes.
pub(crate) fn alone(run: impl FnOnce()) {
    const VARIABLE: &str = "BURN_LEAN_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return run();
    }
    let thread = std::thread::current();
    let test = thread.name().expect("a test has a thread of its name");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("1 passed"), "there is no test {test}:\n{out}");
}

pub(crate) fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.01).init()
}

/// Calls `before` each time it steps a parameter.
#[derive(Clone)]
struct Watched<O, F> {
    optim: O,
    before: F,
}

impl<O: Optimizer, F: Fn() + Clone + Send + Sync + 'static> Optimizer for Watched<O, F> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        (self.before)();
        self.optim.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        O::to_device(state, device)
    }
}

/// AdamW that calls `before` each time it steps a parameter.
pub(crate) fn watched_adamw(before: impl Fn() + Clone + Send + Sync + 'static) -> ModuleOptimizer {
    watched(AdamWConfig::new().with_weight_decay(0.01).build(), before)
}

/// An optimizer that calls `before` each time it steps a parameter.
pub(crate) fn watched(
    optim: impl Optimizer + 'static,
    before: impl Fn() + Clone + Send + Sync + 'static,
) -> ModuleOptimizer {
    adamw().with_group(ParamGroup::all(), Watched { optim, before }, None)
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
    optim.backward(LR, loss(&model), model)
}

pub(crate) fn momentum() -> ModuleOptimizer {
    SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init()
}

/// An optimizer, and its name for messages.
pub(crate) type Named = (&'static str, fn() -> ModuleOptimizer);

pub(crate) const BOTH: &[Named] = &[("AdamW", adamw), ("momentum", momentum)];

/// The devices of the backends that need no graphics card.
pub(crate) fn devices() -> Vec<Device> {
    vec![
        flex(),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // Burn 0.22 deprecates NdArray, and 0.23 has it no more.
        Device::ndarray().autodiff(),
    ]
}

/// Fails with the first parameter that differs, and by how much.
pub(crate) fn assert_bits(found: &Bits, expected: &Bits, what: &str) {
    let paths = |bits: &Bits| {
        bits.iter()
            .map(|(path, _)| path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(paths(found), paths(expected), "{what}");
    for ((path, found), (_, expected)) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{what}: {path}");
        let pairs = || {
            found
                .iter()
                .zip(expected)
                .filter(|(found, expected)| found != expected)
        };
        let difference = |bits: (&u32, &u32)| f32::from_bits(*bits.0) - f32::from_bits(*bits.1);
        let largest = pairs().map(difference).map(f32::abs).fold(0.0, f32::max);
        let (count, all) = (pairs().count(), found.len());
        assert!(
            count == 0,
            "{what}: {count} of {all} numbers of {path} differ, by up to {largest:e}"
        );
    }
}

/// The largest difference, of the largest weight.
pub(crate) fn distance(found: &[(String, Vec<u32>)], expected: &[(String, Vec<u32>)]) -> f32 {
    let weights = |bits: &[(String, Vec<u32>)]| -> Vec<f32> {
        let bits = bits.iter().flat_map(|(_, bits)| bits);
        bits.map(|bits| f32::from_bits(*bits)).collect()
    };
    let (found, expected) = (weights(found), weights(expected));
    assert!(found.iter().all(|weight| weight.is_finite()), "{found:?}");
    let largest = expected.iter().map(|weight| weight.abs());
    let differences = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max) / largest.fold(0.0, f32::max)
}

/// Trains with plain Burn. The bits after each step, of which each must bring others.
pub(crate) fn plain_run<M: Module>(
    mut model: M,
    optim: &mut ModuleOptimizer,
    steps: Range<usize>,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> (M, Vec<Bits>) {
    let mut before = bits(&model);
    let mut run = Vec::new();
    for step in steps {
        model = plain_step(model, optim, |model| loss(model, step));
        let after = bits(&model);
        assert_ne!(
            after, before,
            "step {step} of plain Burn has changed nothing"
        );
        let mut numbers = after.iter().flat_map(|(_, bits)| bits);
        assert!(
            numbers.all(|bits| f32::from_bits(*bits).is_finite()),
            "it diverges in step {step}"
        );
        run.push(after.clone());
        before = after;
    }
    (model, run)
}

/// Trains with gradient release, and compares each step with `expected`. What each step did.
pub(crate) fn release_run<M: Module>(
    mut model: M,
    optim: &mut ReleaseOptimizer,
    steps: Range<usize>,
    loss: impl Fn(&M, usize) -> Tensor<1>,
    expected: &[Bits],
    what: &str,
) -> (M, Vec<StepReport>) {
    assert_eq!(steps.len(), expected.len());
    let mut reports = Vec::new();
    for (step, expected) in steps.zip(expected) {
        model = release_step(model, optim, |model| loss(model, step));
        assert_bits(
            &bits(&model),
            expected,
            &format!("{what}, after step {step}"),
        );
        reports.push(optim.last_step().expect("a step has run").clone());
    }
    (model, reports)
}

/// That every parameter was stepped inside backward. Unused ones were left alone.
pub(crate) fn assert_released(reports: &[StepReport], what: &str) {
    for (step, report) in reports.iter().enumerate() {
        let stepped = report.count(Outcome::Released);
        let all = stepped + report.count(Outcome::Unused);
        assert!(stepped > 0, "{what}, report {step}: {report:?}");
        assert_eq!(
            all,
            report.outcomes().count(),
            "{what}, report {step}: {report:?}"
        );
    }
}

/// Trains with plain Burn once for each optimizer, and compares with it a run with gradient release:
/// all bits, after each step. In each of them, every parameter was stepped inside backward.
pub(crate) fn both_ways<M: Module>(
    optims: &[Named],
    steps: usize,
    make: impl Fn() -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> Vec<Vec<StepReport>> {
    let mut runs = Vec::new();
    for (name, optim) in optims {
        let (_, expected) = plain_run(make(), &mut optim(), 0..steps, &loss);
        let mut release = optim().with_gradient_release();
        let (_, reports) = release_run(make(), &mut release, 0..steps, &loss, &expected, name);
        assert_released(&reports, name);
        runs.push(reports);
    }
    runs
}
