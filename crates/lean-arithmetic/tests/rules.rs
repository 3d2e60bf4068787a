//! What the rules of optimizers compute in the pass on the processor.

#[allow(dead_code, reason = "other tests take more of it")]
#[path = "both/noise.rs"]
mod noise;

use lean_arithmetic::optim::host::{self, Buffer};
use lean_arithmetic::optim::rules::{
    AdaGrad, Adam, AdamW, Adan, CoupledDecay, Descent, Factors, Lion, Momentum, RAdam, Root,
    WithMomentum,
};
use lean_arithmetic::optim::{Clip, DynamicMap, MicroBatch, Rule, blocks};

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

/// Where the second moment becomes zero and the first one does not, a step is the first one over
/// epsilon. In 32 bits the longest step of AdamW is (1 - 0.9) / sqrt(1 - 0.999) = 3.2 rates, that
/// of a first gradient after zeros.
#[test]
fn with_moments_in_8_bits_uneven_gradients_make_no_long_steps() {
    /// The gradient of a step at a place: one scale for many numbers does not suit it.
    type Gradient = fn(&mut Noise, usize, usize) -> f32;
    const UNEVEN: [(&str, Gradient); 4] = [
        ("zero every fourth step", |noise, step, _| match step % 4 {
            3 => 0.0,
            _ => noise.number(),
        }),
        (
            "a thousandth at every sixteenth place",
            |noise, _, place| noise.number() * if place % 16 == 5 { 1e-3 } else { 1.0 },
        ),
        ("mostly zero", |noise, _, _| match noise.bits() % 50 {
            0 => noise.number(),
            _ => 0.0,
        }),
        ("spikes", |noise, _, _| match noise.bits() % 500 {
            0 => 1e4 * noise.number(),
            _ => noise.number(),
        }),
    ];
    const RATE: f64 = 1e-3;
    // Several blocks, the last of which is not full.
    const COUNT: usize = 16 * 256 + 100;
    let adamw = AdamW {
        weight_decay: 0.0,
        ..ADAMW
    };
    for (kind, gradient) in UNEVEN {
        let mut noise = Noise(61);
        let mut weights: Vec<f32> = (0..COUNT).map(|_| noise.number()).collect();
        let mut codes = [(); 2].map(|()| vec![0_u8; COUNT]);
        let mut scales = [(); 2].map(|()| vec![0.0_f32; blocks(COUNT)]);
        let mut longest = 0f32;
        for time in 1..=100 {
            let number = |place| gradient(&mut noise, time - 1, place);
            let grads: Vec<f32> = (0..COUNT).map(number).collect();
            let before = weights.clone();
            let rule = adamw.rule(RATE, time, MicroBatch::default());
            let noise = Some(MicroBatch::default().noise(time));
            let moment = |codes, scales, map| Buffer::EightBit { codes, scales, map };
            let [codes_1, codes_2] = &mut codes;
            let [scales_1, scales_2] = &mut scales;
            let moments = [
                moment(codes_1, scales_1, DynamicMap::Signed),
                moment(codes_2, scales_2, DynamicMap::Unsigned),
            ];
            let is_first = time == 1;
            host::step(
                &rule,
                Clip::None,
                is_first,
                noise,
                &mut weights,
                &grads,
                moments,
            );
            for (after, before) in weights.iter().zip(&before) {
                longest = longest.max((after - before).abs() / RATE as f32);
            }
        }
        assert!(longest < 3.3, "{kind}: {longest} rates");
    }
}
