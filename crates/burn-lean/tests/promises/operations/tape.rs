//! What the operations are to the tape: parents with and without gradients, inference, gradient
//! release and recomputed scopes.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_lean::operations::{gelu, layer_norm, softmax};
use burn_lean::{WithGradientRelease, checkpoint};

use crate::harness::{
    assert_bits, assert_released, devices, flex, momentum, numbers, plain_run, release_run, seeded,
};

fn three(device: &Device) -> (Tensor<2>, Tensor<1>, Tensor<1>) {
    (
        numbers([3, 5], 1, device),
        numbers([5], 2, device),
        numbers([5], 3, device),
    )
}

#[test]
fn only_what_asks_for_a_gradient_gets_one() {
    for device in devices() {
        for wanted in 0..8_u8 {
            let wants = |at: u8| wanted & (1 << at) != 0;
            let (x, gamma, beta) = three(&device);
            let x = x.set_require_grad(wants(0));
            let gamma = gamma.set_require_grad(wants(1));
            let beta = beta.set_require_grad(wants(2));
            let y = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
            assert_eq!(y.is_tracked(), wanted != 0);
            if wanted == 0 {
                continue;
            }
            let grads = y.square().sum().backward();
            assert_eq!(x.grad(&grads).is_some(), wants(0));
            assert_eq!(gamma.grad(&grads).is_some(), wants(1));
            assert_eq!(beta.grad(&grads).is_some(), wants(2));
        }
    }
}

#[test]
fn constants_of_a_device_without_autodiff_are_constants() {
    let (x, gamma, beta) = three(&flex());
    let y = layer_norm(
        x.clone().inner(),
        gamma.clone().require_grad(),
        Some(beta.clone().inner()),
        1e-5,
    );
    let expected = layer_norm(x, gamma, Some(beta), 1e-5);
    assert!(y.is_tracked());
    assert_eq!(y.into_data(), expected.into_data());
}

#[test]
fn without_autodiff_they_are_plain_functions() {
    for device in devices() {
        let (x, gamma, _) = three(&device);
        let y = layer_norm(x.clone(), gamma.clone(), None, 1e-5);
        let inference = layer_norm(x.inner(), gamma.inner(), None, 1e-5);
        assert!(!inference.device().is_autodiff());
        assert_eq!(y.into_data(), inference.into_data());
    }
}

#[test]
fn an_operand_used_twice_gets_both_gradients() {
    let x = numbers([5], 1, &flex()).require_grad();
    let y = layer_norm(x.clone().unsqueeze::<2>(), x.clone(), Some(x.clone()), 1e-5);
    let ours = x.grad(&y.square().sum().backward()).unwrap();
    let x = numbers([5], 1, &flex()).require_grad();
    let rows = x.clone().unsqueeze::<2>();
    let y = burn::tensor::module::layer_norm(rows, x.clone(), Some(x.clone()), 1e-5);
    let plain = x.grad(&y.square().sum().backward()).unwrap();
    let difference = (ours - plain).abs().max().into_scalar::<f32>();
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn a_strategy_of_the_device_is_kept() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let (x, gamma, _) = three(&device);
    let x = x.require_grad();
    let y = layer_norm(x.clone() * 2.0, gamma, None, 1e-5);
    let grads = (softmax(gelu(y), 1) * 3.0).square().sum().backward();
    assert!(x.grad(&grads).is_some());
}

#[derive(Module, Debug)]
struct Block {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
    weight: Param<Tensor<2>>,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            gamma: Param::from_tensor(Tensor::ones([6], device)),
            beta: Param::from_tensor(Tensor::zeros([6], device)),
            weight: Param::from_tensor(Tensor::zeros([6, 6], device)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = layer_norm(x.clone(), self.gamma.val(), Some(self.beta.val()), 1e-5);
        x + gelu(y.matmul(self.weight.val()))
    }
}

fn loss(blocks: &[Block], step: usize) -> Tensor<1> {
    let x = numbers([4, 6], step, &flex());
    let y = blocks.iter().fold(x, |x, block| block.forward(x));
    softmax(y, 1).square().mean()
}

fn recomputed_loss(blocks: &[Block], step: usize) -> Tensor<1> {
    let x = numbers([4, 6], step, &flex());
    let run = |x, block: &Block| checkpoint(block, x, |block: &Block, x| block.forward(x));
    softmax(blocks.iter().fold(x, run), 1).square().mean()
}

#[test]
fn gradient_release_and_recomputation_change_no_bit() {
    const STEPS: usize = 4;
    let blocks = || {
        seeded(&flex(), |device| {
            vec![Block::new(device), Block::new(device)]
        })
    };
    let (_, expected) = plain_run(blocks(), &mut momentum(), 0..STEPS, |m, step| loss(m, step));

    let mut release = momentum().with_gradient_release();
    let (_, reports) = release_run(
        blocks(),
        &mut release,
        0..STEPS,
        |m, step| loss(m, step),
        &expected,
        "released",
    );
    assert_released(&reports, 1, "released");

    let (_, recomputed) = plain_run(blocks(), &mut momentum(), 0..STEPS, |m, step| {
        recomputed_loss(m, step)
    });
    for (found, expected) in recomputed.iter().zip(&expected) {
        assert_bits(found, expected, "recomputed");
    }
    let mut release = momentum().with_gradient_release();
    release_run(
        blocks(),
        &mut release,
        0..STEPS,
        |m, step| recomputed_loss(m, step),
        &expected,
        "released and recomputed",
    );
}
