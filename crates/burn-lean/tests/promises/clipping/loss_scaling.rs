//! The scale of a loss.

use burn::tensor::FloatDType;
use burn_lean::{LossScaler, backward};

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

type Vector = Vec<Param<Tensor<1>>>;

fn vector() -> Vector {
    vec![Param::from_tensor(Tensor::zeros([3], &flex()))]
}

fn first_weight(model: &Vector) -> f32 {
    model[0].val().into_data().iter::<f32>().next().unwrap()
}

fn sgd() -> ReleaseOptimizer {
    SgdConfig::new().init().with_gradient_release()
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
/// passes, resumed in between, and in an ordinary step.
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
        for in_two_passes in [true, false] {
            let mut scaler = scaler();
            let mut optim = make(&scaler);
            let mut model = net();
            for (step, (weights, scale, has_overflown)) in expected.iter().enumerate() {
                if step == 31 {
                    let states = optim.to_record();
                    let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                    scaler = self::scaler();
                    let record = serde_json::from_str(&saved).unwrap();
                    optim = make(&scaler)
                        .load_gradient_record(record)
                        .load_record(states);
                }
                let loss = |model: &Net| scaler.scale(model.loss(step));
                model = match in_two_passes {
                    true => optim.two_passes(RATE, model, loss).0,
                    false => {
                        let grads = gradients(&model, loss(&model));
                        optim.step(RATE, model, grads)
                    }
                };
                let what =
                    format!("clipping {clipping:?}, two passes {in_two_passes}, step {step}");
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
        model = optim.backward(RATE, scaler.scale(model.loss(step)), model);
        let report = optim.last_step().unwrap();
        let skipped = report.count(Outcome::Skipped);
        let released = report.count(Outcome::Released);
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

/// Refused before anything is stepped, in each call and in either of two passes: the sums of the
/// window stay, and the step can be taken after all.
#[test]
fn a_loss_that_was_not_scaled_is_refused() {
    let run = |forgets: bool| {
        let scaler = scaler();
        let mut optim = optim(&scaler);
        let mut model = net();
        let loss = |model: &Net, batch| scaler.scale(model.loss(batch));
        // Each step takes the scale anew.
        model = optim.backward(RATE, loss(&model, 5) * 0.0, model);
        for batch in [1, 3] {
            if forgets {
                let refused = optim.try_accumulate(model.loss(batch), &model);
                let refused = refused.unwrap_err();
                assert_eq!(*refused.error(), ReleaseError::NotScaled);
                assert!(refused.into_given().1.is_some());
            }
            optim.accumulate(loss(&model, batch), &model);
        }
        let before = bits(&model);
        // By hand: the second pass forgets the scale.
        optim.measure(loss(&model, 2), &model);
        if forgets {
            let refused = optim.try_backward(RATE, model.loss(2), model).unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::NotScaled);
            let (again, loss) = refused.into_given();
            assert!(loss.is_some());
            let grads = gradients(&again, again.loss(2));
            let refused = optim.try_step(RATE, again, grads).unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::NotScaled);
            let (again, grads) = refused.into_given();
            assert_eq!(grads.len(), PARAMS);
            let forward = |model: &Net| model.loss(2);
            let refused = optim.try_two_passes(RATE, again, forward).unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::NotScaled);
            model = refused.into_model();
            assert_bits(&bits(&model), &before, "refused");
        }
        bits(&optim.backward(RATE, loss(&model, 2), model))
    };
    assert_bits(&run(true), &run(false), "after all");
}

/// Of a window that goes on from a record, nothing was scaled in this run.
#[test]
fn sums_alone_are_not_unscaled() {
    let (scaler, model) = (scaler(), net());
    let mut before = optim(&scaler);
    before.accumulate(scaler.scale(model.loss(0)), &model);
    let mut optim = optim(&self::scaler());
    let sums = before.sums_to_record(&model);
    optim.load_sums(&model, sums).unwrap();
    let none = GradientsParams::new();
    let refused = optim.try_step(RATE, model, none).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotScaled);
    assert!(optim.has_sums());
}

