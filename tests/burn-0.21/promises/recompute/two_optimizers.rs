//! Two optimizers that both recompute, as those of a GAN: each cuts the forward passes of its own
//! parameters, and one pass may go through both.

use crate::harness::prelude::*;

const WIDTH: usize = 4;
const ROWS: usize = 64;
const STEPS: u64 = 4;

/// A generator, or a discriminator.
type Network<B> = Vec<Linear<B>>;

fn network<B: Backend>(depth: usize) -> Network<B> {
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&Default::default());
    (0..depth).map(layer).collect()
}

fn forward<B: Backend>(network: &[Linear<B>], x: Tensor<B, 2>) -> Tensor<B, 2> {
    network.iter().fold(x, |x, layer| {
        let y = layer.forward(x);
        (y.clone().exp().tanh() * y.clone().sin() + y.cos()).tanh()
    })
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

fn alternating<B: Backend>(
    one: &[Linear<B>],
    other: &[Linear<B>],
    z: Tensor<B, 2>,
) -> Tensor<B, 1> {
    let layers = one.iter().zip(other);
    let x = layers.fold(z, |x, (one, other)| {
        let left = one.forward(x.clone()).tanh();
        (other.forward(left.clone()).exp() + x).sin() + left
    });
    x.square().mean()
}

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
    let mut generator: Network<B> = load(network(5), &start[0], &device);
    let mut judge: Network<B> = load(network(4), &start[1], &device);
    let (mut of_generator, mut of_judge) = (make(), make());
    let mut weights = Vec::new();
    for step in 0..STEPS {
        let z = || noise::<B, 2>(2 * step, [ROWS, WIDTH], &device);
        let real = noise::<B, 2>(2 * step + 1, [ROWS, WIDTH], &device);
        let of_fake = |judge: &Network<B>, fake: Tensor<B, 2>| forward(judge, fake).mean();
        let apart = |judge: &Network<B>, fake: Tensor<B, 2>| {
            of_fake(judge, fake) - forward(judge, real.clone()).square().mean()
        };
        // What is armed, and run forward and backward, and stepped, in this order.
        match program {
            Program::TwoForwards => {
                judge = arm(&mut of_judge, judge);
                let loss = apart(&judge, forward(&generator, z()).detach());
                judge = ordinary_step(RATE, judge, &mut of_judge, loss);
                generator = arm(&mut of_generator, generator);
                let loss = of_fake(&judge, forward(&generator, z()));
                generator = ordinary_step(RATE, generator, &mut of_generator, loss);
            }
            Program::OneForward | Program::ArmedBetween => {
                if program == Program::OneForward {
                    generator = arm(&mut of_generator, generator);
                }
                judge = arm(&mut of_judge, judge);
                if program == Program::ArmedBetween {
                    generator = arm(&mut of_generator, generator);
                }
                let fake = forward(&generator, z());
                let loss = apart(&judge, fake.clone().detach());
                judge = ordinary_step(RATE, judge, &mut of_judge, loss);
                let loss = of_fake(&judge, fake);
                generator = ordinary_step(RATE, generator, &mut of_generator, loss);
            }
            Program::OneLoss | Program::Alternating => {
                generator = arm(&mut of_generator, generator);
                judge = arm(&mut of_judge, judge);
                let loss = if program == Program::OneLoss {
                    apart(&judge, forward(&generator, z()))
                } else {
                    alternating(&generator, &judge, z())
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
    type Adams = ReleaseOptimizer<Adam, Network<R>, R>;

    let start = [5, 4].map(|depth| save(network::<P>(depth)));
    let unit = (ROWS * WIDTH * size_of::<f32>()) as u64;
    for program in [
        Program::TwoForwards,
        Program::OneForward,
        Program::ArmedBetween,
        Program::OneLoss,
        Program::Alternating,
    ] {
        let plain = || AdamConfig::new().init::<P, Network<P>>();
        let expected = train(program, &start, plain, |_, model| model, |_| ());
        expected[0][0].assert_moved(&expected[STEPS as usize - 1][0], "the generator");
        expected[0][1].assert_moved(&expected[STEPS as usize - 1][1], "the discriminator");
        for recompute in [
            Recompute::None,
            Recompute::Automatic,
            Recompute::Budget(24 * unit),
        ] {
            let mut recomputed = [0, 0];
            let release = || {
                let optim: Adams = AdamConfig::new().init().with_gradient_release();
                optim.with_recompute(recompute)
            };
            let arm = |optim: &mut Adams, model| optim.arm(RATE, model);
            let given = train(program, &start, release, arm, |optims| {
                for (sum, optim) in recomputed.iter_mut().zip(optims) {
                    let report = optim.last_step().expect("it has stepped");
                    *sum += report.recomputed().operations;
                }
            });
            for (step, (given, expected)) in given.iter().zip(&expected).enumerate() {
                let context = format!("{program:?}, {recompute:?}, step {step}");
                given[0].assert_same(&expected[0], format!("{context}: the generator"));
                given[1].assert_same(&expected[1], format!("{context}: the discriminator"));
            }
            if recompute == Recompute::Automatic {
                assert!(recomputed.iter().all(|of| *of > 0), "{program:?}");
            }
        }
    }
}
