//! Gradients that are finite, with squares that are not, and small ones whose squares are zero.
//!
//! Each gradient is 3 and 4 times a power of two, and so has a norm of exactly 5 times it.

use burn::tensor::DType;
use burn_gradient_release::{AdaptiveClippingConfig, AutoClipConfig, LossScalerConfig};

use super::vector::{Vector, sgd};
use crate::harness::prelude::*;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F64];

/// In `f32` the squares of the first are 2^146, and the largest number is 2^128; those of the last are
/// 2^-168, and the smallest is 2^-149. The second is the largest whose norm is a number.
const SIZES: [i32; 3] = [73, 125, -84];

fn sizes(dtype: DType) -> [f64; 3] {
    let of_f64 = if dtype == DType::F64 { 8 } else { 1 };
    SIZES.map(|exponent| 2f64.powi(exponent * of_f64))
}

fn loss(model: &Vector<R>, size: f64) -> Tensor<R, 1> {
    model.loss(&[3.0 * size, 4.0 * size])
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

/// Of a larger norm that one is left: 0.6 and 0.8 times it. One below is not clipped.
#[test]
fn the_global_norm_is_exact() {
    let clipping = NormClipping::GlobalNorm { max_norm: MAX_NORM };
    for dtype in DTYPES {
        for size in sizes(dtype) {
            for has_two_passes in [true, false] {
                let mut optim = sgd().with_norm_clipping(clipping);
                let start = Vector::new(&[0.0; 2], dtype);
                let model = match has_two_passes {
                    true => optim.two_passes(1.0, start, |model| loss(model, size)).0,
                    false => {
                        let loss = loss(&start, size);
                        ordinary_step(1.0, start, &mut optim, loss)
                    }
                };
                assert_eq!(optim.last_step().unwrap().grad_norm(), Some(5.0 * size));
                let clipped = match size > 1.0 {
                    true => [-0.6 * MAX_NORM, -0.8 * MAX_NORM],
                    false => [-3.0 * size, -4.0 * size],
                };
                assert_near(&model.numbers(), clipped, dtype);
            }
        }
    }
}

#[test]
fn finite_gradients_are_stepped_with() {
    for size in [2f64.powi(73), 2f64.powi(125)] {
        let scaler = LossScalerConfig::new().with_init_scale(1.0).init();
        let stops = sgd().with_non_finite_stop();
        for mut optim in [stops, sgd().with_loss_scaler(scaler.clone())] {
            let start = Vector::new(&[0.0; 2], DType::F32);
            let loss = |model: &_| scaler.scale(loss(model, size));
            let model = armed_step(1.0, start, &mut optim, loss);
            assert_eq!(model.numbers(), [-3.0 * size, -4.0 * size]);
        }
    }
}

/// Of a norm and twice it, the middle is one and a half: the second gradient is scaled by 3 / 4.
#[test]
fn auto_clip_scales_to_the_percentile() {
    let clipping = NormClipping::AutoClip(AutoClipConfig::new().with_percentile(50.0));
    for size in [2f64.powi(73), 2f64.powi(120), 2f64.powi(-84)] {
        let mut optim = sgd().with_norm_clipping(clipping);
        let mut model = Vector::new(&[0.0; 2], DType::F32);
        for size in [size, 2.0 * size] {
            model = armed_step(1.0, model, &mut optim, |model| loss(model, size));
        }
        // The first, and 4.5 and 6 of the second.
        assert_eq!(model.numbers(), [-7.5 * size, -10.0 * size]);
    }
}

/// A vector is one unit, of norm 1.25; the allowed norm is a hundredth of it.
#[test]
fn adaptive_clipping_scales_units_to_their_weights() {
    let clipping = NormClipping::Adaptive(AdaptiveClippingConfig::new());
    for dtype in DTYPES {
        for size in sizes(dtype) {
            let mut optim = sgd().with_norm_clipping(clipping);
            let start = Vector::new(&[0.75, 1.0], dtype);
            let model = armed_step(1.0, start, &mut optim, |model| loss(model, size));
            // The weight is the gradient times a power of two: both have its direction.
            let share = if size > 1.0 { 0.99 } else { 1.0 };
            assert_near(&model.numbers(), [0.75 * share, share], dtype);
        }
    }
}

/// Weights of a norm of 5 * 2^-84 and an epsilon below it: the gradient is clipped to a hundredth of
/// that.
#[test]
fn adaptive_clipping_has_the_norm_of_small_weights() {
    let config = AdaptiveClippingConfig::new().with_eps(1e-30);
    let mut optim = sgd().with_norm_clipping(NormClipping::Adaptive(config));
    let size = 2f64.powi(-84);
    let start = Vector::new(&[3.0 * size, 4.0 * size], DType::F32);
    let model = armed_step(1.0, start, &mut optim, |model| loss(model, 1.0));
    let expected = [3.0, 4.0].map(|number| 0.99 * number * size);
    assert_near(&model.numbers(), expected, DType::F32);
}
