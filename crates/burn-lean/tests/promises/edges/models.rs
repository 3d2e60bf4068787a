//! Models that use their parameters in unusual ways.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Device, Tensor, activation};
use burn_lean::{Outcome, ReleaseError, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{LR, adamw, assert_bits, bits, flex, numbers, plain_step, release_step};
use crate::small::{PARAMS, Small, bits_of, numbered, numbered_from, panic_of, small};

fn momentum() -> ModuleOptimizer {
    SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init()
}

/// As `harness::assert_same`, for models that take no random numbers.
fn same<M: Module>(
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> ReleaseOptimizer {
    let run = |optim: fn() -> ModuleOptimizer| {
        let device = flex();
        let (mut plain, mut released) = (make(&device), make(&device));
        let mut plain_optim = optim();
        let mut release = optim().with_gradient_release();
        for step in 0..5 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            released = release_step(released, &mut release, |model| loss(model, step));
            assert_eq!(bits(&released), bits(&plain), "after step {step}");
        }
        release
    };
    run(momentum);
    run(adamw)
}

fn count(optim: &ReleaseOptimizer, outcome: Outcome) -> usize {
    optim.last_step().unwrap().count(outcome)
}

#[test]
fn tied_weights() {
    let optim = same(Small::new, Small::loss);
    assert_eq!(count(&optim, Outcome::Released), PARAMS);
    assert_eq!(optim.last_step().unwrap().in_place(), PARAMS);
}

#[derive(Module, Debug)]
struct Two {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
}

impl Two {
    fn loss(&self, step: usize) -> Tensor<1> {
        let x = numbers([3, 4], step, &self.a.device()).matmul(self.a.val());
        activation::tanh(x).matmul(self.b.val()).square().mean()
    }
}

#[test]
fn two_parameters_with_one_id() {
    let a = Param::from_tensor(numbers([4, 4], 1, &flex()));
    let model = Two { b: a.clone(), a };
    let before = bits(&model);
    let mut optim = adamw().with_gradient_release();
    let (mut model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    let first = "a".into();
    assert_eq!(
        error,
        ReleaseError::DuplicateParam {
            first,
            second: "b".into()
        }
    );
    assert!(
        error
            .to_string()
            .contains("keep one `Param` and use it in both places")
    );
    assert_eq!(bits(&model), before);
    assert!(!optim.is_armed());

    model.b = Param::from_mapped_value(ParamId::new(), model.a.val(), Default::default());
    let model = model.set_require_grad(false).set_require_grad(true);
    let mut plain_optim = adamw();
    let (mut plain, mut released) = (model.clone(), model);
    for step in 0..3 {
        plain = plain_step(plain, &mut plain_optim, |model| model.loss(step));
        released = release_step(released, &mut optim, |model| model.loss(step));
        assert_eq!(bits(&released), bits(&plain), "after step {step}");
    }
}

#[test]
fn weights_used_at_each_time() {
    let optim = same(
        |device| {
            numbered(Two {
                a: Param::from_tensor(Tensor::zeros([4, 4], device)),
                b: Param::from_tensor(Tensor::zeros([4, 4], device)),
            })
        },
        |model, step| {
            let device = model.a.device();
            let mut hidden = Tensor::zeros([3, 4], &device);
            for time in 0..6 {
                let x = numbers([3, 4], step * 10 + time, &device).matmul(model.a.val());
                hidden = activation::tanh(x + hidden.matmul(model.b.val()));
            }
            hidden.square().mean()
        },
    );
    assert_eq!(count(&optim, Outcome::Released), 2);
}

/// A state that is used three times at each time: by the next one, by a gate, and by the output.
#[test]
fn activations_with_several_consumers_over_time() {
    same(
        |device| {
            numbered(Two {
                a: Param::from_tensor(Tensor::zeros([4, 4], device)),
                b: Param::from_tensor(Tensor::zeros([4, 4], device)),
            })
        },
        |model, step| {
            let device = model.a.device();
            let mut hidden = numbers([3, 4], step, &device);
            let mut outputs = Vec::new();
            for _ in 0..4 {
                let gate = activation::sigmoid(hidden.clone().matmul(model.b.val()));
                let next = activation::tanh(hidden.clone().matmul(model.a.val()));
                outputs.push(hidden.clone().matmul(model.b.val().transpose()));
                hidden = hidden * gate.clone() + next * (gate.neg() + 1.0);
            }
            Tensor::stack::<3>(outputs, 0).square().mean() + hidden.mean()
        },
    );
}

#[test]
fn parameters_used_through_views_only() {
    #[derive(Module, Debug)]
    struct Views {
        matrix: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
        sliced: Param<Tensor<2>>,
        expanded: Param<Tensor<1>>,
    }
    let optim = same(
        |device| {
            numbered(Views {
                matrix: Param::from_tensor(Tensor::zeros([4, 4], device)),
                bias: Param::from_tensor(Tensor::zeros([4], device)),
                sliced: Param::from_tensor(Tensor::zeros([4, 8], device)),
                expanded: Param::from_tensor(Tensor::zeros([4], device)),
            })
        },
        |model, step| {
            let x = numbers([3, 4], step, &model.bias.device());
            let x = x.matmul(model.matrix.val().transpose()) + model.bias.val().reshape([1, 4]);
            let left = x.clone().matmul(model.sliced.val().slice([0..4, 0..4]));
            let right = x.matmul(model.sliced.val().slice([0..4, 4..8]).swap_dims(0, 1));
            let expanded = model.expanded.val().unsqueeze::<2>().expand([3, 4]);
            (activation::gelu(left) * right + expanded).square().mean()
        },
    );
    assert_eq!(count(&optim, Outcome::Released), 4);
}

#[test]
fn a_parameter_that_is_the_loss_itself() {
    same(
        |device| {
            numbered(Two {
                a: Param::from_tensor(Tensor::zeros([4, 4], device)),
                b: Param::from_tensor(Tensor::zeros([4, 4], device)),
            })
        },
        |model, _| model.a.val().mean() + model.b.val().sum(),
    );
}

#[test]
fn unused_parameters_and_dead_branches() {
    #[derive(Module, Debug)]
    struct Parts {
        used: Linear,
        dead: Linear,
        unused: Linear,
    }
    let optim = same(
        |device| {
            let layer = || LinearConfig::new(4, 4).init(device);
            numbered(Parts {
                used: layer(),
                dead: layer(),
                unused: layer(),
            })
        },
        |model, step| {
            let x = numbers([3, 4], step, &flex());
            let y = model.used.forward(x);
            // Nothing comes of it; the weight that both use has one gradient all the same.
            let _dead = model
                .dead
                .forward(y.clone())
                .matmul(model.used.weight.val());
            y.square().mean()
        },
    );
    assert_eq!(count(&optim, Outcome::Released), 2);
    assert_eq!(count(&optim, Outcome::Unused), 4);
}

/// Which graphs Burn merges and forgets is decided by the order of a hash set, so each is run
/// often.
#[test]
fn a_step_that_is_not_armed_gets_its_gradient_after_uses_that_led_nowhere() {
    #[derive(Module, Debug)]
    struct InTurn {
        a: Param<Tensor<2>>,
        b: Param<Tensor<2>>,
        c: Param<Tensor<2>>,
    }
    let make = || {
        let matrix = |seed| Param::from_tensor(numbers([4, 4], seed, &flex()));
        let [a, b, c] = [1, 2, 3].map(matrix);
        InTurn { a, b, c }
    };
    let loss = |model: &InTurn, step: usize| {
        let x = numbers::<2>([4, 4], step, &flex());
        let (a, b, c) = (model.a.val(), model.b.val(), model.c.val());
        if step == 0 {
            let _metric = x.clone().matmul(b).tanh().matmul(c).sum();
            a.matmul(x).square().mean()
        } else {
            let live = b.tanh();
            let _metric = (live.clone() * a + c).sum();
            live.matmul(x).square().mean()
        }
    };
    for is_armed in [[true, false], [false, true], [true, true], [false, false]] {
        for run in 0..100 {
            let (mut plain, mut model) = (make(), make());
            let mut plain_optim = adamw();
            let mut optim = adamw().with_gradient_release();
            for (step, is_armed) in is_armed.into_iter().enumerate() {
                plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
                if is_armed {
                    model = optim.arm(LR, model);
                }
                let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
                model = optim.step(LR, model, grads);
            }
            let what = format!("{is_armed:?}, run {run}");
            assert_bits(&bits(&model), &bits(&plain), &what);
        }
    }
}

/// A branch that is dead in some steps only.
#[test]
fn a_branch_that_comes_and_goes() {
    same(Small::new, |model, step| {
        let device = flex();
        let x = numbers::<2>([3, 4], step, &device).matmul(model.tied.val());
        let inner = model.first.forward(x.clone());
        let loss = x.square().mean();
        match step % 2 {
            0 => loss,
            _ => {
                loss + model
                    .second
                    .forward(activation::gelu(inner))
                    .square()
                    .mean()
            }
        }
    });
}

/// Passes of other lengths: what was learned of one tape is applied to another.
#[test]
fn another_depth_in_each_step() {
    same(Small::new, |model, step| {
        let mut x = numbers([3, 4], step, &flex());
        for _ in 0..[3, 1, 4, 2, 5][step] {
            x = activation::tanh(model.forward(x.clone())) + x;
        }
        x.square().mean()
    });
}

/// An input whose gradient is wanted, or any leaf that no optimizer has armed, beside armed
/// weights.
#[test]
fn a_leaf_that_is_not_armed() {
    let (mut plain, mut optim) = (small(), adamw());
    let (mut model, mut release) = (small(), adamw().with_gradient_release());
    for step in 0..4 {
        let input = |step| numbers::<2>([4, 4], step, &flex()).require_grad();
        let loss = |model: &Small, x: Tensor<2>| {
            // Directly, beside a view of a weight, and beside an activation.
            let gate = x.clone() * model.tied.val();
            let view = x.clone() + model.tied.val().transpose();
            (model.forward(x) + gate * view).square().mean()
        };
        let x = input(step);
        let mut grads = loss(&plain, x.clone()).backward();
        let expected = x.grad(&grads).unwrap();
        let grads_plain = GradientsParams::from_module(&mut grads, &plain);
        plain = optim.step(LR, plain, grads_plain);

        model = release.arm(LR, model);
        let x = input(step);
        let mut grads = loss(&model, x.clone()).backward();
        assert_eq!(
            bits_of(x.grad(&grads).unwrap()),
            bits_of(expected),
            "in step {step}"
        );
        let grads = GradientsParams::from_module(&mut grads, &model);
        model = release.step(LR, model, grads);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
    }
}

/// The same leaf in each step: Burn's tape does not know it any more after its first backward.
#[test]
fn a_leaf_that_was_in_an_earlier_backward() {
    let leaf = numbers::<2>([4, 4], 1, &flex()).require_grad();
    let loss = |model: &Small, step| {
        let gate = leaf.clone() * model.tied.val().transpose();
        (model.loss(step) + gate.square().mean()) * 0.5
    };
    let (mut plain, mut optim) = (small(), adamw());
    let mut expected = Vec::new();
    for step in 0..4 {
        let mut grads = loss(&plain, step).backward();
        let of_leaf = bits_of(leaf.grad(&grads).unwrap());
        let grads = GradientsParams::from_module(&mut grads, &plain);
        plain = optim.step(LR, plain, grads);
        expected.push((of_leaf, bits(&plain)));
    }
    let (mut model, mut release) = (small(), adamw().with_gradient_release());
    for (step, expected) in expected.into_iter().enumerate() {
        model = release.arm(LR, model);
        let mut grads = loss(&model, step).backward();
        let of_leaf = bits_of(leaf.grad(&grads).unwrap());
        let grads = GradientsParams::from_module(&mut grads, &model);
        model = release.step(LR, model, grads);
        assert_eq!((of_leaf, bits(&model)), expected, "in step {step}");
    }
}

/// The generator and the discriminator, each with an optimizer of its own.
fn gan_models() -> (Small, Small) {
    (small(), numbered_from(small(), 2000))
}

fn loss_of_discriminator(generator: &Small, discriminator: &Small, step: usize) -> Tensor<1> {
    let device = flex();
    let fake = generator
        .forward(numbers([3, 4], 2 * step, &device))
        .detach();
    let real = numbers([3, 4], 2 * step + 1, &device);
    (discriminator.forward(fake) - discriminator.forward(real)).mean()
}

fn loss_of_generator(generator: &Small, discriminator: &Small, step: usize) -> Tensor<1> {
    let fake = generator.forward(numbers([3, 4], 2 * step, &flex()));
    discriminator.forward(fake).mean().neg()
}

fn plain_gan(steps: usize) -> (Small, Small) {
    let (mut g, mut d) = gan_models();
    let (mut optim_g, mut optim_d) = (adamw(), momentum());
    for step in 0..steps {
        d = plain_step(d, &mut optim_d, |d| loss_of_discriminator(&g, d, step));
        g = plain_step(g, &mut optim_g, |g| loss_of_generator(g, &d, step));
    }
    (g, d)
}

#[test]
fn a_gan() {
    let (mut g, mut d) = gan_models();
    let (mut optim_g, mut optim_d) = (
        adamw().with_gradient_release(),
        momentum().with_gradient_release(),
    );
    for step in 0..5 {
        d = release_step(d, &mut optim_d, |d| loss_of_discriminator(&g, d, step));
        g = release_step(g, &mut optim_g, |g| loss_of_generator(g, &d, step));
    }
    let (plain_g, plain_d) = plain_gan(5);
    assert_eq!(bits(&d), bits(&plain_d));
    assert_eq!(bits(&g), bits(&plain_g));
}

/// Both armed: the generator's loss would step the discriminator.
#[test]
fn a_gan_with_both_models_armed_is_refused() {
    let (g, d) = gan_models();
    let (mut optim_g, mut optim_d) = (
        adamw().with_gradient_release(),
        momentum().with_gradient_release(),
    );
    let (g, d) = (optim_g.arm(LR, g), optim_d.arm(LR, d));
    let grads_g = GradientsParams::from_grads(loss_of_generator(&g, &d, 0).backward(), &g);
    let grads_d = GradientsParams::from_grads(loss_of_discriminator(&g, &d, 0).backward(), &d);
    optim_g.step(LR, g, grads_g);
    let error = optim_d.try_step(LR, d, grads_d).unwrap_err();
    assert!(
        matches!(error.error(), ReleaseError::AlreadyStepped { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("one backward per step"));
}

/// The discriminator stays armed over the generator's step, which does not ask for its gradients.
#[test]
fn a_gradient_nobody_asked_for_is_told() {
    let (g, d) = gan_models();
    let (mut optim_g, mut optim_d) = (
        adamw().with_gradient_release(),
        momentum().with_gradient_release(),
    );
    let (g, d) = (optim_g.arm(LR, g), optim_d.arm(LR, d));
    let grads_g = GradientsParams::from_grads(loss_of_generator(&g, &d, 0).backward(), &g);
    let _g = optim_g.step(LR, g, grads_g);
    let refused = optim_d.try_step(LR, d, GradientsParams::new()).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::Unclaimed { .. }),
        "{refused:?}"
    );
    let refused = optim_d.try_arm(LR, refused.into_model()).unwrap_err();
    let unfinished = ReleaseError::Unfinished {
        stepped: PARAMS,
        armed: PARAMS,
    };
    assert_eq!(refused.error(), &unfinished);
}

/// Two models in one loss, each with an optimizer of its own.
#[test]
fn two_models_in_one_loss() {
    let loss = |a: &Small, b: &Small, step| {
        let x = numbers([3, 4], step, &flex());
        (b.forward(a.forward(x.clone())) - a.forward(b.forward(x)))
            .square()
            .mean()
    };
    let (mut a, mut b) = gan_models();
    let (mut optim_a, mut optim_b) = (adamw(), momentum());
    let (mut released_a, mut released_b) = (a.clone(), b.clone());
    let (mut release_a, mut release_b) = (
        adamw().with_gradient_release(),
        momentum().with_gradient_release(),
    );
    for step in 0..5 {
        let mut grads = loss(&a, &b, step).backward();
        let grads_a = GradientsParams::from_module(&mut grads, &a);
        let grads_b = GradientsParams::from_module(&mut grads, &b);
        (a, b) = (optim_a.step(LR, a, grads_a), optim_b.step(LR, b, grads_b));

        released_a = release_a.arm(LR, released_a);
        released_b = release_b.arm(LR, released_b);
        let mut grads = loss(&released_a, &released_b, step).backward();
        let grads_a = GradientsParams::from_module(&mut grads, &released_a);
        let grads_b = GradientsParams::from_module(&mut grads, &released_b);
        released_b = release_b.step(LR, released_b, grads_b);
        released_a = release_a.step(LR, released_a, grads_a);
        assert_eq!(bits(&released_a), bits(&a), "after step {step}");
        assert_eq!(bits(&released_b), bits(&b), "after step {step}");
    }
}

/// Two optimizers step the encoder in turn, each with its own head.
#[test]
fn a_shared_encoder_in_turns() {
    #[derive(Module, Debug)]
    struct Task {
        encoder: Linear,
        head: Linear,
    }
    impl Task {
        fn loss(&self, step: usize) -> Tensor<1> {
            let x = numbers([3, 4], step, &flex());
            self.head
                .forward(activation::gelu(self.encoder.forward(x)))
                .square()
                .mean()
        }
    }
    let layer = |from| -> Linear { numbered_from(LinearConfig::new(4, 4).init(&flex()), from) };
    let mut tasks = [0, 1].map(|task| Task {
        encoder: layer(10),
        head: layer(20 + task),
    });
    tasks[1].encoder = tasks[0].encoder.clone();
    let mut released = tasks.clone();
    let mut optims = [adamw(), adamw()];
    let mut releases = [0, 1].map(|_| adamw().with_gradient_release());
    for step in 0..6 {
        let (now, next) = (step % 2, (step + 1) % 2);
        let (task, optim) = (tasks[now].clone(), &mut optims[now]);
        tasks[now] = plain_step(task, optim, |task| task.loss(step));
        tasks[next].encoder = tasks[now].encoder.clone();
        let (task, optim) = (released[now].clone(), &mut releases[now]);
        released[now] = release_step(task, optim, |task| task.loss(step));
        released[next].encoder = released[now].encoder.clone();
        assert_eq!(bits(&released[0]), bits(&tasks[0]), "after step {step}");
        assert_eq!(bits(&released[1]), bits(&tasks[1]), "after step {step}");
    }
}

/// Release for one layer, plain Burn for the rest of the model.
#[test]
fn an_optimizer_over_a_part_of_a_model() {
    let group = |model: &Small| [model.second.clone()];
    let (mut plain, mut model) = (small(), small());
    let (mut plain_part, mut plain_rest) = (adamw(), momentum());
    let (mut part, mut rest) = (adamw().with_gradient_release(), momentum());
    #[derive(Module, Debug)]
    struct Rest {
        first: Linear,
        tied: Param<Tensor<2>>,
    }
    let rest_of = |model: &Small| Rest {
        first: model.first.clone(),
        tied: model.tied.clone(),
    };
    for step in 0..5 {
        let mut grads = plain.loss(step).backward();
        let grads_part = GradientsParams::from_module(&mut grads, &plain.second);
        let grads_rest = GradientsParams::from_module(&mut grads, &rest_of(&plain));
        let stepped = plain_rest.step(LR, rest_of(&plain), grads_rest);
        let [second] = group(&plain);
        plain = Small {
            second: plain_part.step(LR, second, grads_part),
            first: stepped.first,
            tied: stepped.tied,
        };

        model.second = part.arm(LR, model.second);
        let mut grads = model.loss(step).backward();
        let grads_part = GradientsParams::from_module(&mut grads, &model.second);
        let grads_rest = GradientsParams::from_module(&mut grads, &rest_of(&model));
        model.second = part.step(LR, model.second, grads_part);
        let stepped = rest.step(LR, rest_of(&model), grads_rest);
        (model.first, model.tied) = (stepped.first, stepped.tied);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        assert_eq!(part.last_step().unwrap().outcomes().count(), 2);
    }
}

/// The whole model was armed, and `step` is given a part of it.
#[test]
fn a_part_of_the_armed_model_is_refused() {
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(LR, small());
    let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let refused = optim.try_step(LR, model.first.clone(), grads).unwrap_err();
    let is_named = matches!(
        refused.error(),
        ReleaseError::WrongModel { .. } | ReleaseError::Copy { .. }
    );
    assert!(is_named, "{refused:?}");
    let (_, grads) = refused.into_given();
    let model = optim.step(LR, model, grads);
    assert_eq!(bits(&model), crate::small::plain_bits(&[0]));
}

/// Burn's accumulator over an armed model: one window must not swallow a gradient.
#[test]
fn two_backwards_into_burns_accumulator() {
    use burn::optim::GradientsAccumulator;
    for forwards_first in [false, true] {
        let mut optim = adamw().with_gradient_release();
        let model = optim.arm(LR, small());
        let mut accumulator = GradientsAccumulator::<Small>::new();
        let early = forwards_first.then(|| model.loss(1));
        let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
        accumulator.accumulate(&model, grads);
        let loss = early.unwrap_or_else(|| model.loss(1));
        let outcome = panic_of(|| {
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            accumulator.accumulate(&model, grads);
            optim
                .try_step(LR, model.clone(), accumulator.grads())
                .map_err(ReleaseError::from)
        });
        match outcome {
            Err(text) => assert!(text.contains("Combine losses before backward"), "{text}"),
            Ok(Err(ReleaseError::AlreadyStepped { .. })) => {}
            Ok(other) => panic!("forwards first {forwards_first}: {:?}", other.err()),
        }
    }
}
