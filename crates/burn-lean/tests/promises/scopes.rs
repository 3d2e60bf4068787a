//! Scopes of `checkpoint`: the bits of a model that keeps its activations, armed and unarmed.

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use burn_lean::{Outcome, WithGradientRelease, checkpoint};

use crate::harness::{
    Bits, LR, adamw, alone, assert_same, bits, flex, ids, numbers, plain_step, release_step, seeded,
};

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let square = || LinearConfig::new(8, 8).init(device);
        Self {
            norm: LayerNormConfig::new(8).init(device),
            query: square(),
            key: square(),
            value: square(),
            up: LinearConfig::new(8, 20).init(device),
            down: LinearConfig::new(20, 8).init(device),
        }
    }

    /// `x` is used four times: the sum of its gradients has an order.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = self.attend(x.clone());
        self.perceive(x + mixed)
    }

    /// As [`forward`](Self::forward), with a scope whose input is used beside it.
    fn forward_in_parts(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = checkpoint(self, x.clone(), Self::attend);
        self.perceive(x + mixed)
    }

    fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let normed = self.norm.forward(x);
        let scores = self.query.forward(normed.clone());
        let scores = scores.matmul(self.key.forward(normed.clone()).swap_dims(1, 2));
        softmax(scores, 2).matmul(self.value.forward(normed))
    }

    fn perceive(&self, x: Tensor<3>) -> Tensor<3> {
        x.clone() + self.down.forward(gelu(self.up.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    blocks: Vec<Block>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(30, 8).init(device),
            blocks: (0..3).map(|_| Block::new(device)).collect(),
        }
    }

    /// The head is the embedding's weight.
    fn loss(&self, hidden: Tensor<3>, step: usize) -> Tensor<1> {
        let [batch, time, width] = hidden.dims();
        let hidden = hidden.reshape([batch * time, width]);
        let logits = hidden.matmul(self.embedding.weight.val().transpose());
        let device = logits.device();
        let targets = ids([batch * time], step + 1, 30, &device);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, targets)
    }

    fn embed(&self, step: usize) -> Tensor<3> {
        self.embedding
            .forward(ids([2, 5], step, 30, &self.embedding.weight.val().device()))
    }
}

fn kept(net: &Net, step: usize) -> Tensor<1> {
    let hidden = net
        .blocks
        .iter()
        .fold(net.embed(step), |x, block| block.forward(x));
    net.loss(hidden, step)
}

fn recomputed(net: &Net, step: usize) -> Tensor<1> {
    let hidden = net.blocks.iter().fold(net.embed(step), |x, block| {
        checkpoint(block, x, |block: &Block, x| block.forward(x))
    });
    net.loss(hidden, step)
}

/// Trains with `kept` and plain Burn; with `recomputed` in plain Burn and with gradient release.
fn assert_same_recomputed<M: Module>(
    device: &Device,
    make: impl Fn(&Device) -> M,
    kept: impl Fn(&M, usize) -> Tensor<1>,
    recomputed: impl Fn(&M, usize) -> Tensor<1>,
) {
    const STEPS: usize = 8;
    let mut model = seeded(device, &make);
    let mut optim = adamw();
    let mut expected = Vec::new();
    for step in 0..STEPS {
        model = plain_step(model, &mut optim, |model| kept(model, step));
        expected.push(synchronized_bits(&model));
    }
    let mut model = seeded(device, &make);
    let mut optim = adamw();
    for (step, expected) in expected.iter().enumerate() {
        model = plain_step(model, &mut optim, |model| recomputed(model, step));
        assert_eq!(
            &synchronized_bits(&model),
            expected,
            "unarmed, after step {step}"
        );
    }
    let mut model = seeded(device, &make);
    let mut optim = adamw().with_gradient_release();
    for (step, expected) in expected.iter().enumerate() {
        model = release_step(model, &mut optim, |model| recomputed(model, step));
        assert_eq!(
            &synchronized_bits(&model),
            expected,
            "armed, after step {step}"
        );
        assert_eq!(optim.last_step().unwrap().count(Outcome::Ordinary), 0);
    }
}

/// Burn keeps the last update of running statistics aside until somebody asks; a scope has asked.
fn synchronized_bits<M: Module>(model: &M) -> Bits {
    let _ = model.valid();
    bits(model)
}

