//! Moments in 8 bits.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::DType;

use super::noise::Noise;
use super::run::{Run, numbers};
use super::side::{
    AdamW, BurnsAdamWState, EightBitMoments, Format, InOnePass, Kind, LionConfig, Moment,
    Optimizer, StableAdamW, StableAdamWConfig, Tensor, device, lion, model_with_embedding,
};

/// Two chunks, and a last block that is not full.
const SHAPE: [usize; 2] = [65, 257];
const NUMBERS: usize = 65 * 257;

/// With 8 bits for all but the shape `[100, 50]`, which is that of an embedding.
fn adamw() -> AdamW {
    let adamw = AdamWConfig::new().in_one_pass();
    adamw.with_8_bit_moments(&model_with_embedding())
}

fn stable_adamw() -> StableAdamW {
    let stable = StableAdamWConfig::new().build();
    stable.with_8_bit_moments(&model_with_embedding())
}

fn run_for<O: Optimizer>(optimizer: O, steps: usize, noise: &mut Noise) -> Run<O, 2> {
    let mut run = Run::new(optimizer, noise.numbers(SHAPE));
    for _ in 0..steps {
        run.step(0.01, noise.numbers(SHAPE));
    }
    run
}

fn floats(moment: &Moment<2>) -> Vec<f32> {
    let floats: Tensor<2> = moment.to_tensor();
    numbers(&floats)
}

#[test]
fn a_parameter_has_moments_in_8_bits_if_it_is_large_and_no_embedding() {
    let mut noise = Noise(1);
    let mut moments = |shape: [usize; 2]| {
        let mut run = Run::new(adamw(), noise.numbers(shape));
        run.step(0.01, noise.numbers(shape));
        let momentum = run.state.unwrap().momentum;
        [momentum.moment_1, momentum.moment_2]
    };
    let moments_of_large = moments(SHAPE);
    let formats = moments_of_large.each_ref().map(|moment| moment.format());
    let kinds = [Kind::Signed, Kind::Positive];
    assert_eq!(formats, kinds.map(Format::EightBit));
    // 128 codes and a scale each.
    let bytes = 132 * NUMBERS.div_ceil(128);
    assert_eq!(moments_of_large[0].bytes(), bytes);
    for kept in [[63, 65], [100, 50]] {
        let [moment, _] = moments(kept);
        assert_eq!(moment.format(), Format::Float(DType::F32), "{kept:?}");
    }
    // The head has as many elements as the embedding, in another shape.
    let [moment, _] = moments([50, 100]);
    assert_eq!(moment.format(), formats[0]);
}

/// Drawn before the others, it would take their random numbers.
#[test]
fn an_embedding_is_not_drawn_for_its_shape() {
    let model = model_with_embedding();
    let _ = AdamWConfig::new().in_one_pass().with_8_bit_moments(&model);
    assert!(!model.0.weight.is_initialized());
}

