//! The memory of a step whose activations are recomputed.

use std::sync::OnceLock;

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::gelu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, ops::Device};
use burn_gradient_release::{Recompute, ReleaseOptimizer, WithGradientRelease};

use crate::ALLOCATIONS;
use crate::harness::memory::{alone, parameter_bytes};
use crate::harness::noise::reseed;
use crate::harness::run::RATE;
use crate::harness::scopes::{self, block};
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

const BLOCKS: usize = 12;
const WIDTH: usize = 64;
const TOKENS: usize = 256;
const BATCH: usize = 8;
/// Bytes of what goes from block to block: `[batch, tokens, width]`.
const UNIT: usize = BATCH * TOKENS * WIDTH * size_of::<f32>();
/// Nodes of the tape and of the recording, names, thread pools: some 30 KiB for each block.
const SLACK: usize = BLOCKS * 64 * 1024;

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

type P = Plain<Flex>;
type R = Release<Flex>;

/// The same weights for every backend and run.
fn start<B: AutodiffBackend>() -> Tower<B> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();

    let bytes = BYTES.get_or_init(|| save(reseed(Tower::<P>::new(BLOCKS), 42)));
    load(Tower::new(BLOCKS), bytes, &Default::default())
}

/// The peak of the last of four steps, over what was in use before the model was there, and the
/// weights.
fn peak<B, M, O>(
    make: impl FnOnce() -> (M, O),
    arm: impl Fn(&mut O, M) -> M,
    loss: impl Fn(&M, u64) -> Tensor<B, 1>,
) -> (usize, u64)
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let floor = ALLOCATIONS.current_usage();
    let (mut model, mut optim) = make();
    let mut peak = 0;
    for step in 0..4 {
        ALLOCATIONS.reset_peak_usage();
        model = arm(&mut optim, model);
        let grads = loss(&model, step).backward();
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
        peak = ALLOCATIONS.peak_usage() - floor;
    }
    (peak, Weights::of::<B, _>(&model).digest())
}

fn plain() -> (usize, u64) {
    peak::<P, Tower<P>, _>(
        || (start(), AdamConfig::new().init()),
        |_, model| model,
        |model, step| model.loss(step),
    )
}

fn release(recompute: Recompute, is_armed: bool) -> (usize, u64) {
    peak::<R, _, ReleaseOptimizer<Adam, Tower<R>, R>>(
        || {
            let optim = AdamConfig::new().init().with_gradient_release();
            (start(), optim.with_recompute(recompute))
        },
        |optim, model| {
            if is_armed {
                optim.arm(RATE, model)
            } else {
                model
            }
        },
        |model, step| model.loss(step),
    )
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
    alone(
        "recompute::memory::recomputing_leaves_the_inputs_of_the_blocks_and_one_block",
        || {
            // Thread pools and caches come into being once.
            plain();
            let block = one_block();
            let (plain, weights) = plain();
            let (released, _) = release(Recompute::None, true);
            let (recomputed, same) = scopes::in_use(|| release(Recompute::None, false));
            let (both, same_too) = scopes::in_use(|| release(Recompute::None, true));
            let (automatic, same_again) = release(Recompute::Automatic, true);
            assert_eq!([same, same_too, same_again], [weights; 3]);

            let (parameters, largest) = parameter_bytes::<P, _>(&start::<P>());
            let states = 3 * parameters;
            let floor = states + BLOCKS * UNIT + block + largest;
            let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
            println!(
                "plain {:.2}, release {:.2}, recomputing {:.2}, both {:.2}, automatic {:.2}; floor \
                 {:.2} MiB: parameters and states {:.2}, {BLOCKS} inputs of {:.2}, a block {:.2}, a \
                 gradient {:.2}",
                mib(plain),
                mib(released),
                mib(recomputed),
                mib(both),
                mib(automatic),
                mib(floor),
                mib(states),
                mib(UNIT),
                mib(block),
                mib(largest),
            );
            let bound = floor * 103 / 100 + SLACK;
            assert!(both <= bound, "over {:.2} MiB", mib(bound));
            assert!(automatic <= bound, "automatic: over {:.2} MiB", mib(bound));
            // Together they save what each saves alone.
            assert!(both <= recomputed.min(released) + SLACK);
            assert!(
                plain > 2 * bound,
                "the bound would not notice activations that are kept"
            );
        },
    );
}
