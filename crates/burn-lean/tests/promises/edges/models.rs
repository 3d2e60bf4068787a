//! Models that use their parameters in unusual ways, and several models at once.

use burn::module::ParamId;
use burn::tensor::activation;
use burn_lean::clip_grad_norm;

use crate::harness::Named;
use crate::harness::prelude::*;

/// Trains both ways, with both optimizers. Returns what the last step did.
fn same<M: Module>(make: impl Fn() -> M, loss: impl Fn(&M, usize) -> Tensor<1>) -> StepReport {
    let runs = both_ways(BOTH, &[FirstPass::Auto], 5, make, loss);
    runs.last().expect("two optimizers").last().clone()
}

fn matrix(seed: usize) -> Param<Tensor<2>> {
    Param::from_tensor(numbers([4, 4], seed, &flex()) * 0.6)
}

#[derive(Module, Debug)]
struct Two {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
}

impl Two {
    fn new() -> Self {
        let [a, b] = [1, 2].map(matrix);
        Self { a, b }
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let x = numbers([3, 4], step, &flex()).matmul(self.a.val());
        activation::tanh(x).matmul(self.b.val()).square().mean()
    }
}

/// Clones, and a frozen copy of a part of a model beside it, as a target: Burn has one gradient for
/// both.
#[test]
fn two_parameters_with_one_id_are_refused() {
    let online = matrix(1);
    let target = Param::from_mapped_value(online.id, matrix(2).val(), Default::default());
    let target = target.set_require_grad(false);
    for (a, b) in [(&online, &online), (&online, &target), (&target, &online)] {
        let [a, b] = [a, b].map(Param::clone);
        let model = Two { a, b };
        let before = bits(&model);
        let mut optim = adamw().with_gradient_release();
        let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
        assert_error!(
            error,
            DuplicateParam,
            "give it ids of its own: `Param::from_mapped_value` with `ParamId::new()`"
        );
        let (first, second) = ("a".into(), "b".into());
        assert_eq!(error, ReleaseError::DuplicateParam { first, second });
        assert_eq!(bits(&model), before);
        assert!(!optim.is_armed());
    }
    let (_, base, mapper) = target.consume();
    let b = Param::from_mapped_value(ParamId::new(), base, mapper);
    let model = Two { a: online, b };
    let before = bits_of(model.b.val());
    let mut optim = adamw().with_gradient_release();
    let model = release_step(model, &mut optim, |model| model.loss(1));
    assert_eq!(optim.last_step().unwrap().outcomes().count(), 1);
    assert_eq!(bits_of(model.b.val()), before);
}

/// Without a step inside backward they are Burn's: one gradient, which is clipped and unscaled once.
/// The same, of a model that is armed: a copy beside what it was taken of gets no weight.
#[test]
fn a_copy_put_into_the_armed_model_is_refused_by_its_step() {
    for is_first in [true, false] {
        let mut optim = adamw().with_gradient_release();
        let mut model = optim.arm(LR, Two::new());
        let grads = GradientsParams::from_grads(model.loss(1).backward(), &model);
        let Two { a, b } = &mut model;
        let (target, online) = if is_first { (a, b) } else { (b, a) };
        let before = std::mem::replace(target, online.clone().set_require_grad(false));
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_error!(refused.error(), DuplicateParam, "keep one `Param`");
        let (mut model, grads) = refused.into_given();
        let Two { a, b } = &mut model;
        *(if is_first { a } else { b }) = before;
        let model = optim.step(LR, model, grads);
        let mut plain = adamw();
        let expected = Two::new();
        let grads = GradientsParams::from_grads(expected.loss(1).backward(), &expected);
        assert_eq!(bits(&model), bits(&plain.step(LR, expected, grads)));
    }
}

