//! Moments in 8 bits.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamWConfig, LionConfig, ModuleOptimizer, Optimizer, OptimizerRecord, SgdConfig,
};
use burn::tensor::{DType, Device, Tensor};
use burn_lean::WithGradientRelease;
use burn_lean::optim::{
    AccumulateInMoments, AdamW, AdamWState, AdaptiveMomentumState, DynamicMap, EightBitMoments,
    Format, InOnePass, Lean, Moment, MomentDecay, StableAdamWConfig, StableAdamWState,
};

use super::harness::{Noise, Run, Saved};
use super::noise::UNEVEN;
use crate::harness::{assert_bits, bits, devices, flex, plain_run, release_run, seeded};

/// Several chunks, and a last block that is not full.
const SHAPE: [usize; 2] = [150, 301];
const NUMBERS: usize = 150 * 301;

#[derive(Module, Debug)]
struct Model {
    tokens: Embedding,
    head: Linear,
}

fn model() -> Model {
    seeded(&flex(), |device| Model {
        tokens: EmbeddingConfig::new(100, 50).init(device),
        head: LinearConfig::new(50, 100).init(device),
    })
}

fn adamw() -> AdamW {
    AdamWConfig::new()
        .in_one_pass()
        .with_8_bit_moments(&model())
}

fn run_for<O: Optimizer>(optimizer: O, steps: usize, noise: &mut Noise) -> Run<O, 2> {
    let mut run = Run::new(optimizer, noise.numbers(SHAPE));
    for _ in 0..steps {
        run.step(0.01, noise.numbers(SHAPE));
    }
    run
}

#[test]
fn a_parameter_has_moments_in_8_bits_if_it_is_large_and_no_embedding() {
    let mut noise = Noise(1);
    let mut state = |shape: [usize; 2]| {
        let mut run = Run::new(adamw(), noise.numbers(shape));
        run.step(0.01, noise.numbers(shape));
        run.state.unwrap().momentum
    };
    let momentum = state(SHAPE);
    let formats = [momentum.moment_1.format(), momentum.moment_2.format()];
    assert!(
        formats
            .iter()
            .all(|format| matches!(format, Format::EightBit(_)))
    );
    assert_ne!(formats[0], formats[1]);
    let bytes = NUMBERS.next_multiple_of(4) + 4 * NUMBERS.div_ceil(256);
    assert_eq!(momentum.moment_1.bytes(), bytes);
    for kept in [[63, 65], [100, 50]] {
        let moment = state(kept).moment_1;
        assert_eq!(moment.format(), Format::Float(DType::F32), "{kept:?}");
    }
    // The head has as many elements as the embedding, in another shape.
    let moment = state([50, 100]).moment_1;
    assert!(matches!(moment.format(), Format::EightBit(_)));
}

/// Both are the same arithmetic: what is rounded are the moments after the step. Gradients that are
/// even, uneven, mostly zero, all zero, and with spikes.
#[test]
fn from_the_same_moments_a_step_is_that_of_32_bits() {
    type Gradient = fn(&mut Noise) -> f32;
    let kinds: [(&str, Gradient); 5] = [
        ("even", Noise::number),
        ("uneven", |noise| noise.number() * noise.number().powi(8)),
        ("sparse", |noise| match noise.bits() % 50 {
            0 => noise.number(),
            _ => 0.0,
        }),
        ("zero", |_| 0.0),
        ("spikes", |noise| match noise.bits() % 500 {
            0 => 1e4 * noise.number(),
            _ => 1e-3 * noise.number(),
        }),
    ];
    for (kind, gradient) in kinds {
        let mut noise = Noise(11);
        let mut eight_bit = run_for(adamw(), 1, &mut noise);
        for _ in 0..10 {
            let mut momentum = eight_bit.state.clone().unwrap().momentum;
            for moment in [&mut momentum.moment_1, &mut momentum.moment_2] {
                *moment = Moment::from_tensor(moment.to_tensor(), Format::Float(DType::F32));
            }
            let mut full = Run {
                optimizer: AdamWConfig::new().in_one_pass(),
                weight: eight_bit.weight.clone(),
                state: Some(AdamWState { momentum }),
            };
            let grad = noise.tensor(SHAPE, &Device::flex(), gradient);
            full.step(0.01, grad.clone());
            eight_bit.step(0.01, grad);
            assert_eq!(full.weights(), eight_bit.weights(), "{kind}");

            // What rounding to 8 bits takes, of 64 bins in each decade with a sign and of 128
            // without: half a bin to the nearest, and a whole one by chance.
            let [exact, rounded] = [full.state, eight_bit.state.clone()].map(|state| {
                let momentum = state.unwrap().momentum;
                [momentum.moment_1, momentum.moment_2].map(|moment| moment.to_tensor())
            });
            let limits = [0.9 / 128.0, 0.9 / 128.0];
            for ((exact, rounded), limit) in exact.into_iter().zip(rounded).zip(limits) {
                let most: f32 = exact.clone().abs().max().into_scalar();
                let error: f32 = (exact - rounded).abs().max().into_scalar();
                assert!(
                    error > 0.0 && error <= 1.01 * limit * most,
                    "{kind}: {error} of {most}"
                );
            }
        }
    }
}

