//! The rules that need no second pass, against a reference in 64 bits over 200 steps with spikes.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Tensor;
use burn_lean::{
    AdaptiveClippingConfig, AutoClipConfig, NormClipping, Outcome, ReleaseOptimizer,
    WithGradientRelease, ZClipConfig,
};

use super::by_hand::{Gradient, each};
use crate::harness::{Bits, alone, assert_bits, bits, flex, seeded};
use crate::memory::{deep, forward, peak_of};
use crate::small::{PARAMS, Small, small};

const STEPS: usize = 200;
const RATE: f64 = 0.05;

/// The reference is in 64 bits where Burn is in 32: after 200 steps a few units in the last place.
const TOLERANCE: f32 = 2e-5;

fn loss(model: &Small, step: usize) -> Tensor<1> {
    let spike = if step % 17 == 13 { 40.0 } else { 1.0 };
    model.loss(step % 5) * spike
}

fn optim(clipping: NormClipping) -> ReleaseOptimizer {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(clipping)
}

fn distance(one: &Bits, other: &Bits) -> f32 {
    let values = |bits: &Bits| {
        let bits = bits.iter().flat_map(|(_, bits)| bits);
        bits.map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>()
    };
    let (one, other) = (values(one), values(other));
    let differences = one
        .iter()
        .zip(&other)
        .map(|(one, other)| (one - other).abs());
    differences.fold(0.0, f32::max)
}