#[test]
fn one_gradient_of_two_parameters_is_transformed_once() {
    let model = || {
        let a = matrix(1);
        Two { b: a.clone(), a }
    };
    let expected = || {
        let model = model();
        let grads = GradientsParams::from_grads((model.loss(0) * 1000.0).backward(), &model);
        let grad = grads.get::<2>(model.a.id).unwrap();
        let norm = grad.clone().square().sum().sqrt().into_scalar::<f32>();
        (norm, grad * (1.0 / norm))
    };
    let (norm, expected) = expected();
    assert!(norm > 1.5);
    let near = |found: Tensor<2>| {
        let off = (found - expected.clone()).abs().max().into_scalar::<f32>();
        assert!(off < 1e-5, "{off}");
    };
    let plain = model();
    let mut grads = GradientsParams::from_grads((plain.loss(0) * 1000.0).backward(), &plain);
    clip_grad_norm(&plain, &mut grads, 1.0);
    near(grads.get::<2>(plain.a.id).unwrap());

    let scaler = LossScalerConfig::new().with_init_scale(16.0).init();
    let sgd = SgdConfig::new().init().with_gradient_release();
    let mut optim = sgd
        .with_loss_scaler(scaler.clone())
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let before = plain.a.val().inner();
    let loss = scaler.scale(plain.loss(0) * 1000.0);
    let grads = GradientsParams::from_grads(loss.backward(), &plain);
    let stepped = optim.step(1.0, plain, grads);
    let [a, b] = [stepped.a, stepped.b].map(|weight| before.clone() - weight.val().inner());
    // Burn steps the one that it comes to first.
    near(a + b);
}

#[test]
fn parameters_used_through_views_only() {
    let make = || {
        let vector = |seed| Param::from_tensor(numbers::<1>([4], seed, &flex()));
        let sliced = Param::from_tensor(numbers::<2>([4, 8], 2, &flex()));
        (matrix(1), vector(3), sliced, vector(4))
    };
    let report = same(make, |(matrix, bias, sliced, expanded), step| {
        let x = numbers([3, 4], step, &flex());
        let x = x.matmul(matrix.val().transpose()) + bias.val().reshape([1, 4]);
        let left = x.clone().matmul(sliced.val().slice([0..4, 0..4]));
        let right = x.matmul(sliced.val().slice([0..4, 4..8]).swap_dims(0, 1));
        let expanded = expanded.val().unsqueeze::<2>().expand([3, 4]);
        (gelu(left) * right + expanded).square().mean()
    });
    assert_eq!(report.count(Outcome::Released), 4);
}

#[test]
fn a_parameter_that_is_the_loss_itself() {
    same(Two::new, |model, _| {
        model.a.val().mean() + model.b.val().sum()
    });
}

/// Which graphs Burn merges and forgets is decided by the order of a hash set, so each is run
/// often.
#[test]
fn a_step_that_is_not_armed_gets_its_gradient_after_uses_that_led_nowhere() {
    type Three = [Param<Tensor<2>>; 3];
    let make = || -> Three { [1, 2, 3].map(matrix) };
    let loss = |model: &Three, step: usize| {
        let x = numbers::<2>([4, 4], step, &flex());
        let [a, b, c] = [0, 1, 2].map(|at: usize| model[at].val());
        if step == 0 {
            let _metric = x.clone().matmul(b).tanh().matmul(c).sum();
            a.matmul(x).square().mean()
        } else {
            let live = b.tanh();
            let _metric = (live.clone() * a + c).sum();
            live.matmul(x).square().mean()
        }
    };
    for run in 0..100 {
        let (mut plain, mut plain_optim) = (make(), adamw());
        let mut expected = Vec::new();
        for step in 0..2 {
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            expected.push(bits(&plain));
        }
        for is_armed in [[true, false], [false, true], [true, true], [false, false]] {
            let (mut model, mut optim) = (make(), adamw().with_gradient_release());
            for (step, expected) in expected.iter().enumerate() {
                if is_armed[step] {
                    model = optim.arm(LR, model);
                }
                let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
                model = optim.step(LR, model, grads);
                let what = format!("{is_armed:?}, run {run}, step {step}");
                assert_bits(&bits(&model), expected, &what);
            }
        }
    }
}

