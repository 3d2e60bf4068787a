//! The memory of a step whose activations are recomputed.

use std::sync::OnceLock;

use burn::tensor::activation::gelu;
use burn::tensor::ops::Device;
use burn_gradient_release::Recomputed;

use super::{recipe, recomputing};
use crate::harness::memory::{Measured, measured, mib};
use crate::harness::noise::reseed;
use crate::harness::prelude::*;
use crate::harness::scopes::block;

/// The first is cut as it comes, the second as planned.
const STEPS: u64 = 2;
const BLOCKS: usize = 12;
const WIDTH: usize = 64;
const TOKENS: usize = 256;
const BATCH: usize = 4;
/// Bytes of what goes from block to block: `[batch, tokens, width]`.
const UNIT: usize = BATCH * TOKENS * WIDTH * size_of::<f32>();
/// Nodes of the tape and of the recording, names, thread pools: some 30 KiB for each block.
const SLACK: usize = BLOCKS * 40 * 1024;

/// Blocks of a transformer without the attention: activations are most of the memory.
#[derive(Module, Debug)]
struct Tower<B: Backend> {
    blocks: Vec<Residual<B>>,
}

#[derive(Module, Debug)]
struct Residual<B: Backend> {
    norm: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Tower<B> {
    fn new(blocks: usize) -> Self {
        let device = Device::<B>::default();
        let residual = || Residual {
            norm: LayerNormConfig::new(WIDTH).init(&device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(&device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(&device),
        };
        Self {
            blocks: (0..blocks).map(|_| residual()).collect(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        self.loss_of(noise(step, [BATCH, TOKENS, WIDTH], &Default::default()))
    }

    fn loss_of(&self, mut x: Tensor<B, 3>) -> Tensor<B, 1> {
        for residual in &self.blocks {
            x = block(|| {
                let inner = gelu(residual.up.forward(residual.norm.forward(x.clone())));
                x + residual.down.forward(inner)
            });
        }
        x.square().mean()
    }
}

/// The same weights for every backend and run.
fn start<B: AutodiffBackend>() -> Tower<B> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();

    let bytes = BYTES.get_or_init(|| save(reseed(Tower::<P>::new(BLOCKS), 42)));
    load(Tower::new(BLOCKS), bytes, &Default::default())
}

fn plain_tower() -> Measured {
    let make = || (start::<P>(), AdamConfig::new().init());
    measured(STEPS, make, |_, model| model, Tower::loss).0
}

fn release_tower(recompute: Recompute, is_armed: bool) -> Measured {
    type Optim = ReleaseOptimizer<Adam, Tower<R>, R>;

    let make = || {
        let optim: Optim = AdamConfig::new().init().with_gradient_release();
        (start::<R>(), optim.with_recompute(recompute))
    };
    let arm = |optim: &mut Optim, model| match is_armed {
        true => optim.arm(RATE, model),
        false => model,
    };
    measured(STEPS, make, arm, Tower::loss).0
}

/// What one block takes by itself, forward and backward in plain Burn, over its input and its
/// gradients.
fn one_block() -> usize {
    let model = Tower::<P>::new(1);
    let run = || {
        let floor = ALLOCATIONS.current_usage();
        ALLOCATIONS.reset_peak_usage();
        // A block hands a gradient on to the one below.
        let x = noise::<P, 3>(0, [BATCH, TOKENS, WIDTH], &Default::default()).require_grad();
        drop(model.loss_of(x).backward());
        ALLOCATIONS.peak_usage() - floor
    };
    run();
    let (parameters, _) = parameter_bytes::<P, _>(&model);
    run() - UNIT - parameters
}

/// Numbers and memory of the same steps.
#[test]
fn recomputing_leaves_the_inputs_of_the_blocks_and_one_block() {
    alone(|| {
        // Also brings thread pools and caches into being, which are in no peak below.
        let plain = plain_tower();
        let block = one_block();
        let released = release_tower(Recompute::None, true);
        let recomputed = scopes::in_use(|| release_tower(Recompute::None, false));
        let both = scopes::in_use(|| release_tower(Recompute::None, true));
        let automatic = release_tower(Recompute::Automatic, true);
        let runs = [&released, &recomputed, &both, &automatic];
        for run in runs {
            assert_eq!(run.weights, plain.weights);
        }

        let (parameters, largest) = parameter_bytes::<P, _>(&start::<P>());
        let states = 3 * parameters;
        let floor = states + BLOCKS * UNIT + block + largest;
        println!(
            "plain {:.2}, release {:.2}, recomputing {:.2}, both {:.2}, automatic {:.2}; floor \
                 {:.2} MiB: parameters and states {:.2}, {BLOCKS} inputs of {:.2}, a block {:.2}, a \
                 gradient {:.2}",
            mib(plain.peak),
            mib(released.peak),
            mib(recomputed.peak),
            mib(both.peak),
            mib(automatic.peak),
            mib(floor),
            mib(states),
            mib(UNIT),
            mib(block),
            mib(largest),
        );
        let bound = floor * 103 / 100 + SLACK;
        assert!(both.peak <= bound, "over {:.2} MiB", mib(bound));
        assert!(automatic.peak <= bound, "automatic: over {:.2}", mib(bound));
        // Together they save what each saves alone.
        assert!(both.peak <= recomputed.peak.min(released.peak) + SLACK);
        assert!(
            plain.peak > 2 * bound,
            "the bound would not notice activations that are kept"
        );
    });
}

/// Trains in plain Burn, with `Automatic`, and within parts of what all activations take: the
/// weights are the same, and the peaks fall as planned. `part` of the activations is more than
/// `Automatic` plans.
fn saves<S: Scenario>(part: u64) {
    let start = Start::new::<S>(Size::Large);
    let make = || (start.model::<S, P>(), recipe().init());
    let loss = |model: &_, step| S::loss::<P>(model, Size::Large, step);
    // Also brings thread pools and caches into being, which are in no peak below.
    let plain = measured::<S::Model<P>, P, _>(STEPS, make, |_, model| model, loss).0;
    println!("plain Burn: peak {:.2} MiB", mib(plain.peak));

    let release = |recompute| -> (u64, usize, Recomputed) {
        let make = || (start.model::<S, R>(), recomputing(recompute));
        let loss = |model: &_, step| S::loss::<R>(model, Size::Large, step);
        let (run, optim) = measured::<S::Model<R>, R, ReleaseOptimizer<Sgd<Flex>, _, R>>(
            STEPS,
            make,
            |optim, model| optim.arm(RATE, model),
            loss,
        );
        assert_eq!(run.weights, plain.weights, "{recompute:?}");
        let recomputed = optim.last_step().expect("a step was taken").recomputed();
        let planned = recomputed.planned_bytes.expect("there is a plan");
        println!(
            "{recompute:?}: planned {:.2}, peak {:.2} MiB, {} segments, {} operations",
            mib(planned as usize),
            mib(run.peak),
            recomputed.segments,
            recomputed.operations,
        );
        (planned, run.peak, recomputed)
    };
    let (all, kept, nothing) = release(Recompute::Budget(u64::MAX));
    assert_eq!(nothing.segments, 0);
    let (half, within_half, some) = release(Recompute::Budget(all / 2));
    let (automatic, least, most) = release(Recompute::Automatic);

    assert!(half <= all / 2);
    assert!(automatic <= all / part);
    assert!(most.segments > 2);
    assert!(some.operations < most.operations);
    // What else there is at the peak is there without recomputing, too.
    let saved = |planned: u64| (all - planned) as usize * 3 / 4;
    assert!(within_half + saved(half) <= kept);
    assert!(least + saved(automatic) <= kept);
}

/// Where several tensors cross a cut.
#[test]
fn a_u_net_keeps_its_skip_connections_and_one_segment() {
    alone(|| saves::<UNet>(4));
}

/// Where there are many cuts.
#[test]
fn many_blocks() {
    alone(|| saves::<Deep>(8));
}