/// A step that overflows as a whole ends its window, whichever call finds that: the sums are gone,
/// the scale falls, and no weight changes. So it is with PyTorch.
#[test]
fn an_overflow_ends_the_window() {
    type Step = fn(&mut ReleaseOptimizer, Net, Tensor<1>) -> Net;
    let ways: [Step; 4] = [
        |optim, model, loss| optim.backward(RATE, loss, model),
        |optim, model, loss| {
            let grads = gradients(&model, loss);
            optim.step(RATE, model, grads)
        },
        |optim, model, loss| {
            assert!(!optim.measure(loss, &model).is_finite());
            model
        },
        |optim, model, loss| {
            let (model, value) = optim.two_passes(RATE, model, |_| loss.clone());
            assert!(!value.into_scalar::<f32>().is_finite());
            model
        },
    ];
    for step in ways {
        let scaler = scaler();
        let mut optim = optim(&scaler);
        let mut model = net();
        optim.accumulate(scaler.scale(model.loss(1)), &model);
        let overflown = scaler.scale(model.loss(3) * f64::INFINITY);
        model = step(&mut optim, model, overflown);
        let report = optim.last_step().unwrap();
        assert_eq!(report.count(Outcome::Skipped), PARAMS);
        assert_eq!((report.in_place(), report.grad_norm()), (0, None));
        assert_eq!(report.loss_scale(), Some(1024.0));
        assert_eq!(scaler.current(), 512.0);
        assert!(!optim.has_sums());
        assert_bits(&bits(&model), &bits(&net()), "skipped");
        // As if nothing had been.
        model = optim.backward(RATE, scaler.scale(model.loss(2)), model);
        let expected = plain_step_of(&mut adam().init(), net(), |model| model.loss(2));
        assert_bits(&bits(&model), &bits(&expected), "after it");
    }
}

fn plain_step_of(optim: &mut ModuleOptimizer, model: Net, loss: impl Fn(&Net) -> Tensor<1>) -> Net {
    let mut grads = gradients(&model, loss(&model) * 512.0);
    scale(&model, &mut grads, 1.0 / 512.0);
    optim.step(RATE, model, grads)
}

/// Two halves of a model, an optimizer each, in one backward pass: as with PyTorch, the scale is
/// updated once for both, and both steps take the same scale off.
#[test]
fn two_optimizers_share_a_scaler() {
    let scaler = LossScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2)
        .init();
    let mut optims = [(); 2].map(|()| sgd().with_loss_scaler(scaler.clone()));
    let mut models = [(); 2].map(|()| vector());
    let mut scales = Vec::new();
    // The gradient of the second overflows in the third step.
    for (step, factor) in [1.0, 1.0, 1e38, 1.0].into_iter().enumerate() {
        let [first, second] = models;
        let loss = scaler.scale(first[0].val().sum() + second[0].val().sum() * factor);
        let [one, other] = &mut optims;
        models = if step % 2 == 0 {
            let parts = (one.stepping(1.0, first), other.stepping(1.0, second));
            let ((first, second), _) = backward(loss, parts);
            [first, second]
        } else {
            let mut grads = loss.backward();
            let of_first = GradientsParams::from_module(&mut grads, &first);
            let of_second = GradientsParams::from_module(&mut grads, &second);
            let first = one.step(1.0, first, of_first);
            [first, other.step(1.0, second, of_second)]
        };
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
    assert_eq!(models.each_ref().map(first_weight), [-4.0, -3.0]);

    // One that is gone is not awaited, nor is one that does not step: its turn ends with the other's
    // second step.
    let [mut first, second] = optims;
    let model = vector();
    let mut step = || {
        let grads = gradients(&model, scaler.scale(model[0].val().sum()));
        first.step(1.0, model.clone(), grads);
        scaler.current()
    };
    assert_eq!([step(), step()], [1024.0, 2048.0]);
    drop(second);
    assert_eq!([step(), step()][1], 4096.0);
}

