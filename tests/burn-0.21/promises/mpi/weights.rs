//! The weights of all replicas, after each step.

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn::optim::{AdaGradConfig, AdanConfig, MuonConfig, RmsPropConfig};
use burn_gradient_release_data_parallel::DataParallel;

use super::reference::{Parts, mean_grads, share};
use crate::clipping::by_hand::clip_global;
use crate::harness::models::{Matrices, TransformerModel};
use crate::harness::prelude::*;
use crate::harness::ranks::ranks;

pub(crate) const STEPS: u64 = 20;

/// How the replicas take their steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Armed,
    Unarmed,
    /// Over so many batches.
    Accumulated(u64),
    /// Clipped by the global norm, in two passes.
    Clipped(f64),
    Recomputed,
}

/// Fails unless every replica has the weights and states of the reference, after each step. Returns
/// how often a parameter was released.
pub(crate) fn equals_one_process<S: Scenario>(
    parallel: &DataParallel,
    recipe: &impl Recipe,
    way: Way,
) -> usize {
    let (rank, size) = (parallel.replicas().rank(), parallel.replicas().size());
    // Each replica has drawn weights, and ids, of its own.
    let drawn = Start::new::<S>(Size::Small).model::<S, R>();
    let mut model = parallel.broadcast(drawn).unwrap();
    let start = Start::from_bytes(Size::Small, save(model.clone()));
    let mut plain = start.model::<S, P>();
    let mut plain_optim = recipe.make::<P, S::Model<P>>();
    let optim = recipe.make::<R, S::Model<R>>().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
    match way {
        Way::Clipped(max_norm) => {
            optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
        }
        Way::Recomputed => optim = optim.with_recompute(Recompute::Automatic),
        _ => {}
    }
    let first = Weights::of(&plain);
    let batches = match way {
        Way::Accumulated(batches) => batches,
        _ => 1,
    };
    let mut released = 0;
    for step in 0..STEPS {
        let mut grads = mean_grads::<S>(&plain, Size::Small, size, step, batches);
        if let Way::Clipped(max_norm) = way {
            clip_global::<P, _>(&plain, &mut grads, max_norm);
        }
        plain = plain_optim.step(RATE, plain, grads);

        let loss = |model: &S::Model<R>, batch| {
            let seed = share(step * batches + batch, rank, size);
            S::loss::<R>(model, Size::Small, seed)
        };
        let mut accumulator = ReleaseAccumulator::new();
        for batch in 0..batches - 1 {
            model = accumulator.arm(model);
            let grads = loss(&model, batch).backward();
            accumulator.accumulate(&model, GradientsParams::from_grads(grads, &model));
        }
        match way {
            Way::Clipped(_) => (model, _) = optim.two_passes(RATE, model, |model| loss(model, 0)),
            _ => {
                if !matches!(way, Way::Unarmed) {
                    model = optim.arm_accumulated(RATE, model, accumulator.grads());
                }
                let grads = gradients(&model, loss(&model, batches - 1));
                model = optim.step(RATE, model, grads);
            }
        }
        let context = format!("rank {rank} of {size}, {way:?}, step {step}");
        Weights::of(&model).assert_same(&Weights::of(&plain), &context);
        released += optim.last_step().unwrap().count(Outcome::Released);
    }
    Weights::of(&plain).assert_moved(&first, "the run");
    assert_eq!(released > 0, !matches!(way, Way::Unarmed), "{way:?}");
    parallel.verify(&model).unwrap();
    parallel.gather_states(&mut optim).unwrap();
    if parallel.replicas().is_first() {
        assert_eq!(
            readable::<R, _>(optim.to_record()),
            readable::<P, _>(plain_optim.to_record()),
            "states of {way:?}"
        );
    }
    released
}

/// Sequences of 6 tokens on one replica, and of 70 on the next.
struct OfOtherLengths;

impl Scenario for OfOtherLengths {
    type Model<B: AutodiffBackend> = TransformerModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> TransformerModel<B> {
        Transformer::init(size, device)
    }

    fn loss<B: AutodiffBackend>(
        model: &TransformerModel<B>,
        size: Size,
        step: u64,
    ) -> Tensor<B, 1> {
        model.loss(size, 6 + 64 * (step % 2) as usize, step)
    }
}

fn all_ways(parallel: &DataParallel) {
    let adam = AdamConfig::new();
    for way in [
        Way::Armed,
        Way::Unarmed,
        Way::Accumulated(3),
        Way::Clipped(0.05),
        Way::Recomputed,
    ] {
        equals_one_process::<Mlp>(parallel, &adam, way);
    }
}

fn all_models(parallel: &DataParallel) {
    let adam = AdamWConfig::new();
    equals_one_process::<Transformer>(parallel, &adam, Way::Armed);
    equals_one_process::<Tied>(parallel, &adam, Way::Armed);
    equals_one_process::<Views>(parallel, &adam, Way::Armed);
    equals_one_process::<Recurrent>(parallel, &adam, Way::Armed);
    let released = equals_one_process::<Parts>(parallel, &adam, Way::Armed);
    // The frozen and the spare layer are none of them.
    assert_eq!(released, 4 * STEPS as usize);
    equals_one_process::<Parts>(parallel, &adam, Way::Unarmed);
    equals_one_process::<Tied>(parallel, &adam, Way::Accumulated(2));
    equals_one_process::<Transformer>(parallel, &adam, Way::Recomputed);
}

fn all_optimizers(parallel: &DataParallel) {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    equals_one_process::<Mlp>(parallel, &momentum, Way::Armed);
    equals_one_process::<Mlp>(parallel, &SgdConfig::new(), Way::Armed);
    equals_one_process::<Mlp>(parallel, &AdaGradConfig::new(), Way::Armed);
    equals_one_process::<Mlp>(parallel, &RmsPropConfig::new(), Way::Armed);
    equals_one_process::<Mlp>(parallel, &AdanConfig::new(), Way::Armed);
    equals_one_process::<Matrices>(parallel, &MuonConfig::new(), Way::Armed);
    // After the mean, not before it.
    let by_norm = AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(0.01)));
    equals_one_process::<Mlp>(parallel, &by_norm, Way::Armed);
    let by_value =
        SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Value(1e-3)));
    equals_one_process::<Mlp>(parallel, &by_value, Way::Armed);
}

/// A test for each: what it runs in so many processes is chosen by its name. Each replica has all
/// states of the optimizer, and then a part of them.
macro_rules! replicas {
    ($($(#[$doc:meta])* $test:ident: $counts:expr, |$parallel:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            ranks($counts, concat!("mpi::weights::", stringify!($test)), |replicas| {
                let whole = DataParallel::new(replicas);
                for $parallel in [whole.clone(), whole.with_sharded_optimizer()] {
                    $body;
                }
            });
        }
    )*};
}

replicas! {
    every_way_to_step: 1..=4, |parallel| all_ways(&parallel);

    every_model: 2..=3, |parallel| all_models(&parallel);

    /// Each plans from the sizes of its own share what it recomputes, and so in which order gradients
    /// are complete.
    shares_of_other_lengths_recompute: 2..=3, |parallel| {
        let adam = AdamConfig::new();
        equals_one_process::<OfOtherLengths>(&parallel, &adam, Way::Recomputed);
    };

    every_optimizer: [2, 4], |parallel| all_optimizers(&parallel);

    several_gradients_on_their_way: [2], |parallel| {
        let parallel = parallel.with_max_in_flight(NonZeroUsize::new(3).unwrap());
        all_ways(&parallel);
        all_models(&parallel);
    };
}