/// As [`assert_same_recomputed`], where gradients of more than two uses come from several scopes,
/// and add up in another order than in plain Burn: at most by `tolerance`, of the largest weight.
fn assert_close_recomputed(
    tolerance: f32,
    kept: impl Fn(&Net, usize) -> Tensor<1>,
    recomputed: impl Fn(&Net, usize) -> Tensor<1>,
) {
    let device = flex();
    let mut expected = seeded(&device, Net::new);
    // Not Adam, which makes a step of any size of a gradient that is all rounding.
    let momentum = || {
        SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .init()
    };
    let mut optim = momentum();
    let mut model = seeded(&device, Net::new);
    let mut release = momentum().with_gradient_release();
    for step in 0..8 {
        expected = plain_step(expected, &mut optim, |model| kept(model, step));
        model = release_step(model, &mut release, |model| recomputed(model, step));
        let of = |net: &Net| -> Vec<f32> {
            bits(net)
                .into_iter()
                .flat_map(|(_, bits)| bits)
                .map(f32::from_bits)
                .collect()
        };
        let (expected, found) = (of(&expected), of(&model));
        let largest = expected
            .iter()
            .fold(0.0, |largest: f32, weight| largest.max(weight.abs()));
        for (expected, found) in expected.iter().zip(&found) {
            assert!(
                (expected - found).abs() <= tolerance * largest,
                "{expected}, {found}"
            );
        }
    }
}

#[test]
fn blocks_of_a_transformer() {
    let device = flex();
    assert_same_recomputed(&device, Net::new, kept, recomputed);
}

#[test]
fn with_burns_own_checkpointing() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    assert_same_recomputed(&device, Net::new, kept, recomputed);
}

#[test]
fn the_whole_model_in_one_scope() {
    assert_same_recomputed(&flex(), Net::new, kept, |net: &Net, step| {
        checkpoint(net, (), move |net: &Net, ()| kept(net, step))
    });
}

#[test]
fn scopes_in_scopes() {
    assert_same_recomputed(&flex(), Net::new, kept, |net: &Net, step| {
        let blocks = net.blocks.clone();
        let hidden = checkpoint(&blocks, net.embed(step), |blocks: &Vec<Block>, x| {
            blocks.iter().fold(x, |x, block| {
                checkpoint(block, x, |block: &Block, x| block.forward(x))
            })
        });
        net.loss(hidden, step)
    });
}

/// The input of the outer scope is a leaf on its tape. What the residual adds to its gradient comes
/// before what the scope inside adds.
#[test]
fn a_scope_in_a_scope_beside_a_residual() {
    assert_same_recomputed(&flex(), Net::new, kept, |net: &Net, step| {
        let hidden = net.blocks.iter().fold(net.embed(step), |x, block| {
            checkpoint(block, x, Block::forward_in_parts)
        });
        net.loss(hidden, step)
    });
}

#[test]
fn one_block_used_in_several_scopes_and_outside() {
    let run = |net: &Net, step: usize, again: bool| {
        let run = |block: &Block, x| match again {
            true => checkpoint(block, x, |block: &Block, x| block.forward(x)),
            false => block.forward(x),
        };
        let x = net.blocks[0].forward(net.embed(step));
        let x = run(&net.blocks[0], x);
        let x = run(&net.blocks[1], x);
        let x = run(&net.blocks[0], x);
        net.loss(net.blocks[0].forward(x), step)
    };
    // Biases and norms: as views of a parameter, plain Burn adds their gradients at the very end of
    // backward. After eight steps, two units in the last place of the largest weight.
    assert_close_recomputed(
        3e-7,
        |net: &Net, step| run(net, step, false),
        |net: &Net, step| run(net, step, true),
    );
}

#[test]
fn one_weight_used_in_several_scopes_and_outside() {
    let run = |layers: &Vec<Linear>, step: usize, again: bool| {
        let run = |layer: &Linear, x| match again {
            true => checkpoint(layer, x, |layer: &Linear, x: Tensor<2>| {
                x.clone() + layer.forward(x).tanh()
            }),
            false => x.clone() + layer.forward(x).tanh(),
        };
        let x = numbers([3, 6], step, &Device::flex().autodiff());
        let x = layers[0].forward(x).tanh();
        let x = [0, 1, 0, 1, 0]
            .into_iter()
            .fold(x, |x, at: usize| run(&layers[at], x));
        layers[0].forward(x).square().mean()
    };
    let layer = |device: &Device| LinearConfig::new(6, 6).with_bias(false).init(device);
    assert_same_recomputed(
        &flex(),
        |device| vec![layer(device), layer(device)],
        |layers: &Vec<Linear>, step| run(layers, step, false),
        |layers: &Vec<Linear>, step| run(layers, step, true),
    );
}