/// Trains armed, unarmed, and with plain Burn and the `reference`.
fn equals(clipping: NormClipping, mut reference: impl FnMut(&Small, &mut GradientsParams)) {
    let (mut plain, mut plain_optim) = (small(), SgdConfig::new().init());
    let (mut unclipped, mut unclipped_optim) = (small(), SgdConfig::new().init());
    let (mut ordinary, mut ordinary_optim) = (small(), optim(clipping));
    let (mut model, mut release) = (small(), optim(clipping));
    let grads =
        |model: &Small, step| GradientsParams::from_grads(loss(model, step).backward(), model);
    for step in 0..STEPS {
        let mut clipped = grads(&plain, step);
        reference(&plain, &mut clipped);
        plain = plain_optim.step(RATE, plain, clipped);
        let free = grads(&unclipped, step);
        unclipped = unclipped_optim.step(RATE, unclipped, free);

        // Half way, a resume with a record that was saved.
        if step == STEPS / 2 {
            let saved = serde_json::to_string(&release.gradient_record()).unwrap();
            let record = serde_json::from_str(&saved).unwrap();
            release = optim(clipping).load_gradient_record(record);
        }
        model = release.arm(RATE, model);
        let armed = grads(&model, step);
        model = release.step(RATE, model, armed);
        let report = release.last_step().unwrap();
        // Of an optimizer without states the first pass is late, and so is the first after a
        // resume.
        let late = if step % (STEPS / 2) == 0 { PARAMS } else { 0 };
        assert_eq!(report.count(Outcome::ReleasedLate), late);
        assert_eq!(report.count(Outcome::Released), PARAMS - late);
        let distance = distance(&bits(&model), &bits(&plain));
        assert!(
            distance < TOLERANCE,
            "{clipping:?}, step {step}: {distance:e}"
        );

        let own = grads(&ordinary, step);
        ordinary = ordinary_optim.step(RATE, ordinary, own);
        assert_bits(&bits(&ordinary), &bits(&model), &format!("unarmed, {step}"));
    }
    assert!(
        distance(&bits(&plain), &bits(&unclipped)) > 1e-3,
        "the rule has done nothing"
    );
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Of every element, which unit it belongs to: a column of a matrix, the whole of a vector.
fn unit(shape: &[usize], index: usize) -> usize {
    match shape {
        [_] => 0,
        [_, columns] => index % columns,
        _ => unreachable!("this model has no others"),
    }
}

fn clip_units(gradient: &mut Gradient, factor: f64) {
    let count = gradient.values.len();
    let units: Vec<usize> = (0..count)
        .map(|index| unit(&gradient.shape, index))
        .collect();
    for this in 0..=*units.iter().max().unwrap() {
        let inside: Vec<_> = (0..count).filter(|index| units[*index] == this).collect();
        let weight = norm(inside.iter().map(|index| gradient.weight[*index]));
        let allowed = factor * weight.max(1e-3);
        let norm = norm(inside.iter().map(|index| gradient.values[*index]));
        if norm > allowed {
            let values = &mut gradient.values;
            inside
                .iter()
                .for_each(|index| values[*index] *= allowed / norm);
        }
    }
}

#[test]
fn adaptive_clipping_is_that_of_the_paper() {
    let config = AdaptiveClippingConfig::new().with_clip_factor(0.05);
    equals(NormClipping::Adaptive(config), |model, grads| {
        each(model, grads, |gradient| clip_units(gradient, 0.05));
    });
}

#[test]
fn auto_clip_is_that_of_the_paper() {
    let config = AutoClipConfig::new().with_percentile(25.0);
    let mut histories: HashMap<ParamId, Vec<f64>> = HashMap::new();
    equals(NormClipping::AutoClip(config), |model, grads| {
        each(model, grads, |gradient| {
            let norm = norm(gradient.values.iter().copied());
            let history = histories.entry(gradient.id).or_default();
            history.push(norm);
            let mut sorted = history.clone();
            sorted.sort_by(f64::total_cmp);
            let place = 0.25 * (sorted.len() - 1) as f64;
            let below = sorted[place as usize];
            let above = sorted[(place as usize + 1).min(sorted.len() - 1)];
            let allowed = below + (above - below) * place.fract();
            let factor = allowed / (norm + 1e-6);
            if factor < 1.0 {
                gradient.values.iter_mut().for_each(|grad| *grad *= factor);
            }
        });
    });
}

/// Spikes that ruin the weights without clipping.
#[test]
fn who_survives_spikes() {
    let train = |clipping: Option<NormClipping>| {
        let mut model = small();
        let mut optim = SgdConfig::new().init().with_gradient_release();
        if let Some(clipping) = clipping {
            optim = optim.with_norm_clipping(clipping);
        }
        let loss = |model: &Small, step: usize| {
            let factor = if step % 40 == 39 { 1e6 } else { 1.0 };
            model.loss(step % 5) * factor
        };
        for step in 0..STEPS {
            if optim.needs_two_passes() {
                (model, _) = optim.two_passes(RATE, model, |model| loss(model, step));
            } else {
                model = optim.arm(RATE, model);
                let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
                model = optim.step(RATE, model, grads);
            }
        }
        losses(&model)
    };
    let first = losses(&small());
    let survivors = [
        NormClipping::GlobalNorm { max_norm: 1.0 },
        NormClipping::ZClip(ZClipConfig::new()),
        NormClipping::Adaptive(AdaptiveClippingConfig::new().with_clip_factor(0.1)),
        NormClipping::AutoClip(AutoClipConfig::new()),
    ];
    for clipping in survivors {
        let loss = train(Some(clipping));
        assert!(loss < first, "{clipping:?}: {loss}, at first {first}");
    }
    let loss = train(None);
    assert!(loss.is_nan() || loss >= first, "{loss}, at first {first}");
}

fn losses(model: &Small) -> f32 {
    (0..5)
        .map(|step| model.loss(step).into_scalar::<f32>())
        .sum()
}

/// A gradient of infinite norm, and one that is no number: the history survives them, in JSON too.
#[test]
fn auto_clip_remembers_infinite_norms() {
    let config = AutoClipConfig::new().with_percentile(50.0);
    let run = |resumes: bool| {
        let mut optim = optim(NormClipping::AutoClip(config));
        let mut model = small();
        for step in 0..12usize {
            let factor = [1.0, 1e20, 1e-20][step.saturating_sub(7).min(2)];
            if resumes {
                let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                let record = serde_json::from_str(&saved).unwrap();
                optim = optim.load_gradient_record(record);
            }
            model = optim.arm(RATE, model);
            let loss = model.loss(step) * factor;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(RATE, model, grads);
        }
        bits(&model)
    };
    let found = run(true);
    assert_bits(&found, &run(false), "resumed");
    let mut values = found.iter().flat_map(|(_, bits)| bits);
    assert!(values.all(|bits| f32::from_bits(*bits).is_finite()));
}

/// Bytes: at most one gradient's more than a step without clipping, for the squares of one.
#[test]
fn takes_the_memory_of_one_gradient_more() {
    alone(
        "clipping::one_pass::takes_the_memory_of_one_gradient_more",
        || {
            let peak = |clipping: Option<NormClipping>, measures: bool| {
                let mut model = seeded(&flex(), deep);
                let mut optim = SgdConfig::new().init().with_gradient_release();
                if let Some(clipping) = clipping {
                    optim = optim.with_norm_clipping(clipping);
                }
                if measures {
                    optim = optim.with_grad_norm();
                }
                let mut last = 0;
                for step in 0..3 {
                    let (next, peak) = peak_of(|| {
                        let model = optim.arm(RATE, model);
                        let loss = forward(&model, 2, step);
                        let grads = GradientsParams::from_grads(loss.backward(), &model);
                        optim.step(RATE, model, grads)
                    });
                    (model, last) = (next, peak);
                }
                last
            };
            let gradient = 4 * 128 * 512;
            let plain = peak(None, false);
            let adaptive = NormClipping::Adaptive(AdaptiveClippingConfig::new());
            let auto = NormClipping::AutoClip(AutoClipConfig::new());
            for (clipping, measures) in [(Some(adaptive), false), (Some(auto), false), (None, true)]
            {
                let found = peak(clipping, measures);
                println!("{clipping:?}: {found} bytes, {plain} without");
                assert!(found <= plain + gradient + gradient / 8, "{clipping:?}");
            }
        },
    );
}
