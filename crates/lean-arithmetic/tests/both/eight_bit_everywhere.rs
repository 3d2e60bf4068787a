//! Moments in 8 bits with a pass and without.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::DType;

use super::noise::Noise;
use super::run::Run;
use super::side::{
    AccumulateInMoments, AdamW, Device, EightBitMoments, InOnePass, LionConfig, MomentDecay,
    Optimizer, Saved, StableAdamWConfig, lion, model_without_embeddings, places,
};

/// As small as a parameter with moments in 8 bits may be, and a last block that is not full.
const SHAPE: [usize; 2] = [70, 61];

fn adamw() -> AdamW {
    let adamw = AdamWConfig::new().in_one_pass();
    adamw.with_8_bit_moments(&model_without_embeddings())
}

/// A moment that is not finite is its weight, and its block keeps its numbers.
#[test]
fn what_is_not_finite_takes_one_weight() {
    /// Whether a gradient of 1e30 takes it, too: its square is not finite in 32 bits.
    fn check(name: &str, optimizer: impl Optimizer, loses_to_squares: bool) {
        #[allow(clippy::clone_on_copy)] // A device of Burn 0.21 is `Copy`.
        let cases = places().into_iter().flat_map(|device| {
            let of_type = |dtype| [f32::NAN, f32::INFINITY, 1e30].map(|bad| (bad, dtype));
            let cases = [DType::F32, DType::F64].into_iter().flat_map(of_type);
            cases.map(move |(bad, dtype)| (device.clone(), bad, dtype))
        });
        for (device, bad, dtype) in cases {
            let mut noise = Noise(71);
            let weight = noise.tensor(SHAPE, &device, Noise::number);
            let mut run = Run::new(optimizer.clone(), weight.cast(dtype));
            for step in 0..5 {
                let mut place = 0..;
                let grad = noise.tensor(SHAPE, &device, |noise| match place.next() {
                    Some(300) if step == 2 => bad,
                    _ => noise.number(),
                });
                run.step(0.01, grad.cast(dtype));
            }
            let weights = run.weights().into_iter().enumerate();
            let lost = weights.filter(|(_, weight)| !weight.is_finite());
            let lost: Vec<_> = lost.map(|(place, _)| place).take(9).collect();
            let is_lost = loses_to_squares || !bad.is_finite();
            let expected: &[usize] = if is_lost { &[300] } else { &[] };
            assert_eq!(lost, expected, "{name}, {bad}, {dtype:?}, {device:?}");
        }
    }
    let model = model_without_embeddings();
    let lion = lion(&LionConfig::new()).with_8_bit_moments(&model);
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let sgd = sgd.in_one_pass().with_8_bit_moments(&model);
    let stable = || StableAdamWConfig::new().build();
    check("adamw", adamw(), true);
    check("lion", lion, false);
    check("sgd", sgd, false);
    check("stable adamw", stable().with_8_bit_moments(&model), true);
    // Its mean is of the numbers that are finite. A square alone that is not stops its weight.
    check("stable adamw, 32 bits", stable(), false);
    // The first of two micro-batches moves no weight.
    for decay in [MomentDecay::EachMicroBatch, MomentDecay::EachStep] {
        let accumulating = adamw().accumulating(2, decay).unwrap();
        check("adamw, two micro-batches", accumulating, true);
    }
}

/// The weights and the record of a run on this device. The parameter is stepped in two chunks.
pub(crate) fn run_on(device: &Device) -> (Vec<f32>, Saved) {
    let mut noise = Noise(51);
    let mut numbers = || noise.tensor([65, 257], device, Noise::number);
    let mut run = Run::new(adamw(), numbers());
    for _ in 0..5 {
        run.step(0.01, numbers());
    }
    (run.weights(), run.saved())
}

#[test]
fn every_place_has_the_same_numbers() {
    let runs: Vec<_> = places().iter().map(run_on).collect();
    assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
}
