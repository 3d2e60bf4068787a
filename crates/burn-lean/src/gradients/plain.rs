//! Clipping by the global norm for a loop without gradient release.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use lean_arithmetic::clipping::GlobalNormRule;
use lean_arithmetic::norm::coefficient_for;

use super::clipping::scaled;
use super::norm::{SquaredNorms, squared_norm};
use super::pipeline::out_of_range;
use crate::error::{ReleaseError, expect};
use crate::path::params_of;

/// Clips the gradients of a model by their global norm, and returns it: what PyTorch's
/// `clip_grad_norm_` does, for plain Burn.
///
/// For gradient release, see [`NormClipping`](crate::NormClipping).
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamWConfig, GradientsParams};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::clip_grad_norm;
///
/// let device = Device::flex().autodiff();
/// let mut model: Linear = LinearConfig::new(8, 4).init(&device);
/// let mut optim = AdamWConfig::new().init();
///
/// let batch = Tensor::<2>::random([16, 8], Distribution::Default, &device);
/// let loss = model.forward(batch).square().sum();
/// let mut grads = GradientsParams::from_grads(loss.backward(), &model);
/// let norm = clip_grad_norm(&model, &mut grads, 1.0);
/// assert!(norm > 1.0);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// ```
///
/// # Panics
///
/// With the text of the [`ReleaseError`] that [`try_clip_grad_norm`] returns.
pub fn clip_grad_norm<M: Module>(model: &M, grads: &mut GradientsParams, max_norm: f64) -> f64 {
    expect(try_clip_grad_norm(model, grads, max_norm))
}

/// [`clip_grad_norm`], leaving the gradients as they are where it refuses.
///
/// # Errors
///
/// - [`OutOfRange`](ReleaseError::OutOfRange): `max_norm` is not positive;
/// - [`NonFinite`](ReleaseError::NonFinite): a gradient has no finite norm.
pub fn try_clip_grad_norm<M: Module>(
    model: &M,
    grads: &mut GradientsParams,
    max_norm: f64,
) -> Result<f64, ReleaseError> {
    out_of_range(GlobalNormRule { max_norm }.out_of_range())?;
    let params = params_of(model);
    let mut norms = SquaredNorms::default();
    for param in &params {
        if let Some(grad) = param.grad(grads) {
            // Any rank will do.
            norms.push(param.id, squared_norm(Tensor::<1>::from_dispatch(grad)));
        }
    }
    let ids: Vec<ParamId> = params.iter().map(|param| param.id).collect();
    if let Some(id) = norms.first_non_finite(&ids) {
        let param = params.iter().find(|param| param.id == id);
        return Err(ReleaseError::NonFinite {
            path: param.map_or_else(String::new, |param| param.path.to_string()),
            stepped: 0,
            of: params.len(),
        });
    }
    let norm = norms.global(&ids);
    let coefficient = coefficient_for(max_norm, norm);
    if coefficient < 1.0 {
        // Two parameters with one id have one gradient.
        let mut seen = HashSet::new();
        for param in params.iter().filter(|param| seen.insert(param.id)) {
            if let Some(grad) = param.take_grad(grads) {
                let grad = scaled(Tensor::<1>::from_dispatch(grad), coefficient);
                param.put_grad(grads, grad.into_dispatch());
            }
        }
    }
    Ok(norm)
}
