//! Optimizers and models that do not cover each other: subsets, several of each, several losses.

use burn::tensor::activation::relu;

use super::{P, R, TOLERANCE, adam, start};
use crate::harness::prelude::*;

const STEPS: u64 = 5;

/// An encoder and two heads.
#[derive(Module, Debug)]
struct Branches<B: Backend> {
    parts: [Linear<B>; 3],
}

impl<B: AutodiffBackend> Branches<B> {
    /// The loss of the first head or of the second.
    fn loss_of(&self, head: usize, step: u64) -> Tensor<B, 1> {
        let [encoder, left, right] = &self.parts;
        let x = noise(step, [3, 4], &B::Device::default());
        let x = relu(encoder.forward(x));
        match head {
            0 => left.forward(x).square().mean(),
            _ => right.forward(x).sub_scalar(1.0).abs().mean(),
        }
    }
}

struct TwoHeads;

impl Scenario for TwoHeads {
    type Model<B: AutodiffBackend> = Branches<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Branches<B> {
        Branches {
            parts: [(); 3].map(|()| LinearConfig::new(4, 4).init(device)),
        }
    }

    fn loss<B: AutodiffBackend>(model: &Branches<B>, _: Size, step: u64) -> Tensor<B, 1> {
        model.loss_of(0, step) + model.loss_of(1, step)
    }
}

/// An optimizer for each part, of settings and a rate of its own, of which some are armed: the
/// others get their gradients, to the last bit.
#[test]
fn several_optimizers_over_disjoint_parts() {
    let settings = [0.9, 0.8, 0.7].map(|beta| AdamConfig::new().with_beta_1(beta));
    let rates = [RATE, 2.0 * RATE, 3.0 * RATE];
    for armed in [
        [true, true, true],
        [false, true, false],
        [true, false, true],
        [false, false, true],
    ] {
        let start = start::<TwoHeads>();
        let mut plain = start.model::<TwoHeads, P>();
        let plain_optim = |config: AdamConfig| config.init::<P, Linear<P>>();
        let mut plain_optims = settings.clone().map(plain_optim);
        let mut model = start.model::<TwoHeads, R>();
        let optim = |config: AdamConfig| config.init::<R, Linear<R>>().with_gradient_release();
        let mut optims = settings.clone().map(optim);
        for step in 0..STEPS {
            let mut plain_grads = TwoHeads::loss(&plain, Size::Small, step).backward();
            for part in (0..3).filter(|part| armed[*part]) {
                let linear = model.parts[part].clone();
                model.parts[part] = optims[part].arm(rates[part], linear);
            }
            let mut grads = TwoHeads::loss(&model, Size::Small, step).backward();
            for part in 0..3 {
                let context = format!("{armed:?}, part {part}, step {step}");
                let linear = plain.parts[part].clone();
                let expected = linear.weight.grad(&plain_grads).expect("used").into_data();
                let part_grads = GradientsParams::from_module(&mut plain_grads, &linear);
                plain.parts[part] = plain_optims[part].step(rates[part], linear, part_grads);

                let linear = model.parts[part].clone();
                let given = linear.weight.grad(&grads).map(Tensor::into_data);
                assert_eq!(given, (!armed[part]).then_some(expected), "{context}");
                let part_grads = GradientsParams::from_module(&mut grads, &linear);
                assert_eq!(part_grads.is_empty(), armed[part], "{context}");
                model.parts[part] = optims[part].step(rates[part], linear, part_grads);
                let report = optims[part].last_step().expect("a step");
                let expected = if armed[part] {
                    [2, 0, 0, 0]
                } else {
                    [0, 0, 2, 0]
                };
                assert_eq!(outcomes(&report), expected, "{context}");
            }
            let context = format!("{armed:?}, step {step}");
            Weights::of(&model).assert_near(&Weights::of(&plain), TOLERANCE, context);
        }
    }
}

