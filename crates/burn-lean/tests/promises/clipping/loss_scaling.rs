//! The scale of a loss.

use burn::tensor::FloatDType;
use burn_lean::LossScaler;

use super::by_hand::{clip_global, global_norm, gradients, scale};
use crate::harness::prelude::*;

const RATE: f64 = 0.05;
const STEPS: usize = 60;
const PARAMS: usize = 6;

/// Weights in fp32, cast to fp16 where the forward pass computes.
#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            layers: (0..3)
                .map(|_| LinearConfig::new(6, 6).init(device))
                .collect(),
        }
    }

    /// In fp32 from the mean on, as is usual. Every ninth step has large gradients.
    fn loss(&self, step: usize) -> Tensor<1> {
        let mut x = numbers([4, 6], step, &flex()).cast(FloatDType::F16);
        for layer in &self.layers {
            let bias = layer.bias.as_ref().unwrap().val().cast(FloatDType::F16);
            let weight = layer.weight.val().cast(FloatDType::F16);
            x = (x.matmul(weight) + bias.unsqueeze()).tanh();
        }
        let loss = x.cast(FloatDType::F32).square().mean();
        if step % 9 == 8 { loss * 1e4 } else { loss }
    }
}

fn net() -> Net {
    seeded(&flex(), Net::new)
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

/// What plain Burn comes to in a step: the weights, the scale, and whether it was skipped.
type Step = (Bits, f64, bool);

/// Plain Burn by hand: a scale that falls where a gradient has overflowed, and rises after four
/// steps.
fn by_hand(clipping: Option<f64>) -> Vec<Step> {
    let mut model = net();
    let mut optim = adam().init();
    let (mut current, mut good) = (1024.0, 0);
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let mut grads = gradients(&model, model.loss(step) * current);
        scale(&model, &mut grads, 1.0 / current);
        let has_overflown = !global_norm(&model, &grads).is_finite();
        let used = current;
        if has_overflown {
            (current, good) = (current * 0.5, 0);
        } else {
            if let Some(max_norm) = clipping {
                clip_global(&model, &mut grads, max_norm);
            }
            model = optim.step(RATE, model, grads);
            good += 1;
            if good == 4 {
                (current, good) = (current * 2.0, 0);
            }
        }
        steps.push((bits(&model), used, has_overflown));
    }
    steps
}

fn optim(scaler: &LossScaler) -> ReleaseOptimizer {
    adam()
        .init()
        .with_gradient_release()
        .with_loss_scaler(scaler.clone())
}

/// The scale falls and rises, and the steps that plain Burn skips are skipped as a whole: in two
/// passes, resumed in between, and of a model that is not armed.
#[test]
fn whole_steps_are_skipped_as_in_plain_burn() {
    for clipping in [None, Some(0.5)] {
        let expected = by_hand(clipping);
        assert!(expected.iter().any(|(_, scale, _)| *scale > 1024.0));
        assert!(expected.iter().filter(|(_, _, skipped)| *skipped).count() > 2);
        let make = |scaler: &LossScaler| match clipping {
            Some(max_norm) => {
                optim(scaler).with_norm_clipping(NormClipping::GlobalNorm { max_norm })
            }
            None => optim(scaler),
        };
        for is_armed in [true, false] {
            let mut scaler = scaler();
            let mut optim = make(&scaler).with_first_pass(FirstPass::Exact);
            let mut model = net();
            for (step, (weights, scale, has_overflown)) in expected.iter().enumerate() {
                if step == 31 {
                    let states = optim.to_record();
                    let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                    scaler = self::scaler();
                    let record = serde_json::from_str(&saved).unwrap();
                    optim = make(&scaler)
                        .with_first_pass(FirstPass::Exact)
                        .load_gradient_record(record)
                        .load_record(states);
                }
                let loss = |model: &Net| scaler.scale(model.loss(step));
                model = match is_armed {
                    true => optim.two_passes(RATE, model, loss).0,
                    false => {
                        let grads = gradients(&model, loss(&model));
                        optim.step(RATE, model, grads)
                    }
                };
                let what = format!("clipping {clipping:?}, armed {is_armed}, step {step}");
                assert_bits(&bits(&model), weights, &what);
                let report = optim.last_step().unwrap();
                assert_eq!(report.loss_scale(), Some(*scale), "{what}");
                let skipped = if *has_overflown { PARAMS } else { 0 };
                assert_eq!(report.count(Outcome::Skipped), skipped, "{what}");
                assert_eq!(report.grad_norm().is_none(), *has_overflown, "{what}");
            }
        }
    }
}

