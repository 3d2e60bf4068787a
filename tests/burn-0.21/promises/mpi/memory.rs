//! Memory of a replica, and the numbers it computes.

use std::sync::Arc;

use burn_gradient_release_data_parallel::DataParallel;

use super::reference::{mean_grads, share};
use crate::harness::prelude::*;
use crate::harness::ranks::ranks;

type Adam = ReleaseOptimizer<burn::optim::Adam, MlpModel<R>, R>;

/// Two segments of a gradient in flight, names, and threads.
const SLACK: usize = (1 << 20) + 192 * 1024;

/// Bytes in use, over what was in use before the model was there.
#[derive(Debug)]
struct Bytes {
    peak: usize,
    after: usize,
}

/// The last of three steps: by then the optimizer's state exists.
fn train(adapt: impl FnOnce(Adam) -> Adam, bytes: &[u8], rank: usize, size: usize) -> (Bytes, u64) {
    let before = ALLOCATIONS.current_usage();
    let device = Default::default();
    let mut model = load::<R, _>(Mlp::init::<R>(Size::Large, &device), bytes, &device);
    let mut optim = adapt(AdamConfig::new().init().with_gradient_release());
    for step in 0..3 {
        ALLOCATIONS.reset_peak_usage();
        model = optim.arm(RATE, model);
        let grads = gradients(
            &model,
            Mlp::loss::<R>(&model, Size::Large, share(step, rank, size)),
        );
        model = optim.step(RATE, model, grads);
    }
    let bytes = Bytes {
        peak: ALLOCATIONS.peak_usage() - before,
        after: ALLOCATIONS.current_usage() - before,
    };
    (bytes, Weights::of(&model).digest())
}

/// The weights that one process would have.
fn expected(bytes: &[u8], size: usize) -> u64 {
    let device = Default::default();
    let mut model = load::<P, _>(Mlp::init::<P>(Size::Large, &device), bytes, &device);
    let mut optim = AdamConfig::new().init::<P, MlpModel<P>>();
    for step in 0..3 {
        let grads = mean_grads::<Mlp>(&model, Size::Large, size, step, 1);
        model = optim.step(RATE, model, grads);
    }
    Weights::of(&model).digest()
}

#[test]
fn a_gradient_on_its_way_and_a_share_of_the_states() {
    let test = "mpi::memory::a_gradient_on_its_way_and_a_share_of_the_states";
    ranks([2], test, |replicas| {
        let (rank, size) = (replicas.rank(), replicas.size());
        let drawn = Mlp::init::<R>(Size::Large, &Default::default());
        let whole = DataParallel::new(replicas);
        let model = whole.broadcast(drawn).unwrap();
        let sharded = whole.clone().with_sharded_optimizer();
        let (parameters, largest) = parameter_bytes::<R, _>(&model);
        let states = 2 * parameters;
        let bytes = save(model);
        let expected = expected(&bytes, size);

        let (alone, _) = train(|optim| optim, &bytes, rank, size);
        let (together, weights) = train(
            |optim| optim.with_reduction(Arc::new(whole)),
            &bytes,
            rank,
            size,
        );
        assert_eq!(weights, expected);
        let (apart, weights) = train(
            |optim| optim.with_reduction(Arc::new(sharded)),
            &bytes,
            rank,
            size,
        );
        assert_eq!(weights, expected);
        println!("alone {alone:?}, together {together:?}, sharded {apart:?}, states {states}");

        assert!(together.peak <= alone.peak + largest + SLACK);
        assert!(together.after <= alone.after + SLACK);
        // Weights of equal size are shared equally; biases are small.
        assert!(apart.after <= alone.after - states / size + SLACK);
        assert!(apart.peak <= alone.peak - states / size + largest + SLACK);
    });
}
