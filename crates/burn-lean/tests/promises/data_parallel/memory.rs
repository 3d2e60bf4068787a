//! What replicas take, with the numbers they compute.

use std::sync::{Arc, Barrier};

use burn::Tensor;
use burn_lean::{DataParallel, Threads};

use super::reference::parallel;
use crate::harness::prelude::*;
use crate::harness::zero_linear;
use crate::memory::HEAP;

const WIDTH: usize = 256;
const LAYERS: usize = 12;
const REPLICAS: usize = 2;

/// Bytes of a weight, and of all of them. Biases are small.
const WEIGHT: usize = 4 * WIDTH * WIDTH;
const WEIGHTS: usize = LAYERS * WEIGHT;

/// Segments of a gradient that are on their way, activations, biases, and threads.
const SLACK: usize = 3 << 20;

fn layers(count: usize) -> Vec<Linear> {
    let layer = |_| zero_linear(WIDTH, WIDTH, &flex());
    seeded(&flex(), |_| (0..count).map(layer).collect())
}

fn loss<'a>(model: impl IntoIterator<Item = &'a Linear>, x: Tensor<2>) -> Tensor<1> {
    let layers = model.into_iter();
    let x = layers.fold(x, |x, layer| relu(layer.forward(x)));
    x.square().mean()
}

/// The peak of three steps and what is in use after it, of all replicas together, and their
/// weights.
fn train(is_sharded: bool, is_reduced: bool) -> (usize, usize, Bits) {
    let before = HEAP.current_usage();
    let barrier = Barrier::new(REPLICAS);
    let measured = Threads::run(REPLICAS, |replicas| {
        let rank = replicas.rank();
        let parallel = parallel(replicas, is_sharded);
        let mut model = parallel.broadcast(layers(LAYERS)).unwrap();
        let mut optim = AdamWConfig::new().init().with_gradient_release();
        if is_reduced {
            optim = optim.with_reduction(Arc::new(parallel));
        }
        let mut peak = 0;
        for step in 0..3 {
            barrier.wait();
            HEAP.reset_peak_usage();
            barrier.wait();
            let x = numbers([2, WIDTH], step * REPLICAS + rank, &flex());
            model = optim.backward(LR, loss(&model, x), model);
            barrier.wait();
            peak = peak.max(HEAP.peak_usage() - before);
        }
        barrier.wait();
        let after = HEAP.current_usage() - before;
        barrier.wait();
        (peak, after, bits(&model))
    });
    measured.into_iter().next().expect("there is a first")
}

/// What a step of two models that are trained in turns takes, and what all steps leave, beyond
/// what is in use before the first, of all replicas together. Of the last two layers one is used, in
/// turns, too.
fn train_two() -> [usize; 2] {
    let barrier = Barrier::new(REPLICAS);
    let measured = Threads::run(REPLICAS, |replicas| {
        let rank = replicas.rank();
        let parallel = DataParallel::new(replicas);
        let mut models = [(); 2].map(|()| parallel.broadcast(layers(LAYERS)).unwrap());
        let mut optims = [(); 2].map(|()| {
            let optim = SgdConfig::new().init().with_gradient_release();
            optim.with_reduction(Arc::new(parallel.clone()))
        });
        // Products keep buffers of the size of a cache for each thread.
        drop(loss(&layers(2), numbers([2, WIDTH], 0, &flex())).backward());
        barrier.wait();
        let before = HEAP.current_usage();
        barrier.wait();
        let mut peak = 0;
        for step in 0..4 {
            for (at, optim) in optims.iter_mut().enumerate() {
                let model = std::mem::take(&mut models[at]);
                barrier.wait();
                HEAP.reset_peak_usage();
                barrier.wait();
                let x = numbers([2, WIDTH], step * REPLICAS + rank, &flex());
                let skipped = LAYERS - 1 - step % 2;
                let (first, last) = model.split_at(skipped);
                let loss = loss(first.iter().chain(&last[1..]), x);
                models[at] = optim.backward(LR, loss, model);
                barrier.wait();
                peak = peak.max(HEAP.peak_usage().saturating_sub(before));
            }
        }
        barrier.wait();
        let kept = HEAP.current_usage().saturating_sub(before);
        barrier.wait();
        [peak, kept]
    });
    measured[0]
}

