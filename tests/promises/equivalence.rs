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
use crate::harness::run::{self, Start, assert_run_released, trainable};
use crate::harness::{Plain, Recipe, Release};

const STEPS: u64 = 20;

/// Equal to the last bit.
fn same_numbers<S, R, B, C>(recipe: &R)
where
    S: Scenario,
    R: Recipe,
    B: Backend,
    C: CheckpointStrategy,
{
    near_numbers::<S, R, B, C>(recipe, 0.0);
}

/// After every step no further apart than `tolerance`.
pub(crate) fn near_numbers<S, R, B, C>(recipe: &R, tolerance: f32)
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
    for (step, (release, plain)) in release.steps.iter().zip(&plain.steps).enumerate() {
        release.assert_near(plain, tolerance, format!("after step {step}"));
    }
    let last = plain.steps.last().expect("there are steps");
    last.assert_moved(&plain.first, "plain");
    assert!(last.finite(), "the run blew up");
    assert_run_released(&reports, parameters);
}

/// Every optimizer of Burn that takes parameters of any shape, and both ways of clipping.
fn same_numbers_with_every_optimizer<S, B, C>()
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    macro_rules! each {
        ($($recipe:expr),* $(,)?) => {
            $(same_numbers::<S, _, B, C>(&$recipe);)*
        };
    }
    each![
        SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
            .with_weight_decay(Some(WeightDecayConfig::new(0.01))),
        AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.01))),
        AdamWConfig::new()
            .with_weight_decay(0.05)
            .with_amsgrad(true)
            .with_cautious_weight_decay(true),
        AdaGradConfig::new(),
        RmsPropConfig::new().with_centered(true),
        AdanConfig::new().with_weight_decay(0.02),
        AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(1e-3))),
        SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.01))),
    ];
}

/// Two of them, one of which clips: optimizers know no backend.
fn same_numbers_with_two_optimizers<S, B, C>()
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    let adamw = AdamWConfig::new().with_weight_decay(0.05);
    same_numbers::<S, _, B, C>(&adamw.with_amsgrad(true));
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let norm = Some(GradientClippingConfig::Norm(0.01));
    same_numbers::<S, _, B, C>(&sgd.with_gradient_clipping(norm));
}

/// A test per line: the model on Flex and NdArray, with and without recomputing.
macro_rules! models {
    ($($name:ident: $scenario:ty;)*) => {
        $(
            mod $name {
                use super::*;

                #[test]
                fn flex() {
                    same_numbers_with_every_optimizer::<$scenario, Flex, NoCheckpointing>();
                }

                #[test]
                fn flex_recomputing() {
                    same_numbers_with_every_optimizer::<$scenario, Flex, BalancedCheckpointing>();
                }

                #[test]
                fn ndarray() {
                    same_numbers_with_two_optimizers::<$scenario, NdArray, NoCheckpointing>();
                }

                #[test]
                fn ndarray_recomputing() {
                    same_numbers_with_two_optimizers::<$scenario, NdArray, BalancedCheckpointing>();
                }
            }
        )*
    };
}

mod models {
    use super::*;

    models! {
        mlp: Mlp;
        cnn: Cnn;
        transformer: Transformer;
        tied: Tied;
        views: Views;
        matrices: Matrices;
        lstm: Recurrent;
        normalised_lstm: NormalisedRecurrent;
        weight_norm: WeightNorm;
    }
}

#[test]
fn every_optimizer_on_ndarray() {
    same_numbers_with_every_optimizer::<Mlp, NdArray, NoCheckpointing>();
}

/// Muon takes matrices only.
#[test]
fn muon() {
    let recipe = MuonConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    same_numbers::<Matrices, _, Flex, NoCheckpointing>(&recipe);
    same_numbers::<Matrices, _, Flex, BalancedCheckpointing>(&recipe);
    same_numbers::<Matrices, _, NdArray, NoCheckpointing>(&recipe);
    same_numbers::<Matrices, _, NdArray, BalancedCheckpointing>(&recipe);
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
    use crate::harness::memory::Bound;

    #[test]
    fn mlp() {
        memory::alone("equivalence::bytes::mlp", || {
            memory::saves::<Mlp>(Bound::Formula)
        });
    }

    #[test]
    fn cnn() {
        memory::alone("equivalence::bytes::cnn", || {
            memory::saves::<Cnn>(Bound::Formula)
        });
    }

    #[test]
    fn transformer() {
        memory::alone("equivalence::bytes::transformer", || {
            memory::saves::<Transformer>(Bound::Discarding);
        });
    }

    #[test]
    fn tied() {
        memory::alone("equivalence::bytes::tied", || {
            memory::saves::<Tied>(Bound::Discarding)
        });
    }

    #[test]
    fn views() {
        memory::alone("equivalence::bytes::views", || {
            memory::saves::<Views>(Bound::Discarding)
        });
    }
}
