//! Gradients that are finite, with squares that are not, and small ones whose squares are zero; and half
//! precision, in which gradients are clipped in 32 bits, and rounded once.
//!
//! Where it is not said otherwise, a gradient is 3 and 4 times a power of two, and so has a norm of exactly
//! 5 times it.

use burn_lean::clip_grad_norm;

use super::by_hand::gradients;
use crate::harness::prelude::*;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F64];

/// In `f32` the squares of the first are 2^146, and the largest number is 2^128; those of the last are
/// 2^-168, and the smallest is 2^-149. The second is the largest whose norm is a number.
const SIZES: [i32; 3] = [73, 125, -84];

fn sizes(dtype: DType) -> [f64; 3] {
    let of_f64 = if dtype == DType::F64 { 8 } else { 1 };
    SIZES.map(|exponent| 2f64.powi(exponent * of_f64))
}

fn tensor<const D: usize>(numbers: &[f64], shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::<1>::from_data(TensorData::from(numbers), (&flex(), dtype)).reshape(shape)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn weight<const D: usize>(numbers: [f64; 2], shape: [usize; D], dtype: DType) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(&numbers, shape, dtype).require_grad())
}

/// The loss with a gradient of 3 and 4 times `size`.
fn loss<const D: usize>(weight: &Param<Tensor<D>>, size: f64) -> Tensor<1> {
    let weight = weight.val();
    let grad = tensor(&[3.0 * size, 4.0 * size], weight.dims(), weight.dtype());
    (weight * grad).sum()
}

fn sgd() -> ReleaseOptimizer {
    SgdConfig::new().init().with_gradient_release()
}

/// Within the steps of the type.
#[track_caller]
fn assert_near(found: &[f64], expected: [f64; 2], dtype: DType) {
    let most = match dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-22),
        _ => 1e-15,
    };
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(expected) {
        let is_near = (found - expected).abs() <= most * expected.abs();
        assert!(is_near, "{found:e}, not {expected:e}, in {dtype:?}");
    }
}

/// Of 2^125 the coefficient is 2^-137, of which `f32` has 12 bits.
const MAX_NORM: f64 = 1.0 / 1024.0;

/// Of a larger norm this one is left: 0.6 and 0.8 times it. One below is not clipped.
fn clipped(size: f64) -> [f64; 2] {
    match size > 1.0 {
        true => [-0.6 * MAX_NORM, -0.8 * MAX_NORM],
        false => [-3.0 * size, -4.0 * size],
    }
}

#[test]
fn the_global_norm_is_exact() {
    let clipping = NormClipping::GlobalNorm { max_norm: MAX_NORM };
    for dtype in DTYPES {
        for size in sizes(dtype).into_iter().chain([0.0]) {
            let start = || weight([0.0; 2], [2], dtype);
            for has_two_passes in [true, false] {
                let mut optim = sgd().with_norm_clipping(clipping);
                let model = match has_two_passes {
                    true => {
                        optim
                            .two_passes(1.0, start(), |weight| loss(weight, size))
                            .0
                    }
                    false => {
                        let model = start();
                        let grads = gradients(&model, loss(&model, size));
                        optim.step(1.0, model, grads)
                    }
                };
                assert_eq!(optim.last_step().unwrap().grad_norm(), Some(5.0 * size));
                assert_near(&numbers(model.val()), clipped(size), dtype);
            }

            // Of a rank that has more than a vector's.
            let plain = weight([0.0; 2], [1, 2, 1], dtype);
            let mut grads = gradients(&plain, loss(&plain, size));
            assert_eq!(clip_grad_norm(&plain, &mut grads, MAX_NORM), 5.0 * size);
            let plain = SgdConfig::new().init().step(1.0, plain, grads);
            assert_near(&numbers(plain.val()), clipped(size), dtype);
        }
    }
}

/// Of two parameters, of which one is scaled for its norm and the other is not.
#[test]
fn the_norm_of_several_gradients_is_exact() {
    for (sizes, norm) in [([2f64.powi(73), 1.0], 2f64.powi(73)), ([1.0, 1e-25], 1.0)] {
        let model = sizes.map(|_| weight([0.0; 2], [2], DType::F32));
        let mut optim = sgd().with_grad_norm();
        let losses = model
            .iter()
            .zip(sizes)
            .map(|(weight, size)| loss(weight, size));
        let loss = losses.reduce(|sum, loss| sum + loss).unwrap();
        optim.backward(1.0, loss, model.to_vec());
        assert_eq!(optim.last_step().unwrap().grad_norm(), Some(5.0 * norm));
    }
}

