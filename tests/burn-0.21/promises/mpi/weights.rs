//! The weights of all replicas, after each step.

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn::optim::{AdaGradConfig, AdanConfig, MuonConfig, RmsPropConfig};
use burn_gradient_release_data_parallel::{DataParallel, Replicas};

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
    let first = Weights::of::<P, _>(&plain);
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
                let grads = loss(&model, batches - 1).backward();
                let grads = GradientsParams::from_grads(grads, &model);
                model = optim.step(RATE, model, grads);
            }
        }
        let context = format!("rank {rank} of {size}, {way:?}, step {step}");
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), &context);
        released += optim.last_step().unwrap().count(Outcome::Released);
    }
    Weights::of::<P, _>(&plain).assert_moved(&first, "the run");
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
    assert!(equals_one_process::<Mlp>(parallel, &adam, Way::Armed) > 0);
    assert_eq!(equals_one_process::<Mlp>(parallel, &adam, Way::Unarmed), 0);
    assert!(equals_one_process::<Mlp>(parallel, &adam, Way::Accumulated(3)) > 0);
    assert!(equals_one_process::<Mlp>(parallel, &adam, Way::Clipped(0.05)) > 0);
    assert!(equals_one_process::<Mlp>(parallel, &adam, Way::Recomputed) > 0);
}

fn all_models(parallel: &DataParallel) {
    let adam = AdamWConfig::new();
    assert!(equals_one_process::<Transformer>(parallel, &adam, Way::Armed) > 0);
    assert!(equals_one_process::<Tied>(parallel, &adam, Way::Armed) > 0);
    assert!(equals_one_process::<Views>(parallel, &adam, Way::Armed) > 0);
    assert!(equals_one_process::<Recurrent>(parallel, &adam, Way::Armed) > 0);
    // The frozen and the spare layer are none of them.
    assert_eq!(
        equals_one_process::<Parts>(parallel, &adam, Way::Armed),
        4 * STEPS as usize
    );
    assert_eq!(
        equals_one_process::<Parts>(parallel, &adam, Way::Unarmed),
        0
    );
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

#[test]
fn every_way_to_step() {
    ranks(1..=4, "mpi::weights::every_way_to_step", |replicas| {
        all_ways(&DataParallel::new(replicas.clone()));
        all_ways(&DataParallel::new(replicas).with_sharded_optimizer());
    });
}

#[test]
fn every_model() {
    ranks(2..=3, "mpi::weights::every_model", |replicas| {
        all_models(&DataParallel::new(replicas.clone()));
        all_models(&DataParallel::new(replicas).with_sharded_optimizer());
    });
}

/// Each plans from the sizes of its own share what it recomputes, and so in which order gradients
/// are complete.
#[test]
fn shares_of_other_lengths_recompute() {
    let test = "mpi::weights::shares_of_other_lengths_recompute";
    ranks(2..=3, test, |replicas| {
        let adam = AdamConfig::new();
        let parallel = DataParallel::new(replicas);
        equals_one_process::<OfOtherLengths>(&parallel, &adam, Way::Recomputed);
        let sharded = parallel.with_sharded_optimizer();
        equals_one_process::<OfOtherLengths>(&sharded, &adam, Way::Recomputed);
    });
}

#[test]
fn every_optimizer() {
    ranks(
        [2, 4],
        "mpi::weights::every_optimizer",
        |replicas: Replicas| {
            all_optimizers(&DataParallel::new(replicas.clone()));
            all_optimizers(&DataParallel::new(replicas).with_sharded_optimizer());
        },
    );
}

#[test]
fn several_gradients_on_their_way() {
    ranks(
        [2],
        "mpi::weights::several_gradients_on_their_way",
        |replicas| {
            let three = NonZeroUsize::new(3).unwrap();
            let parallel = DataParallel::new(replicas).with_max_in_flight(three);
            all_ways(&parallel);
            all_models(&parallel.with_sharded_optimizer());
        },
    );
}
