//! What the rules of optimizers compute in the pass on the processor.

#[allow(dead_code, reason = "other tests take more of it")]
#[path = "both/noise.rs"]
mod noise;

use lean_arithmetic::optim::host::{self, Buffer};
use lean_arithmetic::optim::rules::{
    AdaGrad, Adam, AdamW, Adan, AdaptiveRule, CoupledDecay, Descent, Factors, Lion, Momentum,
    RAdam, Root, StableAdamW, WithMomentum,
};
use lean_arithmetic::optim::{Clip, Kind, MicroBatch, Rule, words};

use noise::Noise;

const LR: f64 = 0.01;

const ADAMW: AdamW = AdamW {
    beta_1: 0.9,
    beta_2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
    cautious: false,
    max_lr: None,
};

/// Compares a million random updates, four of each of many numbers, with scalar arithmetic in
/// 64 bits, written out from the papers: `exact` has up to four states of its own.
fn assert_near<R: Rule<N>, const N: usize>(
    name: &str,
    rule: impl Fn(usize) -> R,
    mut exact: impl FnMut(usize, &mut f64, f64, &mut [f64; 4]),
) {
    const COUNT: usize = 512 * 512;
    const STEPS: usize = 4;
    let mut noise = Noise(61);
    let mut weights: Vec<f32> = (0..COUNT).map(|_| noise.number()).collect();
    let mut states = [(); N].map(|()| vec![0.0_f32; COUNT]);
    let start = weights.iter().map(|weight| (f64::from(*weight), [0.0; 4]));
    let mut expected: Vec<_> = start.collect();
    for time in 1..=STEPS {
        // Away from zero, where the sign of a sum and the quotient of two small numbers hang on
        // their last bit.
        let far = |number: f32| number + 0.01f32.copysign(number);
        let grads: Vec<f32> = (0..COUNT).map(|_| far(noise.number())).collect();
        let buffers = states.each_mut().map(|state| Buffer::F32(state));
        let (rule, clip) = (rule(time), Clip::None);
        host::step(&rule, clip, time == 1, None, &mut weights, &grads, buffers);
        for ((weight, states), grad) in expected.iter_mut().zip(&grads) {
            exact(time, weight, f64::from(*grad), states);
        }
        for (place, (weight, (exact, _))) in weights.iter().zip(&expected).enumerate() {
            // An update is of the rate's size, and 32 bits lose some 1e-6 of it: `1 - 0.999^t`
            // alone 3e-5 of itself, half of which is left under the root.
            let error = (f64::from(*weight) - exact).abs();
            let limit = 5e-5 * LR + 2e-7 * exact.abs();
            assert!(
                error < limit,
                "{name}, step {time}, number {place}: {weight} is not {exact}"
            );
        }
    }
}

fn mix(old: &mut f64, new: f64, keep: f64) {
    *old = keep * *old + (1.0 - keep) * new;
}

/// What a moving average is divided by after so many steps.
fn correction(beta: f64, time: usize) -> f64 {
    1.0 - beta.powi(time as i32)
}

const NO_DECAY: CoupledDecay = CoupledDecay(None);

#[test]
fn adam_and_adamw() {
    let step = |time, grad: f64, [m, v, ..]: &mut [f64; 4]| {
        mix(m, grad, 0.9);
        mix(v, grad * grad, 0.999);
        let (m, v) = (*m / correction(0.9, time), *v / correction(0.999, time));
        LR * m / (v.sqrt() + 1e-8)
    };
    let adam = Adam {
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        decay: NO_DECAY,
    };
    let rule = |time| adam.rule(LR, time, MicroBatch::default());
    assert_near("adam", rule, |time, weight, grad, states| {
        *weight -= step(time, grad, states);
    });
    let rule = |time| ADAMW.rule(LR, time, MicroBatch::default());
    assert_near("adamw", rule, |time, weight, grad, states| {
        *weight -= LR * 0.1 * *weight + step(time, grad, states);
    });
}

