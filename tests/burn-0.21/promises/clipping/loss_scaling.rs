//! The scale of a loss.

use burn::backend::flex::FlexDevice;
use burn::optim::MultiGradientsParams;
use burn::tensor::FloatDType;
use burn::tensor::backend::DeviceOps;
use burn_gradient_release::{GradientRecord, LossScaler, LossScalerConfig};

use super::by_hand::{each, global_norm, scale, squared_norm};
use crate::harness::prelude::*;

type Optim = ReleaseOptimizer<Adam, MlpModel<R>, R>;

const RATE: f64 = 0.05;
const STEPS: u64 = 60;

/// Weights in fp32, cast to fp16 where the forward pass computes; in fp32 from the mean on, as is
/// usual. Every ninth step has large gradients.
fn loss<B: AutodiffBackend>(model: &MlpModel<B>, step: u64) -> Tensor<B, 1> {
    let device = Default::default();
    let mut x = noise::<B, 2>(step, [4, 8], &device).cast(FloatDType::F16);
    for layer in &model.layers {
        let bias = layer.bias.as_ref().unwrap().val().cast(FloatDType::F16);
        let weight = layer.weight.val().cast(FloatDType::F16);
        x = (x.matmul(weight) + bias.unsqueeze()).tanh();
    }
    let loss = x.cast(FloatDType::F32).square().mean();
    if step % 9 == 8 { loss * 1e4 } else { loss }
}

fn scaler() -> LossScaler {
    LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(4)
        .init()
}

fn adam() -> AdamConfig {
    AdamConfig::new().with_epsilon(1e-3)
}

fn optim(scaler: &LossScaler) -> Optim {
    let optim = adam().init().with_gradient_release();
    optim.with_loss_scaler(scaler.clone())
}

/// What plain Burn did in a step by hand: a scale that falls where a gradient has overflown, and
/// rises after four steps.
struct Expected {
    weights: Weights,
    scale: f64,
    has_overflown: bool,
}

impl Expected {
    fn of_run(start: &Start, clipping: Option<f64>) -> Vec<Self> {
        let mut model = start.model::<Mlp, P>();
        let mut optim = adam().init();
        let (mut next_scale, mut good) = (1024.0, 0);
        let step = |step| {
            let used = next_scale;
            let mut grads = gradients(&model, loss(&model, step) * used);
            scale::<P, _>(&model, &mut grads, 1.0 / used);
            let (mut squared, mut has_overflown) = (0.0, false);
            each::<P, _>(&model, &mut grads, |gradient| {
                let values = gradient.grad.to_data();
                has_overflown |= values.iter::<f32>().any(|value| !value.is_finite());
                squared += squared_norm(gradient.grad);
            });
            if has_overflown {
                (next_scale, good) = (used * 0.5, 0);
            } else {
                let coefficient = clipping.map_or(1.0, |max| max / (squared.sqrt() + 1e-6));
                if coefficient < 1.0 {
                    scale::<P, _>(&model, &mut grads, coefficient);
                }
                model = optim.step(RATE, model.clone(), grads);
                good += 1;
                if good == 4 {
                    (next_scale, good) = (used * 2.0, 0);
                }
            }
            Self {
                weights: Weights::of(&model),
                scale: used,
                has_overflown,
            }
        };
        let steps: Vec<_> = (0..STEPS).map(step).collect();
        assert!(
            steps.iter().any(|step| step.scale > 1024.0),
            "the scale never rose"
        );
        assert!(steps.iter().filter(|step| step.has_overflown).count() > 2);
        steps
    }

    #[track_caller]
    fn check(&self, optim: &Optim, model: &MlpModel<R>, context: &str) {
        Weights::of(model).assert_same(&self.weights, context);
        let report = optim.last_step().unwrap();
        assert_eq!(report.loss_scale(), Some(self.scale), "{context}");
        let skipped = if self.has_overflown { 6 } else { 0 };
        assert_eq!(report.count(Outcome::Skipped), skipped, "{context}");
        assert_eq!(
            report.grad_norm().is_none(),
            self.has_overflown,
            "{context}"
        );
    }
}

