//! Scopes of `checkpoint`: the bits of a model that keeps its activations, released and in plain Burn.

mod noise;
mod refused;
mod twice;
#[cfg(feature = "ndarray")]
mod visiting;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::nn::Dropout;
use burn::tensor::Distribution;
use burn::tensor::activation::softmax;
use burn_lean::Tensors;

use crate::harness::prelude::*;
use crate::harness::synchronized;

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

/// Runs a module, in a scope or not.
pub(crate) fn forward<M: Module + Sync + 'static, I: Tensors, O: Tensors>(
    module: &M,
    input: I,
    again: bool,
    run: impl Fn(&M, I) -> O + Send + Sync + 'static,
) -> O {
    match again {
        true => checkpoint(module, input, run),
        false => run(module, input),
    }
}

fn block(block: &Block, x: Tensor<3>, again: bool) -> Tensor<3> {
    forward(block, x, again, Block::forward)
}

/// Each block in a scope of its own, or none.
fn blocks(net: &Net, step: usize, again: bool) -> Tensor<1> {
    let x = net.embed(step);
    let run = |x, layer| block(layer, x, again);
    net.loss(net.blocks.iter().fold(x, run), step)
}

/// Trains without scopes and plain Burn; and with scopes, in plain Burn and with gradient release:
/// all bits are the same after each step. Returns what the released steps did.
pub(crate) fn assert_same_recomputed<M: Module>(
    device: &Device,
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, bool) -> Tensor<1>,
) -> Vec<StepReport> {
    let mut reports = Vec::new();
    let start = seeded(device, make);
    let (mut expected, mut kept) = (start.clone(), adamw());
    let (mut recomputed, mut plain) = (start.clone(), adamw());
    let (mut released, mut release) = (start, adamw().with_gradient_release());
    for step in 0..6 {
        expected = plain_step(expected, &mut kept, |model| loss(model, step, false));
        recomputed = plain_step(recomputed, &mut plain, |model| loss(model, step, true));
        released = release_step(released, &mut release, |model| loss(model, step, true));
        let expected = synchronized(&expected);
        for (way, model) in [("recomputed", &recomputed), ("released", &released)] {
            assert_bits(
                &synchronized(model),
                &expected,
                &format!("{way}, step {step}"),
            );
        }
        reports.push(release.last_step().unwrap().clone());
    }
    assert_released(&reports, "in scopes");
    reports
}

/// Also with Burn's own checkpointing.
#[test]
fn blocks_of_a_transformer() {
    for device in [flex(), flex().gradient_checkpointing()] {
        assert_same_recomputed(&device, Net::new, blocks);
    }
}

#[test]
fn the_whole_model_in_one_scope() {
    assert_same_recomputed(&flex(), Net::new, |net, step, again| {
        forward(net, (), again, move |net, ()| blocks(net, step, false))
    });
}

#[test]
fn scopes_in_scopes() {
    assert_same_recomputed(&flex(), Net::new, |net, step, again| {
        let run = move |blocks: &Vec<Block>, x| {
            let run = |x, layer| block(layer, x, again);
            blocks.iter().fold(x, run)
        };
        net.loss(forward(&net.blocks, net.embed(step), again, run), step)
    });
}

/// The input of the outer scope is a leaf on its tape. What the residual adds to its gradient comes
/// before what the scope inside adds.
#[test]
fn a_scope_in_a_scope_beside_a_residual() {
    assert_same_recomputed(&flex(), Net::new, |net, step, again| {
        let run = |x: Tensor<3>, layer| {
            forward(layer, x, again, move |layer: &Block, x| {
                let mixed = forward(layer, x.clone(), again, Block::attend);
                layer.perceive(x + mixed)
            })
        };
        net.loss(net.blocks.iter().fold(net.embed(step), run), step)
    });
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
    assert_same_recomputed(&flex(), Net::new, |net, step, again| {
        let x = net.embed(step);
        let device = x.device();
        let mask = numbers::<2>([2, 5], step, &device).greater_elem(0.0);
        let indices = vec![Tensor::from_ints([4, 0, 2], &device)];
        let has_skip = step.is_multiple_of(2);
        let skip = has_skip.then(|| x.clone().slice([0..2, 0..3]).tanh());
        let inputs = ((x, skip), (mask, indices));
        let (a, [b, c], positive) = forward(net, inputs, again, many);
        let sum = a + b.mask_fill(positive, 0.5);
        let hidden = match step.is_multiple_of(3) {
            true => sum,
            false => Tensor::cat(vec![sum, c], 1),
        };
        net.loss(hidden, step)
    });
}

/// Before backward: a validation, and a scope that panics.
#[test]
fn between_forward_and_backward() {
    let mut optim = adamw().with_gradient_release();
    let net = seeded(&flex(), Net::new);
    let loss = blocks(&net, 0, true);
    let x = numbers::<3>([1, 2, 8], 1, &Device::flex());
    let valid = net.valid();
    let run = |again| block(&valid.blocks[0], x.clone(), again).into_data();
    assert_eq!(run(true), run(false));
    let panics = |block: &Block, x| -> Tensor<3> {
        let _ = block.forward(x);
        panic!("in the forward pass")
    };
    let run = || checkpoint(&net.blocks[0], net.embed(0), panics);
    assert_panics(run, "in the forward pass");
    drop(valid);
    let net = optim.backward(LR, loss, net);
    let start = seeded(&flex(), Net::new);
    let plain = plain_step(start, &mut adamw(), |net| blocks(net, 0, false));
    assert_bits(&bits(&net), &bits(&plain), "after one step");
}

#[test]
fn a_result_of_rank_zero() {
    assert_same_recomputed(&flex(), Net::new, |net, step, again| {
        let x = net.embed(step);
        let loss = forward(net, x, again, move |net: &Net, x| {
            let none: [usize; 0] = [];
            net.loss(x, step).reshape::<0, _>(none)
        });
        loss.reshape([1])
    });
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
