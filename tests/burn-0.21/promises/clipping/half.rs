//! Clipping in half precision: in 32 bits, and rounded once.

use burn::tensor::DType;
use burn_gradient_release::{AdaptiveClippingConfig, LossScalerConfig};
use burn_gradient_release_optim::InOnePass;

use super::vector::{Vector, rounded, sgd};
use crate::harness::prelude::*;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The square of 300 is no number of `f16`.
#[test]
fn adaptive_clipping_is_right() {
    let clipping = NormClipping::Adaptive(AdaptiveClippingConfig::new());
    for dtype in HALVES {
        for (weight, grad) in [(0.5, 300.0), (300.0, 300.0), (300.0, 60_000.0)] {
            let mut optim = sgd().with_norm_clipping(clipping);
            let model = Vector::new(&[weight; 64], dtype);
            let loss = |model: &Vector<R>| model.loss(&[grad; 64]);
            let found = armed_step(1.0, model, &mut optim, loss).numbers();
            // The gradient is scaled to a hundredth of the weight, and both are rounded.
            let step = rounded(&[0.01 * weight], dtype)[0];
            let right = rounded(&[weight - step], dtype)[0];
            assert_eq!(found, [right; 64], "{weight}, {grad} in {dtype:?}");
        }
    }
}

/// Burn's clipping of each gradient: of an optimizer, armed or not, of one in one pass, and of a group.
#[test]
fn clipping_of_one_gradient_is_right() {
    let clipping = Some(GradientClippingConfig::Norm(1.0));
    let clipped = SgdConfig::new().with_gradient_clipping(clipping.clone());
    let clipped = || clipped.init().with_gradient_release();
    for dtype in HALVES {
        let zeros = || Vector::new(&[0.0; 64], dtype);
        let loss = |model: &Vector<R>| model.loss(&[300.0; 64]);
        let armed = armed_step(1.0, zeros(), &mut clipped(), loss);
        let start = zeros();
        let ordinary = loss(&start);
        let ordinary = ordinary_step(1.0, start, &mut clipped(), ordinary);
        let options = GroupOptions::new().with_grad_clipping(clipping.clone().unwrap().init());
        let mut of_group = sgd().with_group(ParamGroup::all(), options);
        let in_group = armed_step(1.0, zeros(), &mut of_group, loss);
        let config = SgdConfig::new().with_gradient_clipping(clipping.clone());
        let in_pass: OptimizerAdaptor<_, Vector<R>, R> =
            OptimizerAdaptor::from(config.in_one_pass());
        let in_pass = armed_step(1.0, zeros(), &mut in_pass.with_gradient_release(), loss);
        for stepped in [armed, ordinary, in_pass, in_group] {
            // The norm is 2400.
            assert_eq!(stepped.numbers(), [-0.125; 64], "{dtype:?}");
        }
    }
}

/// The nearest numbers of the type to those of 64 bits: a coefficient that was rounded itself would
/// be off by up to half a step more.
#[test]
fn a_clipped_gradient_is_rounded_once() {
    let grad: Vec<f64> = (1..=40).map(|number| f64::from(number * 16)).collect();
    let norm = grad.iter().map(|x| x * x).sum::<f64>().sqrt();
    for dtype in HALVES {
        let clipped: Vec<f64> = grad.iter().map(|x| -x / (norm + 1e-6)).collect();
        let right = rounded(&clipped, dtype);
        let mut optim = sgd().with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        let zeros = Vector::new(&[0.0; 40], dtype);
        let (model, _) = optim.two_passes(1.0, zeros, |model| model.loss(&grad));
        let found = optim.last_step().unwrap().grad_norm().unwrap();
        assert!((found - norm).abs() < 1e-3, "{found} {norm}");
        assert_eq!(model.numbers(), right, "{dtype:?}");
    }
}

/// The scale of the loss and the clip come off a gradient in 32 bits, and it is rounded once.
#[test]
fn a_gradient_is_unscaled_and_clipped_before_it_is_rounded() {
    let dtype = DType::BF16;
    let grad: Vec<f64> = (1..=40).map(f64::from).collect();
    // The backward pass rounds the scaled gradient.
    let scaled: Vec<f64> = grad.iter().map(|x| x * 1000.0).collect();
    let unscaled: Vec<f64> = rounded(&scaled, dtype).iter().map(|x| x / 1000.0).collect();
    let norm = unscaled.iter().map(|x| x * x).sum::<f64>().sqrt();
    for max_norm in [None, Some(1.0)] {
        let scaler = LossScalerConfig::new().with_init_scale(1000.0).init();
        let mut optim = sgd().with_loss_scaler(scaler.clone());
        let mut factor = 1.0;
        if let Some(max_norm) = max_norm {
            optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
            factor = max_norm / (norm + 1e-6);
        }
        let right: Vec<f64> = unscaled.iter().map(|x| -x * factor).collect();
        let zeros = Vector::new(&[0.0; 40], dtype);
        let (model, _) = optim.two_passes(1.0, zeros, |model| scaler.scale(model.loss(&grad)));
        let found = model.numbers();
        assert_eq!(found, rounded(&right, dtype), "{max_norm:?}");
    }
}
