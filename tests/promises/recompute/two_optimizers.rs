//! Two optimizers that both recompute, as those of a GAN: each cuts the forward passes of its own
//! parameters, and one pass may go through both.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, ReleaseOptimizer, WithGradientRelease};

use crate::harness::run::RATE;
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain;
type R = Release;

const WIDTH: usize = 4;
const ROWS: usize = 64;
const STEPS: u64 = 6;

/// A generator, or a discriminator.
#[derive(Module, Debug)]
struct Network<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Network<B> {
    fn new(depth: usize) -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(&Default::default());
        Self {
            layers: (0..depth).map(|_| layer()).collect(),
        }
    }

    fn forward(&self, mut x: Tensor<B, 2>) -> Tensor<B, 2> {
        for layer in &self.layers {
            let y = layer.forward(x);
            x = (y.clone().exp().tanh() * y.clone().sin() + y.cos()).tanh();
        }
        x
    }
}

/// How a step goes through the two networks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    /// The discriminator learns from a forward pass of the generator of its own.
    TwoForwards,
    /// Both learn from one, the discriminator from a detached result.
    OneForward,
    /// The same, with the generator armed when the discriminator has been stepped.
    ArmedBetween,
    /// Both learn from one backward pass.
    OneLoss,
    /// Both learn from one backward pass of alternating layers of the two.
    Alternating,
}

const PROGRAMS: [Program; 5] = [
    Program::TwoForwards,
    Program::OneForward,
    Program::ArmedBetween,
    Program::OneLoss,
    Program::Alternating,
];

/// The weights after each step.
fn train<B, O>(
    program: Program,
    start: &[Vec<u8>; 2],
    mut make: impl FnMut() -> O,
    arm: impl Fn(&mut O, Network<B>) -> Network<B>,
    mut stepped: impl FnMut([&O; 2]),
) -> Vec<[Weights; 2]>
where
    B: AutodiffBackend,
    O: Optimizer<Network<B>, B>,
{
    let device = Default::default();
    let mut generator: Network<B> = load(Network::new(5), &start[0], &device);
    let mut judge: Network<B> = load(Network::new(4), &start[1], &device);
    let (mut of_generator, mut of_judge) = (make(), make());
    let mut weights = Vec::new();
    for step in 0..STEPS {
        let z = || noise::<B, 2>(2 * step, [ROWS, WIDTH], &device);
        let real = noise::<B, 2>(2 * step + 1, [ROWS, WIDTH], &device);
        let of_fake = |judge: &Network<B>, fake: Tensor<B, 2>| judge.forward(fake).mean();
        let apart = |judge: &Network<B>, fake: Tensor<B, 2>| {
            of_fake(judge, fake) - judge.forward(real.clone()).square().mean()
        };
        match program {
            Program::TwoForwards => {
                judge = arm(&mut of_judge, judge);
                let grads = apart(&judge, generator.forward(z()).detach()).backward();
                let grads = GradientsParams::from_grads(grads, &judge);
                judge = of_judge.step(RATE, judge, grads);
                generator = arm(&mut of_generator, generator);
                let grads = of_fake(&judge, generator.forward(z())).backward();
                let grads = GradientsParams::from_grads(grads, &generator);
                generator = of_generator.step(RATE, generator, grads);
            }
            Program::OneForward | Program::ArmedBetween => {
                if program == Program::OneForward {
                    generator = arm(&mut of_generator, generator);
                }
                judge = arm(&mut of_judge, judge);
                if program == Program::ArmedBetween {
                    generator = arm(&mut of_generator, generator);
                }
                let fake = generator.forward(z());
                let grads = apart(&judge, fake.clone().detach()).backward();
                let grads = GradientsParams::from_grads(grads, &judge);
                judge = of_judge.step(RATE, judge, grads);
                let grads = of_fake(&judge, fake).backward();
                let grads = GradientsParams::from_grads(grads, &generator);
                generator = of_generator.step(RATE, generator, grads);
            }
            Program::OneLoss | Program::Alternating => {
                generator = arm(&mut of_generator, generator);
                judge = arm(&mut of_judge, judge);
                let loss = if program == Program::OneLoss {
                    apart(&judge, generator.forward(z()))
                } else {
                    let mut x = z();
                    for (one, other) in generator.layers.iter().zip(&judge.layers) {
                        let left = one.forward(x.clone()).tanh();
                        x = (other.forward(left.clone()).exp() + x).sin() + left;
                    }
                    x.square().mean()
                };
                let mut grads = loss.backward();
                let one = GradientsParams::from_module(&mut grads, &generator);
                let other = GradientsParams::from_module(&mut grads, &judge);
                generator = of_generator.step(RATE, generator, one);
                judge = of_judge.step(RATE, judge, other);
            }
        }
        stepped([&of_generator, &of_judge]);
        weights.push([Weights::of(&generator), Weights::of(&judge)]);
    }
    weights
}

#[test]
fn two_optimizers_that_recompute_are_exact() {
    let start = [5, 4].map(|depth| save(Network::<P>::new(depth)));
    let unit = (ROWS * WIDTH * size_of::<f32>()) as u64;
    for program in PROGRAMS {
        let expected = train::<P, _>(
            program,
            &start,
            || AdamConfig::new().init(),
            |_, model| model,
            |_| (),
        );
        expected[0][0].assert_moved(&expected[STEPS as usize - 1][0], "the generator");
        expected[0][1].assert_moved(&expected[STEPS as usize - 1][1], "the discriminator");
        for recompute in [
            Recompute::Automatic,
            Recompute::Budget(8 * unit),
            Recompute::Budget(24 * unit),
        ] {
            let mut recomputed = [0, 0];
            let weights = train::<R, ReleaseOptimizer<Adam, Network<R>, R>>(
                program,
                &start,
                || {
                    let optim = AdamConfig::new().init().with_gradient_release();
                    optim.with_recompute(recompute)
                },
                |optim, model| optim.arm(RATE, model),
                |optims| {
                    for (sum, optim) in recomputed.iter_mut().zip(optims) {
                        let report = optim.last_step().expect("it has stepped");
                        *sum += report.recomputed().operations;
                    }
                },
            );
            for (step, (weights, expected)) in weights.iter().zip(&expected).enumerate() {
                for (of, (weights, expected)) in weights.iter().zip(expected).enumerate() {
                    let context = format!("{program:?}, {recompute:?}, step {step}, network {of}");
                    weights.assert_same(expected, context);
                }
            }
            if recompute == Recompute::Automatic {
                assert!(recomputed.iter().all(|of| *of > 0), "{program:?}");
            }
        }
    }
}
