//! The rules that need no second pass, against a plain reference over 200 steps with planted
//! spikes.

use std::collections::HashMap;

use burn::backend::Flex;
use burn::module::ParamId;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::{Tensor, TensorData, backend::AutodiffBackend};
use burn_gradient_release::{
    AdaptiveClippingConfig, AutoClipConfig, GradientRecord, NormClipping, WithGradientRelease,
    ZClipConfig,
};

use super::by_hand::{Gradient, each};
use crate::harness::models::{Cnn, Regression, Scenario, Size};
use crate::harness::run::{Start, assert_all_released, trainable};
use crate::harness::{Plain, Release, Weights};

type P = Plain<Flex>;
type R = Release<Flex>;

const STEPS: u64 = 200;

/// The reference is in 64 bits where Burn is in 32: after 200 steps a few units in the last place.
const TOLERANCE: f32 = 2e-5;

fn spike(step: u64) -> f64 {
    if step % 17 == 13 { 40.0 } else { 1.0 }
}

fn loss<S: Scenario, B: AutodiffBackend>(model: &S::Model<B>, step: u64) -> Tensor<B, 1> {
    S::loss::<B>(model, Size::Small, step % 5) * spike(step)
}

/// Trains with the rule, and with plain Burn and its `reference`.
fn equals<S: Scenario>(
    clipping: NormClipping,
    rate: f64,
    mut reference: impl FnMut(&S::Model<P>, &mut GradientsParams),
) {
    let start = Start::new::<S>(Size::Small);
    let mut plain = start.model::<S, P>();
    let mut plain_optim = SgdConfig::new().init();
    let mut unclipped = start.model::<S, P>();
    let mut unclipped_optim = SgdConfig::new().init();
    let mut model = start.model::<S, R>();
    let optim = SgdConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(clipping);
    let parameters = trainable::<R, _>(&model);
    for step in 0..STEPS {
        let mut grads = GradientsParams::from_grads(loss::<S, P>(&plain, step).backward(), &plain);
        reference(&plain, &mut grads);
        plain = plain_optim.step(rate, plain, grads);

        let grads = loss::<S, P>(&unclipped, step).backward();
        let grads = GradientsParams::from_grads(grads, &unclipped);
        unclipped = unclipped_optim.step(rate, unclipped, grads);

        // Half way, a resume with a record that was saved.
        if step == STEPS / 2 {
            let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
            let record: GradientRecord = serde_json::from_str(&saved).unwrap();
            let fresh = SgdConfig::new().init().with_gradient_release();
            optim = fresh
                .with_norm_clipping(clipping)
                .load_gradient_record(record);
        }
        model = optim.arm(rate, model);
        let grads = loss::<S, R>(&model, step).backward();
        let grads = GradientsParams::from_grads(grads, &model);
        assert!(grads.is_empty());
        model = optim.step(rate, model, grads);
        assert_all_released(&optim.last_step().unwrap(), parameters);
        let context = format!("{clipping:?}, step {step}");
        Weights::of::<R, _>(&model).assert_near(&Weights::of::<P, _>(&plain), TOLERANCE, context);
    }
    assert!(
        Weights::of::<P, _>(&plain).distance(&Weights::of::<P, _>(&unclipped)) > 1e-3,
        "the rule has done nothing"
    );
}