/// Passes of other lengths: what was learned of one tape is applied to another.
#[test]
fn another_depth_in_each_step() {
    same(small, |model, step| {
        let mut x = numbers([3, 4], step, &flex());
        for _ in 0..[3, 1, 4, 2, 5][step] {
            x = activation::tanh(model.forward(x.clone())) + x;
        }
        x.square().mean()
    });
}

/// Trains four steps in which a leaf that no optimizer has armed gets a gradient, too, and compares
/// with plain Burn the bits of that gradient and of the weights.
fn same_with_leaf(
    leaf: impl Fn(usize) -> Tensor<2>,
    loss: impl Fn(&Small, Tensor<2>, usize) -> Tensor<1>,
) {
    let backward = |model: &Small, step| {
        let leaf = leaf(step);
        let mut grads = loss(model, leaf.clone(), step).backward();
        let of_leaf = bits_of(leaf.grad(&grads).unwrap());
        (of_leaf, GradientsParams::from_module(&mut grads, model))
    };
    let (mut plain, mut plain_optim) = (small(), adamw());
    let mut expected = Vec::new();
    for step in 0..4 {
        let (of_leaf, grads) = backward(&plain, step);
        plain = plain_optim.step(LR, plain, grads);
        expected.push((of_leaf, bits(&plain)));
    }
    let (mut model, mut optim) = (small(), adamw().with_gradient_release());
    for (step, expected) in expected.into_iter().enumerate() {
        model = optim.arm(LR, model);
        let (of_leaf, grads) = backward(&model, step);
        model = optim.step(LR, model, grads);
        assert_eq!((of_leaf, bits(&model)), expected, "in step {step}");
    }
}

/// An input whose gradient is wanted: directly, beside a view of a weight, and beside an
/// activation.
#[test]
fn a_leaf_that_is_not_armed() {
    let leaf = |step| numbers([4, 4], step, &flex()).require_grad();
    same_with_leaf(leaf, |model, x, _| {
        let gate = x.clone() * model.tied.val();
        let view = x.clone() + model.tied.val().transpose();
        (model.forward(x) + gate * view).square().mean()
    });
}