#[test]
fn a_scope_that_nothing_comes_of() {
    let run = |net: &Net, step: usize, again: bool| {
        let run = |block: &Block, x| match again {
            true => checkpoint(block, x, |block: &Block, x| block.forward(x)),
            false => block.forward(x),
        };
        let x = run(&net.blocks[0], net.embed(step));
        let _unused = run(&net.blocks[0], x.clone());
        let _unused = run(&net.blocks[2], x.clone());
        net.loss(run(&net.blocks[1], x), step)
    };
    assert_same_recomputed(
        &flex(),
        Net::new,
        |net: &Net, step| run(net, step, false),
        |net: &Net, step| run(net, step, true),
    );
}

#[test]
fn an_input_of_several_scopes() {
    let run = |net: &Net, step: usize, again: bool| {
        let x = net.embed(step);
        let branches = net.blocks.iter().map(|block| match again {
            true => checkpoint(block, x.clone(), |block: &Block, x| block.forward(x)),
            false => block.forward(x.clone()),
        });
        let sum = branches.fold(x.clone().sin(), |sum, branch| (sum + branch).tanh());
        net.loss(sum + x, step)
    };
    // Scopes side by side: plain Burn's tape takes a step of each in turn.
    assert_close_recomputed(
        1.2e-7,
        |net: &Net, step| run(net, step, false),
        |net: &Net, step| run(net, step, true),
    );
}

type Inputs = (
    (Tensor<3>, Option<Tensor<3>>),
    (Tensor<2, Bool>, Vec<Tensor<1, Int>>),
);

/// Two results, of which the second is not always used, and one that is no float.
fn many(net: &Net, inputs: Inputs) -> (Tensor<3>, [Tensor<3>; 2], Tensor<3, Bool>) {
    let ((x, skip), (mask, indices)) = inputs;
    let hidden = net.blocks[0].forward(x.clone());
    let masked = hidden.clone().mask_fill(mask.unsqueeze_dim(2), 0.25);
    let picked = net.blocks[1].forward(masked).select(1, indices[0].clone());
    let skipped = match skip {
        Some(skip) => picked.clone() * skip,
        None => picked.clone(),
    };
    let positive = picked.clone().greater_elem(0.0);
    (skipped, [picked, hidden], positive)
}

#[test]
fn several_inputs_and_results_of_all_kinds() {
    let run = |net: &Net, step: usize, again: bool| {
        let x = net.embed(step);
        let device = x.device();
        let mask = numbers::<2>([2, 5], step, &device).greater_elem(0.0);
        let indices = vec![Tensor::from_ints([4, 0, 2], &device)];
        let skip = step
            .is_multiple_of(2)
            .then(|| x.clone().slice([0..2, 0..3]).tanh());
        let inputs = ((x, skip), (mask, indices));
        let (a, [b, c], positive) = match again {
            true => checkpoint(net, inputs, many),
            false => many(net, inputs),
        };
        let b = b.mask_fill(positive, 0.5);
        let sum = a + b;
        let hidden = if step.is_multiple_of(3) {
            sum
        } else {
            Tensor::cat(vec![sum, c], 1)
        };
        net.loss(hidden, step)
    };
    assert_same_recomputed(
        &flex(),
        Net::new,
        |net: &Net, step| run(net, step, false),
        |net: &Net, step| run(net, step, true),
    );
}

#[derive(Module, Debug)]
struct Noisy {
    up: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    down: Linear,
}

impl Noisy {
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(6, 12).init(device),
            norm: BatchNormConfig::new(12).init(device),
            dropout: DropoutConfig::new(0.4).init(),
            down: LinearConfig::new(12, 6).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>, dropout: bool) -> Tensor<2> {
        let hidden: Tensor<3> = self
            .norm
            .forward(self.up.forward(x.clone()).unsqueeze_dim(2));
        let mut hidden = gelu(hidden.squeeze_dim(2));
        if dropout {
            hidden = self.dropout.forward(hidden);
        }
        x + self.down.forward(hidden)
    }
}

#[test]
fn running_statistics_change_once() {
    let device = flex();
    let run = |blocks: &Vec<Noisy>, step, again: bool| {
        let device = Device::flex().autodiff();
        let x = blocks
            .iter()
            .fold(numbers([7, 6], step, &device), |x, block| match again {
                true => checkpoint(block, x, |block: &Noisy, x| block.forward(x, false)),
                false => block.forward(x, false),
            });
        x.square().mean()
    };
    assert_same_recomputed(
        &device,
        |device| vec![Noisy::new(device), Noisy::new(device)],
        |blocks, step| run(blocks, step, false),
        |blocks, step| run(blocks, step, true),
    );
}

