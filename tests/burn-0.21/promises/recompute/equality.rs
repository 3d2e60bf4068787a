//! The weights are those of plain Burn, whatever is recomputed.

#[cfg(feature = "ndarray")]
use burn::backend::NdArray;

use super::recipe;
use crate::harness::models::*;
use crate::harness::prelude::*;

const STEPS: u64 = 4;

/// How activations are recomputed, if they are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A scope around each block of the model, not armed.
    Unarmed,
    Blocks,
    /// One scope around all of it.
    Whole,
    Policy(Recompute),
}

impl Way {
    fn loss<S: Scenario, B: AutodiffBackend>(self, model: &S::Model<B>, step: u64) -> Tensor<B, 1> {
        let loss = || S::loss::<B>(model, Size::Small, step);
        match self {
            Way::Unarmed | Way::Blocks => scopes::in_use(loss),
            Way::Whole => checkpoint(loss),
            Way::Policy(_) => loss(),
        }
    }

    fn train<S, B, C>(self, start: &Start) -> Trajectory
    where
        S: Scenario,
        B: Backend,
        C: CheckpointStrategy,
    {
        let model = start.model::<S, Release<B, C>>();
        let parameters = trainable::<Release<B, C>, _>(&model);
        let mut optim = recipe()
            .init::<Release<B, C>, S::Model<Release<B, C>>>()
            .with_gradient_release();
        if let Way::Policy(recompute) = self {
            optim = optim.with_recompute(recompute);
        }
        let loss =
            |model: &S::Model<Release<B, C>>, step| self.loss::<S, Release<B, C>>(model, step);
        if self == Way::Unarmed {
            return run::ordinary(model, &mut optim, STEPS, &loss);
        }
        let (trajectory, reports) = run::armed(model, &mut optim, STEPS, &loss);
        assert_run_released(&reports, parameters);
        trajectory
    }
}

/// After every step no further apart than `tolerance`.
pub(crate) fn near_numbers<S, B, C>(tolerance: f32)
where
    S: Scenario,
    B: Backend,
    C: CheckpointStrategy,
{
    let start = Start::new::<S>(Size::Small);
    let plain = run::plain::<S, _, Plain<B, C>>(&start, &recipe(), STEPS);
    let last = plain.steps.last().expect("there are steps");
    last.assert_moved(&plain.first, "plain");
    for way in [
        Way::Unarmed,
        Way::Blocks,
        Way::Whole,
        Way::Policy(Recompute::None),
        Way::Policy(Recompute::Automatic),
        Way::Policy(Recompute::Budget(1 << 12)),
    ] {
        let recomputed = way.train::<S, B, C>(&start);
        run::assert_near_steps(
            &recomputed.steps,
            &plain.steps,
            tolerance,
            format!("{way:?}"),
        );
    }
}

/// A test per line: the model on these backends.
macro_rules! models {
    ($backend:ty, $strategy:ty: $($name:ident $scenario:ty),* $(,)?) => {
        use super::*;

        $(
            #[test]
            fn $name() {
                near_numbers::<$scenario, $backend, $strategy>(0.0);
            }
        )*
    };
}

mod flex {
    models! {
        Flex, NoCheckpointing:
        mlp Mlp,
        cnn Cnn,
        transformer Transformer,
        tied Tied,
        recurrent Recurrent,
        normalised_recurrent NormalisedRecurrent,
        views Views,
        weight_norm WeightNorm,
        matrices Matrices,
        u_net UNet,
        deep Deep,
    }
}

/// Burn's own recomputing beside it: on models in which it has something to do.
mod flex_balanced {
    models! {
        Flex, BalancedCheckpointing:
        cnn Cnn,
        transformer Transformer,
        tied Tied,
        normalised_recurrent NormalisedRecurrent,
        views Views,
        weight_norm WeightNorm,
    }
}

#[cfg(feature = "ndarray")]
mod ndarray {
    models! {
        NdArray, NoCheckpointing:
        cnn Cnn,
        transformer Transformer,
        normalised_recurrent NormalisedRecurrent,
        views Views,
        u_net UNet,
    }
}