/// The same leaf in each step: Burn's tape does not know it any more after its first backward.
#[test]
fn a_leaf_that_was_in_an_earlier_backward() {
    let leaf = numbers::<2>([4, 4], 1, &flex()).require_grad();
    let loss = |model: &Small, leaf: Tensor<2>, step| {
        let gate = leaf * model.tied.val().transpose();
        (model.loss(step) + gate.square().mean()) * 0.5
    };
    same_with_leaf(|_| leaf.clone(), loss);
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

#[test]
fn a_gan() {
    let (mut plain_g, mut plain_d) = gan_models();
    let (mut plain_of_g, mut plain_of_d) = (adamw(), momentum());
    let (mut g, mut d) = gan_models();
    let mut of_g = adamw().with_gradient_release();
    let mut of_d = momentum().with_gradient_release();
    for step in 0..5 {
        plain_d = plain_step(plain_d, &mut plain_of_d, |d| {
            loss_of_discriminator(&plain_g, d, step)
        });
        plain_g = plain_step(plain_g, &mut plain_of_g, |g| {
            loss_of_generator(g, &plain_d, step)
        });
        d = release_step(d, &mut of_d, |d| loss_of_discriminator(&g, d, step));
        g = release_step(g, &mut of_g, |g| loss_of_generator(g, &d, step));
        assert_eq!(bits(&d), bits(&plain_d), "after step {step}");
        assert_eq!(bits(&g), bits(&plain_g), "after step {step}");
    }
}

/// Both models are armed, and the generator's loss steps the discriminator, too.
#[test]
fn a_gan_with_both_models_armed_is_refused() {
    for asks in [true, false] {
        let (g, d) = gan_models();
        let mut of_g = adamw().with_gradient_release();
        let mut of_d = momentum().with_gradient_release();
        let (g, d) = (of_g.arm(LR, g), of_d.arm(LR, d));
        let grads_g = GradientsParams::from_grads(loss_of_generator(&g, &d, 0).backward(), &g);
        // The discriminator's gradients, from a second backward; or none.
        let grads_d = match asks {
            true => GradientsParams::from_grads(loss_of_discriminator(&g, &d, 0).backward(), &d),
            false => GradientsParams::new(),
        };
        of_g.step(LR, g, grads_g);
        let refused = of_d.try_step(LR, d, grads_d).unwrap_err();
        if asks {
            assert_error!(refused.error(), AlreadyStepped, "one backward per step");
            continue;
        }
        assert_error!(refused.error(), Unclaimed);
        let refused = of_d.try_arm(LR, refused.into_model()).unwrap_err();
        let unfinished = ReleaseError::Unfinished {
            stepped: PARAMS,
            armed: PARAMS,
        };
        assert_eq!(refused.error(), &unfinished);
    }
}

/// Two optimizers step the encoder in turn, each with its own head.
#[test]
fn a_shared_encoder_in_turns() {
    type Task = (Linear, Linear);
    let loss = |(encoder, head): &Task, step: usize| {
        let x = numbers::<2>([3, 4], step, &flex());
        let x = head.forward(gelu(encoder.forward(x)));
        x.square().mean()
    };
    let layer = |from| -> Linear { numbered_from(LinearConfig::new(4, 4).init(&flex()), from) };
    let encoder = layer(10);
    let mut plain: [Task; 2] = [20, 21].map(|from| (encoder.clone(), layer(from)));
    let mut tasks = plain.clone();
    let mut plain_optims = [adamw(), adamw()];
    let mut optims = [0, 1].map(|_| adamw().with_gradient_release());
    for step in 0..6 {
        let (now, next) = (step % 2, (step + 1) % 2);
        let optim = &mut plain_optims[now];
        plain[now] = plain_step(plain[now].clone(), optim, |task| loss(task, step));
        plain[next].0 = plain[now].0.clone();
        let optim = &mut optims[now];
        tasks[now] = release_step(tasks[now].clone(), optim, |task| loss(task, step));
        tasks[next].0 = tasks[now].0.clone();
        assert_eq!(bits(&tasks[0]), bits(&plain[0]), "after step {step}");
        assert_eq!(bits(&tasks[1]), bits(&plain[1]), "after step {step}");
    }
}

/// Release for one layer, plain Burn for the rest of the model.
#[test]
fn an_optimizer_over_a_part_of_a_model() {
    type Rest = (Linear, Param<Tensor<2>>);
    let rest_of = |model: &Small| -> Rest { (model.first.clone(), model.tied.clone()) };
    let step_rest = |model: &mut Small, optim: &mut ModuleOptimizer, grads| {
        (model.first, model.tied) = optim.step(LR, rest_of(model), grads);
    };
    let (mut plain, mut model) = (small(), small());
    let (mut plain_part, mut plain_rest) = (adamw(), momentum());
    let (mut part, mut rest) = (adamw().with_gradient_release(), momentum());
    for step in 0..5 {
        let mut grads = plain.loss(step).backward();
        let of_part = GradientsParams::from_module(&mut grads, &plain.second);
        let of_rest = GradientsParams::from_module(&mut grads, &rest_of(&plain));
        plain.second = plain_part.step(LR, plain.second, of_part);
        step_rest(&mut plain, &mut plain_rest, of_rest);

        model.second = part.arm(LR, model.second);
        let mut grads = model.loss(step).backward();
        let of_part = GradientsParams::from_module(&mut grads, &model.second);
        let of_rest = GradientsParams::from_module(&mut grads, &rest_of(&model));
        model.second = part.step(LR, model.second, of_part);
        step_rest(&mut model, &mut rest, of_rest);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        assert_eq!(part.last_step().unwrap().outcomes().count(), 2);
    }
}

/// Beside one that has some: they have a gradient without elements, whose norm is zero.
#[derive(Module, Debug)]
struct Hollow {
    vector: Param<Tensor<1>>,
    matrix: Param<Tensor<2>>,
    weight: Param<Tensor<1>>,
}

impl Hollow {
    fn new(dtype: DType) -> Self {
        let device = flex();
        let options = || (&device, dtype);
        Self {
            vector: Param::from_tensor(Tensor::zeros([0], options())),
            matrix: Param::from_tensor(Tensor::zeros([4, 0], options())),
            weight: Param::from_tensor(Tensor::ones([3], options())),
        }
    }

    fn loss(&self, _: usize) -> Tensor<1> {
        let of_matrix = self.matrix.val().square().sum();
        self.weight.val().square().sum() + self.vector.val().square().sum() + of_matrix
    }
}

fn assert_hollow(optims: &[Named], dtype: DType) {
    let make = || Hollow::new(dtype);
    for run in both_ways(optims, &[FirstPass::Auto], 5, make, Hollow::loss) {
        assert_eq!(run.last().count(Outcome::Released), 3, "{dtype:?}");
    }
}

#[test]
fn parameters_without_elements() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        assert_hollow(BOTH, dtype);
    }
}