#[test]
fn finite_gradients_are_stepped_with() {
    let stops = || sgd().with_non_finite_stop();
    for size in [2f64.powi(73), 2f64.powi(125)] {
        let scaler = LossScalerConfig::new().with_init_scale(1.0).init();
        for mut optim in [stops(), sgd().with_loss_scaler(scaler.clone())] {
            let model = weight([0.0; 2], [2], DType::F32);
            let loss = scaler.scale(loss(&model, size));
            let model = optim.backward(1.0, loss, model);
            assert_eq!(numbers(model.val()), [-3.0 * size, -4.0 * size]);
        }
    }
    for grad in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let mut optim = stops();
        let model = weight([0.0; 2], [2], DType::F32);
        let refused = optim.try_backward(1.0, loss(&model, grad), model);
        let refused = refused.unwrap_err();
        assert_error!(refused.error(), NonFinite);
    }
}

/// Of a norm and twice it, the middle is one and a half: the second gradient is scaled by 3 / 4.
#[test]
fn auto_clip_scales_to_the_percentile() {
    let clipping = NormClipping::AutoClip(AutoClipConfig::new().with_percentile(50.0));
    for size in [2f64.powi(73), 2f64.powi(120), 2f64.powi(-84)] {
        let mut optim = sgd().with_norm_clipping(clipping);
        let mut model = weight([0.0; 2], [2], DType::F32);
        for size in [size, 2.0 * size] {
            model = optim.backward(1.0, loss(&model, size), model);
        }
        // The first, and 4.5 and 6 of the second.
        assert_eq!(numbers(model.val()), [-7.5 * size, -10.0 * size]);
    }
}

/// A vector is one unit, of norm 1.25; the allowed norm is a hundredth of it. Of two columns each is a
/// unit: the first has a gradient of 3, the second one of 4.
#[test]
fn adaptive_clipping_scales_units_to_their_weights() {
    let clipping = NormClipping::Adaptive(AdaptiveClippingConfig::new());
    for dtype in DTYPES {
        for size in sizes(dtype) {
            let stepped = |weight: Param<Tensor<1>>| {
                let mut optim = sgd().with_norm_clipping(clipping);
                optim.backward(1.0, loss(&weight, size), weight)
            };
            // The weight is the gradient times a power of two: both have its direction.
            let found = numbers(stepped(weight([0.75, 1.0], [2], dtype)).val());
            let share = if size > 1.0 { 0.99 } else { 1.0 };
            assert_near(&found, [0.75 * share, share], dtype);
        }
    }
    let mut optim = sgd().with_norm_clipping(clipping);
    let model = weight([1.0, 2.0], [1, 2], DType::F32);
    let model = optim.backward(1.0, loss(&model, 2f64.powi(125)), model);
    assert_near(&numbers(model.val()), [0.99, 1.98], DType::F32);
}

/// Weights of a norm of 5 * 2^-84 and an epsilon below it: the gradient is clipped to a hundredth of
/// that.
#[test]
fn adaptive_clipping_has_the_norm_of_small_weights() {
    let config = AdaptiveClippingConfig::new().with_eps(1e-30);
    let mut optim = sgd().with_norm_clipping(NormClipping::Adaptive(config));
    let size = 2f64.powi(-84);
    let model = weight([3.0 * size, 4.0 * size], [2], DType::F32);
    let model = optim.backward(1.0, loss(&model, 1.0), model);
    let expected = [3.0, 4.0].map(|number| 0.99 * number * size);
    assert_near(&numbers(model.val()), expected, DType::F32);
}

/// The square of 300 is no number of `f16`.
#[test]
fn adaptive_clipping_in_half_precision_is_right() {
    let clipping = NormClipping::Adaptive(AdaptiveClippingConfig::new());
    for dtype in [DType::F16, DType::BF16] {
        let all = |number: f64| tensor(&[number; 64], [64], dtype);
        for (weight, grad) in [(0.5, 300.0), (300.0, 300.0), (300.0, 60_000.0)] {
            let mut optim = sgd().with_norm_clipping(clipping);
            let model = Param::from_tensor(all(weight).require_grad());
            let loss = (model.val() * all(grad)).sum();
            let found = numbers(optim.backward(1.0, loss, model).val());
            // The gradient is scaled to a hundredth of the weight, and both are rounded.
            let step = numbers(all(0.01 * weight))[0];
            assert_eq!(
                found,
                numbers(all(weight - step)),
                "{weight}, {grad} in {dtype:?}"
            );
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
        let right = numbers(tensor(&clipped, [40], dtype));
        let weight = Param::from_tensor(tensor(&[0.0; 40], [40], dtype).require_grad());
        let loss = (weight.val() * tensor(&grad, [40], dtype)).sum();
        let mut grads = gradients(&weight, loss);
        let found = clip_grad_norm(&weight, &mut grads, 1.0);
        assert!((found - norm).abs() < 1e-3, "{found} {norm}");
        let found = grads.get::<1>(weight.id).unwrap();
        assert_eq!(numbers(found), right, "{dtype:?}");
    }
}