/// In one pass the parameters are skipped whose gradient has overflowed, and the report says which.
#[test]
fn one_pass_skips_parameters_and_says_so() {
    let scaler = LossScalerConfig::new().with_init_scale(1e8).init();
    let mut optim = optim(&scaler);
    let mut model = net();
    let mut partial = 0;
    for step in 0..40 {
        let before = bits(&model);
        let scale = scaler.current();
        model = optim.arm(RATE, model);
        let grads = gradients(&model, scaler.scale(model.loss(step)));
        model = optim.step(RATE, model, grads);
        let report = optim.last_step().unwrap();
        let skipped = report.count(Outcome::Skipped);
        let late = report.count(Outcome::ReleasedLate);
        let released = report.count(Outcome::Released) + late;
        assert_eq!(skipped + released, PARAMS);
        let after = bits(&model);
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert!(changed <= released);
        let falls = if skipped > 0 { 0.5 } else { 1.0 };
        assert_eq!(scaler.current(), scale * falls);
        partial += usize::from(skipped > 0 && released > 0);
    }
    assert!(partial > 0, "no step was partial");
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Released), PARAMS);
}

/// Refused before anything is stepped: of a model that is armed or not, and in either of two passes.
#[test]
fn a_loss_that_was_not_scaled_is_refused() {
    let scaler = scaler();
    let mut optim = optim(&scaler);
    let before = bits(&net());
    let unscaled = |model: &Net| gradients(model, model.loss(0));

    let model = net();
    let grads = unscaled(&model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);

    let model = optim.arm(RATE, refused.into_given().0);
    let grads = unscaled(&model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    let model = optim.disarm(refused.into_given().0);
    assert_bits(&bits(&model), &before, "refused");

    let none = GradientsParams::new;
    let refused = optim
        .try_two_passes(RATE, model, none(), |model| model.loss(0))
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    let model = refused.into_model();
    assert_bits(&bits(&model), &before, "refused");

    // By hand: the second pass forgets the scale.
    let model = optim.try_arm_to_measure(model, none()).unwrap();
    let grads = gradients(&model, scaler.scale(model.loss(0)));
    optim.try_measured(&model, grads).unwrap();
    let model = optim.arm(RATE, model);
    let grads = unscaled(&model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    let model = optim.disarm(refused.into_given().0);
    assert_bits(&bits(&model), &before, "refused");

    let (model, _) = optim.two_passes(RATE, model, |model| scaler.scale(model.loss(0)));
    assert_ne!(bits(&model), before);
}

/// The sums of the window come back, and the step can be taken after all.
#[test]
fn sums_survive_a_loss_that_was_not_scaled() {
    let run = |forgets: bool| {
        let scaler = scaler();
        let mut optim = optim(&scaler);
        let mut model = net();
        let mut sums = gradients(&model, scaler.scale(model.loss(1)));
        // Each step takes the scale anew.
        let nothing = gradients(&model, scaler.scale(model.loss(5) * 0.0));
        model = optim.step(RATE, model, nothing);
        if forgets {
            let before = bits(&model);
            model = optim.arm_accumulated(RATE, model, sums);
            let grads = gradients(&model, model.loss(2));
            let refused = optim.try_step(RATE, model, grads).unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::NotScaled);
            let refused = optim.try_disarm(refused.into_given().0).unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::Accumulated);
            (model, sums) = optim.try_disarm_accumulated(refused.into_model()).unwrap();
            assert_eq!(sums.len(), PARAMS);
            assert_bits(&bits(&model), &before, "refused");
        }
        model = optim.arm_accumulated(RATE, model, sums);
        let grads = gradients(&model, scaler.scale(model.loss(2)));
        bits(&optim.step(RATE, model, grads))
    };
    assert_bits(&run(true), &run(false), "after all");
}

