//! Moments in 8 bits.

use burn::{
    backend::{Flex, NdArray},
    module::Module,
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig},
    optim::{AdamWConfig, SgdConfig, SimpleOptimizer, momentum::MomentumConfig},
    record::{
        BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
        Recorder,
    },
    tensor::{DType, Tensor, backend::Backend},
};
use burn_lean_optim::{
    AccumulateInMoments, AdamW, AdamWState, AdaptiveMomentumState, DynamicMap, EightBitMoments,
    Format, InOnePass, LionConfig, Moment, MomentDecay, StableAdamWConfig, StableAdamWState,
};

use crate::harness::{Noise, Run};
use crate::noise::UNEVEN;

/// Several chunks, and a last block that is not full.
const SHAPE: [usize; 2] = [150, 301];

#[derive(Module, Debug)]
struct Model<B: Backend> {
    tokens: Embedding<B>,
    head: Linear<B>,
}

fn model() -> Model<Flex> {
    let device = Default::default();
    Model {
        tokens: EmbeddingConfig::new(100, 50).init(&device),
        head: LinearConfig::new(50, 100).init(&device),
    }
}

fn adamw() -> AdamW {
    AdamWConfig::new()
        .in_one_pass()
        .with_8_bit_moments(&model())
}

fn run_for<B: Backend, O: SimpleOptimizer<B>>(
    optimizer: O,
    steps: usize,
    noise: &mut Noise,
) -> Run<O, B, 2> {
    let mut run = Run::new(optimizer, noise.tensor(SHAPE, Noise::number));
    for _ in 0..steps {
        run.step(0.01, noise.tensor(SHAPE, Noise::number));
    }
    run
}

#[test]
fn a_parameter_has_moments_in_8_bits_if_it_is_large_and_no_embedding() {
    let mut noise = Noise(1);
    let formats = |shape: [usize; 2], noise: &mut Noise| {
        let mut run = Run::<_, Flex, 2>::new(adamw(), noise.tensor(shape, Noise::number));
        run.step(0.01, noise.tensor(shape, Noise::number));
        let state = run.state.unwrap().momentum;
        (
            state.moment_1.format(),
            state.moment_2.format(),
            state.moment_1.bytes(),
        )
    };
    let (first, second, bytes) = formats(SHAPE, &mut noise);
    assert!(matches!(first, Format::EightBit(_)) && matches!(second, Format::EightBit(_)));
    assert_ne!(first, second);
    let numbers = 150 * 301;
    assert_eq!(
        bytes,
        (numbers as usize).next_multiple_of(4) + 4 * (numbers as usize).div_ceil(256)
    );
    for kept in [[63, 65], [100, 50]] {
        let (first, ..) = formats(kept, &mut noise);
        assert!(matches!(first, Format::Float(_)), "{kept:?}");
    }
    // The head has as many elements, in another shape.
    assert!(matches!(
        formats([50, 100], &mut noise).0,
        Format::EightBit(_)
    ));
}

