//! Clipping by the global norm for a loop without gradient release.

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use lean_arithmetic::clipping::GlobalNormRule;
use lean_arithmetic::norm::coefficient_for;

use super::clipping::scaled;
use super::norm::{SquaredNorms, squared_norm};
use super::transform::out_of_range;
use crate::error::{ReleaseError, expect};
use crate::groups::path_of;
use crate::tape::is_left;

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
/// - [`Taken`](ReleaseError::Taken): a gradient was taken inside the backward pass of an armed model;
/// - [`NonFinite`](ReleaseError::NonFinite): a gradient has no finite norm.
pub fn try_clip_grad_norm<M: Module>(
    model: &M,
    grads: &mut GradientsParams,
    max_norm: f64,
) -> Result<f64, ReleaseError> {
    out_of_range(GlobalNormRule { max_norm }.out_of_range())?;
    let mut measure = NormVisitor {
        grads,
        params: Vec::new(),
        norms: SquaredNorms::default(),
        taken: None,
    };
    model.visit(&mut measure);
    let NormVisitor {
        params,
        mut norms,
        taken,
        ..
    } = measure;
    if let Some(param) = taken {
        let path = path_of(model, param);
        return Err(ReleaseError::Taken { path });
    }
    if let Some(param) = norms.first_non_finite(&params) {
        return Err(ReleaseError::NonFinite {
            path: path_of(model, param),
            stepped: 0,
            armed: 0,
        });
    }
    let norm = norms.global(&params);
    let coefficient = coefficient_for(max_norm, norm);
    if coefficient < 1.0 {
        model.visit(&mut ScaleVisitor { grads, coefficient });
    }
    Ok(norm)
}

struct NormVisitor<'a> {
    grads: &'a GradientsParams,
    params: Vec<ParamId>,
    norms: SquaredNorms,
    taken: Option<ParamId>,
}

impl ModuleVisitor for NormVisitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.get::<D>(param.id) {
            if is_left(param.base().dims(), grad.clone()) {
                self.taken.get_or_insert(param.id);
            }
            self.params.push(param.id);
            self.norms.push(param.id, squared_norm(grad));
        }
    }
}

struct ScaleVisitor<'a> {
    grads: &'a mut GradientsParams,
    coefficient: f64,
}

impl ModuleVisitor for ScaleVisitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.grads
                .register(param.id, scaled(grad, self.coefficient));
        }
    }
}