/// A scope's gradients are those of the masks that its result was made with: by finite differences,
/// which know nothing of how the gradients were computed.
#[test]
fn masks_of_dropout_are_the_same_both_times() {
    alone(
        "scopes::masks_of_dropout_are_the_same_both_times",
        finite_differences,
    );
}

fn finite_differences() {
    let device = flex();
    let block = seeded(&device, Noisy::new);
    let x: Tensor<2> = numbers([7, 6], 0, &device);
    let out = |x: Tensor<2>| {
        // The same seed gives the same masks.
        device.seed(11);
        checkpoint(&block, x, |block: &Noisy, x| {
            let hidden = block.dropout.forward(block.up.forward(x).tanh());
            block.down.forward(hidden).tanh()
        })
        .sum()
    };
    let leaf = x.clone().require_grad();
    let grads = out(leaf.clone()).backward();
    let grad: Vec<f32> = leaf
        .grad(&grads)
        .unwrap()
        .into_data()
        .try_into_vec()
        .unwrap();
    let h = 1e-2;
    for (i, grad) in grad.iter().enumerate().step_by(5) {
        let mut data: Vec<f32> = x.to_data().try_into_vec().unwrap();
        let mut at = |by: f32| {
            data[i] += by;
            let x = burn::tensor::TensorData::new(data.clone(), [7, 6]);
            out(Tensor::from_data(x, &device)).into_scalar::<f32>()
        };
        let (above, below) = (at(h), at(-2.0 * h));
        let difference = (above - below) / (2.0 * h);
        // The third derivative makes most of the difference: h^2 = 1e-4. Other masks make 0.1 and
        // more.
        assert!(
            (difference - grad).abs() < 5e-3,
            "element {i}: {difference} and {grad}"
        );
    }
}

#[test]
fn masks_do_not_depend_on_what_is_armed() {
    alone(
        "scopes::masks_do_not_depend_on_what_is_armed",
        armed_and_unarmed,
    );
}

fn armed_and_unarmed() {
    let device = flex();
    let loss = |block: &Noisy, step| {
        let device = Device::flex().autodiff();
        device.seed(step as u64);
        let x = numbers([7, 6], step, &device);
        let x = checkpoint(block, x, |block: &Noisy, x| block.forward(x, true));
        // Random numbers after a scope, and after backward.
        (x.clone() * x.random_like(Distribution::Default))
            .square()
            .mean()
    };
    assert_same(6, &device, adamw, Noisy::new, loss);
}

#[test]
#[should_panic(expected = "pass it as a part of the input")]
fn a_tensor_that_would_get_no_gradient_is_refused() {
    let device = flex();
    let block = Block::new(&device);
    let outside = numbers::<3>([1, 2, 8], 0, &device).require_grad();
    let x = numbers::<3>([1, 2, 8], 1, &device);
    checkpoint(&block, x, move |block: &Block, x| {
        block.forward(x + outside.clone())
    });
}

#[test]
#[should_panic(expected = "pass it as a part of the input")]
fn a_parameter_that_would_get_no_gradient_is_refused() {
    let device = flex();
    let (block, other) = (Block::new(&device), Block::new(&device));
    let x = numbers::<3>([1, 2, 8], 1, &device);
    checkpoint(&block, x, move |block: &Block, x| {
        other.forward(block.forward(x))
    });
}

#[test]
fn an_armed_parameter_may_be_used_from_anywhere() {
    let run = |net: &Net, step: usize, again: bool| {
        let net_of_scope = net.clone();
        let forward = move |blocks: &Vec<Block>, x| {
            let x = blocks[1].forward(blocks[0].forward(x));
            net_of_scope.blocks[2].forward(x)
        };
        let hidden = match again {
            true => checkpoint(&net.blocks, net.embed(step), forward),
            false => forward(&net.blocks, net.embed(step)),
        };
        net.loss(hidden, step)
    };
    let device = flex();
    let mut plain = seeded(&device, Net::new);
    let mut optim = adamw();
    for step in 0..4 {
        plain = plain_step(plain, &mut optim, |net| run(net, step, false));
    }
    let mut model = seeded(&device, Net::new);
    let mut optim = adamw().with_gradient_release();
    for step in 0..4 {
        model = release_step(model, &mut optim, |net| run(net, step, true));
    }
    assert_eq!(bits(&model), bits(&plain));
}