/// No parameter was stepped: the sums of the window are there for the next try.
#[test]
fn sums_survive_an_overflow_of_all_gradients() {
    let scaler = scaler();
    let start = net();
    let sums = || gradients(&start, scaler.scale(start.loss(1)));
    let run = |overflows: Option<bool>| {
        let mut optim = optim(&scaler);
        let mut model = optim.arm_accumulated(RATE, start.clone(), sums());
        if let Some(is_disarmed) = overflows {
            let overflown = gradients(&model, scaler.scale(model.loss(3) * f64::INFINITY));
            assert_eq!(overflown.len(), PARAMS);
            if is_disarmed {
                let sums;
                (model, sums) = optim.try_disarm_accumulated(model).unwrap();
                assert_eq!(sums.len(), PARAMS);
                model = optim.arm_accumulated(RATE, model, sums);
            } else {
                model = optim.arm(RATE, model);
            }
        }
        let grads = gradients(&model, scaler.scale(model.loss(2)));
        bits(&optim.step(RATE, model, grads))
    };
    let expected = run(None);
    assert_bits(&run(Some(true)), &expected, "disarmed");
    assert_bits(&run(Some(false)), &expected, "armed again");
}

/// Passes by hand, of which the first finds an overflow.
#[test]
fn an_overflow_that_was_measured_is_stepped_over() {
    let scaler = LossScalerConfig::new().with_init_scale(1e30).init();
    let mut optim = optim(&scaler);
    let none = GradientsParams::new;
    let model = optim.try_arm_to_measure(net(), none()).unwrap();
    let grads = gradients(&model, scaler.scale(model.loss(0)));
    let norm = optim.try_measured(&model, grads).unwrap();
    assert!(!norm.is_finite());
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::Overflown);
    let model = optim.step(RATE, refused.into_model(), none());
    assert_eq!(optim.last_step().unwrap().count(Outcome::Skipped), PARAMS);
    assert_eq!(scaler.current(), 0.5e30);
    assert!(!optim.is_armed());
    assert_bits(&bits(&model), &bits(&net()), "skipped");
}

/// Two halves of a model, an optimizer each, in one backward pass: as with PyTorch, the scale is
/// updated once for both, and both steps take the same scale off.
#[test]
fn two_optimizers_share_a_scaler() {
    let scaler = LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2)
        .init();
    let sgd = || SgdConfig::new().init().with_gradient_release();
    let mut optims = [(); 2].map(|()| sgd().with_loss_scaler(scaler.clone()));
    let vector = || vec![Param::from_tensor(Tensor::<1>::zeros([3], &flex()))];
    let mut models = [(); 2].map(|()| vector());
    let mut scales = Vec::new();
    // The gradient of the second overflows in the third step.
    for (step, factor) in [1.0, 1.0, 1e38, 1.0].into_iter().enumerate() {
        let is_armed = step % 2 == 1;
        let [first, second] = models;
        let mut pair = [first, second];
        if is_armed {
            let [first, second] = pair;
            pair = [optims[0].arm(1.0, first), optims[1].arm(1.0, second)];
        }
        let sums = pair.each_ref().map(|model| model[0].val().sum());
        let [first, second] = sums;
        let mut grads = scaler.scale(first + second * factor).backward();
        let [first, second] = pair;
        let of_first = GradientsParams::from_module(&mut grads, &first);
        let of_second = GradientsParams::from_module(&mut grads, &second);
        let first = optims[0].step(1.0, first, of_first);
        let second = optims[1].step(1.0, second, of_second);
        models = [first, second];
        let used = optims
            .each_ref()
            .map(|optim| optim.last_step().unwrap().loss_scale());
        scales.push((used[0], used[1], scaler.current()));
    }
    let both = |used: f64, next: f64| (Some(used), Some(used), next);
    let expected = [
        both(1024.0, 1024.0),
        both(1024.0, 2048.0),
        both(2048.0, 1024.0),
        both(1024.0, 1024.0),
    ];
    assert_eq!(scales, expected);
    let weights = models.map(|model| model[0].val().mean().into_scalar::<f32>());
    assert_eq!(weights, [-4.0, -3.0]);

    // One that is gone is not awaited, nor is one that does not step: its turn ends with the other's
    // second step.
    let [mut first, _second] = optims;
    let model = vector();
    for step in 0..2 {
        let grads = gradients(&model, scaler.scale(model[0].val().sum()));
        first.step(1.0, model.clone(), grads);
        assert_eq!(scaler.current(), if step == 0 { 1024.0 } else { 2048.0 });
    }
    drop(_second);
    for _ in 0..2 {
        let grads = gradients(&model, scaler.scale(model[0].val().sum()));
        first.step(1.0, model.clone(), grads);
    }
    assert_eq!(scaler.current(), 4096.0);
}

