//! A pass writes in place, but not into what somebody else holds.

use burn::optim::AdamWConfig;

use super::noise::Noise;
use super::run::{Run, numbers};
use super::side::{
    AdamW, EightBitMoments, InOnePass, Lean, address, addresses, model_without_embeddings,
};

const SHAPE: [usize; 2] = [100, 300];

/// With moments in 32 bits, bf16 and 8 bits.
fn optimizers() -> [AdamW; 3] {
    let adamw = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let in_8_bits = adamw().with_8_bit_moments(&model_without_embeddings());
    [adamw(), adamw().with_bf16_moments(), in_8_bits]
}

#[test]
fn weight_and_moments_stay_where_they_are() {
    for optimizer in optimizers() {
        let what = format!("{optimizer:?}");
        let mut noise = Noise(1);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE));
        let mut places = Vec::new();
        for _ in 0..4 {
            run.step(0.01, noise.numbers(SHAPE));
            let momentum = &run.state.as_ref().unwrap().momentum;
            let moments = [&momentum.moment_1, &momentum.moment_2].map(addresses);
            places.push((address(run.weight()), moments));
        }
        let stay = places.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(stay, "{what}: {places:?}");
    }
}

#[test]
fn what_is_shared_is_copied_and_keeps_its_numbers() {
    for optimizer in optimizers() {
        let what = format!("{optimizer:?}");
        let mut noise = Noise(2);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE));
        run.step(0.01, noise.numbers(SHAPE));
        let (held, state) = (run.weight().clone(), run.state.clone());
        let (weights, saved) = (run.weights(), run.saved());

        run.step(0.01, noise.numbers(SHAPE));
        assert_ne!(address(run.weight()), address(&held), "{what}");
        assert_ne!(run.weights(), weights, "{what}");
        assert!(run.saved() != saved, "{what}");
        assert_eq!(numbers(&held), weights, "{what}");
        run.state = state;
        assert!(run.saved() == saved, "{what}");
    }
}