/// Both are the same arithmetic: what is rounded are the moments after the step. With gradients that are even, uneven, mostly zero, all zero,
/// and with spikes.
#[test]
fn from_the_same_moments_a_step_is_that_of_32_bits() {
    type Gradient = fn(&mut Noise) -> f32;
    const GRADIENTS: [(&str, Gradient); 5] = [
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
    fn check<O: Optimizer>(
        name: &str,
        [eight_bit, full]: [O; 2],
        moments: fn(&mut O::State<2>) -> [&mut Moment<2>; 2],
    ) {
        for (kind, gradient) in GRADIENTS {
            let mut noise = Noise(11);
            let mut eight_bit = run_for(eight_bit.clone(), 1, &mut noise);
            for step in 0..10 {
                let what = format!("{name}, {kind} gradients, step {step}");
                let mut full = Run {
                    optimizer: full.clone(),
                    weight: eight_bit.weight.clone(),
                    state: eight_bit.state.clone(),
                };
                for moment in moments(full.state.as_mut().unwrap()) {
                    let floats: Tensor<2> = moment.to_tensor();
                    *moment = Moment::from_tensor(floats, Format::Float(DType::F32));
                }
                let grad = noise.tensor(SHAPE, &device(), gradient);
                full.step(0.01, grad.clone());
                eight_bit.step(0.01, grad);
                assert!(full.bits() == eight_bit.bits(), "{what}");

                let exact = moments(full.state.as_mut().unwrap());
                let rounded = moments(eight_bit.state.as_mut().unwrap());
                for (exact, rounded) in exact.into_iter().zip(rounded) {
                    let (tensor, format): (Tensor<2>, _) = (exact.to_tensor(), rounded.format());
                    let elsewhere: Moment<2> = Moment::from_tensor(tensor, format);
                    let pairs = floats(&elsewhere).into_iter().zip(floats(rounded));
                    let others = pairs.filter(|(one, other)| one != other).count();
                    // Without a gradient the codes stay, and the scales shrink; but the last bit of
                    // a root takes one code in 10,000 or so below its own. Otherwise the noise is
                    // not that of a number without a step.
                    match kind {
                        "zero" => assert!(others < NUMBERS / 1000, "{what}: {others}"),
                        _ => assert!(others > NUMBERS / 200, "{what}: {others}"),
                    }
                    let (exact, rounded) = (floats(exact), floats(rounded));
                    let most = exact.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    let errors = exact
                        .iter()
                        .zip(rounded)
                        .map(|(exact, x)| (exact - x).abs());
                    let error = errors.max_by(f32::total_cmp).unwrap();
                    // Between the largest two codes.
                    let is_signed = format == Format::EightBit(Kind::Signed);
                    let limit = if is_signed { 2.0 / 127.0 } else { 4.0 / 255.0 } * most;
                    assert!(error > 0.0 && error <= limit, "{what}: {error} of {most}");
                }
            }
        }
    }
    let full = AdamWConfig::new().in_one_pass();
    check("adamw", [adamw(), full], |state| {
        let momentum = &mut state.momentum;
        [&mut momentum.moment_1, &mut momentum.moment_2]
    });
    let full = StableAdamWConfig::new().build();
    check("stable adamw", [stable_adamw(), full], |state| {
        let momentum = &mut state.momentum;
        [&mut momentum.moment_1, &mut momentum.moment_2]
    });
}

/// In a block with weights that go on, it would walk away if its first moment stopped decaying before
/// the second one: a unit that has died is a column of its matrix.
#[test]
fn a_weight_whose_gradient_ends_stays() {
    fn check<O: EightBitMoments + Optimizer>(name: &str, optimizer: O, steps: usize) {
        const LR: f64 = 1e-3;
        // As small as 8 bits are for.
        const SHAPE: [usize; 2] = [64, 65];
        let ends = |place: usize| place.is_multiple_of(32);
        let mut noise = Noise(9);
        let weight = noise.numbers(SHAPE);
        let mut full = Run::new(optimizer.clone(), weight.clone());
        let eight_bit = optimizer.with_8_bit_moments(&model_with_embedding());
        let mut eight_bit = Run::new(eight_bit, weight);
        for step in 0..steps {
            let mut places = 0..;
            let grad = noise.tensor(SHAPE, &device(), |noise| {
                let number = 0.01 * noise.number();
                let has_ended = step > 50 && ends(places.next().expect("endless"));
                if has_ended { 0.0 } else { number }
            });
            full.step(LR, grad.clone());
            eight_bit.step(LR, grad);
        }
        let pairs = eight_bit.weights().into_iter().zip(full.weights());
        for (place, (found, expected)) in pairs.enumerate().filter(|(place, _)| ends(*place)) {
            // Others, which go on, are off by up to three.
            let off = (found - expected).abs() / LR as f32;
            assert!(off < 2.0, "{name}, {place}: off by {off} rates");
        }
    }
    let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8);
    check("adamw", adamw.in_one_pass(), 400);
    check("stable adamw", StableAdamWConfig::new().build(), 800);
}