/// One that accumulates beside one that steps in each micro-batch, whose gradient overflows.
#[test]
fn sums_of_several_scales_are_refused() {
    let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
    let sgd = || SgdConfig::new().init().with_gradient_release();
    let [mut often, mut rarely] = [(); 2].map(|()| sgd().with_loss_scaler(scaler.clone()));
    let vector = || vec![Param::from_tensor(Tensor::<1>::zeros([3], &flex()))];
    let first = |model: &Vec<Param<Tensor<1>>>| model[0].val().mean().into_scalar::<f32>();
    let scaled = |model: &Vec<Param<Tensor<1>>>, factor: f64| {
        gradients(model, scaler.scale(model[0].val().sum() * factor))
    };
    let (mut one, mut other) = (vector(), vector());
    let mut accumulator = ReleaseAccumulator::new();
    for factor in [1e38, 1.0, 1.0] {
        let grads = scaled(&one, factor);
        one = often.step(1.0, one, grads);
        other = accumulator.arm(other);
        let grads = scaled(&other, 1.0);
        accumulator.accumulate(&other, grads);
    }
    assert_eq!(scaler.current(), 512.0);
    other = rarely.arm_accumulated(1.0, other, accumulator.grads());
    let grads = scaled(&other, 1.0);
    let refused = rarely.try_step(1.0, other, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::SeveralScales);
    let refused = rarely.try_disarm_accumulated(refused.into_given().0);
    (other, _) = refused.unwrap();
    assert_eq!(first(&other), 0.0);

    // Without sums, its gradients are of one scale, whatever the other does.
    for factor in [1e38, 1.0] {
        let grads = scaled(&one, factor);
        one = often.step(1.0, one, grads);
    }
    other = rarely.arm(1.0, other);
    let grads = scaled(&other, 1.0);
    other = rarely.step(1.0, other, grads);
    assert_eq!(first(&other), -1.0);
    // The way out that the refusal names.
    let own = LossScalerConfig::new().init();
    rarely = rarely.with_loss_scaler(own.clone());
    let sums = gradients(&other, own.scale(other[0].val().sum()));
    other = rarely.arm_accumulated(1.0, other, sums);
    let grads = gradients(&other, own.scale(other[0].val().sum()));
    other = rarely.step(1.0, other, grads);
    assert_eq!(first(&other), -3.0);
}

/// A loss that is not finite at any scale, and gradients that never overflow: neither goes on for
/// ever.
#[test]
fn the_scale_has_a_floor_and_a_ceiling() {
    let scaler = LossScalerConfig::new().init();
    let mut optim = optim(&scaler);
    let before = bits(&net());
    let mut model = net();
    let mut skipped = 0;
    let error = loop {
        let grads = gradients(&model, scaler.scale(model.loss(0) * f32::NAN));
        match optim.try_step(RATE, model, grads) {
            Ok(stepped) => model = stepped,
            Err(refused) => {
                let error = refused.error().clone();
                model = refused.into_given().0;
                break error;
            }
        }
        skipped += 1;
        assert!(skipped < 50, "{:e}", scaler.current());
    };
    let least = 2.0_f64.powi(-24);
    assert_eq!(error, ReleaseError::LossScale { scale: least });
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), error);
    let model = refused.into_model();
    assert_bits(&bits(&model), &before, "refused");
    // The way out that it names.
    let new = LossScalerConfig::new().init();
    let mut optim = optim.with_loss_scaler(new.clone());
    let grads = gradients(&model, new.scale(model.loss(0)));
    assert_ne!(bits(&optim.step(RATE, model, grads)), before);

    let eager = LossScalerConfig::new()
        .with_growth_factor(1e12)
        .with_growth_interval(1)
        .init();
    let mut optim = SgdConfig::new().init().with_gradient_release();
    optim = optim.with_loss_scaler(eager.clone());
    let mut model = vec![Param::from_tensor(Tensor::<1>::zeros([3], &flex()))];
    for _ in 0..8 {
        let grads = gradients(&model, eager.scale(model[0].val().sum()));
        model = optim.step(1.0, model, grads);
        assert_eq!(optim.last_step().unwrap().count(Outcome::Skipped), 0);
    }
    assert_eq!(eager.current(), 2.0_f64.powi(126));
    let values = model[0].val().into_data();
    assert_eq!(values.iter::<f32>().next(), Some(-8.0));
}