#[test]
fn frozen_parts_and_parts_of_two_optimizers() {
    let device = flex();
    let run = |frozen: &Block, parts: (&Block, &Block), step: usize, again: bool| {
        let device = Device::flex().autodiff();
        let x = numbers::<3>([2, 4, 8], step, &device);
        let both = (frozen.clone(), parts.0.clone());
        let x = match again {
            true => checkpoint(&both, x, |both: &(Block, Block), x| {
                both.1.forward(both.0.forward(x))
            }),
            false => both.1.forward(both.0.forward(x)),
        };
        let x = match again {
            true => checkpoint(parts.1, x, |block: &Block, x| block.forward(x)),
            false => parts.1.forward(x),
        };
        x.square().mean()
    };
    let sgd = || SgdConfig::new().init();
    let frozen = seeded(&device, Block::new).no_grad();
    let make = |device: &Device| (Block::new(device), Block::new(device));

    let (mut a, mut b) = seeded(&device, make);
    let (mut of_a, mut of_b) = (adamw(), sgd());
    for step in 0..4 {
        let mut grads = run(&frozen, (&a, &b), step, false).backward();
        let grads_a = GradientsParams::from_module(&mut grads, &a);
        let grads_b = GradientsParams::from_module(&mut grads, &b);
        (a, b) = (of_a.step(LR, a, grads_a), of_b.step(LR, b, grads_b));
    }
    let expected = (bits(&a), bits(&b));

    // Only one of the two is armed: the other's gradients are ordinary ones.
    let (mut a, mut b) = seeded(&device, make);
    let (mut of_a, mut of_b) = (adamw().with_gradient_release(), sgd());
    for step in 0..4 {
        a = of_a.arm(LR, a);
        let mut grads = run(&frozen, (&a, &b), step, true).backward();
        let grads_a = GradientsParams::from_module(&mut grads, &a);
        let grads_b = GradientsParams::from_module(&mut grads, &b);
        (a, b) = (of_a.step(LR, a, grads_a), of_b.step(LR, b, grads_b));
    }
    assert_eq!((bits(&a), bits(&b)), expected);
}

#[test]
fn a_scope_on_a_device_without_autodiff_just_runs() {
    let device = Device::flex();
    let block = Block::new(&device);
    let x = numbers::<3>([1, 2, 8], 1, &device);
    let out = checkpoint(&block, x.clone(), |block: &Block, x| block.forward(x));
    assert_eq!(out.into_data(), block.forward(x).into_data());
}

#[test]
fn a_validation_in_the_middle_just_runs() {
    let device = flex();
    let net = seeded(&device, Net::new);
    let mut optim = adamw().with_gradient_release();
    let net = optim.arm(LR, net);
    let loss = recomputed(&net, 0);
    let valid = net.valid();
    let x = numbers::<3>([1, 2, 8], 1, &Device::flex());
    checkpoint(&valid.blocks[0], x, |block: &Block, x| block.forward(x));
    let grads = GradientsParams::from_grads(loss.backward(), &net);
    let net = optim.step(LR, net, grads);
    let plain = plain_step(seeded(&device, Net::new), &mut adamw(), |net| kept(net, 0));
    assert_eq!(bits(&net), bits(&plain));
}

#[test]
fn after_a_panic_inside_a_scope_training_goes_on() {
    let device = flex();
    let net = seeded(&device, Net::new);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        checkpoint(
            &net.blocks[0],
            net.embed(0),
            |_: &Block, _: Tensor<3>| -> Tensor<3> { panic!("in the forward pass") },
        )
    }));
    assert!(result.is_err());
    let mut optim = adamw().with_gradient_release();
    let net = release_step(net, &mut optim, |net| recomputed(net, 0));
    let plain = plain_step(seeded(&device, Net::new), &mut adamw(), |net| kept(net, 0));
    assert_eq!(bits(&net), bits(&plain));
}

#[test]
fn a_function_of_the_input_alone() {
    let device = flex();
    let weight = Param::from_tensor(numbers::<2>([4, 4], 3, &device));
    let x = weight.val();
    let out = checkpoint(
        &Vec::<Linear>::new(),
        x.clone(),
        |_: &Vec<Linear>, x: Tensor<2>| (x.clone() * x.clone().tanh() + x).sum(),
    );
    let grads = out.backward();
    let plain = (x.clone() * x.clone().tanh() + x.clone()).sum().backward();
    let of = |grads| weight.val().grad(grads).unwrap().into_data();
    assert_eq!(of(&grads), of(&plain));
}
