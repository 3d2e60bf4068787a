//! The weights of plain Burn, bit for bit, for fifteen kinds of model.

use std::sync::Barrier;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param, ParamGroup};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, Lstm, LstmConfig, PaddingConfig2d, RmsNorm, RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Tensor};
use burn_lean::{FirstPass, Outcome, WithGradientRelease};

use crate::harness::{
    Bits, LR, adamw, alone, assert_bits, assert_released, bits, devices, flex, ids, momentum,
    numbers, plain_run, release_run, release_step, seeded,
};

const STEPS: usize = 20;

type Optimizers = [(&'static str, fn() -> ModuleOptimizer)];

const BOTH: &Optimizers = &[("AdamW", adamw), ("momentum", momentum)];

/// On all devices and from the first step on, with the default configuration and with a small first
/// pass.
fn assert_equal<M: Module>(
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    for device in devices() {
        for first_pass in [FirstPass::Auto, FirstPass::Small] {
            assert_equal_on(&device, BOTH, first_pass, &make, |model, step| {
                loss(model, step, &device)
            });
        }
    }
}

fn assert_equal_on<M: Module>(
    device: &Device,
    optims: &Optimizers,
    first_pass: FirstPass,
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) {
    for (name, optim) in optims {
        let what = format!("{name}, {first_pass:?}, {device:?}");
        let (_, expected) = plain_run(seeded(device, &make), &mut optim(), 0..STEPS, &loss);
        let mut optim = optim().with_gradient_release().with_first_pass(first_pass);
        let model = seeded(device, &make);
        let (_, reports) = release_run(model, &mut optim, 0..STEPS, &loss, &expected, &what);
        let is_small = first_pass == FirstPass::Small;
        assert_released(&reports, usize::from(!is_small), &what);
        // What a small first pass does is not known to be plain Burn's, even where it is.
        let known = &reports[usize::from(is_small)..];
        assert!(
            known.iter().all(|report| report.is_plain()),
            "{what}: {known:?}"
        );
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

fn cross_entropy(logits: Tensor<2>, step: usize) -> Tensor<1> {
    let ([rows, classes], device) = (logits.dims(), logits.device());
    let targets = ids([rows], step, classes, &device);
    CrossEntropyLossConfig::new()
        .init(&device)
        .forward(logits, targets)
}

#[derive(Module, Debug)]
struct Residual {
    pairs: Vec<[Linear; 2]>,
}

impl Residual {
    fn new(device: &Device) -> Self {
        let pair = |_| [linear(8, 16, device), linear(16, 8, device)];
        Self {
            pairs: (0..4).map(pair).collect(),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let mut x = numbers([4, 8], step, device);
        for [up, down] in &self.pairs {
            x = x.clone() + down.forward(relu(up.forward(x)));
        }
        x.square().mean()
    }
}

#[test]
fn mlp_with_residuals() {
    assert_equal(Residual::new, Residual::loss);
}

#[derive(Module, Debug)]
struct Former {
    embedding: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Former {
    fn new(norm_first: bool, device: &Device) -> Self {
        let body = TransformerEncoderConfig::new(8, 16, 2, 2);
        Self {
            embedding: EmbeddingConfig::new(20, 8).init(device),
            body: body
                .with_dropout(0.0)
                .with_norm_first(norm_first)
                .init(device),
            head: linear(8, 20, device),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.embedding.forward(ids([2, 5], step, 20, device));
        let x = self.body.forward(TransformerEncoderInput::new(x));
        cross_entropy(self.head.forward(x).reshape([10, 20]), step + 1)
    }
}

#[test]
fn transformer_norm_first() {
    assert_equal(|device| Former::new(true, device), Former::loss);
}

#[test]
fn transformer_norm_last() {
    assert_equal(|device| Former::new(false, device), Former::loss);
}

#[derive(Module, Debug)]
struct ConvNet {
    conv: [Conv2d; 2],
    norm: [BatchNorm; 2],
    head: Linear,
}

impl ConvNet {
    fn new(device: &Device) -> Self {
        let conv = |inputs| {
            let config = Conv2dConfig::new([inputs, 4], [3, 3]);
            config.with_padding(PaddingConfig2d::Same).init(device)
        };
        let norm = || BatchNormConfig::new(4).init(device);
        Self {
            conv: [conv(3), conv(4)],
            norm: [norm(), norm()],
            head: linear(4, 3, device),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = numbers([2, 3, 6, 6], step, device);
        let x = relu(self.norm[0].forward(self.conv[0].forward(x)));
        let x = x.clone() + relu(self.norm[1].forward(self.conv[1].forward(x)));
        let x = x.reshape([2, 4, 36]).mean_dim(2).reshape([2, 4]);
        cross_entropy(self.head.forward(x), step)
    }
}

#[test]
fn convolution_with_batch_norm() {
    assert_equal(ConvNet::new, ConvNet::loss);
}

#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    middle: Linear,
}

impl Tied {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(20, 8).init(device),
            middle: linear(8, 8, device),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.embedding.forward(ids([3, 4], step, 20, device));
        let x = gelu(self.middle.forward(x)).reshape([12, 8]);
        cross_entropy(x.matmul(self.embedding.weight.val().transpose()), step + 1)
    }
}

#[test]
fn tied_embedding() {
    assert_equal(Tied::new, Tied::loss);
}

#[derive(Module, Debug)]
struct HandRnn {
    hidden: Param<Tensor<2>>,
    input: Linear,
}

impl HandRnn {
    fn new(device: &Device) -> Self {
        Self {
            hidden: Param::from_tensor(numbers([6, 6], 0, device)),
            input: linear(4, 6, device),
        }
    }

    fn loss(&self, weight: impl Fn() -> Tensor<2>, step: usize, device: &Device) -> Tensor<1> {
        let mut x = Tensor::zeros([2, 6], device);
        for time in 0..5 {
            let input = self.input.forward(numbers([2, 4], step * 5 + time, device));
            x = (x.matmul(weight()) + input).tanh();
        }
        x.square().mean()
    }
}

#[test]
fn rnn_that_reads_its_weight_each_time() {
    assert_equal(HandRnn::new, |model, step, device| {
        model.loss(|| model.hidden.val(), step, device)
    });
}

#[test]
fn rnn_that_reads_its_weight_once() {
    assert_equal(HandRnn::new, |model, step, device| {
        let weight = model.hidden.val();
        model.loss(|| weight.clone(), step, device)
    });
}

#[derive(Module, Debug)]
struct LstmNet {
    lstm: Lstm,
    head: Linear,
}

#[test]
fn lstm() {
    assert_equal(
        |device| LstmNet {
            lstm: LstmConfig::new(4, 6, true).init(device),
            head: linear(6, 3, device),
        },
        |model, step, device| {
            let (x, _) = model.lstm.forward(numbers([2, 5, 4], step, device), None);
            model.head.forward(x).square().mean()
        },
    );
}

#[derive(Module, Debug)]
struct GatedBlock {
    norm: RmsNorm,
    gate: SwiGlu,
    down: Linear,
}

#[derive(Module, Debug)]
struct Gated {
    blocks: Vec<GatedBlock>,
}

impl Gated {
    fn new(device: &Device) -> Self {
        let block = |_| GatedBlock {
            norm: RmsNormConfig::new(8).init(device),
            gate: SwiGluConfig::new(8, 12).init(device),
            down: linear(12, 8, device),
        };
        Self {
            blocks: (0..3).map(block).collect(),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let mut x: Tensor<2> = numbers([4, 8], step, device);
        for GatedBlock { norm, gate, down } in &self.blocks {
            x = x.clone() + down.forward(gate.forward(norm.forward(x)));
        }
        x.square().mean()
    }
}

#[test]
fn swiglu() {
    assert_equal(Gated::new, Gated::loss);
}

#[derive(Module, Debug)]
struct Attending {
    norm: LayerNorm,
    own: MultiHeadAttention,
    cross: MultiHeadAttention,
}

#[test]
fn cross_attention() {
    let attention = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
    assert_equal(
        |device| Attending {
            norm: LayerNormConfig::new(8).init(device),
            own: attention.init(device),
            cross: attention.init(device),
        },
        |model, step, device| {
            let x = model.norm.forward(numbers([2, 4, 8], step, device));
            let own = model.own.forward(MhaInput::self_attn(x.clone())).context;
            let input = MhaInput::new(own.clone(), x.clone(), x.clone());
            let cross = model.cross.forward(input).context;
            (x + own + cross).square().mean()
        },
    );
}

#[derive(Module, Debug)]
struct Parts {
    frozen: Linear,
    used: Linear,
    dead: Linear,
    unused: Linear,
    last: Linear,
}

impl Parts {
    fn new(device: &Device) -> Self {
        Self {
            frozen: seeded(device, |device| linear(6, 6, device)).no_grad(),
            used: linear(6, 6, device),
            dead: linear(6, 6, device),
            unused: linear(6, 6, device),
            last: linear(6, 6, device),
        }
    }
}

/// A weight also has uses that the loss does not depend on: before, after and above the one that
/// counts.
#[test]
fn frozen_dead_and_unused_parts() {
    assert_equal(Parts::new, |model, step, device| {
        let x = model.frozen.forward(numbers([3, 6], step, device));
        let x = model.used.forward(x).tanh();
        let _dead = model.dead.forward(x.clone()).sum();
        let _before = model.last.forward(x.clone());
        let out = model.last.forward(x);
        let _after = model.used.forward(model.last.forward(out.clone()));
        out.square().mean()
    });
}

#[test]
fn a_frozen_part_stays_as_it_is() {
    let device = flex();
    let model = seeded(&device, Parts::new);
    let before = bits(&model);
    let mut optim = adamw().with_gradient_release();
    let model = release_step(model, &mut optim, |model| {
        let x = model
            .used
            .forward(model.frozen.forward(numbers([3, 6], 0, &device)));
        let _dead = model.dead.forward(x.clone());
        model.last.forward(x).square().mean()
    });
    let after = bits(&model);
    for (before, after) in before.iter().zip(&after) {
        let is_stepped = after.0.starts_with("used") || after.0.starts_with("last");
        assert_eq!(before != after, is_stepped, "{}", after.0);
    }
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::ReleasedLate), 4);
    assert_eq!(report.count(Outcome::Unused), 4);
    assert_eq!(report.outcomes().count(), 8);
}

/// AdamW, clipped by norm; the norms with momentum; the head with momentum, clipped by value.
fn groups() -> ModuleOptimizer {
    let clip = |clipping: GradientClippingConfig| Some(clipping.init());
    AdamWConfig::new()
        .with_grad_clipping(Some(GradientClippingConfig::Norm(0.05)))
        .init()
        .with_group(
            ParamGroup::from_predicate("norm"),
            SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new()))
                .build(),
            clip(GradientClippingConfig::Norm(0.1)),
        )
        .with_group(
            ParamGroup::from_path("head.weight"),
            SgdConfig::new().build(),
            clip(GradientClippingConfig::Value(0.01)),
        )
}

#[test]
fn groups_with_clipping() {
    for device in devices() {
        for first_pass in [FirstPass::Auto, FirstPass::Small] {
            assert_equal_on(
                &device,
                &[("groups", groups)],
                first_pass,
                |device| Former::new(true, device),
                |model, step| model.loss(step, &device),
            );
        }
    }
}

#[test]
fn balanced_checkpointing_of_burn() {
    for device in devices() {
        let device = device.gradient_checkpointing();
        for first_pass in [FirstPass::Auto, FirstPass::Small] {
            assert_equal_on(&device, BOTH, first_pass, Gated::new, |model, step| {
                model.loss(step, &device)
            });
            assert_equal_on(&device, BOTH, first_pass, Residual::new, |model, step| {
                model.loss(step, &device)
            });
        }
    }
}

/// An activation with five uses: the sum of its gradients has an order.
#[derive(Module, Debug)]
struct Fan {
    first: Linear,
    branches: Vec<Linear>,
}

impl Fan {
    fn new(device: &Device) -> Self {
        Self {
            first: linear(12, 12, device),
            branches: (0..5).map(|_| linear(12, 12, device)).collect(),
        }
    }

    fn hidden(&self, step: usize, device: &Device) -> Tensor<2> {
        self.first.forward(numbers([8, 12], step, device)).tanh()
    }

    fn forward_sum(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.hidden(step, device);
        let outs = self.branches.iter().map(|branch| branch.forward(x.clone()));
        outs.collect::<Vec<_>>()
            .into_iter()
            .reduce(Tensor::add)
            .unwrap()
            .square()
            .mean()
    }

    fn reversed_sum(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.hidden(step, device);
        let outs = self.branches.iter().map(|branch| branch.forward(x.clone()));
        let outs: Vec<_> = outs.collect();
        outs.into_iter()
            .rev()
            .reduce(Tensor::add)
            .unwrap()
            .square()
            .mean()
    }

    /// The first branch written is the deepest.
    fn deep_first(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.hidden(step, device);
        let [a, b, c, d, e] = &self.branches[..] else {
            unreachable!("there are five");
        };
        let deepest = c.forward(b.forward(a.forward(x.clone()).tanh()).tanh());
        let short = d.forward(x.clone());
        let shortest = e.forward(x.clone());
        (deepest + short + shortest + x).square().mean()
    }
}

#[test]
fn fan_out_summed_forward() {
    assert_equal(Fan::new, Fan::forward_sum);
}

#[test]
fn fan_out_summed_in_reverse() {
    for device in devices() {
        assert_equal_on(&device, BOTH, FirstPass::Auto, Fan::new, |model, step| {
            model.reversed_sum(step, &device)
        });
    }
}

#[test]
fn fan_out_with_a_deep_first_branch() {
    assert_equal(Fan::new, Fan::deep_first);
}

/// The only known model whose first step differs with [`FirstPass::Small`], and says so.
#[test]
fn a_small_first_pass_that_is_not_plain() {
    for device in devices() {
        for (name, optim) in BOTH {
            let what = format!("{name}, {device:?}");
            let loss = |model: &Fan, step| model.reversed_sum(step, &device);
            let model = seeded(&device, Fan::new);
            let (_, all_plain) = plain_run(model, &mut optim(), 0..STEPS, loss);

            let small = optim().with_gradient_release();
            let mut small = small.with_first_pass(FirstPass::Small);
            let model = release_step(seeded(&device, Fan::new), &mut small, |model| {
                loss(model, 0)
            });
            let report = small.last_step().unwrap();
            assert!(!report.is_plain(), "{what}: {report:?}");
            // Adam divides a gradient by its own size, so that last bits of a small one show.
            let tolerance = if *name == "AdamW" { 2e-6 } else { 1e-6 };
            assert_close(&bits(&model), &all_plain[0], tolerance, &what);

            // From here on it is plain Burn that begins with these weights and states.
            let bytes = small.to_record().into_bytes().unwrap();
            let mut plain = optim().load_record(OptimizerRecord::from_bytes(bytes).unwrap());
            let (_, expected) = plain_run(model.clone(), &mut plain, 1..STEPS, loss);
            assert_ne!(
                expected.last(),
                all_plain.last(),
                "{what}: the first step was plain after all"
            );
            let (_, reports) = release_run(model, &mut small, 1..STEPS, loss, &expected, &what);
            assert_released(&reports, 0, &what);
            assert!(
                reports.iter().all(|report| report.is_plain()),
                "{what}: {reports:?}"
            );
        }
    }
}

/// Differences relative to the largest weight of a parameter.
fn assert_close(found: &Bits, expected: &Bits, tolerance: f32, what: &str) {
    for ((path, found), (_, expected)) in found.iter().zip(expected) {
        let pairs = found.iter().zip(expected);
        let pairs = pairs.map(|(a, b)| (f32::from_bits(*a), f32::from_bits(*b)));
        let (mut difference, mut largest) = (0f32, 0f32);
        for (found, expected) in pairs {
            difference = difference.max((found - expected).abs());
            largest = largest.max(expected.abs());
        }
        let relative = difference / largest;
        assert!(
            relative <= tolerance,
            "{what}: {path} differs by {relative:e} of its largest"
        );
    }
}

/// A generator and a critic in one loss, each with an optimizer of its own.
#[test]
fn two_models_in_one_loss() {
    for device in devices() {
        for (name, optim) in BOTH {
            let make =
                |inputs| move |device: &Device| [linear(inputs, 6, device), linear(6, 5, device)];
            let forward = |[up, down]: &[Linear; 2], x| down.forward(gelu(up.forward(x)));
            let loss = |first: &[Linear; 2], second: &[Linear; 2], step| {
                let x: Tensor<2> = numbers([3, 4], step, &device);
                forward(second, forward(first, x)).square().mean()
            };
            let models = || (seeded(&device, make(4)), seeded(&device, make(5)));

            let (mut first, mut second) = models();
            let (mut first_optim, mut second_optim) = (optim(), momentum());
            let mut expected = Vec::new();
            for step in 0..STEPS {
                let mut grads = loss(&first, &second, step).backward();
                let first_grads = GradientsParams::from_module(&mut grads, &first);
                let second_grads = GradientsParams::from_module(&mut grads, &second);
                first = first_optim.step(LR, first, first_grads);
                second = second_optim.step(LR / 2.0, second, second_grads);
                expected.push((bits(&first), bits(&second)));
            }

            let (mut first, mut second) = models();
            let mut first_optim = optim().with_gradient_release();
            let mut second_optim = momentum().with_gradient_release();
            for (step, expected) in expected.iter().enumerate() {
                first = first_optim.arm(LR, first);
                second = second_optim.arm(LR / 2.0, second);
                let mut grads = loss(&first, &second, step).backward();
                let first_grads = GradientsParams::from_module(&mut grads, &first);
                let second_grads = GradientsParams::from_module(&mut grads, &second);
                first = first_optim.step(LR, first, first_grads);
                second = second_optim.step(LR / 2.0, second, second_grads);
                let what = format!("{name}, {device:?}, after step {step}");
                assert_bits(&bits(&first), &expected.0, &format!("first, {what}"));
                assert_bits(&bits(&second), &expected.1, &format!("second, {what}"));
                for optim in [&first_optim, &second_optim] {
                    let report = optim.last_step().unwrap();
                    assert!(report.is_plain(), "{what}: {report:?}");
                    assert_eq!(report.count(Outcome::Ordinary), 0, "{what}: {report:?}");
                }
            }
        }
    }
}

#[test]
fn four_threads_with_a_model_each() {
    for device in devices() {
        let (_, residual) = plain_run(
            seeded(&device, Residual::new),
            &mut adamw(),
            0..STEPS,
            |model, step| model.loss(step, &device),
        );
        let (_, gated) = plain_run(
            seeded(&device, Gated::new),
            &mut momentum(),
            0..STEPS,
            |model, step| model.loss(step, &device),
        );
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let model = seeded(&device, Residual::new);
                    let mut optim = adamw().with_gradient_release();
                    barrier.wait();
                    let loss = |model: &Residual, step| model.loss(step, &device);
                    release_run(model, &mut optim, 0..STEPS, loss, &residual, "residual");
                });
                scope.spawn(|| {
                    let model = seeded(&device, Gated::new);
                    let mut optim = momentum().with_gradient_release();
                    barrier.wait();
                    let loss = |model: &Gated, step| model.loss(step, &device);
                    release_run(model, &mut optim, 0..STEPS, loss, &gated, "gated");
                });
            }
        });
    }
}

