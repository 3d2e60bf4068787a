//! The same weights as plain Burn after every step, and the memory it saves.

use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::{Flex, NdArray};
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::backend::Backend;

use crate::harness::memory;
use crate::harness::models::*;
use crate::harness::run::{self, Start, assert_all_released, trainable};
use crate::harness::{Plain, Recipe, Release};

const STEPS: u64 = 20;

/// How near the weights have to be.
#[derive(Clone, Copy)]
enum Agreement {
    Bitwise,
    /// Largest difference, relative above one.
    Within(f32),
}

fn same_numbers<S, R, B, C>(recipe: &R, agreement: Agreement)
where
    S: Scenario,
    R: Recipe,
    B: Backend,
    C: CheckpointStrategy,
{
    let start = Start::new::<S>(Size::Small);
    let plain = run::plain::<S, R, Plain<B, C>>(&start, recipe, STEPS);
    let (release, reports) = run::release::<S, R, Release<B, C>>(&start, recipe, STEPS);
    let parameters = trainable::<Plain<B, C>, _>(&start.model::<S, Plain<B, C>>());

    release
        .first
        .assert_same(&plain.first, "before the first step");
    let mut largest = 0.0f32;
    for (step, (release, plain)) in release.steps.iter().zip(&plain.steps).enumerate() {
        match agreement {
            Agreement::Bitwise => release.assert_same(plain, format!("after step {step}")),
            Agreement::Within(_) => largest = largest.max(release.distance(plain)),
        }
    }
    if let Agreement::Within(tolerance) = agreement {
        println!("largest difference: {largest:e}");
        assert!(
            largest <= tolerance,
            "differs by {largest:e}, allowed {tolerance:e}"
        );
    }
    let last = plain.steps.last().expect("there are steps");
    last.assert_moved(&plain.first, "plain");
    assert!(last.finite(), "the run blew up");
    for report in &reports {
        assert_all_released(report, parameters);
    }
}

/// Everything AdamW can do at once.
fn adamw() -> AdamWConfig {
    AdamWConfig::new()
        .with_weight_decay(0.05)
        .with_amsgrad(true)
        .with_cautious_weight_decay(true)
}

/// A test per line: the model on Flex and NdArray, with and without recomputing.
macro_rules! models {
    ($($name:ident: $scenario:ty, $agreement:expr;)*) => {
        mod models {
            use super::*;
            $(
                mod $name {
                    use super::*;

                    #[test]
                    fn flex() {
                        same_numbers::<$scenario, _, Flex, NoCheckpointing>(&adamw(), $agreement);
                    }

                    #[test]
                    fn flex_recomputing() {
                        same_numbers::<$scenario, _, Flex, BalancedCheckpointing>(
                            &adamw(), $agreement,
                        );
                    }

                    #[test]
                    fn ndarray() {
                        same_numbers::<$scenario, _, NdArray, NoCheckpointing>(
                            &adamw(), $agreement,
                        );
                    }

                    #[test]
                    fn ndarray_recomputing() {
                        same_numbers::<$scenario, _, NdArray, BalancedCheckpointing>(
                            &adamw(), $agreement,
                        );
                    }
                }
            )*
        }
    };
}

models! {
    mlp: Mlp, Agreement::Bitwise;
    cnn: Cnn, Agreement::Bitwise;
    transformer: Transformer, Agreement::Bitwise;
    tied: Tied, Agreement::Bitwise;
    views: Views, Agreement::Bitwise;
    matrices: Matrices, Agreement::Bitwise;
    lstm: Recurrent, Agreement::Within(1e-6);
    weight_norm: WeightNorm, Agreement::Within(1e-6);
}

/// A test per line: the optimizer on Flex and, recomputing, on NdArray.
macro_rules! optimizers {
    ($($name:ident: $scenario:ty, $recipe:expr;)*) => {
        mod optimizers {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let recipe = $recipe;
                    same_numbers::<$scenario, _, Flex, NoCheckpointing>(
                        &recipe, Agreement::Bitwise,
                    );
                    same_numbers::<$scenario, _, NdArray, BalancedCheckpointing>(
                        &recipe, Agreement::Bitwise,
                    );
                }
            )*
        }
    };
}

optimizers! {
    sgd: Mlp, SgdConfig::new();
    sgd_momentum_and_decay: Mlp, SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    adam: Mlp, AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    adam_amsgrad: Mlp, AdamConfig::new().with_amsgrad(true);
    adamw: Mlp, AdamWConfig::new();
    adamw_amsgrad_cautious: Mlp, super::adamw();
    adagrad: Mlp, AdaGradConfig::new();
    rmsprop: Mlp, RmsPropConfig::new().with_centered(true);
    adan: Mlp, AdanConfig::new().with_weight_decay(0.02);
    muon: Matrices, MuonConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    clip_by_value: Mlp, AdamConfig::new()
        .with_grad_clipping(Some(GradientClippingConfig::Value(1e-3)));
    clip_by_norm: Mlp, SgdConfig::new()
        .with_gradient_clipping(Some(GradientClippingConfig::Norm(0.01)));
}

/// Clipping that never clips would pass the tests above: plain Burn itself must feel it.
#[test]
fn clipping_bites() {
    let start = Start::new::<Mlp>(Size::Small);
    let last = |clipping| {
        let recipe = SgdConfig::new().with_gradient_clipping(clipping);
        let mut run = run::plain::<Mlp, _, Plain>(&start, &recipe, STEPS);
        run.steps.pop().expect("there are steps")
    };
    let free = last(None);
    assert!(!free.same(&last(Some(GradientClippingConfig::Value(1e-3)))));
    assert!(!free.same(&last(Some(GradientClippingConfig::Norm(0.01)))));
}

mod bytes {
    use super::*;

    #[test]
    fn mlp() {
        memory::alone("equivalence::bytes::mlp", memory::saves::<Mlp>);
    }

    #[test]
    fn transformer() {
        memory::alone(
            "equivalence::bytes::transformer",
            memory::saves::<Transformer>,
        );
    }

    #[test]
    fn cnn() {
        memory::alone("equivalence::bytes::cnn", memory::saves::<Cnn>);
    }

    #[test]
    fn tied() {
        memory::alone("equivalence::bytes::tied", memory::saves::<Tied>);
    }

    #[test]
    fn views() {
        memory::alone("equivalence::bytes::views", memory::saves::<Views>);
    }
}