/// Scale falls and rises, and the steps that plain Burn skips are skipped as a whole, in two passes
/// and in an ordinary step. Resumed in between.
#[test]
fn steps_are_skipped_that_plain_burn_skips() {
    let start = Start::new::<Mlp>(Size::Small);
    for (clipping, is_ordinary) in [(None, false), (Some(0.5), false), (None, true)] {
        let new = |scaler: &LossScaler| match clipping {
            Some(max_norm) => {
                optim(scaler).with_norm_clipping(NormClipping::GlobalNorm { max_norm })
            }
            None => optim(scaler),
        };
        let mut scaler = scaler();
        let mut optim = new(&scaler);
        let mut model = start.model::<Mlp, R>();
        for (step, expected) in Expected::of_run(&start, clipping).iter().enumerate() {
            if step == 31 {
                let states = optim.to_record();
                let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                scaler = self::scaler();
                let record: GradientRecord = serde_json::from_str(&saved).unwrap();
                optim = new(&scaler).load_gradient_record(record);
                optim = optim.load_record(states);
            }
            let scaled = |model: &_| scaler.scale(loss(model, step as u64));
            if is_ordinary {
                let loss = scaled(&model);
                model = ordinary_step(RATE, model, &mut optim, loss);
            } else {
                (model, _) = optim.two_passes(RATE, model, scaled);
            }
            let context = format!("clipped to {clipping:?}, ordinary {is_ordinary}, step {step}");
            expected.check(&optim, &model, &context);
        }
    }
}

/// In one pass the parameters are skipped whose gradient has overflown, and the report says which.
#[test]
fn one_pass_skips_parameters_and_says_so() {
    let scaler = LossScalerConfig::new().with_init_scale(1e8).init();
    let mut optim = optim(&scaler);
    let mut model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let mut partial = 0;
    for step in 0..40 {
        let before = Weights::of(&model);
        let scale = scaler.current();
        model = armed_step(RATE, model, &mut optim, |model| {
            scaler.scale(loss(model, step))
        });
        let report = optim.last_step().unwrap();
        let [skipped, released] =
            [Outcome::Skipped, Outcome::Released].map(|outcome| report.count(outcome));
        assert_eq!(skipped + released, 6);
        assert!(Weights::of(&model).changed(&before) <= released);
        let expected = if skipped > 0 { scale / 2.0 } else { scale };
        assert_eq!(scaler.current(), expected);
        partial += usize::from(skipped > 0 && released > 0);
    }
    assert!(partial > 0, "no step was partial");
    assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 6);
    let mut grads = gradients(&model, loss(&model, 0));
    assert!(global_norm::<R, _>(&model, &mut grads).is_finite());
}

#[test]
fn a_loss_that_was_not_scaled_is_refused() {
    use ReleaseError::NotScaled;

    let scaler = scaler();
    let mut optim = optim(&scaler);
    let mut model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let before = Weights::of(&model);
    let unscaled = |model: &MlpModel<R>| gradients(model, loss(model, 0));

    let grads = unscaled(&model);
    (model, _) = refused!(optim.try_step(RATE, model, grads), NotScaled);

    // In one pass, too; and until the model is disarmed.
    model = optim.arm(RATE, model);
    let grads = unscaled(&model);
    (model, _) = refused!(optim.try_step(RATE, model, grads), NotScaled);
    (model, _) = refused!(optim.try_arm(RATE, model), NotScaled);
    model = optim.disarm(model);
    Weights::of(&model).assert_same(&before, "refused");
    assert!(optim.to_record().is_empty());

    let sums = GradientsParams::new();
    let stepped = optim.try_two_passes(RATE, model, sums, |model| loss(model, 0));
    (model, _) = refused!(stepped, NotScaled);
    Weights::of(&model).assert_same(&before, "refused");

    (model, _) = optim.two_passes(RATE, model, |model| scaler.scale(loss(model, 0)));
    Weights::of(&model).assert_moved(&before, "scaled");

    // Passes by hand, of which the second one forgets the scale.
    model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let grads = gradients(&model, scaler.scale(loss(&model, 0)));
    optim.try_measured(&model, grads).unwrap();
    model = optim.arm(RATE, model);
    let grads = unscaled(&model);
    (model, _) = refused!(optim.try_step(RATE, model, grads), NotScaled);

    // Nor are sums unscaled of which nothing was scaled here.
    model = optim.disarm(model);
    let sums = unscaled(&model);
    model = optim.arm_accumulated(RATE, model, sums);
    refused!(
        optim.try_step(RATE, model, GradientsParams::new()),
        NotScaled
    );
}

type Vectors = Vec<Param<Tensor<R, 1>>>;