/// Two backward passes in one step, each for a part of the model. The first forward pass uses the
/// other part too, for nothing that its loss depends on.
#[test]
fn two_losses_with_a_part_of_the_model_each() {
    for device in devices() {
        let losses = |model: &Parts, step, later: &mut dyn FnMut(Tensor<1>)| {
            let x: Tensor<2> = numbers([3, 6], step, &device);
            let used = model.used.forward(x.clone());
            let _dead = model.last.forward(used.clone());
            later(used.square().mean());
            later(model.last.forward(x.tanh()).square().mean());
        };
        let grads = |model: &Parts, step| {
            let mut grads = GradientsParams::new();
            let mut add = |loss: Tensor<1>| {
                let new = GradientsParams::from_grads(loss.backward(), model);
                for part in [&model.used, &model.last] {
                    let bias = part.bias.as_ref().unwrap().id;
                    if let Some(grad) = new.get::<2>(part.weight.id) {
                        grads.register(part.weight.id, grad);
                    }
                    if let Some(grad) = new.get::<1>(bias) {
                        grads.register(bias, grad);
                    }
                }
            };
            losses(model, step, &mut add);
            grads
        };
        let (mut model, mut optim) = (seeded(&device, Parts::new), adamw());
        let mut expected = Vec::new();
        for step in 0..STEPS {
            let grads = grads(&model, step);
            model = optim.step(LR, model, grads);
            expected.push(bits(&model));
        }
        let mut model = seeded(&device, Parts::new);
        let mut optim = adamw().with_gradient_release();
        for (step, expected) in expected.iter().enumerate() {
            model = optim.arm(LR, model);
            let grads = grads(&model, step);
            model = optim.step(LR, model, grads);
            assert_bits(
                &bits(&model),
                expected,
                &format!("{device:?}, after step {step}"),
            );
        }
    }
}

/// Masks are drawn from the generator of the device, in the same order as without gradient release.
#[test]
fn dropout() {
    alone("equality::dropout", || {
        for device in devices() {
            let make = |device: &Device| {
                let body = TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.3);
                Former {
                    body: body.init(device),
                    ..Former::new(true, device)
                }
            };
            for (name, optim) in BOTH {
                let loss = |model: &Former, step| {
                    device.seed(step as u64);
                    model.loss(step, &device)
                };
                let model = seeded(&device, make);
                let (_, expected) = plain_run(model, &mut optim(), 0..STEPS, loss);
                let mut optim = optim().with_gradient_release();
                let what = format!("{name}, {device:?}");
                release_run(
                    seeded(&device, make),
                    &mut optim,
                    0..STEPS,
                    loss,
                    &expected,
                    &what,
                );
            }
        }
    });
}
