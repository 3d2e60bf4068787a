//! The weights of other packages, by `make.py` in this folder, for the tests of every version of
//! Burn.

const WEIGHTS: &str = include_str!("weights.csv");

const STEPS: usize = 30;

pub(crate) const MICRO_BATCHES: usize = 3;

pub(crate) const LR: f64 = 0.01;

/// The reference has 64 bits for a number and these have 32, 6e-8 of a number near one, in a dozen
/// operations a step: a few of these add up over thirty steps.
const TOLERANCE: f64 = 3e-6;

/// Numbers in [-1, 1) that 32 bits hold exactly, for a tensor of these dimensions: the formula of
/// `make.py`.
pub(crate) fn pattern<const D: usize>(seed: usize, shape: [usize; D]) -> Vec<f32> {
    (0..shape.iter().product())
        .map(|place| (37 * place + 11 * seed + place * place * (seed % 5 + 1)) % 64)
        .map(|value| value as f32 / 32.0 - 1.0)
        .collect()
}

/// Runs every step, and compares: `step` gets the seed and the scale of its gradients, and returns
/// all weights after it.
pub(crate) fn assert_reference(name: &str, mut step: impl FnMut(usize, f32) -> Vec<f32>) {
    let lines = WEIGHTS
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(','));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), STEPS, "{name} is in the reference");
    for (time, line) in lines.into_iter().enumerate() {
        let scale = if time % 7 == 6 { 8.0 } else { 0.25 };
        let weights = step(10 + 3 * time, scale);
        let wanted: Vec<f64> = line
            .split(',')
            .skip(1)
            .map(|number| number.parse().unwrap())
            .collect();
        assert_eq!(weights.len(), wanted.len(), "{name}");
        for (place, (weight, wanted)) in weights.iter().zip(wanted).enumerate() {
            let error = (f64::from(*weight) - wanted).abs();
            assert!(
                error < TOLERANCE,
                "{name}, step {time}, weight {place}: {weight} instead of {wanted}"
            );
        }
    }
}
