//! The same weights as plain Burn after every step, and the memory it saves.

#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::optim::*;

use crate::harness::memory::{self, Bound};
use crate::harness::models::*;
use crate::harness::prelude::*;

const STEPS: u64 = 8;

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
    let (_, reports) = run::compare::<S, R, B, C>(&start, recipe, STEPS, tolerance);
    let parameters = trainable::<Plain<B, C>, _>(&start.model::<S, Plain<B, C>>());
    assert_run_released(&reports, parameters);
}

/// Every gradient counts in all later steps, and no setting hides its size.
fn sgd() -> SgdConfig {
    SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)))
}

pub(crate) fn clipped_sgd() -> SgdConfig {
    sgd().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.01)))
}

/// Every optimizer of Burn that takes parameters of any shape, and both ways of clipping.
fn same_numbers_with_every_optimizer<S: Scenario, B: Backend>() {
    macro_rules! each {
        ($($recipe:expr),* $(,)?) => {
            $(same_numbers::<S, _, B, NoCheckpointing>(&$recipe);)*
        };
    }
    each![
        sgd(),
        AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.01))),
        AdamWConfig::new()
            .with_weight_decay(0.05)
            .with_amsgrad(true)
            .with_cautious_weight_decay(true),
        AdaGradConfig::new(),
        RmsPropConfig::new().with_centered(true),
        AdanConfig::new().with_weight_decay(0.02),
        AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(1e-3))),
        clipped_sgd(),
    ];
}

/// An optimizer knows no model, and no way of recomputing: all optimizers on models of parameters
/// of one, two and four dimensions (every instance is compiled anew).
mod optimizers {
    use super::*;

    #[test]
    fn mlp() {
        same_numbers_with_every_optimizer::<Mlp, Flex>();
    }

    #[test]
    fn cnn() {
        same_numbers_with_every_optimizer::<Cnn, Flex>();
    }

    #[cfg(feature = "ndarray")]
    #[test]
    fn mlp_on_ndarray() {
        same_numbers_with_every_optimizer::<Mlp, NdArray>();
    }

    /// Muon takes matrices only.
    #[test]
    fn muon() {
        let recipe = MuonConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
        same_numbers::<Matrices, _, Flex, NoCheckpointing>(&recipe);
        #[cfg(feature = "ndarray")]
        same_numbers::<Matrices, _, NdArray, NoCheckpointing>(&recipe);
    }
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

/// A test per line: the model and what its peak is compared with.
macro_rules! bytes {
    ($($name:ident: $scenario:ty, $bound:expr;)*) => {
        mod bytes {
            use super::*;

            $(
                #[test]
                fn $name() {
                    memory::alone(|| memory::saves::<$scenario>($bound));
                }
            )*
        }
    };
}

bytes! {
    mlp: Mlp, Bound::Formula;
    cnn: Cnn, Bound::Formula;
    transformer: Transformer, Bound::Discarding;
    tied: Tied, Bound::Discarding;
    views: Views, Bound::Discarding;
}