#[test]
fn resuming_changes_no_bit() {
    fn check(name: &str, optimizer: impl Optimizer, moments: usize) {
        let mut noise = Noise(21);
        let mut run = run_for(optimizer, 3, &mut noise);
        let saved = run.saved();
        // One byte a number for each moment, four for each block of 128, and little else.
        let least = moments * (NUMBERS + 4 * NUMBERS.div_ceil(128));
        let bytes = saved.bytes();
        assert!(
            (least..least + 400).contains(&bytes),
            "{name}: {bytes} for {least}"
        );
        let mut resumed = run.resumed(run.optimizer.clone());
        assert!(resumed.saved() == saved, "{name}");
        for _ in 0..3 {
            let grad = noise.numbers(SHAPE);
            run.step(0.01, grad.clone());
            resumed.step(0.01, grad);
            assert_eq!(run.weights(), resumed.weights(), "{name}");
        }
    }
    let model = model_with_embedding();
    let amsgrad = AdamWConfig::new().with_amsgrad(true).in_one_pass();
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check("adamw", adamw(), 2);
    check("amsgrad", amsgrad.with_8_bit_moments(&model), 3);
    check(
        "lion",
        lion(&LionConfig::new()).with_8_bit_moments(&model),
        1,
    );
    check("stable adamw", stable_adamw(), 2);
    check("sgd", sgd.in_one_pass().with_8_bit_moments(&model), 1);
}

#[test]
fn checkpoints_go_from_32_bits_to_8_and_back() {
    let mut noise = Noise(31);
    let burns = run_for(AdamWConfig::new().build(), 3, &mut noise);
    let grad = noise.numbers(SHAPE);
    let mut eight_bit = burns.resumed(adamw());
    eight_bit.step(0.01, grad.clone());
    let momentum = &eight_bit.state.as_ref().unwrap().momentum;
    assert_eq!(momentum.moment_1.format(), Format::EightBit(Kind::Signed));
    assert_eq!(momentum.time, 4);

    // In 32 bits its next record is Burn's again.
    let mut full = eight_bit.resumed(AdamWConfig::new().in_one_pass());
    full.step(0.01, grad);
    let burns = full.resumed(AdamWConfig::new().build()).state.unwrap();
    assert_eq!(burns.momentum.time, 5);
    let moment_1 = floats(&full.state.unwrap().momentum.moment_1);
    assert_eq!(moment_1, numbers(&burns.momentum.moment_1));
}

/// The largest second moment begins with the one there is.
#[test]
fn a_record_without_amsgrad_goes_on_with_it() {
    let mut noise = Noise(34);
    let before = run_for(AdamWConfig::new().build(), 3, &mut noise);
    let amsgrad = AdamWConfig::new().with_amsgrad(true);
    let in_8_bits = amsgrad.in_one_pass();
    let in_8_bits = in_8_bits.with_8_bit_moments(&model_with_embedding());
    let mut plain = before.resumed(amsgrad.build());
    let mut full = before.resumed(amsgrad.in_one_pass());
    let mut eight_bit = before.resumed(in_8_bits);
    for _ in 0..3 {
        let grad = noise.numbers(SHAPE);
        plain.step(0.01, grad.clone());
        full.step(0.01, grad.clone());
        eight_bit.step(0.01, grad);
        assert_eq!(full.weights(), plain.weights());
        assert!(full.saved() == plain.saved());
        for (found, expected) in eight_bit.weights().iter().zip(plain.weights()) {
            assert!((found - expected).abs() < 0.01, "{found}, {expected}");
        }
    }
}

/// It would take the codes for numbers.
#[test]
fn burns_own_optimizer_refuses_a_record_in_8_bits() {
    let saved = run_for(adamw(), 1, &mut Noise(32)).saved();
    let load = || saved.load::<BurnsAdamWState<2>>(&device()).is_some();
    let is_loaded = std::panic::catch_unwind(load).unwrap_or(false);
    assert!(!is_loaded);
}
