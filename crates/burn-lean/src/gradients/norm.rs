//! The norms of gradients.

use std::collections::{HashMap, HashSet};

use burn::Tensor;
use burn::module::ParamId;
use burn::tensor::{DType, Shape, TensorData};
use lean_arithmetic::norm::{Scales, Squares, global_norm};

use crate::wide::widened;

/// The squared norms of the gradients of one step, as [`squared_norm`] has them.
///
/// They stay on the device until [`read`](Self::read), which waits once for all of them.
#[derive(Default)]
pub(super) struct SquaredNorms {
    pending: HashMap<ParamId, Tensor<1>>,
    known: HashMap<ParamId, Squares>,
}

impl std::fmt::Debug for SquaredNorms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SquaredNorms").finish_non_exhaustive()
    }
}

impl SquaredNorms {
    pub(super) fn push(&mut self, param: ParamId, squared: Tensor<1>) {
        self.pending.insert(param, squared);
    }

    pub(super) fn contains(&self, param: ParamId) -> bool {
        self.pending.contains_key(&param) || self.known.contains_key(&param)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.known.is_empty()
    }

    /// The squared norm of a gradient that was pushed.
    pub(super) fn get(&mut self, param: ParamId) -> Squares {
        self.read();
        self.known[&param]
    }

    fn read(&mut self) {
        let mut pending: Vec<_> = self.pending.drain().collect();
        while let Some((_, first)) = pending.first() {
            let (device, dtype) = (first.device(), first.dtype());
            let (alike, others): (Vec<_>, Vec<_>) = pending
                .into_iter()
                .partition(|(_, squared)| squared.dtype() == dtype);
            let (params, squared): (Vec<_>, Vec<_>) = alike
                .into_iter()
                .map(|(param, squared)| (param, squared.to_device(&device)))
                .unzip();
            let read: Vec<f64> = Tensor::cat(squared, 0).into_data().iter().collect();
            let squares = Squares::of_pairs(&read);
            self.known.extend(params.into_iter().zip(squares));
            pending = others;
        }
    }

    /// The global norm over the parameters that have a gradient.
    pub(super) fn global(&mut self, params: &[ParamId]) -> f64 {
        self.read();
        let mut seen = HashSet::new();
        let params = params.iter().filter(|param| seen.insert(**param));
        global_norm(params.filter_map(|param| self.known.get(param).copied()))
    }

    /// The first parameter whose gradient has no finite norm.
    pub(super) fn first_non_finite(&mut self, params: &[ParamId]) -> Option<ParamId> {
        self.read();
        let is_finite = |param| {
            let squares = self.known.get(param);
            squares.is_none_or(|squares| squares.is_finite())
        };
        params.iter().find(|param| !is_finite(*param)).copied()
    }
}

/// The squared norm of a gradient, `[sum, scale]`: Burn's own sum, in 32 bits at least, of the
/// gradient times a [`scale`].
///
/// Needs no further memory if the gradient has no other owner.
pub(super) fn squared_norm<const D: usize>(grad: Tensor<D>) -> Tensor<1> {
    let grad = widened(grad);
    let shape = grad.shape();
    if shape.num_elements() == 0 {
        // Which have no largest one.
        let none = TensorData::from([0.0, 1.0]);
        return Tensor::from_data(none, (&grad.device(), grad.dtype()));
    }
    let (most, least) = (grad.clone().max(), grad.clone().min());
    let scale = scale(most.max_pair(-least));
    // Any rank will do.
    let of_all = Shape::from(vec![1; shape.num_dims()]);
    let sum = (grad * scale.clone().reshape(of_all)).square().sum();
    Tensor::cat(vec![sum, scale], 0)
}

/// What numbers are multiplied by before their squares are added up, by the largest magnitude among
/// them. It stays on the device.
pub(super) fn scale<const D: usize>(largest: Tensor<D>) -> Tensor<D> {
    let scales = match largest.dtype() {
        DType::F64 => Scales::F64,
        _ => Scales::F32,
    };
    let is_large = largest.clone().greater_scalar(scales.large);
    let is_small = largest.clone().lower_scalar(scales.small);
    let unscaled = largest.ones_like().mask_fill(is_large, scales.down);
    unscaled.mask_fill(is_small, scales.up)
}