fn vector() -> Vectors {
    vec![Param::from_tensor(Tensor::zeros([3], &Default::default()))]
}

fn sgd(scaler: &LossScaler) -> ReleaseOptimizer<Sgd<Flex>, Vectors, R> {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_loss_scaler(scaler.clone())
}

fn first(model: &Vectors) -> f32 {
    model[0].val().into_data().iter::<f32>().next().unwrap()
}

#[test]
fn a_step_without_gradients_says_nothing_about_the_scale() {
    let scaler = LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2)
        .init();
    let mut optim = sgd(&scaler);
    let mut model = vector();
    let mut scales = Vec::new();
    for step in 0..4 {
        if step == 2 {
            model = optim.arm(1.0, model);
        }
        let mut grads = GradientsParams::new();
        if step % 3 == 0 {
            let mut all = scaler.scale(model[0].val().sum()).backward();
            grads = GradientsParams::from_module(&mut all, &model);
        }
        model = optim.step(1.0, model, grads);
        scales.push((optim.last_step().unwrap().loss_scale(), scaler.current()));
    }
    let used = Some(1024.0);
    let expected = [
        (used, 1024.0),
        (None, 1024.0),
        (None, 1024.0),
        (used, 2048.0),
    ];
    assert_eq!(scales, expected);
    assert_eq!(first(&model), -2.0);
}

/// One that accumulates beside one that steps in each micro-batch, whose gradient overflows.
#[test]
fn sums_of_several_scales_are_refused() {
    let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
    let [mut often, mut rarely] = [(); 2].map(|()| sgd(&scaler));
    let [mut one, mut other] = [(); 2].map(|()| vector());
    let scaled = |model: &Vectors, factor: f64| {
        let loss = scaler.scale(model[0].val().sum() * factor);
        gradients(model, loss)
    };
    let mut accumulator = ReleaseAccumulator::new();
    for factor in [1e38, 1.0, 1.0] {
        let grads = scaled(&one, factor);
        one = often.step(1.0, one, grads);
        other = accumulator.arm(other);
        accumulator.accumulate(&other, scaled(&other, 1.0));
    }
    other = rarely.arm_accumulated(1.0, other, accumulator.grads());
    let grads = scaled(&other, 1.0);
    (other, _) = refused!(
        rarely.try_step(1.0, other, grads),
        ReleaseError::SeveralScales
    );
    assert_eq!(scaler.current(), 512.0);
    other = rarely.disarm(other);
    assert_eq!(first(&other), 0.0);
    // Without sums, its gradients are of one scale, whatever the other does.
    other = rarely.arm(1.0, other);
    let grads = gradients(&other, scaler.scale(other[0].val().sum()));
    other = rarely.step(1.0, other, grads);
    assert_eq!(first(&other), -1.0);
    // The way out that it names.
    let own = LossScalerConfig::new().init();
    rarely = rarely.with_loss_scaler(own.clone());
    let loss = own.scale(other[0].val().sum());
    other = ordinary_step(1.0, other, &mut rarely, loss);
    assert_eq!(first(&other), -2.0);
}

/// A clone is an optimizer of its own: the scale changes once for both.
#[test]
fn a_clone_shares_the_scaler() {
    let scaler = LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2)
        .init();
    let mut optim = sgd(&scaler);
    let mut clone = optim.clone();
    let models = [(); 2].map(|()| vector());
    let mut scales = Vec::new();
    for _ in 0..2 {
        let [one, other] = models.clone();
        // The gradient of the first overflows, and its step comes before the other's backward.
        let losses = [(&one, 1e38), (&other, 1.0)];
        let [of_one, of_other] =
            losses.map(|(model, factor)| scaler.scale(model[0].val().sum() * factor));
        ordinary_step(1.0, one, &mut optim, of_one);
        let other = ordinary_step(1.0, other, &mut clone, of_other);
        assert_eq!(first(&other), -1.0);
        scales.push(scaler.current());
    }
    assert_eq!(scales, [512.0, 256.0]);
}

