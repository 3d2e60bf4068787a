//! Other precisions, and values that are no numbers.

use burn::tensor::{DType, FloatDType};

use super::{Inner, P, PARAMETERS, R, TOLERANCE, adam, loss, start};
use crate::harness::prelude::*;

/// A precision of 16 bits that the backend computes in.
fn half() -> FloatDType {
    let device = Default::default();
    let computes =
        |dtype: &FloatDType| <Inner as Backend>::supports_dtype(&device, (*dtype).into());
    let halves = [FloatDType::BF16, FloatDType::F16];
    halves.into_iter().find(computes).expect("one of the two")
}

/// Weights in f32, arithmetic in 16 bits.
#[derive(Module, Debug)]
struct MixedModel<B: Backend> {
    weights: Vec<Param<Tensor<B, 2>>>,
}

struct Mixed;

impl Scenario for Mixed {
    type Model<B: AutodiffBackend> = MixedModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> MixedModel<B> {
        let weights = (0..3)
            .map(|seed| Param::from_tensor(noise(seed, [8, 8], device)))
            .collect();
        MixedModel { weights }
    }

    fn loss<B: AutodiffBackend>(model: &MixedModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let mut x = noise::<B, 2>(step, [4, 8], &B::Device::default()).cast(half());
        for weight in &model.weights {
            let weight = weight.val();
            x = x.matmul(weight.cast(half())).tanh();
        }
        assert_eq!(x.dtype(), DType::from(half()));
        x.cast(FloatDType::F32).square().mean()
    }
}

#[test]
fn f32_weights_with_arithmetic_in_16_bits() {
    let recipe = AdamConfig::new();
    let start = start::<Mixed>();
    let (_, reports) = run::compare::<Mixed, _, Inner, NoCheckpointing>(&start, &recipe, 8, 0.0);
    assert_run_released(&reports, 3);
}

/// Casts every parameter; Burn's recorders keep f32 only.
struct ToHalf;

impl<B: AutodiffBackend> ModuleMapper<B> for ToHalf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = Tensor::<B, D>::from_inner(tensor.inner().cast(half()));
        Param::from_mapped_value(id, tensor.require_grad(), mapper)
    }
}

fn half_loss<B: AutodiffBackend>(model: &MlpModel<B>, step: u64) -> Tensor<B, 1> {
    let mut x = noise::<B, 2>(step, [4, 8], &B::Device::default()).cast(half());
    for layer in &model.layers {
        x = layer.forward(x).tanh();
    }
    // Of a size that 16 bits do not round off from the weights.
    x.square().mean() * 100.0
}

#[test]
fn weights_in_16_bits() {
    let start = start::<Mlp>();
    let plain = start.model::<Mlp, P>().map(&mut ToHalf);
    let expected = run::ordinary(plain, &mut SgdConfig::new().init(), 6, &half_loss);
    let model = start.model::<Mlp, R>().map(&mut ToHalf);
    assert_eq!(model.layers[0].weight.dtype(), DType::from(half()));
    let mut optim = SgdConfig::new().init().with_gradient_release();
    let (given, reports) = run::armed(model, &mut optim, 6, &half_loss);
    run::assert_near_steps(&given.steps, &expected.steps, TOLERANCE, "16 bits");
    given.steps[5].assert_moved(&given.first, "16 bits");
    assert_run_released(&reports, PARAMETERS);
}

/// Turns bad at the second of four steps.
fn poisoned<B: AutodiffBackend>(model: &MlpModel<B>, step: u64, poison: f32) -> Tensor<B, 1> {
    let loss = loss(model, step);
    if step == 1 {
        loss.mul_scalar(poison)
    } else {
        loss
    }
}

#[test]
fn nan_and_infinity_half_way() {
    for poison in [f32::NAN, f32::INFINITY] {
        let start = start::<Mlp>();
        let loss = |model: &_, step| poisoned::<P>(model, step, poison);
        let plain = start.model::<Mlp, P>();
        let expected = run::ordinary(plain, &mut AdamConfig::new().init(), 4, &loss);
        let loss = |model: &_, step| poisoned::<R>(model, step, poison);
        let (given, reports) = run::armed(start.model::<Mlp, R>(), &mut adam(), 4, &loss);
        for (step, (given, expected)) in given.steps.iter().zip(&expected.steps).enumerate() {
            // To the last bit: NaN is near nothing.
            given.assert_same(expected, format!("{poison} at step {step}"));
            assert_eq!(given.finite(), step == 0);
        }
        assert_run_released(&reports, PARAMETERS);
    }
}
