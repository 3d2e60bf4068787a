//! What the operations are to the tape: parents with and without gradients, and inference. With gradient
//! release and scopes they are in `layers` and `mixed_precision`.

use burn_lean::operations::{gelu, layer_norm, softmax};

use crate::harness::prelude::*;

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
    for device in devices() {
        let (x, gamma, beta) = three(&device);
        let expected = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
        let expected = expected.into_data();
        let (x, beta) = (x.inner(), Some(beta.inner()));
        let tracked = gamma.clone().require_grad();
        let y = layer_norm(x.clone(), tracked, beta.clone(), 1e-5);
        assert!(y.is_tracked());
        assert_eq!(y.into_data(), expected);
        // With all of them the operation is a plain function.
        let y = layer_norm(x, gamma.inner(), beta, 1e-5);
        assert!(!y.device().is_autodiff());
        assert_eq!(y.into_data(), expected);
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
