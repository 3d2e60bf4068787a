//! As `equality`, with more models.

use burn::nn::DropoutConfig;

use super::equality::same;
use super::{Inner, TOLERANCE};
use crate::harness::prelude::*;
use crate::recompute;

macro_rules! weights_are_plain_burns {
    ($($test:ident: $model:ty, $checkpointing:ty;)*) => {$(
        #[test]
        fn $test() {
            same::<$model, $checkpointing>();
        }
    )*};
}

weights_are_plain_burns! {
    mlp_recomputing: Mlp, BalancedCheckpointing;
    cnn: Cnn, NoCheckpointing;
    transformer: Transformer, NoCheckpointing;
    transformer_recomputing: Transformer, BalancedCheckpointing;
    tied: Tied, NoCheckpointing;
    views: Views, NoCheckpointing;
    lstm: Recurrent, NoCheckpointing;
    weight_norm: WeightNorm, NoCheckpointing;
}

#[test]
fn transformer_with_activations_recomputed() {
    turn::take::<Inner>();
    recompute::equality::near_numbers::<Transformer, Inner, NoCheckpointing>(TOLERANCE);
}

/// Dropout's masks, packed to bits on the device and back.
#[test]
fn dropout_recomputed() {
    fn gradient<B: AutodiffBackend>() -> Vec<f32> {
        let device = Default::default();
        B::seed(&device, 7);
        let x = noise::<B, 2>(0, [40, 30], &device).require_grad();
        let dropout = DropoutConfig::new(0.3).init();
        let y = checkpoint(|| dropout.forward(x.clone().exp()));
        let grads = y.square().mean().backward();
        let gradient = x.grad(&grads).expect("it is required");
        gradient.into_data().to_vec().expect("floats")
    }

    turn::take::<Inner>();
    let plain = gradient::<Plain<Inner>>();
    assert!(plain.contains(&0.0) && plain.iter().any(|gradient| *gradient != 0.0));
    for (given, expected) in gradient::<Release<Inner>>().iter().zip(&plain) {
        assert!(
            (given - expected).abs() <= TOLERANCE,
            "{given}, not {expected}"
        );
    }
}
