//! What the rules of optimizers compute in the pass on the processor.

#[allow(dead_code, reason = "other tests take more of it")]
#[path = "both/noise.rs"]
mod noise;

use lean_arithmetic::optim::host::{self, Buffer};
use lean_arithmetic::optim::rules::{
    Adam, AdamW, Adan, AdaptiveRule, CoupledDecay, RAdam, StableAdamW,
};
use lean_arithmetic::optim::{Clip, Kind, MicroBatch, Rule, words};

use noise::Noise;

/// The corrections have been one for long. Of a gradient of 0.2 the first moment is
/// 0.9 * 0.1 + 0.1 * 0.2 = 0.11, and the root of the second, which stays 0.04, is 0.2. So the weight
/// moves by 0.01 * 0.11 / 0.2 = 0.0055. Adan's last gradient was the same.
#[test]
fn a_step_beyond_2_to_the_31_is_like_the_one_before() {
    const BETAS: [f32; 2] = [0.9, 0.999];
    fn stepped<R: Rule<N>, const N: usize>(rule: &R, states: [f32; N]) -> f32 {
        let (mut weight, mut states) = ([0.5], states.map(|state| [state]));
        let buffers = states.each_mut().map(|state| Buffer::F32(state));
        host::step(rule, Clip::None, false, None, &mut weight, &[0.2], buffers);
        weight[0]
    }
    fn adaptive<R: AdaptiveRule>(rule: R, time: usize) -> f32 {
        let rule = rule.rule(0.01, time, MicroBatch::default());
        stepped(&rule, [0.1, 0.04])
    }
    let [beta_1, beta_2] = BETAS;
    let adam = Adam {
        beta_1,
        beta_2,
        epsilon: 1e-8,
        decay: CoupledDecay(None),
    };
    let adan = Adan {
        beta_1,
        beta_2: 0.92,
        beta_3: beta_2,
        epsilon: 1e-8,
        weight_decay: 0.0,
        no_prox: false,
    };
    let adamw = AdamW {
        beta_1,
        beta_2,
        epsilon: 1e-8,
        weight_decay: 0.0,
        cautious: false,
        max_lr: None,
    };
    let [beta_1, beta_2] = BETAS.map(f64::from);
    let radam = RAdam {
        beta_1,
        beta_2,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let stable_adamw = StableAdamW {
        beta_1,
        beta_2,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    for time in [(1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33] {
        let weights = [
            adaptive(adam, time),
            adaptive(adamw, time),
            stepped(&adan.rule(0.01, time), [0.1, 0.04, 0.0, -0.2]),
            adaptive(radam, time),
            adaptive(stable_adamw, time),
        ];
        let is_right = |weight: &f32| (weight - 0.4945).abs() < 1e-6;
        assert!(weights.iter().all(is_right), "{time}: {weights:?}");
    }
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
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        cautious: false,
        max_lr: None,
    };
    let correction = |beta: f64, time: usize| 1.0 - beta.powi(time as i32);
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
