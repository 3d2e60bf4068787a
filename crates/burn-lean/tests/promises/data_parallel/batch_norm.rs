//! Running statistics of replicas, each of which initialized its own model.

use std::sync::Arc;

use burn_lean::{DataParallel, Threads};

use super::reference::{parallel, share};
use crate::harness::prelude::*;

const SIZE: usize = 3;
const STEPS: usize = 3;

#[derive(Module, Debug)]
struct Net {
    norm: BatchNorm,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        Self {
            norm: BatchNormConfig::new(4).init(&flex()),
            head: LinearConfig::new(4, 2).init(&flex()),
        }
    }

    fn loss(&self, batch: usize) -> Tensor<1> {
        let x = self.norm.forward(batch_of(batch));
        self.head.forward(x).square().mean()
    }

    fn weights(&self) -> Vec<f32> {
        let numbers = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        let weight = self.head.weight.val().reshape([8]);
        [weight, self.norm.gamma.val(), self.norm.beta.val()]
            .map(numbers)
            .concat()
    }
}

fn batch_of(batch: usize) -> Tensor<2> {
    numbers::<2>([5, 4], batch, &flex()) + batch as f64
}

/// With updates that are pending, which Burn applies for a validation.
fn statistics(norm: &BatchNorm) -> Vec<f32> {
    let norm = norm.valid();
    let all = [norm.running_mean, norm.running_var].map(|state| state.value().into_data());
    all.iter().flat_map(|data| data.iter::<f32>()).collect()
}

/// The statistics of the first replica after so many batches, in plain Burn.
fn expected(batches: usize) -> Vec<f32> {
    let norm = BatchNormConfig::new(4).init(&flex());
    for step in 0..batches {
        norm.forward(batch_of(share(step, 0, SIZE)));
    }
    statistics(&norm)
}

#[test]
fn running_statistics_are_those_of_the_first_replica() {
    for is_sharded in [false, true] {
        let weights = Threads::run(SIZE, |replicas| {
            let rank = replicas.rank();
            let parallel = parallel(replicas, is_sharded);
            let mut model = Net::new();
            // The update of the second batch is pending.
            for step in 0..2 {
                model.loss(share(step, rank, SIZE));
            }
            model = parallel.broadcast(model).unwrap();
            assert_eq!(statistics(&model.norm), expected(2), "rank {rank}");

            let optim = adamw().with_gradient_release();
            let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
            for step in 2..2 + STEPS {
                let loss = |net: &Net| net.loss(share(step, rank, SIZE));
                model = release_step(model, &mut optim, loss);
            }
            // Each replica has seen other batches, the last of which is pending.
            let refused = parallel.verify(&model).unwrap_err().to_string();
            assert!(refused.contains("norm.running_mean"), "{refused}");
            model.weights()
        });
        assert!(weights.iter().all(|of_rank| *of_rank == weights[0]));
    }
}

/// As before a checkpoint, and training goes on.
#[test]
fn statistics_that_have_drifted_apart_are_shared() {
    let weights = Threads::run(SIZE, |replicas| {
        let rank = replicas.rank();
        let parallel = DataParallel::new(replicas);
        let mut model = parallel.broadcast(Net::new()).unwrap();
        let optim = adamw().with_gradient_release();
        let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
        for step in 0..2 * STEPS {
            if step == STEPS {
                model = parallel.share_running_states(model).unwrap();
                assert_eq!(statistics(&model.norm), expected(STEPS), "rank {rank}");
                parallel.verify(&model).unwrap();
                assert!(parallel.gather_states(&optim).is_ok());
            }
            let loss = |net: &Net| net.loss(share(step, rank, SIZE));
            model = release_step(model, &mut optim, loss);
        }
        model.weights()
    });
    assert!(weights.iter().all(|of_rank| *of_rank == weights[0]));
}
