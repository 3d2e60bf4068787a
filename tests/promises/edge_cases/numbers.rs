//! Other precisions, and values that are no numbers.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_gradient_release::WithGradientRelease;

use super::{Inner, P, R, loss, start};
use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{self, RATE, assert_all_released};
use crate::harness::{Recipe, Weights, noise};

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
    let start = start::<Mixed>();
    let plain = run::plain::<Mixed, _, P>(&start, &AdamConfig::new(), 8);
    let (release, reports) = run::release::<Mixed, _, R>(&start, &AdamConfig::new(), 8);
    for (step, (release, plain)) in release.steps.iter().zip(&plain.steps).enumerate() {
        release.assert_same(plain, step);
        assert_all_released(&reports[step], 3);
    }
    release.steps[7].assert_moved(&release.first, "mixed");
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
    x.square().mean()
}

#[test]
fn weights_in_16_bits() {
    let start = start::<Mlp>();
    let recipe = SgdConfig::new();
    let mut plain = start.model::<Mlp, P>().map(&mut ToHalf);
    let mut plain_optim = recipe.make::<P, _>();
    let mut model = start.model::<Mlp, R>().map(&mut ToHalf);
    let mut optim = recipe.make::<R, _>().with_gradient_release();
    let first = Weights::of::<R, _>(&model);
    for step in 0..6 {
        let grads = GradientsParams::from_grads(half_loss(&plain, step).backward(), &plain);
        plain = plain_optim.step(1.0, plain, grads);
        model = optim.arm(1.0, model);
        let grads = GradientsParams::from_grads(half_loss(&model, step).backward(), &model);
        model = optim.step(1.0, model, grads);
        assert_eq!(model.layers[0].weight.dtype(), DType::from(half()));
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        assert_all_released(&optim.last_step().expect("a step"), super::PARAMETERS);
    }
    Weights::of::<R, _>(&model).assert_moved(&first, "16 bits");
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

fn same_when_poisoned(poison: f32) {
    let start = start::<Mlp>();
    let mut plain = start.model::<Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, _>().with_gradient_release();
    for step in 0..4 {
        let grads = GradientsParams::from_grads(poisoned(&plain, step, poison).backward(), &plain);
        plain = plain_optim.step(RATE, plain, grads);
        model = optim.arm(RATE, model);
        let grads = GradientsParams::from_grads(poisoned(&model, step, poison).backward(), &model);
        model = optim.step(RATE, model, grads);
        let now = Weights::of::<R, _>(&model);
        now.assert_same(
            &Weights::of::<P, _>(&plain),
            format!("{poison} at step {step}"),
        );
        assert_eq!(now.finite(), step == 0);
        assert_all_released(&optim.last_step().expect("a step"), super::PARAMETERS);
    }
}

#[test]
fn nan_half_way() {
    same_when_poisoned(f32::NAN);
}

#[test]
fn infinity_half_way() {
    same_when_poisoned(f32::INFINITY);
}