/// Each loss has its optimizer over the whole model, so the encoder belongs to both.
#[test]
fn two_losses_and_a_shared_encoder() {
    let start = start::<TwoHeads>();
    let mut plain = start.model::<TwoHeads, P>();
    let mut plain_optims = [AdamConfig::new().init(), AdamConfig::new().init()];
    let mut model = start.model::<TwoHeads, R>();
    let mut optims = [adam::<Branches<R>>(), adam()];
    for step in 0..STEPS {
        for head in 0..2 {
            let loss = plain.loss_of(head, step);
            plain = ordinary_step(RATE, plain, &mut plain_optims[head], loss);
            let optim = &mut optims[head];
            model = armed_step(RATE, model, optim, |model| model.loss_of(head, step));
            assert_eq!(outcomes(&optim.last_step().expect("a step")), [4, 0, 0, 2]);
        }
        Weights::of(&model).assert_near(&Weights::of(&plain), TOLERANCE, step);
    }
}

/// Two backward passes inside one arming, over parameters that do not meet. Recomputed, the two
/// forward passes share segments and subgraphs.
#[test]
fn two_losses_over_disjoint_parts_of_one_arming() {
    /// Uses its part several times.
    fn tower<B: Backend>(part: &Linear<B>, depth: usize, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [3, 4], &Default::default());
        let x = (0..depth).fold(x, |x, _| part.forward(x).tanh());
        x.square().mean()
    }

    let budgets = [1, 2, 4].map(|kib| Recompute::Budget(kib << 10));
    let policies = [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(u64::MAX),
    ];
    for depths in [[1, 2], [12, 2], [7, 7]] {
        let start = start::<TwoHeads>();
        let loss = |model: &Branches<P>, step| {
            tower(&model.parts[1], depths[0], step) + tower(&model.parts[2], depths[1], step)
        };
        let plain = start.model::<TwoHeads, P>();
        let expected = run::ordinary(plain, &mut AdamConfig::new().init(), STEPS, &loss);
        for recompute in policies.into_iter().chain(budgets) {
            for both_forward_first in [false, true] {
                let case = format!("{depths:?}, {recompute:?}, {both_forward_first}");
                let mut optim = adam().with_recompute(recompute);
                let mut model = start.model::<TwoHeads, R>();
                for (step, expected) in (0..).zip(&expected.steps) {
                    model = optim.arm(RATE, model);
                    let loss = |head: usize| tower(&model.parts[head + 1], depths[head], step);
                    let backward = |loss: Tensor<R, 1>| {
                        let grads = gradients(&model, loss);
                        assert!(grads.is_empty(), "released: {case}, step {step}");
                    };
                    let first = loss(0);
                    let second = both_forward_first.then(|| loss(1));
                    backward(first);
                    backward(second.unwrap_or_else(|| loss(1)));
                    model = optim.step(RATE, model, GradientsParams::new());
                    let context = format!("{case}, step {step}");
                    Weights::of(&model).assert_near(expected, TOLERANCE, context);
                }
            }
        }
    }
}

/// A frozen encoder under both heads, each with a backward pass of its own, of which only the
/// gradients of the head are collected.
#[test]
fn gradients_of_a_frozen_part_need_not_be_collected() {
    let start = start::<TwoHeads>();
    let mut expected = start.model::<TwoHeads, P>();
    for head in 1..3 {
        let part = expected.parts[head].clone();
        let mut grads = expected.loss_of(head - 1, 0).backward();
        let grads = GradientsParams::from_module(&mut grads, &part);
        expected.parts[head] = AdamConfig::new().init().step(RATE, part, grads);
    }
    let frozen = ParamGroup::from_predicate("parts.0.");
    for collects_all in [false, true] {
        let mut optim = adam().with_group(frozen.clone(), GroupOptions::new().frozen());
        let model = optim.arm(RATE, start.model::<TwoHeads, R>());
        let mut last = GradientsParams::new();
        for head in 1..3 {
            let mut grads = model.loss_of(head - 1, 0).backward();
            last = match collects_all {
                false => GradientsParams::from_module(&mut grads, &model.parts[head]),
                true => GradientsParams::from_grads(grads, &model),
            };
        }
        let model = optim.step(RATE, model, last);
        Weights::of(&model).assert_same(&Weights::of(&expected), "both heads");
        let report = optim.last_step().expect("a step");
        assert_eq!(report.count(Outcome::Frozen), 2, "{collects_all}");
    }
}