/// A true gradient of 1e-9 is zero in fp16, scaled or not once the scale is taken off there.
#[test]
fn small_gradients_survive() {
    type Vector = Vec<Param<Tensor<1>>>;
    // The first weight after a step at rate one: minus its gradient.
    let stepped = |mut optim: ReleaseOptimizer, loss: &dyn Fn(Tensor<1>) -> Tensor<1>| -> f32 {
        let model: Vector = vec![Param::from_tensor(Tensor::zeros([3], &flex()))];
        let model = optim.arm(1.0, model);
        let half = model[0].val().cast(FloatDType::F16);
        let grads = gradients(&model, loss(half.cast(FloatDType::F32).sum() * 1e-9));
        let model = optim.step(1.0, model, grads);
        let values = model[0].val().into_data();
        values.iter::<f32>().next().unwrap()
    };
    let sgd = || SgdConfig::new().init().with_gradient_release();
    assert_eq!(stepped(sgd(), &|loss| loss), 0.0);
    let scaler = LossScalerConfig::new().init();
    let scaled = sgd().with_loss_scaler(scaler.clone());
    let found = stepped(scaled, &|loss| scaler.scale(loss));
    assert!((found / -1e-9 - 1.0).abs() < 1e-3, "{found}");
}

/// bf16 has the range of fp32: a scale that is a power of two changes nothing, and the norm is that
/// of 32 bits.
#[test]
fn weights_in_bf16_are_stepped_as_without_a_scale() {
    let run = |scaler: Option<LossScaler>| {
        let mut optim = adam().init().with_gradient_release().with_grad_norm();
        if let Some(scaler) = &scaler {
            optim = optim.with_loss_scaler(scaler.clone());
        }
        let weight = numbers::<2>([4, 5], 3, &flex()).cast(FloatDType::BF16);
        let mut model = vec![Param::from_tensor(weight.detach().require_grad())];
        let mut norms = Vec::new();
        for step in 0..5 {
            model = optim.arm(RATE, model);
            let x = numbers([3, 4], step, &flex()).cast(FloatDType::BF16);
            let x = x.matmul(model[0].val()).cast(FloatDType::F32);
            let loss = x.square().sum();
            let grads = match &scaler {
                Some(scaler) => gradients(&model, scaler.scale(loss)),
                None => gradients(&model, loss),
            };
            model = optim.step(RATE, model, grads);
            norms.push(optim.last_step().unwrap().grad_norm().unwrap());
        }
        (bits(&model), norms)
    };
    assert_eq!(run(Some(LossScalerConfig::new().init())), run(None));
}

/// Gradients of fp16 weights are fp16, where the scale cannot be taken off.
#[test]
fn weights_in_fp16_are_refused() {
    let scaler = scaler();
    let mut optim = optim(&scaler);
    let model = map_numbers(net(), |weight| weight.cast(FloatDType::F16));
    let refused = optim.try_arm(RATE, model).unwrap_err();
    let expected = ReleaseError::HalfPrecision {
        path: "layers.0.weight".into(),
    };
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
}

/// Of a window that goes on from a record, nothing was scaled in this run.
#[test]
fn sums_alone_are_not_unscaled() {
    let (mut optim, mut other) = (optim(&scaler()), optim(&scaler()));
    let model = net();
    let sums = gradients(&model, model.loss(0));
    let model = optim.arm_accumulated(RATE, model, sums);
    let refused = optim.try_step(RATE, model, GradientsParams::new());
    let refused = refused.unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    let model = refused.into_model();
    let (model, sums) = optim.try_disarm_accumulated(model).unwrap();
    assert_eq!(sums.len(), PARAMS);
    // Nor are those that an optimizer that is gone has left.
    let model = optim.arm_accumulated(RATE, model, sums);
    drop(optim);
    let refused = other.try_step(RATE, model, GradientsParams::new());
    assert_eq!(*refused.unwrap_err().error(), ReleaseError::NotScaled);
}