/// Where the second moment becomes zero and the first one does not, a step is the first one over
/// epsilon. In 32 bits the longest step of AdamW is (1 - 0.9) / sqrt(1 - 0.999) = 3.2 rates, that
/// of a first gradient after zeros.
#[test]
fn uneven_gradients_make_no_long_steps() {
    const RATE: f64 = 1e-3;
    for (kind, gradient) in UNEVEN {
        let adamw = AdamWConfig::new().with_weight_decay(0.0).in_one_pass();
        let mut noise = Noise(61);
        let mut run = Run::new(adamw.with_8_bit_moments(&model()), noise.numbers(SHAPE));
        let mut longest = 0f32;
        for step in 0..100 {
            let mut place = 0..;
            let grad = noise.tensor(SHAPE, &Device::flex(), |noise| {
                gradient(noise, step, place.next().expect("endless"))
            });
            let before = run.weights();
            run.step(RATE, grad);
            for (after, before) in run.weights().iter().zip(&before) {
                longest = longest.max((after - before).abs() / RATE as f32);
            }
        }
        assert!(longest < 3.3, "{kind}: {longest} rates");
    }
}

/// Sixteen numbers whose squared gradients rise from 0.1 to 1 among others of 1: the codes lie
/// seven times as far apart as the second moment changes in a step.
#[test]
fn second_moments_do_not_stand_still() {
    const SIDE: usize = 64;
    const STEPS: i32 = 300;
    fn tensor(numbers: Vec<f32>) -> Tensor<2> {
        Tensor::<1>::from_floats(numbers.as_slice(), &Device::flex()).reshape([SIDE, SIDE])
    }
    fn moments() -> [Moment<2>; 2] {
        let mut begun = vec![1.0; SIDE * SIDE];
        begun
            .iter_mut()
            .step_by(256)
            .for_each(|number| *number = 0.1);
        let moment = |map, numbers| Moment::from_tensor(tensor(numbers), Format::EightBit(map));
        [
            moment(DynamicMap::Signed, vec![1.0; SIDE * SIDE]),
            moment(DynamicMap::Unsigned, begun),
        ]
    }
    fn follow<O: Optimizer>(
        name: &str,
        optimizer: O,
        state: O::State<2>,
        moment_2: impl Fn(&O::State<2>) -> &Moment<2>,
    ) {
        let mut run = Run {
            optimizer,
            weight: Some(tensor(vec![0.5; SIDE * SIDE])),
            state: Some(state),
        };
        for _ in 0..STEPS {
            run.step(1e-3, tensor(vec![1.0; SIDE * SIDE]));
        }
        let state = run.state.unwrap();
        let found: Vec<f32> = moment_2(&state).to_tensor().try_into_vec_as().unwrap();
        let mean = f64::from(found.iter().step_by(256).sum::<f32>()) / 16.0;
        let exact = 1.0 - 0.9 * 0.999f64.powi(STEPS);
        assert!(
            (mean - exact).abs() < 0.1 * exact,
            "{name}: {mean} for {exact}"
        );
    }
    let [moment_1, moment_2] = moments();
    let momentum = AdaptiveMomentumState {
        time: 20_000,
        moment_1,
        moment_2,
        max_moment_2: None,
    };
    let state = AdamWState { momentum };
    follow("adamw", adamw(), state, |state| &state.momentum.moment_2);
    let [moment_1, moment_2] = moments();
    let state = StableAdamWState {
        time: 20_000,
        moment_1,
        moment_2,
    };
    let stable = StableAdamWConfig::new().with_beta_2(0.999).build();
    let stable = stable.with_8_bit_moments(&model());
    follow("stable adamw", stable, state, |state| &state.moment_2);
}