/// The report of a step that a measuring pass has found an overflow in.
#[test]
fn a_skipped_step_knows_its_groups() {
    let scaler = LossScalerConfig::new().init();
    let model = vec![vector().remove(0), vector().remove(0)];
    let ids = [0, 1].map(|index: usize| model[index].id);
    let [frozen, slow] = ids.map(|id| ParamGroup::from_ids([id]));
    let optim = sgd(&scaler).with_group(frozen, GroupOptions::new().frozen());
    let mut optim = optim.with_group(slow, GroupOptions::new().with_lr_factor(0.5));
    optim.two_passes(1.0, model, |model| {
        scaler.scale((model[0].val().sum() + model[1].val().sum()) * 1e38)
    });
    let report = optim.last_step().unwrap();
    let expected = [(ids[0], Outcome::Frozen), (ids[1], Outcome::Skipped)];
    assert_eq!(report.outcomes().collect::<Vec<_>>(), expected);
    assert_eq!(report.learning_rate_of(ids[1]), 0.5);
}

#[test]
fn gradients_of_several_devices_are_refused() {
    let scaler = LossScalerConfig::new().init();
    let mut optim = sgd(&scaler);
    for is_armed in [false, true] {
        let model = match is_armed {
            false => vector(),
            true => optim.arm(1.0, vector()),
        };
        let grads = vec![(GradientsParams::new(), FlexDevice.id())];
        let grads = MultiGradientsParams { grads };
        let refused = optim.try_step_multi(1.0, model, grads).unwrap_err();
        let (stepped, armed) = (0, usize::from(is_armed));
        assert_eq!(
            *refused.error(),
            ReleaseError::MultiDevice { stepped, armed }
        );
        let text = refused.to_string();
        assert!(text.contains("a loss scaler"), "{text}");
        assert!(text.contains("call `step`"), "{text}");
    }
}

#[test]
fn gradients_of_two_types_have_one_norm() {
    let mut model = vector();
    let wide = Tensor::<R, 1>::zeros([3], &Default::default()).cast(FloatDType::F64);
    model.push(Param::from_tensor(wide));
    let optim = SgdConfig::new().init().with_gradient_release();
    let mut optim = optim.with_grad_norm();
    let loss = model[0].val().sum() + model[1].val().sum().cast(FloatDType::F32);
    let model = ordinary_step(1.0, model, &mut optim, loss);
    let norm = optim.last_step().unwrap().grad_norm().unwrap();
    assert!((norm - 6.0_f64.sqrt()).abs() < 1e-6, "{norm}");
    assert_eq!(first(&model), -1.0);
}

/// A loss that is not finite at any scale does not go on for ever.
#[test]
fn the_least_scale_is_refused() {
    let least = 2.0_f64.powi(-24);
    let scaler = LossScalerConfig::new().with_init_scale(2.0 * least).init();
    let mut optim = sgd(&scaler);
    let model = vector();
    let loss = scaler.scale(model[0].val().sum() * f32::NAN);
    let model = ordinary_step(1.0, model, &mut optim, loss);
    let model = refuses(&mut optim, model, |error| {
        *error == ReleaseError::LossScale { scale: least }
    });
    assert_eq!(first(&model), 0.0);
    // The way out that it names.
    let new = LossScalerConfig::new().init();
    let mut optim = optim.with_loss_scaler(new.clone());
    let loss = new.scale(model[0].val().sum());
    assert_eq!(first(&ordinary_step(1.0, model, &mut optim, loss)), -1.0);
}

/// Each call that begins or ends a step is refused with this error.
fn refuses(
    optim: &mut ReleaseOptimizer<Sgd<Flex>, Vectors, R>,
    model: Vectors,
    is_told: impl Fn(&ReleaseError) -> bool,
) -> Vectors {
    let (none, before) = (GradientsParams::new, |_: &_| unreachable!("refused before"));
    let (model, ()) = refused!(optim.try_arm(1.0, model), error if is_told(error));
    let armed = optim.try_arm_to_measure(model, none());
    let (model, _) = refused!(armed, error if is_told(error));
    let stepped = optim.try_two_passes(1.0, model, none(), before);
    let (model, _) = refused!(stepped, error if is_told(error));
    let stepped = optim.try_step(1.0, model, none());
    refused!(stepped, error if is_told(error)).0
}

/// Gradients of fp16 weights are fp16, where the scale cannot be taken off.
#[test]
fn weights_in_fp16_are_refused() {
    let mut optim = sgd(&scaler());
    let half = Tensor::<R, 1>::zeros([3], &Default::default()).cast(FloatDType::F16);
    let model = refuses(&mut optim, vec![Param::from_tensor(half)], |error| {
        *error == ReleaseError::HalfPrecision { path: "0".into() }
    });
    // What is not trained has no gradient.
    optim.try_arm(RATE, model.no_grad()).unwrap();
}
