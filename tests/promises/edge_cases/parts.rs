//! Optimizers and models that do not cover each other: subsets, several of each, several losses.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Outcome, ReleaseOptimizer, WithGradientRelease};

use super::{Inner, P, R, start};
use crate::harness::models::{Scenario, Size};
use crate::harness::run::{RATE, outcomes};
use crate::harness::{Weights, noise};

const STEPS: u64 = 5;

/// An encoder and two heads.
#[derive(Module, Debug)]
struct Branches<B: Backend> {
    encoder: Linear<B>,
    left: Linear<B>,
    right: Linear<B>,
}

impl<B: AutodiffBackend> Branches<B> {
    fn left_loss(&self, step: u64) -> Tensor<B, 1> {
        self.left.forward(self.encode(step)).square().mean()
    }

    fn right_loss(&self, step: u64) -> Tensor<B, 1> {
        self.right
            .forward(self.encode(step))
            .sub_scalar(1.0)
            .abs()
            .mean()
    }

    fn encode(&self, step: u64) -> Tensor<B, 2> {
        relu(
            self.encoder
                .forward(noise(step, [3, 4], &B::Device::default())),
        )
    }
}

struct TwoHeads;

impl Scenario for TwoHeads {
    type Model<B: AutodiffBackend> = Branches<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Branches<B> {
        let linear = || LinearConfig::new(4, 4).init(device);
        Branches {
            encoder: linear(),
            left: linear(),
            right: linear(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &Branches<B>, _: Size, step: u64) -> Tensor<B, 1> {
        model.left_loss(step) + model.right_loss(step)
    }
}

/// Optimizes `part` of a model only, by one optimizer.
fn adam() -> ReleaseOptimizer<burn::optim::Adam, Linear<R>, R> {
    AdamConfig::new().init().with_gradient_release()
}

#[test]
fn an_optimizer_over_a_subset_leaves_the_rest_its_gradients() {
    let start = start::<TwoHeads>();
    let mut plain = start.model::<TwoHeads, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<TwoHeads, R>();
    let mut optim = adam();
    for step in 0..STEPS {
        let mut plain_grads = TwoHeads::loss(&plain, Size::Small, step).backward();
        model.right = optim.arm(RATE, model.right);
        let mut grads = TwoHeads::loss(&model, Size::Small, step).backward();

        let expected = plain
            .encoder
            .weight
            .grad(&plain_grads)
            .expect("used")
            .into_data();
        let given = model
            .encoder
            .weight
            .grad(&grads)
            .expect("not the optimizer's")
            .into_data();
        assert_eq!(given.as_bytes(), expected.as_bytes());
        assert!(model.left.weight.grad(&grads).is_some());
        assert!(model.right.weight.grad(&grads).is_none());

        let part = GradientsParams::from_module(&mut plain_grads, &plain.right);
        plain.right = plain_optim.step(RATE, plain.right, part);
        let part = GradientsParams::from_module(&mut grads, &model.right);
        model.right = optim.step(RATE, model.right, part);
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        assert_eq!(optim.last_step().expect("a step").outcomes().count(), 2);
    }
}

/// `armed` says which of the parts are armed.
fn three_optimizers(armed: [bool; 3]) {
    let start = start::<TwoHeads>();
    let mut plain = start.model::<TwoHeads, P>();
    let mut plain_optims = (
        AdamConfig::new().init(),
        AdamConfig::new().init(),
        SgdConfig::new().init(),
    );
    let mut model = start.model::<TwoHeads, R>();
    let mut optims = (
        adam(),
        adam(),
        SgdConfig::new()
            .init::<R, Linear<R>>()
            .with_gradient_release(),
    );
    for step in 0..STEPS {
        let mut grads = TwoHeads::loss(&plain, Size::Small, step).backward();
        let part = GradientsParams::from_module(&mut grads, &plain.encoder);
        plain.encoder = plain_optims.0.step(RATE, plain.encoder, part);
        let part = GradientsParams::from_module(&mut grads, &plain.left);
        plain.left = plain_optims.1.step(2.0 * RATE, plain.left, part);
        let part = GradientsParams::from_module(&mut grads, &plain.right);
        plain.right = plain_optims.2.step(3.0 * RATE, plain.right, part);

        if armed[0] {
            model.encoder = optims.0.arm(RATE, model.encoder);
        }
        if armed[1] {
            model.left = optims.1.arm(2.0 * RATE, model.left);
        }
        if armed[2] {
            model.right = optims.2.arm(3.0 * RATE, model.right);
        }
        let mut grads = TwoHeads::loss(&model, Size::Small, step).backward();
        let part = GradientsParams::from_module(&mut grads, &model.encoder);
        assert_eq!(part.is_empty(), armed[0]);
        model.encoder = optims.0.step(RATE, model.encoder, part);
        let part = GradientsParams::from_module(&mut grads, &model.left);
        assert_eq!(part.is_empty(), armed[1]);
        model.left = optims.1.step(2.0 * RATE, model.left, part);
        let part = GradientsParams::from_module(&mut grads, &model.right);
        assert_eq!(part.is_empty(), armed[2]);
        model.right = optims.2.step(3.0 * RATE, model.right, part);

        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        let expected = |armed: bool, released: [usize; 4]| {
            if armed { released } else { [0, 0, 2, 0] }
        };
        let report = optims.0.last_step().expect("a step");
        assert_eq!(outcomes(&report), expected(armed[0], [2, 0, 0, 0]));
        let report = optims.1.last_step().expect("a step");
        assert_eq!(outcomes(&report), expected(armed[1], [2, 0, 0, 0]));
        let report = optims.2.last_step().expect("a step");
        assert_eq!(outcomes(&report), expected(armed[2], [2, 0, 0, 0]));
    }
}

#[test]
fn several_optimizers_over_disjoint_parts() {
    three_optimizers([true, true, true]);
}

#[test]
fn several_optimizers_of_which_some_are_armed() {
    three_optimizers([false, true, false]);
    three_optimizers([true, false, true]);
}

/// Each loss has its optimizer over the whole model, so the encoder belongs to both.
#[test]
fn two_losses_and_a_shared_encoder() {
    let start = start::<TwoHeads>();
    let mut plain = start.model::<TwoHeads, P>();
    let mut plain_optims = [AdamConfig::new().init(), AdamConfig::new().init()];
    let mut model = start.model::<TwoHeads, R>();
    let optim = || {
        AdamConfig::new()
            .init::<R, Branches<R>>()
            .with_gradient_release()
    };
    let mut optims = [optim(), optim()];
    for step in 0..STEPS {
        for (head, plain_optim) in plain_optims.iter_mut().enumerate() {
            let loss = if head == 0 {
                plain.left_loss(step)
            } else {
                plain.right_loss(step)
            };
            let grads = GradientsParams::from_grads(loss.backward(), &plain);
            plain = plain_optim.step(RATE, plain, grads);
        }
        for (head, optim) in optims.iter_mut().enumerate() {
            model = optim.arm(RATE, model);
            let loss = if head == 0 {
                model.left_loss(step)
            } else {
                model.right_loss(step)
            };
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(RATE, model, grads);
            let report = optim.last_step().expect("a step");
            assert_eq!(report.count(Outcome::Released), 4);
            assert_eq!(report.count(Outcome::Unused), 2);
        }
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// Two backward passes inside one arming, over parameters that do not meet.
#[test]
fn two_losses_over_disjoint_parts_of_one_arming() {
    let start = start::<TwoHeads>();
    let plain = start.model::<TwoHeads, P>();
    let mut plain_optim = AdamConfig::new().init();
    let halves = |left: Tensor<P, 2>| left.square().mean();
    let x = noise::<P, 2>(0, [3, 4], &Default::default());
    let mut grads =
        GradientsParams::from_grads(halves(plain.left.forward(x.clone())).backward(), &plain);
    let mut right = halves(plain.right.forward(x)).backward();
    let weight = &plain.right.weight;
    grads.register::<Inner, 2>(weight.id, weight.grad_remove(&mut right).expect("used"));
    let bias = plain.right.bias.as_ref().expect("there is a bias");
    grads.register::<Inner, 1>(bias.id, bias.grad_remove(&mut right).expect("used"));
    let plain = plain_optim.step(RATE, plain, grads);

    let mut optim = AdamConfig::new()
        .init::<R, Branches<R>>()
        .with_gradient_release();
    let model = optim.arm(RATE, start.model::<TwoHeads, R>());
    let x = noise::<R, 2>(0, [3, 4], &Default::default());
    let mut left = model.left.forward(x.clone()).square().mean().backward();
    let left = GradientsParams::from_module(&mut left, &model.left);
    let mut right = model.right.forward(x).square().mean().backward();
    let right = GradientsParams::from_module(&mut right, &model.right);
    assert!(left.is_empty() && right.is_empty(), "released");
    let model = optim.step(RATE, model, left);
    Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), "both halves");
}

/// A generator and a discriminator.
#[derive(Module, Debug)]
struct Networks<B: Backend> {
    generator: Linear<B>,
    discriminator: Linear<B>,
}

struct Gan;

impl Gan {
    fn fake<B: AutodiffBackend>(generator: &Linear<B>, step: u64) -> Tensor<B, 2> {
        generator
            .forward(noise(step, [3, 4], &B::Device::default()))
            .tanh()
    }

    fn discriminate<B: AutodiffBackend>(
        generator: &Linear<B>,
        discriminator: &Linear<B>,
        step: u64,
    ) -> Tensor<B, 1> {
        let real = noise::<B, 2>(step + 500, [3, 4], &B::Device::default());
        let fake = Self::fake(generator, step).detach();
        let score = |x| sigmoid(discriminator.forward(x)).mean();
        score(fake) - score(real)
    }

    fn generate<B: AutodiffBackend>(
        generator: &Linear<B>,
        discriminator: &Linear<B>,
        step: u64,
    ) -> Tensor<B, 1> {
        sigmoid(discriminator.forward(Self::fake(generator, step)))
            .mean()
            .neg()
    }
}

impl Scenario for Gan {
    type Model<B: AutodiffBackend> = Networks<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Networks<B> {
        let linear = || LinearConfig::new(4, 4).init(device);
        Networks {
            generator: linear(),
            discriminator: linear(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &Networks<B>, _: Size, step: u64) -> Tensor<B, 1> {
        Self::generate(&model.generator, &model.discriminator, step)
    }
}

#[test]
fn two_models_and_two_losses() {
    let start = start::<Gan>();
    let Networks {
        mut generator,
        mut discriminator,
    } = start.model::<Gan, P>();
    let mut optims = (AdamConfig::new().init(), AdamConfig::new().init());
    let mut expected = Vec::new();
    for step in 0..STEPS {
        let loss = Gan::discriminate(&generator, &discriminator, step);
        let grads = GradientsParams::from_grads(loss.backward(), &discriminator);
        discriminator = optims.1.step(RATE, discriminator, grads);
        let loss = Gan::generate(&generator, &discriminator, step);
        let grads = GradientsParams::from_grads(loss.backward(), &generator);
        generator = optims.0.step(RATE, generator, grads);
        expected.push((
            Weights::of::<P, _>(&generator),
            Weights::of::<P, _>(&discriminator),
        ));
    }

    let Networks {
        mut generator,
        mut discriminator,
    } = start.model::<Gan, R>();
    let mut optims = (adam(), adam());
    for (step, expected) in expected.iter().enumerate() {
        let step = step as u64;
        discriminator = optims.1.arm(RATE, discriminator);
        let loss = Gan::discriminate(&generator, &discriminator, step);
        let grads = GradientsParams::from_grads(loss.backward(), &discriminator);
        discriminator = optims.1.step(RATE, discriminator, grads);

        let before = Weights::of::<R, _>(&discriminator);
        generator = optims.0.arm(RATE, generator);
        let loss = Gan::generate(&generator, &discriminator, step);
        // The discriminator is not armed: its gradients come back, and it stays as it is.
        let mut grads = loss.backward();
        assert!(discriminator.weight.grad(&grads).is_some());
        let grads = GradientsParams::from_module(&mut grads, &generator);
        generator = optims.0.step(RATE, generator, grads);
        Weights::of::<R, _>(&discriminator).assert_same(&before, "discriminator");

        Weights::of::<R, _>(&generator).assert_same(&expected.0, format!("generator {step}"));
        Weights::of::<R, _>(&discriminator).assert_same(&expected.1, format!("disc. {step}"));
    }
}
