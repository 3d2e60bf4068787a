//! The weights are those of plain Burn that keeps its activations.

use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::{Flex, NdArray};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::Backend;
use burn_gradient_release::{Recompute, WithGradientRelease, checkpoint};

use crate::harness::models::*;
use crate::harness::run::{self, RATE, Start, Trajectory};
use crate::harness::{Plain, Release, Weights, scopes};

const STEPS: u64 = 6;

/// How activations are recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A scope around each block of the model, not armed.
    Unarmed,
    Blocks,
    /// One scope around all of it.
    Whole,
    Policy(Recompute),
}

fn train<S, B, C>(start: &Start, way: Way) -> Trajectory
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    type R<B, C> = Release<B, C>;
    let mut model = start.model::<S, R<B, C>>();
    let recipe = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let mut optim = recipe
        .init::<R<B, C>, S::Model<R<B, C>>>()
        .with_gradient_release();
    if let Way::Policy(recompute) = way {
        optim = optim.with_recompute(recompute);
    }
    let first = Weights::of::<R<B, C>, _>(&model);
    let mut steps = Vec::new();
    for step in 0..STEPS {
        if way != Way::Unarmed {
            model = optim.arm(RATE, model);
        }
        let loss = || S::loss::<R<B, C>>(&model, Size::Small, step);
        let loss = match way {
            Way::Unarmed | Way::Blocks => scopes::in_use(loss),
            Way::Whole => checkpoint(loss),
            Way::Policy(_) => loss(),
        };
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        if way != Way::Unarmed {
            assert_eq!(grads.len(), 0, "{way:?} step {step}");
        }
        model = optim.step(RATE, model, grads);
        if way != Way::Unarmed {
            let report = optim.last_step().expect("a step was taken");
            let parameters = run::trainable::<R<B, C>, _>(&model);
            run::assert_all_released(&report, parameters);
        }
        steps.push(Weights::of::<R<B, C>, _>(&model));
    }
    Trajectory { first, steps }
}

fn same_numbers<S, B, C>()
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    near_numbers::<S, B, C>(0.0);
}

/// After every step no further apart than `tolerance`.
pub(crate) fn near_numbers<S, B, C>(tolerance: f32)
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    let start = Start::new::<S>(Size::Small);
    let recipe = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let plain = run::plain::<S, _, Plain<B, C>>(&start, &recipe, STEPS);
    let last = plain.steps.last().expect("there are steps");
    last.assert_moved(&plain.first, "plain");
    for way in [
        Way::Unarmed,
        Way::Blocks,
        Way::Whole,
        Way::Policy(Recompute::Automatic),
        Way::Policy(Recompute::Budget(1 << 12)),
    ] {
        let recomputed = train::<S, B, C>(&start, way);
        for (step, (given, expected)) in recomputed.steps.iter().zip(&plain.steps).enumerate() {
            given.assert_near(expected, tolerance, format!("{way:?}, after step {step}"));
        }
    }
}

/// A test per line: the model on Flex and NdArray, with and without Burn's own recomputing.
macro_rules! models {
    ($($name:ident: $scenario:ty;)*) => {
        $(
            mod $name {
                use super::*;

                #[test]
                fn flex() {
                    same_numbers::<$scenario, Flex, NoCheckpointing>();
                }

                #[test]
                fn flex_balanced() {
                    same_numbers::<$scenario, Flex, BalancedCheckpointing>();
                }

                #[test]
                fn ndarray() {
                    same_numbers::<$scenario, NdArray, NoCheckpointing>();
                }
            }
        )*
    };
}

models! {
    mlp: Mlp;
    cnn: Cnn;
    transformer: Transformer;
    tied: Tied;
    recurrent: Recurrent;
    normalised_recurrent: NormalisedRecurrent;
    views: Views;
    weight_norm: WeightNorm;
    matrices: Matrices;
    u_net: UNet;
    deep: Deep;
}
