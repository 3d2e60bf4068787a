//! The norms of gradients.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use burn::{
    module::ParamId,
    tensor::{DType, ElementConversion, FloatDType, Tensor, backend::Backend},
};

use crate::util::lock::lock;

/// The squared norms of the gradients of one step, as they come.
///
/// They stay on the device until [`read`](Self::read), which waits once for all of them.
pub(crate) struct SquaredNorms<B: Backend>(Mutex<HashMap<ParamId, Tensor<B, 1>>>);

impl<B: Backend> Default for SquaredNorms<B> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<B: Backend> SquaredNorms<B> {
    fn found(&self) -> MutexGuard<'_, HashMap<ParamId, Tensor<B, 1>>> {
        lock(&self.0)
    }

    pub(crate) fn push(&self, param: ParamId, squared: Tensor<B, 1>) {
        self.found().insert(param, squared);
    }

    pub(crate) fn contains(&self, param: ParamId) -> bool {
        self.found().contains_key(&param)
    }

    /// The squared norm of each of `params` that has a gradient, in their order.
    pub(crate) fn read(&self, params: impl IntoIterator<Item = ParamId>) -> Vec<(ParamId, f64)> {
        let mut found = self.found();
        let (params, norms): (Vec<_>, Vec<_>) = params
            .into_iter()
            .filter_map(|param| Some((param, found.remove(&param)?)))
            .unzip();
        drop(found);
        let Some(device) = norms.first().map(Tensor::device) else {
            return Vec::new();
        };
        let norms = norms.into_iter().map(|norm| norm.to_device(&device));
        let read = Tensor::cat(norms.collect(), 0).into_data();
        params.into_iter().zip(read.iter::<f64>()).collect()
    }
}

/// The squared norm of a gradient: Burn's own sum, in 32 bits at least.
///
/// Needs no extra memory if nothing else holds the gradient.
pub(crate) fn squared_norm<B: Backend, const D: usize>(grad: Tensor<B, D>) -> Tensor<B, 1> {
    widened(grad).square().sum()
}

/// The tensor in 32 bits at least.
pub(super) fn widened<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(FloatDType::F32),
        _ => tensor,
    }
}

/// Whether the norm is a finite number. Waits for the device.
pub(crate) fn is_finite<B: Backend>(squared: &Tensor<B, 1>) -> bool {
    let squared: f64 = squared.clone().into_scalar().elem();
    squared.is_finite()
}