#[test]
fn radam() {
    let radam = RAdam {
        beta_1: 0.9,
        beta_2: 0.6,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let rule = |time| radam.rule(LR, time, MicroBatch::default());
    assert_near("radam", rule, |time, weight, grad, [m, v, ..]| {
        mix(m, grad, 0.9);
        mix(v, grad * grad, 0.6);
        let power = 0.6f64.powi(time as i32);
        let longest = 2.0 / 0.4 - 1.0;
        let length = longest - 2.0 * time as f64 * power / (1.0 - power);
        // With so short a memory the length stays below five: no step is rectified.
        assert!(length < 5.0);
        *weight -= LR * *m / correction(0.9, time);
    });
}

/// As if it were the step before: its corrections have been one for long.
#[test]
fn a_step_beyond_2_to_the_31_is_like_the_one_before() {
    fn stepped<R: Rule<2>>(rule: &R) -> f32 {
        let (mut weight, mut moments) = ([0.5], [[0.1], [0.04]]);
        let buffers = moments.each_mut().map(|moment| Buffer::F32(moment));
        host::step(rule, Clip::None, false, None, &mut weight, &[0.2], buffers);
        weight[0]
    }
    let radam = RAdam {
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let stable_adamw = StableAdamW {
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let steps = |time| {
        let radam = radam.rule(LR, time, MicroBatch::default());
        let stable_adamw = stable_adamw.rule(LR, time, MicroBatch::default());
        [stepped(&radam), stepped(&stable_adamw)]
    };
    let last = steps((1 << 31) - 1);
    assert!(last.iter().all(|weight| *weight < 0.5));
    assert_eq!(steps(1 << 31), last);
    assert_eq!(steps(1 << 33), last);
}

#[test]
fn sgd_and_lion() {
    let nesterov = Momentum {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: true,
    };
    let descent = Descent {
        lr: LR,
        decay: NO_DECAY,
    };
    let rule = |_| nesterov.rule(descent, MicroBatch::default());
    assert_near("sgd", rule, |_, weight, grad, [velocity, ..]| {
        *velocity = 0.9 * *velocity + grad;
        *weight -= LR * (grad + 0.9 * *velocity);
    });
    // Without the momentum's part, whose sum with the gradient may be as good as zero.
    let lion = Lion {
        factors: Factors::new(0.0, 0.99),
        weight_decay: 0.1,
    };
    assert_near(
        "lion",
        |_| lion.rule(LR),
        |_, weight, grad, _| {
            *weight -= LR * (0.1 * *weight + grad.signum());
        },
    );
}

#[test]
fn adagrad_rmsprop_and_adan() {
    let rule = |time| AdaGrad::new(LR, 0.0, 1e-5, NO_DECAY, time);
    assert_near("adagrad", rule, |_, weight, grad, [sum, ..]| {
        *sum += grad * grad;
        *weight -= LR * grad / (sum.sqrt() + 1e-5);
    });
    let rule = |_| WithMomentum(Root::new(LR, 0.99, 0.9, 1e-5, NO_DECAY));
    assert_near("rmsprop", rule, |_, weight, grad, [square, buf, ..]| {
        mix(square, grad * grad, 0.99);
        *buf = 0.9 * *buf + grad / (square.sqrt() + 1e-5);
        *weight -= LR * *buf;
    });
    let adan = Adan {
        beta_1: 0.98,
        beta_2: 0.92,
        beta_3: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.02,
        no_prox: false,
    };
    let rule = |time| adan.rule(LR, time);
    assert_near("adan", rule, |time, weight, grad, [m, v, n, last]| {
        let change = if time == 1 { 0.0 } else { grad - *last };
        mix(m, grad, 0.98);
        mix(v, change, 0.92);
        mix(n, (grad + 0.92 * change).powi(2), 0.99);
        *last = grad;
        let root = (*n / correction(0.99, time)).sqrt() + 1e-8;
        let (m, v) = (*m / correction(0.98, time), *v / correction(0.92, time));
        *weight = (*weight - LR * (m + 0.92 * v) / root) / (1.0 + LR * 0.02);
    });
}

/// AdamW's updates with moments in 8 bits beside those of exact ones in 64 bits, over 2,000 steps:
/// the root mean square of their difference, over that of the exact ones.
///
/// The limits are half as much again as was found. A second moment that is rounded to the nearest
/// code stands still: it is 3.1 with spikes and 0.1 with one gradient in 55. Where it may become
/// zero, steps are 40,000 rates long.
#[test]
fn with_moments_in_8_bits_steps_are_near_those_of_exact_moments() {
    const RATE: f64 = 1e-3;
    const STEPS: usize = 2000;
    // The last block is not full.
    const COUNT: usize = 128 + 100;
    /// The size of the gradients of a place.
    fn size(place: usize, range: f32) -> f32 {
        let share = Noise(place as u64).number() / 2.0 + 0.5;
        range.powf(-share)
    }
    fn one_in(noise: &mut Noise, steps: u64) -> f32 {
        f32::from(u8::from(noise.bits().is_multiple_of(steps)))
    }
    /// A normal number with a drift, nearly: the sum of twelve even ones.
    fn normal(noise: &mut Noise) -> f32 {
        (0..12).map(|_| noise.number()).sum::<f32>() / 2.0 + 0.3
    }
    fn slow(time: usize, place: usize) -> f32 {
        let turn = time as f32 / STEPS as f32 * 10.0 + place as f32;
        3f32.powf(turn.sin())
    }
    /// The gradient of a step at a place.
    type Gradient = fn(&mut Noise, usize, usize) -> f32;
    let gradients: [(&str, f64, Gradient); 12] = [
        ("of one size", 0.06, |noise, _, _| normal(noise)),
        ("times 1e-15", 0.06, |noise, _, _| 1e-15 * normal(noise)),
        ("times 1e15", 0.06, |noise, _, _| 1e15 * normal(noise)),
        ("mild: 1 to 1/30", 0.12, |noise, _, place| {
            normal(noise) * size(place, 30.0)
        }),
        ("wild: 1 to 1/1000", 0.33, |noise, _, place| {
            normal(noise) * size(place, 1000.0)
        }),
        ("rising and falling", 0.12, |noise, time, place| {
            normal(noise) * size(place, 30.0) * slow(time, place)
        }),
        ("one in 16 not zero", 0.04, |noise, _, _| {
            normal(noise) * one_in(noise, 16)
        }),
        ("spikes of 10,000", 0.6, |noise, _, _| {
            normal(noise) * (1.0 + 1e4 * one_in(noise, 1000))
        }),
        ("spikes of ten million", 1.5, |noise, _, _| {
            normal(noise) * (1.0 + 1e7 * one_in(noise, 1000))
        }),
        ("in one step of 55", 0.03, |_, time, place| {
            f32::from(u8::from((time + place) % 55 == 0))
        }),
        ("zero every fourth step", 0.06, |noise, time, _| {
            normal(noise) * f32::from(u8::from(time % 4 != 3))
        }),
        ("a thousandth here and there", 0.27, |noise, _, place| {
            normal(noise) * if place % 16 == 5 { 1e-3 } else { 1.0 }
        }),
    ];
    let adamw = AdamW {
        weight_decay: 0.0,
        ..ADAMW
    };
    for (kind, limit, gradient) in gradients {
        let mut noise = Noise(61);
        let mut moments = [(); 2].map(|()| vec![0; words(COUNT)]);
        let mut exact = [[0.0; 2]; COUNT];
        let (mut off, mut all, mut longest) = (0.0, 0.0, [0f64; 2]);
        for time in 1..=STEPS {
            let number = |place| gradient(&mut noise, time, place);
            let grads: Vec<f32> = (0..COUNT).map(number).collect();
            let mut weights = vec![0.0; COUNT];
            let rule = adamw.rule(RATE, time, MicroBatch::default());
            let noise = Some(MicroBatch::default().noise(time));
            let [moment_1, moment_2] = &mut moments;
            let moments = [
                Buffer::of_words(moment_1, Kind::Signed),
                Buffer::of_words(moment_2, Kind::Positive),
            ];
            let (clip, is_first) = (Clip::None, time == 1);
            host::step(&rule, clip, is_first, noise, &mut weights, &grads, moments);
            for ((weight, grad), [m, v]) in weights.iter().zip(grads).zip(&mut exact) {
                let grad = f64::from(grad);
                *m = 0.9 * *m + 0.1 * grad;
                *v = 0.999 * *v + 0.001 * grad * grad;
                let root = (*v / correction(0.999, time)).sqrt();
                let update = *m / correction(0.9, time) / (root + 1e-8);
                let found = f64::from(-weight) / RATE;
                off += (found - update).powi(2);
                all += update * update;
                longest[0] = longest[0].max(found.abs());
                longest[1] = longest[1].max(update.abs());
            }
        }
        let (error, [found, expected]) = ((off / all).sqrt(), longest);
        println!("{kind}: {error:.3}, longest {found:.2} of {expected:.2}");
        assert!(error > 0.0 && error < limit, "{kind}: {error}");
        // The second moment of a code beside another is at most 16 times as large.
        assert!(found < 4.0 * expected, "{kind}: {found} of {expected}");
    }
}