/// With 8 bits a moment that is not finite is its weight, and its block keeps its numbers.
#[test]
fn what_is_not_finite_takes_one_weight() {
    fn check<O: Optimizer>(name: &str, optimizer: O) {
        for device in devices() {
            let device = device.inner();
            for bad in [f32::NAN, f32::INFINITY, 1e30] {
                let mut noise = Noise(71);
                let weight = noise.tensor(SHAPE, &device, Noise::number);
                let mut run = Run::new(optimizer.clone(), weight);
                for step in 0..5 {
                    let mut place = 0..;
                    let grad = noise.tensor(SHAPE, &device, |noise| match place.next() {
                        Some(300) if step == 2 => bad,
                        _ => noise.number(),
                    });
                    run.step(0.01, grad);
                }
                let weights = run.weights().into_iter().enumerate();
                let lost = weights.filter(|(_, weight)| !weight.is_finite());
                let lost: Vec<_> = lost.map(|(place, _)| place).take(9).collect();
                let expected: &[usize] = match (name, bad.is_finite()) {
                    // No square that is not finite, and no step that is not.
                    ("lion" | "sgd" | "stable adamw, 32 bits", true) => &[],
                    _ => &[300],
                };
                assert_eq!(lost, expected, "{name}, {bad}, {device:?}");
            }
        }
    }
    let model = model();
    check("adamw", adamw());
    let lion = LionConfig::new().in_one_pass();
    check("lion", lion.with_8_bit_moments(&model));
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check("sgd", momentum.in_one_pass().with_8_bit_moments(&model));
    let stable = StableAdamWConfig::new().build();
    check("stable adamw", stable.clone().with_8_bit_moments(&model));
    // Its mean is of the numbers that are finite. A square alone that is not stops its weight.
    check("stable adamw, 32 bits", stable);
    // The first of two micro-batches moves no weight.
    for decay in [MomentDecay::EachMicroBatch, MomentDecay::EachStep] {
        check(
            "adamw, two micro-batches",
            adamw().accumulating(2, decay).unwrap(),
        );
    }
}

#[test]
fn resuming_changes_no_bit() {
    fn check<O: Optimizer>(name: &str, optimizer: O, moments: usize) {
        let mut noise = Noise(21);
        let mut run = run_for(optimizer, 3, &mut noise);
        let saved = run.saved();
        // One byte a number for each moment, and four for each block of 256.
        let bytes = moments * (NUMBERS + 4 * NUMBERS.div_ceil(256));
        assert_eq!(saved.bytes(), bytes, "{name}");
        let mut resumed = Run {
            optimizer: run.optimizer.clone(),
            weight: run.weight.clone(),
            state: saved.load(&Device::flex()),
        };
        assert_eq!(resumed.saved(), saved, "{name}");
        for _ in 0..3 {
            let grad = noise.numbers(SHAPE);
            run.step(0.01, grad.clone());
            resumed.step(0.01, grad);
            assert_eq!(run.weights(), resumed.weights(), "{name}");
        }
    }
    let model = model();
    check("adamw", adamw(), 2);
    let lion = LionConfig::new().in_one_pass();
    check("lion", lion.with_8_bit_moments(&model), 1);
    let stable = StableAdamWConfig::new().build();
    check("stable adamw", stable.with_8_bit_moments(&model), 2);
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check("sgd", momentum.in_one_pass().with_8_bit_moments(&model), 1);
    let amsgrad = AdamWConfig::new().with_amsgrad(true).in_one_pass();
    check("amsgrad", amsgrad.with_8_bit_moments(&model), 3);
}

#[test]
fn checkpoints_go_from_32_bits_to_8_and_back() {
    let mut noise = Noise(31);
    let burn = run_for(AdamWConfig::new().build(), 3, &mut noise);
    let grad = noise.numbers(SHAPE);
    let mut eight_bit = Run {
        optimizer: adamw(),
        weight: burn.weight.clone(),
        state: burn.saved().load(&Device::flex()),
    };
    eight_bit.step(0.01, grad.clone());
    let momentum = &eight_bit.state.as_ref().unwrap().momentum;
    assert!(matches!(momentum.moment_1.format(), Format::EightBit(_)));
    assert_eq!(momentum.time, 4);

    // In 32 bits its next record is Burn's again.
    let saved = eight_bit.saved();
    let mut full = Run {
        optimizer: AdamWConfig::new().in_one_pass(),
        weight: eight_bit.weight.clone(),
        state: saved.load(&Device::flex()),
    };
    full.step(0.01, grad);
    let state: burn::optim::AdamWState<2> = full.saved().load(&Device::flex()).unwrap();
    assert_eq!(state.momentum.time, 5);
    let moment = full.state.unwrap().momentum.moment_1.to_tensor();
    assert_eq!(moment.to_data(), state.momentum.moment_1.to_data());
}

