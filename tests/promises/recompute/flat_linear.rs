//! A Linear's weight gradient as one matrix product: `burn-flat-linear`.

use burn::backend::Flex;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_flat_linear::FlatLinear;
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};

use crate::ALLOCATIONS;
use crate::harness::memory::alone;
use crate::harness::run::RATE;
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type Flat = FlatLinear<Flex>;

const BATCH: usize = 8;
const WIDTH: usize = 256;

fn start<B: Backend>(bytes: &[u8]) -> Linear<B> {
    let device = Default::default();
    load(
        LinearConfig::new(WIDTH, WIDTH).init(&device),
        bytes,
        &device,
    )
}

fn bytes() -> Vec<u8> {
    save::<Plain, _>(LinearConfig::new(WIDTH, WIDTH).init(&Default::default()))
}

fn loss<B: AutodiffBackend>(model: &Linear<B>, step: u64) -> Tensor<B, 1> {
    let x = noise::<B, 3>(step, [BATCH, 4, WIDTH], &Default::default());
    model.forward(x).tanh().square().mean()
}

fn plain<I: Backend>(bytes: &[u8]) -> Weights {
    type P<I> = Plain<I>;
    let mut model = start::<P<I>>(bytes);
    let mut optim = AdamConfig::new().init();
    for step in 0..4 {
        let grads = loss(&model, step).backward();
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
    }
    Weights::of::<P<I>, _>(&model)
}

#[test]
fn the_same_but_for_rounding_and_exact_with_release() {
    let bytes = bytes();
    let flat = plain::<Flat>(&bytes);
    // The same products, added up in another order: eight sums of four against one of 32.
    flat.assert_near(&plain::<Flex>(&bytes), 1e-5, "flat");

    type R = Release<Flat>;
    let mut model = start::<R>(&bytes);
    let mut optim: ReleaseOptimizer<Adam, _, R> = AdamConfig::new().init().with_gradient_release();
    for step in 0..4 {
        model = optim.arm(RATE, model);
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        model = optim.step(RATE, model, grads);
    }
    Weights::of::<R, _>(&model).assert_near(&flat, 0.0, "with release");
}

#[test]
fn no_gradient_for_each_element_of_the_batch() {
    alone(
        "recompute::flat_linear::no_gradient_for_each_element_of_the_batch",
        || {
            fn peak<I: Backend>(bytes: &[u8]) -> usize {
                let model = start::<Plain<I>>(bytes);
                // The lowest of some: a thread that first works in one of them gets its buffers
                // there.
                let peaks = (0..5).map(|step| {
                    let before = ALLOCATIONS.current_usage();
                    ALLOCATIONS.reset_peak_usage();
                    drop(loss(&model, step).backward());
                    ALLOCATIONS.peak_usage() - before
                });
                peaks.min().expect("there are steps")
            }
            let bytes = bytes();
            let weight = WIDTH * WIDTH * size_of::<f32>();
            let (flat, burn) = (peak::<Flat>(&bytes), peak::<Flex>(&bytes));
            println!("flat {flat}, Burn's own {burn} bytes; a weight takes {weight}");
            // The gradient, and what the matrix product takes.
            assert!(flat < 3 * weight);
            assert!(burn > BATCH * weight, "there is nothing to save any more");
        },
    );
}
