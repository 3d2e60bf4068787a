//! The scale of a loss.

use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Tensor, TensorData};
use burn_gradient_release::{
    GradientRecord, LossScaler, LossScalerConfig, NormClipping, Outcome, ReleaseError,
    ReleaseOptimizer, WithGradientRelease,
};

use super::by_hand::{each, global_norm};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain<Flex>;
type R = Release<Flex>;

const RATE: f64 = 0.05;
const STEPS: u64 = 60;

/// Weights in fp32, cast to fp16 where the forward pass computes.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    layers: Vec<Linear<B>>,
}

struct ToHalf;

impl<B: AutodiffBackend> ModuleMapper<B> for ToHalf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let half = Tensor::from_inner(tensor.inner().cast(FloatDType::F16));
        Param::from_mapped_value(id, half.require_grad(), mapper)
    }
}

struct Load(std::vec::IntoIter<TensorData>);

impl<B: Backend> ModuleMapper<B> for Load {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (_, tensor, mapper) = param.consume();
        let data = self.0.next().unwrap();
        // The same in every copy.
        let id = ParamId::from(self.0.len() as u64 + 1);
        let value = Tensor::from_data(data, (&tensor.device(), tensor.dtype()));
        Param::from_mapped_value(id, value.require_grad(), mapper)
    }
}

impl<B: AutodiffBackend> Net<B> {
    /// The same weights on every backend.
    fn new() -> Self {
        let device = Default::default();
        let layers = (0..3)
            .map(|_| LinearConfig::new(6, 6).init(&device))
            .collect();
        let mut seed = 0;
        let mut values = Vec::new();
        for _ in 0..3 {
            for shape in [[6, 6], [1, 6]] {
                seed += 1;
                let value = noise::<Flex, 2>(seed, shape, &Default::default()) * 0.4;
                let value = if shape[0] == 1 {
                    value.reshape([6]).into_data()
                } else {
                    value.into_data()
                };
                values.push(value);
            }
        }
        Net { layers }.map(&mut Load(values.into_iter()))
    }

    /// In fp32 from the mean on, as is usual. Every ninth step has large gradients.
    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let mut x = noise::<B, 2>(step, [4, 6], &device).cast(FloatDType::F16);
        for layer in &self.layers {
            let bias = layer.bias.as_ref().unwrap().val().cast(FloatDType::F16);
            let weight = layer.weight.val().cast(FloatDType::F16);
            x = (x.matmul(weight) + bias.unsqueeze()).tanh();
        }
        let loss = x.cast(FloatDType::F32).square().mean();
        if step % 9 == 8 { loss * 1e4 } else { loss }
    }
}

fn scaler() -> LossScaler {
    LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(4)
        .init()
}

/// Plain Burn by hand: a scale that falls where a gradient has overflown, and rises after four
/// steps.
fn by_hand(clipping: Option<f64>) -> Vec<(Weights, f64, bool)> {
    let mut model = Net::<P>::new();
    let mut optim = AdamConfig::new().with_epsilon(1e-3).init();
    let (mut scale, mut good) = (1024.0, 0);
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let loss = model.loss(step) * scale;
        let mut grads = GradientsParams::from_grads(loss.backward(), &model);
        let mut has_overflown = false;
        each::<P, _>(&model, &mut grads, |gradient| {
            *gradient.grad = gradient.grad.clone() * (1.0 / scale);
            let values = gradient.grad.clone().into_data().convert::<f32>();
            has_overflown |= values.iter::<f32>().any(|value| !value.is_finite());
        });
        let used = scale;
        if has_overflown {
            (scale, good) = (scale * 0.5, 0);
        } else {
            if let Some(max_norm) = clipping {
                let mut sum = 0.0;
                each::<P, _>(&model, &mut grads, |gradient| {
                    let grad = gradient.grad.clone().cast(FloatDType::F32);
                    sum += super::by_hand::squared_norm(&grad);
                });
                let coefficient = max_norm / (sum.sqrt() + 1e-6);
                if coefficient < 1.0 {
                    each::<P, _>(&model, &mut grads, |gradient| {
                        *gradient.grad = gradient.grad.clone() * coefficient;
                    });
                }
            }
            model = optim.step(RATE, model, grads);
            good += 1;
            if good == 4 {
                (scale, good) = (scale * 2.0, 0);
            }
        }
        steps.push((Weights::of::<P, _>(&model), used, has_overflown));
    }
    steps
}

fn optim(scaler: &LossScaler) -> ReleaseOptimizer<burn::optim::Adam, Net<R>, R> {
    let optim = AdamConfig::new()
        .with_epsilon(1e-3)
        .init()
        .with_gradient_release();
    optim.with_loss_scaler(scaler.clone())
}

fn check(
    optim: &ReleaseOptimizer<burn::optim::Adam, Net<R>, R>,
    model: &Net<R>,
    expected: &(Weights, f64, bool),
    step: u64,
) {
    let (weights, scale, has_overflown) = expected;
    Weights::of::<R, _>(model).assert_same(weights, format!("step {step}"));
    let report = optim.last_step().unwrap();
    assert_eq!(report.loss_scale(), Some(*scale), "step {step}");
    let skipped = report.count(Outcome::Skipped);
    assert_eq!(skipped, if *has_overflown { 6 } else { 0 }, "step {step}");
    assert_eq!(report.grad_norm().is_none(), *has_overflown, "step {step}");
}