/// One that accumulates beside one that steps in each micro-batch, whose gradient overflows; and a
/// scaler that is set within a window.
#[test]
fn sums_of_several_scales_are_refused() {
    let loss = |model: &Vector, scaler: &LossScaler, factor: f64| {
        scaler.scale(model[0].val().sum() * factor)
    };
    let shared = LossScalerConfig::new().with_init_scale(1024.0).init();
    let [mut often, mut rarely] = [(); 2].map(|()| sgd().with_loss_scaler(shared.clone()));
    let (mut one, mut other) = (vector(), vector());
    let mut refused = Vec::new();
    for factor in [1e38, 1.0, 1.0] {
        one = often.backward(1.0, loss(&one, &shared, factor), one);
        let accumulated = rarely.try_accumulate(loss(&other, &shared, 1.0), &other);
        refused.push(accumulated.is_err());
    }
    assert_eq!(shared.current(), 512.0);
    assert_eq!(refused, [false, true, true]);
    let last = loss(&other, &shared, 1.0);
    let refused = rarely.try_backward(1.0, last, other).unwrap_err();
    assert_error!(refused.error(), SeveralScales, "`take_sums`");
    other = refused.into_model();
    // A window that begins anew is of one scale.
    assert_eq!(rarely.take_sums(&other).len(), 1);
    rarely.accumulate(loss(&other, &shared, 1.0), &other);
    other = rarely.backward(1.0, loss(&other, &shared, 1.0), other);
    assert_eq!(first_weight(&other), -2.0);

    for before in [None, Some(shared)] {
        let mut optim = sgd();
        if let Some(scaler) = &before {
            optim = optim.with_loss_scaler(scaler.clone());
        }
        let unscaled = other[0].val().sum();
        let first = before.map_or(unscaled, |scaler| loss(&other, &scaler, 1.0));
        optim.accumulate(first, &other);
        let own = LossScalerConfig::new().init();
        let mut optim = optim.with_loss_scaler(own.clone());
        let refused = optim.try_accumulate(loss(&other, &own, 1.0), &other);
        let refused = refused.unwrap_err();
        assert_error!(refused.error(), SeveralScales, "`take_sums`");
        let none = GradientsParams::new();
        let refused = optim.try_step(1.0, other.clone(), none).unwrap_err();
        assert_error!(refused.error(), SeveralScales);
        optim.take_sums(&other);
        optim.accumulate(loss(&other, &own, 1.0), &other);
        let stepped = optim.backward(1.0, loss(&other, &own, 1.0), other.clone());
        assert_eq!(first_weight(&stepped), -4.0);
    }
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
        let loss = scaler.scale(model.loss(0) * f32::NAN);
        match optim.try_backward(RATE, loss, model) {
            Ok(stepped) => model = stepped,
            Err(refused) => {
                let error = refused.error().clone();
                model = refused.into_model();
                break error;
            }
        }
        skipped += 1;
        assert!(skipped < 50, "{:e}", scaler.current());
    };
    let least = 2.0_f64.powi(-24);
    assert_eq!(error, ReleaseError::LossScale { scale: least });
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
    let mut optim = sgd().with_loss_scaler(eager.clone());
    let mut model = vector();
    for _ in 0..8 {
        let grads = gradients(&model, eager.scale(model[0].val().sum()));
        model = optim.step(1.0, model, grads);
        assert_eq!(optim.last_step().unwrap().count(Outcome::Skipped), 0);
    }
    assert_eq!(eager.current(), 2.0_f64.powi(126));
    assert_eq!(first_weight(&model), -8.0);
}

/// A true gradient of 1e-9 is zero in fp16, scaled or not once the scale is taken off there.
#[test]
fn small_gradients_survive() {
    type Vector = Vec<Param<Tensor<1>>>;
    // The first weight after a step at rate one: minus its gradient.
    let stepped = |mut optim: ReleaseOptimizer, loss: &dyn Fn(Tensor<1>) -> Tensor<1>| -> f32 {
        let model: Vector = vec![Param::from_tensor(Tensor::zeros([3], &flex()))];
        let half = model[0].val().cast(FloatDType::F16);
        let loss = loss(half.cast(FloatDType::F32).sum() * 1e-9);
        let model = optim.backward(1.0, loss, model);
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
            let x = numbers([3, 4], step, &flex()).cast(FloatDType::BF16);
            let x = x.matmul(model[0].val()).cast(FloatDType::F32);
            let loss = x.square().sum();
            let loss = match &scaler {
                Some(scaler) => scaler.scale(loss),
                None => loss,
            };
            model = optim.backward(RATE, loss, model);
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
    let loss = scaler.scale(model.layers[0].weight.val().sum());
    let refused = optim.try_backward(RATE, loss, model).unwrap_err();
    assert_error!(refused.error(), NotSteppable, "`with_f32_gradients`");
    let (model, _) = refused.into_given();
    let forward = |_: &Net| unreachable!("refused before");
    let refused = optim.try_two_passes(RATE, model, forward).unwrap_err();
    assert_error!(refused.error(), NotSteppable, "layers.0.weight");
    let (model, none) = (refused.into_model(), GradientsParams::new());
    let refused = optim.try_step(RATE, model, none).unwrap_err();
    assert_error!(refused.error(), NotSteppable, "in fp16");
}
