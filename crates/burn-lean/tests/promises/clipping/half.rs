//! Clipping in half precision: in 32 bits, and rounded once.

use burn_lean::clip_grad_norm;

use super::by_hand::gradients;
use crate::harness::prelude::*;

fn tensor(numbers: &[f64], dtype: DType) -> Tensor<1> {
    Tensor::from_data(TensorData::from(numbers), (&flex(), dtype))
}

fn numbers(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The weight after a step of SGD with rate 1.
fn stepped(weight: &[f64], grad: &[f64], dtype: DType, mut optim: ReleaseOptimizer) -> Vec<f64> {
    let weight = Param::from_tensor(tensor(weight, dtype).require_grad());
    let loss = (weight.val() * tensor(grad, dtype)).sum();
    numbers(optim.backward(1.0, loss, weight).val())
}

fn sgd() -> ReleaseOptimizer {
    SgdConfig::new().init().with_gradient_release()
}

/// The square of 300 is no number of `f16`.
#[test]
fn adaptive_clipping_is_right() {
    let clipping = NormClipping::Adaptive(AdaptiveClippingConfig::new());
    for dtype in [DType::F16, DType::BF16] {
        for (weight, grad) in [(0.5, 300.0), (300.0, 300.0), (300.0, 60_000.0)] {
            let optim = sgd().with_norm_clipping(clipping);
            let found = stepped(&[weight; 64], &[grad; 64], dtype, optim);
            // The gradient is scaled to a hundredth of the weight, and both are rounded.
            let step = numbers(tensor(&[0.01 * weight], dtype))[0];
            let right = numbers(tensor(&[weight - step], dtype))[0];
            assert_eq!(found, [right; 64], "{weight}, {grad} in {dtype:?}");
        }
    }
}

/// The nearest numbers of the type to those of 64 bits: a coefficient that was rounded itself would
/// be off by up to half a step more.
#[test]
fn a_clipped_gradient_is_rounded_once() {
    let grad: Vec<f64> = (1..=40).map(|number| f64::from(number * 16)).collect();
    let norm = grad.iter().map(|x| x * x).sum::<f64>().sqrt();
    for dtype in [DType::F16, DType::BF16] {
        let clipped: Vec<f64> = grad.iter().map(|x| x / (norm + 1e-6)).collect();
        let right = numbers(tensor(&clipped, dtype));

        let weight = Param::from_tensor(tensor(&[0.0; 40], dtype).require_grad());
        let loss = (weight.val() * tensor(&grad, dtype)).sum();
        let mut grads: GradientsParams = gradients(&weight, loss);
        let found = clip_grad_norm(&weight, &mut grads, 1.0);
        assert!((found - norm).abs() < 1e-3, "{found} {norm}");
        assert_eq!(numbers(grads.get(weight.id).unwrap()), right, "{dtype:?}");
    }
}