#[test]
fn models_and_heads_in_turns_keep_no_gradients() {
    alone(|| {
        let [peak, kept] = train_two();
        println!("peak {peak}, kept {kept}, weights {WEIGHTS}");
        // Of each replica a gradient on its way, its mean and the step, and what the other replica is
        // still reading.
        assert!(peak <= REPLICAS * 5 * WEIGHT + SLACK);
        const { assert!(5 * WEIGHT * REPLICAS + SLACK < WEIGHTS * REPLICAS) };
        // The gradients of one of the models, on one replica, are `WEIGHTS`.
        assert!(kept < WEIGHTS / 4);
    });
}

/// Layers whose states take more than all that is on its way.
const DEEP: usize = 3 * LAYERS;

/// What the replicas take while they save, beyond what they have, all together.
fn save(is_gathered: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let barrier = Barrier::new(REPLICAS);
    let measured = Threads::run(REPLICAS, |replicas| {
        let parallel = DataParallel::new(replicas).with_sharded_optimizer();
        let model = parallel.broadcast(layers(DEEP)).unwrap();
        let optim = AdamWConfig::new().init().with_gradient_release();
        let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
        let loss = loss(&model, Tensor::ones([2, WIDTH], &flex()));
        let _model = optim.backward(LR, loss, model);
        barrier.wait();
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        barrier.wait();
        match is_gathered {
            true => drop(parallel.gather_states(&optim).unwrap()),
            false => parallel
                .save_states(&optim, folder.path().join("optim.bpk"))
                .unwrap(),
        }
        barrier.wait();
        HEAP.peak_usage() - before
    });
    measured.into_iter().max().expect("there is a first")
}

#[test]
fn states_are_saved_in_the_memory_of_one_parameter() {
    alone(|| {
        let (gathered, saved) = (save(true), save(false));
        let states = 2 * DEEP * WEIGHT;
        println!("gathered {gathered}, saved {saved}, states {states}");
        // Two moments: copied out of the optimizer, as bytes, on their way, and as they arrive.
        let on_its_way = REPLICAS * 4 * 2 * WEIGHT;
        assert!(saved <= on_its_way + SLACK);
        // The record, and the bytes it is read from.
        assert!(gathered <= 2 * states + on_its_way + SLACK);
        const { assert!(REPLICAS * 4 * 2 * WEIGHT + SLACK < DEEP * WEIGHT) };
    });
}

#[test]
fn a_gradient_on_its_way_and_a_share_of_the_states() {
    alone(|| {
        let (alone, alone_after, _) = train(false, false);
        let (together, together_after, weights) = train(false, true);
        let (apart, apart_after, apart_weights) = train(true, true);
        assert_eq!(apart_weights, weights);
        let states = 2 * WEIGHTS;
        println!(
            "alone {alone} {alone_after}, together {together} {together_after}, sharded {apart} \
             {apart_after}, states {states}"
        );
        // Of each replica one gradient is on its way, and its mean.
        assert!(together <= alone + REPLICAS * 2 * WEIGHT + SLACK);
        assert!(together_after <= alone_after + SLACK);
        // All replicas together have the states once.
        let saved = (REPLICAS - 1) * states;
        assert!(apart_after + saved <= together_after + SLACK);
        assert!(apart + saved <= together + REPLICAS * WEIGHT + SLACK);
        // Were a second set of gradients there, it would be seen.
        const { assert!(2 * WEIGHT * REPLICAS + SLACK < WEIGHTS * REPLICAS) };
    });
}