/// Optimizers that are asked about a parameter before it is armed.
#[cfg(feature = "optim")]
#[test]
fn optimizers_are_asked_about_parameters_without_elements() {
    use burn_lean::optim::{InFiveBytes, InOnePass, Lean};

    const IN_ONE_PASS: Named = ("in one pass", || AdamWConfig::new().in_one_pass().init());
    const IN_FIVE_BYTES: Named = ("in five bytes", || {
        AdamWConfig::new().in_five_bytes(7).init()
    });
    for dtype in [DType::F32, DType::F64] {
        assert_hollow(&[IN_ONE_PASS], dtype);
    }
    for dtype in [DType::BF16, DType::F16] {
        assert_hollow(&[IN_ONE_PASS, IN_FIVE_BYTES], dtype);
    }
}

/// The gradient of the weight is 2, so that its norm is the root of 12.
#[test]
fn gradients_without_elements_are_clipped() {
    let clippings = [
        NormClipping::GlobalNorm { max_norm: 100.0 },
        NormClipping::ZClip(ZClipConfig::new()),
        NormClipping::Adaptive(AdaptiveClippingConfig::new().with_clip_factor(100.0)),
        NormClipping::AutoClip(AutoClipConfig::new()),
    ];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let start = || Hollow::new(dtype);
        let (_, expected) = plain_run(start(), &mut adamw(), 0..1, Hollow::loss);
        for clipping in clippings {
            let optim = adamw().with_gradient_release().with_norm_clipping(clipping);
            let mut optim = optim.with_grad_norm();
            let model = match optim.needs_two_passes() {
                true => optim.two_passes(LR, start(), |model| model.loss(0)).0,
                false => release_step(start(), &mut optim, |model| model.loss(0)),
            };
            let what = format!("{clipping:?} in {dtype:?}");
            assert_bits(&bits(&model), &expected[0], &what);
            let norm = optim.last_step().unwrap().grad_norm().unwrap();
            assert!((norm - 12f64.sqrt()).abs() < 1e-6, "{what}: {norm}");
        }
    }
    let model = Hollow::new(DType::F32);
    let mut grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let norm = clip_grad_norm(&model, &mut grads, 100.0);
    assert!((norm - 12f64.sqrt()).abs() < 1e-6, "{norm}");
}