/// The field tests a step in 8 bits against one in 32 from the same moments, and allows an error of
/// 6e-5. Here both are the same arithmetic: what is rounded are the moments after the step.
#[test]
fn from_the_same_moments_a_step_is_that_of_32_bits() {
    let mut noise = Noise(11);
    let mut eight_bit = run_for::<Flex, _>(adamw(), 1, &mut noise);
    for _ in 0..20 {
        let mut momentum = eight_bit.state.clone().unwrap().momentum;
        for moment in [&mut momentum.moment_1, &mut momentum.moment_2] {
            *moment = Moment::from_tensor(moment.to_tensor::<2>(), Format::Float(DType::F32));
        }
        let mut full = Run {
            optimizer: AdamWConfig::new().in_one_pass(),
            weight: eight_bit.weight.clone(),
            state: Some(AdamWState { momentum }),
        };
        let grad: Tensor<Flex, 2> = noise.tensor(SHAPE, |noise| noise.number() * noise.number());
        full.step(0.01, grad.clone());
        eight_bit.step(0.01, grad);
        assert_eq!(full.weights(), eight_bit.weights());

        // What rounding to 8 bits takes, of 64 bins in each decade with a sign and of 128 without:
        // half a bin to the nearest, and a whole one by chance.
        let [exact, rounded] = [full.state, eight_bit.state.clone()].map(|state| {
            let momentum = state.unwrap().momentum;
            [momentum.moment_1, momentum.moment_2].map(|moment| moment.to_tensor::<2>())
        });
        for ((exact, rounded), limit) in exact
            .into_iter()
            .zip(rounded)
            .zip([0.9 / 128.0, 0.9 / 128.0])
        {
            let most: f32 = exact.clone().abs().max().into_scalar();
            let error: f32 = (exact - rounded).abs().max().into_scalar();
            assert!(
                error > 0.0 && error <= 1.01 * limit * most,
                "{error} of {most}"
            );
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
        let mut run = Run::<_, Flex, 2>::new(
            adamw.with_8_bit_moments(&model()),
            noise.tensor(SHAPE, Noise::number),
        );
        let mut longest = 0f32;
        for step in 0..100 {
            let mut place = 0..;
            let grad = noise.tensor(SHAPE, |noise| {
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
    let mut begun = vec![1.0; SIDE * SIDE];
    begun
        .iter_mut()
        .step_by(256)
        .for_each(|number| *number = 0.1);
    let tensor = |numbers: Vec<f32>| {
        Tensor::<Flex, 1>::from_floats(numbers.as_slice(), &Default::default())
            .reshape([SIDE, SIDE])
    };
    let moments = || {
        let moment = |map, numbers| Moment::from_tensor(tensor(numbers), Format::EightBit(map));
        let first = moment(DynamicMap::Signed, vec![1.0; SIDE * SIDE]);
        (first, moment(DynamicMap::Unsigned, begun.clone()))
    };
    fn follow<O: SimpleOptimizer<Flex>>(
        name: &str,
        optimizer: O,
        weight: Tensor<Flex, 2>,
        state: O::State<2>,
        beta_2: f64,
        moment_2: impl Fn(&O::State<2>) -> &Moment<Flex>,
    ) {
        let mut run = Run {
            optimizer,
            weight: Some(weight.clone()),
            state: Some(state),
        };
        for _ in 0..STEPS {
            run.step(1e-3, weight.ones_like());
        }
        let state = run.state.unwrap();
        let found: Vec<f32> = moment_2(&state)
            .to_tensor::<2>()
            .into_data()
            .to_vec()
            .unwrap();
        let mean = f64::from(found.iter().step_by(256).sum::<f32>()) / 16.0;
        let exact = 1.0 - 0.9 * beta_2.powi(STEPS);
        assert!(
            (mean - exact).abs() < 0.1 * exact,
            "{name}: {mean} for {exact}"
        );
    }
    let (moment_1, moment_2) = moments();
    let state = AdamWState {
        momentum: AdaptiveMomentumState {
            time: 20_000,
            moment_1,
            moment_2,
            max_moment_2: None,
        },
    };
    let weight = tensor(vec![0.5; SIDE * SIDE]);
    follow("adamw", adamw(), weight.clone(), state, 0.999, |state| {
        &state.momentum.moment_2
    });
    let (moment_1, moment_2) = moments();
    let stable = StableAdamWConfig::new().with_beta_2(0.999).build();
    let state = StableAdamWState {
        time: 20_000,
        moment_1,
        moment_2,
    };
    let stable = stable.with_8_bit_moments(&model());
    follow("stable adamw", stable, weight, state, 0.999, |state| {
        &state.moment_2
    });
}

/// With 8 bits a moment that is not finite is its weight, and its block keeps its numbers.
#[test]
fn what_is_not_finite_takes_one_weight() {
    fn check<B: Backend, O: SimpleOptimizer<B>>(name: &str, optimizer: O) {
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut run = run_for::<B, O>(optimizer.clone(), 0, &mut Noise(71));
            let mut noise = Noise(72);
            for step in 0..5 {
                let mut place = 0..;
                let grad = noise.tensor(SHAPE, |noise| match place.next() {
                    Some(300) if step == 2 => bad,
                    _ => noise.number(),
                });
                run.step(0.01, grad);
            }
            let weights = run.weights();
            let lost = weights
                .iter()
                .enumerate()
                .filter(|(_, weight)| !weight.is_finite());
            let lost: Vec<_> = lost.map(|(place, _)| place).take(9).collect();
            let expected: &[usize] = match (name, bad.is_finite()) {
                // No square that is not finite, and no step that is not.
                ("lion" | "sgd" | "stable adamw, 32 bits", true) => &[],
                _ => &[300],
            };
            assert_eq!(lost, expected, "{name}, {bad}");
        }
    }
    let model = model();
    check::<Flex, _>("adamw", adamw());
    check::<NdArray, _>("adamw", adamw());
    let lion = LionConfig::new().build().with_8_bit_moments(&model);
    check::<Flex, _>("lion", lion.clone());
    check::<NdArray, _>("lion", lion);
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check::<Flex, _>("sgd", momentum.in_one_pass().with_8_bit_moments(&model));
    let stable = StableAdamWConfig::new().build().with_8_bit_moments(&model);
    check::<Flex, _>("stable adamw", stable.clone());
    check::<NdArray, _>("stable adamw", stable);
    // Its mean is of the numbers that are finite. A square alone that is not stops its weight.
    let stable = StableAdamWConfig::new().build();
    check::<Flex, _>("stable adamw, 32 bits", stable.clone());
    check::<NdArray, _>("stable adamw, 32 bits", stable);
    // The first of two micro-batches moves no weight.
    for decay in [MomentDecay::EachMicroBatch, MomentDecay::EachStep] {
        check::<Flex, _>("adamw", adamw().accumulating(2, decay).unwrap());
        check::<NdArray, _>("adamw", adamw().accumulating(2, decay).unwrap());
    }
}

#[test]
fn resuming_changes_no_bit() {
    fn check<O: SimpleOptimizer<Flex>>(name: &str, optimizer: O) {
        let mut noise = Noise(21);
        let mut run = run_for(optimizer, 3, &mut noise);
        let state = run.state.clone().unwrap();
        let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::default();
        let bytes = recorder.record(state.clone(), ()).unwrap();
        let loaded: O::State<2> = recorder.load(bytes.clone(), &Default::default()).unwrap();
        assert!(
            bytes == recorder.record(loaded.clone(), ()).unwrap(),
            "{name}"
        );
        // One byte a number for each moment, and little else.
        assert!(
            bytes.len() < 150 * 301 * 21 / 10,
            "{name}: {} bytes",
            bytes.len()
        );

        let binary = BinBytesRecorder::<FullPrecisionSettings>::default();
        let from_binary: O::State<2> = binary
            .load(binary.record(state, ()).unwrap(), &Default::default())
            .unwrap();

        let grads: Vec<Tensor<Flex, 2>> =
            (0..3).map(|_| noise.tensor(SHAPE, Noise::number)).collect();
        let mut resumed = [loaded, from_binary].map(|state| Run {
            optimizer: run.optimizer.clone(),
            weight: run.weight.clone(),
            state: Some(state),
        });
        for grad in grads {
            run.step(0.01, grad.clone());
            for resumed in &mut resumed {
                resumed.step(0.01, grad.clone());
                assert_eq!(run.weights(), resumed.weights(), "{name}");
            }
        }
    }
    let model = model();
    check("adamw", adamw());
    check("lion", LionConfig::new().build().with_8_bit_moments(&model));
    check(
        "stable adamw",
        StableAdamWConfig::new().build().with_8_bit_moments(&model),
    );
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check("sgd", momentum.in_one_pass().with_8_bit_moments(&model));
}

#[test]
fn checkpoints_go_from_32_bits_to_8_and_back() {
    let mut noise = Noise(31);
    let device = Default::default();
    let burn = run_for::<Flex, _>(AdamWConfig::new().build(), 3, &mut noise);
    let grad: Tensor<Flex, 2> = noise.tensor(SHAPE, Noise::number);
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();

    let bytes = recorder.record(burn.state.clone().unwrap(), ()).unwrap();
    let state: AdamWState<Flex> = recorder.load(bytes, &device).unwrap();
    let mut eight_bit = Run {
        optimizer: adamw(),
        weight: burn.weight.clone(),
        state: Some(state),
    };
    eight_bit.step(0.01, grad.clone());
    let state = eight_bit.state.clone().unwrap();
    assert!(matches!(
        state.momentum.moment_1.format(),
        Format::EightBit(_)
    ));
    assert_eq!(state.momentum.time, 4);

    // Burn's own optimizer does not know 8 bits, and says so.
    let bytes = recorder.record(state.clone(), ()).unwrap();
    let refused = std::panic::catch_unwind(|| {
        type Wanted = <burn::optim::AdamW as SimpleOptimizer<Flex>>::State<2>;
        let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
        recorder
            .load::<Wanted>(bytes.clone(), &Default::default())
            .is_err()
    });
    assert!(refused.unwrap_or(true));

    // In one pass with 32 bits it does, and its next record is Burn's again.
    let state: AdamWState<Flex> = recorder.load(bytes, &device).unwrap();
    let optimizer = AdamWConfig::new().in_one_pass();
    let mut full = Run {
        optimizer,
        weight: eight_bit.weight.clone(),
        state: Some(state),
    };
    full.step(0.01, grad);
    let bytes = recorder.record(full.state.clone().unwrap(), ()).unwrap();
    let state: <burn::optim::AdamW as SimpleOptimizer<Flex>>::State<2> =
        recorder.load(bytes, &device).unwrap();
    assert_eq!(state.momentum.time, 5);
    let moment = full.state.unwrap().momentum.moment_1.to_tensor::<2>();
    assert_eq!(moment.to_data(), state.momentum.moment_1.to_data());
}

#[test]
fn a_saved_record_keeps_its_numbers() {
    let mut run = run_for::<Flex, _>(adamw(), 2, &mut Noise(41));
    let record = run.state.clone().unwrap();
    let before = run.saved();
    run.step(0.01, Noise(42).tensor(SHAPE, Noise::number));
    assert!(run.saved() != before);
    run.state = Some(record);
    assert!(run.saved() == before);
}

#[test]
fn backends_without_a_pass_get_the_same_numbers() {
    let mut noises = (Noise(51), Noise(51));
    let flex = run_for::<Flex, _>(adamw(), 5, &mut noises.0);
    let elsewhere = run_for::<NdArray, _>(adamw(), 5, &mut noises.1);
    assert_eq!(flex.weights(), elsewhere.weights());
    assert!(flex.saved() == elsewhere.saved());
}