/// Scale falls and rises, and the steps that plain Burn skips are skipped as a whole. Resumed in
/// between.
#[test]
fn two_passes_skip_what_plain_burn_skips() {
    for clipping in [None, Some(0.5)] {
        let expected = by_hand(clipping);
        let scales: Vec<_> = expected.iter().map(|(_, scale, _)| *scale).collect();
        assert!(
            scales.iter().any(|scale| *scale > 1024.0),
            "the scale never rose: {scales:?}"
        );
        assert!(expected.iter().filter(|(_, _, skipped)| *skipped).count() > 2);
        let with_clipping = |optim: ReleaseOptimizer<_, _, _>| match clipping {
            Some(max_norm) => optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm }),
            None => optim,
        };

        let mut scaler = scaler();
        let mut optim = with_clipping(optim(&scaler));
        let mut model = Net::<R>::new();
        for step in 0..STEPS {
            if step == 31 {
                let states = optim.to_record();
                let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                scaler = self::scaler();
                let record: GradientRecord = serde_json::from_str(&saved).unwrap();
                optim = with_clipping(self::optim(&scaler)).load_gradient_record(record);
                optim = optim.load_record(states);
            }
            (model, _) = optim.two_passes(RATE, model, |model| scaler.scale(model.loss(step)));
            check(&optim, &model, &expected[step as usize], step);
        }
    }
}

#[test]
fn an_ordinary_step_skips_what_plain_burn_skips() {
    let expected = by_hand(None);
    let scaler = scaler();
    let mut optim = optim(&scaler);
    let mut model = Net::<R>::new();
    for step in 0..STEPS {
        let loss = scaler.scale(model.loss(step));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        check(&optim, &model, &expected[step as usize], step);
    }
}

/// In one pass the parameters are skipped whose gradient has overflown, and the report says which.
#[test]
fn one_pass_skips_parameters_and_says_so() {
    let scaler = LossScalerConfig::new().with_init_scale(1e8).init();
    let mut optim = optim(&scaler);
    let mut model = Net::<R>::new();
    let mut partial = 0;
    for step in 0..40 {
        let before = Weights::of::<R, _>(&model);
        let scale = scaler.current();
        model = optim.arm(RATE, model);
        let loss = scaler.scale(model.loss(step));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        let report = optim.last_step().unwrap();
        let (skipped, released) = (
            report.count(Outcome::Skipped),
            report.count(Outcome::Released),
        );
        assert_eq!(skipped + released, 6);
        assert!(Weights::of::<R, _>(&model).changed(&before) <= released);
        assert_eq!(
            scaler.current(),
            if skipped > 0 { scale / 2.0 } else { scale }
        );
        partial += usize::from(skipped > 0 && released > 0);
    }
    assert!(partial > 0, "no step was partial");
    assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 6);
    let mut grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    assert!(global_norm::<R, _>(&model, &mut grads).is_finite());
}

#[test]
fn a_loss_that_was_not_scaled_is_refused() {
    let scaler = scaler();
    let optim = SgdConfig::new().init::<R, Net<R>>().with_gradient_release();
    let mut optim = optim.with_loss_scaler(scaler.clone());
    let mut model = Net::<R>::new();
    let before = Weights::of::<R, _>(&model);

    let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    (model, _) = refused.into_given();

    let refused = optim
        .try_two_passes(RATE, model, GradientsParams::new(), |model| model.loss(0))
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    model = refused.into_model();
    Weights::of::<R, _>(&model).assert_same(&before, "refused");

    (model, _) = optim.two_passes(RATE, model, |model| scaler.scale(model.loss(0)));
    Weights::of::<R, _>(&model).assert_moved(&before, "scaled");
}

/// Passes by hand, of which the second one forgets the scale.
#[test]
fn both_passes_have_to_be_scaled() {
    let scaler = scaler();
    let mut optim = optim(&scaler);
    let model = optim
        .try_arm_to_measure(Net::<R>::new(), GradientsParams::new())
        .unwrap();
    let grads = scaler.scale(model.loss(0)).backward();
    let grads = GradientsParams::from_grads(grads, &model);
    optim.try_measured(&model, grads).unwrap();
    let model = optim.arm(RATE, model);
    let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
}

/// Gradients of fp16 weights are fp16, where the scale cannot be taken off.
#[test]
fn weights_in_fp16_are_refused() {
    let scaler = scaler();
    let mut optim = optim(&scaler);
    let model = Net::<R>::new().map(&mut ToHalf);
    let expected = ReleaseError::HalfPrecision {
        path: "layers.0.weight".into(),
    };
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), expected);
    let refused = optim
        .try_two_passes(RATE, refused.into_model(), GradientsParams::new(), |_| {
            unreachable!("refused before")
        })
        .unwrap_err();
    assert_eq!(*refused.error(), expected);
    let (model, _) = refused.into_given();
    let refused = optim
        .try_step(RATE, model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(*refused.error(), expected);
    let (model, _) = refused.into_given();
    let refused = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(*refused.error(), expected);

    // What is not trained has no gradient.
    let model = refused.into_model().no_grad();
    optim.try_arm(RATE, model).unwrap();
}