/// The largest second moment begins with the one there is.
#[test]
fn a_record_without_amsgrad_goes_on_with_it() {
    let mut noise = Noise(34);
    let before = run_for(AdamWConfig::new().build(), 3, &mut noise);
    let amsgrad = AdamWConfig::new().with_amsgrad(true);
    let resumed = |mut run: Run<AdamW, 2>| {
        run.load(&before.saved());
        run.weight = before.weight.clone();
        run
    };
    let mut full = resumed(run_for(amsgrad.in_one_pass(), 0, &mut Noise(1)));
    let eight_bit = amsgrad.in_one_pass().with_8_bit_moments(&model());
    let mut eight_bit = resumed(run_for(eight_bit, 0, &mut Noise(1)));
    let mut plain = Run {
        optimizer: amsgrad.build(),
        weight: before.weight.clone(),
        state: before.state.clone(),
    };
    for _ in 0..3 {
        let grad = noise.numbers(SHAPE);
        plain.step(0.01, grad.clone());
        full.step(0.01, grad.clone());
        eight_bit.step(0.01, grad);
        assert_eq!(full.weights(), plain.weights());
        assert_eq!(full.saved(), plain.saved());
        for (found, expected) in eight_bit.weights().iter().zip(plain.weights()) {
            assert!((found - expected).abs() < 0.01, "{found}, {expected}");
        }
    }
}

/// It would take the codes for numbers.
#[test]
#[should_panic(expected = "From Data")]
fn burns_own_optimizer_refuses_a_record_in_8_bits() {
    let saved = run_for(adamw(), 1, &mut Noise(32)).saved();
    let _ = saved.load::<burn::optim::AdamWState<2>>(&Device::flex());
}

/// As Burn does with what is missing, the state begins anew; nothing panics.
#[test]
fn what_is_cut_short_is_not_a_state() {
    let whole = run_for(adamw(), 1, &mut Noise(33)).saved();
    let load = |saved: &Saved| saved.load::<AdamWState<2>>(&Device::flex());
    assert!(load(&whole).is_some());
    assert!(whole.load::<AdamWState<3>>(&Device::flex()).is_none());

    let scales = "p.momentum.moment_1.scales";
    let mut missing = whole.clone();
    missing.tensors.remove(scales).expect("it was there");
    assert!(load(&missing).is_none());
    let mut short = whole.clone();
    let (_, shape, bytes) = short.tensors.get_mut(scales).unwrap();
    shape[0] -= 1;
    bytes.truncate(4 * shape[0]);
    assert!(load(&short).is_none());
    let mut ints = whole.clone();
    ints.tensors.get_mut(scales).unwrap().0 = DType::I32;
    assert!(load(&ints).is_none());
    let mut flat = whole;
    flat.tensors.get_mut("p.momentum.moment_2").unwrap().1 = vec![NUMBERS];
    assert!(load(&flat).is_none());
}

#[test]
fn backends_without_a_pass_get_the_same_numbers() {
    let run = |device: Device| {
        let mut noise = Noise(51);
        let mut numbers = || noise.tensor(SHAPE, &device, Noise::number);
        let mut run = Run::new(adamw(), numbers());
        for _ in 0..5 {
            run.step(0.01, numbers());
        }
        (run.weights(), run.saved())
    };
    let mut runs = devices().into_iter().map(|device| run(device.inner()));
    let flex = runs.next().unwrap();
    for other in runs {
        assert!(flex == other);
    }
}

fn loss(model: &Model, step: usize) -> Tensor<1> {
    let ids = crate::harness::ids([2, 8], step, 100, &flex());
    let x: Tensor<3> = model.head.forward(model.tokens.forward(ids));
    x.square().mean()
}

/// The whole way: `ModuleOptimizer`, gradient release, and a record in Burn's file format.
#[test]
fn with_release_and_resumed_the_weights_are_those_of_the_plain_loop() {
    let optim = || -> ModuleOptimizer { adamw().init() };
    let (_, expected) = plain_run(model(), &mut optim(), 0..12, loss);
    let full = AdamWConfig::new().init();
    let (_, other) = plain_run(model(), &mut { full }, 0..12, loss);
    assert_ne!(expected.last(), other.last(), "8 bits show in the weights");

    let mut release = optim().with_gradient_release();
    let (model, _) = release_run(model(), &mut release, 0..6, loss, &expected[..6], "release");
    assert_bits(&bits(&model), &expected[5], "before");
    let bytes = release.to_record().into_bytes().unwrap();
    // Embedding and bias in 32 bits, the head in 8; names and numbers are little.
    let expected_bytes = 2 * (4 * (100 * 50 + 100) + 50 * 100 + 4 * 20);
    assert!(
        (expected_bytes..expected_bytes + 6000).contains(&bytes.len()),
        "{} of {expected_bytes} bytes",
        bytes.len()
    );
    let record = OptimizerRecord::from_bytes(bytes).unwrap();
    let mut release = optim().load_record(record).with_gradient_release();
    release_run(model, &mut release, 6..12, loss, &expected[6..], "resumed");
}