fn values(tensor: &Tensor<Flex, 1>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

fn set(gradient: &mut Gradient<'_, P>, values: Vec<f64>) {
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    let data = TensorData::new(values, [gradient.grad.dims()[0]]);
    *gradient.grad = Tensor::from_data(data, &Default::default());
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Of every element, which unit it belongs to: a column of a matrix, a first index of more
/// dimensions.
fn unit(rank: usize, shape: &[usize], index: usize) -> usize {
    match rank {
        1 => 0,
        2 => index % shape[1],
        _ => index / shape[1..].iter().product::<usize>(),
    }
}

fn clip_units(model: &impl burn::module::Module<P>, grads: &mut GradientsParams, factor: f64) {
    each::<P, _>(model, grads, |mut gradient| {
        let (weight, mut grad) = (values(&gradient.weight), values(gradient.grad));
        let units: Vec<usize> = (0..grad.len())
            .map(|index| unit(gradient.rank, &gradient.shape, index))
            .collect();
        for this in 0..=*units.iter().max().unwrap() {
            let inside: Vec<_> = (0..grad.len())
                .filter(|index| units[*index] == this)
                .collect();
            let allowed = factor * norm(inside.iter().map(|index| weight[*index])).max(1e-3);
            let norm = norm(inside.iter().map(|index| grad[*index]));
            if norm > allowed {
                inside
                    .iter()
                    .for_each(|index| grad[*index] *= allowed / norm);
            }
        }
        set(&mut gradient, grad);
    });
}

#[test]
fn adaptive_clipping_is_that_of_the_paper() {
    let config = AdaptiveClippingConfig::new().with_clip_factor(0.05);
    let clipping = NormClipping::Adaptive(config);
    equals::<Regression>(clipping, 0.1, |model, grads| clip_units(model, grads, 0.05));
    equals::<Cnn>(clipping, 0.02, |model, grads| {
        clip_units(model, grads, 0.05)
    });
}

#[test]
fn auto_clip_is_that_of_the_paper() {
    let config = AutoClipConfig::new().with_percentile(25.0);
    let mut histories: HashMap<ParamId, Vec<f64>> = HashMap::new();
    equals::<Regression>(NormClipping::AutoClip(config), 0.1, |model, grads| {
        each::<P, _>(model, grads, |mut gradient| {
            let mut grad = values(gradient.grad);
            let norm = norm(grad.iter().copied());
            let history = histories.entry(gradient.id).or_default();
            history.push(norm);
            let mut sorted = history.clone();
            sorted.sort_by(f64::total_cmp);
            let place = 0.25 * (sorted.len() - 1) as f64;
            let below = sorted[place as usize];
            let above = sorted[(place as usize + 1).min(sorted.len() - 1)];
            let allowed = below + (above - below) * place.fract();
            if allowed / (norm + 1e-6) < 1.0 {
                grad.iter_mut()
                    .for_each(|grad| *grad *= allowed / (norm + 1e-6));
            }
            set(&mut gradient, grad);
        });
    });
}

/// Spikes that ruin the weights without clipping, and with no rule.
#[test]
fn who_survives_spikes() {
    type S = Regression;
    let start = Start::new::<S>(Size::Small);
    let train = |clipping: Option<NormClipping>| {
        let mut model = start.model::<S, R>();
        let mut optim = SgdConfig::new().init().with_gradient_release();
        if let Some(clipping) = clipping {
            optim = optim.with_norm_clipping(clipping);
        }
        let loss = |model: &_, step: u64| {
            let factor = if step % 40 == 39 { 1e6 } else { 1.0 };
            S::loss::<R>(model, Size::Small, step % 5) * factor
        };
        for step in 0..STEPS {
            if clipping.is_some_and(|clipping| clipping.needs_two_passes()) {
                (model, _) = optim.two_passes(0.1, model, |model| loss(model, step));
            } else {
                model = optim.arm(0.1, model);
                let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
                model = optim.step(0.1, model, grads);
            }
        }
        let losses = (0..5).map(|step| S::loss::<R>(&model, Size::Small, step));
        let losses: f32 = losses.map(|loss| loss.into_scalar()).sum();
        losses / 5.0
    };
    let first: f32 = (0..5)
        .map(|step| S::loss::<R>(&start.model::<S, R>(), Size::Small, step).into_scalar())
        .sum::<f32>()
        / 5.0;
    let zclip = ZClipConfig::new();
    let survivors = [
        NormClipping::GlobalNorm { max_norm: 1.0 },
        NormClipping::ZClip(zclip),
        NormClipping::Adaptive(AdaptiveClippingConfig::new().with_clip_factor(0.1)),
        NormClipping::AutoClip(AutoClipConfig::new()),
    ];
    for clipping in survivors {
        let loss = train(Some(clipping));
        assert!(loss < first, "{clipping:?}: {loss}, at first {first}");
    }
    // tanh has no gradient any more where the weights are too large.
    let loss = train(None);
    assert!(loss.is_nan() || loss >= first, "{loss}, at first {first}");
}
